/*
 * The emulated driver: the machine, memory, copies and launches, and the table of them all.
 * Streams and graphs have files of their own.
 */
#include "tests/cuda_emu/emu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu-worker/device/cuda/kernels.h"
#include "tests/cuda_emu/emu_streams.h"

#define ALLOCATIONS_MAX    4096u
#define PROCESSORS         4
#define POISON_BYTES       (1u << 20) /* of an allocation, so that large ones cost nothing */
#define SHARED_BYTES_MAX   101376u    /* of compute capability 8.9 */
#define SHARED_BYTES_FREE  49152u
#define GPU_MEMORY_DEFAULT (4ull << 30)

struct emu_machine emu_machine = {
    .gpus = 1, .capability_major = 8, .memory_bytes = GPU_MEMORY_DEFAULT};
struct emu_counts emu_counts;

struct allocation {
    uint8_t *memory;
    size_t bytes;
    bool pinned;
    uint64_t number;
};

static struct {
    struct allocation allocations[ALLOCATIONS_MAX];
    uint32_t allocation_count;
    struct {
        const struct emu_kernel *kernel;
        uint32_t shared_bytes;
    } allowed[GW_CUDA_KERNEL_COUNT];
    uint64_t allocations_made;
} gpu;

uint64_t emu_bytes_taken(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < gpu.allocation_count; i++) {
        bytes += gpu.allocations[i].bytes;
    }
    return bytes;
}

static const struct allocation *allocation_of(const void *at, size_t bytes, bool pinned)
{
    for (uint32_t i = 0; i < gpu.allocation_count; i++) {
        const struct allocation *own = &gpu.allocations[i];
        const uint8_t *begin = at;
        if (own->pinned == pinned && begin >= own->memory && begin < own->memory + own->bytes &&
            bytes <= (size_t)(own->memory + own->bytes - begin)) {
            return own;
        }
    }
    return NULL;
}

uint64_t emu_memory_number(const void *at)
{
    const struct allocation *own = allocation_of(at, 1, false);
    own = own != NULL ? own : allocation_of(at, 1, true);
    return own != NULL ? own->number : 0;
}

static void *on_gpu(gw_cuda_pointer pointer, size_t bytes)
{
    void *memory = (void *)(uintptr_t)pointer;
    if (allocation_of(memory, bytes, false) == NULL) {
        emu_fail("a copy beyond an allocation of the GPU");
    }
    return memory;
}

/* Taking memory and giving it back stops everything. */
static unsigned take(size_t bytes, bool pinned, void **memory_out)
{
    emu_counts.device_wide++;
    if (emu_capturing()) {
        return EMU_CAPTURE_REFUSED;
    }
    if (gpu.allocation_count == ALLOCATIONS_MAX ||
        posix_memalign(memory_out, 256, bytes == 0 ? 1 : bytes) != 0) {
        return GW_CUDA_OUT_OF_MEMORY;
    }
    memset(*memory_out, 0xff, bytes < POISON_BYTES ? bytes : POISON_BYTES);
    gpu.allocations[gpu.allocation_count++] =
        (struct allocation){*memory_out, bytes, pinned, ++gpu.allocations_made};
    return GW_CUDA_SUCCESS;
}

static void give_back(void *memory)
{
    emu_counts.device_wide++;
    for (uint32_t i = 0; i < gpu.allocation_count; i++) {
        if (gpu.allocations[i].memory == memory) {
            gpu.allocations[i] = gpu.allocations[--gpu.allocation_count];
            free(memory);
            return;
        }
    }
    emu_fail("what was not allocated is freed");
}

static unsigned emu_init(unsigned flags)
{
    (void)flags;
    return emu_machine.init_result;
}

static unsigned emu_driver_version(int *version_out)
{
    *version_out = 13000;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_device_count(int *count_out)
{
    *count_out = emu_machine.gpus;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_device_get(int *device_out, int ordinal)
{
    *device_out = ordinal;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_device_name(char *name_out, int bytes, int device)
{
    snprintf(name_out, (size_t)bytes, "emulated GPU %d", device);
    return GW_CUDA_SUCCESS;
}

static unsigned emu_device_attribute(int *value_out, unsigned attribute, int device)
{
    (void)device;
    *value_out = attribute == GW_CUDA_MAJOR      ? emu_machine.capability_major
                 : attribute == GW_CUDA_SM_COUNT ? PROCESSORS
                                                 : 0;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_context_retain(struct CUctx_st **context_out, int device)
{
    (void)device;
    *context_out = NULL;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_context_release(int device)
{
    (void)device;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_context_use(struct CUctx_st *context)
{
    (void)context;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_module_load(struct CUmod_st **module_out, const void *image)
{
    *module_out = (struct CUmod_st *)(uintptr_t)image;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_module_unload(struct CUmod_st *module)
{
    (void)module;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_module_function(struct CUfunc_st **function_out, struct CUmod_st *module,
                                    const char *name)
{
    (void)module;
    const struct emu_kernel *kernel = emu_kernel_find(name);
    bool lacks = emu_machine.lacking != NULL && strcmp(emu_machine.lacking, name) == 0;
    if (kernel == NULL || lacks) {
        return GW_CUDA_NOT_FOUND;
    }
    *function_out = (struct CUfunc_st *)(uintptr_t)kernel;
    return GW_CUDA_SUCCESS;
}

/* Where the shared memory that a kernel was allowed is noted. */
static uint32_t *allowed_of(const struct emu_kernel *kernel)
{
    uint32_t i = 0;
    while (gpu.allowed[i].kernel != kernel && gpu.allowed[i].kernel != NULL) {
        i++;
    }
    gpu.allowed[i].kernel = kernel;
    return &gpu.allowed[i].shared_bytes;
}

static unsigned emu_function_set(struct CUfunc_st *function, unsigned attribute, int value)
{
    if (attribute != GW_CUDA_FUNCTION_SHARED || value < 0 || (unsigned)value > SHARED_BYTES_MAX) {
        return EMU_INVALID_VALUE;
    }
    *allowed_of((const struct emu_kernel *)function) = (uint32_t)value;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_alloc(gw_cuda_pointer *pointer_out, size_t bytes)
{
    void *memory;
    if (emu_bytes_taken() + bytes > emu_machine.memory_bytes) {
        return GW_CUDA_OUT_OF_MEMORY;
    }
    unsigned result = take(bytes, false, &memory);
    *pointer_out = result == GW_CUDA_SUCCESS ? (gw_cuda_pointer)(uintptr_t)memory : 0;
    return result;
}

static unsigned emu_free(gw_cuda_pointer pointer)
{
    emu_run_all();
    give_back((void *)(uintptr_t)pointer);
    return GW_CUDA_SUCCESS;
}

static unsigned emu_alloc_host(void **memory_out, size_t bytes, unsigned flags)
{
    (void)flags;
    return take(bytes, true, memory_out);
}

static unsigned emu_free_host(void *memory)
{
    give_back(memory);
    return GW_CUDA_SUCCESS;
}

static unsigned emu_copy_in(gw_cuda_pointer to, const void *from, size_t bytes,
                            struct CUstream_st *stream)
{
    struct emu_operation *operation = emu_queue(stream, EMU_COPY);
    operation->to = on_gpu(to, bytes);
    operation->bytes = bytes;
    operation->from = from;
    emu_counts.copies++;
    if (allocation_of(from, bytes, true) == NULL) {
        emu_counts.pageable++;
        if (emu_not_captured(stream) != GW_CUDA_SUCCESS) {
            return EMU_CAPTURE_REFUSED;
        }
        operation->owned = malloc(bytes);
        if (operation->owned == NULL) {
            emu_fail("no memory");
        }
        memcpy(operation->owned, from, bytes);
        operation->from = operation->owned;
    }
    return GW_CUDA_SUCCESS;
}

static unsigned emu_copy_out(void *to, gw_cuda_pointer from, size_t bytes,
                             struct CUstream_st *stream)
{
    struct emu_operation *operation = emu_queue(stream, EMU_COPY);
    operation->to = to;
    operation->from = on_gpu(from, bytes);
    operation->bytes = bytes;
    emu_counts.copies++;
    if (allocation_of(to, bytes, true) == NULL) {
        emu_counts.pageable++;
        if (emu_not_captured(stream) != GW_CUDA_SUCCESS) {
            return EMU_CAPTURE_REFUSED;
        }
        emu_run_until_empty(stream);
    }
    return GW_CUDA_SUCCESS;
}

static unsigned emu_copy_within(gw_cuda_pointer to, gw_cuda_pointer from, size_t bytes,
                                struct CUstream_st *stream)
{
    struct emu_operation *operation = emu_queue(stream, EMU_COPY);
    operation->to = on_gpu(to, bytes);
    operation->from = on_gpu(from, bytes);
    operation->bytes = bytes;
    emu_counts.copies++;
    if (to < from + bytes && from < to + bytes) {
        emu_fail("a copy onto itself");
    }
    return GW_CUDA_SUCCESS;
}

static unsigned emu_fill(gw_cuda_pointer to, unsigned value, size_t count,
                         struct CUstream_st *stream)
{
    struct emu_operation *operation = emu_queue(stream, EMU_FILL);
    operation->bytes = count * sizeof(value);
    emu_counts.fills++;
    operation->to = on_gpu(to, operation->bytes);
    operation->value = value;
    return GW_CUDA_SUCCESS;
}

bool emu_launch_allowed(const struct emu_kernel *kernel, uint32_t shared_bytes)
{
    return shared_bytes <= SHARED_BYTES_FREE || shared_bytes <= *allowed_of(kernel);
}

static unsigned emu_launch_kernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned threads_x, unsigned threads_y,
                                  unsigned threads_z, unsigned shared_bytes,
                                  struct CUstream_st *stream, void **arguments, void **extra)
{
    const struct emu_kernel *kernel = (const struct emu_kernel *)function;
    struct emu_operation *operation = emu_queue(stream, EMU_LAUNCH);
    emu_counts.launches++;
    if (!emu_launch_allowed(kernel, shared_bytes) || threads_y != 1 || threads_z != 1 ||
        extra != NULL || kernel->args_bytes > EMU_ARGS_BYTES_MAX) {
        emu_fail("a launch that the driver refuses");
    }
    memcpy(operation->args, arguments[0], kernel->args_bytes);
    operation->launch = (struct emu_launch){.kernel = kernel,
                                            .args = operation->args,
                                            .grid = {grid_x, grid_y, grid_z},
                                            .threads = threads_x,
                                            .shared_bytes = shared_bytes};
    return GW_CUDA_SUCCESS;
}

static unsigned emu_error_name(unsigned error, const char **name_out)
{
    *name_out = error == GW_CUDA_NO_DEVICE       ? "CUDA_ERROR_NO_DEVICE"
                : error == GW_CUDA_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                : error == EMU_CAPTURE_REFUSED   ? "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
                : error == EMU_CAPTURE_SPOILED   ? "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"
                                                 : "CUDA_ERROR_UNKNOWN";
    return GW_CUDA_SUCCESS;
}

static unsigned emu_error_text(unsigned error, const char **text_out)
{
    *text_out = error == GW_CUDA_NO_DEVICE ? "no CUDA-capable device is detected" : "emulated";
    return GW_CUDA_SUCCESS;
}

const struct gw_cuda_driver emu_driver = {
    .init = emu_init,
    .driver_version = emu_driver_version,
    .device_count = emu_device_count,
    .device_get = emu_device_get,
    .device_name = emu_device_name,
    .device_attribute = emu_device_attribute,
    .context_retain = emu_context_retain,
    .context_release = emu_context_release,
    .context_use = emu_context_use,
    .module_load = emu_module_load,
    .module_unload = emu_module_unload,
    .module_function = emu_module_function,
    .function_set = emu_function_set,
    .alloc = emu_alloc,
    .free = emu_free,
    .alloc_host = emu_alloc_host,
    .free_host = emu_free_host,
    .copy_in = emu_copy_in,
    .copy_out = emu_copy_out,
    .copy_within = emu_copy_within,
    .fill = emu_fill,
    .stream_new = emu_stream_new,
    .stream_destroy = emu_stream_destroy,
    .stream_synchronize = emu_stream_synchronize,
    .stream_wait = emu_stream_wait,
    .event_new = emu_event_new,
    .event_destroy = emu_event_destroy,
    .event_record = emu_event_record,
    .event_query = emu_event_query,
    .event_synchronize = emu_event_synchronize,
    .launch = emu_launch_kernel,
    .capture_begin = emu_capture_begin,
    .capture_end = emu_capture_end,
    .capture_info = emu_capture_info,
    .graph_destroy = emu_graph_destroy,
    .exec_new = emu_exec_new,
    .exec_destroy = emu_exec_destroy,
    .exec_set = emu_exec_set,
    .exec_launch = emu_exec_launch,
    .error_name = emu_error_name,
    .error_text = emu_error_text,
};
