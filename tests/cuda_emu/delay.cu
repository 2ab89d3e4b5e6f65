/*
 * Spins on one processor for a number of cycles: what is behind it on its stream is late, and what
 * should have waited for that shows. No part of the product.
 */
#include "tests/cuda_emu/delay.h"

#include "gpu-worker/device/cuda/kernel.cuh"

GW_CUDA_KERNEL(delay, delay, DELAY_THREADS, 1)
{
    long long begin = clock64();
    while (static_cast<uint64_t>(clock64() - begin) < args.cycles) {
    }
}
