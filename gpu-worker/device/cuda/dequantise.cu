/*
 * Both sides of a matrix product for tensor cores. Weights: BF16 stays, all others become f16, a
 * group of eight (weights.cuh) a thread. Activations: bf16 beside bf16 weights; f16 beside others,
 * brought below 2^15 by one power of two a call, so that large ones do not overflow and none but
 * those 2^-28 of the largest lose bits. Either can be kept as two halves, high + low, so that
 * products of them have the bits of f32. Moves row_bytes + 2 * columns a row of weights, 8 + 2
 * bytes an activation, and as much again as it writes for low halves.
 */
#include "gpu-worker/device/cuda/weights.cuh"

GW_CUDA_KERNEL(largest, largest, 256, 1)
{
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint32_t bits = 0;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count;
         i += step) {
        uint32_t own = __float_as_uint(args.values[i]) & 0x7fffffffu;
        bits = own > bits ? own : bits;
    }
    for (int other = 16; other > 0; other /= 2) {
        uint32_t theirs = __shfl_xor_sync(GW_ALL_LANES, bits, other);
        bits = theirs > bits ? theirs : bits;
    }
    if (threadIdx.x % GW_WARP == 0) {
        atomicMax(args.bits, bits);
    }
}

GW_CUDA_KERNEL(round, round, 256, 1)
{
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint64_t first = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    bool bf16 = args.largest_bits == nullptr;
    /* Exponents of f32 with their offset of 127; the inverse of the factor is a normal float. */
    uint32_t exponent = bf16 ? 141 : *args.largest_bits >> 23;
    exponent = exponent < 15 ? 15 : exponent;
    float factor = __uint_as_float((268 - exponent) << 23);
    if (first == 0) {
        *args.back = __uint_as_float((exponent - 14) << 23);
    }
    for (uint64_t i = first; i < args.count; i += step) {
        uint64_t row = i / args.stride;
        uint32_t column = static_cast<uint32_t>(i % args.stride);
        float value =
            column < args.columns ? args.values[row * args.columns + column] * factor : 0.0f;
        uint16_t high = bf16 ? gw_f32_to_bf16(value) : gw_f32_to_f16(value);
        args.out[i] = high;
        if (args.low != nullptr) {
            float left = value - (bf16 ? gw_bf16_to_f32(high) : gw_f16_to_f32(high));
            args.low[i] = bf16 ? gw_f32_to_bf16(left) : gw_f32_to_f16(left);
        }
    }
}

/* Four f16 in a store of 8 bytes, and their low halves unless low is NULL. */
static __device__ __forceinline__ void store_four(const float *w, uint16_t *out, uint16_t *low)
{
    uint16_t high[4];
    uint2 four;
    for (uint32_t i = 0; i < 4; i++) {
        high[i] = gw_f32_to_f16(w[i]);
    }
    four.x = high[0] | static_cast<uint32_t>(high[1]) << 16;
    four.y = high[2] | static_cast<uint32_t>(high[3]) << 16;
    *reinterpret_cast<uint2 *>(out) = four;
    if (low != nullptr) {
        for (uint32_t i = 0; i < 4; i++) {
            high[i] = gw_f32_to_f16(w[i] - gw_f16_to_f32(high[i]));
        }
        four.x = high[0] | static_cast<uint32_t>(high[1]) << 16;
        four.y = high[2] | static_cast<uint32_t>(high[3]) << 16;
        *reinterpret_cast<uint2 *>(low) = four;
    }
}

template <uint32_t TYPE>
static __device__ __forceinline__ void blocks(const struct gw_cuda_dequantise_args &args)
{
    uint32_t groups = args.columns / 8;
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < static_cast<uint64_t>(args.rows) * groups; i += step) {
        uint64_t row = i / groups;
        uint32_t j = static_cast<uint32_t>(i % groups);
        float w[8];
        gw_groups<TYPE>::load(static_cast<const uint8_t *>(args.weights) + row * args.row_bytes, j,
                              w);
        uint64_t first = row * args.stride + gw_groups<TYPE>::low_column(j);
        uint64_t second = row * args.stride + gw_groups<TYPE>::high_column(j);
        bool both = args.low != nullptr;
        store_four(w, args.out + first, both ? args.low + first : nullptr);
        store_four(w + 4, args.out + second, both ? args.low + second : nullptr);
    }
}

/* Rows that are not whole groups get columns of zeros behind them. */
static __device__ __forceinline__ void padded(const struct gw_cuda_dequantise_args &args)
{
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < static_cast<uint64_t>(args.rows) * args.stride; i += step) {
        const uint8_t *row =
            static_cast<const uint8_t *>(args.weights) + i / args.stride * args.row_bytes;
        uint32_t column = static_cast<uint32_t>(i % args.stride);
        float w = column < args.columns ? gw_weight_at(args.type, row, column) : 0.0f;
        args.out[i] = args.type == GW_WEIGHT_BF16 ? gw_f32_to_bf16(w) : gw_f32_to_f16(w);
    }
}

GW_CUDA_KERNEL(dequantise, dequantise, 256, 1)
{
    switch (args.type) {
    case GW_WEIGHT_Q4_0:
        blocks<GW_WEIGHT_Q4_0>(args);
        break;
    case GW_WEIGHT_Q4_1:
        blocks<GW_WEIGHT_Q4_1>(args);
        break;
    case GW_WEIGHT_Q8_0:
        blocks<GW_WEIGHT_Q8_0>(args);
        break;
    default:
        padded(args);
        break;
    }
}
