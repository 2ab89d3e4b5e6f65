/*
 * Launches of the operations that touch every activation once: rows, heads and values to blocks.
 */
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

#define ROW_THREADS  256u
#define HEAD_THREADS 128u
#define WARP         32u

enum pp_status gw_cuda_embed(struct gw_device *device, struct gw_stream *stream,
                             const struct gw_matrix *table, const uint32_t *ids, uint32_t count,
                             float *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    uint32_t step = cuda->limits.rows_max;
    for (uint32_t i = 0; i < count; i++) {
        PP_ASSERT(ids[i] < table->rows);
    }
    for (uint32_t begin = 0; begin < count; begin += step) {
        uint32_t rows = count - begin < step ? count - begin : step;
        const struct gw_cuda_embed_args args = {
            .table = table->data,
            .ids = cuda->ids,
            .out = out + (uint64_t)begin * table->columns,
            .row_bytes = gw_matrix_row_bytes(table->type, table->columns),
            .type = (uint32_t)table->type,
            .columns = table->columns};
        const struct gw_cuda_shape shape = {rows, 1, 1, HEAD_THREADS, 0};
        PP_TRY(gw_cuda_copy_in(device, stream, cuda->ids, ids + begin, rows * sizeof(*ids)));
        PP_TRY(GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_embed, &shape, &args));
    }
    return PP_OK;
}

enum pp_status gw_cuda_rms_norm(struct gw_device *device, struct gw_stream *stream, const float *x,
                                const float *weight, float epsilon, uint32_t rows, uint32_t width,
                                float *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_rms_norm_args args = {
        .x = x, .weight = weight, .out = out, .epsilon = epsilon, .width = width};
    const struct gw_cuda_shape shape = {rows, 1, 1, ROW_THREADS,
                                        ROW_THREADS / WARP * sizeof(float)};
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_rms_norm, &shape, &args);
}

enum pp_status gw_cuda_add_rms_norm(struct gw_device *device, struct gw_stream *stream,
                                    const float *y, const float *weight, float epsilon,
                                    uint32_t rows, uint32_t width, float *x, float *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_rms_norm_args args = {
        .x = x, .weight = weight, .y = y, .sum = x, .out = out, .epsilon = epsilon, .width = width};
    const struct gw_cuda_shape shape = {rows, 1, 1, ROW_THREADS,
                                        ROW_THREADS / WARP * sizeof(float)};
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_add_rms_norm, &shape, &args);
}

/* As many at a time as there is room for their numbers. */
enum pp_status gw_cuda_gather_rows(struct gw_device *device, struct gw_stream *stream,
                                   const float *x, const uint32_t *at, uint32_t count,
                                   uint32_t width, float *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    uint32_t step = cuda->limits.rows_max;
    for (uint32_t begin = 0; begin < count; begin += step) {
        uint32_t rows = count - begin < step ? count - begin : step;
        const struct gw_cuda_gather_rows_args args = {
            .from = x, .at = cuda->ids, .out = out + (uint64_t)begin * width, .width = width};
        const struct gw_cuda_shape shape = {rows, 1, 1, HEAD_THREADS, 0};
        PP_TRY(gw_cuda_copy_in(device, stream, cuda->ids, at + begin, rows * sizeof(*at)));
        PP_TRY(
            GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_gather_rows, &shape, &args));
    }
    return PP_OK;
}

enum pp_status gw_cuda_add_bias(struct gw_device *device, struct gw_stream *stream,
                                const float *bias, uint32_t rows, uint32_t width, float *x)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_add_bias_args args = {
        .bias = bias, .x = x, .count = (uint64_t)rows * width, .width = width};
    const struct gw_cuda_shape shape = gw_cuda_striding(cuda, args.count, ROW_THREADS);
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_add_bias, &shape, &args);
}

enum pp_status gw_cuda_rope(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_rope_table *table, uint64_t position, uint32_t rows,
                            uint32_t heads, uint32_t dim, float *x)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    PP_ASSERT(position + rows <= table->position_count);
    const struct gw_cuda_rope_args args = {.cosine = table->cosine,
                                           .sine = table->sine,
                                           .x = x,
                                           .position = position,
                                           .heads = heads,
                                           .dim = dim,
                                           .interleaved = table->interleaved};
    const struct gw_cuda_shape shape = {rows, 1, 1, HEAD_THREADS, 0};
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_rope, &shape, &args);
}

enum pp_status gw_cuda_swiglu(struct gw_device *device, struct gw_stream *stream, const float *gate,
                              const float *up, uint64_t count, float *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_swiglu_args args = {.gate = gate, .up = up, .out = out, .count = count};
    const struct gw_cuda_shape shape = gw_cuda_striding(cuda, (count + 3) / 4, ROW_THREADS);
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_swiglu, &shape, &args);
}

enum pp_status gw_cuda_to_dtype(struct gw_device *device, struct gw_stream *stream,
                                enum pp_dtype dtype, uint32_t dim, const float *values,
                                uint64_t count, void *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_to_dtype_args args = {
        .values = values, .out = out, .count = count, .dim = dim, .dtype = (uint32_t)dtype};
    const struct gw_cuda_shape shape = gw_cuda_striding(cuda, count * WARP, ROW_THREADS);
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_to_dtype, &shape, &args);
}

enum pp_status gw_cuda_scatter_rows(struct gw_device *device, struct gw_stream *stream,
                                    enum pp_dtype dtype, uint32_t dim, const float *values,
                                    uint32_t rows, uint32_t count, void *const *outs)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    for (uint32_t begin = 0; begin < rows; begin += GW_CUDA_SCATTER_ROWS) {
        uint32_t some = rows - begin < GW_CUDA_SCATTER_ROWS ? rows - begin : GW_CUDA_SCATTER_ROWS;
        struct gw_cuda_scatter_rows_args args = {.values = values + (uint64_t)begin * count * dim,
                                                 .count = count,
                                                 .dim = dim,
                                                 .dtype = (uint32_t)dtype};
        const struct gw_cuda_shape shape = {some, 1, 1, HEAD_THREADS, 0};
        memcpy(args.outs, outs + begin, some * sizeof(*outs));
        PP_TRY(GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_scatter_rows, &shape,
                              &args));
    }
    return PP_OK;
}
