/*
 * The kernel tables of this build, one an instruction set. Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_TABLES_H
#define PIGPEN_ATTN_NODE_KERNELS_TABLES_H

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
