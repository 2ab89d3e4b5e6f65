/*
 * The gate. A connection that was let in is known by its descriptor and its socket's inode: when
 * the descriptor names something else, it is closed. That is looked up where one is to be refused,
 * every 10 ms at most, and where the counts are asked for; gRPC tells nobody of what it closes.
 */
#include "common/rpc/accept.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/share.h"
#include "common/rpc/peer.h"

#define SWEEP_US 10000u
#define LOG_US   1000000u

struct connection {
    int file;
    ino_t inode;
    uint64_t host;
};

static struct {
    pthread_mutex_t lock;
    _Atomic bool stands;
    in_port_t port;                        /* network order; 0: a path */
    char path[sizeof(struct sockaddr_un)]; /* "unix:" off */
    struct pp_clock clock;
    struct pp_share share;
    struct connection *connections; /* [share.held] of share.max */
    uint64_t swept_us, logged_us;
    int spare_file; /* given up to refuse a connection where no other is left */
    uint64_t refused[PP_ACCEPT_REFUSALS];
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .spare_file = -1};

static int take_spare_file(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

enum pp_status pp_accept_begin(const char *address, int port, uint32_t connections_max,
                               struct pp_clock clock)
{
    enum pp_status status = PP_FAILED_PRECONDITION;
    pthread_mutex_lock(&gate.lock);
    if (atomic_load(&gate.stands)) {
        goto out;
    }
    status = pp_share_init(&gate.share, connections_max);
    gate.connections = calloc(connections_max, sizeof(*gate.connections));
    gate.spare_file = take_spare_file();
    if (status == PP_OK && gate.connections == NULL) {
        status = PP_MEMORY;
    } else if (status == PP_OK && gate.spare_file < 0) {
        status = PP_IO;
    }
    gate.port = htons((uint16_t)port);
    const char *path = strncmp(address, "unix:", 5) == 0 ? address + 5 : "";
    memset(gate.path, 0, sizeof(gate.path));
    memcpy(gate.path, path, strnlen(path, sizeof(gate.path) - 1));
    gate.clock = clock;
    gate.swept_us = gate.logged_us = 0;
    memset(gate.refused, 0, sizeof(gate.refused));
    atomic_store(&gate.stands, true);
out:
    pthread_mutex_unlock(&gate.lock);
    if (status != PP_OK && status != PP_FAILED_PRECONDITION) {
        pp_accept_end();
    }
    return status;
}

void pp_accept_end(void)
{
    pthread_mutex_lock(&gate.lock);
    if (atomic_exchange(&gate.stands, false)) {
        pp_share_deinit(&gate.share);
        free(gate.connections);
        gate.connections = NULL;
        if (gate.spare_file >= 0) {
            close(gate.spare_file);
        }
        gate.spare_file = -1;
    }
    pthread_mutex_unlock(&gate.lock);
}

static ino_t inode_of(int file)
{
    struct stat found;
    return fstat(file, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

static void sweep(uint64_t now_us)
{
    uint32_t at = 0;
    while (at < gate.share.held) {
        struct connection *connection = &gate.connections[at];
        if (inode_of(connection->file) == connection->inode) {
            ++at;
            continue;
        }
        pp_share_give(&gate.share, connection->host);
        *connection = gate.connections[gate.share.held];
    }
    gate.swept_us = now_us;
}

void pp_accept_count(struct pp_accept_counts *counts_out)
{
    *counts_out = (struct pp_accept_counts){.open = 0};
    pthread_mutex_lock(&gate.lock);
    if (atomic_load(&gate.stands)) {
        sweep(pp_clock_now_us(&gate.clock));
        counts_out->open = gate.share.held;
        counts_out->max = gate.share.max;
        counts_out->hosts = gate.share.holders;
        memcpy(counts_out->refused, gate.refused, sizeof(gate.refused));
    }
    pthread_mutex_unlock(&gate.lock);
}

static bool guards(int listener)
{
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof(own);
    if (!atomic_load(&gate.stands) || getsockname(listener, (struct sockaddr *)&own, &bytes) != 0) {
        return false;
    }
    if (own.ss_family == AF_INET || own.ss_family == AF_INET6) {
        in_port_t port; /* at the same place in both */
        memcpy(&port, (const char *)&own + offsetof(struct sockaddr_in, sin_port), sizeof(port));
        return gate.port != 0 && port == gate.port;
    }
    const char *path = (const char *)&own + offsetof(struct sockaddr_un, sun_path);
    return own.ss_family == AF_UNIX && gate.path[0] != '\0' &&
           strncmp(path, gate.path, sizeof(((struct sockaddr_un *)0)->sun_path)) == 0;
}

static void refuse(int file, enum pp_accept_refusal why)
{
    static const char *const texts[PP_ACCEPT_REFUSALS] = {
        "as many connections are open as may be", "its host has its share of the connections",
        "no file descriptor is left: see ulimit -n"};
    uint64_t now_us = pp_clock_now_us(&gate.clock);
    ++gate.refused[why];
    if (now_us - gate.logged_us >= LOG_US || gate.logged_us == 0) {
        gate.logged_us = now_us;
        PP_LOG_WARNF("rpc", "connection refused", "why=\"%s\" open=%u max=%u hosts=%u refused=%llu",
                     texts[why], gate.share.held, gate.share.max, gate.share.holders,
                     (unsigned long long)(gate.refused[PP_ACCEPT_FULL] +
                                          gate.refused[PP_ACCEPT_SHARE] +
                                          gate.refused[PP_ACCEPT_FILES]));
    }
    close(file);
}

/* False: refused. */
static bool let_in(int file)
{
    struct sockaddr_storage far = {.ss_family = AF_UNSPEC};
    socklen_t bytes = sizeof(far);
    (void)getpeername(file, (struct sockaddr *)&far, &bytes); /* gone already: closes soon */
    uint64_t host = pp_peer_key_of_address(&far);
    uint64_t now_us = pp_clock_now_us(&gate.clock);
    enum pp_share_outcome outcome = pp_share_take(&gate.share, host);
    if (outcome != PP_SHARE_TAKEN && now_us - gate.swept_us >= SWEEP_US) {
        sweep(now_us);
        outcome = pp_share_take(&gate.share, host);
    }
    if (outcome != PP_SHARE_TAKEN) {
        refuse(file, outcome == PP_SHARE_FULL ? PP_ACCEPT_FULL : PP_ACCEPT_SHARE);
        return false;
    }
    gate.connections[gate.share.held - 1] =
        (struct connection){.file = file, .inode = inode_of(file), .host = host};
    return true;
}

static int accept_plainly(int listener, struct sockaddr *address, socklen_t *bytes, int flags)
{
    return (int)syscall(SYS_accept4, listener, address, bytes, flags);
}

/* There is no descriptor: the one that is kept takes the connection and closes it. */
static bool refuse_with_spare_file(int listener)
{
    if (gate.spare_file >= 0) {
        close(gate.spare_file);
        gate.spare_file = -1;
    }
    int file = accept_plainly(listener, NULL, NULL, SOCK_CLOEXEC);
    if (file >= 0) {
        refuse(file, PP_ACCEPT_FILES);
    }
    gate.spare_file = take_spare_file();
    return file >= 0;
}

/* One connection that may come in, or -1 with errno; EAGAIN for all that passes by itself. */
static int accept_guarded(int listener, struct sockaddr *address, socklen_t *bytes, int flags)
{
    for (;;) {
        socklen_t room = bytes != NULL ? *bytes : 0;
        int file = accept_plainly(listener, address, bytes, flags);
        if (file >= 0 && let_in(file)) {
            return file;
        }
        if (bytes != NULL) {
            *bytes = room;
        }
        if (file >= 0) {
            continue;
        }
        bool short_of = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (!short_of) {
            return -1;
        }
        if (!refuse_with_spare_file(listener)) {
            errno = EAGAIN;
            return -1;
        }
    }
}

int accept4(int listener, __SOCKADDR_ARG address, socklen_t *restrict bytes, int flags)
{
    if (!guards(listener)) {
        return accept_plainly(listener, address.__sockaddr__, bytes, flags);
    }
    pthread_mutex_lock(&gate.lock);
    int file = atomic_load(&gate.stands)
                   ? accept_guarded(listener, address.__sockaddr__, bytes, flags)
                   : accept_plainly(listener, address.__sockaddr__, bytes, flags);
    int failure = errno;
    pthread_mutex_unlock(&gate.lock);
    errno = failure;
    return file;
}
