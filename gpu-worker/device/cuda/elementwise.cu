/*
 * A bias added to every row, and SwiGLU (Shazeer, arXiv 2002.05202): silu(gate) * up. A grid that
 * strides, neighbouring threads neighbouring values; SwiGLU takes four a load. Moves 12 bytes a
 * value.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

GW_CUDA_KERNEL(add_bias, add_bias, 256, 1)
{
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < args.count;
         i += step) {
        args.x[i] += __ldg(args.bias + i % args.width);
    }
}

static __device__ __forceinline__ float gated(float gate, float up)
{
    return gate / (1.0f + expf(-gate)) * up;
}

GW_CUDA_KERNEL(swiglu, swiglu, 256, 1)
{
    uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    uint64_t first = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    uint64_t fours = args.count / 4;
    for (uint64_t i = first; i < fours; i += step) {
        float4 gate = reinterpret_cast<const float4 *>(args.gate)[i];
        float4 up = reinterpret_cast<const float4 *>(args.up)[i];
        reinterpret_cast<float4 *>(args.out)[i] = make_float4(
            gated(gate.x, up.x), gated(gate.y, up.y), gated(gate.z, up.z), gated(gate.w, up.w));
    }
    for (uint64_t i = 4 * fours + first; i < args.count; i += step) {
        args.out[i] = gated(args.gate[i], args.up[i]);
    }
}
