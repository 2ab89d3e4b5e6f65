/*
 * The list of extents with spare pages. See spare.h. Every change of an extent's committed or
 * resident bytes ends in list(), so that the list and the account follow the two numbers.
 */
#include "attn-node/kv/spare.h"

#include <stddef.h>
#include <stdlib.h>

#include "attn-node/kv/extent.h"
#include "common/base/assert.h"

#define QUIET_US         10000000u
#define DECAY_US         100000u
#define DECAY_STEP_BYTES (64ull << 20)

static uint64_t round_down(uint64_t bytes)
{
    return bytes / PP_HUGE_PAGE_BYTES * PP_HUGE_PAGE_BYTES;
}

static void unlist(struct an_extent *extent)
{
    struct an_spares *spares = &extent->store->spares;
    if (!extent->spare_listed) {
        return;
    }
    *(extent->spare_older != NULL ? &extent->spare_older->spare_newer : &spares->oldest) =
        extent->spare_newer;
    *(extent->spare_newer != NULL ? &extent->spare_newer->spare_older : &spares->newest) =
        extent->spare_older;
    extent->spare_older = extent->spare_newer = NULL;
    extent->spare_listed = false;
}

/* Puts the extent where it belongs: at the end of the list when it has spare pages, or out of it.
 */
static void list(struct an_extent *extent)
{
    struct an_spares *spares = &extent->store->spares;
    spares->touched = true;
    unlist(extent);
    if (extent->resident_bytes == extent->committed_bytes) {
        return;
    }
    extent->spare_older = spares->newest;
    *(spares->newest != NULL ? &spares->newest->spare_newer : &spares->oldest) = extent;
    spares->newest = extent;
    extent->spare_listed = true;
}

static uint64_t spare_bytes(const struct an_store *store)
{
    return atomic_load_explicit(&store->limit->used_by_kind[PP_MEMORY_SPARE], memory_order_relaxed);
}

static void enforce(struct an_store *store)
{
    uint64_t bytes = spare_bytes(store);
    if (bytes > store->spares.bytes_max) {
        an_spares_reclaim(store, bytes - store->spares.bytes_max);
    }
}

void an_spares_border(struct an_extent *extent, uint64_t committed_bytes)
{
    struct pp_limit *limit = extent->store->limit;
    uint64_t before = extent->committed_bytes;
    PP_ASSERT(committed_bytes <= extent->resident_bytes);
    extent->committed_bytes = committed_bytes;
    if (committed_bytes > before) {
        pp_limit_move(limit, PP_MEMORY_SPARE, PP_MEMORY_KV,
                      (committed_bytes - before) * extent->kv_heads);
    } else {
        pp_limit_move(limit, PP_MEMORY_KV, PP_MEMORY_SPARE,
                      (before - committed_bytes) * extent->kv_heads);
    }
    list(extent);
    enforce(extent->store);
}

void an_spares_cut(struct an_extent *extent, uint64_t resident_bytes)
{
    uint64_t before = extent->resident_bytes;
    PP_ASSERT(resident_bytes >= extent->committed_bytes && resident_bytes <= before);
    if (resident_bytes == before) {
        return;
    }
    for (uint32_t head = 0; head < extent->kv_heads; head++) {
        uint64_t offset = head * extent->head_bytes;
        pp_pages_decommit(extent->base, offset + resident_bytes, offset + before);
    }
    pp_limit_release(extent->store->limit, PP_MEMORY_SPARE,
                     (before - resident_bytes) * extent->kv_heads);
    extent->resident_bytes = resident_bytes;
    if (resident_bytes == extent->committed_bytes) {
        unlist(extent);
    }
}

static void free_spare(struct an_extent *extent)
{
    unlist(extent);
    pp_pages_free(extent->base, extent->head_bytes * extent->kv_heads);
    pp_limit_release(extent->store->limit, PP_MEMORY_SPARE,
                     extent->resident_bytes * extent->kv_heads + sizeof(*extent));
    free(extent);
}

/* Frees about `bytes` of an extent's spare pages, in whole huge pages of every kv head. */
static void reclaim_from(struct an_extent *extent, uint64_t bytes)
{
    uint64_t each = bytes / extent->kv_heads + (bytes % extent->kv_heads != 0);
    uint64_t resident =
        each < extent->resident_bytes ? round_down(extent->resident_bytes - each) : 0;
    if (extent->references == 0 && resident == 0) {
        free_spare(extent);
        return;
    }
    an_spares_cut(extent, resident > extent->committed_bytes ? resident : extent->committed_bytes);
}

void an_spares_reclaim(struct an_store *store, uint64_t bytes)
{
    uint64_t begin = spare_bytes(store);
    struct an_extent *extent = store->spares.oldest;
    while (extent != NULL && begin - spare_bytes(store) < bytes) {
        struct an_extent *newer = extent->spare_newer;
        reclaim_from(extent, bytes - (begin - spare_bytes(store)));
        extent = newer;
    }
}

static void reclaim_for_limit(void *context, uint64_t bytes)
{
    an_spares_reclaim(context, bytes);
}

void an_spares_init(struct an_store *store, uint64_t bytes_max)
{
    store->spares = (struct an_spares){.bytes_max = bytes_max};
    store->limit->reclaim_context = store;
    store->limit->reclaim = reclaim_for_limit;
}

void an_spares_deinit(struct an_store *store)
{
    an_spares_reclaim(store, UINT64_MAX);
    store->spares.bytes_max = 0;
}

void an_spares_decay(struct an_store *store, uint64_t now_us)
{
    struct an_spares *spares = &store->spares;
    if (spares->touched) {
        spares->touched = false;
        spares->decay_us = now_us + QUIET_US;
    } else if (spares->oldest != NULL && now_us >= spares->decay_us) {
        an_spares_reclaim(store, DECAY_STEP_BYTES);
        spares->decay_us = now_us + DECAY_US;
    }
}

/* The same rows: where values lie in them, and where padding. */
static bool same_layout(const struct an_extent *extent, const struct an_params *params)
{
    return extent->row_bytes == params->row_bytes && extent->kv_heads == params->kv_heads &&
           extent->dim == params->dim && extent->dtype == params->dtype;
}

struct an_extent *an_spares_find(struct an_store *store, const struct an_params *params)
{
    struct an_extent *extent = store->spares.newest;
    while (extent != NULL && (extent->references > 0 || !same_layout(extent, params))) {
        extent = extent->spare_older;
    }
    if (extent != NULL) {
        pp_limit_move(store->limit, PP_MEMORY_SPARE, PP_MEMORY_KV, sizeof(*extent));
        extent->references = 1;
        store->spares.touched = true;
    }
    return extent;
}

bool an_spares_keep(struct an_extent *extent)
{
    struct an_store *store = extent->store;
    PP_ASSERT(extent->references == 0);
    uint64_t bytes_max = store->spares.bytes_max;
    if (bytes_max <= sizeof(*extent)) {
        return false;
    }
    uint64_t keep = round_down((bytes_max - sizeof(*extent)) / extent->kv_heads);
    uint64_t resident = round_down(extent->resident_bytes);
    resident = keep < resident ? keep : resident;
    if (resident == 0) {
        return false;
    }
    an_extent_shrink(extent, resident);
    extent->filled = 0;
    pp_limit_move(store->limit, PP_MEMORY_KV, PP_MEMORY_SPARE, sizeof(*extent));
    an_spares_border(extent, 0);
    return true;
}
