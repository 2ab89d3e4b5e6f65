/*
 * The kernel tables of this build, one an instruction set. Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_TABLES_H
#define PIGPEN_ATTN_NODE_KERNELS_TABLES_H

#include <string.h>

#include "attn-node/kernels/kernels.h"

extern const struct an_kernels an_kernels_scalar;
extern const struct an_kernels an_kernels_avx2;
extern const struct an_kernels an_kernels_avx512;

extern const struct an_costs an_costs_scalar;
extern const struct an_costs an_costs_avx2;
extern const struct an_costs an_costs_avx512;

/* The part of the AVX-512 table that lies in a file of its own. */
void an_attend_exact_avx512(const struct an_rows *rows, uint32_t begin, uint32_t end,
                            const float *q, uint32_t heads, struct an_accumulator *accumulators);

/* A counting sort but for its last pass: offsets_out as sort_codes says, and the same as cursors
 * that pass moves, behind the ids in scratch. */
static inline uint16_t *an_sort_cursors(const uint16_t *codes, uint32_t count, uint32_t k,
                                        void *scratch, uint16_t *offsets_out)
{
    uint16_t *cursors = (uint16_t *)scratch + an_sort_buffer_ids(count);
    memset(cursors, 0, sizeof(*cursors) << k);
    for (uint32_t i = 0; i < count; ++i) {
        ++cursors[codes[i]];
    }
    uint32_t start = 0;
    for (uint32_t bucket = 0; bucket < 1u << k; ++bucket) {
        uint32_t size = cursors[bucket];
        offsets_out[bucket] = (uint16_t)start;
        cursors[bucket] = (uint16_t)start;
        start += size;
    }
    return cursors;
}

/* The parts of the tables that lie in build_*.c. */
void an_sum_keys_scalar(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums);
void an_square_distances_scalar(const struct an_rows *rows, uint32_t begin, uint32_t end,
                                const float *centre, double *squares_out);
void an_sort_codes_scalar(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,
                          uint16_t *offsets, uint16_t *ids);
void an_sum_keys_avx2(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums);
void an_square_distances_avx2(const struct an_rows *rows, uint32_t begin, uint32_t end,
                              const float *centre, double *squares_out);
void an_sort_codes_avx2(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,
                        uint16_t *offsets, uint16_t *ids);
void an_sum_keys_avx512(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums);
void an_square_distances_avx512(const struct an_rows *rows, uint32_t begin, uint32_t end,
                                const float *centre, double *squares_out);
void an_sort_codes_avx512(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,
                          uint16_t *offsets, uint16_t *ids);

#endif
