/*
 * A team of threads for data-parallel loops, over OpenMP. The one place with `#pragma omp`, so that
 * ThreadSanitizer is told about fork and join here and team size is set in one place. The caller is
 * the master and takes part; the other threads are deaf to signals, like those of run/thread.
 * Teams of different masters are separate.
 */
#ifndef PIGPEN_COMMON_RUN_TEAM_H
#define PIGPEN_COMMON_RUN_TEAM_H

#include <stdint.h>

#include "common/run/places.h"

/* Calls body(context, index, thread) for every index in [0, count), each once, spread dynamically
 * over up to `threads` threads; thread is in [0, threads). Returns when all are done. threads = 1
 * runs inline, and so does count = 1. A master that always asks for the same number of threads
 * takes no memory after its first loop. body must not call pp_team_for. */
void pp_team_for(uint32_t threads, uint64_t count,
                 void (*body)(void *context, uint64_t index, uint32_t thread), void *context);

/* The same where data lies at places: threads are bound to theirs, take what place_of says lies
 * there, in order, and then help the others. place_of is pure, in [0, places->count). With fewer
 * than two places it is pp_team_for. */
void pp_team_for_placed(const struct pp_places *places, uint32_t threads, uint64_t count,
                        uint32_t (*place_of)(void *context, uint64_t index),
                        void (*body)(void *context, uint64_t index, uint32_t thread),
                        void *context);

/* The threads this process should compute with: the cgroup's CPU quota (rounded up), cpuset and
 * affinity mask, whichever is least; at least 1. */
uint32_t pp_team_threads_default(void);

#endif
