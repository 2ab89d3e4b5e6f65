/*
 * Rotary positions (Su et al., arXiv 2104.09864) in place: a row of all heads a block, a pair a
 * thread at a time; neighbouring threads turn neighbouring pairs of a head. Reads and writes 8
 * bytes a pair; the angles of a position are read once a head, from the cache.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

GW_CUDA_KERNEL(rope, rope, 128, 1)
{
    uint32_t half = args.dim / 2;
    uint64_t angles = (args.position + blockIdx.x) * half;
    float *row = args.x + static_cast<uint64_t>(blockIdx.x) * args.heads * args.dim;
    for (uint32_t i = threadIdx.x; i < args.heads * half; i += blockDim.x) {
        uint32_t head = i / half, pair = i % half;
        float *a = row + head * args.dim + (args.interleaved ? 2 * pair : pair);
        float *b = a + (args.interleaved ? 1 : half);
        float cosine = __ldg(args.cosine + angles + pair);
        float sine = __ldg(args.sine + angles + pair);
        float turned = *a * cosine - *b * sine;
        *b = *a * sine + *b * cosine;
        *a = turned;
    }
}
