/*
 * What kernels need of the GPU beyond the language, in one place: how a kernel is declared, 16-bit
 * floats, tensor cores (mma.m16n8k16), matrices loaded from shared memory (ldmatrix) and
 * asynchronous copies (cp.async). PTX from sm_80 on. Its twin for the host is in tests/cuda_emu.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_TARGET_CUH
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_TARGET_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define GW_CUDA_KERNEL(name, kind, threads_max, blocks_min)                                        \
    extern "C" __global__ void __launch_bounds__(threads_max, blocks_min)                          \
        gw_gpu_##name(const __grid_constant__ struct gw_cuda_##kind##_args args)

/* Dynamic shared memory of the launch: one a kernel. */
extern __shared__ __align__(16) unsigned char gw_cuda_shared_bytes[];
#define GW_CUDA_SHARED(type, name) type *const name = reinterpret_cast<type *>(gw_cuda_shared_bytes)

static __device__ __forceinline__ float gw_f16_to_f32(uint16_t half)
{
    return __half2float(__ushort_as_half(half));
}

static __device__ __forceinline__ uint16_t gw_f32_to_f16(float value)
{
    return __half_as_ushort(__float2half_rn(value));
}

static __device__ __forceinline__ float gw_bf16_to_f32(uint16_t half)
{
    return __uint_as_float(static_cast<uint32_t>(half) << 16);
}

static __device__ __forceinline__ uint16_t gw_f32_to_bf16(float value)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* d += a b: a [16][16] and b [16][8] of 16-bit floats, d [16][8] of f32, in fragments of a lane. */
template <bool BF16>
static __device__ __forceinline__ void gw_multiply(float (&d)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
    if (BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

/* Four 8x8 matrices of 16-bit values: lane 8 i + r names row r of matrix i in shared memory. */
static __device__ __forceinline__ void gw_load_matrices(uint32_t (&matrices)[4], const void *row)
{
    uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void gw_load_matrices_transposed(uint32_t (&matrices)[4],
                                                                   const void *row)
{
    uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes from global to shared memory, zeros unless valid, for who waits for their group. */
static __device__ __forceinline__ void gw_copy_async(void *shared, const void *global, bool valid)
{
    uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(at), "l"(__cvta_generic_to_global(global)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void gw_copy_commit()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

/* All groups but the newest GROUPS_LEFT of this thread are there. */
template <int GROUPS_LEFT> static __device__ __forceinline__ void gw_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(GROUPS_LEFT) : "memory");
}

#endif
