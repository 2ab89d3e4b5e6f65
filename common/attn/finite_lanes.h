/*
 * The check of values, as plain loops that a compiler turns into the lanes of an instruction set;
 * included by one file for each, see finite.c. Values are of any alignment: they lie as they came.
 *
 * The magnitude's bits of a value that is allowed are at most those of the bound: NaN and infinity
 * have larger ones, so one integer comparison covers all. Bytes moved: each value read once.
 */
#ifndef PIGPEN_COMMON_ATTN_FINITE_LANES_H
#define PIGPEN_COMMON_ATTN_FINITE_LANES_H

#include <stdint.h>
#include <string.h>

struct pp_finite_kernels {
    /* The largest magnitude's bits of count values of 2 or of 4 bytes. */
    uint16_t (*worst_half)(const uint8_t *values, uint64_t count);
    uint32_t (*worst_word)(const uint8_t *values, uint64_t count);
};
extern const struct pp_finite_kernels pp_finite_scalar;
extern const struct pp_finite_kernels pp_finite_avx2;
extern const struct pp_finite_kernels pp_finite_avx512;

static inline uint16_t pp_worst_half_body(const uint8_t *values, uint64_t count)
{
    uint16_t worst = 0;
    for (uint64_t i = 0; i < count; ++i) {
        uint16_t half;
        memcpy(&half, values + 2 * i, sizeof(half));
        uint16_t magnitude = half & 0x7fffu;
        worst = magnitude > worst ? magnitude : worst;
    }
    return worst;
}

static inline uint32_t pp_worst_word_body(const uint8_t *values, uint64_t count)
{
    uint32_t worst = 0;
    for (uint64_t i = 0; i < count; ++i) {
        uint32_t word;
        memcpy(&word, values + 4 * i, sizeof(word));
        uint32_t magnitude = word & 0x7fffffffu;
        worst = magnitude > worst ? magnitude : worst;
    }
    return worst;
}

#endif
