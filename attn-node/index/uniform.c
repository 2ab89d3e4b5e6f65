/*
 * A uniform sample of rows by counters. See uniform.h.
 */
#include "attn-node/index/uniform.h"

#include <math.h>

#include "common/base/rng.h"

#define PIECE 128u /* ids that are scored at once */

void an_uniform_attend(const struct an_rows *rows, uint32_t begin, uint32_t end, uint64_t tokens,
                       const struct an_index_draw *draw, const float *q_scaled, uint32_t lanes,
                       struct an_accumulator *accumulators)
{
    const struct an_kernels *kernels = an_kernels_get();
    /* A row is taken when 32 random bits are below the threshold: u is exactly its share of 2^32.
     */
    uint64_t whole = 1ull << 32;
    uint64_t threshold = tokens > AN_UNIFORM_ROWS ? AN_UNIFORM_ROWS * whole / tokens : whole;
    float log_u_each = (float)log((double)threshold / (double)whole);
    uint64_t seed = pp_rng_at(draw->seed, UINT64_MAX);
    float log_u[PIECE];
    for (uint32_t i = 0; i < PIECE; ++i) {
        log_u[i] = log_u_each;
    }
    for (uint32_t row = begin; row < end;) {
        uint16_t ids[PIECE];
        float scores[PIECE];
        uint32_t count = 0;
        for (; row < end && count < PIECE; ++row) {
            ids[count] = (uint16_t)row;
            count += (pp_rng_at(seed, draw->first + row) >> 32) < threshold ? 1 : 0;
        }
        for (uint32_t lane = 0; lane < lanes && count > 0; ++lane) {
            kernels->score_gather(rows, ids, count, 0, q_scaled + (uint64_t)lane * rows->dim,
                                  scores);
            kernels->attend_gather(rows, ids, scores, log_u, count, &accumulators[lane]);
        }
    }
}
