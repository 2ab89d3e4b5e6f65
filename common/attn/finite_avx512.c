/*
 * The check of values compiled for one instruction set: see finite_lanes.h.
 */
#include "common/attn/finite_lanes.h"

static uint16_t worst_half(const uint8_t *values, uint64_t count)
{
    return pp_worst_half_body(values, count);
}

static uint32_t worst_word(const uint8_t *values, uint64_t count)
{
    return pp_worst_word_body(values, count);
}

const struct pp_finite_kernels pp_finite_avx512 = {.worst_half = worst_half,
                                                   .worst_word = worst_word};
