/*
 * The kernel tables of this build, one an instruction set. Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_TABLES_H
#define PIGPEN_ATTN_NODE_KERNELS_TABLES_H

#include "attn-node/kernels/kernels.h"

extern const struct an_kernels an_kernels_scalar;
extern const struct an_kernels an_kernels_avx2;
extern const struct an_kernels an_kernels_avx512;

#endif
