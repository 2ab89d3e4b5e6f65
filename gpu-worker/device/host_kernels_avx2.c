/*
 * The host device's inner loops for AVX2, FMA and F16C. Weights are widened in registers, eight at
 * a time; multiply keeps 4 x 24 or 4 x 16 sums in registers, bound by two fma a cycle. What is left
 * over behind whole vectors goes through masks, never past the end of an array. Layouts and
 * formulas: device.h, host_kernels.h. It refuses to know threads.
 */
#include "gpu-worker/device/host_kernels.h"

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/inline.h"

#define AVX2_LANES 8u

/* All bits in the first `count` lanes. */
static inline __m256i avx2_mask(uint32_t count)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count > 8 ? 8 : (int32_t)count), lanes);
}

/* The first `count` values from `from`, the rest 0. */
static inline __m256 avx2_load(const float *from, uint32_t count)
{
    return count >= AVX2_LANES ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, avx2_mask(count));
}

static inline void avx2_store(float *to, uint32_t count, __m256 values)
{
    if (count >= AVX2_LANES) {
        _mm256_storeu_ps(to, values);
    } else {
        _mm256_maskstore_ps(to, avx2_mask(count), values);
    }
}

static inline float avx2_sum(__m256 values)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline float avx2_max(__m256 values)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Up to 8 values from `at` of an unquantised row, those beyond `count` 0. */
static inline __m256 avx2_plain(enum gw_weight_type type, const uint8_t *row, uint32_t at,
                                uint32_t count)
{
    if (type == GW_WEIGHT_F32) {
        return avx2_load((const float *)(const void *)(row + 4ull * at), count);
    }
    __m128i halves = _mm_setzero_si128();
    if (count >= AVX2_LANES) {
        halves = _mm_loadu_si128((const __m128i_u *)(row + 2ull * at));
    } else {
        memcpy(&halves, row + 2ull * at, 2ull * count);
    }
    if (type == GW_WEIGHT_F16) {
        return _mm256_cvtph_ps(halves);
    }
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

struct avx2_block {
    __m256 of[4]; /* 32 integers of a block as f32, before the scale */
};

static inline struct avx2_block avx2_nibbles(const uint8_t *bytes)
{
    __m128i both = _mm_loadu_si128((const __m128i_u *)bytes);
    __m128i fifteen = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(both, fifteen);
    __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), fifteen);
    return (struct avx2_block){
        {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(low)),
         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(low, low))),
         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)),
         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_unpackhi_epi64(high, high)))}};
}

static inline struct avx2_block avx2_bytes(const uint8_t *bytes)
{
    struct avx2_block block;
    for (uint32_t i = 0; i < 4; i++) {
        __m128i eight = _mm_loadl_epi64((const __m128i_u *)(bytes + 8 * i));
        block.of[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
    }
    return block;
}

/* {d, m} of a block: the first two halves. */
static inline __m128 avx2_scales(const uint8_t *block)
{
    int32_t both;
    memcpy(&both, block, sizeof(both));
    return _mm_cvtph_ps(_mm_cvtsi32_si128(both));
}

static void avx2_dequantize(enum gw_weight_type type, const void *row, uint32_t count, float *out)
{
    const uint8_t *bytes = row;
    if (type == GW_WEIGHT_F32 || type == GW_WEIGHT_F16 || type == GW_WEIGHT_BF16) {
        for (uint32_t i = 0; i < count; i += AVX2_LANES) {
            avx2_store(out + i, count - i, avx2_plain(type, bytes, i, count - i));
        }
        return;
    }
    uint32_t block_bytes = (uint32_t)gw_matrix_row_bytes(type, 32);
    for (uint32_t i = 0; i < count; i += 32, bytes += block_bytes) {
        __m128 scales = avx2_scales(bytes);
        __m256 d = _mm256_broadcastss_ps(scales);
        __m256 m = _mm256_setzero_ps();
        struct avx2_block block;
        if (type == GW_WEIGHT_Q8_0) {
            block = avx2_bytes(bytes + 2);
        } else if (type == GW_WEIGHT_Q4_1) {
            block = avx2_nibbles(bytes + 4);
            m = _mm256_broadcastss_ps(_mm_movehdup_ps(scales));
        } else {
            block = avx2_nibbles(bytes + 2);
            m = _mm256_mul_ps(d, _mm256_set1_ps(-8.0f));
        }
        for (uint32_t j = 0; j < 4; j++) {
            _mm256_storeu_ps(out + i + 8 * j, _mm256_fmadd_ps(d, block.of[j], m));
        }
    }
}

static inline __m256 avx2_block_dot(struct avx2_block block, const float *x)
{
    __m256 even = _mm256_mul_ps(block.of[0], _mm256_loadu_ps(x));
    __m256 odd = _mm256_mul_ps(block.of[1], _mm256_loadu_ps(x + 8));
    even = _mm256_fmadd_ps(block.of[2], _mm256_loadu_ps(x + 16), even);
    odd = _mm256_fmadd_ps(block.of[3], _mm256_loadu_ps(x + 24), odd);
    return _mm256_add_ps(even, odd);
}

static float avx2_dot_q4(const uint8_t *row, uint32_t count, const float *x, const float *sums,
                         bool has_min)
{
    uint32_t block_bytes = has_min ? 20 : 18;
    uint32_t offset = has_min ? 4 : 2;
    __m256 sum = _mm256_setzero_ps();
    __m128 low = _mm_setzero_ps();
    for (uint32_t i = 0; i < count; i += 32, row += block_bytes) {
        __m128 scales = avx2_scales(row);
        __m256 part = avx2_block_dot(avx2_nibbles(row + offset), x + i);
        sum = _mm256_fmadd_ps(_mm256_broadcastss_ps(scales), part, sum);
        __m128 min = has_min ? _mm_movehdup_ps(scales) : scales;
        low = _mm_fmadd_ss(min, _mm_load_ss(sums + i / 32), low);
    }
    return avx2_sum(sum) + (has_min ? 1.0f : -8.0f) * _mm_cvtss_f32(low);
}

static float avx2_dot(enum gw_weight_type type, const void *row, uint32_t count, const float *x,
                      const float *sums)
{
    const uint8_t *bytes = row;
    if (type == GW_WEIGHT_Q4_1) {
        return avx2_dot_q4(bytes, count, x, sums, true);
    }
    if (type == GW_WEIGHT_Q4_0) {
        return avx2_dot_q4(bytes, count, x, sums, false);
    }
    __m256 sum = _mm256_setzero_ps();
    if (type == GW_WEIGHT_Q8_0) {
        for (uint32_t i = 0; i < count; i += 32, bytes += 34) {
            __m256 part = avx2_block_dot(avx2_bytes(bytes + 2), x + i);
            sum = _mm256_fmadd_ps(_mm256_broadcastss_ps(avx2_scales(bytes)), part, sum);
        }
        return avx2_sum(sum);
    }
    for (uint32_t i = 0; i < count; i += AVX2_LANES) {
        sum = _mm256_fmadd_ps(avx2_plain(type, bytes, i, count - i), avx2_load(x + i, count - i),
                              sum);
    }
    return avx2_sum(sum);
}

/* `rows` (4 or 1) x 3 or 2 vectors of c in registers: both numbers are constants where it is
 * called, so that the loops unroll. */
PP_INLINE void avx2_tile(uint32_t rows, uint32_t vectors, uint32_t depth, const float *a,
                         uint32_t a_stride, const float *b, uint32_t b_stride, int add, float *c,
                         uint32_t c_stride)
{
    __m256 sums[4][3];
    PP_UNROLL
    for (uint32_t row = 0; row < rows; row++) {
        PP_UNROLL
        for (uint32_t i = 0; i < vectors; i++) {
            sums[row][i] =
                add ? _mm256_loadu_ps(c + (uint64_t)row * c_stride + 8 * i) : _mm256_setzero_ps();
        }
    }
    for (uint32_t at = 0; at < depth; at++, b += b_stride) {
        __m256 columns[3];
        PP_UNROLL
        for (uint32_t i = 0; i < vectors; i++) {
            columns[i] = _mm256_loadu_ps(b + 8 * i);
        }
        PP_UNROLL
        for (uint32_t row = 0; row < rows; row++) {
            __m256 factor = _mm256_broadcast_ss(a + (uint64_t)row * a_stride + at);
            PP_UNROLL
            for (uint32_t i = 0; i < vectors; i++) {
                sums[row][i] = _mm256_fmadd_ps(factor, columns[i], sums[row][i]);
            }
        }
    }
    PP_UNROLL
    for (uint32_t row = 0; row < rows; row++) {
        PP_UNROLL
        for (uint32_t i = 0; i < vectors; i++) {
            _mm256_storeu_ps(c + (uint64_t)row * c_stride + 8 * i, sums[row][i]);
        }
    }
}

/* All rows of 8 `vectors` columns. */
PP_INLINE void avx2_columns(uint32_t rows, uint32_t vectors, uint32_t depth, const float *a,
                            uint32_t a_stride, const float *b, uint32_t b_stride, int add, float *c,
                            uint32_t c_stride)
{
    uint32_t row = 0;
    for (; row + 4 <= rows; row += 4) {
        avx2_tile(4, vectors, depth, a + (uint64_t)row * a_stride, a_stride, b, b_stride, add,
                  c + (uint64_t)row * c_stride, c_stride);
    }
    for (; row < rows; row++) {
        avx2_tile(1, vectors, depth, a + (uint64_t)row * a_stride, a_stride, b, b_stride, add,
                  c + (uint64_t)row * c_stride, c_stride);
    }
}

/* Columns are a multiple of 16: 48 at a time as twice 24, then what is left by 16. */
static void avx2_multiply(uint32_t rows, uint32_t columns, uint32_t depth, const float *a,
                          uint32_t a_stride, const float *b, uint32_t b_stride, int add, float *c,
                          uint32_t c_stride)
{
    uint32_t column = 0;
    for (uint32_t end = columns / 48 * 48; column < end; column += 24) {
        avx2_columns(rows, 3, depth, a, a_stride, b + column, b_stride, add, c + column, c_stride);
    }
    for (; column < columns; column += 16) {
        avx2_columns(rows, 2, depth, a, a_stride, b + column, b_stride, add, c + column, c_stride);
    }
}

/* e^x for x <= 0 to about 1 ulp: 2^n times a polynomial of the rest, Cody and Waite's reduction.
 * From -87.3 down, where 2^n leaves the normal numbers, it is 0. */
static inline __m256 avx2_exp(__m256 x)
{
    const __m256 lowest = _mm256_set1_ps(-87.3f);
    __m256 kept = _mm256_cmp_ps(x, lowest, _CMP_GE_OQ);
    x = _mm256_max_ps(x, lowest);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    return _mm256_and_ps(kept, _mm256_mul_ps(p, power));
}

static float avx2_softmax(float *scores, uint32_t visible, float *max, float *sum)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    __m256 top = lowest;
    for (uint32_t i = 0; i < visible; i += AVX2_LANES) {
        __m256 seen = _mm256_castsi256_ps(avx2_mask(visible - i));
        top = _mm256_max_ps(top, _mm256_blendv_ps(lowest, _mm256_loadu_ps(scores + i), seen));
    }
    float before = *max;
    float now = avx2_max(top);
    now = now > before ? now : before;
    if (now == -INFINITY) { /* nothing seen yet */
        memset(scores, 0, GW_HOST_KEY_BLOCK * sizeof(float));
        return 1.0f;
    }
    __m256 added = _mm256_setzero_ps();
    for (uint32_t i = 0; i < GW_HOST_KEY_BLOCK; i += AVX2_LANES) {
        __m256 seen = _mm256_castsi256_ps(avx2_mask(visible > i ? visible - i : 0));
        __m256 e = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(scores + i), _mm256_set1_ps(now)));
        e = _mm256_and_ps(seen, e);
        _mm256_storeu_ps(scores + i, e);
        added = _mm256_add_ps(added, e);
    }
    float factor = now == before ? 1.0f : expf(before - now);
    *max = now;
    *sum = *sum * factor + avx2_sum(added);
    return factor;
}

static void avx2_scale(float *values, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; i += AVX2_LANES) {
        __m256 scaled = _mm256_mul_ps(avx2_load(values + i, count - i), _mm256_set1_ps(factor));
        avx2_store(values + i, count - i, scaled);
    }
}

static void avx2_widen_int8(const uint8_t *row, uint32_t count, float *out)
{
    float scale_of_row;
    memcpy(&scale_of_row, row + count, sizeof(scale_of_row));
    __m256 scale = _mm256_set1_ps(scale_of_row);
    for (uint32_t i = 0; i < count; i += AVX2_LANES) {
        uint32_t left = count - i < AVX2_LANES ? count - i : AVX2_LANES;
        __m128i bytes = _mm_setzero_si128();
        memcpy(&bytes, row + i, left);
        __m256 whole = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        avx2_store(out + i, left, _mm256_mul_ps(whole, scale));
    }
}

static void avx2_widen(enum pp_dtype dtype, const void *row, uint32_t count, float *out)
{
    if (dtype == PP_I8) {
        avx2_widen_int8(row, count, out);
        return;
    }
    avx2_dequantize(gw_weight_type_of(dtype), row, count, out);
}

static void avx2_scores(const float *q, uint32_t dim, const float *keys, uint32_t stride,
                        uint32_t count, float *scores)
{
    for (uint32_t i = 0; i < count; i++) {
        const float *key = keys + (uint64_t)i * stride;
        __m256 sum = _mm256_setzero_ps();
        for (uint32_t j = 0; j < dim; j += AVX2_LANES) {
            sum = _mm256_fmadd_ps(avx2_load(q + j, dim - j), avx2_load(key + j, dim - j), sum);
        }
        scores[i] = avx2_sum(sum);
    }
}

static void avx2_swiglu(const float *gate, const float *up, uint64_t count, float *out)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (uint64_t i = 0; i < count; i += AVX2_LANES) {
        uint32_t left = count - i > AVX2_LANES ? AVX2_LANES : (uint32_t)(count - i);
        __m256 x = avx2_load(gate + i, left);
        /* silu = x e / (1 + e) with e = e^-|x|, turned round for positive x: e never overflows. */
        __m256 e = avx2_exp(_mm256_or_ps(x, sign));
        __m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ);
        __m256 above = _mm256_blendv_ps(e, one, positive);
        __m256 silu = _mm256_div_ps(_mm256_mul_ps(x, above), _mm256_add_ps(one, e));
        avx2_store(out + i, left, _mm256_mul_ps(silu, avx2_load(up + i, left)));
    }
}

static float avx2_square_sum(const float *x, uint32_t count)
{
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t i = 0; i < count; i += AVX2_LANES) {
        __m256 value = avx2_load(x + i, count - i);
        sum = _mm256_fmadd_ps(value, value, sum);
    }
    return avx2_sum(sum);
}

const struct gw_host_kernels gw_host_kernels_avx2 = {
    .dequantize = avx2_dequantize,
    .dot = avx2_dot,
    .multiply = avx2_multiply,
    .softmax = avx2_softmax,
    .scale = avx2_scale,
    .widen = avx2_widen,
    .scores = avx2_scores,
    .swiglu = avx2_swiglu,
    .square_sum = avx2_square_sum,
};
