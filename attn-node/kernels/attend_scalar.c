/*
 * The reference kernels: one row after the other, sums in f64, nothing clever. Every other variant
 * is checked against these. Bytes moved a call: (end - begin) * row_bytes, each row once a head.
 */
#include <math.h>
#include <string.h>

#include "attn-node/kernels/tables.h"
#include "common/base/half.h"
#include "common/base/limits.h"

/* Element `index` of a vector of dim. */
static float element(const uint8_t *values, enum pp_dtype dtype, uint32_t dim, uint32_t index)
{
    float value;
    if (dtype == PP_I8) {
        memcpy(&value, values + dim, sizeof(value));
        return (float)(int8_t)values[index] * value;
    }
    pp_dtype_to_f32(dtype, values + (uint64_t)index * pp_dtype_bytes(dtype), 1, &value);
    return value;
}

static float row_score(const struct an_rows *rows, const uint8_t *row, const float *q)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < rows->dim; ++i) {
        sum += (double)q[i] * (double)element(row, rows->dtype, rows->dim, i);
    }
    return (float)sum;
}

/* Adds one row of the given score and log u to the running softmax. */
static void add_row(const struct an_rows *rows, const uint8_t *row, float score, float log_u,
                    struct an_accumulator *accumulator)
{
    float weighted = score - log_u;
    if (weighted > accumulator->m) {
        float keep = accumulator->m == -INFINITY ? 0.0f : expf(accumulator->m - weighted);
        for (uint32_t i = 0; i < rows->dim; ++i) {
            accumulator->o[i] *= keep;
        }
        for (uint32_t i = 0; accumulator->b1 != NULL && i < rows->dim; ++i) {
            accumulator->b1[i] *= keep * keep;
        }
        accumulator->sum *= keep;
        accumulator->b0 *= keep * keep;
        accumulator->b2 *= keep * keep;
        accumulator->m = weighted;
    }
    float a = expf(weighted - accumulator->m);
    float b = -expm1f(log_u) * a * a;
    double squares = 0.0;
    for (uint32_t i = 0; i < rows->dim; ++i) {
        float v = element(row + rows->v_offset, rows->dtype, rows->dim, i);
        accumulator->o[i] += a * v;
        squares += (double)v * (double)v;
        if (accumulator->b1 != NULL) {
            accumulator->b1[i] += b * v;
        }
    }
    accumulator->sum += a;
    if (accumulator->b1 != NULL) {
        accumulator->b0 += b;
        accumulator->b2 += b * (float)squares;
    }
    ++accumulator->keys_read;
}

static void attend_exact(const struct an_rows *rows, uint32_t begin, uint32_t end, const float *q,
                         uint32_t heads, struct an_accumulator *accumulators)
{
    for (uint32_t i = begin; i < end; ++i) {
        const uint8_t *row = rows->base + i * rows->row_bytes;
        for (uint32_t head = 0; head < heads; ++head) {
            float score = row_score(rows, row, q + (uint64_t)head * rows->dim);
            add_row(rows, row, score, 0.0f, &accumulators[head]);
        }
    }
}

static void score_gather(const struct an_rows *rows, const uint16_t *ids, uint32_t count,
                         uint32_t ahead, const float *q, float *scores_out)
{
    (void)ahead;
    for (uint32_t i = 0; i < count; ++i) {
        scores_out[i] = row_score(rows, rows->base + ids[i] * rows->row_bytes, q);
    }
}

static void attend_gather(const struct an_rows *rows, const uint16_t *ids, const float *scores,
                          const float *log_u, uint32_t count, struct an_accumulator *accumulator)
{
    for (uint32_t i = 0; i < count; ++i) {
        add_row(rows, rows->base + ids[i] * rows->row_bytes, scores[i],
                log_u == NULL ? 0.0f : log_u[i], accumulator);
    }
}

const struct an_kernels an_kernels_scalar = {
    .isa = "scalar",
    .costs = &an_costs_scalar,
    .attend_exact = attend_exact,
    .score_gather = score_gather,
    .attend_gather = attend_gather,
    .sum_keys = an_sum_keys_scalar,
    .square_distances = an_square_distances_scalar,
    .sort_codes = an_sort_codes_scalar,
};
