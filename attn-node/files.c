/*
 * How many connections a node can hold, from its limit of descriptors. It knows nothing of what is
 * said on them.
 */
#include "attn-node/files.h"

#include <dirent.h>
#include <sys/resource.h>

#include "common/base/log.h"
#include "common/rpc/grpc_transport.h"

#define KEPT_MAX 80u

static uint64_t files_open(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (folder == NULL) {
        return 32; /* a node's own are fewer */
    }
    while (readdir(folder) != NULL) {
        ++count;
    }
    closedir(folder);
    return count - 3; /* ".", ".." and the folder's own */
}

/* What is open now is the node's own. */
static uint64_t connections_possible(uint64_t limit, uint64_t open)
{
    uint64_t left = limit > open ? limit - open : 0;
    uint64_t kept = left / 4 < KEPT_MAX ? left / 4 : KEPT_MAX;
    return left - kept;
}

static uint64_t raise_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0) {
        return 1024; /* the usual */
    }
    rlim_t soft = files.rlim_cur;
    files.rlim_cur = files.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &files) == 0 ? files.rlim_max : soft;
}

enum pp_status an_files_plan(uint64_t wanted, uint64_t quota_bytes, uint32_t *connections_max_out)
{
    uint64_t limit = raise_limit();
    uint64_t possible = connections_possible(limit, files_open());
    uint64_t fit = quota_bytes / (2 * PP_GRPC_READ_BUFFER_BYTES);
    uint64_t usual = fit < AN_CONNECTIONS_MAX ? fit : AN_CONNECTIONS_MAX;
    uint64_t most = wanted != 0 ? wanted : usual;
    if (wanted > possible) {
        PP_LOG_WARNF("main", "fewer connections than wanted: raise the limit of files (ulimit -n)",
                     "wanted=%llu possible=%llu files=%llu", (unsigned long long)wanted,
                     (unsigned long long)possible, (unsigned long long)limit);
    }
    most = most < possible ? most : possible;
    if (most < AN_CONNECTIONS_MIN) {
        PP_LOG_ERRORF("main", "too few connections: raise the limit of files (ulimit -n)",
                      "possible=%llu least=%u files=%llu", (unsigned long long)possible,
                      AN_CONNECTIONS_MIN, (unsigned long long)limit);
        return PP_RESOURCE_EXHAUSTED;
    }
    *connections_max_out = (uint32_t)most;
    return PP_OK;
}
