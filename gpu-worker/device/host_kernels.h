/*
 * The inner loops of the host device: one table an instruction set, chosen once. Plain arrays, no
 * threads, no allocation. scalar is the reference that the others are checked against.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_HOST_KERNELS_H
#define PIGPEN_GPU_WORKER_DEVICE_HOST_KERNELS_H

#include <stdint.h>

#include "common/attn/shape.h"
#include "common/run/cpu.h"
#include "gpu-worker/device/device.h"

/* Keys a block of attention, and the q rows (token and head of a group, flattened) over them. */
#define GW_HOST_KEY_BLOCK 64u
#define GW_HOST_ROW_BLOCK 192u
/* Columns of padded buffers are multiples of this. */
#define GW_HOST_LANES 16u
/* x rows that a row of weights is widened once for. */
#define GW_HOST_DOTS_MAX 4u

struct gw_host_kernels {
    /* One row of weights to f32: count a multiple of 32 for block types. */
    void (*dequantize)(enum gw_weight_type type, const void *row, uint32_t count, float *out);
    /* dot(weights row, x) in f32. sums [count / 32]: the sum of x over each block. */
    float (*dot)(enum gw_weight_type type, const void *row, uint32_t count, const float *x,
                 const float *sums);
    /* The same of several x rows, strides in floats: bit for bit what dot gives each. NULL: no
     * faster than that. */
    void (*dots)(enum gw_weight_type type, const void *row, uint32_t count, const float *x,
                 uint64_t x_stride, const float *sums, uint64_t sums_stride, uint32_t rows,
                 float *out);
    /* c [rows][columns] (+)= a [rows][depth] b [depth][columns]; columns a multiple of
     * GW_HOST_LANES; strides in floats. */
    void (*multiply)(uint32_t rows, uint32_t columns, uint32_t depth, const float *a,
                     uint32_t a_stride, const float *b, uint32_t b_stride, int add, float *c,
                     uint32_t c_stride);
    /* One step of running softmax over scores [GW_HOST_KEY_BLOCK] of a row of which the first
     * `visible` count: they become e^(s - max), the rest 0. max and sum are updated; returns what
     * earlier sums and outputs were to be scaled by (already done to *sum). */
    float (*softmax)(float *scores, uint32_t visible, float *max, float *sum);
    void (*scale)(float *values, uint32_t count, float factor);
    /* One token's K or V row of a head to f32. */
    void (*widen)(enum pp_dtype dtype, const void *row, uint32_t count, float *out);
    /* scores[i] = dot(q [dim], f32 keys [i][stride]) for i < count. */
    void (*scores)(const float *q, uint32_t dim, const float *keys, uint32_t stride, uint32_t count,
                   float *scores);
    void (*swiglu)(const float *gate, const float *up, uint64_t count, float *out);
    float (*square_sum)(const float *x, uint32_t count);
};

/* K and V of these types lie as weights do; int8 does not. */
static inline enum gw_weight_type gw_weight_type_of(enum pp_dtype dtype)
{
    return dtype == PP_F32 ? GW_WEIGHT_F32 : dtype == PP_BF16 ? GW_WEIGHT_BF16 : GW_WEIGHT_F16;
}

extern const struct gw_host_kernels gw_host_kernels_scalar;
extern const struct gw_host_kernels gw_host_kernels_avx2;
extern const struct gw_host_kernels gw_host_kernels_avx512;

/* The best table that needs no more than isa. */
const struct gw_host_kernels *gw_host_kernels_get(enum pp_isa isa);

#endif
