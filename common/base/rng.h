/*
 * Random numbers as a pure function of (seed, counter): equal on every machine, thread and order.
 * The function is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", OOPSLA 2014): the finaliser of seed + (counter + 1) * golden ratio.
 */
#ifndef PIGPEN_COMMON_BASE_RNG_H
#define PIGPEN_COMMON_BASE_RNG_H

#include <stdint.h>

#include "common/base/status.h"

static inline uint64_t pp_rng_at(uint64_t seed, uint64_t counter)
{
    uint64_t x = seed + (counter + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* A sequence of draws, for tests and tools: .counter moves by one a draw. */
struct pp_rng {
    uint64_t seed;
    uint64_t counter;
};

static inline uint64_t pp_rng_u64(struct pp_rng *rng)
{
    return pp_rng_at(rng->seed, rng->counter++);
}

/* Uniform in [0, 1). */
static inline double pp_rng_uniform(struct pp_rng *rng)
{
    return (double)(pp_rng_u64(rng) >> 11) * 0x1p-53;
}

/* Standard normal by Box and Muller (two draws). */
double pp_rng_normal(struct pp_rng *rng);

/* Fills bytes from the kernel's generator (ids, handles, incarnations). PP_IO when it fails. */
PP_MUST_USE enum pp_status pp_rng_system(void *out, uint64_t bytes);

#endif
