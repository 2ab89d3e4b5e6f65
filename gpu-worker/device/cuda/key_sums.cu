/*
 * Means and second moments of a layer's keys and queries, in f64 and in order of the tokens, as
 * nodes and the host add them up, so the bits are theirs: a dimension of a kv head a thread, which
 * walks over all tokens. Neighbouring threads read neighbouring values; what bounds it is the chain
 * of additions, about 4 cycles of f64 each, which runs beside a prefill's products.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

/* The thread's column of k; false beyond the last. */
static __device__ __forceinline__ bool own_column(uint32_t kv_heads, uint32_t dim, uint32_t *column)
{
    *column = blockIdx.x * blockDim.x + threadIdx.x;
    return *column < kv_heads * dim;
}

static __device__ __forceinline__ float key_at(const struct gw_cuda_key_sums_args &args,
                                               uint64_t token, uint32_t column)
{
    uint32_t bytes = gw_kv_vector_bytes(args.dim, args.dtype);
    const uint8_t *vector =
        static_cast<const uint8_t *>(args.k) + (token * args.kv_heads + column / args.dim) * bytes;
    float scale = gw_kv_scale(vector, args.dim, args.dtype);
    return gw_kv_at(vector, column % args.dim, args.dtype, scale);
}

GW_CUDA_KERNEL(centre_keys, key_sums, 128, 1)
{
    uint32_t column;
    if (!own_column(args.kv_heads, args.dim, &column)) {
        return;
    }
    double sum = 0.0;
#pragma unroll 8
    for (uint64_t i = 0; i < args.count; i++) {
        sum += static_cast<double>(key_at(args, i, column));
    }
    args.means[column] = static_cast<float>(sum / static_cast<double>(args.count));
}

GW_CUDA_KERNEL(key_squares, key_sums, 128, 1)
{
    uint32_t column;
    if (!own_column(args.kv_heads, args.dim, &column)) {
        return;
    }
    double sum = args.squares[column], centre = static_cast<double>(args.centre[column]);
#pragma unroll 8
    for (uint64_t i = 0; i < args.count; i++) {
        double x = static_cast<double>(key_at(args, i, column)) - centre;
        sum = __dadd_rn(sum, __dmul_rn(x, x));
    }
    args.squares[column] = sum;
}

GW_CUDA_KERNEL(query_squares, query_squares, 128, 1)
{
    uint32_t column, group = args.q_heads / args.kv_heads;
    if (!own_column(args.kv_heads, args.dim, &column)) {
        return;
    }
    const float *q = args.q + static_cast<uint64_t>(column / args.dim) * group * args.dim;
    double sum = args.squares[column];
    for (uint64_t row = 0; row < args.rows; row++) {
        for (uint32_t head = 0; head < group; head++) {
            uint64_t at = (row * args.q_heads + head) * args.dim + column % args.dim;
            double x = static_cast<double>(__ldg(q + at));
            sum = __dadd_rn(sum, __dmul_rn(x, x));
        }
    }
    args.squares[column] = sum;
}
