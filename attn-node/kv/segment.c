/*
 * Sealed rows and their index. See segment.h. It refuses to know who refers to it: views, forks and
 * the builder are all just references.
 */
#include "attn-node/kv/segment.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"

uint64_t an_segment_own_bytes(const struct an_params *params)
{
    uint64_t pointers_bytes = 2ull * params->kv_heads * sizeof(struct an_index *);
    uint64_t centre_bytes = (uint64_t)params->kv_heads * params->dim * sizeof(float);
    return sizeof(struct an_segment) + pointers_bytes + centre_bytes;
}

enum pp_status an_segment_new(struct an_params *params, struct an_extent *extent,
                              struct an_balance *balance, uint32_t begin, uint32_t count,
                              struct an_segment **segment_out)
{
    PP_ASSERT(count > 0 && begin + count <= AN_EXTENT_ROWS);
    uint64_t bytes = an_segment_own_bytes(params);
    PP_TRY(pp_limit_reserve(params->store->limit, PP_MEMORY_INDEX, bytes));
    struct an_segment *segment = calloc(1, bytes);
    if (segment == NULL) {
        pp_limit_release(params->store->limit, PP_MEMORY_INDEX, bytes);
        return PP_MEMORY;
    }
    segment->own_charge = bytes;
    segment->index = (struct an_index **)(segment + 1);
    segment->build.made = segment->index + params->kv_heads;
    segment->centre = (float *)(segment->build.made + params->kv_heads);
    segment->params = params;
    segment->extent = extent;
    segment->balance = an_balance_acquire(balance);
    segment->begin = begin;
    segment->count = count;
    segment->references = 1;
    segment->owns_rows = true;
    an_params_acquire(params);
    an_extent_acquire(extent);
    *segment_out = segment;
    return PP_OK;
}

void an_segment_acquire(struct an_segment *segment)
{
    segment->references++;
}

static uint64_t segment_index_bytes_each(const struct an_segment *segment)
{
    return an_params_index_bytes(segment->params, segment->count) / segment->params->kv_heads;
}

static void segment_free_indexes(struct an_segment *segment, struct an_index **indexes)
{
    for (uint32_t head = 0; head < segment->params->kv_heads; head++) {
        if (indexes[head] != NULL) {
            pp_arena_give(an_store_index_arena(segment->params->store, head), indexes[head],
                          segment_index_bytes_each(segment));
            indexes[head] = NULL;
        }
    }
}

static void segment_free_codes(struct an_segment *segment)
{
    struct an_segment_build *build = &segment->build;
    if (build->codes != NULL) {
        struct an_store *store = segment->params->store;
        pp_arena_give(store->arena, build->codes, build->codes_bytes);
        pp_limit_release(store->limit, PP_MEMORY_SCRATCH, build->codes_bytes);
        build->codes = NULL;
        build->codes_bytes = 0;
    }
}

void an_segment_release(struct an_segment *segment)
{
    PP_ASSERT(segment->references > 0);
    segment->references--;
    if (segment->references > 0) {
        if (segment->references == 1 && segment->in_build) {
            atomic_store_explicit(&segment->cancelled, true, memory_order_relaxed);
        }
        return;
    }
    PP_ASSERT(!segment->in_build && segment->merge == NULL);
    segment_free_indexes(segment, segment->index);
    segment_free_indexes(segment, segment->build.made);
    segment_free_codes(segment);
    struct an_extent *extent = segment->extent;
    if (segment->owns_rows && extent->filled == segment->begin + segment->count) {
        extent->filled = segment->begin;
    }
    an_balance_release(segment->balance);
    struct an_params *params = segment->params;
    pp_limit_release(params->store->limit, PP_MEMORY_INDEX,
                     segment->index_charge + segment->own_charge);
    free(segment);
    an_extent_release(extent);
    an_params_release(params);
}

void an_segment_want_index(struct an_segment *segment)
{
    PP_ASSERT(!segment->in_build && !segment->indexed && segment->index_charge > 0);
    struct an_store *store = segment->params->store;
    an_segment_acquire(segment);
    segment->in_build = true;
    segment->build_next = NULL;
    if (store->build_last != NULL) {
        store->build_last->build_next = segment;
    } else {
        store->build_first = segment;
    }
    store->build_last = segment;
}

void an_segment_centre(const struct an_segment *segment, float *centre_out)
{
    const struct an_params *params = segment->params;
    for (uint32_t head = 0; head < params->kv_heads; head++) {
        struct an_rows rows = an_segment_rows(segment, head);
        double sums[PP_HEAD_DIM_MAX] = {0};
        an_kernels_get()->sum_keys(&rows, 0, segment->count, sums);
        for (uint32_t i = 0; i < rows.dim; i++) {
            centre_out[(uint64_t)head * rows.dim + i] = (float)(sums[i] / segment->count);
        }
    }
}

/* One kv head: memory for its index from the arena (charged when the rows came), then the index. */
static enum pp_status segment_build_head(struct an_segment *segment, uint32_t head, void *scratch)
{
    const struct an_params *params = segment->params;
    struct an_segment_build *build = &segment->build;
    uint64_t bytes = segment_index_bytes_each(segment);
    void *memory;
    struct pp_arena *arena = an_store_index_arena(params->store, head);
    PP_TRY(pp_arena_take(arena, bytes, &memory));
    struct an_rows rows = an_segment_rows(segment, head);
    const uint16_t *codes = NULL;
    if (build->codes != NULL) {
        codes = build->codes + head * (uint64_t)params->index.estimator.l * build->stride;
    }
    struct an_index *index = NULL;
    struct an_index_params own = params->index;
    if (segment->balance != NULL) {
        own.balance = segment->balance->values + (uint64_t)head * params->dim;
    }
    enum pp_status status =
        an_index_build(&own, &rows, segment->count, segment->centre + (uint64_t)head * params->dim,
                       codes, build->stride, 1, memory, scratch, &index);
    if (status != PP_OK) {
        pp_arena_give(arena, memory, bytes);
        return status;
    }
    PP_ASSERT((void *)index == memory);
    build->made[head] = index;
    return PP_OK;
}

void an_segment_build(struct an_segment *segment)
{
    const struct an_params *params = segment->params;
    struct pp_arena *arena = params->store->arena;
    struct an_segment_build *build = &segment->build;
    if (!build->centre_given) {
        an_segment_centre(segment, segment->centre);
    }
    uint64_t scratch_bytes = an_index_scratch_bytes(&params->index, params->dim, segment->count, 1);
    void *scratch;
    build->status = pp_arena_take(arena, scratch_bytes, &scratch);
    if (build->status != PP_OK) {
        return;
    }
    for (uint32_t head = 0; head < params->kv_heads && build->status == PP_OK; head++) {
        if (atomic_load_explicit(&segment->cancelled, memory_order_relaxed)) {
            build->status = PP_CANCELLED;
        } else {
            build->status = segment_build_head(segment, head, scratch);
        }
    }
    pp_arena_give(arena, scratch, scratch_bytes);
}

bool an_segment_publish(struct an_segment *segment)
{
    PP_ASSERT(segment->in_build);
    struct an_segment_build *build = &segment->build;
    bool published = build->status == PP_OK && segment->references > 1;
    segment->in_build = false;
    segment_free_codes(segment);
    if (published) {
        memcpy(segment->index, build->made, segment->params->kv_heads * sizeof(struct an_index *));
        memset(build->made, 0, segment->params->kv_heads * sizeof(struct an_index *));
        segment->indexed = true;
    } else {
        segment_free_indexes(segment, build->made);
        pp_limit_release(segment->params->store->limit, PP_MEMORY_INDEX, segment->index_charge);
        segment->index_charge = 0;
        if (build->status != PP_OK && build->status != PP_CANCELLED) {
            PP_LOG_WARNF("kv", "an index was not built; its segment stays exact",
                         "reason=%s rows=%u", pp_status_name(build->status), segment->count);
        }
    }
    an_segment_release(segment);
    return published;
}
