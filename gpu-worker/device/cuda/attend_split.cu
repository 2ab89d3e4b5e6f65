/*
 * Attention of few q rows over many tokens in f32 (flash-decoding: a partial a piece, merged
 * afterwards; running softmax: Milakov and Gimelshein, arXiv 1805.02867), for every wire dtype and
 * dimension. A block takes a piece of the tokens for a kv head and 8 of its q rows, tokens 32 at a
 * time, a thread a dimension:
 *   scores: a warp holds its 32 dimensions of 32 keys in shared memory and multiplies, a key a
 *   lane; softmax: a q row a warp adds up the warps' parts, a key a lane; values: a dimension a
 *   thread adds up 32 values for all 8 rows.
 * Each K/V value is read once for 8 q rows: pieces * 2 * vector bytes a call are what bounds it.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

#define ROWS       GW_CUDA_SPLIT_ROWS
#define KEYS       GW_WARP
#define KEY_STRIDE 33u /* lanes read a column of keys: 33 keeps them in different banks */
#define WARP_KEYS  (KEYS * KEY_STRIDE)

/* Shared memory of a block, behind each other; dim: padded to whole warps. */
struct split_shared {
    const uint8_t **k, **v;    /* [KEYS] vectors of the tokens at hand; NULL: beyond the end */
    float *q;                  /* [ROWS][dim], scaled */
    float *keys;               /* [warp][WARP_KEYS]; then [warp][ROWS][KEYS] parts of scores */
    float *weights;            /* [ROWS][KEYS] */
    float *max, *sum, *factor; /* [ROWS] */
};

static __device__ __forceinline__ struct split_shared split_shared_of(uint8_t *memory, uint32_t dim)
{
    struct split_shared shared;
    shared.k = reinterpret_cast<const uint8_t **>(memory);
    shared.v = shared.k + KEYS;
    shared.q = reinterpret_cast<float *>(shared.v + KEYS);
    shared.keys = shared.q + ROWS * dim;
    shared.weights = shared.keys + dim / GW_WARP * WARP_KEYS;
    shared.max = shared.weights + ROWS * KEYS;
    shared.sum = shared.max + ROWS;
    shared.factor = shared.sum + ROWS;
    return shared;
}

/* Q row i of the kv head: row i / group, head i % group. Where it lies among [rows][q head]. */
static __device__ __forceinline__ uint64_t row_head(const struct gw_cuda_attend_split_args &args,
                                                    uint32_t i)
{
    uint32_t group = args.q_heads / args.kv_heads;
    return static_cast<uint64_t>(i / group) * args.q_heads + blockIdx.y * group + i % group;
}

static __device__ __forceinline__ void load_queries(const struct gw_cuda_attend_split_args &args,
                                                    const struct split_shared &shared,
                                                    uint32_t first, uint32_t count)
{
    uint32_t d = threadIdx.x;
    for (uint32_t i = 0; i < ROWS; i++) {
        bool there = i < count && d < args.dim;
        float q = there ? args.q[row_head(args, first + i) * args.dim + d] : 0.0f;
        shared.q[i * blockDim.x + d] = q * args.scale;
    }
    if (d < ROWS) {
        shared.max[d] = -INFINITY;
        shared.sum[d] = 0.0f;
    }
}

/* Where the vectors of token + lane lie. */
static __device__ __forceinline__ void find_tokens(const struct gw_cuda_attend_split_args &args,
                                                   const struct split_shared &shared,
                                                   uint64_t token, uint64_t end)
{
    uint64_t at = token + threadIdx.x;
    uint64_t bytes = gw_kv_vector_bytes(args.dim, args.dtype);
    const uint8_t *k = nullptr, *v = nullptr;
    if (at < end) {
        uint32_t span = 0;
        while (at >= args.spans[span].count) {
            at -= args.spans[span++].count;
        }
        uint64_t offset = (at * args.kv_heads + blockIdx.y) * bytes;
        k = static_cast<const uint8_t *>(args.spans[span].k) + offset;
        v = static_cast<const uint8_t *>(args.spans[span].v) + offset;
    }
    shared.k[threadIdx.x] = k;
    shared.v[threadIdx.x] = v;
}

/* This warp's dimensions of all keys, and its parts of their scores over them. */
static __device__ __forceinline__ void score_keys(const struct gw_cuda_attend_split_args &args,
                                                  const struct split_shared &shared)
{
    uint32_t lane = threadIdx.x % GW_WARP, warp = threadIdx.x / GW_WARP, d = threadIdx.x;
    float *keys = shared.keys + warp * WARP_KEYS;
#pragma unroll 8
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint8_t *k = shared.k[i];
        bool there = k != nullptr && d < args.dim;
        keys[i * KEY_STRIDE + lane] = there ? gw_kv_at(k, d, args.dtype, 1.0f) : 0.0f;
    }
    __syncwarp();
    float scores[ROWS] = {};
#pragma unroll 8
    for (uint32_t i = 0; i < GW_WARP; i++) {
        float key = keys[lane * KEY_STRIDE + i];
#pragma unroll
        for (uint32_t row = 0; row < ROWS; row++) {
            scores[row] += key * shared.q[row * blockDim.x + warp * GW_WARP + i];
        }
    }
    __syncwarp();
#pragma unroll
    for (uint32_t row = 0; row < ROWS; row++) {
        keys[row * KEYS + lane] = scores[row];
    }
}

/* Scores of one q row to weights under its running maximum; int8 scales are multiplied in. */
static __device__ __forceinline__ void weigh_row(const struct gw_cuda_attend_split_args &args,
                                                 const struct split_shared &shared, uint32_t row,
                                                 bool seen)
{
    uint32_t lane = threadIdx.x % GW_WARP;
    const uint8_t *k = shared.k[lane], *v = shared.v[lane];
    float score = -INFINITY;
    if (seen && k != nullptr) {
        score = 0.0f;
        for (uint32_t warp = 0; warp < blockDim.x / GW_WARP; warp++) {
            score += shared.keys[warp * WARP_KEYS + row * KEYS + lane];
        }
        score *= gw_kv_scale(k, args.dim, args.dtype);
    }
    float before = shared.max[row];
    float top = fmaxf(before, gw_warp_max(score));
    float weight = score == -INFINITY ? 0.0f : expf(score - top);
    float factor = before == top ? 1.0f : expf(before - top);
    float sum = gw_warp_sum(weight);
    weight *= v != nullptr ? gw_kv_scale(v, args.dim, args.dtype) : 0.0f;
    shared.weights[row * KEYS + lane] = weight;
    __syncwarp();
    if (lane == 0) {
        shared.max[row] = top;
        shared.sum[row] = shared.sum[row] * factor + sum;
        shared.factor[row] = factor;
    }
}

static __device__ __forceinline__ void add_values(const struct gw_cuda_attend_split_args &args,
                                                  const struct split_shared &shared,
                                                  float (&o)[ROWS])
{
    uint32_t d = threadIdx.x;
#pragma unroll
    for (uint32_t row = 0; row < ROWS; row++) {
        o[row] *= shared.factor[row];
    }
#pragma unroll 8
    for (uint32_t i = 0; i < KEYS; i++) {
        const uint8_t *v = shared.v[i];
        bool there = v != nullptr && d < args.dim;
        float value = there ? gw_kv_at(v, d, args.dtype, 1.0f) : 0.0f;
#pragma unroll
        for (uint32_t row = 0; row < ROWS; row++) {
            o[row] += shared.weights[row * KEYS + i] * value;
        }
    }
}

static __device__ __forceinline__ void store_rows(const struct gw_cuda_attend_split_args &args,
                                                  const struct split_shared &shared, uint32_t first,
                                                  uint32_t count, const float (&o)[ROWS])
{
    uint64_t piece = static_cast<uint64_t>(blockIdx.x) * args.rows * args.q_heads;
#pragma unroll
    for (uint32_t i = 0; i < ROWS; i++) {
        float sum = shared.sum[i];
        if (i < count && threadIdx.x < args.dim) {
            uint64_t at = (piece + row_head(args, first + i)) * args.dim + threadIdx.x;
            args.o[at] = sum > 0.0f ? o[i] / sum : 0.0f;
        }
        if (i < count && threadIdx.x == 0 && args.lse != nullptr) {
            args.lse[piece + row_head(args, first + i)] =
                sum > 0.0f ? shared.max[i] + logf(sum) : -INFINITY;
        }
    }
}

GW_CUDA_KERNEL(attend_split, attend_split, 256, 2)
{
    GW_CUDA_SHARED(uint8_t, memory);
    const struct split_shared shared = split_shared_of(memory, blockDim.x);
    uint32_t group = args.q_heads / args.kv_heads, warps = blockDim.x / GW_WARP;
    uint32_t first = blockIdx.z * ROWS, left = args.rows * group - first;
    uint32_t count = left < ROWS ? left : ROWS;
    bool causal = args.causal_first != UINT64_MAX;
    uint64_t begin = blockIdx.x * args.piece_tokens, end = begin + args.piece_tokens;
    uint64_t last = causal ? args.causal_first + (first + count - 1) / group + 1 : args.tokens;
    end = end < last ? end : last;
    float o[ROWS] = {};
    load_queries(args, shared, first, count);
    for (uint64_t token = begin; token < end; token += KEYS) {
        __syncthreads(); /* what the last round read may be written */
        if (threadIdx.x < KEYS) {
            find_tokens(args, shared, token, end);
        }
        __syncthreads();
        score_keys(args, shared);
        __syncthreads();
        for (uint32_t row = threadIdx.x / GW_WARP; row < ROWS; row += warps) {
            uint64_t at = token + threadIdx.x % GW_WARP;
            bool seen = !causal || at <= args.causal_first + (first + row) / group;
            weigh_row(args, shared, row, seen);
        }
        __syncthreads();
        add_values(args, shared, o);
    }
    __syncthreads();
    store_rows(args, shared, first, count, o);
}

/* The merge law over the pieces, in their order: a q row and head a block. */
GW_CUDA_KERNEL(attend_pieces, attend_pieces, 128, 1)
{
    uint64_t heads = gridDim.x;
    const float *lse = args.piece_lse + blockIdx.x;
    float top = -INFINITY, sum = 0.0f;
    for (uint32_t i = 0; i < args.pieces; i++) {
        top = fmaxf(top, __ldg(lse + i * heads));
    }
    for (uint32_t i = 0; i < args.pieces; i++) {
        sum += expf(__ldg(lse + i * heads) - top);
    }
    for (uint32_t d = threadIdx.x; d < args.dim; d += blockDim.x) {
        float mixed = 0.0f;
        for (uint32_t i = 0; i < args.pieces; i++) {
            float weight = expf(__ldg(lse + i * heads) - top);
            mixed += weight * args.piece_o[(i * heads + blockIdx.x) * args.dim + d];
        }
        args.o[static_cast<uint64_t>(blockIdx.x) * args.dim + d] = mixed / sum;
    }
    if (threadIdx.x == 0) {
        args.lse[blockIdx.x] = top + logf(sum);
    }
}
