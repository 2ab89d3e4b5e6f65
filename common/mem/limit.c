/*
 * The node's memory account (law 5): asked before every taking. Takes no memory itself.
 */
#include "common/mem/limit.h"

#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/run/cgroup.h"

void pp_limit_init(struct pp_limit *limit, uint64_t bytes_max)
{
    limit->bytes_max = bytes_max;
    limit->reclaim = NULL;
    limit->reclaim_context = NULL;
    atomic_init(&limit->taken, 0);
    for (int kind = 0; kind < PP_MEMORY_KINDS; ++kind) {
        atomic_init(&limit->used_by_kind[kind], 0);
    }
}

static bool fits(const struct pp_limit *limit, uint64_t taken, uint64_t bytes)
{
    return bytes <= limit->bytes_max && taken <= limit->bytes_max - bytes;
}

static bool take(struct pp_limit *limit, uint64_t bytes)
{
    uint64_t taken = atomic_load_explicit(&limit->taken, memory_order_relaxed);
    do {
        if (!fits(limit, taken, bytes)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&limit->taken, &taken, taken + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

enum pp_status pp_limit_reserve(struct pp_limit *limit, enum pp_memory_kind kind, uint64_t bytes)
{
    if (!take(limit, bytes)) {
        if (limit->reclaim == NULL || !fits(limit, pp_limit_used(limit), bytes)) {
            return PP_MEMORY;
        }
        uint64_t taken = atomic_load_explicit(&limit->taken, memory_order_relaxed);
        uint64_t room = limit->bytes_max - bytes;
        limit->reclaim(limit->reclaim_context, taken > room ? taken - room : 0);
        if (!take(limit, bytes)) {
            return PP_MEMORY;
        }
    }
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
    lower(&limit->taken, bytes);
}

void pp_limit_move(struct pp_limit *limit, enum pp_memory_kind from, enum pp_memory_kind to,
                   uint64_t bytes)
{
    lower(&limit->used_by_kind[from], bytes);
    atomic_fetch_add_explicit(&limit->used_by_kind[to], bytes, memory_order_relaxed);
}

uint64_t pp_limit_used(const struct pp_limit *limit)
{
    uint64_t spare =
        atomic_load_explicit(&limit->used_by_kind[PP_MEMORY_SPARE], memory_order_relaxed);
    uint64_t taken = atomic_load_explicit(&limit->taken, memory_order_relaxed);
    return taken > spare ? taken - spare : 0; /* not read at one time */
}

uint64_t pp_memory_available_bytes(void)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGE_SIZE);
    uint64_t group = pp_cgroup_memory_limit("");
    return group < machine ? group : machine;
}
