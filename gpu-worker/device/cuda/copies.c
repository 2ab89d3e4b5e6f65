/*
 * Copies between host and GPU. They go through pinned slots in turn, a piece of a slot's size at a
 * time, each with an event that says when it is free: the caller's memory is read at once, or
 * written when the stream is synchronized. Memory that is pinned itself is copied from and to by
 * the GPU, and views have pinned memory of their own. It refuses to know what is copied.
 */
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

static enum pp_status slot_init(struct gw_cuda_device *cuda, struct gw_cuda_slot *slot)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    void *memory;
    PP_TRY(gw_cuda_status(driver,
                          driver->alloc_host(&memory, GW_CUDA_SLOT_BYTES, GW_CUDA_HOST_PORTABLE),
                          "pinned memory"));
    slot->memory = memory;
    return gw_cuda_status(driver, driver->event_new(&slot->event, GW_CUDA_EVENT_UNTIMED), "event");
}

enum pp_status gw_cuda_slots_init(struct gw_cuda_device *cuda)
{
    for (uint32_t i = 0; i < GW_CUDA_SLOTS; i++) {
        PP_TRY(slot_init(cuda, &cuda->in[i]));
        PP_TRY(slot_init(cuda, &cuda->out[i]));
    }
    for (uint32_t i = 0; i < GW_DEVICE_VIEWS; i++) {
        PP_TRY(gw_cuda_status(cuda->driver,
                              cuda->driver->event_new(&cuda->views[i].event, GW_CUDA_EVENT_UNTIMED),
                              "event"));
    }
    return PP_OK;
}

static void slot_deinit(struct gw_cuda_device *cuda, struct gw_cuda_slot *slot)
{
    if (slot->event != NULL) {
        (void)cuda->driver->event_destroy(slot->event);
    }
    if (slot->memory != NULL) {
        (void)cuda->driver->free_host(slot->memory);
    }
    memset(slot, 0, sizeof(*slot));
}

void gw_cuda_slots_deinit(struct gw_cuda_device *cuda)
{
    for (uint32_t i = 0; i < GW_CUDA_SLOTS; i++) {
        slot_deinit(cuda, &cuda->in[i]);
        slot_deinit(cuda, &cuda->out[i]);
    }
    for (uint32_t i = 0; i < GW_DEVICE_VIEWS; i++) {
        struct gw_cuda_view *view = &cuda->views[i];
        if (view->event != NULL) {
            (void)cuda->driver->event_destroy(view->event);
        }
        gw_cuda_pinned_free(&cuda->device, view->memory);
        memset(view, 0, sizeof(*view));
    }
}

/* The bytes of a slot have arrived: to where they were asked for. */
static void slot_deliver(struct gw_cuda_slot *slot)
{
    if (slot->to_host != NULL) {
        memcpy(slot->to_host, slot->memory, slot->bytes);
        slot->to_host = NULL;
    }
}

enum pp_status gw_cuda_synchronize(struct gw_device *device, struct gw_stream *stream)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_TRY(gw_cuda_needs_host(cuda, own, "synchronize"));
    PP_TRY(gw_cuda_status(cuda->driver, cuda->driver->stream_synchronize(own), "synchronize"));
    /* The oldest first: two may go to the same place. */
    for (uint32_t i = 0; i < GW_CUDA_SLOTS; i++) {
        struct gw_cuda_slot *slot = &cuda->out[(cuda->out_next + i) % GW_CUDA_SLOTS];
        if (slot->to_host != NULL && slot->stream == own) {
            slot_deliver(slot);
        }
    }
    return PP_OK;
}

/* One piece, at most a slot. An event that was never recorded counts as reached. */
static enum pp_status piece_in(struct gw_cuda_device *cuda, struct CUstream_st *own, void *to,
                               const void *from_host, uint64_t bytes)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    struct gw_cuda_slot *slot = &cuda->in[cuda->in_next];
    cuda->in_next = (cuda->in_next + 1) % GW_CUDA_SLOTS;
    PP_TRY(gw_cuda_status(driver, driver->event_synchronize(slot->event), "a copy in before"));
    memcpy(slot->memory, from_host, bytes);
    PP_TRY(gw_cuda_status(driver, driver->copy_in(gw_cuda_pointer_of(to), slot->memory, bytes, own),
                          "copy in"));
    return gw_cuda_status(driver, driver->event_record(slot->event, own), "record");
}

static enum pp_status piece_out(struct gw_cuda_device *cuda, struct CUstream_st *own, void *to_host,
                                const void *from, uint64_t bytes)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    struct gw_cuda_slot *slot = &cuda->out[cuda->out_next];
    cuda->out_next = (cuda->out_next + 1) % GW_CUDA_SLOTS;
    if (slot->to_host != NULL) {
        PP_TRY(gw_cuda_status(driver, driver->event_synchronize(slot->event), "a copy out before"));
        slot_deliver(slot);
    }
    PP_TRY(gw_cuda_status(
        driver, driver->copy_out(slot->memory, gw_cuda_pointer_of(from), bytes, own), "copy out"));
    PP_TRY(gw_cuda_status(driver, driver->event_record(slot->event, own), "record"));
    slot->stream = own;
    slot->to_host = to_host;
    slot->bytes = bytes;
    return PP_OK;
}

static uint64_t piece_bytes(uint64_t left)
{
    return left < GW_CUDA_SLOT_BYTES ? left : GW_CUDA_SLOT_BYTES;
}

/* What is copied on the device's own stream, other streams may use at once. */
enum pp_status gw_cuda_copy_in(struct gw_device *device, struct gw_stream *stream, void *to,
                               const void *from_host, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_TRY(gw_cuda_needs_host(cuda, own, "copy_in"));
    for (uint64_t at = 0; at < bytes; at += GW_CUDA_SLOT_BYTES) {
        PP_TRY(piece_in(cuda, own, (uint8_t *)to + at, (const uint8_t *)from_host + at,
                        piece_bytes(bytes - at)));
    }
    return stream == NULL && bytes > 0 ? gw_cuda_synchronize(device, NULL) : PP_OK;
}

enum pp_status gw_cuda_copy_out(struct gw_device *device, struct gw_stream *stream, void *to_host,
                                const void *from, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_TRY(gw_cuda_needs_host(cuda, own, "copy_out"));
    for (uint64_t at = 0; at < bytes; at += GW_CUDA_SLOT_BYTES) {
        PP_TRY(piece_out(cuda, own, (uint8_t *)to_host + at, (const uint8_t *)from + at,
                         piece_bytes(bytes - at)));
    }
    return PP_OK;
}

enum pp_status gw_cuda_pinned_alloc(struct gw_device *device, uint64_t bytes, void **memory_out)
{
    const struct gw_cuda_driver *driver = gw_cuda_device(device)->driver;
    return gw_cuda_status(
        driver, driver->alloc_host(memory_out, bytes == 0 ? 1 : bytes, GW_CUDA_HOST_PORTABLE),
        "pinned memory");
}

void gw_cuda_pinned_free(struct gw_device *device, void *memory)
{
    if (memory != NULL) {
        (void)gw_cuda_device(device)->driver->free_host(memory);
    }
}

enum pp_status gw_cuda_pinned_in(struct gw_device *device, struct gw_stream *stream, void *to,
                                 const void *from_pinned, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_work work = {.kind = GW_CUDA_COPIES_IN,
                                      .to = gw_cuda_pointer_of(to),
                                      .from = gw_cuda_pointer_of(from_pinned),
                                      .bytes = bytes};
    return gw_cuda_give(cuda, gw_cuda_stream(cuda, stream), &work);
}

enum pp_status gw_cuda_pinned_out(struct gw_device *device, struct gw_stream *stream,
                                  void *to_pinned, const void *from, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_work work = {.kind = GW_CUDA_COPIES_OUT,
                                      .to = gw_cuda_pointer_of(to_pinned),
                                      .from = gw_cuda_pointer_of(from),
                                      .bytes = bytes};
    return gw_cuda_give(cuda, gw_cuda_stream(cuda, stream), &work);
}

/* Ranges that overlap are cut at their distance: each piece is then apart from where it goes, and
 * in the order from the front a piece is read before it is written (`to` lies in front). */
enum pp_status gw_cuda_copy_within(struct gw_device *device, struct gw_stream *stream, void *to,
                                   const void *from, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    gw_cuda_pointer target = gw_cuda_pointer_of(to), source = gw_cuda_pointer_of(from);
    bool backwards = target > source;
    uint64_t distance = backwards ? target - source : source - target;
    uint64_t step = distance < bytes ? distance : bytes;
    for (uint64_t done = 0; done < bytes && step > 0; done += step) {
        uint64_t left = bytes - done;
        uint64_t piece = left < step ? left : step;
        uint64_t at = backwards ? left - piece : done;
        const struct gw_cuda_work work = {
            .kind = GW_CUDA_COPIES_WITHIN, .to = target + at, .from = source + at, .bytes = piece};
        PP_TRY(gw_cuda_give(cuda, own, &work));
    }
    return PP_OK;
}

static enum pp_status view_reserve(struct gw_cuda_device *cuda, struct gw_cuda_view *view,
                                   uint64_t bytes)
{
    if (bytes <= view->bytes) {
        return PP_OK;
    }
    void *memory;
    PP_TRY(gw_cuda_status(cuda->driver, cuda->driver->event_synchronize(view->event), "a view"));
    PP_TRY(gw_cuda_pinned_alloc(&cuda->device, bytes, &memory));
    gw_cuda_pinned_free(&cuda->device, view->memory);
    view->memory = memory;
    view->bytes = bytes;
    return PP_OK;
}

enum pp_status gw_cuda_views_reserve(struct gw_cuda_device *cuda, uint64_t bytes)
{
    for (uint32_t i = 0; i < GW_DEVICE_VIEWS; i++) {
        PP_TRY(view_reserve(cuda, &cuda->views[i], bytes));
    }
    return PP_OK;
}

enum pp_status gw_cuda_view(struct gw_device *device, struct gw_stream *stream, uint32_t which,
                            const void *from, uint64_t bytes, const void **host_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_driver *driver = cuda->driver;
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_ASSERT(which < GW_DEVICE_VIEWS);
    struct gw_cuda_view *view = &cuda->views[which];
    PP_TRY(gw_cuda_needs_host(cuda, own, "view"));
    PP_TRY(view_reserve(cuda, view, bytes));
    if (bytes > 0) {
        PP_TRY(gw_cuda_pinned_out(device, stream, view->memory, from, bytes));
        PP_TRY(gw_cuda_status(driver, driver->event_record(view->event, own), "record"));
    }
    *host_out = view->memory;
    return PP_OK;
}
