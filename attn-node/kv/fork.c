/*
 * A layer that begins as a prefix of another. See fork.h.
 */
#include "attn-node/kv/fork.h"

#include <string.h>

#include "common/base/assert.h"

static enum pp_status copy_tail(const struct an_layer *from, uint32_t count, struct an_layer *to)
{
    const struct an_params *params = to->params;
    PP_TRY(an_extent_new(params, false, &to->extent));
    PP_TRY(an_layer_reserve_index(to, count));
    PP_TRY(an_extent_commit(to->extent, count, false));
    for (uint32_t head = 0; head < params->kv_heads; head++) {
        memcpy(an_extent_row(to->extent, head, 0),
               an_extent_row(from->extent, head, from->tail_begin), count * params->row_bytes);
    }
    to->tail_count = count;
    to->tail_bulk = from->tail_bulk;
    to->extent->filled = count;
    an_layer_account_tail(to);
    return PP_OK;
}

enum pp_status an_fork_layer(const struct an_layer *from, uint64_t held_tokens, struct an_layer *to)
{
    PP_ASSERT(held_tokens <= an_layer_held(from) && an_layer_held(to) == 0);
    to->balance = an_balance_acquire(from->balance);
    uint32_t stretches = an_layer_stretch_count(from);
    for (uint32_t i = 0; i < stretches; i++) {
        struct an_stretch stretch = an_layer_stretch(from, i, held_tokens);
        if (stretch.begin == stretch.end) {
            break;
        }
        if (i == from->view_count) {
            return copy_tail(from, stretch.end, to);
        }
        struct an_view view = from->views[i];
        view.count = stretch.end - stretch.begin;
        an_segment_acquire(view.segment);
        enum pp_status status = an_layer_add_view(to, &view);
        if (status != PP_OK) {
            an_segment_release(view.segment);
            return status;
        }
    }
    return PP_OK;
}
