/*
 * Runs CUDA kernels on the CPU: the threads of a block are fibers of one thread of the system, run
 * in an order drawn from a seed and switched where they wait for each other. A result that depends
 * on an order that CUDA leaves open differs from seed to seed; a barrier that not every thread
 * reaches, or lanes of a warp that wait at different places, abort with a message. Shared memory is
 * allocated with the bytes of the launch and filled with NaNs before each block. What kernels call
 * lies in cuda_emu.cuh; this is what it stands on, and what launches. One thread of the system.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_EMU_H
#define PIGPEN_TESTS_CUDA_EMU_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EMU_WARP        32u
#define EMU_THREADS_MAX 512u
#define EMU_SLOT_BYTES  64u

struct emu_index {
    uint32_t x, y, z;
};

/* The thread that runs: what threadIdx and its like read. */
struct emu_place {
    struct emu_index thread, block, block_size, grid;
};
extern struct emu_place emu_here;
/* Of the block that runs: no other had it. */
extern uint64_t emu_block_serial;

/* A kernel, called once a thread with the launch's arguments. */
typedef void emu_kernel_fn(const void *args);

struct emu_kernel {
    const char *name;
    emu_kernel_fn *run;
    uint32_t threads_max; /* of its launch bounds */
    size_t args_bytes;
};

/* By name; NULL: there is none. In kernels.cu. */
const struct emu_kernel *emu_kernel_find(const char *name);

struct emu_launch {
    const struct emu_kernel *kernel;
    const void *args;
    struct emu_index grid;
    uint32_t threads; /* a block: a multiple of 32, along x */
    uint32_t shared_bytes;
};

/* Every block, each to its end, in an order of the seed. */
void emu_run(const struct emu_launch *launch);
/* Orders from now on; equal seeds and launches give equal orders. */
void emu_seed(uint64_t seed);

/* Called by kernels only. */
extern float emu_f16_values[1u << 16]; /* of every f16 */
void *emu_shared(void);
void emu_sync_block(void);
/* All lanes of the warp give `bytes` and wait; `last` (may be NULL) works on the 32 slots before
 * they go on. Returns the slots, which stay as they are until the warp's next but one call. `what`
 * tells places apart: lanes that meet at different ones abort. */
typedef uint8_t emu_slots[EMU_WARP][EMU_SLOT_BYTES];
emu_slots *emu_warp(const void *value, uint32_t bytes, void (*last)(emu_slots *slots),
                    const char *what);
/* Aborts with the place and the reason. */
__attribute__((noreturn)) void emu_fail(const char *why);

#ifdef __cplusplus
}
#endif

#endif
