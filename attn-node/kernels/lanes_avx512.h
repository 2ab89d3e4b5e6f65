/*
 * What the AVX-512 kernels share: rows of any dtype as pairs of f32 vectors, e^x, and the sums of
 * sixteen vectors at once. Private to attn-node/kernels, included by *_avx512.c only.
 *
 * A chunk is 32 dimensions, loaded as two vectors (a, b). bf16: a holds the even, b the odd
 * dimensions (shift and mask, no shuffles); f16, f32 and int8: the first and the last
 * sixteen. int8 is loaded as it is; its scales are for the caller (an_scales). q and o
 * are spread into the same order before and gathered back after, so that no row is ever shuffled.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_LANES_AVX512_H
#define PIGPEN_ATTN_NODE_KERNELS_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kernels/kernels.h"
#include "common/base/inline.h"
#include "common/base/limits.h"

#define AN_CHUNK 32u
#define AN_BLOCK 16u /* rows */

/* dim as chunks: whole ones, and how many lanes of a and b the last one has. */
struct an_chunks {
    uint32_t whole;
    uint32_t tail, tail_a, tail_b;
};

PP_INLINE struct an_chunks an_chunks_of(enum pp_dtype dtype, uint32_t dim)
{
    uint32_t tail = dim % AN_CHUNK;
    uint32_t first = dtype == PP_BF16 ? (tail + 1) / 2 : tail < 16 ? tail : 16;
    return (struct an_chunks){dim / AN_CHUNK, tail, first, tail - first};
}

PP_INLINE void an_load_chunk(enum pp_dtype dtype, const uint8_t *values, uint32_t chunk, __m512 *a,
                             __m512 *b)
{
    if (dtype == PP_BF16) {
        __m512i x = _mm512_loadu_si512(values + chunk * 64u);
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        *b = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)));
    } else if (dtype == PP_F16) {
        const __m256i *halves = (const __m256i *)(const void *)(values + chunk * 64u);
        *a = _mm512_cvtph_ps(_mm256_loadu_si256(halves));
        *b = _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1));
    } else if (dtype == PP_I8) {
        const __m128i *bytes = (const __m128i *)(const void *)(values + chunk * 32u);
        *a = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes)));
        *b = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(bytes + 1)));
    } else {
        *a = _mm512_loadu_ps(values + chunk * 128u);
        *b = _mm512_loadu_ps(values + chunk * 128u + 64u);
    }
}

/* The same for the last, partial chunk; lanes past the end are 0, nothing past it is read. */
PP_INLINE void an_load_tail(enum pp_dtype dtype, const uint8_t *values,
                            const struct an_chunks *chunks, __m512 *a, __m512 *b)
{
    uint32_t chunk = chunks->whole;
    uint32_t lanes = (1u << chunks->tail) - 1u;
    if (dtype == PP_BF16) {
        __m512i x = _mm512_maskz_loadu_epi16(lanes, values + chunk * 64u);
        *a = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        *b = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u)));
    } else if (dtype == PP_F16) {
        *a = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((__mmask16)lanes, values + chunk * 64u));
        *b = _mm512_cvtph_ps(
            _mm256_maskz_loadu_epi16((__mmask16)(lanes >> 16), values + chunk * 64u + 32u));
    } else if (dtype == PP_I8) {
        const uint8_t *bytes = values + chunk * 32u;
        *a =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8((__mmask16)lanes, bytes)));
        *b = _mm512_cvtepi32_ps(
            _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8((__mmask16)(lanes >> 16), bytes + 16)));
    } else {
        *a = _mm512_maskz_loadu_ps((__mmask16)lanes, values + chunk * 128u);
        *b = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), values + chunk * 128u + 64u);
    }
}

/* The scales of sixteen int8 vectors of dim. */
PP_INLINE __m512 an_scales(const uint8_t *const *vectors, uint32_t dim)
{
    __m128 four[4];
    PP_UNROLL for (int i = 0; i < 4; ++i)
    {
        __m128 x[4];
        PP_UNROLL for (int j = 0; j < 4; ++j)
        {
            x[j] = _mm_castsi128_ps(_mm_loadu_si32(vectors[4 * i + j] + dim));
        }
        four[i] = _mm_movelh_ps(_mm_unpacklo_ps(x[0], x[1]), _mm_unpacklo_ps(x[2], x[3]));
    }
    __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(four[0]), four[1], 1);
    __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(four[2]), four[3], 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* What scores and weights of a block of int8 rows are multiplied by; other dtypes: 1, unused. */
struct an_block_scales {
    __m512 k, v;
};

PP_INLINE struct an_block_scales an_scales_of(enum pp_dtype dtype, const uint8_t *const *block,
                                              const struct an_rows *rows)
{
    struct an_block_scales scales = {_mm512_set1_ps(1.0f), _mm512_set1_ps(1.0f)};
    if (dtype == PP_I8) {
        scales.k = an_scales(block, rows->dim);
        scales.v = an_scales(block, rows->v_offset + rows->dim);
    }
    return scales;
}

/* e^x for x <= 0 by the series of pp_exp_neg; below -87 it is 0. */
PP_INLINE __m512 an_exp_neg(__m512 x)
{
    const __m512 log2e = _mm512_set1_ps(1.44269504f);
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, log2e), _MM_FROUND_TO_NEAREST_INT);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 s = _mm512_set1_ps(1.3888889e-3f);
    s = _mm512_fmadd_ps(s, r, _mm512_set1_ps(8.3333337e-3f));
    s = _mm512_fmadd_ps(s, r, _mm512_set1_ps(4.1666668e-2f));
    s = _mm512_fmadd_ps(s, r, _mm512_set1_ps(1.6666667e-1f));
    s = _mm512_fmadd_ps(s, r, _mm512_set1_ps(0.5f));
    s = _mm512_fmadd_ps(s, r, _mm512_set1_ps(1.0f));
    s = _mm512_fmadd_ps(s, r, _mm512_set1_ps(1.0f));
    __mmask16 small = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(_mm512_scalef_ps(s, n), small, _mm512_setzero_ps());
}

/* Lane i of the result is the sum of the lanes of v[i]: one tree for sixteen vectors. */
PP_INLINE __m512 an_sum_sixteen(const __m512 *v)
{
    __m512 quad[4];
    PP_UNROLL for (int i = 0; i < 4; ++i)
    {
        const __m512 *x = v + 4 * i;
        __m512 p01 = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        __m512 p23 = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        __m512d low = _mm512_castps_pd(p01);
        __m512d high = _mm512_castps_pd(p23);
        quad[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                                _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)));
    }
    __m512 q01 = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x44),
                               _mm512_shuffle_f32x4(quad[0], quad[1], 0xee));
    __m512 q23 = _mm512_add_ps(_mm512_shuffle_f32x4(quad[2], quad[3], 0x44),
                               _mm512_shuffle_f32x4(quad[2], quad[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_f32x4(q01, q23, 0x88),
                         _mm512_shuffle_f32x4(q01, q23, 0xdd));
}

/* Spreads values [dim] into chunk order (out may be values; the tail packs a's lanes, then b's). */
PP_INLINE void an_spread(enum pp_dtype dtype, uint32_t dim, const float *values, float *out)
{
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    struct an_chunks chunks = an_chunks_of(dtype, dim);
    for (uint32_t c = 0; c < chunks.whole; ++c) {
        __m512 low = _mm512_loadu_ps(values + c * AN_CHUNK);
        __m512 high = _mm512_loadu_ps(values + c * AN_CHUNK + 16);
        __m512 a = dtype == PP_BF16 ? _mm512_permutex2var_ps(low, even, high) : low;
        __m512 b = dtype == PP_BF16 ? _mm512_permutex2var_ps(low, odd, high) : high;
        _mm512_storeu_ps(out + c * AN_CHUNK, a);
        _mm512_storeu_ps(out + c * AN_CHUNK + 16, b);
    }
    float tail[AN_CHUNK];
    const float *from = values + chunks.whole * AN_CHUNK;
    for (uint32_t i = 0; i < chunks.tail; ++i) {
        uint32_t at = dtype != PP_BF16 ? i : i % 2 == 0 ? i / 2 : chunks.tail_a + i / 2;
        tail[at] = from[i];
    }
    for (uint32_t i = 0; i < chunks.tail; ++i) {
        out[chunks.whole * AN_CHUNK + i] = tail[i];
    }
}

/* The way back, in place. */
PP_INLINE void an_unspread(enum pp_dtype dtype, uint32_t dim, float *values)
{
    if (dtype != PP_BF16) {
        return;
    }
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high =
        _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    struct an_chunks chunks = an_chunks_of(dtype, dim);
    for (uint32_t c = 0; c < chunks.whole; ++c) {
        __m512 a = _mm512_loadu_ps(values + c * AN_CHUNK);
        __m512 b = _mm512_loadu_ps(values + c * AN_CHUNK + 16);
        _mm512_storeu_ps(values + c * AN_CHUNK, _mm512_permutex2var_ps(a, low, b));
        _mm512_storeu_ps(values + c * AN_CHUNK + 16, _mm512_permutex2var_ps(a, high, b));
    }
    float tail[AN_CHUNK];
    float *from = values + chunks.whole * AN_CHUNK;
    for (uint32_t i = 0; i < chunks.tail; ++i) {
        tail[i] = from[i % 2 == 0 ? i / 2 : chunks.tail_a + i / 2];
    }
    for (uint32_t i = 0; i < chunks.tail; ++i) {
        from[i] = tail[i];
    }
}

/* Lanes of vectors a and b that chunk c of a spread vector has, and where b lies behind a. */
PP_INLINE void an_chunk_lanes(const struct an_chunks *chunks, uint32_t c, __mmask16 *a,
                              __mmask16 *b, uint32_t *b_offset)
{
    bool whole = c < chunks->whole;
    *a = whole ? 0xffff : (__mmask16)((1u << chunks->tail_a) - 1u);
    *b = whole ? 0xffff : (__mmask16)((1u << chunks->tail_b) - 1u);
    *b_offset = whole ? 16 : chunks->tail_a;
}

/* Scores of R rows for H queries, R * H <= 16: scores[h * 16 + r] for r < R.
 * q [H][PP_HEAD_DIM_MAX + 32], spread, the tail with a at +0 and b at +16, zeros beyond. */
#define AN_Q_STRIDE (PP_HEAD_DIM_MAX + AN_CHUNK)
PP_INLINE __m512 an_dots(enum pp_dtype dtype, const uint32_t H, const uint32_t R,
                         const uint8_t *const *rows, const float *q, const struct an_chunks *chunks)
{
    __m512 sums[16];
    PP_UNROLL for (uint32_t i = 0; i < 16; ++i)
    {
        sums[i] = _mm512_setzero_ps();
    }
    for (uint32_t c = 0; c < chunks->whole; ++c) {
        PP_UNROLL for (uint32_t r = 0; r < R; ++r)
        {
            __m512 a;
            __m512 b;
            an_load_chunk(dtype, rows[r], c, &a, &b);
            PP_UNROLL for (uint32_t h = 0; h < H; ++h)
            {
                const float *at = q + h * AN_Q_STRIDE + c * AN_CHUNK;
                __m512 *sum = &sums[h * R + r];
                *sum = _mm512_fmadd_ps(a, _mm512_load_ps(at), *sum);
                *sum = _mm512_fmadd_ps(b, _mm512_load_ps(at + 16), *sum);
            }
        }
    }
    if (chunks->tail != 0) {
        PP_UNROLL for (uint32_t r = 0; r < R; ++r)
        {
            __m512 a;
            __m512 b;
            an_load_tail(dtype, rows[r], chunks, &a, &b);
            PP_UNROLL for (uint32_t h = 0; h < H; ++h)
            {
                const float *at = q + h * AN_Q_STRIDE + chunks->whole * AN_CHUNK;
                __m512 *sum = &sums[h * R + r];
                *sum = _mm512_fmadd_ps(a, _mm512_load_ps(at), *sum);
                *sum = _mm512_fmadd_ps(b, _mm512_load_ps(at + 16), *sum);
            }
        }
    }
    return an_sum_sixteen(sums);
}

/* q [dim] into the layout that an_dots reads. */
PP_INLINE void an_prepare_q(enum pp_dtype dtype, uint32_t dim, const float *q, float *out)
{
    float spread[AN_Q_STRIDE];
    struct an_chunks chunks = an_chunks_of(dtype, dim);
    an_spread(dtype, dim, q, spread);
    uint32_t whole = chunks.whole * AN_CHUNK;
    for (uint32_t i = 0; i < whole; ++i) {
        out[i] = spread[i];
    }
    for (uint32_t i = 0; i < 16 && chunks.tail != 0; ++i) {
        out[whole + i] = i < chunks.tail_a ? spread[whole + i] : 0.0f;
        out[whole + 16 + i] = i < chunks.tail_b ? spread[whole + chunks.tail_a + i] : 0.0f;
    }
}

/* Sixteen dots of an_dots, those of R = 16 / H rows from `row` on, to scores [head][AN_BLOCK]. */
PP_INLINE void an_store_dots(const uint32_t H, uint32_t row, __m512 dots, float *scores)
{
    if (H == 1) {
        _mm512_store_ps(scores, dots);
    } else if (H == 2) {
        _mm256_store_ps(scores + row, _mm512_castps512_ps256(dots));
        _mm256_store_ps(scores + AN_BLOCK + row, _mm512_extractf32x8_ps(dots, 1));
    } else {
        _mm_store_ps(scores + row, _mm512_castps512_ps128(dots));
        _mm_store_ps(scores + AN_BLOCK + row, _mm512_extractf32x4_ps(dots, 1));
        _mm_store_ps(scores + 2 * AN_BLOCK + row, _mm512_extractf32x4_ps(dots, 2));
        _mm_store_ps(scores + 3 * AN_BLOCK + row, _mm512_extractf32x4_ps(dots, 3));
    }
}

#endif
