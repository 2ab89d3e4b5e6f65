/*
 * Kernels by name in the images of the build, and their launches. It refuses to know what they
 * compute.
 */
#include <stdio.h>

#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

/* More shared memory than this a function must be allowed first. */
#define SHARED_BYTES_FREE 49152u
/* Blocks that stride: so many a processor. */
#define BLOCKS_A_PROCESSOR 16u

static const struct {
    const char *name;
    size_t args_bytes;
    uint32_t threads_max;
} launch_kernels[GW_CUDA_KERNEL_COUNT] = {
#define LAUNCH_KERNEL(name, kind, threads)                                                         \
    [GW_CUDA_##name] = {"gw_gpu_" #name, sizeof(struct gw_cuda_##kind##_args), threads},
    GW_CUDA_KERNELS(LAUNCH_KERNEL)
#undef LAUNCH_KERNEL
};

enum pp_status gw_cuda_kernels_load(struct gw_cuda_device *cuda,
                                    const struct gw_cuda_images *images, char *error_out,
                                    size_t error_bytes)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    for (uint32_t i = 0; i < images->count; i++) {
        unsigned result = driver->module_load(&cuda->modules[i], images->images[i]);
        if (result != GW_CUDA_SUCCESS) {
            char text[256];
            gw_cuda_describe(driver, result, text, sizeof(text));
            snprintf(error_out, error_bytes, "the GPU does not take this build's kernels: %s",
                     text);
            return PP_UNAVAILABLE;
        }
    }
    for (uint32_t kernel = 0; kernel < GW_CUDA_KERNEL_COUNT; kernel++) {
        unsigned result = GW_CUDA_NOT_FOUND;
        for (uint32_t i = 0; i < images->count && result != GW_CUDA_SUCCESS; i++) {
            result = driver->module_function(&cuda->functions[kernel], cuda->modules[i],
                                             launch_kernels[kernel].name);
        }
        if (result != GW_CUDA_SUCCESS) {
            snprintf(error_out, error_bytes, "this build's kernels lack %s",
                     launch_kernels[kernel].name);
            return PP_UNAVAILABLE;
        }
    }
    return PP_OK;
}

void gw_cuda_kernels_unload(struct gw_cuda_device *cuda)
{
    for (uint32_t i = 0; i < GW_CUDA_IMAGES_MAX; i++) {
        if (cuda->modules[i] != NULL) {
            (void)cuda->driver->module_unload(cuda->modules[i]);
            cuda->modules[i] = NULL;
        }
    }
}

enum pp_status gw_cuda_launch_kernel(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                     enum gw_cuda_kernel kernel, const struct gw_cuda_shape *shape,
                                     const void *args, size_t args_bytes)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    struct CUfunc_st *function = cuda->functions[kernel];
    const char *name = launch_kernels[kernel].name;
    PP_ASSERT(args_bytes == launch_kernels[kernel].args_bytes &&
              shape->threads <= launch_kernels[kernel].threads_max);
    if (shape->shared_bytes > SHARED_BYTES_FREE &&
        shape->shared_bytes > cuda->function_shared[kernel]) {
        PP_TRY(gw_cuda_status(
            driver,
            driver->function_set(function, GW_CUDA_FUNCTION_SHARED, (int)shape->shared_bytes),
            name));
        cuda->function_shared[kernel] = shape->shared_bytes;
    }
    void *arguments[1] = {(void *)(uintptr_t)args};
    return gw_cuda_status(driver,
                          driver->launch(function, shape->grid_x, shape->grid_y, shape->grid_z,
                                         shape->threads, 1, 1, shape->shared_bytes, stream,
                                         arguments, NULL),
                          name);
}

struct gw_cuda_shape gw_cuda_striding(const struct gw_cuda_device *cuda, uint64_t count,
                                      uint32_t threads)
{
    uint64_t blocks = (count + threads - 1) / threads;
    uint64_t most = (uint64_t)cuda->processors * BLOCKS_A_PROCESSOR;
    blocks = blocks < most ? blocks : most;
    return (struct gw_cuda_shape){blocks == 0 ? 1 : (uint32_t)blocks, 1, 1, threads, 0};
}
