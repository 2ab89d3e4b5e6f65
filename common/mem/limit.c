/*
 * The node's memory account (law 5): asked before every taking. Takes no memory itself.
 */
#include "common/mem/limit.h"

#include <unistd.h>

#include "common/base/assert.h"
#include "common/run/cgroup.h"

void pp_limit_init(struct pp_limit *limit, uint64_t bytes_max)
{
    limit->bytes_max = bytes_max;
    atomic_init(&limit->used, 0);
    for (int kind = 0; kind < PP_MEMORY_KINDS; ++kind) {
        atomic_init(&limit->used_by_kind[kind], 0);
    }
}

enum pp_status pp_limit_reserve(struct pp_limit *limit, enum pp_memory_kind kind, uint64_t bytes)
{
    uint64_t used = atomic_load_explicit(&limit->used, memory_order_relaxed);
    do {
        if (bytes > limit->bytes_max || used > limit->bytes_max - bytes) {
            return PP_MEMORY;
        }
    } while (!atomic_compare_exchange_weak_explicit(&limit->used, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    atomic_fetch_add_explicit(&limit->used_by_kind[kind], bytes, memory_order_relaxed);
    return PP_OK;
}

/* Giving back more than was reserved is a programmer's error. */
static void lower(_Atomic uint64_t *account, uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub_explicit(account, bytes, memory_order_relaxed);
    PP_ASSERT(before >= bytes);
}

void pp_limit_release(struct pp_limit *limit, enum pp_memory_kind kind, uint64_t bytes)
{
    lower(&limit->used_by_kind[kind], bytes);
    lower(&limit->used, bytes);
}

void pp_limit_move(struct pp_limit *limit, enum pp_memory_kind from, enum pp_memory_kind to,
                   uint64_t bytes)
{
    lower(&limit->used_by_kind[from], bytes);
    atomic_fetch_add_explicit(&limit->used_by_kind[to], bytes, memory_order_relaxed);
}

uint64_t pp_limit_used(const struct pp_limit *limit)
{
    return atomic_load_explicit(&limit->used, memory_order_relaxed);
}

uint64_t pp_memory_available_bytes(void)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    uint64_t group = pp_cgroup_memory_limit("");
    return group < machine ? group : machine;
}
