/*
 * Time, handed in: whoever needs the time is given a clock, so that the simulator can stand in.
 * Monotonic microseconds from an unspecified origin. Threads: now_us may be called from any.
 */
#ifndef PIGPEN_COMMON_BASE_CLOCK_H
#define PIGPEN_COMMON_BASE_CLOCK_H

#include <stdint.h>

struct pp_clock {
    uint64_t (*now_us)(void *context);
    void *context;
};

static inline uint64_t pp_clock_now_us(const struct pp_clock *clock)
{
    return clock->now_us(clock->context);
}

/* CLOCK_MONOTONIC. */
struct pp_clock pp_clock_system(void);

#endif
