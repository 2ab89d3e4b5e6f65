/*
 * The host device's inner loops for AVX-512. Weights are widened in registers: Q4_1 moves 20 bytes
 * a 32 weights and about 14 instructions; multiply keeps 6 x 64 sums in registers and is bound by
 * one fma a cycle. Layouts and formulas: device.h, host_kernels.h. It refuses to know threads.
 */
#include "gpu-worker/device/host_kernels.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "common/base/inline.h"

static inline __mmask16 avx512_mask(uint32_t count)
{
    return count >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1u);
}

/* 16 values of an unquantised row, those beyond the mask 0. */
static inline __m512 avx512_plain(enum gw_weight_type type, const uint8_t *row, uint32_t at,
                                  __mmask16 mask)
{
    if (type == GW_WEIGHT_F32) {
        return _mm512_maskz_loadu_ps(mask, row + 4ull * at);
    }
    __m256i halves = _mm256_maskz_loadu_epi16(mask, row + 2ull * at);
    if (type == GW_WEIGHT_F16) {
        return _mm512_cvtph_ps(halves);
    }
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

struct avx512_pair {
    __m512 low, high; /* integers of a block as f32, before the scale */
};

static inline struct avx512_pair avx512_nibbles(const uint8_t *bytes)
{
    __m128i both = _mm_loadu_si128((const __m128i_u *)bytes);
    __m128i fifteen = _mm_set1_epi8(15);
    __m128i low = _mm_and_si128(both, fifteen);
    __m128i high = _mm_and_si128(_mm_srli_epi16(both, 4), fifteen);
    return (struct avx512_pair){_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(low)),
                                _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(high))};
}

static inline struct avx512_pair avx512_bytes(const uint8_t *bytes)
{
    __m128i low = _mm_loadu_si128((const __m128i_u *)bytes);
    __m128i high = _mm_loadu_si128((const __m128i_u *)(bytes + 16));
    return (struct avx512_pair){_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(low)),
                                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(high))};
}

/* {d, m} of a block: the first two halves. */
static inline __m128 avx512_scales(const uint8_t *block)
{
    int32_t both;
    memcpy(&both, block, sizeof(both));
    return _mm_cvtph_ps(_mm_cvtsi32_si128(both));
}

static inline float avx512_second(__m128 scales)
{
    return _mm_cvtss_f32(_mm_movehdup_ps(scales));
}

static void avx512_dequantize(enum gw_weight_type type, const void *row, uint32_t count, float *out)
{
    const uint8_t *bytes = row;
    if (type == GW_WEIGHT_F32 || type == GW_WEIGHT_F16 || type == GW_WEIGHT_BF16) {
        for (uint32_t i = 0; i < count; i += 16) {
            __mmask16 mask = avx512_mask(count - i);
            _mm512_mask_storeu_ps(out + i, mask, avx512_plain(type, bytes, i, mask));
        }
        return;
    }
    uint32_t block_bytes = (uint32_t)gw_matrix_row_bytes(type, 32);
    for (uint32_t i = 0; i < count; i += 32, bytes += block_bytes) {
        __m128 scales = avx512_scales(bytes);
        __m512 d = _mm512_broadcastss_ps(scales);
        __m512 m = _mm512_setzero_ps();
        struct avx512_pair pair;
        if (type == GW_WEIGHT_Q8_0) {
            pair = avx512_bytes(bytes + 2);
        } else if (type == GW_WEIGHT_Q4_1) {
            pair = avx512_nibbles(bytes + 4);
            m = _mm512_set1_ps(avx512_second(scales));
        } else {
            pair = avx512_nibbles(bytes + 2);
            m = _mm512_mul_ps(d, _mm512_set1_ps(-8.0f));
        }
        _mm512_storeu_ps(out + i, _mm512_fmadd_ps(d, pair.low, m));
        _mm512_storeu_ps(out + i + 16, _mm512_fmadd_ps(d, pair.high, m));
    }
}

static inline __m512 avx512_block_dot(struct avx512_pair pair, const float *x)
{
    __m512 product = _mm512_mul_ps(pair.low, _mm512_loadu_ps(x));
    return _mm512_fmadd_ps(pair.high, _mm512_loadu_ps(x + 16), product);
}

/* What is to be multiplied with one row of weights: x rows, and their sums over blocks. */
struct avx512_rows {
    const float *x, *sums;
    uint64_t x_stride, sums_stride;
};

/* Blocks of a row of weights are widened once for all x rows, each of which has sums of its own,
 * added as if it were alone. */
PP_INLINE void avx512_dots_blocks(enum gw_weight_type type, uint32_t rows, const uint8_t *row,
                                  uint32_t count, const struct avx512_rows *of, float *out)
{
    bool nibbles = type != GW_WEIGHT_Q8_0, has_min = type == GW_WEIGHT_Q4_1;
    uint32_t block_bytes = !nibbles ? 34 : has_min ? 20 : 18;
    uint32_t offset = has_min ? 4 : 2;
    __m512 sum[GW_HOST_DOTS_MAX];
    __m128 low[GW_HOST_DOTS_MAX];
    PP_UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        sum[i] = _mm512_setzero_ps();
        low[i] = _mm_setzero_ps();
    }
    for (uint32_t at = 0; at < count; at += 32, row += block_bytes) {
        __m128 scales = avx512_scales(row);
        __m512 d = _mm512_broadcastss_ps(scales);
        __m128 min = has_min ? _mm_movehdup_ps(scales) : scales;
        struct avx512_pair pair =
            nibbles ? avx512_nibbles(row + offset) : avx512_bytes(row + offset);
        PP_UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 part = avx512_block_dot(pair, of->x + i * of->x_stride + at);
            sum[i] = _mm512_fmadd_ps(d, part, sum[i]);
            if (nibbles) {
                __m128 block = _mm_load_ss(of->sums + i * of->sums_stride + at / 32);
                low[i] = _mm_fmadd_ss(min, block, low[i]);
            }
        }
    }
    PP_UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        float factor = !nibbles ? 0.0f : has_min ? 1.0f : -8.0f;
        out[i] = _mm512_reduce_add_ps(sum[i]) + factor * _mm_cvtss_f32(low[i]);
    }
}

PP_INLINE void avx512_dots_plain(enum gw_weight_type type, uint32_t rows, const uint8_t *row,
                                 uint32_t count, const struct avx512_rows *of, float *out)
{
    __m512 sum[GW_HOST_DOTS_MAX];
    PP_UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        sum[i] = _mm512_setzero_ps();
    }
    for (uint32_t at = 0; at < count; at += 16) {
        __mmask16 mask = avx512_mask(count - at);
        __m512 weights = avx512_plain(type, row, at, mask);
        PP_UNROLL
        for (uint32_t i = 0; i < rows; i++) {
            __m512 x = _mm512_maskz_loadu_ps(mask, of->x + i * of->x_stride + at);
            sum[i] = _mm512_fmadd_ps(weights, x, sum[i]);
        }
    }
    PP_UNROLL
    for (uint32_t i = 0; i < rows; i++) {
        out[i] = _mm512_reduce_add_ps(sum[i]);
    }
}

PP_INLINE void avx512_dots_rows(enum gw_weight_type type, uint32_t rows, const uint8_t *row,
                                uint32_t count, const struct avx512_rows *of, float *out)
{
    switch (type) {
    case GW_WEIGHT_Q4_1:
        avx512_dots_blocks(GW_WEIGHT_Q4_1, rows, row, count, of, out);
        break;
    case GW_WEIGHT_Q4_0:
        avx512_dots_blocks(GW_WEIGHT_Q4_0, rows, row, count, of, out);
        break;
    case GW_WEIGHT_Q8_0:
        avx512_dots_blocks(GW_WEIGHT_Q8_0, rows, row, count, of, out);
        break;
    default:
        avx512_dots_plain(type, rows, row, count, of, out);
    }
}

static void avx512_dots(enum gw_weight_type type, const void *row, uint32_t count, const float *x,
                        uint64_t x_stride, const float *sums, uint64_t sums_stride, uint32_t rows,
                        float *out)
{
    struct avx512_rows of = {x, sums, x_stride, sums_stride};
    for (; rows > 0;) {
        uint32_t some = rows < GW_HOST_DOTS_MAX ? rows : GW_HOST_DOTS_MAX;
        switch (some) {
        case 1:
            avx512_dots_rows(type, 1, row, count, &of, out);
            break;
        case 2:
            avx512_dots_rows(type, 2, row, count, &of, out);
            break;
        case 3:
            avx512_dots_rows(type, 3, row, count, &of, out);
            break;
        default:
            some = GW_HOST_DOTS_MAX;
            avx512_dots_rows(type, GW_HOST_DOTS_MAX, row, count, &of, out);
        }
        of.x += some * x_stride;
        of.sums += some * sums_stride;
        out += some;
        rows -= some;
    }
}

static float avx512_dot(enum gw_weight_type type, const void *row, uint32_t count, const float *x,
                        const float *sums)
{
    struct avx512_rows of = {x, sums, 0, 0};
    float out;
    avx512_dots_rows(type, 1, row, count, &of, &out);
    return out;
}

/* 6 rows x 4 vectors of c in registers. */
static inline void avx512_tile_6x4(uint32_t depth, const float *a, uint32_t a_stride,
                                   const float *b, uint32_t b_stride, int add, float *c,
                                   uint32_t c_stride)
{
    __m512 sums[6][4];
    PP_UNROLL
    for (uint32_t row = 0; row < 6; row++) {
        PP_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            sums[row][i] =
                add ? _mm512_loadu_ps(c + (uint64_t)row * c_stride + 16 * i) : _mm512_setzero_ps();
        }
    }
    for (uint32_t at = 0; at < depth; at++) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        __m512 b2 = _mm512_loadu_ps(b + 32), b3 = _mm512_loadu_ps(b + 48);
        PP_UNROLL
        for (uint32_t row = 0; row < 6; row++) {
            __m512 factor = _mm512_set1_ps(a[(uint64_t)row * a_stride + at]);
            sums[row][0] = _mm512_fmadd_ps(factor, b0, sums[row][0]);
            sums[row][1] = _mm512_fmadd_ps(factor, b1, sums[row][1]);
            sums[row][2] = _mm512_fmadd_ps(factor, b2, sums[row][2]);
            sums[row][3] = _mm512_fmadd_ps(factor, b3, sums[row][3]);
        }
        b += b_stride;
    }
    PP_UNROLL
    for (uint32_t row = 0; row < 6; row++) {
        PP_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            _mm512_storeu_ps(c + (uint64_t)row * c_stride + 16 * i, sums[row][i]);
        }
    }
}

/* One row x `vectors` (1 to 4) vectors of c: what is left over of rows and columns. */
static inline void avx512_tile_1(uint32_t vectors, uint32_t depth, const float *a, const float *b,
                                 uint32_t b_stride, int add, float *c)
{
    __m512 sums[4];
    for (uint32_t i = 0; i < vectors; i++) {
        sums[i] = add ? _mm512_loadu_ps(c + 16 * i) : _mm512_setzero_ps();
    }
    for (uint32_t at = 0; at < depth; at++) {
        __m512 factor = _mm512_set1_ps(a[at]);
        for (uint32_t i = 0; i < vectors; i++) {
            sums[i] = _mm512_fmadd_ps(factor, _mm512_loadu_ps(b + 16 * i), sums[i]);
        }
        b += b_stride;
    }
    for (uint32_t i = 0; i < vectors; i++) {
        _mm512_storeu_ps(c + 16 * i, sums[i]);
    }
}

static void avx512_multiply(uint32_t rows, uint32_t columns, uint32_t depth, const float *a,
                            uint32_t a_stride, const float *b, uint32_t b_stride, int add, float *c,
                            uint32_t c_stride)
{
    uint32_t column = 0;
    for (; column + 64 <= columns; column += 64) {
        uint32_t row = 0;
        for (; row + 6 <= rows; row += 6) {
            avx512_tile_6x4(depth, a + (uint64_t)row * a_stride, a_stride, b + column, b_stride,
                            add, c + (uint64_t)row * c_stride + column, c_stride);
        }
        for (; row < rows; row++) {
            avx512_tile_1(4, depth, a + (uint64_t)row * a_stride, b + column, b_stride, add,
                          c + (uint64_t)row * c_stride + column);
        }
    }
    for (uint32_t row = 0; column < columns && row < rows; row++) {
        avx512_tile_1((columns - column) / 16, depth, a + (uint64_t)row * a_stride, b + column,
                      b_stride, add, c + (uint64_t)row * c_stride + column);
    }
}

/* e^x for x <= 0 (and a little above) to about 1 ulp: 2^n times a polynomial of the rest, Cody and
 * Waite's reduction. Below -87 it goes to 0 by scalef. */
static inline __m512 avx512_exp(__m512 x)
{
    x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

static float avx512_softmax(float *scores, uint32_t visible, float *max, float *sum)
{
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 values[4];
    __m512 top = lowest;
    for (uint32_t i = 0; i < 4; i++) {
        __mmask16 mask = visible > 16 * i ? avx512_mask(visible - 16 * i) : 0;
        values[i] = _mm512_mask_loadu_ps(lowest, mask, scores + 16 * i);
        top = _mm512_max_ps(top, values[i]);
    }
    float before = *max;
    float now = _mm512_reduce_max_ps(top);
    now = now > before ? now : before;
    if (now == -INFINITY) { /* nothing seen yet */
        memset(scores, 0, GW_HOST_KEY_BLOCK * sizeof(float));
        return 1.0f;
    }
    __m512 added = _mm512_setzero_ps();
    for (uint32_t i = 0; i < 4; i++) {
        __mmask16 mask = visible > 16 * i ? avx512_mask(visible - 16 * i) : 0;
        __m512 e = avx512_exp(_mm512_sub_ps(values[i], _mm512_set1_ps(now)));
        e = _mm512_maskz_mov_ps(mask, e);
        _mm512_storeu_ps(scores + 16 * i, e);
        added = _mm512_add_ps(added, e);
    }
    float factor = now == before ? 1.0f : expf(before - now);
    *max = now;
    *sum = *sum * factor + _mm512_reduce_add_ps(added);
    return factor;
}

static void avx512_scale(float *values, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; i += 16) {
        __mmask16 mask = avx512_mask(count - i);
        __m512 scaled =
            _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, values + i), _mm512_set1_ps(factor));
        _mm512_mask_storeu_ps(values + i, mask, scaled);
    }
}

static void avx512_widen_int8(const uint8_t *row, uint32_t count, float *out)
{
    __m512 scale = _mm512_broadcastss_ps(_mm_castsi128_ps(_mm_loadu_si32(row + count)));
    for (uint32_t i = 0; i < count; i += 16) {
        __mmask16 mask = avx512_mask(count - i);
        __m512i whole = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, row + i));
        _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(_mm512_cvtepi32_ps(whole), scale));
    }
}

static void avx512_widen(enum pp_dtype dtype, const void *row, uint32_t count, float *out)
{
    if (dtype == PP_I8) {
        avx512_widen_int8(row, count, out);
        return;
    }
    avx512_dequantize(gw_weight_type_of(dtype), row, count, out);
}

static void avx512_scores(const float *q, uint32_t dim, const float *keys, uint32_t stride,
                          uint32_t count, float *scores)
{
    for (uint32_t i = 0; i < count; i++) {
        const float *key = keys + (uint64_t)i * stride;
        __m512 sum = _mm512_setzero_ps();
        for (uint32_t j = 0; j < dim; j += 16) {
            __mmask16 mask = avx512_mask(dim - j);
            sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, q + j),
                                  _mm512_maskz_loadu_ps(mask, key + j), sum);
        }
        scores[i] = _mm512_reduce_add_ps(sum);
    }
}

static void avx512_swiglu(const float *gate, const float *up, uint64_t count, float *out)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    for (uint64_t i = 0; i < count; i += 16) {
        __mmask16 mask = avx512_mask(count - i > 16 ? 16 : (uint32_t)(count - i));
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + i);
        /* silu = x e / (1 + e) with e = e^-|x|, turned round for positive x: e never overflows. */
        __m512 e = avx512_exp(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
        __mmask16 positive = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ);
        __m512 top = _mm512_mask_mov_ps(e, positive, one);
        __m512 silu = _mm512_div_ps(_mm512_mul_ps(x, top), _mm512_add_ps(one, e));
        silu = _mm512_mul_ps(silu, _mm512_maskz_loadu_ps(mask, up + i));
        _mm512_mask_storeu_ps(out + i, mask, silu);
    }
}

static float avx512_square_sum(const float *x, uint32_t count)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < count; i += 16) {
        __m512 value = _mm512_maskz_loadu_ps(avx512_mask(count - i), x + i);
        sum = _mm512_fmadd_ps(value, value, sum);
    }
    return _mm512_reduce_add_ps(sum);
}

const struct gw_host_kernels gw_host_kernels_avx512 = {
    .dequantize = avx512_dequantize,
    .dot = avx512_dot,
    .dots = avx512_dots,
    .multiply = avx512_multiply,
    .softmax = avx512_softmax,
    .scale = avx512_scale,
    .widen = avx512_widen,
    .scores = avx512_scores,
    .swiglu = avx512_swiglu,
    .square_sum = avx512_square_sum,
};
