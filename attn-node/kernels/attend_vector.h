/*
 * The attend kernels over vectors of 16 floats, as text for attend_avx2.c: the compiler maps
 * a vector to two registers.
 *
 * Rows are taken in tiles of 16. K of a tile becomes f32 in scratch once and serves all heads; then
 * scores, one rescale a tile and head when the maximum moved, 16 exponentials at once; then V of
 * the tile the same way. Shapes: tile [16][dim padded to 16] f32 on the stack, 16 KiB at dim 256.
 * Bytes moved a call: (end - begin) * row_bytes from memory, once for all heads.
 * Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_ATTEND_VECTOR_H
#define PIGPEN_ATTN_NODE_KERNELS_ATTEND_VECTOR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "attn-node/kernels/kernels.h"
#include "common/base/limits.h"

#define AN_LANES         16u
#define AN_TILE          16u
#define AN_PREFETCH_ROWS 24u

typedef float an_vf __attribute__((vector_size(64)));
typedef int32_t an_vi __attribute__((vector_size(64)));
typedef float an_vf_unaligned __attribute__((vector_size(64), aligned(4)));
typedef int8_t an_vb_unaligned __attribute__((vector_size(16), aligned(1)));
typedef uint16_t an_vh __attribute__((vector_size(32)));
typedef uint16_t an_vh_unaligned __attribute__((vector_size(32), aligned(1)));
typedef uint32_t an_vu __attribute__((vector_size(64)));
typedef __fp16 an_v16 __attribute__((vector_size(32)));

struct an_tile {
    _Alignas(64) float values[AN_TILE * PP_HEAD_DIM_MAX];
};

static inline an_vf an_load(const float *at)
{
    return *(const an_vf_unaligned *)at;
}

static inline void an_store(float *at, an_vf value)
{
    *(an_vf_unaligned *)at = value;
}

static inline float an_sum(an_vf value)
{
    typedef float an_v8 __attribute__((vector_size(32)));
    typedef float an_v4 __attribute__((vector_size(16)));
    an_v8 half = __builtin_shufflevector(value, value, 0, 1, 2, 3, 4, 5, 6, 7) +
                 __builtin_shufflevector(value, value, 8, 9, 10, 11, 12, 13, 14, 15);
    an_v4 quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) +
                    __builtin_shufflevector(half, half, 4, 5, 6, 7);
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* e^x for x <= 0: 2^n times a polynomial of degree 6 in the rest; 0 below -87. */
static inline an_vf an_exp_neg(an_vf x)
{
    an_vi tiny = x < -87.0f;
    an_vf bounded = (an_vf)(((an_vi)x & ~tiny));
    an_vf shifted = bounded * 1.44269504f - 0.5f;
    an_vi n = __builtin_convertvector(shifted, an_vi); /* towards zero: nearest, x being <= 0 */
    an_vf whole = __builtin_convertvector(n, an_vf);
    an_vf r = (bounded - whole * 0.693359375f) + whole * 2.12194440e-4f;
    an_vf series = r * 1.3888889e-3f + 8.3333337e-3f;
    series = series * r + 4.1666668e-2f;
    series = series * r + 1.6666667e-1f;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    an_vf result = (an_vf)((an_vi)series + n * (1 << 23));
    return (an_vf)((an_vi)result & ~tiny);
}

static inline an_vf an_widen(const uint8_t *at, enum pp_dtype dtype)
{
    if (dtype == PP_I8) {
        return __builtin_convertvector(*(const an_vb_unaligned *)at, an_vf);
    }
    if (dtype == PP_BF16) {
        an_vh halves = *(const an_vh_unaligned *)at;
        return (an_vf)(__builtin_convertvector(halves, an_vu) << 16);
    }
    if (dtype == PP_F16) {
        an_v16 halves = (an_v16)(an_vh) * (const an_vh_unaligned *)at;
        return __builtin_convertvector(halves, an_vf);
    }
    return an_load((const float *)(const void *)at);
}

/* One half of a row as f32, padded with zeros to 16. */
static inline void an_widen_row(const uint8_t *values, enum pp_dtype dtype, uint32_t dim,
                                float *out)
{
    uint32_t element_bytes = dtype == PP_F32 ? 4 : dtype == PP_I8 ? 1 : 2;
    uint32_t whole = dim & ~(AN_LANES - 1);
    for (uint32_t i = 0; i < whole; i += AN_LANES) {
        an_store(out + i, an_widen(values + (size_t)i * element_bytes, dtype));
    }
    if (whole < dim) {
        _Alignas(64) uint8_t rest[64] = {0};
        memcpy(rest, values + (size_t)whole * element_bytes, (size_t)(dim - whole) * element_bytes);
        an_store(out + whole, an_widen(rest, dtype));
    }
    if (dtype == PP_I8) {
        float scale;
        memcpy(&scale, values + dim, sizeof(scale));
        for (uint32_t i = 0; i < dim; i += AN_LANES) {
            an_store(out + i, an_load(out + i) * scale);
        }
    }
}

static inline uint32_t an_padded(uint32_t dim)
{
    return (dim + AN_LANES - 1) & ~(AN_LANES - 1);
}

static inline an_vf an_load_partly(const float *values, uint32_t at, uint32_t dim)
{
    if (at + AN_LANES <= dim) {
        return an_load(values + at);
    }
    _Alignas(64) float rest[AN_LANES] = {0.0f};
    memcpy(rest, values + at, (dim - at) * sizeof(*rest));
    return an_load(rest);
}

static inline void an_store_partly(float *values, uint32_t at, uint32_t dim, an_vf value)
{
    if (at + AN_LANES <= dim) {
        an_store(values + at, value);
        return;
    }
    memcpy(values + at, &value, (dim - at) * sizeof(*values));
}

/* Scores of `count` rows of a tile for one query; the rest of the 16 become -inf. */
static inline void an_tile_scores(const struct an_tile *tile, uint32_t count, uint32_t dim,
                                  const float *q, float *scores)
{
    uint32_t padded = an_padded(dim);
    for (uint32_t row = 0; row < count; ++row) {
        an_vf sum = {0.0f};
        for (uint32_t i = 0; i < padded; i += AN_LANES) {
            sum += an_load_partly(q, i, dim) * an_load(tile->values + (size_t)row * padded + i);
        }
        scores[row] = an_sum(sum);
    }
    for (uint32_t row = count; row < AN_TILE; ++row) {
        scores[row] = -INFINITY;
    }
}

static inline void an_scale(float *values, uint32_t dim, float factor)
{
    for (uint32_t i = 0; i < dim; ++i) {
        values[i] *= factor;
    }
}

/* Moves the accumulator to a maximum that covers 16 weighted scores (not all -inf), and turns them
 * into e^(score - m). */
static inline an_vf an_tile_weights(an_vf weighted, uint32_t dim,
                                    struct an_accumulator *accumulator)
{
    float m = weighted[0];
    for (uint32_t i = 1; i < AN_TILE; ++i) {
        m = weighted[i] > m ? weighted[i] : m;
    }
    if (m > accumulator->m) {
        float keep = 0.0f;
        if (accumulator->m > -INFINITY) {
            an_vf difference = {0.0f};
            difference[0] = accumulator->m - m;
            keep = an_exp_neg(difference)[0];
        }
        an_scale(accumulator->o, dim, keep);
        accumulator->sum *= keep;
        if (accumulator->b1 != NULL) {
            an_scale(accumulator->b1, dim, keep * keep);
            accumulator->b0 *= keep * keep;
            accumulator->b2 *= keep * keep;
        }
        accumulator->m = m;
    }
    return an_exp_neg(weighted - accumulator->m);
}

/* o += sum over rows of weight * v. */
static inline void an_tile_values(const struct an_tile *tile, uint32_t count, uint32_t dim,
                                  const float *weights, float *o)
{
    uint32_t padded = an_padded(dim);
    for (uint32_t i = 0; i < padded; i += AN_LANES) {
        an_vf sum = an_load_partly(o, i, dim);
        for (uint32_t row = 0; row < count; ++row) {
            sum += weights[row] * an_load(tile->values + (size_t)row * padded + i);
        }
        an_store_partly(o, i, dim, sum);
    }
}

static inline void an_prefetch_row(const uint8_t *row, uint64_t row_bytes)
{
    for (uint64_t at = 0; at < row_bytes; at += 64) {
        __builtin_prefetch(row + at, 0, 2);
    }
}

#define AN_HEADS_AT_ONCE 32u

static inline void an_attend_exact_some(const struct an_rows *rows, uint32_t begin, uint32_t end,
                                        const float *q, uint32_t heads,
                                        struct an_accumulator *accumulators)
{
    struct an_tile tile;
    _Alignas(64) float weights[AN_HEADS_AT_ONCE][AN_TILE];
    uint32_t dim = rows->dim;
    uint32_t padded = an_padded(dim);
    for (uint32_t at = begin; at < end; at += AN_TILE) {
        uint32_t count = end - at < AN_TILE ? end - at : AN_TILE;
        const uint8_t *base = rows->base + at * rows->row_bytes;
        for (uint32_t row = 0; row < count; ++row) {
            if (at + row + AN_PREFETCH_ROWS < end) {
                an_prefetch_row(base + (row + AN_PREFETCH_ROWS) * rows->row_bytes, rows->row_bytes);
            }
            an_widen_row(base + row * rows->row_bytes, rows->dtype, dim,
                         tile.values + (size_t)row * padded);
        }
        for (uint32_t head = 0; head < heads; ++head) {
            an_tile_scores(&tile, count, dim, q + (size_t)head * dim, weights[head]);
            an_vf weight = an_tile_weights(an_load(weights[head]), dim, &accumulators[head]);
            accumulators[head].sum += an_sum(weight);
            accumulators[head].keys_read += count;
            an_store(weights[head], weight);
        }
        for (uint32_t row = 0; row < count; ++row) {
            an_widen_row(base + row * rows->row_bytes + rows->v_offset, rows->dtype, dim,
                         tile.values + (size_t)row * padded);
        }
        for (uint32_t head = 0; head < heads; ++head) {
            an_tile_values(&tile, count, dim, weights[head], accumulators[head].o);
        }
    }
}

static inline void an_attend_exact_body(const struct an_rows *rows, uint32_t begin, uint32_t end,
                                        const float *q, uint32_t heads,
                                        struct an_accumulator *accumulators)
{
    for (uint32_t head = 0; head < heads; head += AN_HEADS_AT_ONCE) {
        uint32_t some = heads - head < AN_HEADS_AT_ONCE ? heads - head : AN_HEADS_AT_ONCE;
        an_attend_exact_some(rows, begin, end, q + (size_t)head * rows->dim, some,
                             accumulators + head);
    }
}

static inline void an_score_gather_body(const struct an_rows *rows, const uint16_t *ids,
                                        uint32_t count, uint32_t ahead, const float *q,
                                        float *scores_out)
{
    _Alignas(64) float query[PP_HEAD_DIM_MAX];
    _Alignas(64) float key[PP_HEAD_DIM_MAX];
    uint32_t padded = an_padded(rows->dim);
    memset(query, 0, padded * sizeof(*query));
    memcpy(query, q, rows->dim * sizeof(*query));
    for (uint32_t i = 0; i < count && i < AN_PREFETCH_ROWS; ++i) {
        an_prefetch_row(rows->base + ids[i] * rows->row_bytes, rows->row_bytes);
    }
    for (uint32_t i = 0; i < count; ++i) {
        if (i + AN_PREFETCH_ROWS < count + ahead) {
            an_prefetch_row(rows->base + ids[i + AN_PREFETCH_ROWS] * rows->row_bytes,
                            rows->row_bytes);
        }
        an_widen_row(rows->base + ids[i] * rows->row_bytes, rows->dtype, rows->dim, key);
        an_vf sum = {0.0f};
        for (uint32_t at = 0; at < padded; at += AN_LANES) {
            sum += an_load(query + at) * an_load(key + at);
        }
        scores_out[i] = an_sum(sum);
    }
}

/* The error sums of a tile: b = (1 - u) a^2. */
static inline void an_tile_errors(const struct an_tile *tile, uint32_t count, uint32_t dim,
                                  an_vf weight, an_vf log_u, struct an_accumulator *accumulator)
{
    an_vf b = (1.0f - an_exp_neg(log_u)) * weight * weight;
    _Alignas(64) float each[AN_TILE];
    an_store(each, b);
    an_tile_values(tile, count, dim, each, accumulator->b1);
    uint32_t padded = an_padded(dim);
    for (uint32_t row = 0; row < count; ++row) {
        an_vf squares = {0.0f};
        for (uint32_t i = 0; i < padded; i += AN_LANES) {
            an_vf v = an_load(tile->values + (size_t)row * padded + i);
            squares += v * v;
        }
        accumulator->b0 += each[row];
        accumulator->b2 += each[row] * an_sum(squares);
    }
}

static inline void an_attend_gather_body(const struct an_rows *rows, const uint16_t *ids,
                                         const float *scores, const float *log_u, uint32_t count,
                                         struct an_accumulator *accumulator)
{
    struct an_tile tile;
    uint32_t dim = rows->dim;
    uint32_t padded = an_padded(dim);
    for (uint32_t at = 0; at < count; at += AN_TILE) {
        uint32_t some = count - at < AN_TILE ? count - at : AN_TILE;
        _Alignas(64) float score[AN_TILE];
        _Alignas(64) float logs[AN_TILE] = {0.0f};
        for (uint32_t i = 0; i < AN_TILE; ++i) {
            score[i] = i < some ? scores[at + i] : -INFINITY;
            logs[i] = i < some && log_u != NULL ? log_u[at + i] : 0.0f;
        }
        for (uint32_t i = 0; i < some; ++i) {
            const uint8_t *row = rows->base + ids[at + i] * rows->row_bytes;
            an_widen_row(row + rows->v_offset, rows->dtype, dim, tile.values + (size_t)i * padded);
        }
        an_vf weight = an_tile_weights(an_load(score) - an_load(logs), dim, accumulator);
        accumulator->sum += an_sum(weight);
        accumulator->keys_read += some;
        an_store(score, weight);
        an_tile_values(&tile, some, dim, score, accumulator->o);
        if (accumulator->b1 != NULL) {
            an_tile_errors(&tile, some, dim, weight, an_load(logs), accumulator);
        }
    }
}

#endif
