/*
 * The emulated driver: allocations, streams and events. A stream's head can run unless it waits for
 * an event that was not reached; who waits runs heads of all streams, drawn at random, until what
 * it waits for is done.
 */
#include "tests/cuda_emu/emu_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "gpu-worker/device/cuda/kernels.h"
#include "tests/cuda_emu/emu.h"

#define STREAMS_MAX        8u
#define ALLOCATIONS_MAX    4096u
#define PROCESSORS         4
#define POISON_BYTES       (1u << 20) /* of an allocation, so that large ones cost nothing */
#define SHARED_BYTES_MAX   101376u    /* of compute capability 8.9 */
#define SHARED_BYTES_FREE  49152u
#define ARGS_BYTES_MAX     256u
#define GPU_MEMORY_DEFAULT (4ull << 30)

struct emu_machine emu_machine = {
    .gpus = 1, .capability_major = 8, .memory_bytes = GPU_MEMORY_DEFAULT};

enum kind { COPY, FILL, LAUNCH, RECORD, WAIT };

struct operation {
    struct operation *next;
    enum kind kind;
    void *to;
    const void *from;
    void *owned; /* pageable memory that was read when it was queued */
    size_t bytes;
    unsigned value;
    struct CUevent_st *event;
    uint64_t turn; /* of the event */
    struct emu_launch launch;
    _Alignas(16) uint8_t args[ARGS_BYTES_MAX];
};

struct CUstream_st {
    struct operation *first, **last;
};

struct CUevent_st {
    uint64_t recorded, reached; /* turns */
};

struct allocation {
    uint8_t *memory;
    size_t bytes;
    bool pinned;
};

static struct {
    struct CUstream_st *streams[STREAMS_MAX];
    struct allocation allocations[ALLOCATIONS_MAX];
    uint32_t allocation_count;
    struct {
        const struct emu_kernel *kernel;
        uint32_t shared_bytes;
    } allowed[GW_CUDA_KERNEL_COUNT];
    struct pp_rng rng;
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

static void *on_gpu(gw_cuda_pointer pointer, size_t bytes)
{
    void *memory = (void *)(uintptr_t)pointer;
    if (allocation_of(memory, bytes, false) == NULL) {
        emu_fail("a copy beyond an allocation of the GPU");
    }
    return memory;
}

static unsigned take(size_t bytes, bool pinned, void **memory_out)
{
    if (gpu.allocation_count == ALLOCATIONS_MAX ||
        posix_memalign(memory_out, 256, bytes == 0 ? 1 : bytes) != 0) {
        return GW_CUDA_OUT_OF_MEMORY;
    }
    memset(*memory_out, 0xff, bytes < POISON_BYTES ? bytes : POISON_BYTES);
    gpu.allocations[gpu.allocation_count++] = (struct allocation){*memory_out, bytes, pinned};
    return GW_CUDA_SUCCESS;
}

static void give_back(void *memory)
{
    for (uint32_t i = 0; i < gpu.allocation_count; i++) {
        if (gpu.allocations[i].memory == memory) {
            gpu.allocations[i] = gpu.allocations[--gpu.allocation_count];
            free(memory);
            return;
        }
    }
    emu_fail("what was not allocated is freed");
}

static void operation_run(const struct operation *operation)
{
    switch (operation->kind) {
    case COPY:
        memcpy(operation->to, operation->from, operation->bytes);
        break;
    case FILL:
        for (size_t i = 0; i < operation->bytes / sizeof(unsigned); i++) {
            ((unsigned *)operation->to)[i] = operation->value;
        }
        break;
    case LAUNCH:
        emu_run(&operation->launch);
        break;
    case RECORD:
        operation->event->reached = operation->turn;
        break;
    case WAIT:
        break;
    }
}

static bool head_can_run(const struct CUstream_st *stream)
{
    const struct operation *head = stream->first;
    return head != NULL && (head->kind != WAIT || head->event->reached >= head->turn);
}

static void head_run(struct CUstream_st *stream)
{
    struct operation *head = stream->first;
    operation_run(head);
    stream->first = head->next;
    if (stream->first == NULL) {
        stream->last = &stream->first;
    }
    free(head->owned);
    free(head);
}

/* One operation of any stream; false: none can run. */
static bool run_one(void)
{
    struct CUstream_st *can[STREAMS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        if (gpu.streams[i] != NULL && head_can_run(gpu.streams[i])) {
            can[count++] = gpu.streams[i];
        }
    }
    if (count == 0) {
        return false;
    }
    head_run(can[pp_rng_u64(&gpu.rng) % count]);
    return true;
}

static void run_until_empty(const struct CUstream_st *stream)
{
    while (stream->first != NULL) {
        if (!run_one()) {
            emu_fail("streams wait for events that nobody records");
        }
    }
}

static struct operation *queue(struct CUstream_st *stream, enum kind kind)
{
    struct operation *operation = calloc(1, sizeof(*operation));
    if (operation == NULL || stream == NULL) {
        emu_fail("no stream, or no memory");
    }
    operation->kind = kind;
    *stream->last = operation;
    stream->last = &operation->next;
    return operation;
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
        return 1; /* CUDA_ERROR_INVALID_VALUE */
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
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        if (gpu.streams[i] != NULL) {
            run_until_empty(gpu.streams[i]);
        }
    }
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
    struct operation *operation = queue(stream, COPY);
    operation->to = on_gpu(to, bytes);
    operation->bytes = bytes;
    operation->from = from;
    if (allocation_of(from, bytes, true) == NULL) {
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
    struct operation *operation = queue(stream, COPY);
    operation->to = to;
    operation->from = on_gpu(from, bytes);
    operation->bytes = bytes;
    if (allocation_of(to, bytes, true) == NULL) {
        run_until_empty(stream);
    }
    return GW_CUDA_SUCCESS;
}

static unsigned emu_copy_within(gw_cuda_pointer to, gw_cuda_pointer from, size_t bytes,
                                struct CUstream_st *stream)
{
    struct operation *operation = queue(stream, COPY);
    operation->to = on_gpu(to, bytes);
    operation->from = on_gpu(from, bytes);
    operation->bytes = bytes;
    if (to < from + bytes && from < to + bytes) {
        emu_fail("a copy onto itself");
    }
    return GW_CUDA_SUCCESS;
}

static unsigned emu_fill(gw_cuda_pointer to, unsigned value, size_t count,
                         struct CUstream_st *stream)
{
    struct operation *operation = queue(stream, FILL);
    operation->bytes = count * sizeof(value);
    operation->to = on_gpu(to, operation->bytes);
    operation->value = value;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_stream_new(struct CUstream_st **stream_out, unsigned flags)
{
    (void)flags;
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        if (gpu.streams[i] == NULL) {
            gpu.streams[i] = calloc(1, sizeof(**gpu.streams));
            if (gpu.streams[i] == NULL) {
                return GW_CUDA_OUT_OF_MEMORY;
            }
            gpu.streams[i]->last = &gpu.streams[i]->first;
            *stream_out = gpu.streams[i];
            return GW_CUDA_SUCCESS;
        }
    }
    return GW_CUDA_OUT_OF_MEMORY;
}

static unsigned emu_stream_destroy(struct CUstream_st *stream)
{
    run_until_empty(stream);
    for (uint32_t i = 0; i < STREAMS_MAX; i++) {
        gpu.streams[i] = gpu.streams[i] == stream ? NULL : gpu.streams[i];
    }
    free(stream);
    return GW_CUDA_SUCCESS;
}

static unsigned emu_stream_synchronize(struct CUstream_st *stream)
{
    run_until_empty(stream);
    return GW_CUDA_SUCCESS;
}

static unsigned emu_stream_wait(struct CUstream_st *stream, struct CUevent_st *event,
                                unsigned flags)
{
    (void)flags;
    struct operation *operation = queue(stream, WAIT);
    operation->event = event;
    operation->turn = event->recorded;
    return GW_CUDA_SUCCESS;
}

static unsigned emu_event_new(struct CUevent_st **event_out, unsigned flags)
{
    (void)flags;
    *event_out = calloc(1, sizeof(**event_out));
    return *event_out == NULL ? GW_CUDA_OUT_OF_MEMORY : GW_CUDA_SUCCESS;
}

static unsigned emu_event_synchronize(struct CUevent_st *event)
{
    while (event->reached < event->recorded) {
        if (!run_one()) {
            emu_fail("an event that is never reached");
        }
    }
    return GW_CUDA_SUCCESS;
}

static unsigned emu_event_destroy(struct CUevent_st *event)
{
    (void)emu_event_synchronize(event);
    free(event);
    return GW_CUDA_SUCCESS;
}

static unsigned emu_event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
    struct operation *operation = queue(stream, RECORD);
    operation->event = event;
    operation->turn = ++event->recorded;
    return GW_CUDA_SUCCESS;
}

/* Time passes while somebody asks. */
static unsigned emu_event_query(struct CUevent_st *event)
{
    bool reached = event->reached == event->recorded;
    (void)run_one();
    return reached ? GW_CUDA_SUCCESS : GW_CUDA_NOT_READY;
}

static unsigned emu_launch_kernel(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
                                  unsigned grid_z, unsigned threads_x, unsigned threads_y,
                                  unsigned threads_z, unsigned shared_bytes,
                                  struct CUstream_st *stream, void **arguments, void **extra)
{
    const struct emu_kernel *kernel = (const struct emu_kernel *)function;
    struct operation *operation = queue(stream, LAUNCH);
    bool allowed = shared_bytes <= SHARED_BYTES_FREE || shared_bytes <= *allowed_of(kernel);
    if (!allowed || threads_y != 1 || threads_z != 1 || extra != NULL ||
        kernel->args_bytes > ARGS_BYTES_MAX) {
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
    .error_name = emu_error_name,
    .error_text = emu_error_text,
};
