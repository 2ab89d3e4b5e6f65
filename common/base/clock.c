/*
 * The system's monotonic clock.
 */
#include "common/base/clock.h"

#include <stddef.h>
#include <time.h>

static uint64_t system_now_us(void *context)
{
    (void)context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

struct pp_clock pp_clock_system(void)
{
    return (struct pp_clock){.now_us = system_now_us, .context = NULL};
}
