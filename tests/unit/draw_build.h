/*
 * Draws of every kind, made up: many equal logits, none but one, some that are -inf, cuts that keep
 * one id or all, penalties.
 */
#ifndef PIGPEN_TESTS_UNIT_DRAW_BUILD_H
#define PIGPEN_TESTS_UNIT_DRAW_BUILD_H

#include <math.h>

#include "common/base/rng.h"
#include "gpu-worker/device/draw.h"

static inline uint32_t draw_build_below(struct pp_rng *rng, uint32_t count)
{
    return (uint32_t)(pp_rng_u64(rng) % count);
}

static inline uint32_t draw_build_count(struct pp_rng *rng, uint32_t count_max)
{
    static const uint32_t odd[] = {1, 2, 31, 33, 511, 512, 513, 1025};
    uint32_t count = draw_build_below(rng, 2) == 0 ? odd[draw_build_below(rng, 8)]
                                                   : 1 + draw_build_below(rng, count_max);
    return count < count_max ? count : count_max;
}

static inline void draw_build_logits(struct pp_rng *rng, uint32_t count, float *logits)
{
    uint32_t kind = draw_build_below(rng, 4);
    float spread = kind == 0 ? 0.0f : kind == 1 ? 30.0f : 3.0f;
    for (uint32_t i = 0; i < count; i++) {
        float logit = (float)pp_rng_normal(rng) * spread;
        logits[i] = kind == 2 ? rintf(logit) : logit; /* many are equal */
        logits[i] = draw_build_below(rng, 50) == 0 ? -INFINITY : logits[i];
    }
    logits[draw_build_below(rng, count)] = 1.0f; /* one is a number */
}

/* logits and seen [count_max] become the draw's. */
static inline struct gw_draw draw_build(struct pp_rng *rng, uint32_t count_max, float *logits,
                                        uint32_t *seen)
{
    static const double temperatures[] = {0.0, 0.7, 1.0, 5e-324, 1e6, 100.0};
    double temperature = temperatures[draw_build_below(rng, 6)];
    struct gw_draw draw = {.logits = logits,
                           .count = draw_build_count(rng, count_max),
                           .random = pp_rng_u64(rng),
                           .repetition = 1.0f + (float)pp_rng_uniform(rng),
                           .presence = (float)pp_rng_normal(rng),
                           .frequency = (float)pp_rng_normal(rng)};
    draw.scale = temperature == 0.0 ? 0.0 : ldexp(1.4426950408889634 / temperature, 26);
    draw.top_k = draw_build_below(rng, 2) == 0 ? 0 : 1 + draw_build_below(rng, draw.count + 5);
    draw.top_p = draw_build_below(rng, 2) == 0 ? 0 : 1 + pp_rng_u64(rng) / 2 * 2;
    draw.weight_min = draw_build_below(rng, 3) != 0 ? 0 : pp_rng_u64(rng) >> 20;
    draw_build_logits(rng, draw.count, logits);
    for (uint32_t i = 0; i < draw.count; i++) {
        uint32_t drawn = draw_build_below(rng, 4) == 0 ? draw_build_below(rng, 3) : 0;
        seen[i] = drawn | (draw_build_below(rng, 4) == 0 ? GW_SEEN_IN_PROMPT : 0);
    }
    draw.seen = draw_build_below(rng, 3) == 0 ? seen : NULL;
    return draw;
}

#endif
