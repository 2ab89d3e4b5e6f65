/*
 * A memory limit with kinds: bytes are reserved before they are taken, refused beyond the limit,
 * and returned when freed (law 5). Spare memory is what its owner has no use for and keeps for its
 * next one: it counts against the limit, but not as used, and is asked back when a reservation
 * would be refused otherwise. Threads: any; atomics. With a reclaim, only its owner's thread
 * reserves.
 */
#ifndef PIGPEN_COMMON_MEM_LIMIT_H
#define PIGPEN_COMMON_MEM_LIMIT_H

#include <stdatomic.h>
#include <stdint.h>

#include "common/base/status.h"

enum pp_memory_kind {
    PP_MEMORY_KV,
    PP_MEMORY_INDEX,
    PP_MEMORY_TAIL,
    PP_MEMORY_SCRATCH,
    PP_MEMORY_SPARE,
    PP_MEMORY_RPC,
    PP_MEMORY_KINDS
};

struct pp_limit {
    uint64_t bytes_max;
    _Atomic uint64_t taken; /* used and spare */
    _Atomic uint64_t used_by_kind[PP_MEMORY_KINDS];
    /* Releases at least `bytes` of spare memory, where there is so much. May be NULL. Set after
     * init, before the first use. */
    void (*reclaim)(void *context, uint64_t bytes);
    void *reclaim_context;
};

void pp_limit_init(struct pp_limit *limit, uint64_t bytes_max);
/* PP_MEMORY when it would pass the limit; then nothing is reserved. */
PP_MUST_USE enum pp_status pp_limit_reserve(struct pp_limit *limit, enum pp_memory_kind kind,
                                            uint64_t bytes);
void pp_limit_release(struct pp_limit *limit, enum pp_memory_kind kind, uint64_t bytes);
/* Moves bytes between kinds (a tail that was sealed, rows that became spare). */
void pp_limit_move(struct pp_limit *limit, enum pp_memory_kind from, enum pp_memory_kind to,
                   uint64_t bytes);
/* Without what is spare. */
uint64_t pp_limit_used(const struct pp_limit *limit);

/* The memory this process may use: the cgroup's limit (v1 or v2) or the machine's memory. */
uint64_t pp_memory_available_bytes(void);

#endif
