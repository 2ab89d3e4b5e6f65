/*
 * Choosing rows by rank, for the peers: the largest, or a sample. Plain loops, any thread.
 */
#ifndef PIGPEN_BENCH_QUALITY_SELECT_H
#define PIGPEN_BENCH_QUALITY_SELECT_H

#include <stdint.h>

/* ranks_out[i] = max over heads of softmax(scores of the head)[i]; scores [heads][count]. */
void quality_ranks(const float *scores, uint32_t heads, uint32_t count, float *ranks_out);

/* The `wanted` largest ranks, ids ascending; ties go to the first. sorted [count] is scratch.
 * Returns min(wanted, count). */
uint32_t quality_largest(const float *ranks, uint32_t count, uint32_t wanted, float *sorted,
                         uint32_t *ids_out);

/* Draws every row by itself with u = min(1, C rank), C such that sum u is `budget`. Writes ids and
 * their u, returns their number. */
uint32_t quality_sample(const float *ranks, uint32_t count, double budget, uint64_t seed,
                        uint32_t *ids_out, float *u_out);

#endif
