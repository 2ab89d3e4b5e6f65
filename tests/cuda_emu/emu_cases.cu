/*
 * Kernels with faults, one each, and one without: what the emulator must and must not find.
 */
#include "tests/cuda_emu/emu_cases.h"

/* Sums 64 values of shared memory, each written by one thread and read by another. */
static void neighbours(const struct emu_case_args *args, bool barrier)
{
    uint32_t *shared = static_cast<uint32_t *>(emu_shared());
    shared[threadIdx.x] = threadIdx.x + 1;
    if (barrier) {
        __syncthreads();
    }
    atomicAdd(args->out, shared[(threadIdx.x + 33) % blockDim.x]);
}

static void with_barrier(const void *args)
{
    neighbours(static_cast<const struct emu_case_args *>(args), true);
}

static void without_barrier(const void *args)
{
    neighbours(static_cast<const struct emu_case_args *>(args), false);
}

static void half_a_barrier(const void *)
{
    if (threadIdx.x < 20) {
        __syncthreads();
    } else {
        (void)__shfl_xor_sync(0xffffffffu, 1u, 1);
    }
}

static void lanes_apart(const void *)
{
    if (threadIdx.x % 2 == 0) {
        (void)__ballot_sync(0xffffffffu, 1);
    } else {
        (void)__shfl_xor_sync(0xffffffffu, 1u, 1);
    }
}

/* A copy that is read before it was waited for is not there. */
static void copy(const void *args)
{
    const struct emu_case_args *own = static_cast<const struct emu_case_args *>(args);
    uint32_t *shared = static_cast<uint32_t *>(emu_shared()) + 4 * threadIdx.x;
    gw_copy_async(shared, own->in, true);
    gw_copy_commit();
    if (own->waits) {
        gw_copy_wait<0>();
    }
    own->out[threadIdx.x] = shared[1];
}

static void warp_sum(const void *args)
{
    uint32_t sum = threadIdx.x;
    for (int bits = 16; bits > 0; bits /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, bits);
    }
    uint32_t odd = __ballot_sync(0xffffffffu, threadIdx.x % 2 == 1);
    bool any = __any_sync(0xffffffffu, threadIdx.x == 40) != 0;
    static_cast<const struct emu_case_args *>(args)->out[threadIdx.x] = any ? sum : odd;
}

extern "C" const struct emu_kernel emu_cases[EMU_CASES] = {
    {"with_barrier", with_barrier, 64, sizeof(struct emu_case_args)},
    {"without_barrier", without_barrier, 64, sizeof(struct emu_case_args)},
    {"half_a_barrier", half_a_barrier, 64, sizeof(struct emu_case_args)},
    {"lanes_apart", lanes_apart, 64, sizeof(struct emu_case_args)},
    {"copy", copy, 64, sizeof(struct emu_case_args)},
    {"warp_sum", warp_sum, 64, sizeof(struct emu_case_args)},
};
