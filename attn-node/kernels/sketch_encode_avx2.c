/*
 * The rotation and the codes of keys with AVX2: eight keys in the lanes, so that nothing is
 * shuffled but the way in and out. Shapes and mathematics: sketch.h. Bytes moved for a block of 64
 * keys: their K once, the block's planes once; a round of the rotation passes two or three times
 * over 16 P f32.
 */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "attn-node/kernels/sketch_tables.h"
#include "common/base/inline.h"

#define LANES 16u /* of the rotation; a register holds half */

/* Butterflies over R = 2^n vectors that are `stride` vectors apart, from x on. */
PP_INLINE void butterflies(const uint32_t R, float *x, uint32_t stride, const uint32_t *flips,
                           float size)
{
    __m256 v[8];
    PP_UNROLL for (uint32_t i = 0; i < R; ++i)
    {
        v[i] = _mm256_load_ps(x + i * stride * LANES);
        if (flips != NULL) {
            v[i] = _mm256_xor_ps(v[i], _mm256_castsi256_ps(_mm256_set1_epi32((int)flips[i])));
        }
    }
    PP_UNROLL for (uint32_t half = 1; half < R; half *= 2)
    {
        PP_UNROLL for (uint32_t i = 0; i < R; ++i)
        {
            if ((i & half) == 0) {
                __m256 a = v[i];
                v[i] = _mm256_add_ps(a, v[i + half]);
                v[i + half] = _mm256_sub_ps(a, v[i + half]);
            }
        }
    }
    PP_UNROLL for (uint32_t i = 0; i < R; ++i)
    {
        v[i] = size != 0.0f ? _mm256_mul_ps(v[i], _mm256_set1_ps(size)) : v[i];
        _mm256_store_ps(x + i * stride * LANES, v[i]);
    }
}

/* Butterflies over all vectors, R of them `stride` apart at a time. */
PP_INLINE void pass(const uint32_t R, float *x, uint32_t padded, uint32_t stride, float size)
{
    for (uint32_t i = 0; i < padded; i += R * stride) {
        for (uint32_t j = 0; j < stride; ++j) {
            butterflies(R, x + (i + j) * LANES, stride, NULL, size);
        }
    }
}

static void rotate_half(const struct an_sketch_signs *signs, uint32_t padded, float *x)
{
    float last = 1.0f / ((float)padded * sqrtf((float)padded));
    for (uint32_t round = 0; round < 3; ++round) {
        float size = round == 2 ? last : 0.0f;
        for (uint32_t i = 0; i < padded; i += 8) {
            butterflies(8, x + i * LANES, 1, signs->flips[round] + i, 0.0f);
        }
        if (padded == 64) {
            pass(8, x, padded, 8, size);
        } else if (padded == 128) {
            pass(4, x, padded, 8, 0.0f);
            pass(4, x, padded, 32, size);
        } else {
            pass(8, x, padded, 8, 0.0f);
            pass(4, x, padded, 64, size);
        }
    }
}

void an_sketch_rotate_avx2(const struct an_sketch_signs *signs, uint32_t padded, float *x)
{
    rotate_half(signs, padded, x);
    rotate_half(signs, padded, x + LANES / 2);
}

/* Lane j of v[i] and lane i of v[j] change places. */
PP_INLINE void transpose(__m256 *v)
{
    __m256 t[8];
    PP_UNROLL for (uint32_t i = 0; i < 8; i += 2)
    {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    PP_UNROLL for (uint32_t i = 0; i < 8; i += 4)
    {
        v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    PP_UNROLL for (uint32_t i = 0; i < 4; ++i)
    {
        t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
    {
        v[i] = t[i];
    }
}

/* Eight elements of a vector, of int8 without the scale. */
PP_INLINE __m256 load_eight(enum pp_dtype dtype, const uint8_t *at)
{
    if (dtype == PP_I8) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si64(at)));
    }
    if (dtype == PP_F32) {
        return _mm256_loadu_ps((const float *)(const void *)at);
    }
    __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)at);
    if (dtype == PP_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/* The dims [d, d + 8) of dim as f32, zeros behind the last. */
PP_INLINE __m256 load_dims(enum pp_dtype dtype, const uint8_t *row, uint32_t dim, uint32_t d)
{
    uint32_t element_bytes = dtype == PP_F32 ? 4 : dtype == PP_I8 ? 1 : 2;
    const uint8_t *at = row + (uint64_t)d * element_bytes;
    uint8_t rest[32] = {0};
    if (d + 8 > dim) {
        memcpy(rest, at, (uint64_t)(dim - d) * element_bytes);
        at = rest;
    }
    __m256 values = load_eight(dtype, at);
    if (dtype == PP_I8) {
        float scale;
        memcpy(&scale, row + dim, sizeof(scale));
        values = _mm256_mul_ps(values, _mm256_set1_ps(scale));
    }
    return values;
}

/* x = (k - c) / a of 8 keys into lanes; the last key again where there are fewer. */
PP_INLINE void load_keys(enum pp_dtype dtype, const struct an_sketch_encoder *encoder,
                         const struct an_rows *rows, uint32_t begin, uint32_t count, float *x)
{
    const struct an_sketch_shape *shape = &encoder->shape;
    for (uint32_t d = 0; d < shape->padded; d += 8) {
        __m256 v[8];
        PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
        {
            v[i] = _mm256_setzero_ps();
        }
        if (d < shape->dim) {
            float rest[8];
            uint32_t left = shape->dim - d < 8 ? shape->dim - d : 8;
            for (uint32_t i = 0; i < 8; ++i) {
                rest[i] = i < left ? encoder->centre[d + i] : 0.0f;
            }
            __m256 centre = _mm256_loadu_ps(rest);
            for (uint32_t i = 0; i < left && encoder->balance_inverse != NULL; ++i) {
                rest[i] = encoder->balance_inverse[d + i];
            }
            __m256 balance =
                encoder->balance_inverse != NULL ? _mm256_loadu_ps(rest) : _mm256_set1_ps(1.0f);
            PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
            {
                uint64_t key = begin + (i < count ? i : count - 1);
                v[i] = load_dims(dtype, rows->base + key * rows->row_bytes, shape->dim, d);
                v[i] = _mm256_mul_ps(_mm256_sub_ps(v[i], centre), balance);
            }
            transpose(v);
        }
        PP_UNROLL for (uint32_t i = 0; i < 8; ++i)
        {
            _mm256_store_ps(x + (d + i) * LANES, v[i]);
        }
    }
}

/* Codes of 8 keys: plane j of key i to planes[j * 64 + i]; their factors. */
PP_INLINE __m256 quantise(const uint32_t bits, const struct an_sketch_shape *shape, const float *y,
                          uint8_t *planes)
{
    __m256 square = _mm256_setzero_ps();
    for (uint32_t i = 0; i < shape->padded; ++i) {
        __m256 value = _mm256_load_ps(y + i * LANES);
        square = _mm256_fmadd_ps(value, value, square);
    }
    __m256 sigma = _mm256_sqrt_ps(_mm256_div_ps(square, _mm256_set1_ps((float)shape->padded)));
    __m256 some = _mm256_cmp_ps(sigma, _mm256_setzero_ps(), _CMP_GT_OQ);
    __m256 step = _mm256_mul_ps(_mm256_set1_ps(bits == 4 ? 0.335f : 0.996f), sigma);
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(1.0f), step);
    const int top = 1 << bits >> 1;
    const __m256 half = _mm256_set1_ps(0.5f);
    __m256 dot = _mm256_setzero_ps();
    for (uint32_t j = 0; j < shape->planes; ++j) {
        __m256i byte = _mm256_setzero_si256();
        PP_UNROLL for (uint32_t i = 0; i < 8 / bits; ++i)
        {
            __m256 value = _mm256_load_ps(y + (j * (8 / bits) + i) * LANES);
            __m256i code;
            if (bits == 1) {
                code = _mm256_castps_si256(
                    _mm256_cmp_ps(value, _mm256_setzero_ps(), _CMP_NGT_UQ)); /* -1 or 0 */
            } else {
                code = _mm256_cvtps_epi32(_mm256_floor_ps(_mm256_mul_ps(value, inverse)));
                code = _mm256_min_epi32(code, _mm256_set1_epi32(top - 1));
                code = _mm256_max_epi32(code, _mm256_set1_epi32(-top));
            }
            dot = _mm256_fmadd_ps(_mm256_add_ps(_mm256_cvtepi32_ps(code), half), value, dot);
            code = _mm256_add_epi32(code, _mm256_set1_epi32(top));
            byte = _mm256_or_si256(byte, _mm256_slli_epi32(code, i * bits));
        }
        __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(byte), _mm256_extracti128_si256(byte, 1));
        _mm_storel_epi64((__m128i *)(void *)(planes + j * 64), _mm_packus_epi16(words, words));
    }
    return _mm256_blendv_ps(_mm256_set1_ps(NAN), _mm256_div_ps(square, dot), some);
}

/* The codes and factors of up to eight keys from `begin` on. */
static void encode_eight(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                         uint32_t begin, uint32_t count, uint8_t *planes, float *factors_out)
{
    _Alignas(64) float x[PP_HEAD_DIM_MAX * LANES];
    const struct an_sketch_shape *shape = &encoder->shape;
    if (rows->dtype == PP_BF16) {
        load_keys(PP_BF16, encoder, rows, begin, count, x);
    } else if (rows->dtype == PP_F16) {
        load_keys(PP_F16, encoder, rows, begin, count, x);
    } else if (rows->dtype == PP_I8) {
        load_keys(PP_I8, encoder, rows, begin, count, x);
    } else {
        load_keys(PP_F32, encoder, rows, begin, count, x);
    }
    rotate_half(encoder->signs, shape->padded, x);
    float factors[8];
    _mm256_storeu_ps(factors, shape->bits == 1   ? quantise(1, shape, x, planes)
                              : shape->bits == 2 ? quantise(2, shape, x, planes)
                                                 : quantise(4, shape, x, planes));
    for (uint32_t i = 0; i < 8; ++i) {
        factors_out[i] = i < count ? factors[i] : 0.0f;
    }
}

void an_sketch_encode_avx2(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                           uint32_t begin, uint32_t count, uint8_t *block, float *factors_out)
{
    _Alignas(64) uint8_t planes[PP_HEAD_DIM_MAX / 2 * 64];
    const struct an_sketch_shape *shape = &encoder->shape;
    for (uint32_t first = 0; first < 64; first += 8) {
        uint32_t keys = count <= first ? 0 : count - first < 8 ? count - first : 8;
        if (keys > 0) {
            encode_eight(encoder, rows, begin + first, keys, planes + first, factors_out + first);
            continue;
        }
        for (uint32_t j = 0; j < shape->planes; ++j) {
            memset(planes + j * 64 + first, 0, 8);
        }
        memset(factors_out + first, 0, 8 * sizeof(*factors_out));
    }
    for (uint32_t j = 0; j < shape->planes * 64; j += 64) {
        for (uint32_t i = 0; i < 32; i += 16) {
            const __m128i *natural = (const __m128i *)(const void *)(planes + j + i);
            __m128i *out = (__m128i *)(void *)(block + j + 2 * i);
            _mm_store_si128(out, _mm_unpacklo_epi8(natural[0], natural[2]));
            _mm_store_si128(out + 1, _mm_unpackhi_epi8(natural[0], natural[2]));
        }
    }
}
