/*
 * What all parts of a node share: the memory limit, the allocators, the rules of sealing, and the
 * queue of sealed segments that want an index. On the walk: exec owns one and hands it down; it
 * refuses to know parts and requests.
 * Threads: the exec thread; the builder uses only `arena`, which is safe from any thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_STORE_H
#define PIGPEN_ATTN_NODE_KV_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kv/spare.h"
#include "common/base/status.h"
#include "common/mem/arena.h"
#include "common/mem/limit.h"
#include "common/mem/numa.h"
#include "common/mem/pages.h"

struct an_segment;

struct an_store {
    struct pp_limit *limit;
    struct pp_arena *arena; /* on any NUMA node: scratch */
    /* Where rows and indexes of a kv head lie; arenas by place, all NULL: in `arena`. */
    struct pp_numa numa;
    struct pp_arena *placed[PP_NUMA_NODES_MAX];
    enum pp_hugepages hugepages;
    uint32_t seal_tokens;      /* a tail that is not bulk closes at this many rows */
    uint32_t index_tokens_min; /* a segment with fewer rows gets no index */
    /* The largest scratch that a build of any row held here may need: reserved once, since one
     * build runs at a time; released when the last set of sampling parameters goes. */
    uint64_t build_scratch_bytes;
    uint64_t lent_bytes; /* of the limit, kept free for the rows of the append that is running */
    uint32_t sampling_params;
    uint32_t merges, merges_max; /* under way, of all layers; each reserves its index before */
    struct an_spares spares;
    /* Sealed segments that want an index and were not given to the builder yet: a list through
     * an_segment.build_next, in order of sealing. It holds a reference to each. */
    struct an_segment *build_first, *build_last;
};

/* The arena of a kv head's index. */
static inline struct pp_arena *an_store_index_arena(const struct an_store *store, uint32_t kv_head)
{
    struct pp_arena *placed = store->placed[pp_numa_place(&store->numa, kv_head)];
    return placed != NULL ? placed : store->arena;
}

/* Makes sure that `bytes` of build scratch are reserved. PP_MEMORY: nothing changed. */
PP_MUST_USE enum pp_status an_store_reserve_scratch(struct an_store *store, uint64_t bytes);

/* Takes scratch that can be done without: not out of what is lent to an append. PP_MEMORY. */
PP_MUST_USE enum pp_status an_store_reserve_spare(struct an_store *store, uint64_t bytes);

/* Counts the holders of sampling parameters; the last one gives the scratch reservation back. */
void an_store_sampling_acquire(struct an_store *store);
void an_store_sampling_release(struct an_store *store);

/* The next segment to build, with the list's reference; NULL when there is none. */
struct an_segment *an_store_build_pop(struct an_store *store);

/* Takes a segment out of its turn, with the list's reference; false when it does not wait. */
bool an_store_build_remove(struct an_store *store, const struct an_segment *segment);

#endif
