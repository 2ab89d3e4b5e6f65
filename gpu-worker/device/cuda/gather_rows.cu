/*
 * Rows of a batch gathered by number: a row a block, four columns a thread and load where rows are
 * whole fours. Moves 8 bytes a value.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

GW_CUDA_KERNEL(gather_rows, gather_rows, 128, 1)
{
    const float *from = args.from + static_cast<uint64_t>(args.at[blockIdx.x]) * args.width;
    float *out = args.out + static_cast<uint64_t>(blockIdx.x) * args.width;
    if (args.width % 4 == 0) {
        const float4 *fours = reinterpret_cast<const float4 *>(from);
        for (uint32_t i = threadIdx.x; i < args.width / 4; i += blockDim.x) {
            reinterpret_cast<float4 *>(out)[i] = fours[i];
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < args.width; i += blockDim.x) {
        out[i] = from[i];
    }
}
