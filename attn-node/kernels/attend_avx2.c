/*
 * The attend kernels compiled for one instruction set: see attend_vector.h.
 */
#include "attn-node/kernels/attend_vector.h"
#include "attn-node/kernels/tables.h"

static void attend_exact(const struct an_rows *rows, uint32_t begin, uint32_t end, const float *q,
                         uint32_t heads, struct an_accumulator *accumulators)
{
    an_attend_exact_body(rows, begin, end, q, heads, accumulators);
}

static void score_gather(const struct an_rows *rows, const uint16_t *ids, uint32_t count,
                         uint32_t ahead, const float *q, float *scores_out)
{
    an_score_gather_body(rows, ids, count, ahead, q, scores_out);
}

static void attend_gather(const struct an_rows *rows, const uint16_t *ids, const float *scores,
                          const float *log_u, uint32_t count, struct an_accumulator *accumulator)
{
    an_attend_gather_body(rows, ids, scores, log_u, count, accumulator);
}

const struct an_kernels an_kernels_avx2 = {
    .isa = "avx2",
    .costs = &an_costs_avx2,
    .attend_exact = attend_exact,
    .score_gather = score_gather,
    .attend_gather = attend_gather,
    .sum_keys = an_sum_keys_avx2,
    .square_distances = an_square_distances_avx2,
    .sort_codes = an_sort_codes_avx2,
};
