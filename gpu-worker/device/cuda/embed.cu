/*
 * out [count][columns] = rows ids[i] of a table of any weight type: a row a block, neighbouring
 * threads neighbouring columns. Reads row_bytes a row, writes 4 bytes a column.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

GW_CUDA_KERNEL(embed, embed, 128, 1)
{
    const uint8_t *row =
        static_cast<const uint8_t *>(args.table) + args.ids[blockIdx.x] * args.row_bytes;
    float *out = args.out + static_cast<uint64_t>(blockIdx.x) * args.columns;
    for (uint32_t i = threadIdx.x; i < args.columns; i += blockDim.x) {
        out[i] = gw_weight_at(args.type, row, i);
    }
}
