/*
 * A CUDA driver and a library of matrix products over the emulator: the CUDA device runs on them as
 * on the real ones. Streams are queues: what was queued runs when somebody waits, operations of
 * different streams in an order drawn from emu_seed, held back by events only. So pinned memory
 * that is used again too early, or a copy that nobody waited for, shows. Ranges are checked against
 * what was allocated, shared memory against the smallest of the GPUs that kernels are compiled for.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_EMU_DRIVER_H
#define PIGPEN_TESTS_CUDA_EMU_EMU_DRIVER_H

#include "gpu-worker/device/cuda/device_cuda.h"

extern const struct gw_cuda_driver emu_driver;
extern const struct gw_cuda_gemm_ops emu_gemm;

/* What the emulated machine has; tests change it. */
struct emu_machine {
    int gpus, capability_major;
    unsigned init_result;  /* of cuInit */
    uint64_t memory_bytes; /* of a GPU; more is out of memory */
    const char *lacking;   /* a kernel that no image has; NULL: none */
    /* What a program without some of its waits would do: tests that set one of these see it. */
    bool hasty_host; /* every event counts as reached */
    bool sets_lost;  /* a graph's nodes keep what they were captured with */
    bool capture_refused;
};
extern struct emu_machine emu_machine;

/* Calls of the driver since a test cleared them. */
struct emu_counts {
    uint64_t launches, copies, fills, waits; /* captured ones too */
    uint64_t captures, graph_launches, node_sets;
    uint64_t stream_synchronizes, event_synchronizes;
    uint64_t device_wide; /* what waits for everything: memory taken and given back */
    uint64_t pageable;    /* copies from or to memory that is not pinned */
};
extern struct emu_counts emu_counts;

/* Operations that are queued and did not run. */
uint32_t emu_pending(void);
/* Orders of the streams from now on. */
void emu_driver_seed(uint64_t seed);

/* Bytes that are allocated and were not freed, device and pinned: 0 when all was given back. */
uint64_t emu_bytes_taken(void);

#endif
