/*
 * The host as a device: memory, trivial streams and events (every operation is finished when its
 * call returns, so they carry nothing but order), scratch, and the table of operations. On the
 * walk: ops > device. It refuses to know models.
 */
#include "gpu-worker/device/host.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/run/team.h"

struct gw_stream {
    uint32_t unused;
};
struct gw_event {
    uint32_t unused;
};

uint64_t gw_matrix_row_bytes(enum gw_weight_type type, uint32_t columns)
{
    uint64_t blocks = columns % 32 == 0 ? columns / 32 : 0;
    switch (type) {
    case GW_WEIGHT_F32:
        return 4ull * columns;
    case GW_WEIGHT_F16:
    case GW_WEIGHT_BF16:
        return 2ull * columns;
    case GW_WEIGHT_Q4_0:
        return 18 * blocks;
    case GW_WEIGHT_Q4_1:
        return 20 * blocks;
    case GW_WEIGHT_Q8_0:
        return 34 * blocks;
    }
    return 0;
}

const struct gw_host_kernels *gw_host_kernels_get(enum pp_isa isa)
{
    if (isa >= PP_ISA_AVX512) {
        return &gw_host_kernels_avx512;
    }
    return isa >= PP_ISA_AVX2 ? &gw_host_kernels_avx2 : &gw_host_kernels_scalar;
}

static enum pp_status host_alloc(struct gw_device *device, uint64_t bytes, void **memory_out)
{
    (void)device;
    uint64_t rounded = (bytes + 63u) & ~UINT64_C(63);
    void *memory = rounded < bytes ? NULL : aligned_alloc(64, rounded == 0 ? 64 : rounded);
    if (memory == NULL) {
        PP_LOG_ERRORF("device", "no memory", "bytes=%llu", (unsigned long long)bytes);
        return PP_MEMORY;
    }
    *memory_out = memory;
    return PP_OK;
}

static void host_free(struct gw_device *device, void *memory)
{
    (void)device;
    free(memory);
}

static enum pp_status host_import(struct gw_device *device, const void *data, uint64_t bytes,
                                  const void **memory_out)
{
    (void)device;
    (void)bytes;
    *memory_out = data;
    return PP_OK;
}

static void host_release(struct gw_device *device, const void *memory)
{
    (void)device;
    (void)memory;
}

static enum pp_status host_stream_new(struct gw_device *device, struct gw_stream **stream_out)
{
    (void)device;
    *stream_out = calloc(1, sizeof(**stream_out));
    return *stream_out == NULL ? PP_MEMORY : PP_OK;
}

static void host_stream_destroy(struct gw_device *device, struct gw_stream *stream)
{
    (void)device;
    free(stream);
}

static enum pp_status host_synchronize(struct gw_device *device, struct gw_stream *stream)
{
    (void)device;
    (void)stream;
    return PP_OK;
}

static enum pp_status host_event_new(struct gw_device *device, struct gw_event **event_out)
{
    (void)device;
    *event_out = calloc(1, sizeof(**event_out));
    return *event_out == NULL ? PP_MEMORY : PP_OK;
}

static void host_event_destroy(struct gw_device *device, struct gw_event *event)
{
    (void)device;
    free(event);
}

static enum pp_status host_event_order(struct gw_device *device, struct gw_event *event,
                                       struct gw_stream *stream)
{
    (void)device;
    (void)event;
    (void)stream;
    return PP_OK;
}

static bool host_event_done(struct gw_device *device, struct gw_event *event)
{
    (void)device;
    (void)event;
    return true;
}

static enum pp_status host_event_synchronize(struct gw_device *device, struct gw_event *event)
{
    (void)device;
    (void)event;
    return PP_OK;
}

static enum pp_status host_copy(struct gw_device *device, struct gw_stream *stream, void *to,
                                const void *from, uint64_t bytes)
{
    (void)device;
    (void)stream;
    memmove(to, from, bytes);
    return PP_OK;
}

static enum pp_status host_view(struct gw_device *device, struct gw_stream *stream, uint32_t which,
                                const void *from, uint64_t bytes, const void **host_out)
{
    (void)device;
    (void)stream;
    (void)which;
    (void)bytes;
    *host_out = from;
    return PP_OK;
}

static void host_drop_scratch(struct gw_host_device *host)
{
    free(host->scratch);
    free(host->sums);
    free(host->pieces);
    host->scratch = NULL;
    host->sums = NULL;
    host->pieces = NULL;
}

static enum pp_status host_floats(struct gw_host_device *host, uint64_t count, float **floats_out)
{
    void *memory;
    PP_TRY(host_alloc(&host->device, count * sizeof(float), &memory));
    *floats_out = memory;
    return PP_OK;
}

static enum pp_status host_prepare(struct gw_device *device, const struct gw_device_limits *limits)
{
    struct gw_host_device *host = gw_host_device(device);
    host_drop_scratch(host);
    host->limits = *limits;
    host->limits.columns_max = (limits->columns_max + 31u) & ~31u;
    uint64_t linear = gw_host_linear_floats(&host->limits);
    uint64_t attend = gw_host_attend_floats(&host->limits);
    host->thread_floats = (linear > attend ? linear : attend) + 32;
    host->piece_count_max = limits->kv_tokens_max / GW_HOST_TOKEN_BLOCK + 1;
    PP_TRY(host_floats(host, host->threads * host->thread_floats, &host->scratch));
    PP_TRY(host_floats(host, (uint64_t)GW_HOST_DOT_ROWS_MAX * host->limits.columns_max / 32,
                       &host->sums));
    uint64_t partial_floats = (limits->heads.head_dim + 2ull) * limits->heads.q_heads;
    return host_floats(host, host->piece_count_max * partial_floats * GW_HOST_DOT_ROWS_MAX,
                       &host->pieces);
}

static void host_destroy(struct gw_device *device)
{
    struct gw_host_device *host = gw_host_device(device);
    host_drop_scratch(host);
    free(host);
}

static const struct gw_device_ops host_ops = {
    .name = "host",
    .destroy = host_destroy,
    .prepare = host_prepare,
    .alloc = host_alloc,
    .free = host_free,
    .import = host_import,
    .release = host_release,
    .stream_new = host_stream_new,
    .stream_destroy = host_stream_destroy,
    .synchronize = host_synchronize,
    .event_new = host_event_new,
    .event_destroy = host_event_destroy,
    .event_record = host_event_order,
    .event_wait = host_event_order,
    .event_done = host_event_done,
    .event_synchronize = host_event_synchronize,
    .pinned_alloc = host_alloc,
    .pinned_free = host_free,
    .pinned_in = host_copy,
    .pinned_out = host_copy,
    .copy_in = host_copy,
    .copy_out = host_copy,
    .copy_within = host_copy,
    .view = host_view,
    .embed = gw_host_embed,
    .rms_norm = gw_host_rms_norm,
    .add_rms_norm = gw_host_add_rms_norm,
    .gather_rows = gw_host_gather_rows,
    .scatter_rows = gw_host_scatter_rows,
    .linear = gw_host_linear,
    .add_bias = gw_host_add_bias,
    .rope = gw_host_rope,
    .swiglu = gw_host_swiglu,
    .to_dtype = gw_host_to_dtype,
    .draw = gw_host_draw,
    .centre_keys = gw_host_centre_keys,
    .sign_keys = gw_host_sign_keys,
    .query_squares = gw_host_query_squares,
    .key_squares = gw_host_key_squares,
    .attend_causal = gw_host_attend_causal,
    .attend_partial = gw_host_attend_partial,
    .merge = gw_host_merge,
};

enum pp_status gw_host_device_new(uint32_t threads, struct gw_device **device_out)
{
    struct gw_host_device *host = calloc(1, sizeof(*host));
    if (host == NULL) {
        return PP_MEMORY;
    }
    host->device.ops = &host_ops;
    host->kernels = gw_host_kernels_get(pp_isa_get());
    host->threads = threads == 0 ? pp_team_threads_default() : threads;
    *device_out = &host->device;
    return PP_OK;
}
