/*
 * What CUDA kernels call, for C++ compilers of the host: a .cu file compiled with this header in
 * front becomes functions that the emulator (emu.h) runs a thread at a time. Beside the language it
 * has the twin of gpu-worker/device/cuda/target.cuh: halves, tensor cores, matrices loaded from
 * shared memory, and asynchronous copies, which are done when they are waited for and not before.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_CUDA_EMU_CUH
#define PIGPEN_TESTS_CUDA_EMU_CUDA_EMU_CUH

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/cuda_emu/emu.h"

#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define threadIdx emu_here.thread
#define blockIdx  emu_here.block
#define blockDim  emu_here.block_size
#define gridDim   emu_here.grid

#define GW_CUDA_KERNEL(name, kind, threads_max, blocks_min)                                        \
    extern "C" void gw_gpu_##name(const struct gw_cuda_##kind##_args args);                        \
    extern "C" void gw_gpu_##name(const struct gw_cuda_##kind##_args args)
#define GW_CUDA_SHARED(type, name) type *const name = (type *)emu_shared()

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) uint2 {
    uint32_t x, y;
};

static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

/* Time passes when somebody looks. */
static inline long long clock64()
{
    static long long cycles;
    return cycles += 1 << 20;
}

static inline void __syncthreads()
{
    emu_sync_block();
}

static inline void __syncwarp()
{
    uint32_t nothing = 0;
    emu_warp(&nothing, sizeof(nothing), NULL, "__syncwarp");
}

template <typename T> static inline T emu_lane_of(emu_slots *slots, uint32_t lane)
{
    T value;
    memcpy(&value, (*slots)[lane % EMU_WARP], sizeof(value));
    return value;
}

static inline void emu_whole_warp(uint32_t mask)
{
    if (mask != 0xffffffffu) {
        emu_fail("a part of a warp");
    }
}

template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T value, int bits)
{
    emu_whole_warp(mask);
    emu_slots *slots = emu_warp(&value, sizeof(value), NULL, "__shfl_xor_sync");
    return emu_lane_of<T>(slots, (threadIdx.x % EMU_WARP) ^ (uint32_t)bits);
}

template <typename T> static inline T __shfl_sync(uint32_t mask, T value, int lane)
{
    emu_whole_warp(mask);
    emu_slots *slots = emu_warp(&value, sizeof(value), NULL, "__shfl_sync");
    return emu_lane_of<T>(slots, (uint32_t)lane);
}

template <typename T> static inline T __shfl_up_sync(uint32_t mask, T value, uint32_t lanes)
{
    emu_whole_warp(mask);
    emu_slots *slots = emu_warp(&value, sizeof(value), NULL, "__shfl_up_sync");
    uint32_t lane = threadIdx.x % EMU_WARP;
    return emu_lane_of<T>(slots, lane < lanes ? lane : lane - lanes);
}

static inline uint32_t __ballot_sync(uint32_t mask, int vote)
{
    emu_whole_warp(mask);
    emu_slots *slots = emu_warp(&vote, sizeof(vote), NULL, "__ballot_sync");
    uint32_t votes = 0;
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        votes |= (emu_lane_of<int>(slots, lane) != 0 ? 1u : 0u) << lane;
    }
    return votes;
}

static inline int __any_sync(uint32_t mask, int vote)
{
    return __ballot_sync(mask, vote) != 0;
}

/* Threads are switched where they wait only, so these are atomic as they stand. */
template <typename T> static inline T atomicAdd(T *at, T value)
{
    T before = *at;
    *at = before + value;
    return before;
}

template <typename T> static inline T atomicMax(T *at, T value)
{
    T before = *at;
    *at = before > value ? before : value;
    return before;
}

template <typename T> static inline T __ldg(const T *at)
{
    return *at;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline int __popc(uint32_t bits)
{
    return __builtin_popcount(bits);
}

extern "C" uint16_t pp_f16_from_f32(float value);

static inline float gw_f16_to_f32(uint16_t half)
{
    return emu_f16_values[half];
}

static inline uint16_t gw_f32_to_f16(float value)
{
    return pp_f16_from_f32(value);
}

static inline float gw_bf16_to_f32(uint16_t half)
{
    return __uint_as_float((uint32_t)half << 16);
}

static inline uint16_t gw_f32_to_bf16(float value)
{
    uint32_t bits = __float_as_uint(value);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return (uint16_t)(nan ? (bits >> 16) | 0x40u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* Fragments of one lane; the matrices of a warp are put together, multiplied and taken apart. */
struct emu_fragments {
    uint32_t a[4], b[2];
    float d[4];
};

template <bool BF16> static inline float emu_half(uint32_t pair, uint32_t which)
{
    uint16_t half = (uint16_t)(pair >> (16 * which));
    return BF16 ? gw_bf16_to_f32(half) : gw_f16_to_f32(half);
}

/* Layouts of mma.m16n8k16 in the PTX manual: of lane 4 g + t, a: rows g, g + 8 and columns 2 t,
 * 2 t + 1, + 8; b: rows 2 t, 2 t + 1, + 8 and column g; d: rows g, g + 8, columns 2 t, 2 t + 1. */
template <bool BF16> static inline void emu_multiply(emu_slots *slots)
{
    float a[16][16], b[16][8];
    struct emu_fragments lanes[EMU_WARP];
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        uint32_t g = lane / 4, t = lane % 4;
        lanes[lane] = emu_lane_of<struct emu_fragments>(slots, lane);
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t row = g + 8 * (i / 2 % 2), column = 2 * t + i % 2 + 8 * (i / 4);
            a[row][column] = emu_half<BF16>(lanes[lane].a[i / 2], i % 2);
        }
        for (uint32_t i = 0; i < 4; i++) {
            b[2 * t + i % 2 + 8 * (i / 2)][g] = emu_half<BF16>(lanes[lane].b[i / 2], i % 2);
        }
    }
    for (uint32_t lane = 0; lane < EMU_WARP; lane++) {
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
            float sum = 0.0f;
            for (uint32_t k = 0; k < 16; k++) {
                sum += a[row][k] * b[k][column];
            }
            lanes[lane].d[i] += sum;
        }
        memcpy((*slots)[lane], &lanes[lane], sizeof(lanes[lane]));
    }
}

template <bool BF16>
static inline void gw_multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    struct emu_fragments own = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
    emu_slots *slots = emu_warp(&own, sizeof(own), emu_multiply<BF16>, "gw_multiply");
    own = emu_lane_of<struct emu_fragments>(slots, threadIdx.x);
    memcpy(d, own.d, sizeof(own.d));
}

/* Lane 8 i + r names row r of matrix i, 8 halves; lane 4 g + t gets columns 2 t and 2 t + 1 of row
 * g of each, of the transposed one column g of rows 2 t and 2 t + 1. */
static inline void emu_load(uint32_t (&matrices)[4], const void *row, bool transposed)
{
    uint16_t own[8];
    memcpy(own, row, sizeof(own));
    if ((uintptr_t)row % 16 != 0) {
        emu_fail("a row of a matrix that is not aligned");
    }
    emu_slots *slots = emu_warp(own, sizeof(own), NULL, "gw_load_matrices");
    uint32_t g = threadIdx.x % EMU_WARP / 4, t = threadIdx.x % 4;
    for (uint32_t i = 0; i < 4; i++) {
        uint16_t low, high;
        uint32_t low_row = transposed ? 2 * t : g, high_row = transposed ? 2 * t + 1 : g;
        memcpy(&low, &(*slots)[8 * i + low_row][2 * (transposed ? g : 2 * t)], sizeof(low));
        memcpy(&high, &(*slots)[8 * i + high_row][2 * (transposed ? g : 2 * t + 1)], sizeof(high));
        matrices[i] = (uint32_t)low | (uint32_t)high << 16;
    }
}

static inline void gw_load_matrices(uint32_t (&matrices)[4], const void *row)
{
    emu_load(matrices, row, false);
}

static inline void gw_load_matrices_transposed(uint32_t (&matrices)[4], const void *row)
{
    emu_load(matrices, row, true);
}

/* Copies of the thread that runs, in emu_copies.c. */
extern "C" void emu_copy_begin(void *shared, const void *global, bool valid);
extern "C" void emu_copy_commit(void);
extern "C" void emu_copy_wait(uint32_t groups_left);

static inline void gw_copy_async(void *shared, const void *global, bool valid)
{
    emu_copy_begin(shared, global, valid);
}

static inline void gw_copy_commit()
{
    emu_copy_commit();
}

template <int GROUPS_LEFT> static inline void gw_copy_wait()
{
    emu_copy_wait(GROUPS_LEFT);
}

#endif
