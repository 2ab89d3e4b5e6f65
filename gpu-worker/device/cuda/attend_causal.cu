/*
 * Causal attention of a prefill by tensor cores (FlashAttention-2: Dao, arXiv 2307.08691), K/V of
 * 16-bit floats, dimensions that are multiples of 8 up to 256, any group: the rows * group q rows
 * of a kv head are one list, 64 of them a block, 16 a warp. Queries are scaled and kept as two
 * halves of K/V's type, q = high + low, and so are weights, so that neither loses anything against
 * f32 that matters; sums and o are f32. Keys and values come in tiles: values are copied while
 * scores are computed, the next keys while values are added up. Work: 2 * rows * group * tokens *
 * dim products for scores (two halves), and for values.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

#define Q_ROWS  64u
#define THREADS 128u
#define PAD     8u /* halves a row: rows of a matrix load fall into different banks */
#define LOG2_E  1.4426950408889634f
#define LN_2    0.6931471805599453f

template <bool BF16> static __device__ __forceinline__ uint16_t to_half(float value)
{
    return BF16 ? gw_f32_to_bf16(value) : gw_f32_to_f16(value);
}

template <bool BF16> static __device__ __forceinline__ float from_half(uint16_t half)
{
    return BF16 ? gw_bf16_to_f32(half) : gw_f16_to_f32(half);
}

template <bool BF16> static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    return to_half<BF16>(low) | static_cast<uint32_t>(to_half<BF16>(high)) << 16;
}

/* Q row i of a kv head: token row i / group, head i % group; its place among [rows][q head]. */
static __device__ __forceinline__ uint64_t row_head(const struct gw_cuda_attend_causal_args &args,
                                                    uint32_t i)
{
    uint32_t group = args.q_heads / args.kv_heads;
    return static_cast<uint64_t>(i / group) * args.q_heads + blockIdx.y * group + i % group;
}

/* The exponent to add to a row's, so that f16 holds it: the largest magnitude below 2^15. */
template <bool BF16>
static __device__ __forceinline__ float row_factor(const float *q, uint32_t dim, float scale)
{
    if (BF16) {
        return 1.0f;
    }
    float largest = 0.0f;
    for (uint32_t d = threadIdx.x % GW_WARP; d < dim; d += GW_WARP) {
        largest = fmaxf(largest, fabsf(q[d] * scale));
    }
    uint32_t exponent = __float_as_uint(gw_warp_max(largest)) >> 23;
    return exponent <= 140 ? 1.0f : __uint_as_float((268 - exponent) << 23);
}

/* The warp's 16 rows of q to shared memory; back [16 a warp]: what undoes their factors. */
template <bool BF16, uint32_t DIM>
static __device__ __forceinline__ void load_queries(const struct gw_cuda_attend_causal_args &args,
                                                    uint32_t first, uint16_t *high, uint16_t *low,
                                                    float *back)
{
    uint32_t lane = threadIdx.x % GW_WARP, group = args.q_heads / args.kv_heads;
    float scale = args.scale * LOG2_E;
    for (uint32_t i = threadIdx.x / GW_WARP * 16; i < threadIdx.x / GW_WARP * 16 + 16; i++) {
        bool there = first + i < args.rows * group;
        const float *q = args.q + row_head(args, there ? first + i : 0) * args.dim;
        float factor = row_factor<BF16>(q, args.dim, scale);
        for (uint32_t d = lane; d < DIM; d += GW_WARP) {
            float value = there && d < args.dim ? q[d] * scale * factor : 0.0f;
            uint16_t half = to_half<BF16>(value);
            high[i * (DIM + PAD) + d] = half;
            low[i * (DIM + PAD) + d] = to_half<BF16>(value - from_half<BF16>(half));
        }
        if (lane == 0) {
            back[i] = 1.0f / factor;
        }
    }
}

/* KEYS rows of K or V from `token` on, zeros beyond the last. */
template <uint32_t DIM, uint32_t KEYS>
static __device__ __forceinline__ void copy_tile(const struct gw_cuda_attend_causal_args &args,
                                                 const void *rows, uint64_t token, uint16_t *to)
{
    for (uint32_t i = threadIdx.x; i < KEYS * (DIM / 8); i += THREADS) {
        uint32_t key = i / (DIM / 8), d = i % (DIM / 8) * 8;
        bool there = token + key < args.kv.count && d < args.dim;
        uint64_t at = there ? ((token + key) * args.kv_heads + blockIdx.y) * args.dim + d : 0;
        gw_copy_async(to + key * (DIM + PAD) + d, static_cast<const uint16_t *>(rows) + at, there);
    }
    gw_copy_commit();
}

/* s [16][KEYS] of the warp's rows, in fragments: s[n]: columns 8 n .. 8 n + 7. */
template <bool BF16, uint32_t DIM, uint32_t KEYS>
static __device__ __forceinline__ void score(const uint16_t *high, const uint16_t *low,
                                             const uint16_t *keys, float (&s)[KEYS / 8][4])
{
    uint32_t lane = threadIdx.x % GW_WARP, warp = threadIdx.x / GW_WARP;
    uint32_t q_at = (warp * 16 + lane % 16) * (DIM + PAD) + lane / 16 * 8;
    uint32_t k_at = (lane / 16 * 8 + lane % 8) * (DIM + PAD) + lane / 8 % 2 * 8;
#pragma unroll
    for (uint32_t n = 0; n < KEYS / 8; n++) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    }
#pragma unroll 2
    for (uint32_t d = 0; d < DIM; d += 16) {
        uint32_t a_high[4], a_low[4];
        gw_load_matrices(a_high, high + q_at + d);
        gw_load_matrices(a_low, low + q_at + d);
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 16; n++) {
            uint32_t b[4];
            gw_load_matrices(b, keys + k_at + n * 16 * (DIM + PAD) + d);
            gw_multiply<BF16>(s[2 * n], a_high, b[0], b[1]);
            gw_multiply<BF16>(s[2 * n + 1], a_high, b[2], b[3]);
            gw_multiply<BF16>(s[2 * n], a_low, b[0], b[1]);
            gw_multiply<BF16>(s[2 * n + 1], a_low, b[2], b[3]);
        }
    }
}

/* A lane's two rows of fragments: running maximum (of base-2 exponents) and its part of the sum. */
struct running {
    float max[2], sum[2];
};

/* Scores to weights; factor: what the sums so far are multiplied by. The four lanes of a row hold
 * its columns. last [2]: the newest token that each row sees. */
template <uint32_t KEYS>
static __device__ __forceinline__ void weigh(const uint64_t (&last)[2], const float (&back)[2],
                                             uint64_t token, float (&s)[KEYS / 8][4],
                                             struct running &state, float (&factor)[2])
{
    uint64_t column = token + threadIdx.x % 4 * 2;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        float top = state.max[half];
#pragma unroll
        for (uint32_t i = 0; i < KEYS / 4; i++) {
            float &value = s[i / 2][2 * half + i % 2];
            bool seen = column + i / 2 * 8 + i % 2 <= last[half];
            value = seen ? value * back[half] : -INFINITY;
            top = fmaxf(top, value);
        }
        top = fmaxf(top, __shfl_xor_sync(GW_ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(GW_ALL_LANES, top, 2));
        factor[half] = state.max[half] == top ? 1.0f : exp2f(state.max[half] - top);
        float base = top == -INFINITY ? 0.0f : top; /* then all weights are 0 */
        float sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < KEYS / 4; i++) {
            float &value = s[i / 2][2 * half + i % 2];
            value = exp2f(value - base);
            sum += value;
        }
        state.max[half] = top;
        state.sum[half] = state.sum[half] * factor[half] + sum;
    }
}

template <bool BF16, uint32_t DIM, uint32_t KEYS>
static __device__ __forceinline__ void add_values(const float (&s)[KEYS / 8][4],
                                                  const float (&factor)[2], const uint16_t *values,
                                                  float (&o)[DIM / 8][4])
{
    uint32_t lane = threadIdx.x % GW_WARP;
    uint32_t v_at = (lane / 8 % 2 * 8 + lane % 8) * (DIM + PAD) + lane / 16 * 8;
#pragma unroll
    for (uint32_t n = 0; n < DIM / 8; n++) {
        o[n][0] *= factor[0];
        o[n][1] *= factor[0];
        o[n][2] *= factor[1];
        o[n][3] *= factor[1];
    }
#pragma unroll
    for (uint32_t key = 0; key < KEYS / 16; key++) {
        uint32_t high[4], low[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float *two = s[2 * key + i / 2] + i % 2 * 2;
            high[i] = pack<BF16>(two[0], two[1]);
            low[i] = pack<BF16>(two[0] - from_half<BF16>(static_cast<uint16_t>(high[i])),
                                two[1] - from_half<BF16>(static_cast<uint16_t>(high[i] >> 16)));
        }
#pragma unroll
        for (uint32_t n = 0; n < DIM / 16; n++) {
            uint32_t b[4];
            gw_load_matrices_transposed(b, values + v_at + key * 16 * (DIM + PAD) + n * 16);
            gw_multiply<BF16>(o[2 * n], high, b[0], b[1]);
            gw_multiply<BF16>(o[2 * n + 1], high, b[2], b[3]);
            gw_multiply<BF16>(o[2 * n], low, b[0], b[1]);
            gw_multiply<BF16>(o[2 * n + 1], low, b[2], b[3]);
        }
    }
}

template <uint32_t DIM>
static __device__ __forceinline__ void store(const struct gw_cuda_attend_causal_args &args,
                                             uint32_t first, const struct running &state,
                                             const float (&o)[DIM / 8][4])
{
    uint32_t group = args.q_heads / args.kv_heads, lane = threadIdx.x % GW_WARP;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t i = first + threadIdx.x / GW_WARP * 16 + lane / 4 + 8 * half;
        float sum = state.sum[half];
        sum += __shfl_xor_sync(GW_ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(GW_ALL_LANES, sum, 2);
        if (i >= args.rows * group) {
            continue;
        }
        uint64_t at = row_head(args, i);
#pragma unroll
        for (uint32_t n = 0; n < DIM / 8; n++) {
            uint32_t d = 8 * n + lane % 4 * 2;
            if (d < args.dim) {
                float2 two;
                two.x = o[n][2 * half] / sum;
                two.y = o[n][2 * half + 1] / sum;
                *reinterpret_cast<float2 *>(args.o + at * args.dim + d) = two;
            }
        }
        if (args.lse != nullptr && lane % 4 == 0) {
            args.lse[at] = (state.max[half] + log2f(sum)) * LN_2;
        }
    }
}

template <bool BF16, uint32_t DIM, uint32_t KEYS>
static __device__ __forceinline__ void attend(const struct gw_cuda_attend_causal_args &args,
                                              uint16_t *high)
{
    uint16_t *low = high + Q_ROWS * (DIM + PAD);
    uint16_t *keys = low + Q_ROWS * (DIM + PAD), *values = keys + KEYS * (DIM + PAD);
    uint32_t group = args.q_heads / args.kv_heads, lane = threadIdx.x % GW_WARP;
    uint32_t first = (gridDim.x - 1 - blockIdx.x) * Q_ROWS; /* the longest first */
    uint32_t own = threadIdx.x / GW_WARP * 16 + lane / 4;
    uint32_t rows = args.rows * group, end_row = first + Q_ROWS < rows ? first + Q_ROWS : rows;
    uint64_t end = args.first + (end_row - 1) / group + 1;
    /* The factors lie where keys will: they are read before the first tile is waited for. */
    float *backs = reinterpret_cast<float *>(values);
    load_queries<BF16, DIM>(args, first, high, low, backs);
    __syncwarp();
    const float back[2] = {backs[own], backs[own + 8]};
    const uint64_t last[2] = {args.first + (first + own) / group,
                              args.first + (first + own + 8) / group};
    struct running state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float o[DIM / 8][4] = {};
    copy_tile<DIM, KEYS>(args, args.kv.k, 0, keys);
    __syncthreads(); /* backs was read */
    for (uint64_t token = 0; token < end; token += KEYS) {
        float s[KEYS / 8][4], factor[2];
        copy_tile<DIM, KEYS>(args, args.kv.v, token, values);
        gw_copy_wait<1>();
        __syncthreads(); /* keys are there */
        score<BF16, DIM, KEYS>(high, low, keys, s);
        __syncthreads(); /* and may be overwritten */
        copy_tile<DIM, KEYS>(args, args.kv.k, token + KEYS, keys);
        weigh<KEYS>(last, back, token, s, state, factor);
        gw_copy_wait<1>();
        __syncthreads(); /* values are there */
        add_values<BF16, DIM, KEYS>(s, factor, values, o);
        __syncthreads();
    }
    gw_copy_wait<0>();
    store<DIM>(args, first, state, o);
}

#define ATTEND(type, bf16, dim, keys, blocks_min)                                                  \
    GW_CUDA_KERNEL(attend_causal_##type##_##dim, attend_causal, 128, blocks_min)                   \
    {                                                                                              \
        GW_CUDA_SHARED(uint16_t, memory);                                                          \
        attend<bf16, dim, keys>(args, memory);                                                     \
    }

ATTEND(bf16, true, 64, 64, 2)
ATTEND(bf16, true, 96, 64, 2)
ATTEND(bf16, true, 128, 64, 2)
ATTEND(bf16, true, 256, 32, 1)
ATTEND(f16, false, 64, 64, 2)
ATTEND(f16, false, 96, 64, 2)
ATTEND(f16, false, 128, 64, 2)
ATTEND(f16, false, 256, 32, 1)
