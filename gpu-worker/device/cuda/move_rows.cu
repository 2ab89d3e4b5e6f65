/*
 * Rows of a batch gathered and scattered by number: a row a block, four columns a thread and load
 * where rows are whole fours. Moves 8 bytes a value.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

static __device__ __forceinline__ void move_row(const float *from, uint32_t width, float *out)
{
    if (width % 4 == 0) {
        const float4 *fours = reinterpret_cast<const float4 *>(from);
        for (uint32_t i = threadIdx.x; i < width / 4; i += blockDim.x) {
            reinterpret_cast<float4 *>(out)[i] = fours[i];
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        out[i] = from[i];
    }
}

GW_CUDA_KERNEL(gather_rows, move_rows, 128, 1)
{
    uint64_t row = args.at[blockIdx.x];
    move_row(args.from + row * args.width, args.width,
             args.out + static_cast<uint64_t>(blockIdx.x) * args.width);
}

GW_CUDA_KERNEL(scatter_rows, move_rows, 128, 1)
{
    uint64_t row = args.at[blockIdx.x];
    move_row(args.from + static_cast<uint64_t>(blockIdx.x) * args.width, args.width,
             args.out + row * args.width);
}
