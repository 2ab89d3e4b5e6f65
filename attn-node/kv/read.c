/*
 * Copying rows out in append format. See read.h.
 */
#include "attn-node/kv/read.h"

#include <string.h>

#include "common/base/assert.h"

uint64_t an_read_bytes(const struct an_params *params, uint32_t count)
{
    return 2ull * count * params->kv_heads * pp_vector_bytes(params->dim, params->dtype);
}

/* Rows [begin, end) of a stretch's extent to the token numbered `at` of the output. */
static void read_stretch(const struct an_params *params, const struct an_extent *extent,
                         uint32_t begin, uint32_t end, uint8_t *k_out, uint8_t *v_out)
{
    uint64_t value_bytes = pp_vector_bytes(params->dim, params->dtype);
    uint64_t out = 0;
    for (uint32_t row = begin; row < end; row++) {
        for (uint32_t head = 0; head < params->kv_heads; head++) {
            const uint8_t *stored = an_extent_row(extent, head, row);
            memcpy(k_out + out, stored, value_bytes);
            memcpy(v_out + out, stored + params->v_offset, value_bytes);
            out += value_bytes;
        }
    }
}

void an_read_rows(const struct an_layer *layer, uint64_t start, uint32_t count, uint8_t *out)
{
    PP_ASSERT(count > 0 && start + count <= an_layer_held(layer));
    const struct an_params *params = layer->params;
    uint64_t half = an_read_bytes(params, count) / 2;
    uint64_t token_bytes = half / count;
    uint32_t done = 0;
    for (uint32_t index = an_layer_find(layer, start); done < count; index++) {
        struct an_stretch stretch = an_layer_stretch(layer, index, start + count);
        uint64_t held = start + done;
        uint32_t begin = stretch.base + stretch.begin + (uint32_t)(held - stretch.held_begin);
        uint32_t end = stretch.base + stretch.end;
        uint8_t *k_out = out + done * token_bytes;
        read_stretch(params, stretch.extent, begin, end, k_out, k_out + half);
        done += end - begin;
    }
}
