/*
 * The sketch kernels of this build, one table an instruction set. Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_SKETCH_TABLES_H
#define PIGPEN_ATTN_NODE_KERNELS_SKETCH_TABLES_H

#include "attn-node/kernels/sketch.h"

extern const struct an_sketch_kernels an_sketch_scalar;
extern const struct an_sketch_kernels an_sketch_avx2;
extern const struct an_sketch_kernels an_sketch_avx512;
extern const struct an_sketch_kernels an_sketch_avx512bf16;

extern const struct an_sketch_costs an_sketch_costs_scalar; /* costs.c */
extern const struct an_sketch_costs an_sketch_costs_avx2;
extern const struct an_sketch_costs an_sketch_costs_avx512;
extern const struct an_sketch_costs an_sketch_costs_avx512bf16;

/* A query's tables for look-ups of four bits, codes of 1 and 2 bits; sums mod 256 are those of the
 * tables of 64. A group of three planes has six of 16 entries: the low four bits of each; bits 4
 * and 5 of the first, below those of the second; the top two likewise; bits 4 to 7 of the third. */
#define AN_SKETCH_NIBBLE_GROUP     96u
#define AN_SKETCH_NIBBLE_BYTES_MAX 2112u /* 64 planes */
#define AN_SKETCH_NIBBLE_HEADS     16u   /* a scan makes tables for so many at a time */
void an_sketch_nibbles_make(const struct an_sketch_shape *shape,
                            const struct an_sketch_query *query, uint8_t *tables_out);

/* The parts of the AVX-512 tables that lie in files of their own. */
void an_sketch_rotate_avx512(const struct an_sketch_signs *signs, uint32_t padded, float *x);
void an_sketch_encode_avx512(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                             uint32_t begin, uint32_t count, uint8_t *block, float *factors_out);
void an_sketch_attend_avx512(const struct an_rows *rows, const uint16_t *ids,
                             const uint16_t *thresholds, uint32_t count, const float *q,
                             uint32_t heads, struct an_accumulator *accumulators);

/* The parts of the AVX2 table that lie in files of their own. */
void an_sketch_rotate_avx2(const struct an_sketch_signs *signs, uint32_t padded, float *x);
void an_sketch_encode_avx2(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                           uint32_t begin, uint32_t count, uint8_t *block, float *factors_out);
void an_sketch_attend_avx2(const struct an_rows *rows, const uint16_t *ids,
                           const uint16_t *thresholds, uint32_t count, const float *q,
                           uint32_t heads, struct an_accumulator *accumulators);

#endif
