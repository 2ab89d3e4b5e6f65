/*
 * Address space for K/V rows: mapped without access, opened as it fills. What lies in it, the
 * caller knows; so is the account of bytes (limit.h).
 */
#include "common/mem/pages.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/assert.h"
#include "common/base/log.h"

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

enum pp_status pp_pages_reserve(uint64_t bytes, void **base_out)
{
    if (bytes == 0 || bytes > UINT64_C(1) << 46) {
        return PP_MEMORY; /* Nothing, or more than the address space can hold. */
    }
    bytes = round_up(bytes, PP_PAGE_BYTES);
    uint64_t spare = bytes >= PP_HUGE_PAGE_BYTES ? PP_HUGE_PAGE_BYTES : 0;
    char *raw =
        mmap(NULL, bytes + spare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        PP_LOG_WARNF("pages", "no address space", "bytes=%llu errno=%d", (unsigned long long)bytes,
                     errno);
        return PP_MEMORY;
    }
    char *base = raw;
    if (spare > 0) {
        base = raw + (round_up((uintptr_t)raw, PP_HUGE_PAGE_BYTES) - (uintptr_t)raw);
        uint64_t before = (uint64_t)(base - raw);
        if (before > 0) {
            munmap(raw, before);
        }
        if (spare - before > 0) {
            munmap(base + bytes, spare - before);
        }
    }
    *base_out = base;
    return PP_OK;
}

static pthread_once_t support_once = PTHREAD_ONCE_INIT;
static bool supported;

static void look_for_support(void)
{
    char line[128] = "";
    FILE *stream = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (stream != NULL) {
        supported = fgets(line, sizeof(line), stream) != NULL && strstr(line, "[never]") == NULL;
        fclose(stream);
    }
}

bool pp_pages_huge_supported(void)
{
    pthread_once(&support_once, look_for_support);
    return supported;
}

/* Asks for huge pages on the 2 MiB blocks that lie whole in [begin, end). */
static enum pp_status ask_huge(char *base, uint64_t begin, uint64_t end, enum pp_hugepages wanted)
{
    uintptr_t first = round_up((uintptr_t)(base + begin), PP_HUGE_PAGE_BYTES);
    uintptr_t last = (uintptr_t)(base + end) / PP_HUGE_PAGE_BYTES * PP_HUGE_PAGE_BYTES;
    if (first >= last) {
        return PP_OK;
    }
    char *at = base + begin + (first - (uintptr_t)(base + begin));
    bool given = madvise(at, last - first, MADV_HUGEPAGE) == 0 && pp_pages_huge_supported();
    if (!given && wanted == PP_HUGEPAGES_REQUIRE) {
        PP_LOG_WARNF("pages", "huge pages are required and not available", "bytes=%llu",
                     (unsigned long long)(last - first));
        return PP_MEMORY;
    }
    return PP_OK;
}

enum pp_status pp_pages_commit(void *base, uint64_t begin, uint64_t end,
                               enum pp_hugepages hugepages)
{
    PP_ASSERT(begin % PP_PAGE_BYTES == 0 && end % PP_PAGE_BYTES == 0 && begin <= end);
    if (begin == end) {
        return PP_OK;
    }
    if (mprotect((char *)base + begin, end - begin, PROT_READ | PROT_WRITE) != 0) {
        PP_LOG_WARNF("pages", "no memory", "bytes=%llu errno=%d", (unsigned long long)(end - begin),
                     errno);
        return PP_MEMORY;
    }
    if (hugepages != PP_HUGEPAGES_OFF) {
        return ask_huge(base, begin, end, hugepages);
    }
    return PP_OK;
}

void pp_pages_decommit(void *base, uint64_t begin, uint64_t end)
{
    PP_ASSERT(begin % PP_PAGE_BYTES == 0 && end % PP_PAGE_BYTES == 0 && begin <= end);
    if (begin < end) {
        madvise((char *)base + begin, end - begin, MADV_DONTNEED);
        mprotect((char *)base + begin, end - begin, PROT_NONE);
    }
}

void pp_pages_free(void *base, uint64_t bytes)
{
    if (base != NULL) {
        munmap(base, round_up(bytes, PP_PAGE_BYTES));
    }
}
