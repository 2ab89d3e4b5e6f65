/*
 * A GPU as device: finding and opening it, streams, events, scratch, and the table of operations.
 * Streams and events of the table are the driver's own. On the walk: ops > device. It refuses to
 * know models.
 */
#include "gpu-worker/device/cuda/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "gpu-worker/device/cuda/internal.h"

#define CAPABILITY_MAJOR_MIN 8

static enum pp_status cuda_stream_new(struct gw_device *device, struct gw_stream **stream_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *stream;
    PP_TRY(gw_cuda_status(cuda->driver, cuda->driver->stream_new(&stream, GW_CUDA_STREAM_APART),
                          "stream"));
    *stream_out = (struct gw_stream *)stream;
    return PP_OK;
}

static void cuda_stream_destroy(struct gw_device *device, struct gw_stream *stream)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    if (stream != NULL) {
        (void)gw_cuda_synchronize(device, stream); /* nothing stays to be delivered */
        (void)cuda->driver->stream_destroy((struct CUstream_st *)stream);
    }
}

static enum pp_status cuda_event_new(struct gw_device *device, struct gw_event **event_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUevent_st *event;
    PP_TRY(gw_cuda_status(cuda->driver, cuda->driver->event_new(&event, GW_CUDA_EVENT_UNTIMED),
                          "event"));
    *event_out = (struct gw_event *)event;
    return PP_OK;
}

static void cuda_event_destroy(struct gw_device *device, struct gw_event *event)
{
    if (event != NULL) {
        (void)gw_cuda_device(device)->driver->event_destroy((struct CUevent_st *)event);
    }
}

static enum pp_status cuda_event_record(struct gw_device *device, struct gw_event *event,
                                        struct gw_stream *stream)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_TRY(gw_cuda_needs_host(cuda, own, "event_record"));
    return gw_cuda_status(cuda->driver, cuda->driver->event_record((struct CUevent_st *)event, own),
                          "record");
}

static enum pp_status cuda_event_wait(struct gw_device *device, struct gw_event *event,
                                      struct gw_stream *stream)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_TRY(gw_cuda_needs_host(cuda, own, "event_wait"));
    return gw_cuda_status(cuda->driver,
                          cuda->driver->stream_wait(own, (struct CUevent_st *)event, 0), "wait");
}

/* One that failed counts as done: the next synchronize says what went wrong. */
static bool cuda_event_done(struct gw_device *device, struct gw_event *event)
{
    unsigned result = gw_cuda_device(device)->driver->event_query((struct CUevent_st *)event);
    return result != GW_CUDA_NOT_READY;
}

static enum pp_status cuda_event_synchronize(struct gw_device *device, struct gw_event *event)
{
    const struct gw_cuda_driver *driver = gw_cuda_device(device)->driver;
    return gw_cuda_status(driver, driver->event_synchronize((struct CUevent_st *)event), "event");
}

static void cuda_drop_scratch(struct gw_cuda_device *cuda)
{
    void *scratch[] = {cuda->halves,    cuda->tile,   cuda->ids,     cuda->draws, cuda->piece_o,
                       cuda->piece_lse, cuda->centre, cuda->squares, cuda->codes};
    for (uint32_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
        gw_cuda_free(&cuda->device, scratch[i]);
    }
    cuda->halves = cuda->tile = cuda->codes = NULL;
    cuda->ids = NULL;
    cuda->draws = NULL;
    cuda->piece_o = cuda->piece_lse = cuda->centre = NULL;
    cuda->squares = NULL;
}

static enum pp_status cuda_prepare(struct gw_device *device, const struct gw_device_limits *limits)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    cuda_drop_scratch(cuda);
    cuda->limits = *limits;
    cuda->limits.columns_max = (limits->columns_max + 31u) & ~31u;
    cuda->piece_count_max = limits->kv_tokens_max / GW_CUDA_PIECE_TOKENS + 1;
    uint64_t columns = (uint64_t)limits->heads.kv_heads * limits->heads.head_dim;
    uint64_t partials = cuda->piece_count_max * GW_CUDA_PARTIAL_ROWS * limits->heads.q_heads;
    const struct {
        void **memory;
        uint64_t bytes;
    } scratch[] = {
        {(void **)&cuda->halves,
         2 * (uint64_t)limits->rows_max * cuda->limits.columns_max * sizeof(uint16_t)},
        {(void **)&cuda->tile, GW_CUDA_TILE_BYTES},
        {(void **)&cuda->ids, limits->rows_max * sizeof(uint32_t)},
        {(void **)&cuda->draws, GW_CUDA_DRAWS * sizeof(struct gw_draw)},
        {(void **)&cuda->piece_o, partials * limits->heads.head_dim * sizeof(float)},
        {(void **)&cuda->piece_lse, partials * sizeof(float)},
        {(void **)&cuda->centre, columns * sizeof(float)},
        {(void **)&cuda->squares, columns * sizeof(double)},
        {(void **)&cuda->codes, GW_CUDA_CODES_BYTES},
    };
    for (uint32_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); i++) {
        PP_TRY(gw_cuda_alloc(device, scratch[i].bytes, scratch[i].memory));
    }
    return gw_cuda_views_reserve(cuda, limits->view_bytes);
}

static void cuda_destroy(struct gw_device *device)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    if (cuda->stream != NULL) {
        cuda_stream_destroy(device, (struct gw_stream *)cuda->stream);
    }
    if (cuda->gemm != NULL) {
        cuda->gemm_ops->close(cuda->gemm);
    }
    gw_cuda_slots_deinit(cuda);
    free(cuda->notes.works);
    gw_cuda_blocks_deinit(cuda);
    gw_cuda_kernels_unload(cuda);
    if (cuda->retained) {
        (void)cuda->driver->context_release(cuda->handle);
    }
    free(cuda);
}

static const struct gw_device_ops cuda_ops = {
    .name = "cuda",
    .queues = true,
    .destroy = cuda_destroy,
    .prepare = cuda_prepare,
    .alloc = gw_cuda_alloc,
    .free = gw_cuda_free,
    .import = gw_cuda_import,
    .release = gw_cuda_release,
    .stream_new = cuda_stream_new,
    .stream_destroy = cuda_stream_destroy,
    .synchronize = gw_cuda_synchronize,
    .event_new = cuda_event_new,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_done = cuda_event_done,
    .event_synchronize = cuda_event_synchronize,
    .pinned_alloc = gw_cuda_pinned_alloc,
    .pinned_free = gw_cuda_pinned_free,
    .pinned_in = gw_cuda_pinned_in,
    .pinned_out = gw_cuda_pinned_out,
    .copy_in = gw_cuda_copy_in,
    .copy_out = gw_cuda_copy_out,
    .copy_within = gw_cuda_copy_within,
    .view = gw_cuda_view,
    .embed = gw_cuda_embed,
    .rms_norm = gw_cuda_rms_norm,
    .add_rms_norm = gw_cuda_add_rms_norm,
    .gather_rows = gw_cuda_gather_rows,
    .scatter_rows = gw_cuda_scatter_rows,
    .linear = gw_cuda_linear,
    .add_bias = gw_cuda_add_bias,
    .rope = gw_cuda_rope,
    .swiglu = gw_cuda_swiglu,
    .to_dtype = gw_cuda_to_dtype,
    .draw = gw_cuda_draw,
    .centre_keys = gw_cuda_centre_keys,
    .sign_keys = gw_cuda_sign_keys,
    .query_squares = gw_cuda_query_squares,
    .key_squares = gw_cuda_key_squares,
    .attend_causal = gw_cuda_attend_causal,
    .attend_partial = gw_cuda_attend_partial,
    .merge = gw_cuda_merge,
    .graph_new = gw_cuda_graph_new,
    .graph_destroy = gw_cuda_graph_destroy,
    .graph_begin = gw_cuda_graph_begin,
    .graph_end = gw_cuda_graph_end,
};

/* What the driver says went wrong while it was asked for the GPU. */
static enum pp_status cuda_refused(const struct gw_cuda_driver *driver, unsigned result,
                                   const char *what, char *error_out, size_t error_bytes)
{
    char text[256];
    gw_cuda_describe(driver, result, text, sizeof(text));
    snprintf(error_out, error_bytes, "the CUDA driver: %s: %s", what, text);
    return PP_UNAVAILABLE;
}

/* The GPU of that number, new enough, with its context in use by this thread. */
static enum pp_status cuda_find(struct gw_cuda_device *cuda, uint32_t ordinal, char *error_out,
                                size_t error_bytes)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    struct CUctx_st *context;
    int count = 0, major = 0, minor = 0, processors = 0;
    unsigned result = driver->init(0);
    if (result != GW_CUDA_SUCCESS) {
        return cuda_refused(driver, result, "init", error_out, error_bytes);
    }
    result = driver->device_count(&count);
    if (result != GW_CUDA_SUCCESS) {
        return cuda_refused(driver, result, "count of GPUs", error_out, error_bytes);
    }
    if (count < 0 || ordinal >= (uint32_t)count) {
        snprintf(error_out, error_bytes, "there is no GPU number %u: the CUDA driver sees %d",
                 ordinal, count);
        return PP_UNAVAILABLE;
    }
    if ((result = driver->device_get(&cuda->handle, (int)ordinal)) != GW_CUDA_SUCCESS ||
        (result = driver->device_attribute(&major, GW_CUDA_MAJOR, cuda->handle)) !=
            GW_CUDA_SUCCESS ||
        (result = driver->device_attribute(&minor, GW_CUDA_MINOR, cuda->handle)) !=
            GW_CUDA_SUCCESS ||
        (result = driver->device_attribute(&processors, GW_CUDA_SM_COUNT, cuda->handle)) !=
            GW_CUDA_SUCCESS) {
        return cuda_refused(driver, result, "properties of the GPU", error_out, error_bytes);
    }
    if (major < CAPABILITY_MAJOR_MIN) {
        snprintf(error_out, error_bytes,
                 "GPU number %u has compute capability %d.%d: 8.0 is the least", ordinal, major,
                 minor);
        return PP_UNAVAILABLE;
    }
    cuda->processors = (uint32_t)processors;
    result = driver->context_retain(&context, cuda->handle);
    if (result != GW_CUDA_SUCCESS) {
        return cuda_refused(driver, result, "context", error_out, error_bytes);
    }
    cuda->retained = true;
    result = driver->context_use(context);
    return result == GW_CUDA_SUCCESS
               ? PP_OK
               : cuda_refused(driver, result, "context", error_out, error_bytes);
}

static enum pp_status cuda_scalars(struct gw_cuda_device *cuda)
{
    const struct gw_cuda_scalars scalars = {.one = 1.0f, .factor = 1.0f};
    void *memory;
    PP_TRY(gw_cuda_alloc(&cuda->device, sizeof(scalars), &memory));
    cuda->scalars = memory;
    return gw_cuda_copy_in(&cuda->device, NULL, memory, &scalars, sizeof(scalars));
}

static void cuda_log_found(const struct gw_cuda_device *cuda, uint32_t ordinal)
{
    char name[128] = "?";
    int version = 0;
    (void)cuda->driver->device_name(name, sizeof(name), cuda->handle);
    (void)cuda->driver->driver_version(&version);
    PP_LOG_INFOF("device", "computing on a GPU", "number=%u name=\"%s\" processors=%u driver=%d",
                 ordinal, name, cuda->processors, version);
}

static enum pp_status cuda_open(struct gw_cuda_device *cuda, const struct gw_cuda_config *config,
                                char *error_out, size_t error_bytes)
{
    PP_TRY(cuda_find(cuda, config->ordinal, error_out, error_bytes));
    PP_TRY(gw_cuda_kernels_load(cuda, config->images, error_out, error_bytes));
    PP_TRY(gw_cuda_status(cuda->driver,
                          cuda->driver->stream_new(&cuda->stream, GW_CUDA_STREAM_APART), "stream"));
    PP_TRY(gw_cuda_slots_init(cuda));
    PP_TRY(cuda_scalars(cuda));
    PP_TRY(gw_cuda_alloc(&cuda->device, GW_CUDA_WORKSPACE_BYTES, &cuda->workspace));
    return config->gemm->open(cuda->driver, gw_cuda_pointer_of(cuda->workspace),
                              GW_CUDA_WORKSPACE_BYTES, error_out, error_bytes, &cuda->gemm);
}

enum pp_status gw_cuda_device_open(const struct gw_cuda_config *config, char *error_out,
                                   size_t error_bytes, struct gw_device **device_out)
{
    struct gw_cuda_device *cuda = calloc(1, sizeof(*cuda));
    if (cuda == NULL) {
        return PP_MEMORY;
    }
    cuda->device.ops = &cuda_ops;
    cuda->driver = config->driver;
    cuda->gemm_ops = config->gemm;
    enum pp_status status = cuda_open(cuda, config, error_out, error_bytes);
    if (status != PP_OK) {
        cuda_destroy(&cuda->device);
        return status;
    }
    cuda_log_found(cuda, config->ordinal);
    *device_out = &cuda->device;
    return PP_OK;
}

enum pp_status gw_cuda_device_new(uint32_t ordinal, char *error_out, size_t error_bytes,
                                  struct gw_device **device_out)
{
    struct gw_cuda_config config = {
        .gemm = &gw_cuda_cublaslt, .images = gw_cuda_images_get(), .ordinal = ordinal};
    if (config.images->count == 0) {
        snprintf(error_out, error_bytes,
                 "this build has no CUDA device: it was configured without PIGPEN_CUDA");
        return PP_UNAVAILABLE;
    }
    PP_TRY(gw_cuda_driver_open(error_out, error_bytes, &config.driver));
    return gw_cuda_device_open(&config, error_out, error_bytes, device_out);
}
