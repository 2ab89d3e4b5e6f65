/*
 * What an attend by sketches is expected to cost beside an exact one: the scan of every row's
 * codes, the selection, and the rows of the budget, all once for the heads that share a sample.
 * What a query costs before it is shared by the views of a sample by their rows. On the walk:
 * exec's plan > index. Costs: attn-node/kernels/sketch.h.
 */
#include "attn-node/index/sketch.h"

#include <stddef.h>

bool an_sketch_pays(const struct an_sketch *sketch, const struct an_rows *rows, uint32_t begin,
                    uint32_t end, uint32_t group, uint32_t lanes, float rows_share,
                    uint64_t sample_rows, struct an_index_costs *costs_out)
{
    const struct an_sketch_costs *costs = an_sketch_kernels_get()->costs;
    uint32_t count = end - begin;
    double planes = sketch->shape.planes * (sketch->shape.bits == 4 ? (double)costs->nibbles : 1.0);
    double heads = an_sketch_heads_at_once(group);
    double key = planes * ((double)costs->plane + heads * (double)costs->plane_head) +
                 (double)costs->select + heads * (double)costs->select_head;
    double row = (double)costs->row_byte * (double)rows->row_bytes +
                 (double)costs->row_value * heads * rows->dim;
    double query = (double)costs->query * heads / (double)sample_rows; /* once for the sample */
    double call = count * (query + key + (double)rows_share * row);
    struct an_index_costs predicted = {
        .sampled_ns = call * lanes / heads,
        .exact_ns = an_exact_cost(an_kernels_get()->costs, rows, count, lanes),
    };
    if (costs_out != NULL) {
        *costs_out = predicted;
    }
    return predicted.sampled_ns < predicted.exact_ns;
}
