/*
 * The kernels of an index build compiled for one instruction set: see build_vector.h.
 */
#include "attn-node/kernels/build_vector.h"

AN_DEFINE_BUILD(avx512)
