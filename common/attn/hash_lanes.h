/*
 * The hash law over 32 vectors at once: lane i of every row is vector i, so that no operation ever
 * moves data across lanes. hash_scalar.c and hash_avx2.c compile the text below with their flags;
 * hash_avx512.c has its own and shares only the tables. Integers make the bits equal.
 * Private to common/attn. Bytes touched a call: 32 * P * (4 + 4 + 2) of scratch, in L1.
 */
#ifndef PIGPEN_COMMON_ATTN_HASH_LANES_H
#define PIGPEN_COMMON_ATTN_HASH_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/attn/shape.h"
#include "common/base/limits.h"

#define PP_HASH_LANES      32u
#define PP_HASH_SIZE_MAX   256u
#define PP_HASH_SHARED     3u
#define PP_HASH_BLOCKS_MAX (PP_LSH_K_MAX * PP_LSH_L_MAX / 64u)
/* Dimensions of all hash blocks together: K*L rounded up to a power of two that divides this. */
#define PP_HASH_BITS_MAX (PP_LSH_K_MAX * PP_LSH_L_MAX)

struct pp_hash {
    uint64_t seed;
    uint32_t dim, size; /* size: dim padded to 64, 128 or 256 */
    uint32_t k, l;
    uint32_t block_count;
    uint32_t block_used[PP_HASH_BLOCKS_MAX]; /* dimensions of a block that give bits */
    /* 0 or -1: x * s = (x ^ mask) - mask. */
    int16_t sign_masks[PP_HASH_SHARED + PP_HASH_BLOCKS_MAX][PP_HASH_SIZE_MAX];
    struct {
        uint16_t table, bit;
    } target[PP_HASH_BLOCKS_MAX][PP_HASH_SIZE_MAX];
    /* The same from the table's side: bit j of table t is dimension source[t * k + j] % size of
     * hash block source[t * k + j] / size. */
    uint16_t source[PP_HASH_BITS_MAX];
    /* sign_masks of the shared rotations, as wide as their numbers. */
    int32_t shared_masks[PP_HASH_SHARED][PP_HASH_SIZE_MAX];
    /* Row 2i holds +X_i and row 2i + 1 holds -X_i: the row that dimension i % size of hash block
     * i / size reads. */
    uint16_t signed_rows[PP_HASH_BITS_MAX];
};

struct pp_hash_kernels {
    /* The first `lanes` of up to 32 rows of dtype, row_bytes apart, less the centre (NULL: none),
     * into x [size][32] f32, 64-byte aligned; the other lanes, and what is beyond dim, are zero.
     * The rows behind them may be prefetched. */
    void (*fill)(const struct pp_hash *hash, const void *rows, uint64_t row_bytes,
                 enum pp_dtype dtype, const float *centre, uint32_t lanes, float *x);
    /* x [size][32] f32 -> 32 codes at codes + t * stride for every table t; x and codes 64-byte
     * aligned, stride a multiple of 32. A stride above 32 may be written past the caches: the
     * caller fences before it hands the codes to another thread. */
    void (*lanes)(const struct pp_hash *hash, const float *x, uint16_t *codes, uint64_t stride);
};
extern const struct pp_hash_kernels pp_hash_scalar;
extern const struct pp_hash_kernels pp_hash_avx2;
extern const struct pp_hash_kernels pp_hash_avx512;

#define PP_HASH_FOR_LANES for (uint32_t lane = 0; lane < PP_HASH_LANES; ++lane)

/* The power of two that brings the largest magnitude to at most 32767, in two factors that are
 * normal floats; an all-zero vector gets 1. */
static inline void pp_hash_scales(const float *x, uint32_t size, float *scale_low,
                                  float *scale_high)
{
    float largest[PP_HASH_LANES] = {0.0f};
    for (uint32_t i = 0; i < size; ++i) {
        PP_HASH_FOR_LANES
        {
            float magnitude = __builtin_fabsf(x[i * PP_HASH_LANES + lane]);
            largest[lane] = magnitude > largest[lane] ? magnitude : largest[lane];
        }
    }
    PP_HASH_FOR_LANES
    {
        int exponent = 0;
        float fraction = frexpf(largest[lane], &exponent);
        int e = fraction * 32768.0f > 32767.0f ? 14 - exponent : 15 - exponent;
        int half = e / 2;
        scale_low[lane] = ldexpf(1.0f, half);
        scale_high[lane] = ldexpf(1.0f, e - half);
    }
}

/* Butterflies of the Walsh-Hadamard transform over `size` rows of 32 lanes. */
static inline void pp_hash_transform32(int32_t *x, uint32_t size)
{
    for (uint32_t half = 1; half < size; half *= 2) {
        for (uint32_t base = 0; base < size; base += 2 * half) {
            for (uint32_t i = base; i < base + half; ++i) {
                int32_t *upper = x + i * PP_HASH_LANES;
                int32_t *lower = x + (i + half) * PP_HASH_LANES;
                PP_HASH_FOR_LANES
                {
                    int32_t a = upper[lane];
                    int32_t b = lower[lane];
                    upper[lane] = a + b;
                    lower[lane] = a - b;
                }
            }
        }
    }
}

/* Two levels of butterflies at once: half the loads and stores. Sums fit int16 by the law. */
static inline void pp_hash_quad16(int16_t *x, uint32_t i, uint32_t half)
{
    int16_t *row0 = x + i * PP_HASH_LANES;
    int16_t *row1 = row0 + half * PP_HASH_LANES;
    int16_t *row2 = row1 + half * PP_HASH_LANES;
    int16_t *row3 = row2 + half * PP_HASH_LANES;
    PP_HASH_FOR_LANES
    {
        int16_t sum01 = (int16_t)(row0[lane] + row1[lane]);
        int16_t dif01 = (int16_t)(row0[lane] - row1[lane]);
        int16_t sum23 = (int16_t)(row2[lane] + row3[lane]);
        int16_t dif23 = (int16_t)(row2[lane] - row3[lane]);
        row0[lane] = (int16_t)(sum01 + sum23);
        row1[lane] = (int16_t)(dif01 + dif23);
        row2[lane] = (int16_t)(sum01 - sum23);
        row3[lane] = (int16_t)(dif01 - dif23);
    }
}

static inline void pp_hash_transform16(int16_t *x, uint32_t size)
{
    uint32_t half = 1;
    for (; 4 * half <= size; half *= 4) {
        for (uint32_t base = 0; base < size; base += 4 * half) {
            for (uint32_t i = base; i < base + half; ++i) {
                pp_hash_quad16(x, i, half);
            }
        }
    }
    for (uint32_t i = 0; half < size && i < half; ++i) {
        int16_t *upper = x + i * PP_HASH_LANES;
        int16_t *lower = x + (i + half) * PP_HASH_LANES;
        PP_HASH_FOR_LANES
        {
            int16_t a = upper[lane];
            int16_t b = lower[lane];
            upper[lane] = (int16_t)(a + b);
            lower[lane] = (int16_t)(a - b);
        }
    }
}

/* f32 to the int16 vector that all hash blocks start from: scale, three rotations in int32, and
 * the least shift after which every later partial sum fits int16. */
static inline void pp_hash_rotate(const struct pp_hash *hash, const float *x, int32_t *wide,
                                  int16_t *narrow)
{
    uint32_t size = hash->size;
    float scale_low[PP_HASH_LANES];
    float scale_high[PP_HASH_LANES];
    pp_hash_scales(x, size, scale_low, scale_high);
    for (uint32_t i = 0; i < size; ++i) {
        PP_HASH_FOR_LANES
        {
            float scaled = x[i * PP_HASH_LANES + lane] * scale_low[lane] * scale_high[lane];
            wide[i * PP_HASH_LANES + lane] = (int32_t)__builtin_rintf(scaled);
        }
    }
    for (uint32_t round = 0; round < PP_HASH_SHARED; ++round) {
        for (uint32_t i = 0; i < size; ++i) {
            int32_t mask = hash->sign_masks[round][i];
            PP_HASH_FOR_LANES
            {
                int32_t *value = &wide[i * PP_HASH_LANES + lane];
                *value = (*value ^ mask) - mask;
            }
        }
        pp_hash_transform32(wide, size);
    }
    int64_t sums[PP_HASH_LANES] = {0};
    for (uint32_t i = 0; i < size; ++i) {
        PP_HASH_FOR_LANES
        {
            int64_t value = wide[i * PP_HASH_LANES + lane];
            sums[lane] += value < 0 ? -value : value;
        }
    }
    int32_t shifts[PP_HASH_LANES];
    int64_t halves[PP_HASH_LANES];
    PP_HASH_FOR_LANES
    {
        int32_t shift = 0;
        while ((sums[lane] >> shift) > 32767 - (int64_t)size) {
            ++shift;
        }
        shifts[lane] = shift;
        halves[lane] = shift > 0 ? (int64_t)1 << (shift - 1) : 0;
    }
    for (uint32_t i = 0; i < size; ++i) {
        PP_HASH_FOR_LANES
        {
            int64_t value = wide[i * PP_HASH_LANES + lane] + halves[lane];
            narrow[i * PP_HASH_LANES + lane] = (int16_t)(value >> shifts[lane]);
        }
    }
}

static inline void pp_hash_fill_body(const struct pp_hash *hash, const void *rows,
                                     uint64_t row_bytes, enum pp_dtype dtype, const float *centre,
                                     uint32_t lanes, float *x)
{
    float key[PP_HEAD_DIM_MAX];
    memset(x, 0, sizeof(*x) * hash->size * PP_HASH_LANES);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
        pp_dtype_to_f32(dtype, (const uint8_t *)rows + lane * row_bytes, hash->dim, key);
        for (uint32_t d = 0; d < hash->dim; ++d) {
            x[d * PP_HASH_LANES + lane] = centre == NULL ? key[d] : key[d] - centre[d];
        }
    }
}

static inline void pp_hash_lanes_body(const struct pp_hash *hash, const float *x, uint16_t *codes,
                                      uint64_t stride)
{
    _Alignas(64) int32_t wide[PP_HASH_SIZE_MAX * PP_HASH_LANES];
    _Alignas(64) int16_t shared[PP_HASH_SIZE_MAX * PP_HASH_LANES];
    _Alignas(64) int16_t block[PP_HASH_SIZE_MAX * PP_HASH_LANES];
    uint32_t size = hash->size;
    pp_hash_rotate(hash, x, wide, shared);
    for (uint32_t t = 0; t < hash->l; ++t) {
        memset(codes + t * stride, 0, PP_HASH_LANES * sizeof(*codes));
    }
    for (uint32_t r = 0; r < hash->block_count; ++r) {
        for (uint32_t i = 0; i < size; ++i) {
            int16_t mask = hash->sign_masks[PP_HASH_SHARED + r][i];
            PP_HASH_FOR_LANES
            {
                int16_t value = shared[i * PP_HASH_LANES + lane];
                block[i * PP_HASH_LANES + lane] = (int16_t)((value ^ mask) - mask);
            }
        }
        pp_hash_transform16(block, size);
        for (uint32_t i = 0; i < hash->block_used[r]; ++i) {
            uint16_t *code = codes + hash->target[r][i].table * stride;
            uint16_t bit = (uint16_t)(1u << hash->target[r][i].bit);
            const int16_t *y = block + i * PP_HASH_LANES;
            PP_HASH_FOR_LANES
            {
                code[lane] |= y[lane] > 0 ? bit : 0;
            }
        }
    }
}

#endif
