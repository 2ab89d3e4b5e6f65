/*
 * The hash law by hand for AVX-512 (F, BW, CD): 32 vectors as 32 lanes of int16, the shared
 * rotations as two halves of 16 lanes of int32. A transform of P = A * B rows is A rows at a stride
 * of B in registers, then B neighbours: 64 = 8 * 8, 128 = 16 * 8, 256 = 16 * 16. Signs of the hash
 * blocks cost nothing: X and -X both lie in L1 and the sign picks the row. A bit leaves the
 * registers as a mask of 32 lanes (4 bytes); codes are then built a table at a time and written
 * once. Bytes a call at P = 128, K*L = 1500: 16 KB of X and -X, 8 KB of block, 6 KB of masks.
 */
#include <immintrin.h>

#include "common/attn/hash_lanes.h"
#include "common/base/inline.h"

#define HALF_LANES 16u
#define RADIX_MAX  16u

/* One level of butterflies over n vectors in registers. */
PP_INLINE void level16(__m512i *v, uint32_t n, uint32_t half)
{
    PP_UNROLL
    for (uint32_t i = 0; i < n / 2; ++i) {
        uint32_t upper = i / half * 2 * half + i % half;
        __m512i a = v[upper];
        __m512i b = v[upper + half];
        v[upper] = _mm512_add_epi16(a, b);
        v[upper + half] = _mm512_sub_epi16(a, b);
    }
}

PP_INLINE void level32(__m512i *v, uint32_t n, uint32_t half)
{
    PP_UNROLL
    for (uint32_t i = 0; i < n / 2; ++i) {
        uint32_t upper = i / half * 2 * half + i % half;
        __m512i a = v[upper];
        __m512i b = v[upper + half];
        v[upper] = _mm512_add_epi32(a, b);
        v[upper + half] = _mm512_sub_epi32(a, b);
    }
}

PP_INLINE void transform16(__m512i *v, uint32_t n)
{
    level16(v, n, 1);
    level16(v, n, 2);
    level16(v, n, 4);
    if (n == 16) {
        level16(v, n, 8);
    }
}

PP_INLINE void transform32(__m512i *v, uint32_t n)
{
    level32(v, n, 1);
    level32(v, n, 2);
    level32(v, n, 4);
    if (n == 16) {
        level32(v, n, 8);
    }
}

/* One shared rotation of 16 lanes: x [a * b][2] vectors, every other of them, in place. */
PP_INLINE void rotate(__m512i *x, const int32_t *masks, uint32_t a, uint32_t b)
{
    __m512i v[RADIX_MAX];
    for (uint32_t column = 0; column < b; ++column) {
        PP_UNROLL
        for (uint32_t i = 0; i < a; ++i) {
            __m512i mask = _mm512_set1_epi32(masks[column + i * b]);
            __m512i value = _mm512_load_si512(x + 2 * (column + i * b));
            v[i] = _mm512_sub_epi32(_mm512_xor_si512(value, mask), mask);
        }
        transform32(v, a);
        PP_UNROLL
        for (uint32_t i = 0; i < a; ++i) {
            _mm512_store_si512(x + 2 * (column + i * b), v[i]);
        }
    }
    for (uint32_t group = 0; group < a; ++group) {
        PP_UNROLL
        for (uint32_t i = 0; i < b; ++i) {
            v[i] = _mm512_load_si512(x + 2 * (group * b + i));
        }
        transform32(v, b);
        PP_UNROLL
        for (uint32_t i = 0; i < b; ++i) {
            _mm512_store_si512(x + 2 * (group * b + i), v[i]);
        }
    }
}

/* X = rint(x 2^e) of 16 lanes, e from the largest magnitude; x and wide [size][2] vectors. */
static void quantise(const float *x, uint32_t size, __m512i *wide)
{
    __m512 largest = _mm512_setzero_ps();
    for (uint32_t i = 0; i < size; ++i) {
        largest = _mm512_max_ps(largest, _mm512_abs_ps(_mm512_load_ps(x + i * PP_HASH_LANES)));
    }
    /* largest = m 2^t, 1 <= m < 2: e = 14 - t, or one less where m 2^14 is above 32767. */
    __mmask16 positive = _mm512_cmp_ps_mask(largest, _mm512_setzero_ps(), _CMP_GT_OQ);
    __m512 exponent =
        _mm512_sub_ps(_mm512_set1_ps(14.0f), _mm512_maskz_getexp_ps(positive, largest));
    __m512 fraction =
        _mm512_maskz_getmant_ps(positive, largest, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    __mmask16 above = _mm512_cmp_ps_mask(_mm512_mul_ps(fraction, _mm512_set1_ps(16384.0f)),
                                         _mm512_set1_ps(32767.0f), _CMP_GT_OQ);
    exponent = _mm512_mask_sub_ps(exponent, above, exponent, _mm512_set1_ps(1.0f));
    for (uint32_t i = 0; i < size; ++i) {
        __m512 scaled = _mm512_scalef_ps(_mm512_load_ps(x + i * PP_HASH_LANES), exponent);
        _mm512_store_si512(wide + 2 * i, _mm512_cvtps_epi32(scaled));
    }
}

/* The least g of 8 lanes with sum >> g at most 32767 - size. */
PP_INLINE __m512i least_shift(__m512i sum, uint32_t size)
{
    __m512i shift = _mm512_sub_epi64(_mm512_set1_epi64(64 - 15), _mm512_lzcnt_epi64(sum));
    shift = _mm512_max_epi64(shift, _mm512_setzero_si512());
    __mmask8 above = _mm512_cmpgt_epi64_mask(_mm512_srlv_epi64(sum, shift),
                                             _mm512_set1_epi64(32767 - (int64_t)size));
    return _mm512_mask_add_epi64(shift, above, shift, _mm512_set1_epi64(1));
}

/* g of 16 lanes from the sum of their magnitudes. Two magnitudes fit 32 bits: the norm of X grows
 * by sqrt(size) a rotation, and 32767 * 16 * 16^3 < 2^31. */
static __m512i shifts_of(const __m512i *wide, uint32_t size)
{
    __m512i even = _mm512_setzero_si512();
    __m512i odd = _mm512_setzero_si512();
    for (uint32_t i = 0; i < size; i += 2) {
        __m512i pair = _mm512_add_epi32(_mm512_abs_epi32(_mm512_load_si512(wide + 2 * i)),
                                        _mm512_abs_epi32(_mm512_load_si512(wide + 2 * i + 2)));
        even = _mm512_add_epi64(even, _mm512_and_si512(pair, _mm512_set1_epi64(0xffffffff)));
        odd = _mm512_add_epi64(odd, _mm512_srli_epi64(pair, 32));
    }
    __m512i low = least_shift(even, size);
    __m512i high = least_shift(odd, size);
    return _mm512_or_si512(low, _mm512_slli_epi64(high, 32));
}

/* (X + 2^(g-1)) >> g without a carry out of 32 bits: (X >> (g-1)) + 1 >> 1, and X where g = 0. */
struct rounding {
    __m512i first, second;
};

PP_INLINE struct rounding rounding_of(__m512i shift)
{
    struct rounding rounding;
    rounding.second = _mm512_min_epi32(shift, _mm512_set1_epi32(1));
    rounding.first = _mm512_sub_epi32(shift, rounding.second);
    return rounding;
}

PP_INLINE __m256i narrowed(__m512i x, struct rounding rounding)
{
    __m512i sum = _mm512_add_epi32(_mm512_srav_epi32(x, rounding.first), rounding.second);
    return _mm512_cvtepi32_epi16(_mm512_srav_epi32(sum, rounding.second));
}

/* x [size][32] f32 to signed_x [size][2][32] int16: X, then -X. */
PP_INLINE void share(const struct pp_hash *hash, const float *x, __m512i *signed_x, uint32_t a,
                     uint32_t b)
{
    __m512i wide[PP_HASH_SIZE_MAX * 2];
    struct rounding rounding[2];
    for (uint32_t half = 0; half < 2; ++half) {
        quantise(x + half * HALF_LANES, a * b, wide + half);
        for (uint32_t round = 0; round < PP_HASH_SHARED; ++round) {
            rotate(wide + half, hash->shared_masks[round], a, b);
        }
        rounding[half] = rounding_of(shifts_of(wide + half, a * b));
    }
    for (uint32_t i = 0; i < a * b; ++i) {
        __m256i low = narrowed(wide[2 * i], rounding[0]);
        __m256i high = narrowed(wide[2 * i + 1], rounding[1]);
        __m512i value = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
        signed_x[2 * i] = value;
        signed_x[2 * i + 1] = _mm512_sub_epi16(_mm512_setzero_si512(), value);
    }
}

/* One hash block: rows [a * b] say which of signed_x; bits [a * b] get lane masks of y > 0. */
PP_INLINE void hash_block(const __m512i *signed_x, const uint16_t *rows, uint32_t a, uint32_t b,
                          uint32_t *bits)
{
    __m512i block[PP_HASH_SIZE_MAX];
    __m512i v[RADIX_MAX];
    for (uint32_t column = 0; column < b; ++column) {
        PP_UNROLL
        for (uint32_t i = 0; i < a; ++i) {
            v[i] = _mm512_load_si512(signed_x + rows[column + i * b]);
        }
        transform16(v, a);
        PP_UNROLL
        for (uint32_t i = 0; i < a; ++i) {
            _mm512_store_si512(block + column + i * b, v[i]);
        }
    }
    for (uint32_t group = 0; group < a; ++group) {
        PP_UNROLL
        for (uint32_t i = 0; i < b; ++i) {
            v[i] = _mm512_load_si512(block + group * b + i);
        }
        transform16(v, b);
        PP_UNROLL
        for (uint32_t i = 0; i < b; ++i) {
            bits[group * b + i] = _mm512_cmpgt_epi16_mask(v[i], _mm512_setzero_si512());
        }
    }
}

static void write_codes(const struct pp_hash *hash, const uint32_t *bits, uint16_t *codes,
                        uint64_t stride)
{
    __m512i powers[PP_LSH_K_MAX];
    for (uint32_t j = 0; j < hash->k; ++j) {
        powers[j] = _mm512_set1_epi16((int16_t)(1u << j));
    }
    const uint16_t *source = hash->source;
    for (uint32_t t = 0; t < hash->l; ++t, source += hash->k) {
        __m512i code = _mm512_setzero_si512();
        for (uint32_t j = 0; j < hash->k; ++j) {
            code = _mm512_mask_add_epi16(code, bits[source[j]], code, powers[j]);
        }
        if (stride > PP_HASH_LANES) {
            _mm512_stream_si512((__m512i *)(void *)(codes + t * stride), code);
        } else {
            _mm512_store_si512(codes + t * stride, code);
        }
    }
}

PP_INLINE void signatures(const struct pp_hash *hash, const float *x, uint16_t *codes,
                          uint64_t stride, uint32_t a, uint32_t b)
{
    __m512i signed_x[PP_HASH_SIZE_MAX * 2];
    uint32_t bits[PP_HASH_BITS_MAX];
    share(hash, x, signed_x, a, b);
    for (uint32_t r = 0; r < hash->block_count; ++r) {
        hash_block(signed_x, hash->signed_rows + r * a * b, a, b, bits + r * a * b);
    }
    write_codes(hash, bits, codes, stride);
}

static void lanes(const struct pp_hash *hash, const float *x, uint16_t *codes, uint64_t stride)
{
    switch (hash->size) {
    case 64:
        signatures(hash, x, codes, stride, 8, 8);
        break;
    case 128:
        signatures(hash, x, codes, stride, 16, 8);
        break;
    default:
        signatures(hash, x, codes, stride, 16, 16);
    }
}

/* Dimensions d.. of a row of dim as f32, those outside the mask zero. */
PP_INLINE __m512 load_row(const uint8_t *row, enum pp_dtype dtype, uint32_t dim, uint32_t d,
                          __mmask16 mask)
{
    if (dtype == PP_I8) {
        __m512i whole = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, row + d));
        __m512 scale = _mm512_broadcastss_ps(_mm_castsi128_ps(_mm_loadu_si32(row + dim)));
        return _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale);
    }
    if (dtype == PP_F32) {
        return _mm512_maskz_loadu_ps(mask, row + d * sizeof(float));
    }
    __m256i half = _mm256_maskz_loadu_epi16(mask, row + d * sizeof(uint16_t));
    if (dtype == PP_F16) {
        return _mm512_cvtph_ps(half);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* v[i] lane j <-> v[j] lane i: blocks of 4 by unpacking, then the blocks. */
PP_INLINE void transpose(__m512 *v)
{
    __m512 t[16];
    PP_UNROLL
    for (uint32_t i = 0; i < 16; i += 4) {
        __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(v[i], v[i + 1]));
        __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(v[i], v[i + 1]));
        __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(v[i + 2], v[i + 3]));
        __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(v[i + 2], v[i + 3]));
        t[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(low01, low23));
        t[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low01, low23));
        t[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(high01, high23));
        t[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(high01, high23));
    }
    PP_UNROLL
    for (uint32_t i = 0; i < 4; ++i) {
        __m512 even03 = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        __m512 odd03 = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        __m512 even47 = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        __m512 odd47 = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(even03, even47, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(even03, even47, 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(odd03, odd47, 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(odd03, odd47, 0xdd);
    }
}

/* Up to 16 rows into 16 lanes of x. */
PP_INLINE void fill_half(const struct pp_hash *hash, const uint8_t *rows, uint64_t row_bytes,
                         enum pp_dtype dtype, const float *centre, uint32_t count, float *x)
{
    for (uint32_t d = 0; d < hash->size; d += 16) {
        uint32_t left = d < hash->dim ? hash->dim - d : 0;
        __mmask16 mask = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        __m512 middle =
            centre == NULL ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, centre + d);
        __m512 v[16];
        PP_UNROLL
        for (uint32_t i = 0; i < 16; ++i) {
            v[i] = _mm512_setzero_ps();
            if (i < count && mask != 0) {
                __m512 row = load_row(rows + i * row_bytes, dtype, hash->dim, d, mask);
                v[i] = _mm512_sub_ps(row, middle);
            }
        }
        transpose(v);
        PP_UNROLL
        for (uint32_t i = 0; i < 16; ++i) {
            _mm512_store_ps(x + (d + i) * PP_HASH_LANES, v[i]);
        }
    }
}

PP_INLINE void fill_typed(const struct pp_hash *hash, const uint8_t *rows, uint64_t row_bytes,
                          enum pp_dtype dtype, const float *centre, uint32_t count, float *x)
{
    uint32_t first = count < HALF_LANES ? count : HALF_LANES;
    fill_half(hash, rows, row_bytes, dtype, centre, first, x);
    fill_half(hash, rows + first * row_bytes, row_bytes, dtype, centre, count - first,
              x + HALF_LANES);
}

static void fill(const struct pp_hash *hash, const void *rows, uint64_t row_bytes,
                 enum pp_dtype dtype, const float *centre, uint32_t lane_count, float *x)
{
    uint64_t key_bytes = pp_vector_bytes(hash->dim, dtype);
    const uint8_t *next = (const uint8_t *)rows + PP_HASH_LANES * row_bytes;
    for (uint32_t i = 0; i < lane_count && lane_count == PP_HASH_LANES; ++i) {
        for (uint64_t byte = 0; byte < key_bytes; byte += 64) {
            _mm_prefetch((const char *)next + i * row_bytes + byte, _MM_HINT_T1);
        }
    }
    switch (dtype) {
    case PP_F32:
        fill_typed(hash, rows, row_bytes, PP_F32, centre, lane_count, x);
        break;
    case PP_I8:
        fill_typed(hash, rows, row_bytes, PP_I8, centre, lane_count, x);
        break;
    case PP_F16:
        fill_typed(hash, rows, row_bytes, PP_F16, centre, lane_count, x);
        break;
    default:
        fill_typed(hash, rows, row_bytes, PP_BF16, centre, lane_count, x);
    }
}

const struct pp_hash_kernels pp_hash_avx512 = {.fill = fill, .lanes = lanes};
