/*
 * The shared context of a node's parts. See store.h. It only counts and queues: what a segment is
 * made of is segment.c's business.
 */
#include "attn-node/kv/store.h"

#include <stddef.h>

#include "attn-node/kv/segment.h"
#include "common/base/assert.h"

enum pp_status an_store_reserve_scratch(struct an_store *store, uint64_t bytes)
{
    if (bytes <= store->build_scratch_bytes) {
        return PP_OK;
    }
    PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_SCRATCH, bytes - store->build_scratch_bytes));
    store->build_scratch_bytes = bytes;
    return PP_OK;
}

enum pp_status an_store_reserve_spare(struct an_store *store, uint64_t bytes)
{
    PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_SCRATCH, bytes + store->lent_bytes));
    pp_limit_release(store->limit, PP_MEMORY_SCRATCH, store->lent_bytes);
    return PP_OK;
}

void an_store_sampling_acquire(struct an_store *store)
{
    store->sampling_params++;
}

void an_store_sampling_release(struct an_store *store)
{
    PP_ASSERT(store->sampling_params > 0);
    store->sampling_params--;
    if (store->sampling_params == 0) {
        pp_limit_release(store->limit, PP_MEMORY_SCRATCH, store->build_scratch_bytes);
        store->build_scratch_bytes = 0;
    }
}

struct an_segment *an_store_build_pop(struct an_store *store)
{
    struct an_segment *segment = store->build_first;
    if (segment == NULL) {
        return NULL;
    }
    store->build_first = segment->build_next;
    if (store->build_first == NULL) {
        store->build_last = NULL;
    }
    segment->build_next = NULL;
    return segment;
}

bool an_store_build_remove(struct an_store *store, const struct an_segment *segment)
{
    struct an_segment *before = NULL;
    struct an_segment *at = store->build_first;
    while (at != NULL && at != segment) {
        before = at;
        at = at->build_next;
    }
    if (at == NULL) {
        return false;
    }
    *(before != NULL ? &before->build_next : &store->build_first) = at->build_next;
    if (store->build_last == at) {
        store->build_last = before;
    }
    at->build_next = NULL;
    return true;
}
