/*
 * out = x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich, arXiv 1910.07467): a row a
 * block, four columns a thread and load where rows are whole fours. out may be x: a thread writes
 * what it alone reads, after the barrier of the sum. Reads 4 bytes a value twice, the second time
 * from the cache, and writes 4. With a residual x += y first, by the threads that read x again
 * later, which reads and writes 4 bytes more; out may be y. Shared: a float a warp.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

static __device__ __forceinline__ float square_sum(const float *x, uint32_t width)
{
    float sum = 0.0f;
    if (width % 4 == 0) {
        const float4 *fours = reinterpret_cast<const float4 *>(x);
        for (uint32_t i = threadIdx.x; i < width / 4; i += blockDim.x) {
            float4 four = fours[i];
            sum += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
        }
        return sum;
    }
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        sum += x[i] * x[i];
    }
    return sum;
}

static __device__ __forceinline__ void add_row(const float *y, uint32_t width, float *x)
{
    if (width % 4 == 0) {
        for (uint32_t i = threadIdx.x; i < width / 4; i += blockDim.x) {
            float4 own = reinterpret_cast<float4 *>(x)[i];
            float4 other = reinterpret_cast<const float4 *>(y)[i];
            reinterpret_cast<float4 *>(x)[i] =
                make_float4(own.x + other.x, own.y + other.y, own.z + other.z, own.w + other.w);
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) {
        x[i] += y[i];
    }
}

static __device__ __forceinline__ void norm_row(const struct gw_cuda_rms_norm_args &args,
                                                const float *x, float *sums)
{
    float *out = args.out + static_cast<uint64_t>(blockIdx.x) * args.width;
    float sum = gw_block_sum(square_sum(x, args.width), sums);
    float factor = 1.0f / sqrtf(sum / static_cast<float>(args.width) + args.epsilon);
    if (args.width % 4 == 0) {
        const float4 *fours = reinterpret_cast<const float4 *>(x);
        const float4 *weights = reinterpret_cast<const float4 *>(args.weight);
        for (uint32_t i = threadIdx.x; i < args.width / 4; i += blockDim.x) {
            float4 four = fours[i], weight = weights[i];
            reinterpret_cast<float4 *>(out)[i] =
                make_float4(four.x * factor * weight.x, four.y * factor * weight.y,
                            four.z * factor * weight.z, four.w * factor * weight.w);
        }
        return;
    }
    for (uint32_t i = threadIdx.x; i < args.width; i += blockDim.x) {
        out[i] = x[i] * factor * args.weight[i];
    }
}

GW_CUDA_KERNEL(rms_norm, rms_norm, 256, 1)
{
    GW_CUDA_SHARED(float, sums);
    norm_row(args, args.x + static_cast<uint64_t>(blockIdx.x) * args.width, sums);
}

GW_CUDA_KERNEL(add_rms_norm, rms_norm, 256, 1)
{
    GW_CUDA_SHARED(float, sums);
    uint64_t at = static_cast<uint64_t>(blockIdx.x) * args.width;
    add_row(args.y + at, args.width, args.sum + at);
    norm_row(args, args.sum + at, sums);
}
