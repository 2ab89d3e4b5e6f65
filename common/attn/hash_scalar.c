/*
 * The hash law compiled for one instruction set: see hash_lanes.h.
 */
#include "common/attn/hash_lanes.h"

static void lanes(const struct pp_hash *hash, const float *x, uint16_t *codes)
{
    pp_hash_lanes_body(hash, x, codes);
}

const struct pp_hash_kernels pp_hash_scalar = {.lanes = lanes};
