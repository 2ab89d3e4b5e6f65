/*
 * Matrix products that a library does on the GPU's tensor cores. The real one is cuBLASLt, opened
 * at run time like the driver; tests give another one. One thread.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_GEMM_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/device/cuda/driver.h"

enum gw_cuda_number { GW_CUDA_F16 = 0, GW_CUDA_BF16 = 1, GW_CUDA_F32 = 2 };

/* out [rows][outputs] of out_stride = *factor * x [rows][stride] W^T + *kept * out, W
 * [outputs][stride], both of `type`, out and sums f32. factor and kept (0 or 1): floats on the
 * device. stride: whole 16 bytes; x and weights: multiples of 16 bytes, out of 4. */
struct gw_cuda_product {
    enum gw_cuda_number type;
    uint32_t rows, outputs, stride, out_stride;
    gw_cuda_pointer x, weights, out, factor, kept;
};

struct gw_cuda_gemm;

struct gw_cuda_gemm_ops {
    /* workspace: bytes of the device that products may use. On failure error_out says why. */
    enum pp_status (*open)(const struct gw_cuda_driver *driver, gw_cuda_pointer workspace,
                           size_t workspace_bytes, char *error_out, size_t error_bytes,
                           struct gw_cuda_gemm **gemm_out);
    void (*close)(struct gw_cuda_gemm *gemm);
    enum pp_status (*multiply)(struct gw_cuda_gemm *gemm, struct CUstream_st *stream,
                               const struct gw_cuda_product *product);
};

/* cuBLASLt. PP_UNAVAILABLE when it cannot be opened. */
extern const struct gw_cuda_gemm_ops gw_cuda_cublaslt;

#endif
