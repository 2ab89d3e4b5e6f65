/*
 * The driver that is late: the table of another one, with some of its functions in front.
 */
#include "tests/cuda_emu/late.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu-worker/device/cuda/internal.h"
#include "tests/cuda_emu/cuda_test.h"
#include "tests/cuda_emu/delay.h"

struct late late;

static const struct gw_cuda_driver *below;
static struct gw_cuda_driver front;
static struct CUmod_st *module;
static struct CUfunc_st *delay;

static bool is(const struct CUstream_st *stream, const struct gw_stream *other)
{
    return (const void *)stream == (const void *)other;
}

/* The module is the test's own, which the device's launches do not know. */
static unsigned spin(struct CUstream_st *stream)
{
    struct gw_cuda_delay_args args = {.cycles = LATE_CYCLES};
    void *arguments[1] = {&args};
    late.delays++;
    return below->launch(delay, 1, 1, 1, DELAY_THREADS, 1, 1, 0, stream, arguments, NULL);
}

static unsigned late_stream_wait(struct CUstream_st *stream, struct CUevent_st *event,
                                 unsigned flags)
{
    if (is(stream, late.deaf)) {
        return GW_CUDA_SUCCESS;
    }
    unsigned result = below->stream_wait(stream, event, flags);
    bool slow = is(stream, late.slow[0]) || is(stream, late.slow[1]);
    return result == GW_CUDA_SUCCESS && slow ? spin(stream) : result;
}

static unsigned late_event_query(struct CUevent_st *event)
{
    unsigned result = below->event_query(event);
    return result == GW_CUDA_NOT_READY && late.hasty_host ? GW_CUDA_SUCCESS : result;
}

static unsigned late_event_synchronize(struct CUevent_st *event)
{
    return late.hasty_host ? GW_CUDA_SUCCESS : below->event_synchronize(event);
}

/* The last that a device asks of its driver. */
static unsigned late_context_release(int device)
{
    (void)below->module_unload(module);
    return below->context_release(device);
}

struct gw_device *late_device_new(void)
{
    struct gw_device *device = cuda_test_device_new();
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    late = (struct late){0};
    below = cuda->driver;
    front = *below;
    front.stream_wait = late_stream_wait;
    front.event_query = late_event_query;
    front.event_synchronize = late_event_synchronize;
    front.context_release = late_context_release;
    if (below->module_load(&module, late_images_get()->images[0]) != GW_CUDA_SUCCESS ||
        below->module_function(&delay, module, "gw_gpu_delay") != GW_CUDA_SUCCESS) {
        fprintf(stderr, "the GPU does not take the kernel that delays\n");
        abort();
    }
    cuda->driver = &front;
    return device;
}
