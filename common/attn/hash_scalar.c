/*
 * The hash law compiled for one instruction set: see hash_lanes.h.
 */
#include "common/attn/hash_lanes.h"

static void fill(const struct pp_hash *hash, const void *rows, uint64_t row_bytes,
                 enum pp_dtype dtype, const float *centre, uint32_t lane_count, float *x)
{
    pp_hash_fill_body(hash, rows, row_bytes, dtype, centre, lane_count, x);
}

static void lanes(const struct pp_hash *hash, const float *x, uint16_t *codes, uint64_t stride)
{
    pp_hash_lanes_body(hash, x, codes, stride);
}

const struct pp_hash_kernels pp_hash_scalar = {.fill = fill, .lanes = lanes};
