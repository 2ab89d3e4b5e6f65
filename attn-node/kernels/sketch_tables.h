/*
 * The sketch kernels of this build, one table an instruction set. Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_SKETCH_TABLES_H
#define PIGPEN_ATTN_NODE_KERNELS_SKETCH_TABLES_H

#include "attn-node/kernels/sketch.h"

extern const struct an_sketch_kernels an_sketch_scalar;
extern const struct an_sketch_kernels an_sketch_avx2;
extern const struct an_sketch_kernels an_sketch_avx512bf16;

/* The parts of the AVX-512 table that lie in files of their own. */
void an_sketch_rotate_avx512(const struct an_sketch_signs *signs, uint32_t padded, float *x);
void an_sketch_encode_avx512(const struct an_sketch_encoder *encoder, const struct an_rows *rows,
                             uint32_t begin, uint32_t count, uint8_t *block, float *factors_out);
void an_sketch_attend_avx512(const struct an_rows *rows, const uint16_t *ids,
                             const uint16_t *thresholds, uint32_t count, const float *q,
                             uint32_t heads, struct an_accumulator *accumulators);

#endif
