/*
 * Attend over the rows that a sketch drew with AVX2: sixteen rows at a time become f32 in the first
 * cache once for all heads, while later rows are prefetched whole; then scores and sums of two
 * heads at a time. Shapes: sketch.h. Mathematics: sketch_scalar.c. Bytes moved a call: every drawn
 * row once; K and V of a block in f32, 16 KiB at d = 128, once more for each two heads.
 */
#include "attn-node/kernels/attend_vector.h"

#include <immintrin.h>
#include <math.h>

#include "attn-node/kernels/sketch_tables.h"
#include "common/base/inline.h"

#define TILE_HEADS    2u
#define PREFETCH_ROWS 32u

/* A block of rows, zeros behind a row's end up to `padded`; what its heads make of it. */
struct block {
    struct an_tile k, v; /* [AN_TILE][padded] */
    float u[AN_TILE], squares[AN_TILE] __attribute__((aligned(64)));
    float a[TILE_HEADS][AN_TILE] __attribute__((aligned(64))); /* scores, then e^(s-m)/u */
    float b[TILE_HEADS][AN_TILE] __attribute__((aligned(64))); /* (1-u) a^2 */
    float factors[TILE_HEADS]; /* what o is multiplied by before this block */
    uint32_t count, dim, padded;
};

/* Lane i of the result is the sum of the lanes of v[i]. */
PP_INLINE __m256 sum_eight(const __m256 *v)
{
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* The lanes of a vector of dim from d on that are there. */
PP_INLINE __m256i lanes_of(uint32_t dim, uint32_t d)
{
    const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(dim > d ? (int)(dim - d) : 0), lanes);
}

/* Rows, u and |v|^2 of a block; rows that are not there are zeros of u = 1. */
static void load_block(const struct an_rows *rows, const uint16_t *ids, const uint16_t *thresholds,
                       uint32_t later, struct block *block)
{
    block->dim = rows->dim;
    block->padded = an_padded(rows->dim);
    for (uint32_t r = 0; r < AN_TILE; ++r) {
        float *k = block->k.values + (size_t)r * block->padded;
        float *v = block->v.values + (size_t)r * block->padded;
        block->u[r] = 1.0f;
        if (r >= block->count) {
            memset(k, 0, block->padded * sizeof(*k));
            memset(v, 0, block->padded * sizeof(*v));
            continue;
        }
        const uint8_t *row = rows->base + ids[r] * rows->row_bytes;
        an_widen_row(row, rows->dtype, rows->dim, k);
        an_widen_row(row + rows->v_offset, rows->dtype, rows->dim, v);
        block->u[r] = thresholds[r] == 0 ? 1.0f : (float)thresholds[r] * 0x1p-16f;
        if (r + PREFETCH_ROWS < block->count + later) {
            an_prefetch_row(rows->base + ids[r + PREFETCH_ROWS] * rows->row_bytes, rows->row_bytes);
        }
    }
    for (uint32_t r = 0; r < AN_TILE; r += 8) {
        __m256 sums[8];
        PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
        {
            const float *v = block->v.values + (size_t)(r + i) * block->padded;
            sums[i] = _mm256_setzero_ps();
            for (uint32_t d = 0; d < block->padded; d += 8) {
                __m256 value = _mm256_loadu_ps(v + d);
                sums[i] = _mm256_fmadd_ps(value, value, sums[i]);
            }
        }
        _mm256_store_ps(block->squares + r, sum_eight(sums));
    }
}

/* Scores of a block for H heads into block->a. */
PP_INLINE void score_block(const uint32_t H, const float *q, struct block *block)
{
    const uint32_t R = 8 / H;
    uint32_t whole = block->dim & ~7u;
    for (uint32_t row = 0; row < block->count; row += R) {
        const float *k = block->k.values + (size_t)row * block->padded;
        __m256 sums[8];
        PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
        {
            sums[i] = _mm256_setzero_ps();
        }
        for (uint32_t d = 0; d < whole; d += 8) {
            __m256 query[TILE_HEADS];
            PP_UNROLL for (uint32_t h = 0; h < H; ++h)
            {
                query[h] = _mm256_loadu_ps(q + h * block->dim + d);
            }
            PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
            {
                __m256 key = _mm256_loadu_ps(k + i % R * block->padded + d);
                sums[i] = _mm256_fmadd_ps(key, query[i / R], sums[i]);
            }
        }
        if (whole < block->dim) {
            __m256i lanes = lanes_of(block->dim, whole);
            PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
            {
                __m256 query = _mm256_maskload_ps(q + i / R * block->dim + whole, lanes);
                __m256 key = _mm256_loadu_ps(k + i % R * block->padded + whole);
                sums[i] = _mm256_fmadd_ps(key, query, sums[i]);
            }
        }
        __m256 dots = sum_eight(sums);
        if (H == 1) {
            _mm256_store_ps(block->a[0] + row, dots);
        } else {
            _mm_store_ps(block->a[0] + row, _mm256_castps256_ps128(dots));
            _mm_store_ps(block->a[1] + row, _mm256_extractf128_ps(dots, 1));
        }
    }
}

/* Scores to weights, and what does not depend on a dimension into the sums. */
static void weigh_block(struct block *block, uint32_t h, struct an_accumulator *head)
{
    float m = head->m;
    for (uint32_t r = 0; r < block->count; ++r) {
        m = block->a[h][r] > m ? block->a[h][r] : m;
    }
    for (uint32_t r = block->count; r < AN_TILE; ++r) {
        block->a[h][r] = -INFINITY;
    }
    float factor = m > head->m ? pp_exp_neg(head->m - m) : 1.0f;
    head->m = m;
    an_vf u = an_load(block->u);
    an_vf a = an_exp_neg(an_load(block->a[h]) - m) / u;
    an_vf b = (1.0f - u) * a * a;
    head->sum = head->sum * factor + an_sum(a);
    head->b0 = head->b0 * factor * factor + an_sum(b);
    head->b2 = head->b2 * factor * factor + an_sum(b * an_load(block->squares));
    block->factors[h] = factor;
    an_store(block->a[h], a);
    an_store(block->b[h], b);
}

/* N registers of o and b1 of H heads from dimension d on. */
PP_INLINE void sum_values(const uint32_t H, const uint32_t N, bool tail, const struct block *block,
                          uint32_t d, struct an_accumulator *heads)
{
    __m256 o[4];
    __m256 b1[4];
    __m256i lanes = lanes_of(block->dim, d);
    PP_UNROLL for (uint32_t i = 0; i < H * N; ++i)
    {
        const struct an_accumulator *head = &heads[i / N];
        uint32_t at = d + i % N * 8;
        __m256 factor = _mm256_set1_ps(block->factors[i / N]);
        o[i] = tail ? _mm256_maskload_ps(head->o + at, lanes) : _mm256_loadu_ps(head->o + at);
        b1[i] = tail ? _mm256_maskload_ps(head->b1 + at, lanes) : _mm256_loadu_ps(head->b1 + at);
        o[i] = _mm256_mul_ps(o[i], factor);
        b1[i] = _mm256_mul_ps(b1[i], _mm256_mul_ps(factor, factor));
    }
    for (uint32_t r = 0; r < block->count; ++r) {
        const float *v = block->v.values + (size_t)r * block->padded + d;
        PP_UNROLL for (uint32_t h = 0; h < H; ++h)
        {
            __m256 a = _mm256_broadcast_ss(&block->a[h][r]);
            __m256 b = _mm256_broadcast_ss(&block->b[h][r]);
            PP_UNROLL for (uint32_t n = 0; n < N; ++n)
            {
                __m256 value = _mm256_loadu_ps(v + n * 8);
                o[h * N + n] = _mm256_fmadd_ps(value, a, o[h * N + n]);
                b1[h * N + n] = _mm256_fmadd_ps(value, b, b1[h * N + n]);
            }
        }
    }
    PP_UNROLL for (uint32_t i = 0; i < H * N; ++i)
    {
        struct an_accumulator *head = &heads[i / N];
        uint32_t at = d + i % N * 8;
        if (tail) {
            _mm256_maskstore_ps(head->o + at, lanes, o[i]);
            _mm256_maskstore_ps(head->b1 + at, lanes, b1[i]);
        } else {
            _mm256_storeu_ps(head->o + at, o[i]);
            _mm256_storeu_ps(head->b1 + at, b1[i]);
        }
    }
}

/* H heads over a block. */
PP_INLINE void attend_heads(const uint32_t H, struct block *block, const float *q,
                            struct an_accumulator *heads)
{
    const uint32_t N = 4 / H;
    score_block(H, q, block);
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        weigh_block(block, h, &heads[h]);
    }
    uint32_t d = 0;
    for (; d + 8 * N <= block->dim; d += 8 * N) {
        sum_values(H, N, false, block, d, heads);
    }
    for (; d + 8 <= block->dim; d += 8) {
        sum_values(H, 1, false, block, d, heads);
    }
    if (d < block->dim) {
        sum_values(H, 1, true, block, d, heads);
    }
}

void an_sketch_attend_avx2(const struct an_rows *rows, const uint16_t *ids,
                           const uint16_t *thresholds, uint32_t count, const float *q,
                           uint32_t heads, struct an_accumulator *accumulators)
{
    struct block block;
    for (uint32_t i = 0; i < count; i += AN_TILE) {
        block.count = count - i < AN_TILE ? count - i : AN_TILE;
        load_block(rows, ids + i, thresholds + i, count - i - block.count, &block);
        uint32_t h = 0;
        for (; h + 2 <= heads; h += 2) {
            attend_heads(2, &block, q + (uint64_t)h * rows->dim, accumulators + h);
        }
        if (h < heads) {
            attend_heads(1, &block, q + (uint64_t)h * rows->dim, accumulators + h);
        }
    }
    for (uint32_t h = 0; h < heads; ++h) {
        accumulators[h].keys_read += count;
    }
}
