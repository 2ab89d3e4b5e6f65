/*
 * Cutting a layer to a prefix. See truncate.h.
 */
#include "attn-node/kv/truncate.h"

#include "attn-node/kv/merge.h"
#include "common/base/assert.h"

static void cut_tail(struct an_layer *layer, uint32_t count)
{
    layer->extent->filled -= layer->tail_count - count;
    layer->tail_count = count;
    layer->tail_bulk = layer->tail_bulk && count > 0;
    an_layer_staging_drop(layer);
    enum pp_status shrunk = an_layer_reserve_index(layer, count);
    PP_ASSERT(shrunk == PP_OK);
    an_layer_account_tail(layer);
}

void an_truncate_layer(struct an_layer *layer, uint64_t held_tokens)
{
    if (held_tokens >= an_layer_held(layer)) {
        return;
    }
    uint64_t sealed = layer->sealed_tokens;
    if (layer->tail_count > 0) {
        cut_tail(layer, held_tokens > sealed ? (uint32_t)(held_tokens - sealed) : 0);
    }
    if (sealed > held_tokens) {
        an_merge_drop(layer);
    }
    while (layer->sealed_tokens > held_tokens) {
        struct an_view *view = &layer->views[layer->view_count - 1];
        uint64_t kept = held_tokens > view->held_begin ? held_tokens - view->held_begin : 0;
        layer->sealed_tokens -= view->count - kept;
        view->count = (uint32_t)kept;
        if (kept == 0) {
            layer->view_count--;
            an_segment_release(view->segment);
        }
    }
    if (an_layer_held(layer) == 0) {
        an_layer_leave_extent(layer);
    }
}
