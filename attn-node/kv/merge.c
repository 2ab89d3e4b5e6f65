/*
 * Choosing, starting and ending merges. See merge.h.
 */
#include "attn-node/kv/merge.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

#define LARGE_ROWS       16384u
#define NEIGHBOURS       4u
#define LARGE_NEIGHBOURS 2u
#define SPARE_SHARE      16u

/* Neighbours to merge: views [first, first + count) of the layer. */
struct run {
    uint32_t first, count, rows;
};

static uint32_t log2_floor(uint32_t value)
{
    return 31u - (uint32_t)__builtin_clz(value);
}

/* Even numbers are powers of four below LARGE_ROWS, where powers of two begin. */
static uint32_t size_class(uint32_t rows)
{
    uint32_t power = log2_floor(rows);
    return rows >= LARGE_ROWS ? power : power & ~1u;
}

/* A whole segment that nobody else sees. */
static bool mergeable(const struct an_view *view)
{
    const struct an_segment *segment = view->segment;
    uint32_t own = segment->in_build ? 2 : 1;
    return view->count == segment->count && segment->references == own;
}

static bool follows(const struct an_view *before, const struct an_view *view)
{
    return before->segment->extent == view->segment->extent &&
           before->segment->begin + before->count == view->segment->begin;
}

static struct run run_of(const struct an_layer *layer, uint32_t first, uint32_t end)
{
    struct run run = {.first = first, .count = end - first};
    for (uint32_t i = first; i < end; i++) {
        run.rows += layer->views[i].count;
    }
    return run;
}

/* The leftmost neighbours of one class in views [first, end), enough of them to merge. */
static bool find_class(const struct an_layer *layer, uint32_t first, uint32_t end,
                       struct run *run_out)
{
    uint32_t begin = first;
    for (uint32_t i = first; i < end; i++) {
        uint32_t rows = layer->views[i].count;
        if (size_class(rows) != size_class(layer->views[begin].count)) {
            begin = i;
        }
        if (i + 1 - begin == (rows >= LARGE_ROWS ? LARGE_NEIGHBOURS : NEIGHBOURS)) {
            *run_out = run_of(layer, begin, i + 1);
            return true;
        }
    }
    return false;
}

static bool find_run(const struct an_layer *layer, struct run *run_out)
{
    uint32_t end;
    for (uint32_t first = 0; first < layer->view_count; first = end) {
        end = first + 1;
        if (!mergeable(&layer->views[first])) {
            continue;
        }
        while (end < layer->view_count && mergeable(&layer->views[end]) &&
               follows(&layer->views[end - 1], &layer->views[end])) {
            end++;
        }
        if (layer->views[first].segment->extent == layer->extent) {
            if (find_class(layer, first, end, run_out)) {
                return true;
            }
        } else if (end - first > 1) {
            *run_out = run_of(layer, first, end);
            return true;
        }
    }
    return false;
}

static uint64_t merge_bytes(uint32_t source_count)
{
    return sizeof(struct an_merge) + source_count * sizeof(struct an_segment *);
}

/* Reserves what the merge takes beside the segment itself. */
static enum pp_status reserve(const struct an_layer *layer, const struct run *run,
                              uint64_t index_bytes)
{
    const struct an_params *params = layer->params;
    struct pp_limit *limit = params->store->limit;
    uint64_t bytes = index_bytes + merge_bytes(run->count);
    uint64_t spare = limit->bytes_max / SPARE_SHARE;
    if (pp_limit_used(limit) + bytes + spare > limit->bytes_max) {
        return PP_MEMORY;
    }
    PP_TRY(an_store_reserve_scratch(
        params->store, an_index_scratch_bytes(&params->index, params->dim, run->rows, 1)));
    return pp_limit_reserve(limit, PP_MEMORY_INDEX, bytes);
}

static enum pp_status start(struct an_layer *layer, const struct run *run)
{
    struct an_store *store = layer->params->store;
    uint64_t index_bytes = an_layer_index_bytes(layer, run->rows);
    PP_TRY(reserve(layer, run, index_bytes));
    struct an_segment *first = layer->views[run->first].segment;
    struct an_segment *segment;
    struct an_merge *merge = calloc(1, merge_bytes(run->count));
    if (merge == NULL || an_segment_new(layer->params, first->extent, layer->balance, first->begin,
                                        run->rows, &segment) != PP_OK) {
        free(merge);
        pp_limit_release(store->limit, PP_MEMORY_INDEX, index_bytes + merge_bytes(run->count));
        return PP_MEMORY;
    }
    merge->layer = layer;
    merge->source_count = run->count;
    for (uint32_t i = 0; i < run->count; i++) {
        merge->sources[i] = layer->views[run->first + i].segment;
        an_segment_acquire(merge->sources[i]);
    }
    segment->merge = merge;
    segment->owns_rows = false;
    segment->index_charge = index_bytes;
    layer->merge = segment;
    store->merges++;
    an_segment_want_index(segment);
    return PP_OK;
}

void an_merge_plan(struct an_layer *layer)
{
    struct run run;
    const struct an_store *store = layer->params->store;
    if (layer->merge != NULL || store->merges >= store->merges_max || !find_run(layer, &run) ||
        an_layer_index_bytes(layer, run.rows) == 0) {
        return;
    }
    enum pp_status status = start(layer, &run);
    (void)status; /* without memory the segments stay; the next append asks again */
}

void an_merge_drop(struct an_layer *layer)
{
    struct an_segment *segment = layer->merge;
    if (segment == NULL) {
        return;
    }
    segment->merge->layer = NULL;
    layer->merge = NULL;
    an_segment_release(segment);
}

/* Puts the segment in the place of its sources, if they are as they were. */
static bool take_place(struct an_layer *layer, struct an_segment *segment)
{
    const struct an_merge *merge = segment->merge;
    uint32_t count = merge->source_count;
    uint32_t at = 0;
    while (at < layer->view_count && layer->views[at].segment != merge->sources[0]) {
        at++;
    }
    if (layer->view_count - at < count) {
        return false;
    }
    struct an_view *views = layer->views + at;
    for (uint32_t i = 0; i < count; i++) {
        const struct an_segment *source = merge->sources[i];
        if (views[i].segment != source || views[i].count != source->count ||
            source->references != 2) { /* the view's and the merge's */
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        merge->sources[i]->owns_rows = false;
        an_segment_release(merge->sources[i]);
    }
    segment->owns_rows = true;
    an_segment_acquire(segment);
    views[0] = an_view_of(segment, views[0].held_begin);
    layer->view_count -= count - 1;
    memmove(views + 1, views + count, (layer->view_count - at - 1) * sizeof(*views));
    return true;
}

bool an_merge_publish(struct an_segment *segment)
{
    struct an_merge *merge = segment->merge;
    struct an_layer *layer = merge->layer;
    struct an_store *store = segment->params->store;
    if (layer == NULL) {
        segment->build.status = PP_CANCELLED;
    }
    an_segment_acquire(segment);
    bool built = an_segment_publish(segment);
    bool placed = built && layer != NULL && take_place(layer, segment);
    segment->merge = NULL;
    if (layer != NULL) {
        layer->merge = NULL;
        an_segment_release(segment);
    }
    an_segment_release(segment);
    /* From the last on, so that an extent's end is free again as far as nobody else needs it. */
    for (uint32_t i = merge->source_count; i > 0; i--) {
        an_segment_release(merge->sources[i - 1]);
    }
    pp_limit_release(store->limit, PP_MEMORY_INDEX, merge_bytes(merge->source_count));
    free(merge);
    store->merges--;
    if (placed) {
        an_merge_plan(layer);
    }
    return placed;
}
