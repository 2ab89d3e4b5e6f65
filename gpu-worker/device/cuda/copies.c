/*
 * Copies between host and GPU. Those of a step's sizes go through pinned slots in turn, each with
 * an event that says when it is free: the caller's memory is read at once, or written when the
 * stream is synchronized. Larger ones are the driver's, which returns when it has read or written
 * the caller's memory. It refuses to know what is copied.
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
    for (uint32_t i = 0; i < 2; i++) {
        if (cuda->views[i] != NULL) {
            (void)cuda->driver->free_host(cuda->views[i]);
            cuda->views[i] = NULL;
        }
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

static enum pp_status copy_in_queue(struct gw_cuda_device *cuda, struct CUstream_st *own, void *to,
                                    const void *from_host, uint64_t bytes)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    if (bytes > GW_CUDA_SLOT_BYTES) {
        return gw_cuda_status(
            driver, driver->copy_in(gw_cuda_pointer_of(to), from_host, bytes, own), "copy in");
    }
    struct gw_cuda_slot *slot = &cuda->in[cuda->in_next];
    cuda->in_next = (cuda->in_next + 1) % GW_CUDA_SLOTS;
    /* An event that was never recorded counts as reached. */
    PP_TRY(gw_cuda_status(driver, driver->event_synchronize(slot->event), "a copy in before"));
    memcpy(slot->memory, from_host, bytes);
    PP_TRY(gw_cuda_status(driver, driver->copy_in(gw_cuda_pointer_of(to), slot->memory, bytes, own),
                          "copy in"));
    return gw_cuda_status(driver, driver->event_record(slot->event, own), "record");
}

/* What is copied on the device's own stream, other streams may use at once. */
enum pp_status gw_cuda_copy_in(struct gw_device *device, struct gw_stream *stream, void *to,
                               const void *from_host, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    if (bytes == 0) {
        return PP_OK;
    }
    PP_TRY(copy_in_queue(cuda, gw_cuda_stream(cuda, stream), to, from_host, bytes));
    return stream == NULL ? gw_cuda_synchronize(device, NULL) : PP_OK;
}

enum pp_status gw_cuda_copy_out(struct gw_device *device, struct gw_stream *stream, void *to_host,
                                const void *from, uint64_t bytes)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_driver *driver = cuda->driver;
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    if (bytes == 0) {
        return PP_OK;
    }
    if (bytes > GW_CUDA_SLOT_BYTES) {
        return gw_cuda_status(
            driver, driver->copy_out(to_host, gw_cuda_pointer_of(from), bytes, own), "copy out");
    }
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
        PP_TRY(gw_cuda_status(cuda->driver,
                              cuda->driver->copy_within(target + at, source + at, piece, own),
                              "copy within"));
    }
    return PP_OK;
}

enum pp_status gw_cuda_view(struct gw_device *device, struct gw_stream *stream, uint32_t which,
                            const void *from, uint64_t bytes, const void **host_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_driver *driver = cuda->driver;
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_ASSERT(which < 2);
    if (bytes > cuda->view_bytes[which]) {
        void *memory;
        PP_TRY(gw_cuda_status(driver, driver->alloc_host(&memory, bytes, GW_CUDA_HOST_PORTABLE),
                              "pinned memory"));
        if (cuda->views[which] != NULL) {
            (void)driver->free_host(cuda->views[which]);
        }
        cuda->views[which] = memory;
        cuda->view_bytes[which] = bytes;
    }
    if (bytes > 0) {
        PP_TRY(gw_cuda_status(
            driver, driver->copy_out(cuda->views[which], gw_cuda_pointer_of(from), bytes, own),
            "view"));
    }
    *host_out = cuda->views[which];
    return gw_cuda_synchronize(device, stream);
}
