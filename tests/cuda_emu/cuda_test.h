/*
 * The CUDA device that tests run on: of the emulated machine (emu_device.c), or of a GPU of this
 * one (gpu_device.c), which the same tests link instead when they are called gpu_NAME.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_CUDA_TEST_H
#define PIGPEN_TESTS_CUDA_EMU_CUDA_TEST_H

#include <stdint.h>

#include "gpu-worker/device/device.h"

/* What a test program returns when it cannot run here; ctest reports it as skipped. */
#define CUDA_TEST_SKIPPED 77

/* Why there is no such device; NULL: there is one. */
const char *cuda_test_missing(void);
/* Fails the test when it cannot be had. */
struct gw_device *cuda_test_device_new(void);
/* Emulated: orders of threads and streams from now on, and bytes that were not given back. On a GPU
 * the orders are its own, and nobody counts. */
void cuda_test_seed(uint64_t seed);
uint64_t cuda_test_bytes_taken(void);

#endif
