/*
 * Signatures of keys by the hash law (common/attn/hash.h), bit for bit those of the CPU: a token
 * and kv head a warp, P / 32 of its P numbers a lane. The transform's steps over numbers of one
 * lane are additions, the other five go over the lanes; a ballot makes 32 sign bits a word in
 * shared memory, from which every lane puts together codes of its own tables. For (10, 150) at
 * d = 128 some 1,100 instructions a key and warp; reads a key, writes 2 * tables bytes.
 * Shared: signs, the bits' sources, and words of every warp.
 */
#include "gpu-worker/device/cuda/kernel.cuh"

#define SHARED_ROTATIONS 3u

/* X <- H X, number i * 32 + lane in x[i]. */
template <uint32_t N> static __device__ __forceinline__ void transform(int32_t (&x)[N])
{
    uint32_t lane = threadIdx.x % GW_WARP;
#pragma unroll
    for (uint32_t half = 1; half < N; half *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            if ((i & half) == 0) {
                int32_t a = x[i], b = x[i + half];
                x[i] = a + b;
                x[i + half] = a - b;
            }
        }
    }
#pragma unroll
    for (uint32_t bit = 1; bit < GW_WARP; bit *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            int32_t other = __shfl_xor_sync(GW_ALL_LANES, x[i], static_cast<int>(bit));
            x[i] = (lane & bit) == 0 ? x[i] + other : other - x[i];
        }
    }
}

/* X <- H(s * X), s of one rotation. */
template <uint32_t N>
static __device__ __forceinline__ void rotate(const uint32_t *signs, int32_t (&x)[N])
{
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        x[i] = (signs[i] >> (threadIdx.x % GW_WARP) & 1u) != 0 ? -x[i] : x[i];
    }
    transform(x);
}

/* The centred key as integers: the largest magnitude brought to at most 32767. */
template <uint32_t N>
static __device__ __forceinline__ void load_key(const struct gw_cuda_sign_keys_args &args,
                                                uint64_t item, int32_t (&x)[N])
{
    const uint8_t *vector =
        static_cast<const uint8_t *>(args.k) + item * gw_kv_vector_bytes(args.dim, args.dtype);
    const float *centre = args.centre + item % args.kv_heads * args.dim;
    float scale = gw_kv_scale(vector, args.dim, args.dtype);
    float values[N], largest = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        uint32_t d = i * GW_WARP + threadIdx.x % GW_WARP;
        bool there = d < args.dim;
        values[i] = there ? __fsub_rn(gw_kv_at(vector, d, args.dtype, scale), centre[d]) : 0.0f;
        largest = fmaxf(largest, fabsf(values[i]));
    }
    int exponent = 0;
    float fraction = frexpf(gw_warp_max(largest), &exponent);
    int e = fraction * 32768.0f > 32767.0f ? 14 - exponent : 15 - exponent;
    float low = ldexpf(1.0f, e / 2), high = ldexpf(1.0f, e - e / 2);
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        x[i] = static_cast<int32_t>(rintf(__fmul_rn(__fmul_rn(values[i], low), high)));
    }
}

/* The least shift after which sums of hash blocks fit 16 bits, with rounding. */
template <uint32_t N> static __device__ __forceinline__ void narrow(int32_t (&x)[N])
{
    long long sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        long long value = x[i];
        sum += value < 0 ? -value : value;
    }
    for (int bits = 16; bits > 0; bits /= 2) {
        sum += __shfl_xor_sync(GW_ALL_LANES, sum, bits);
    }
    int shift = 0;
    while (sum >> shift > 32767 - static_cast<int>(N * GW_WARP)) {
        shift++;
    }
    long long half = shift > 0 ? 1ll << (shift - 1) : 0;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        x[i] = static_cast<int32_t>((x[i] + half) >> shift);
    }
}

/* Code t of the key whose sign bits lie in words. */
static __device__ __forceinline__ uint16_t code_of(const uint32_t *words, const uint16_t *source,
                                                   uint32_t table, uint32_t table_bits)
{
    uint32_t code = 0;
    for (uint32_t j = 0; j < table_bits; j++) {
        uint32_t bit = source[table * table_bits + j];
        code |= (words[bit / 32] >> (bit % 32) & 1u) << j;
    }
    return static_cast<uint16_t>(code);
}

template <uint32_t N>
static __device__ __forceinline__ void sign_key(const struct gw_cuda_sign_keys_args &args,
                                                uint64_t item, const uint32_t *signs,
                                                const uint16_t *source, uint32_t *words)
{
    uint32_t lane = threadIdx.x % GW_WARP;
    int32_t x[N];
    load_key<N>(args, item, x);
    for (uint32_t i = 0; i < SHARED_ROTATIONS; i++) {
        rotate<N>(signs + i * N, x);
    }
    narrow<N>(x);
    for (uint32_t block = 0; block < args.blocks; block++) {
        int32_t y[N];
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            y[i] = x[i];
        }
        rotate<N>(signs + (SHARED_ROTATIONS + block) * N, y);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            uint32_t word = __ballot_sync(GW_ALL_LANES, y[i] > 0);
            if (lane == 0) {
                words[block * N + i] = word;
            }
        }
    }
    __syncwarp();
    for (uint32_t table = lane; table < args.tables; table += GW_WARP) {
        args.codes[item * args.tables + table] = code_of(words, source, table, args.table_bits);
    }
    __syncwarp(); /* before the words of the next key */
}

template <uint32_t N>
static __device__ __forceinline__ void sign(const struct gw_cuda_sign_keys_args &args,
                                            uint32_t *memory)
{
    uint32_t sign_words = (SHARED_ROTATIONS + args.blocks) * N, warps = blockDim.x / GW_WARP;
    uint32_t *signs = memory, *words = signs + sign_words;
    uint16_t *source = reinterpret_cast<uint16_t *>(words + warps * args.blocks * N);
    for (uint32_t i = threadIdx.x; i < sign_words; i += blockDim.x) {
        signs[i] = args.signs[i];
    }
    for (uint32_t i = threadIdx.x; i < args.tables * args.table_bits; i += blockDim.x) {
        source[i] = args.source[i];
    }
    __syncthreads();
    words += threadIdx.x / GW_WARP * args.blocks * N;
    uint64_t step = static_cast<uint64_t>(gridDim.x) * warps;
    for (uint64_t item = static_cast<uint64_t>(blockIdx.x) * warps + threadIdx.x / GW_WARP;
         item < args.count * args.kv_heads; item += step) {
        sign_key<N>(args, item, signs, source, words);
    }
}

#define SIGN(size)                                                                                 \
    GW_CUDA_KERNEL(sign_keys_##size, sign_keys, 256, 2)                                            \
    {                                                                                              \
        GW_CUDA_SHARED(uint32_t, memory);                                                          \
        sign<size / GW_WARP>(args, memory);                                                        \
    }

SIGN(64)
SIGN(128)
SIGN(256)
