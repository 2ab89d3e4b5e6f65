/*
 * The merge law (common/attn/partial.h) over two sets of partials: a partial a block. The empty one
 * changes nothing, and what is merged into an empty one comes over bit for bit. Reads 8 bytes a
 * value and writes 4.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

GW_CUDA_KERNEL(merge, merge, 128, 1)
{
    uint32_t i = blockIdx.x;
    float own = args.lse[i], other = args.other_lse[i];
    if (other == -INFINITY) {
        return;
    }
    float top = fmaxf(own, other);
    float own_weight = own == -INFINITY ? 0.0f : expf(own - top);
    float other_weight = expf(other - top);
    float sum = own_weight + other_weight;
    float *o = args.o + static_cast<uint64_t>(i) * args.dim;
    const float *other_o = args.other_o + static_cast<uint64_t>(i) * args.dim;
    for (uint32_t d = threadIdx.x; d < args.dim; d += blockDim.x) {
        float mixed = (own_weight * o[d] + other_weight * other_o[d]) / sum;
        o[d] = own == -INFINITY ? other_o[d] : mixed;
    }
    __syncthreads(); /* every thread has read lse */
    if (threadIdx.x == 0) {
        args.lse[i] = own == -INFINITY ? other : top + logf(sum);
    }
}
