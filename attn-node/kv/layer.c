/*
 * Views and tail of one layer. See layer.h. It refuses to know requests and generations: append,
 * fork and truncate are made of these steps.
 */
#include "attn-node/kv/layer.h"

#include <stdlib.h>
#include <string.h>

#include "attn-node/kv/merge.h"
#include "common/base/assert.h"

#define VIEWS_MIN 4u

void an_layer_init(struct an_layer *layer, struct an_params *params, bool dense)
{
    memset(layer, 0, sizeof(*layer));
    layer->params = params;
    an_params_acquire(params);
    layer->dense = dense;
}

void an_layer_deinit(struct an_layer *layer)
{
    if (layer->params == NULL) {
        return;
    }
    an_merge_drop(layer);
    an_layer_staging_drop(layer);
    enum pp_status shrunk = an_layer_reserve_index(layer, 0);
    PP_ASSERT(shrunk == PP_OK);
    if (layer->extent != NULL) {
        layer->extent->filled -= layer->tail_count;
        layer->tail_count = 0;
        an_layer_account_tail(layer);
    }
    for (uint32_t i = layer->view_count; i > 0; i--) {
        an_segment_release(layer->views[i - 1].segment);
    }
    an_layer_leave_extent(layer);
    pp_limit_release(layer->params->store->limit, PP_MEMORY_KV,
                     layer->view_capacity * sizeof(struct an_view));
    free(layer->views);
    an_balance_release(layer->balance);
    an_params_release(layer->params);
    memset(layer, 0, sizeof(*layer));
}

struct an_stretch an_layer_stretch(const struct an_layer *layer, uint32_t index, uint64_t held)
{
    struct an_stretch stretch = {0};
    if (index < layer->view_count) {
        const struct an_view *view = &layer->views[index];
        stretch.extent = view->segment->extent;
        stretch.segment = view->segment;
        stretch.base = view->segment->begin;
        stretch.begin = view->begin;
        stretch.end = view->begin + view->count;
        stretch.held_begin = view->held_begin;
    } else {
        stretch.extent = layer->extent;
        stretch.base = layer->tail_begin;
        stretch.end = layer->tail_count;
        stretch.held_begin = layer->sealed_tokens;
    }
    uint64_t left = held > stretch.held_begin ? held - stretch.held_begin : 0;
    if (left < stretch.end - stretch.begin) {
        stretch.end = stretch.begin + (uint32_t)left;
    }
    return stretch;
}

uint32_t an_layer_find(const struct an_layer *layer, uint64_t held)
{
    PP_ASSERT(held < an_layer_held(layer));
    uint32_t low = 0, high = layer->view_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct an_view *view = &layer->views[middle];
        if (view->held_begin + view->count <= held) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

uint64_t an_layer_index_bytes(const struct an_layer *layer, uint32_t tokens)
{
    return layer->dense ? 0 : an_params_index_bytes(layer->params, tokens);
}

/* One full or unfinished extent and the segment made of it. */
static uint64_t segment_need(const struct an_layer *layer, uint32_t rows)
{
    const struct an_params *params = layer->params;
    return an_extent_bytes(params, rows) + an_layer_index_bytes(layer, rows) +
           an_segment_own_bytes(params);
}

uint64_t an_layer_need(const struct an_layer *layer, uint64_t tokens)
{
    uint64_t full = tokens / AN_EXTENT_ROWS;
    uint32_t rest = (uint32_t)(tokens % AN_EXTENT_ROWS);
    uint64_t bytes = full > 0 ? full * segment_need(layer, AN_EXTENT_ROWS) : 0;
    bytes += rest > 0 ? segment_need(layer, rest) : 0;
    uint64_t views = full + 1 > VIEWS_MIN / 2 ? 2 * (full + 1) : VIEWS_MIN;
    return bytes + views * sizeof(struct an_view) + an_balance_bytes(layer->params);
}

uint64_t an_layer_scratch_need(const struct an_layer *layer, uint64_t tokens)
{
    const struct an_params *params = layer->params;
    uint32_t rows = tokens < AN_EXTENT_ROWS ? (uint32_t)tokens : AN_EXTENT_ROWS;
    return an_layer_index_bytes(layer, rows) > 0
               ? an_index_scratch_bytes(&params->index, params->dim, rows, 1)
               : 0;
}

enum pp_status an_layer_reserve_index(struct an_layer *layer, uint32_t tokens)
{
    const struct an_params *params = layer->params;
    struct an_store *store = params->store;
    uint64_t want = an_layer_index_bytes(layer, tokens);
    if (want <= layer->tail_index_charge) {
        pp_limit_release(store->limit, PP_MEMORY_INDEX, layer->tail_index_charge - want);
        layer->tail_index_charge = want;
        return PP_OK;
    }
    PP_TRY(an_store_reserve_scratch(
        store, an_index_scratch_bytes(&params->index, params->dim, tokens, 1)));
    PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_INDEX, want - layer->tail_index_charge));
    layer->tail_index_charge = want;
    return PP_OK;
}

/* Moves what the worker gave for a complete segment into it. */
static void layer_staging_take(struct an_layer *layer, struct an_segment *segment)
{
    struct an_staging *staging = &layer->staging;
    if (staging->open && staging->count == segment->count && segment->index_charge > 0) {
        if (staging->centre != NULL) {
            memcpy(segment->centre, staging->centre, staging->centre_bytes);
            segment->build.centre_given = true;
        }
        if (staging->centre != NULL && staging->codes != NULL &&
            staging->code_rows == segment->count) {
            segment->build.codes = staging->codes;
            segment->build.codes_bytes = staging->codes_bytes;
            segment->build.stride = staging->stride;
            staging->codes = NULL;
        }
    }
    an_layer_staging_drop(layer);
}

enum pp_status an_layer_seal(struct an_layer *layer)
{
    if (layer->tail_count == 0) {
        return PP_OK;
    }
    struct an_segment *segment;
    PP_TRY(an_segment_new(layer->params, layer->extent, layer->balance, layer->tail_begin,
                          layer->tail_count, &segment));
    struct an_view view = an_view_of(segment, layer->sealed_tokens);
    enum pp_status status = an_layer_add_view(layer, &view);
    if (status != PP_OK) {
        /* The rows stay the tail's: the segment must not hand them back to the extent. */
        uint32_t filled = layer->extent->filled;
        an_segment_release(segment);
        layer->extent->filled = filled;
        return status;
    }
    segment->index_charge = layer->tail_index_charge;
    layer->tail_index_charge = 0;
    layer_staging_take(layer, segment);
    layer->tail_begin = layer->extent->filled;
    layer->tail_count = 0;
    layer->tail_bulk = false;
    return PP_OK;
}

void an_layer_schedule(struct an_layer *layer, uint32_t from)
{
    for (uint32_t i = from; i < layer->view_count; i++) {
        struct an_segment *segment = layer->views[i].segment;
        if (segment->index_charge > 0 && !segment->indexed && !segment->in_build) {
            an_segment_want_index(segment);
        }
    }
}

enum pp_status an_layer_add_view(struct an_layer *layer, const struct an_view *view)
{
    if (layer->view_count == layer->view_capacity) {
        uint32_t capacity = layer->view_capacity == 0 ? VIEWS_MIN : layer->view_capacity * 2;
        uint64_t more = (capacity - layer->view_capacity) * sizeof(struct an_view);
        struct pp_limit *limit = layer->params->store->limit;
        PP_TRY(pp_limit_reserve(limit, PP_MEMORY_KV, more));
        struct an_view *views = realloc(layer->views, capacity * sizeof(*views));
        if (views == NULL) {
            pp_limit_release(limit, PP_MEMORY_KV, more);
            return PP_MEMORY;
        }
        layer->views = views;
        layer->view_capacity = capacity;
    }
    layer->views[layer->view_count++] = *view;
    layer->sealed_tokens += view->count;
    return PP_OK;
}

void an_layer_leave_extent(struct an_layer *layer)
{
    PP_ASSERT(layer->tail_count == 0);
    if (layer->extent == NULL) {
        return;
    }
    if (layer->extent->references > 1) {
        an_extent_trim(layer->extent);
    }
    an_extent_release(layer->extent);
    layer->extent = NULL;
    layer->tail_begin = 0;
}

void an_layer_account_tail(struct an_layer *layer)
{
    const struct an_params *params = layer->params;
    struct pp_limit *limit = params->store->limit;
    uint64_t bytes = layer->tail_count * params->row_bytes * params->kv_heads;
    if (bytes > layer->tail_kv_charge) {
        pp_limit_move(limit, PP_MEMORY_KV, PP_MEMORY_TAIL, bytes - layer->tail_kv_charge);
    } else {
        pp_limit_move(limit, PP_MEMORY_TAIL, PP_MEMORY_KV, layer->tail_kv_charge - bytes);
    }
    layer->tail_kv_charge = bytes;
}

void an_layer_staging_drop(struct an_layer *layer)
{
    struct an_staging *staging = &layer->staging;
    struct an_store *store = layer->params->store;
    if (staging->codes != NULL) {
        pp_arena_give(store->arena, staging->codes, staging->codes_bytes);
        pp_limit_release(store->limit, PP_MEMORY_SCRATCH, staging->codes_bytes);
    }
    if (staging->centre != NULL) {
        free(staging->centre);
        pp_limit_release(store->limit, PP_MEMORY_SCRATCH, staging->centre_bytes);
    }
    memset(staging, 0, sizeof(*staging));
}
