/*
 * out [rows][outputs] = x [rows][columns] W^T for up to 4 rows, W as it lies in the file: an output
 * row, or several, a warp; lanes take neighbouring groups of eight weights (weights.cuh), which
 * every row of x uses, and all sums are f32. Several outputs a warp use the same x, whose 4 bytes
 * a weight would otherwise ask more of the first cache than the weights ask of memory. Bound by
 * reading W once: outputs * row_bytes a call.
 */
#include "gpu-worker/device/cuda/weights.cuh"

#define WARPS 8u

/* Writes sums [OUTPUTS][ROWS] of a warp, its lanes one each. */
template <uint32_t ROWS, uint32_t OUTPUTS>
static __device__ __forceinline__ void store(const struct gw_cuda_gemv_args &args, uint32_t first,
                                             const float (&sums)[OUTPUTS][ROWS])
{
    uint32_t lane = threadIdx.x % GW_WARP;
#pragma unroll
    for (uint32_t i = 0; i < OUTPUTS * ROWS; i++) {
        float sum = gw_warp_sum(sums[i / ROWS][i % ROWS]);
        uint32_t output = first + i / ROWS, row = i % ROWS;
        if (lane == i && output < args.outputs && row < args.x_rows) {
            float *out = args.out + static_cast<uint64_t>(row) * args.outputs + output;
            *out = args.add ? *out + sum : sum;
        }
    }
}

template <uint32_t TYPE, uint32_t ROWS, uint32_t OUTPUTS>
static __device__ __forceinline__ void multiply(const struct gw_cuda_gemv_args &args)
{
    uint32_t lane = threadIdx.x % GW_WARP;
    uint32_t first = (blockIdx.x * WARPS + threadIdx.x / GW_WARP) * OUTPUTS;
    if (first >= args.outputs) {
        return;
    }
    const uint8_t *weights[OUTPUTS];
#pragma unroll
    for (uint32_t i = 0; i < OUTPUTS; i++) { /* those beyond the last read it once more */
        uint64_t output = first + i < args.outputs ? first + i : args.outputs - 1;
        weights[i] = static_cast<const uint8_t *>(args.weights) + output * args.row_bytes;
    }
    constexpr int STEPS = ROWS > 1 ? 1 : 2; /* at once, as registers allow */
    float sums[OUTPUTS][ROWS] = {};
#pragma unroll STEPS
    for (uint32_t j = lane; j < args.columns / 8; j += GW_WARP) {
        float4 low[ROWS], high[ROWS];
#pragma unroll
        for (uint32_t row = 0; row < ROWS; row++) {
            uint32_t from = row < args.x_rows ? row : 0;
            const float *x = args.x + static_cast<uint64_t>(from) * args.columns;
            low[row] = __ldg(reinterpret_cast<const float4 *>(x + gw_groups<TYPE>::low_column(j)));
            high[row] =
                __ldg(reinterpret_cast<const float4 *>(x + gw_groups<TYPE>::high_column(j)));
        }
#pragma unroll
        for (uint32_t i = 0; i < OUTPUTS; i++) {
            float w[8];
            gw_groups<TYPE>::load(weights[i], j, w);
#pragma unroll
            for (uint32_t row = 0; row < ROWS; row++) {
                sums[i][row] += w[0] * low[row].x + w[1] * low[row].y + w[2] * low[row].z +
                                w[3] * low[row].w + w[4] * high[row].x + w[5] * high[row].y +
                                w[6] * high[row].z + w[7] * high[row].w;
            }
        }
    }
    store<ROWS, OUTPUTS>(args, first, sums);
}

#define GEMV(type, id)                                                                             \
    GW_CUDA_KERNEL(gemv_##type##_1x1, gemv, 256, 4)                                                \
    {                                                                                              \
        multiply<id, 1, 1>(args);                                                                  \
    }                                                                                              \
    GW_CUDA_KERNEL(gemv_##type##_1x4, gemv, 256, 2)                                                \
    {                                                                                              \
        multiply<id, 1, 4>(args);                                                                  \
    }                                                                                              \
    GW_CUDA_KERNEL(gemv_##type##_4x2, gemv, 256, 2)                                                \
    {                                                                                              \
        multiply<id, GW_CUDA_GEMV_ROWS, 2>(args);                                                  \
    }

GEMV(f32, GW_WEIGHT_F32)
GEMV(f16, GW_WEIGHT_F16)
GEMV(bf16, GW_WEIGHT_BF16)
GEMV(q4_0, GW_WEIGHT_Q4_0)
GEMV(q4_1, GW_WEIGHT_Q4_1)
GEMV(q8_0, GW_WEIGHT_Q8_0)

/* Any type and number of columns, a weight a lane: for rows that are not whole groups. */
GW_CUDA_KERNEL(gemv_any, gemv, 256, 4)
{
    uint32_t lane = threadIdx.x % GW_WARP;
    uint32_t output = blockIdx.x * WARPS + threadIdx.x / GW_WARP;
    if (output >= args.outputs) {
        return;
    }
    const uint8_t *weights = static_cast<const uint8_t *>(args.weights) + output * args.row_bytes;
    float sums[1][GW_CUDA_GEMV_ROWS] = {};
    for (uint32_t j = lane; j < args.columns; j += GW_WARP) {
        float w = gw_weight_at(args.type, weights, j);
#pragma unroll
        for (uint32_t row = 0; row < GW_CUDA_GEMV_ROWS; row++) {
            uint32_t from = row < args.x_rows ? row : 0;
            sums[0][row] += w * __ldg(args.x + static_cast<uint64_t>(from) * args.columns + j);
        }
    }
    store<GW_CUDA_GEMV_ROWS, 1>(args, output, sums);
}
