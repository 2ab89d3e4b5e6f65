/*
 * Storing checked rows. See append.h. The rows go into the tail piece by piece, closing it where
 * its rule says; when memory ends in the middle, everything is put back as it was.
 */
#include "attn-node/kv/append.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

static uint64_t token_bytes(const struct an_params *params)
{
    return (uint64_t)params->dim * pp_dtype_bytes(params->dtype);
}

/* Whether rows [0, count) of the append equal the held ones from its start on. */
static bool overlap_equal(const struct an_layer *layer, const struct an_append *append,
                          uint64_t count)
{
    const struct an_params *params = layer->params;
    uint64_t value_bytes = token_bytes(params);
    uint32_t index = an_layer_find(layer, append->start);
    struct an_stretch stretch = an_layer_stretch(layer, index, an_layer_held(layer));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t held = append->start + i;
        while (held >= stretch.held_begin + (stretch.end - stretch.begin)) {
            index++;
            stretch = an_layer_stretch(layer, index, an_layer_held(layer));
        }
        uint32_t row = stretch.base + stretch.begin + (uint32_t)(held - stretch.held_begin);
        for (uint32_t head = 0; head < params->kv_heads; head++) {
            const uint8_t *stored = an_extent_row(stretch.extent, head, row);
            uint64_t offset = (i * params->kv_heads + head) * value_bytes;
            if (memcmp(stored, append->k + offset, value_bytes) != 0 ||
                memcmp(stored + params->v_offset, append->v + offset, value_bytes) != 0) {
                return false;
            }
        }
    }
    return true;
}

static void copy_rows(struct an_layer *layer, const struct an_append *append, uint64_t first,
                      uint32_t count)
{
    const struct an_params *params = layer->params;
    uint64_t value_bytes = token_bytes(params);
    uint32_t to = layer->tail_begin + layer->tail_count;
    for (uint32_t head = 0; head < params->kv_heads; head++) {
        uint8_t *row = an_extent_row(layer->extent, head, to);
        for (uint32_t i = 0; i < count; i++) {
            uint64_t offset = ((first + i) * params->kv_heads + head) * value_bytes;
            memcpy(row, append->k + offset, value_bytes);
            memcpy(row + params->v_offset, append->v + offset, value_bytes);
            row += params->row_bytes;
        }
    }
}

/* How many more rows the tail may take before it closes. */
static uint32_t tail_room(const struct an_layer *layer)
{
    uint32_t room = AN_EXTENT_ROWS - layer->extent->filled;
    uint32_t close = layer->params->store->seal_tokens;
    if (layer->staging.open) {
        close = layer->staging.count;
    } else if (layer->tail_bulk) {
        return room;
    }
    uint32_t left = close > layer->tail_count ? close - layer->tail_count : 0;
    return left < room ? left : room;
}

/* Signatures of rows [first, first + count) of the append into the staging, table-major. */
static void stage_codes(struct an_layer *layer, const struct an_append *append, uint64_t first,
                        uint32_t count)
{
    struct an_staging *staging = &layer->staging;
    const struct an_params *params = layer->params;
    if (staging->codes == NULL || append->signatures == NULL ||
        staging->code_rows != layer->tail_count) {
        return;
    }
    uint32_t tables = params->index.estimator.l;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t head = 0; head < params->kv_heads; head++) {
            uint64_t from = ((first + i) * params->kv_heads + head) * tables;
            uint16_t *to =
                staging->codes + (uint64_t)head * tables * staging->stride + staging->code_rows + i;
            for (uint32_t table = 0; table < tables; table++) {
                memcpy(to + table * staging->stride,
                       append->signatures + (from + table) * sizeof(uint16_t), sizeof(uint16_t));
            }
        }
    }
    staging->code_rows += count;
}

/* Remembers centre and room for signatures; without memory for them the node hashes itself. */
static void staging_open(struct an_layer *layer, const struct an_append *append)
{
    struct an_staging *staging = &layer->staging;
    const struct an_params *params = layer->params;
    struct an_store *store = params->store;
    staging->open = true;
    staging->count = (uint32_t)append->segment_count;
    if (append->centre == NULL || an_layer_index_bytes(layer, staging->count) == 0) {
        return;
    }
    if (pp_limit_reserve(store->limit, PP_MEMORY_SCRATCH, append->centre_bytes) == PP_OK) {
        staging->centre = malloc(append->centre_bytes);
        if (staging->centre == NULL) {
            pp_limit_release(store->limit, PP_MEMORY_SCRATCH, append->centre_bytes);
            return;
        }
        memcpy(staging->centre, append->centre, append->centre_bytes);
        staging->centre_bytes = append->centre_bytes;
    }
    if (append->signatures == NULL || staging->centre == NULL) {
        return;
    }
    staging->stride = (staging->count + 31u) & ~31ull;
    uint64_t bytes =
        staging->stride * params->kv_heads * params->index.estimator.l * sizeof(uint16_t);
    if (pp_limit_reserve(store->limit, PP_MEMORY_SCRATCH, bytes) != PP_OK) {
        return;
    }
    void *codes;
    if (pp_arena_take(store->arena, bytes, &codes) != PP_OK) {
        pp_limit_release(store->limit, PP_MEMORY_SCRATCH, bytes);
        return;
    }
    staging->codes = codes;
    staging->codes_bytes = bytes;
}

/* A declared segment that begins at the first new row closes the tail and opens a staging; one that
 * does not fit what is held any more (rows came twice, or after a truncate) is let go: its rows are
 * kept like any other and the node hashes. */
static enum pp_status follow_segment(struct an_layer *layer, const struct an_append *append)
{
    if (!append->segment_given) {
        an_layer_staging_drop(layer);
        return PP_OK;
    }
    uint64_t held = an_layer_held(layer);
    if (append->segment_begin == held) {
        PP_TRY(an_layer_seal(layer));
        an_layer_staging_drop(layer);
        staging_open(layer, append);
        return PP_OK;
    }
    struct an_staging *staging = &layer->staging;
    bool same = staging->open && append->segment_begin == layer->sealed_tokens &&
                append->segment_count == staging->count;
    if (same && staging->centre != NULL &&
        (append->centre == NULL ||
         memcmp(staging->centre, append->centre, staging->centre_bytes) != 0)) {
        same = false;
    }
    if (!same) {
        an_layer_staging_drop(layer);
    }
    return PP_OK;
}

/* Makes sure that the layer has an extent with room, and for a declared segment room for all of it.
 * The tail is empty when it must move on: a segment never spans extents. */
static enum pp_status ensure_extent(struct an_layer *layer)
{
    uint32_t want = layer->staging.open && layer->tail_count == 0 ? layer->staging.count : 1;
    if (layer->extent != NULL && layer->tail_count == 0) {
        layer->tail_begin = layer->extent->filled;
    }
    if (layer->extent != NULL && AN_EXTENT_ROWS - layer->extent->filled >= want) {
        return PP_OK;
    }
    if (layer->extent != NULL) {
        PP_TRY(an_layer_seal(layer));
    }
    struct an_extent *extent;
    PP_TRY(an_extent_new(layer->params, &extent));
    an_layer_leave_extent(layer);
    layer->extent = extent;
    return PP_OK;
}

static enum pp_status append_rows(struct an_layer *layer, const struct an_append *append,
                                  uint64_t first)
{
    while (first < append->count) {
        PP_TRY(ensure_extent(layer));
        bool bulk = append->bulk || append->segment_given;
        if (bulk) {
            layer->tail_bulk = true;
        } else {
            an_extent_settle(layer->extent);
        }
        uint32_t room = tail_room(layer);
        uint64_t left = append->count - first;
        uint32_t take = left < room ? (uint32_t)left : room;
        if (take > 0) {
            uint32_t rows = layer->tail_count + take;
            PP_TRY(an_layer_reserve_index(layer, rows));
            PP_TRY(an_extent_commit(layer->extent, layer->tail_begin + rows, bulk));
            copy_rows(layer, append, first, take);
            stage_codes(layer, append, first, take);
            layer->tail_count = rows;
            layer->extent->filled = layer->tail_begin + rows;
            first += take;
        }
        if (tail_room(layer) == 0) {
            PP_TRY(an_layer_seal(layer));
        }
    }
    return PP_OK;
}

/* What an append can change, to put it back. */
struct mark {
    uint32_t view_count;
    struct an_extent *extent; /* with a reference, so that it outlives a move to the next */
    uint32_t filled, tail_begin, tail_count;
    bool tail_bulk;
};

static void roll_back(struct an_layer *layer, const struct mark *mark)
{
    an_layer_staging_drop(layer);
    layer->tail_count = 0;
    if (layer->view_count > mark->view_count && mark->tail_count > 0) {
        /* The first new segment took the old tail's reservation with it: take it back. */
        struct an_segment *first = layer->views[mark->view_count].segment;
        uint64_t charge = layer->tail_index_charge;
        layer->tail_index_charge = first->index_charge;
        first->index_charge = charge;
    }
    while (layer->view_count > mark->view_count) {
        struct an_view *view = &layer->views[--layer->view_count];
        layer->sealed_tokens -= view->count;
        an_segment_release(view->segment);
    }
    if (layer->extent != mark->extent) {
        an_extent_release(layer->extent);
        layer->extent = mark->extent;
    } else {
        an_extent_release(mark->extent);
    }
    if (layer->extent != NULL) {
        layer->extent->filled = mark->filled;
    }
    layer->tail_begin = mark->tail_begin;
    layer->tail_count = mark->tail_count;
    layer->tail_bulk = mark->tail_bulk;
    enum pp_status shrunk = an_layer_reserve_index(layer, layer->tail_count);
    PP_ASSERT(shrunk == PP_OK);
}

enum pp_status an_append_apply(struct an_layer *layer, const struct an_append *append,
                               bool *duplicate_out)
{
    uint64_t held = an_layer_held(layer);
    if (append->start > held) {
        return PP_APPEND_GAP;
    }
    uint64_t overlap = held - append->start;
    if (overlap > append->count) {
        overlap = append->count;
    }
    if (overlap > 0 && !overlap_equal(layer, append, overlap)) {
        return PP_APPEND_CONFLICT;
    }
    if (overlap == append->count) {
        *duplicate_out = true;
        return PP_OK;
    }
    struct mark mark = {
        .view_count = layer->view_count,
        .extent = layer->extent,
        .filled = layer->extent != NULL ? layer->extent->filled : 0,
        .tail_begin = layer->tail_begin,
        .tail_count = layer->tail_count,
        .tail_bulk = layer->tail_bulk,
    };
    if (mark.extent != NULL) {
        an_extent_acquire(mark.extent);
    }
    enum pp_status status = follow_segment(layer, append);
    if (status == PP_OK) {
        status = append_rows(layer, append, overlap);
    }
    if (status != PP_OK) {
        roll_back(layer, &mark);
        an_layer_account_tail(layer);
        return status;
    }
    an_extent_release(mark.extent);
    an_layer_schedule(layer, mark.view_count);
    an_layer_account_tail(layer);
    *duplicate_out = false;
    return PP_OK;
}
