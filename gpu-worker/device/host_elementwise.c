/*
 * The host device's operations that touch every activation once: embedding, RMSNorm (Zhang and
 * Sennrich, arXiv 1910.07467), bias, rotary positions (Su et al., arXiv 2104.09864), SwiGLU
 * (Shazeer, arXiv 2002.05202) and rounding to a wire dtype. It refuses to know what they feed.
 */
#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/run/team.h"
#include "gpu-worker/device/host.h"

/* Elements a piece of work: small calls stay on the caller's thread. */
#define ELEMENTWISE_BLOCK 16384u

static uint32_t elementwise_threads(const struct gw_host_device *host, uint64_t elements)
{
    return elements <= ELEMENTWISE_BLOCK ? 1 : host->threads;
}

enum pp_status gw_host_embed(struct gw_device *device, struct gw_stream *stream,
                             const struct gw_matrix *table, const uint32_t *ids, uint32_t count,
                             float *out)
{
    (void)stream;
    uint64_t row_bytes = gw_matrix_row_bytes(table->type, table->columns);
    for (uint32_t i = 0; i < count; i++) {
        PP_ASSERT(ids[i] < table->rows);
        gw_host_device(device)->kernels->dequantize(
            table->type, (const uint8_t *)table->data + ids[i] * row_bytes, table->columns,
            out + (uint64_t)i * table->columns);
    }
    return PP_OK;
}

struct norm_work {
    const struct gw_host_kernels *kernels;
    float *x;       /* written where y is added */
    const float *y; /* NULL: none */
    const float *weight;
    float epsilon;
    uint32_t width;
    float *out;
};

static void norm_row(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct norm_work *work = context;
    float *x = work->x + index * work->width;
    float *out = work->out + index * work->width;
    for (uint32_t i = 0; work->y != NULL && i < work->width; i++) {
        x[i] += work->y[index * work->width + i];
    }
    float mean = work->kernels->square_sum(x, work->width) / (float)work->width;
    float factor = 1.0f / sqrtf(mean + work->epsilon);
    for (uint32_t i = 0; i < work->width; i++) {
        out[i] = x[i] * factor * work->weight[i];
    }
}

enum pp_status gw_host_rms_norm(struct gw_device *device, struct gw_stream *stream, const float *x,
                                const float *weight, float epsilon, uint32_t rows, uint32_t width,
                                float *out)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    struct norm_work work = {
        host->kernels, (float *)(uintptr_t)x, NULL, weight, epsilon, width, out};
    pp_team_for(elementwise_threads(host, (uint64_t)rows * width), rows, norm_row, &work);
    return PP_OK;
}

enum pp_status gw_host_add_rms_norm(struct gw_device *device, struct gw_stream *stream,
                                    const float *y, const float *weight, float epsilon,
                                    uint32_t rows, uint32_t width, float *x, float *out)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    struct norm_work work = {host->kernels, x, y, weight, epsilon, width, out};
    pp_team_for(elementwise_threads(host, (uint64_t)rows * width), rows, norm_row, &work);
    return PP_OK;
}

enum pp_status gw_host_gather_rows(struct gw_device *device, struct gw_stream *stream,
                                   const float *x, const uint32_t *at, uint32_t count,
                                   uint32_t width, float *out)
{
    (void)device;
    (void)stream;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(out + (uint64_t)i * width, x + (uint64_t)at[i] * width, width * sizeof(float));
    }
    return PP_OK;
}

enum pp_status gw_host_add_bias(struct gw_device *device, struct gw_stream *stream,
                                const float *bias, uint32_t rows, uint32_t width, float *x)
{
    (void)device;
    (void)stream;
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < width; i++) {
            x[(uint64_t)row * width + i] += bias[i];
        }
    }
    return PP_OK;
}

struct rope_work {
    const struct gw_rope_table *table;
    uint64_t position;
    uint32_t heads, dim;
    float *x;
};

static void rope_row(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct rope_work *work = context;
    uint32_t half = work->dim / 2;
    uint32_t first_step = work->table->interleaved ? 2 : 1;
    uint32_t second_at = work->table->interleaved ? 1 : half;
    const float *cosine = work->table->cosine + (work->position + index) * half;
    const float *sine = work->table->sine + (work->position + index) * half;
    for (uint32_t head = 0; head < work->heads; head++) {
        float *x = work->x + (index * work->heads + head) * work->dim;
        for (uint32_t i = 0; i < half; i++) {
            float *a = x + i * first_step;
            float *b = a + second_at;
            float turned = *a * cosine[i] - *b * sine[i];
            *b = *a * sine[i] + *b * cosine[i];
            *a = turned;
        }
    }
}

enum pp_status gw_host_rope(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_rope_table *table, uint64_t position, uint32_t rows,
                            uint32_t heads, uint32_t dim, float *x)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    PP_ASSERT(position + rows <= table->position_count);
    struct rope_work work = {table, position, heads, dim, x};
    pp_team_for(elementwise_threads(host, (uint64_t)rows * heads * dim), rows, rope_row, &work);
    return PP_OK;
}

struct swiglu_work {
    const struct gw_host_kernels *kernels;
    const float *gate, *up;
    uint64_t count;
    float *out;
};

static void swiglu_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct swiglu_work *work = context;
    uint64_t begin = index * ELEMENTWISE_BLOCK;
    uint64_t left = work->count - begin;
    work->kernels->swiglu(work->gate + begin, work->up + begin,
                          left < ELEMENTWISE_BLOCK ? left : ELEMENTWISE_BLOCK, work->out + begin);
}

enum pp_status gw_host_swiglu(struct gw_device *device, struct gw_stream *stream, const float *gate,
                              const float *up, uint64_t count, float *out)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    struct swiglu_work work = {host->kernels, gate, up, count, out};
    pp_team_for(elementwise_threads(host, count),
                (count + ELEMENTWISE_BLOCK - 1) / ELEMENTWISE_BLOCK, swiglu_piece, &work);
    return PP_OK;
}

enum pp_status gw_host_to_dtype(struct gw_device *device, struct gw_stream *stream,
                                enum pp_dtype dtype, uint32_t dim, const float *values,
                                uint64_t count, void *out)
{
    (void)device;
    (void)stream;
    pp_vectors_from_f32(dtype, dim, values, count, out);
    return PP_OK;
}

enum pp_status gw_host_scatter_rows(struct gw_device *device, struct gw_stream *stream,
                                    enum pp_dtype dtype, uint32_t dim, const float *values,
                                    uint32_t rows, uint32_t count, void *const *outs)
{
    (void)device;
    (void)stream;
    for (uint32_t row = 0; row < rows; row++) {
        if (outs[row] != NULL) {
            pp_vectors_from_f32(dtype, dim, values + (uint64_t)row * count * dim, count, outs[row]);
        }
    }
    return PP_OK;
}
