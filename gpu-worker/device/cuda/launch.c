/*
 * Kernels by name in the images of the build, and how launches, fills, copies and products get to a
 * stream. It refuses to know what they compute, and what graphs are made of it.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

/* More shared memory than this a function must be allowed first. */
#define SHARED_BYTES_FREE 49152u
/* Blocks that stride: so many a processor. */
#define BLOCKS_A_PROCESSOR 16u

#define ARGS_FIT(name, kind, threads)                                                              \
    PP_STATIC_ASSERT(sizeof(struct gw_cuda_##kind##_args) <= GW_CUDA_ARGS_BYTES,                   \
                     "arguments of a kernel are too many");
GW_CUDA_KERNELS(ARGS_FIT)
#undef ARGS_FIT

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

enum pp_status gw_cuda_allow(struct gw_cuda_device *cuda, enum gw_cuda_kernel kernel,
                             uint32_t shared_bytes)
{
    if (shared_bytes <= SHARED_BYTES_FREE || shared_bytes <= cuda->function_shared[kernel]) {
        return PP_OK;
    }
    PP_TRY(gw_cuda_status(cuda->driver,
                          cuda->driver->function_set(cuda->functions[kernel],
                                                     GW_CUDA_FUNCTION_SHARED, (int)shared_bytes),
                          launch_kernels[kernel].name));
    cuda->function_shared[kernel] = shared_bytes;
    return PP_OK;
}

static enum pp_status launch(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                             const struct gw_cuda_work *work)
{
    const struct gw_cuda_shape *shape = &work->shape;
    void *arguments[1] = {(void *)(uintptr_t)work->args};
    PP_TRY(gw_cuda_allow(cuda, work->kernel, shape->shared_bytes));
    return gw_cuda_status(cuda->driver,
                          cuda->driver->launch(cuda->functions[work->kernel], shape->grid_x,
                                               shape->grid_y, shape->grid_z, shape->threads, 1, 1,
                                               shape->shared_bytes, stream, arguments, NULL),
                          launch_kernels[work->kernel].name);
}

enum pp_status gw_cuda_start(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                             const struct gw_cuda_work *work)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    switch (work->kind) {
    case GW_CUDA_LAUNCHES:
        return launch(cuda, stream, work);
    case GW_CUDA_FILLS:
        return gw_cuda_status(
            driver, driver->fill(work->to, work->value, work->bytes / sizeof(uint32_t), stream),
            "fill");
    case GW_CUDA_COPIES_WITHIN:
        return gw_cuda_status(
            driver, driver->copy_within(work->to, work->from, work->bytes, stream), "copy within");
    case GW_CUDA_COPIES_IN:
        return gw_cuda_status(
            driver,
            driver->copy_in(work->to, (const void *)(uintptr_t)work->from, work->bytes, stream),
            "copy in");
    case GW_CUDA_COPIES_OUT:
        return gw_cuda_status(
            driver, driver->copy_out((void *)(uintptr_t)work->to, work->from, work->bytes, stream),
            "copy out");
    case GW_CUDA_MULTIPLIES:
        break;
    }
    return cuda->gemm_ops->multiply(cuda->gemm, stream, &work->product);
}

enum pp_status gw_cuda_give(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                            const struct gw_cuda_work *work)
{
    bool noted = cuda->noted_on != NULL && cuda->noted_on == stream;
    return noted ? gw_cuda_note(cuda, work) : gw_cuda_start(cuda, stream, work);
}

enum pp_status gw_cuda_launch_kernel(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                     enum gw_cuda_kernel kernel, const struct gw_cuda_shape *shape,
                                     const void *args, size_t args_bytes)
{
    PP_ASSERT(args_bytes == launch_kernels[kernel].args_bytes &&
              shape->threads <= launch_kernels[kernel].threads_max);
    struct gw_cuda_work work = {.kind = GW_CUDA_LAUNCHES,
                                .kernel = kernel,
                                .shape = *shape,
                                .args_bytes = (uint32_t)args_bytes};
    memcpy(work.args, args, args_bytes);
    return gw_cuda_give(cuda, stream, &work);
}

struct gw_cuda_shape gw_cuda_striding(const struct gw_cuda_device *cuda, uint64_t count,
                                      uint32_t threads)
{
    uint64_t blocks = (count + threads - 1) / threads;
    uint64_t most = (uint64_t)cuda->processors * BLOCKS_A_PROCESSOR;
    blocks = blocks < most ? blocks : most;
    return (struct gw_cuda_shape){blocks == 0 ? 1 : (uint32_t)blocks, 1, 1, threads, 0};
}
