/*
 * A CUDA device behind the table of gpu-worker/device/device.h: one GPU from compute capability
 * 8.0 on. Products with more than 64 rows of activations round them and the weights to f16, with
 * f32 sums; all else has the bits of f32 (linear.c). Host memory that operations read may be reused
 * when they return; what they write to host memory is there after synchronize, but for the
 * operations that name their output host memory: those wait themselves.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_DEVICE_CUDA_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_DEVICE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu-worker/device/cuda/driver.h"
#include "gpu-worker/device/cuda/gemm.h"
#include "gpu-worker/device/device.h"

/* Compiled kernels, one image a .cu file. */
#define GW_CUDA_IMAGES_MAX 16u
struct gw_cuda_images {
    uint32_t count; /* 0: none were built */
    const void *images[GW_CUDA_IMAGES_MAX];
};

struct gw_cuda_config {
    const struct gw_cuda_driver *driver;
    const struct gw_cuda_gemm_ops *gemm;
    const struct gw_cuda_images *images;
    uint32_t ordinal;
};

/* GPU number `ordinal` of this machine, by its driver. PP_UNAVAILABLE when this build has no
 * kernels, or there is no driver, no such GPU, one that is too old, or no cuBLASLt: error_out names
 * what is missing. */
PP_MUST_USE enum pp_status gw_cuda_device_new(uint32_t ordinal, char *error_out, size_t error_bytes,
                                              struct gw_device **device_out);
/* The same over a driver and a library that are given: what tests use. */
PP_MUST_USE enum pp_status gw_cuda_device_open(const struct gw_cuda_config *config, char *error_out,
                                               size_t error_bytes, struct gw_device **device_out);

/* The images of this build, in a file that the build writes. */
const struct gw_cuda_images *gw_cuda_images_get(void);

#endif
