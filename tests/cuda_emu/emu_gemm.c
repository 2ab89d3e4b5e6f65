/*
 * The twin of the library of matrix products: a kernel of the emulator's own, queued on the stream
 * like any other, so that the order of what is around it is put to the test too.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_emu/emu.h"
#include "tests/cuda_emu/emu_driver.h"

struct gw_cuda_gemm {
    const struct gw_cuda_driver *driver;
};

static enum pp_status emu_gemm_open(const struct gw_cuda_driver *driver, gw_cuda_pointer workspace,
                                    size_t workspace_bytes, char *error_out, size_t error_bytes,
                                    struct gw_cuda_gemm **gemm_out)
{
    (void)workspace;
    (void)workspace_bytes;
    struct gw_cuda_gemm *gemm = calloc(1, sizeof(*gemm));
    if (gemm == NULL) {
        snprintf(error_out, error_bytes, "no memory");
        return PP_MEMORY;
    }
    gemm->driver = driver;
    *gemm_out = gemm;
    return PP_OK;
}

static void emu_gemm_close(struct gw_cuda_gemm *gemm)
{
    free(gemm);
}

static enum pp_status emu_gemm_multiply(struct gw_cuda_gemm *gemm, struct CUstream_st *stream,
                                        const struct gw_cuda_product *product)
{
    struct CUfunc_st *function =
        (struct CUfunc_st *)(uintptr_t)emu_kernel_find("emu_multiply_matrices");
    void *arguments[1] = {(void *)(uintptr_t)product};
    uint64_t bytes = product->type == GW_CUDA_F32 ? 4 : 2;
    if (product->x % 16 != 0 || product->weights % 16 != 0 || product->out % 4 != 0 ||
        product->stride * bytes % 16 != 0) {
        emu_fail("a product of matrices that are not aligned");
    }
    return gw_cuda_status(gemm->driver,
                          gemm->driver->launch(function, (product->outputs + 31) / 32, 1, 1, 32, 1,
                                               1, 0, stream, arguments, NULL),
                          "multiply");
}

const struct gw_cuda_gemm_ops emu_gemm = {
    .open = emu_gemm_open,
    .close = emu_gemm_close,
    .multiply = emu_gemm_multiply,
};
