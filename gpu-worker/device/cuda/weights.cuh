/*
 * Eight weights at a time out of a row of a matrix, for rows that begin at multiples of 16 bytes
 * (F32, F16, BF16) and for the block types as GGUF has them, whose blocks begin at multiples of 2.
 * Group j of a row is what a lane takes: the weights of columns low_column(j) .. + 3 and
 * high_column(j) .. + 3; the lanes of a warp take neighbours, so that what they load is dense.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_WEIGHTS_CUH
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_WEIGHTS_CUH

#include "gpu-worker/device/cuda/kernel.cuh"

/* Layouts: gpu-worker/device/device.h. */
template <uint32_t TYPE> struct gw_groups;

struct gw_dense_groups {
    static __device__ __forceinline__ uint32_t low_column(uint32_t j)
    {
        return 8 * j;
    }
    static __device__ __forceinline__ uint32_t high_column(uint32_t j)
    {
        return 8 * j + 4;
    }
};

template <> struct gw_groups<GW_WEIGHT_F32> : gw_dense_groups {
    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t j, float (&w)[8])
    {
        const float4 *at = reinterpret_cast<const float4 *>(row) + 2 * j;
        float4 low = __ldg(at), high = __ldg(at + 1);
        w[0] = low.x, w[1] = low.y, w[2] = low.z, w[3] = low.w;
        w[4] = high.x, w[5] = high.y, w[6] = high.z, w[7] = high.w;
    }
};

template <bool BF16> struct gw_half_groups : gw_dense_groups {
    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t j, float (&w)[8])
    {
        uint4 eight = __ldg(reinterpret_cast<const uint4 *>(row) + j);
        const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
        for (uint32_t i = 0; i < 8; i++) {
            uint16_t half = static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
            w[i] = BF16 ? gw_bf16_to_f32(half) : gw_f16_to_f32(half);
        }
    }
};

template <> struct gw_groups<GW_WEIGHT_F16> : gw_half_groups<false> {
};
template <> struct gw_groups<GW_WEIGHT_BF16> : gw_half_groups<true> {
};

template <> struct gw_groups<GW_WEIGHT_Q8_0> : gw_dense_groups {
    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t j, float (&w)[8])
    {
        const uint8_t *block = row + 34ull * (j / 4);
        const uint8_t *at = block + 2 + 8 * (j % 4);
        const uint32_t quads[2] = {gw_load_u32_of_u16(at), gw_load_u32_of_u16(at + 4)};
        float d = gw_load_f16(block);
        for (uint32_t i = 0; i < 8; i++) {
            int8_t quant = static_cast<int8_t>(quads[i / 4] >> (8 * (i % 4)));
            w[i] = d * static_cast<float>(quant);
        }
    }
};

/* Four bytes: their low nibbles are columns of a block's first half, the high ones of the second.
 */
struct gw_nibble_groups {
    static __device__ __forceinline__ uint32_t low_column(uint32_t j)
    {
        return j / 4 * 32 + j % 4 * 4;
    }
    static __device__ __forceinline__ uint32_t high_column(uint32_t j)
    {
        return low_column(j) + 16;
    }
    static __device__ __forceinline__ void spread(uint32_t nibbles, float d, float low,
                                                  float (&w)[8])
    {
        for (uint32_t i = 0; i < 4; i++) {
            w[i] = d * static_cast<float>((nibbles >> (8 * i)) & 15u) + low;
            w[4 + i] = d * static_cast<float>((nibbles >> (8 * i + 4)) & 15u) + low;
        }
    }
};

template <> struct gw_groups<GW_WEIGHT_Q4_0> : gw_nibble_groups {
    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t j, float (&w)[8])
    {
        const uint8_t *block = row + 18ull * (j / 4);
        float d = gw_load_f16(block);
        spread(gw_load_u32_of_u16(block + 2 + 4 * (j % 4)), d, -8.0f * d, w);
    }
};

template <> struct gw_groups<GW_WEIGHT_Q4_1> : gw_nibble_groups {
    static __device__ __forceinline__ void load(const uint8_t *row, uint32_t j, float (&w)[8])
    {
        const uint8_t *block = row + 20ull * (j / 4);
        spread(gw_load_u32_of_u16(block + 4 + 4 * (j % 4)), gw_load_f16(block),
               gw_load_f16(block + 2), w);
    }
};

#endif
