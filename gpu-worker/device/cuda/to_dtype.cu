/*
 * f32 vectors to a wire dtype, half to even, the same bits as common/attn/shape.c. A vector a warp:
 * int8 needs the largest magnitude of its vector first, and its scale stands behind the vector at
 * any alignment. Of one run of memory, or of rows of a batch that go apart. Reads 4 bytes a value
 * (int8: twice, the second time from the cache).
 */
#include "gpu-worker/device/cuda/kernel.cuh"

static __device__ __forceinline__ void to_halves(const float *values, uint32_t dim, bool bf16,
                                                 uint16_t *out)
{
    for (uint32_t d = threadIdx.x % GW_WARP; d < dim; d += GW_WARP) {
        out[d] = bf16 ? gw_f32_to_bf16(values[d]) : gw_f32_to_f16(values[d]);
    }
}

/* NaN and infinity have larger bits than any number: then the scale is not finite. */
static __device__ __forceinline__ void to_int8(const float *values, uint32_t dim, uint8_t *out)
{
    uint32_t lane = threadIdx.x % GW_WARP, bits = 0;
    for (uint32_t d = lane; d < dim; d += GW_WARP) {
        uint32_t own = __float_as_uint(values[d]) & 0x7fffffffu;
        bits = own > bits ? own : bits;
    }
    for (int other = 16; other > 0; other /= 2) {
        uint32_t theirs = __shfl_xor_sync(GW_ALL_LANES, bits, other);
        bits = theirs > bits ? theirs : bits;
    }
    float scale = __fdiv_rn(__uint_as_float(bits), 127.0f);
    bool zero = !(scale > 0.0f) || isinf(scale);
    for (uint32_t d = lane; d < dim; d += GW_WARP) {
        float whole = zero ? 0.0f : rintf(__fdiv_rn(values[d], scale));
        out[d] = static_cast<uint8_t>(static_cast<int8_t>(fminf(fmaxf(whole, -127.0f), 127.0f)));
    }
    if (lane < 4) {
        out[dim + lane] = static_cast<uint8_t>(__float_as_uint(scale) >> (8 * lane));
    }
}

/* One vector, by a warp. */
static __device__ __forceinline__ void to_vector(const float *values, uint32_t dim, uint32_t dtype,
                                                 uint8_t *out)
{
    if (dtype == PP_I8) {
        to_int8(values, dim, out);
    } else if (dtype == PP_F32) {
        for (uint32_t d = threadIdx.x % GW_WARP; d < dim; d += GW_WARP) {
            reinterpret_cast<float *>(out)[d] = values[d];
        }
    } else {
        to_halves(values, dim, dtype == PP_BF16, reinterpret_cast<uint16_t *>(out));
    }
}

GW_CUDA_KERNEL(to_dtype, to_dtype, 256, 1)
{
    uint32_t bytes = gw_kv_vector_bytes(args.dim, args.dtype);
    uint64_t warps = static_cast<uint64_t>(gridDim.x) * blockDim.x / GW_WARP;
    uint64_t first = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / GW_WARP;
    for (uint64_t i = first; i < args.count; i += warps) {
        to_vector(args.values + i * args.dim, args.dim, args.dtype,
                  static_cast<uint8_t *>(args.out) + i * bytes);
    }
}

GW_CUDA_KERNEL(scatter_rows, scatter_rows, 128, 1)
{
    uint32_t bytes = gw_kv_vector_bytes(args.dim, args.dtype);
    uint8_t *out = static_cast<uint8_t *>(args.outs[blockIdx.x]);
    const float *values = args.values + static_cast<uint64_t>(blockIdx.x) * args.count * args.dim;
    for (uint64_t i = threadIdx.x / GW_WARP; out != NULL && i < args.count;
         i += blockDim.x / GW_WARP) {
        to_vector(values + i * args.dim, args.dim, args.dtype, out + i * bytes);
    }
}
