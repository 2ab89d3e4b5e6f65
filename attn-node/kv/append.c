/*
 * Storing checked rows. See append.h. The rows go into the tail piece by piece, closing it where
 * its rule says; when memory ends in the middle, everything is put back as it was.
 */
#include "attn-node/kv/append.h"

#include <stdlib.h>
#include <string.h>

#include "attn-node/kv/merge.h"
#include "common/base/assert.h"

#define COPY_BLOCK_TOKENS 64u

/* The rows of an append that are not stored yet. */
struct rest {
    struct pp_span k, v, signatures;
};

/* K or V of one token and kv head. */
static uint64_t value_bytes(const struct an_params *params)
{
    return pp_vector_bytes(params->dim, params->dtype);
}

/* Whether rows [0, count) of the append equal the held ones from its start on. */
static bool overlap_equal(const struct an_layer *layer, const struct an_append *append,
                          uint64_t count)
{
    const struct an_params *params = layer->params;
    uint64_t bytes = value_bytes(params);
    struct pp_span k = append->k, v = append->v;
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
            if (!pp_span_equals(&k, stored, bytes) ||
                !pp_span_equals(&v, stored + params->v_offset, bytes)) {
                return false;
            }
        }
    }
    return true;
}

/* Copies `count` tokens of K (offset 0) or V (v_offset) to rows from `to` on. Tokens that lie whole
 * in a run go head by head, so that a head's rows are written in order; blocks keep what is read
 * in the cache meanwhile. */
static void copy_values(const struct an_layer *layer, uint32_t to, uint32_t offset, uint32_t count,
                        struct pp_span *values)
{
    const struct an_params *params = layer->params;
    uint64_t bytes = value_bytes(params);
    uint64_t token_bytes = bytes * params->kv_heads;
    while (count > 0) {
        uint64_t whole = values->run / token_bytes;
        whole = whole < count ? whole : count;
        whole = whole < COPY_BLOCK_TOKENS ? whole : COPY_BLOCK_TOKENS;
        for (uint32_t head = 0; head < params->kv_heads; head++) {
            uint8_t *row = an_extent_row(layer->extent, head, to) + offset;
            if (whole == 0) {
                pp_span_read(values, row, bytes);
            }
            for (uint64_t i = 0; i < whole; i++) {
                memcpy(row, values->data + i * token_bytes + head * bytes, bytes);
                row += params->row_bytes;
            }
        }
        pp_span_skip(values, whole * token_bytes);
        to += whole > 0 ? (uint32_t)whole : 1;
        count -= whole > 0 ? (uint32_t)whole : 1;
    }
}

static void copy_rows(struct an_layer *layer, uint32_t count, struct rest *rest)
{
    uint32_t to = layer->tail_begin + layer->tail_count;
    copy_values(layer, to, 0, count, &rest->k);
    copy_values(layer, to, layer->params->v_offset, count, &rest->v);
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

/* Signatures of the next `count` rows into the staging, table-major. */
static void stage_codes(struct an_layer *layer, uint32_t count, struct rest *rest)
{
    struct an_staging *staging = &layer->staging;
    const struct an_params *params = layer->params;
    uint32_t tables = params->index.estimator.l;
    if (rest->signatures.data == NULL) {
        return;
    }
    if (staging->codes == NULL || staging->code_rows != layer->tail_count) {
        pp_span_skip(&rest->signatures,
                     (uint64_t)count * params->kv_heads * tables * sizeof(uint16_t));
        return;
    }
    uint16_t codes[PP_LSH_L_MAX];
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t head = 0; head < params->kv_heads; head++) {
            uint16_t *to =
                staging->codes + (uint64_t)head * tables * staging->stride + staging->code_rows + i;
            pp_span_read(&rest->signatures, codes, tables * sizeof(uint16_t));
            for (uint32_t table = 0; table < tables; table++) {
                to[table * staging->stride] = codes[table];
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
    if (append->centre.data == NULL || an_layer_index_bytes(layer, staging->count) == 0) {
        return;
    }
    if (an_store_reserve_spare(store, append->centre.bytes) == PP_OK) {
        staging->centre = malloc(append->centre.bytes);
        if (staging->centre == NULL) {
            pp_limit_release(store->limit, PP_MEMORY_SCRATCH, append->centre.bytes);
            return;
        }
        struct pp_span centre = append->centre;
        pp_span_read(&centre, staging->centre, centre.bytes);
        staging->centre_bytes = append->centre.bytes;
    }
    if (append->signatures.data == NULL || staging->centre == NULL) {
        return;
    }
    staging->stride = (staging->count + 31u) & ~31ull;
    uint64_t bytes =
        staging->stride * params->kv_heads * params->index.estimator.l * sizeof(uint16_t);
    if (an_store_reserve_spare(store, bytes) != PP_OK) {
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
    struct pp_span centre = append->centre;
    if (same && staging->centre != NULL &&
        (centre.data == NULL || !pp_span_equals(&centre, staging->centre, centre.bytes))) {
        same = false;
    }
    if (!same) {
        an_layer_staging_drop(layer);
    }
    return PP_OK;
}

/* Makes sure that the layer has an extent with room, and for a declared segment room for all of it.
 * The tail is empty when it must move on: a segment never spans extents. */
static enum pp_status ensure_extent(struct an_layer *layer, bool bulk)
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
    PP_TRY(an_extent_new(layer->params, bulk, &extent));
    an_layer_leave_extent(layer);
    layer->extent = extent;
    return PP_OK;
}

static enum pp_status append_rows(struct an_layer *layer, const struct an_append *append,
                                  uint64_t first)
{
    const struct an_params *params = layer->params;
    uint64_t skip = first * params->kv_heads;
    struct rest rest = {append->k, append->v, append->signatures};
    pp_span_skip(&rest.k, skip * value_bytes(params));
    pp_span_skip(&rest.v, skip * value_bytes(params));
    if (rest.signatures.data != NULL) {
        pp_span_skip(&rest.signatures, skip * params->index.estimator.l * sizeof(uint16_t));
    }
    bool bulk = append->bulk || append->segment_given;
    while (first < append->count) {
        PP_TRY(ensure_extent(layer, bulk));
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
            copy_rows(layer, take, &rest);
            stage_codes(layer, take, &rest);
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

/* Remembers the layer's balance before a segment is made of these rows. */
static enum pp_status follow_balance(struct an_layer *layer, const struct an_append *append)
{
    struct pp_span sent = append->balance;
    if (sent.data == NULL) {
        return PP_OK;
    }
    if (layer->balance == NULL) {
        return an_balance_new(layer->params, sent, &layer->balance);
    }
    bool same = pp_span_equals(&sent, layer->balance->values, sent.bytes);
    return same ? PP_OK : PP_APPEND_CONFLICT;
}

/* What an append can change, to put it back. */
struct mark {
    uint32_t view_count;
    struct an_extent *extent; /* with a reference, so that it outlives a move to the next */
    uint32_t filled, tail_begin, tail_count;
    bool tail_bulk;
    bool balanced;
};

static void roll_back(struct an_layer *layer, const struct mark *mark)
{
    an_layer_staging_drop(layer);
    if (!mark->balanced) {
        an_balance_release(layer->balance);
        layer->balance = NULL;
    }
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
        .balanced = layer->balance != NULL,
    };
    if (mark.extent != NULL) {
        an_extent_acquire(mark.extent);
    }
    enum pp_status status = follow_balance(layer, append);
    if (status == PP_OK) {
        status = follow_segment(layer, append);
    }
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
    an_merge_plan(layer);
    an_layer_account_tail(layer);
    *duplicate_out = false;
    return PP_OK;
}
