/*
 * The host device's inner loops in plain C: the reference of every other instruction set, and what
 * runs where nothing better is. Formulas: device.h (weight layouts), running softmax (Milakov and
 * Gimelshein, arXiv 1805.02867). It refuses to know threads and tensors.
 */
#include "gpu-worker/device/host_kernels.h"

#include <math.h>
#include <string.h>

#include "common/base/half.h"

static float scalar_half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof(half));
    return pp_f16_to_f32(half);
}

static void scalar_block(enum gw_weight_type type, const uint8_t *block, float *out)
{
    float d = scalar_half_at(block);
    if (type == GW_WEIGHT_Q8_0) {
        for (uint32_t i = 0; i < 32; i++) {
            out[i] = d * (float)(int8_t)block[2 + i];
        }
        return;
    }
    float low = type == GW_WEIGHT_Q4_1 ? scalar_half_at(block + 2) : -8.0f * d;
    const uint8_t *nibbles = block + (type == GW_WEIGHT_Q4_1 ? 4 : 2);
    for (uint32_t i = 0; i < 16; i++) {
        out[i] = d * (float)(nibbles[i] & 15u) + low;
        out[i + 16] = d * (float)(nibbles[i] >> 4) + low;
    }
}

static void scalar_dequantize(enum gw_weight_type type, const void *row, uint32_t count, float *out)
{
    const uint8_t *bytes = row;
    if (type == GW_WEIGHT_F32) {
        memcpy(out, row, count * sizeof(float));
        return;
    }
    if (type == GW_WEIGHT_F16 || type == GW_WEIGHT_BF16) {
        for (uint32_t i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, bytes + 2ull * i, sizeof(half));
            out[i] = type == GW_WEIGHT_F16 ? pp_f16_to_f32(half) : pp_bf16_to_f32(half);
        }
        return;
    }
    uint64_t block_bytes = gw_matrix_row_bytes(type, 32);
    for (uint32_t i = 0; i < count; i += 32) {
        scalar_block(type, bytes + i / 32 * block_bytes, out + i);
    }
}

static float scalar_dot(enum gw_weight_type type, const void *row, uint32_t count, const float *x,
                        const float *sums)
{
    (void)sums;
    const uint8_t *bytes = row;
    uint64_t step_bytes = gw_matrix_row_bytes(type, 32);
    float values[32];
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i += 32) {
        uint32_t step = count - i < 32 ? count - i : 32;
        scalar_dequantize(type, bytes + i / 32 * step_bytes, step, values);
        for (uint32_t j = 0; j < step; j++) {
            sum += (double)values[j] * (double)x[i + j];
        }
    }
    return (float)sum;
}

static void scalar_multiply(uint32_t rows, uint32_t columns, uint32_t depth, const float *a,
                            uint32_t a_stride, const float *b, uint32_t b_stride, int add, float *c,
                            uint32_t c_stride)
{
    for (uint32_t row = 0; row < rows; row++) {
        float *to = c + (uint64_t)row * c_stride;
        if (!add) {
            memset(to, 0, columns * sizeof(float));
        }
        for (uint32_t i = 0; i < depth; i++) {
            float factor = a[(uint64_t)row * a_stride + i];
            const float *from = b + (uint64_t)i * b_stride;
            for (uint32_t column = 0; column < columns; column++) {
                to[column] += factor * from[column];
            }
        }
    }
}

static float scalar_softmax(float *scores, uint32_t visible, float *max, float *sum)
{
    float top = *max;
    for (uint32_t i = 0; i < visible; i++) {
        top = scores[i] > top ? scores[i] : top;
    }
    if (top == -INFINITY) { /* nothing seen yet */
        memset(scores, 0, GW_HOST_KEY_BLOCK * sizeof(float));
        return 1.0f;
    }
    float factor = expf(*max - top);
    float added = 0.0f;
    for (uint32_t i = 0; i < visible; i++) {
        scores[i] = expf(scores[i] - top);
        added += scores[i];
    }
    memset(scores + visible, 0, (GW_HOST_KEY_BLOCK - visible) * sizeof(float));
    *max = top;
    *sum = *sum * factor + added;
    return factor;
}

static void scalar_scale(float *values, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; i++) {
        values[i] *= factor;
    }
}

static void scalar_widen(enum pp_dtype dtype, const void *row, uint32_t count, float *out)
{
    pp_dtype_to_f32(dtype, row, count, out);
}

static void scalar_scores(const float *q, uint32_t dim, const float *keys, uint32_t stride,
                          uint32_t count, float *scores)
{
    for (uint32_t i = 0; i < count; i++) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < dim; j++) {
            sum += q[j] * keys[(uint64_t)i * stride + j];
        }
        scores[i] = sum;
    }
}

static void scalar_swiglu(const float *gate, const float *up, uint64_t count, float *out)
{
    for (uint64_t i = 0; i < count; i++) {
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
    }
}

static float scalar_square_sum(const float *x, uint32_t count)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return (float)sum;
}

const struct gw_host_kernels gw_host_kernels_scalar = {
    .dequantize = scalar_dequantize,
    .dot = scalar_dot,
    .multiply = scalar_multiply,
    .softmax = scalar_softmax,
    .scale = scalar_scale,
    .widen = scalar_widen,
    .scores = scalar_scores,
    .swiglu = scalar_swiglu,
    .square_sum = scalar_square_sum,
};
