/*
 * What the kernels share: sums and maxima over a warp and a block, weights and K/V as numbers. Each
 * .cu file includes it first. Where no CUDA compiler reads it, the twin of target.cuh was included
 * before.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_KERNEL_CUH
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_KERNEL_CUH

#include "common/attn/shape.h"
#include "gpu-worker/device/cuda/kernels.h"
#include "gpu-worker/device/device.h"

#ifdef __CUDACC__
#include "gpu-worker/device/cuda/target.cuh"
#endif

#define GW_WARP      32u
#define GW_ALL_LANES 0xffffffffu

static __device__ __forceinline__ float gw_warp_sum(float value)
{
    for (int bits = 16; bits > 0; bits /= 2) {
        value += __shfl_xor_sync(GW_ALL_LANES, value, bits);
    }
    return value;
}

static __device__ __forceinline__ float gw_warp_max(float value)
{
    for (int bits = 16; bits > 0; bits /= 2) {
        value = fmaxf(value, __shfl_xor_sync(GW_ALL_LANES, value, bits));
    }
    return value;
}

/* The sum over all threads of a block; sums: shared, a float a warp. */
static __device__ __forceinline__ float gw_block_sum(float value, float *sums)
{
    uint32_t warps = blockDim.x / GW_WARP;
    value = gw_warp_sum(value);
    if (threadIdx.x % GW_WARP == 0) {
        sums[threadIdx.x / GW_WARP] = value;
    }
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t i = 0; i < warps; i++) {
        sum += sums[i];
    }
    return sum;
}

/* Four bytes of which only two-byte alignment is known. */
static __device__ __forceinline__ uint32_t gw_load_u32_of_u16(const uint8_t *bytes)
{
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(bytes);
    return static_cast<uint32_t>(__ldg(halves)) | static_cast<uint32_t>(__ldg(halves + 1)) << 16;
}

static __device__ __forceinline__ float gw_load_f16(const uint8_t *bytes)
{
    return gw_f16_to_f32(__ldg(reinterpret_cast<const uint16_t *>(bytes)));
}

/* Weight `column` of a row of any type; layouts: gpu-worker/device/device.h. */
static __device__ __forceinline__ float gw_weight_at(uint32_t type, const uint8_t *row,
                                                     uint32_t column)
{
    uint32_t block = column / 32, i = column % 32;
    switch (type) {
    case GW_WEIGHT_F16:
        return gw_load_f16(row + 2ull * column);
    case GW_WEIGHT_BF16:
        return gw_bf16_to_f32(__ldg(reinterpret_cast<const uint16_t *>(row) + column));
    case GW_WEIGHT_Q8_0: {
        const uint8_t *at = row + 34ull * block;
        return gw_load_f16(at) * static_cast<float>(static_cast<int8_t>(__ldg(at + 2 + i)));
    }
    case GW_WEIGHT_Q4_0: {
        const uint8_t *at = row + 18ull * block;
        uint32_t quant = (__ldg(at + 2 + i % 16) >> (i / 16 * 4)) & 15u;
        return gw_load_f16(at) * (static_cast<float>(quant) - 8.0f);
    }
    case GW_WEIGHT_Q4_1: {
        const uint8_t *at = row + 20ull * block;
        uint32_t quant = (__ldg(at + 4 + i % 16) >> (i / 16 * 4)) & 15u;
        return gw_load_f16(at) * static_cast<float>(quant) + gw_load_f16(at + 2);
    }
    default:
        return __ldg(reinterpret_cast<const float *>(row) + column);
    }
}

static __device__ __forceinline__ uint32_t gw_kv_vector_bytes(uint32_t dim, uint32_t dtype)
{
    return dtype == PP_F32 ? 4 * dim : dtype == PP_I8 ? dim + 4 : 2 * dim;
}

/* The scale of an int8 vector, which need not be aligned; 1 of any other dtype. */
static __device__ __forceinline__ float gw_kv_scale(const uint8_t *vector, uint32_t dim,
                                                    uint32_t dtype)
{
    if (dtype != PP_I8) {
        return 1.0f;
    }
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 4; i++) {
        bits |= static_cast<uint32_t>(__ldg(vector + dim + i)) << (8 * i);
    }
    return __uint_as_float(bits);
}

/* Element d of a vector, its scale given; rounded as on the host. */
static __device__ __forceinline__ float gw_kv_at(const uint8_t *vector, uint32_t d, uint32_t dtype,
                                                 float scale)
{
    switch (dtype) {
    case PP_BF16:
        return gw_bf16_to_f32(__ldg(reinterpret_cast<const uint16_t *>(vector) + d));
    case PP_F16:
        return gw_f16_to_f32(__ldg(reinterpret_cast<const uint16_t *>(vector) + d));
    case PP_I8:
        return __fmul_rn(static_cast<float>(static_cast<int8_t>(__ldg(vector + d))), scale);
    default:
        return __ldg(reinterpret_cast<const float *>(vector) + d);
    }
}

#endif
