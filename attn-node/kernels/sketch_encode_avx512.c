/*
 * The rotation and the codes of keys with AVX-512: sixteen keys in the lanes, so that nothing is
 * shuffled but the way in and out. Shapes and mathematics: sketch.h. Bytes moved for a block of 64
 * keys: their K once, the block's planes once; a round of the rotation passes twice over 16 P f32.
 */
#include "attn-node/kernels/lanes_avx512.h"

#include <math.h>
#include <string.h>

#include "attn-node/kernels/sketch_tables.h"

#define LANES 16u

/* Butterflies over R = 2^n vectors that are `stride` vectors apart, from x on. */
PP_INLINE void butterflies(const uint32_t R, float *x, uint32_t stride, const uint32_t *flips,
                           float size)
{
    __m512 v[16];
    PP_UNROLL for (uint32_t i = 0; i < R; ++i)
    {
        v[i] = _mm512_load_ps(x + i * stride * LANES);
        if (flips != NULL) {
            __m512i flip = _mm512_set1_epi32((int)flips[i]);
            v[i] = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v[i]), flip));
        }
    }
    PP_UNROLL for (uint32_t half = 1; half < R; half *= 2)
    {
        PP_UNROLL for (uint32_t i = 0; i < R; ++i)
        {
            if ((i & half) == 0) {
                __m512 a = v[i];
                v[i] = _mm512_add_ps(a, v[i + half]);
                v[i + half] = _mm512_sub_ps(a, v[i + half]);
            }
        }
    }
    PP_UNROLL for (uint32_t i = 0; i < R; ++i)
    {
        v[i] = size != 0.0f ? _mm512_mul_ps(v[i], _mm512_set1_ps(size)) : v[i];
        _mm512_store_ps(x + i * stride * LANES, v[i]);
    }
}

void an_sketch_rotate_avx512(const struct an_sketch_signs *signs, uint32_t padded, float *x)
{
    float size = 1.0f / ((float)padded * sqrtf((float)padded));
    for (uint32_t round = 0; round < 3; ++round) {
        for (uint32_t i = 0; i < padded; i += 16) {
            butterflies(16, x + i * LANES, 1, signs->flips[round] + i, 0.0f);
        }
        for (uint32_t i = 0; i < 16; ++i) {
            if (padded == 64) {
                butterflies(4, x + i * LANES, 16, NULL, round == 2 ? size : 0.0f);
            } else if (padded == 128) {
                butterflies(8, x + i * LANES, 16, NULL, round == 2 ? size : 0.0f);
            } else {
                butterflies(16, x + i * LANES, 16, NULL, round == 2 ? size : 0.0f);
            }
        }
    }
}

/* Lane j of v[i] and lane i of v[j] change places. */
PP_INLINE void transpose(__m512 *v)
{
    __m512 t[16];
    PP_UNROLL for (uint32_t i = 0; i < 16; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    PP_UNROLL for (uint32_t i = 0; i < 16; i += 4)
    {
        __m512d a = _mm512_castps_pd(t[i]);
        __m512d b = _mm512_castps_pd(t[i + 1]);
        __m512d c = _mm512_castps_pd(t[i + 2]);
        __m512d d = _mm512_castps_pd(t[i + 3]);
        v[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        v[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        v[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        v[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    PP_UNROLL for (uint32_t i = 0; i < 4; ++i)
    {
        t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
    }
    PP_UNROLL for (uint32_t i = 0; i < 4; ++i)
    {
        v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        v[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        v[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* The dims [d, d + 16) of dim that `lanes` names, as f32. */
PP_INLINE __m512 load_dims(enum pp_dtype dtype, const uint8_t *row, uint32_t dim, uint32_t d,
                           __mmask16 lanes)
{
    if (dtype == PP_I8) {
        __m512i whole = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(lanes, row + d));
        __m512 scale = _mm512_broadcastss_ps(_mm_castsi128_ps(_mm_loadu_si32(row + dim)));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale);
    }
    if (dtype == PP_BF16) {
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, row + 2 * d));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
    if (dtype == PP_F16) {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, row + 2 * d));
    }
    return _mm512_maskz_loadu_ps(lanes, row + 4 * d);
}

/* x = (k - c) / a of 16 keys into lanes; the last key again where there are fewer. */
PP_INLINE void load_keys(enum pp_dtype dtype, const struct an_sketch_encoder *encoder,
                         const struct an_rows *rows, uint32_t begin, uint32_t count, float *x)
{
    const struct an_sketch_shape *shape = &encoder->shape;
    for (uint32_t d = 0; d < shape->padded; d += 16) {
        uint32_t left = shape->dim > d ? shape->dim - d : 0;
        __mmask16 lanes = left < 16 ? (__mmask16)((1u << left) - 1u) : (__mmask16)0xffff;
        if (left == 0) {
            memset(x + d * LANES, 0, 16 * LANES * sizeof(*x));
            continue;
        }
        __m512 v[16];
        __m512 centre = _mm512_maskz_loadu_ps(lanes, encoder->centre + d);
        PP_UNROLL for (uint32_t i = 0; i < 16; ++i)
        {
            uint64_t key = begin + (i < count ? i : count - 1);
            v[i] = load_dims(dtype, rows->base + key * rows->row_bytes, shape->dim, d, lanes);
            v[i] = _mm512_sub_ps(v[i], centre);
        }
        if (encoder->balance_inverse != NULL) {
            __m512 balance = _mm512_maskz_loadu_ps(lanes, encoder->balance_inverse + d);
            PP_UNROLL for (uint32_t i = 0; i < 16; ++i)
            {
                v[i] = _mm512_mul_ps(v[i], balance);
            }
        }
        transpose(v);
        PP_UNROLL for (uint32_t i = 0; i < 16; ++i)
        {
            _mm512_store_ps(x + (d + i) * LANES, v[i]);
        }
    }
}

/* Codes of 16 keys: plane j of key i to planes[j * 64 + i]; their factors. */
PP_INLINE __m512 quantise(const uint32_t bits, const struct an_sketch_shape *shape, const float *y,
                          uint8_t *planes)
{
    __m512 square = _mm512_setzero_ps();
    for (uint32_t i = 0; i < shape->padded; ++i) {
        __m512 value = _mm512_load_ps(y + i * LANES);
        square = _mm512_fmadd_ps(value, value, square);
    }
    __m512 sigma = _mm512_sqrt_ps(_mm512_div_ps(square, _mm512_set1_ps((float)shape->padded)));
    __mmask16 some = _mm512_cmp_ps_mask(sigma, _mm512_setzero_ps(), _CMP_GT_OQ);
    __m512 step = _mm512_mul_ps(_mm512_set1_ps(bits == 4 ? 0.335f : 0.996f), sigma);
    __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), step);
    const int top = 1 << bits >> 1;
    const __m512 half = _mm512_set1_ps(0.5f);
    __m512 dot = _mm512_setzero_ps();
    for (uint32_t j = 0; j < shape->planes; ++j) {
        __m512i byte = _mm512_setzero_si512();
        PP_UNROLL for (uint32_t i = 0; i < 8 / bits; ++i)
        {
            __m512 value = _mm512_load_ps(y + (j * (8 / bits) + i) * LANES);
            __m512i code;
            if (bits == 1) {
                __mmask16 plus = _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_GT_OQ);
                code = _mm512_maskz_set1_epi32((__mmask16)~plus, -1);
            } else {
                code = _mm512_cvt_roundps_epi32(_mm512_mul_ps(value, inverse),
                                                _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
                code = _mm512_min_epi32(code, _mm512_set1_epi32(top - 1));
                code = _mm512_max_epi32(code, _mm512_set1_epi32(-top));
            }
            __m512 level = _mm512_add_ps(_mm512_cvtepi32_ps(code), half);
            dot = _mm512_fmadd_ps(level, value, dot);
            code = _mm512_add_epi32(code, _mm512_set1_epi32(top));
            byte = _mm512_or_si512(byte, _mm512_slli_epi32(code, i * bits));
        }
        _mm_store_si128((__m128i *)(void *)(planes + j * 64), _mm512_cvtepi32_epi8(byte));
    }
    __m512 factor = _mm512_div_ps(square, dot);
    return _mm512_mask_mov_ps(_mm512_set1_ps(NAN), some, factor);
}

void an_sketch_encode_avx512(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                             uint32_t begin, uint32_t count, uint8_t *block, float *factors_out)
{
    _Alignas(64) float x[PP_HEAD_DIM_MAX * LANES];
    _Alignas(64) uint8_t planes[PP_HEAD_DIM_MAX / 2 * 64];
    const struct an_sketch_shape *shape = &encoder->shape;
    for (uint32_t first = 0; first < 64; first += LANES) {
        uint32_t keys = count <= first ? 0 : count - first < LANES ? count - first : LANES;
        if (keys == 0) {
            for (uint32_t j = 0; j < shape->planes; ++j) {
                memset(planes + j * 64 + first, 0, LANES);
            }
            memset(factors_out + first, 0, LANES * sizeof(*factors_out));
            continue;
        }
        if (rows->dtype == PP_BF16) {
            load_keys(PP_BF16, encoder, rows, begin + first, keys, x);
        } else if (rows->dtype == PP_F16) {
            load_keys(PP_F16, encoder, rows, begin + first, keys, x);
        } else if (rows->dtype == PP_I8) {
            load_keys(PP_I8, encoder, rows, begin + first, keys, x);
        } else {
            load_keys(PP_F32, encoder, rows, begin + first, keys, x);
        }
        an_sketch_rotate_avx512(encoder->signs, shape->padded, x);
        __m512 factors = shape->bits == 1   ? quantise(1, shape, x, planes + first)
                         : shape->bits == 2 ? quantise(2, shape, x, planes + first)
                                            : quantise(4, shape, x, planes + first);
        factors = _mm512_maskz_mov_ps((__mmask16)((1u << keys) - 1u), factors);
        _mm512_storeu_ps(factors_out + first, factors);
    }
    for (uint32_t j = 0; j < shape->planes; ++j) {
        const __m256i *natural = (const __m256i *)(const void *)(planes + j * 64);
        __m512i even = _mm512_cvtepu8_epi16(_mm256_load_si256(natural));
        __m512i odd = _mm512_cvtepu8_epi16(_mm256_load_si256(natural + 1));
        _mm512_store_si512(block + j * 64, _mm512_or_si512(even, _mm512_slli_epi16(odd, 8)));
    }
}
