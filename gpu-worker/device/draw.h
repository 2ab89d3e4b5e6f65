/*
 * The law by which a token is drawn from logits, in integers behind one subtraction and one product
 * of doubles: no sum depends on its order, so the host and a GPU draw the same token. C and CUDA
 * compile it. It refuses to know how the ids are walked over.
 *
 * A logit after its penalties is a value; best is the largest one. The rank of an id is t =
 * trunc((best - value) scale), scale = 2^26 log2(e) / temperature: how much less likely than the
 * best it is, in 2^-26 of a factor of two. From GW_DRAW_RANKS on (2^-44 of the best's probability)
 * it is not drawn. Its weight is w(t) = 2^44 2^(-t / 2^26), by a polynomial in whole numbers,
 * within 3e-9 of that. Ids are ordered by rank, then by number. Kept are the first top_k; of those
 * the fewest that have top_p of their weight; of those the ones with weight_min. W is what they
 * weigh, r = floor(random W / 2^64), and the token is the first in order of the numbers at which
 * the sum of kept weights passes r. Without a scale it is the best value, the lowest id among
 * equals.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_DRAW_H
#define PIGPEN_GPU_WORKER_DEVICE_DRAW_H

#include <string.h>

#include "gpu-worker/device/device.h"

#ifdef __CUDACC__
#define GW_DRAW_FUNCTION    static __device__ __forceinline__
#define GW_DRAW_TIMES(a, b) __fmul_rn(a, b) /* a sum behind it is rounded by itself */
#else
#define GW_DRAW_FUNCTION    static inline
#define GW_DRAW_TIMES(a, b) ((a) * (b))
#endif

#define GW_DRAW_RANK_BITS   26u
#define GW_DRAW_WEIGHT_BITS 44u
#define GW_DRAW_RANKS       (GW_DRAW_WEIGHT_BITS << GW_DRAW_RANK_BITS)
/* A key of gw_draw_key above all numbers. */
#define GW_DRAW_NOT_A_NUMBER UINT64_MAX
/* A rank is three digits, the first of which has the most and is the highest. */
#define GW_DRAW_DIGITS     3u
#define GW_DRAW_DIGIT_BITS 11u
#define GW_DRAW_BINS       (1u << GW_DRAW_DIGIT_BITS)

/* floor(a b / 2^64). */
GW_DRAW_FUNCTION uint64_t gw_draw_high(uint64_t a, uint64_t b)
{
    uint64_t a_low = a & 0xffffffffu, a_high = a >> 32, b_low = b & 0xffffffffu, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t other = a_low * b_high + (middle & 0xffffffffu);
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

/* The value of an id: repetition, then presence and frequency. */
GW_DRAW_FUNCTION float gw_draw_value(const struct gw_draw *draw, float logit, uint32_t seen)
{
    if (seen == 0) {
        return logit;
    }
    float value = logit > 0.0f ? logit / draw->repetition : GW_DRAW_TIMES(logit, draw->repetition);
    uint32_t drawn = seen & ~GW_SEEN_IN_PROMPT;
    if (drawn == 0) {
        return value;
    }
    value -= draw->presence;
    return value - GW_DRAW_TIMES(draw->frequency, (float)drawn);
}

/* Larger for the larger value, then for the lower id; zeros of both signs are equal. */
GW_DRAW_FUNCTION uint64_t gw_draw_key(float value, uint32_t id)
{
    uint32_t bits;
    if (value != value) {
        return GW_DRAW_NOT_A_NUMBER;
    }
    memcpy(&bits, &value, sizeof(bits));
    bits = value == 0.0f ? 0 : bits;
    bits = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~id;
}

GW_DRAW_FUNCTION uint32_t gw_draw_key_id(uint64_t key)
{
    return ~(uint32_t)key;
}

GW_DRAW_FUNCTION float gw_draw_key_value(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    float value;
    bits = (bits >> 31) != 0 ? bits & 0x7fffffffu : ~bits;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Whether a token can be drawn where this is the largest key: it is a finite value's. */
GW_DRAW_FUNCTION bool gw_draw_key_finite(uint64_t key)
{
    uint32_t bits = (uint32_t)(key >> 32);
    return bits > 0x007fffffu && bits < 0xff800000u;
}

/* At most GW_DRAW_RANKS. A scale may be infinite: then equals of the best are 0 all the same. */
GW_DRAW_FUNCTION uint32_t gw_draw_rank(float best, float value, double scale)
{
    double less = (double)best - (double)value;
    double rank = less * scale;
    return less == 0.0 ? 0 : rank < (double)GW_DRAW_RANKS ? (uint32_t)rank : GW_DRAW_RANKS;
}

/* Of a rank below GW_DRAW_RANKS: 2^44 for 0, at least 1. The terms are ln(2)^i / i! in 2^-31. */
GW_DRAW_FUNCTION uint64_t gw_draw_weight(uint32_t rank)
{
    const uint32_t terms[11] = {2147483648u, 1488522236u, 515882496u, 119194166u,
                                20654775u,   2863360u,    330788u,    32755u,
                                2838u,       219u,        15u};
    uint64_t part = (uint64_t)rank << (32 - GW_DRAW_RANK_BITS) & 0xffffffffu; /* in 2^-32 */
    uint32_t power = 0;
#pragma unroll
    for (int i = 10; i >= 0; i--) {
        power = terms[i] - (uint32_t)(part * power >> 32);
    }
    return (uint64_t)power << (GW_DRAW_WEIGHT_BITS - 31u) >> (rank >> GW_DRAW_RANK_BITS);
}

/* Of ids whose order reaches the last kept one: those of lower ranks, and `equal` of this one. */
struct gw_draw_cut {
    uint32_t rank;
    uint64_t equal;
};

GW_DRAW_FUNCTION struct gw_draw_cut gw_draw_no_cut(void)
{
    struct gw_draw_cut cut;
    cut.rank = GW_DRAW_RANKS;
    cut.equal = 0;
    return cut;
}

/* What the cut's own rank weighs, of one id; 0 without a cut. */
GW_DRAW_FUNCTION uint64_t gw_draw_cut_weight(struct gw_draw_cut cut)
{
    return cut.rank < GW_DRAW_RANKS ? gw_draw_weight(cut.rank) : 0;
}

/* The weight that top_p wants, of `total` > 0: at least 1, at most all. */
GW_DRAW_FUNCTION uint64_t gw_draw_wanted(uint64_t top_p, uint64_t total)
{
    return gw_draw_high(total, top_p) + 1;
}

/* Where a digit lies in a rank, from its lowest bit on. */
GW_DRAW_FUNCTION uint32_t gw_draw_digit_shift(uint32_t digit)
{
    return digit == 0 ? 21u : digit == 1 ? 10u : 0u;
}

GW_DRAW_FUNCTION uint32_t gw_draw_digit_bits(uint32_t digit)
{
    return digit == 2 ? 10u : GW_DRAW_DIGIT_BITS;
}

#endif
