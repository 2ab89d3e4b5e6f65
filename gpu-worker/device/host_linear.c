/*
 * Matrix products of the host device. Few rows (decode): dot products on the quantised rows as they
 * lie in memory, bound by reading the weights. Many rows (prefill): a tile of weight rows is made
 * f32 in cache-sized scratch, then oneDNN multiplies; each tile is one thread's, so oneDNN runs
 * single-threaded inside the team. No signal is handled on a thread while oneDNN multiplies on it:
 * the f32 kernels of its versions before 3.11.2 point the stack pointer at their workspace on the
 * heap, and a handler's frame would be written over what lies below (uxlfoundation/oneDNN#4845). It
 * refuses to know what the matrices mean.
 */
#include "gpu-worker/device/host.h"

#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/run/team.h"

struct linear_work {
    struct gw_host_device *host;
    const struct gw_matrix *matrix;
    const float *x;
    uint32_t rows;
    bool add;
    float *out;
    uint64_t row_bytes;
    _Atomic int failed;
};

uint64_t gw_host_linear_floats(const struct gw_device_limits *limits)
{
    return (uint64_t)GW_HOST_TILE_ROWS * limits->columns_max;
}

static uint32_t linear_piece_rows(const struct gw_matrix *matrix, uint64_t index, uint32_t piece)
{
    uint64_t left = matrix->rows - index * piece;
    return left < piece ? (uint32_t)left : piece;
}

/* The products of a row of weights with all x rows. */
static void linear_dots(const struct linear_work *work, const uint8_t *weights, float *values_out)
{
    const struct gw_host_device *host = work->host;
    const struct gw_matrix *matrix = work->matrix;
    uint64_t stride = host->limits.columns_max / 32;
    if (host->kernels->dots != NULL) {
        host->kernels->dots(matrix->type, weights, matrix->columns, work->x, matrix->columns,
                            host->sums, stride, work->rows, values_out);
        return;
    }
    for (uint32_t row = 0; row < work->rows; row++) {
        values_out[row] = host->kernels->dot(matrix->type, weights, matrix->columns,
                                             work->x + (uint64_t)row * matrix->columns,
                                             host->sums + row * stride);
    }
}

static void linear_dot_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    struct linear_work *work = context;
    const struct gw_matrix *matrix = work->matrix;
    uint64_t begin = index * GW_HOST_DOT_ROWS;
    uint32_t count = linear_piece_rows(matrix, index, GW_HOST_DOT_ROWS);
    for (uint64_t i = begin; i < begin + count; i++) {
        float values[GW_HOST_DOT_ROWS_MAX];
        linear_dots(work, (const uint8_t *)matrix->data + i * work->row_bytes, values);
        for (uint32_t row = 0; row < work->rows; row++) {
            float *out = work->out + (uint64_t)row * matrix->rows + i;
            *out = work->add ? *out + values[row] : values[row];
        }
    }
}

static void linear_tile(void *context, uint64_t index, uint32_t thread)
{
    struct linear_work *work = context;
    const struct gw_matrix *matrix = work->matrix;
    uint32_t columns = matrix->columns;
    uint64_t begin = index * GW_HOST_TILE_ROWS;
    uint32_t count = linear_piece_rows(matrix, index, GW_HOST_TILE_ROWS);
    float *tile = work->host->scratch + thread * work->host->thread_floats;
    for (uint32_t i = 0; i < count; i++) {
        work->host->kernels->dequantize(
            matrix->type, (const uint8_t *)matrix->data + (begin + i) * work->row_bytes, columns,
            tile + (uint64_t)i * columns);
    }
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    dnnl_status_t status =
        dnnl_sgemm('N', 'T', work->rows, count, columns, 1.0f, work->x, columns, tile, columns,
                   work->add ? 1.0f : 0.0f, work->out + begin, matrix->rows);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status != dnnl_success) {
        atomic_store_explicit(&work->failed, (int)status, memory_order_relaxed);
    }
}

/* Sums of x over blocks of 32: what the offset of a block multiplies. */
static void linear_block_sums(struct gw_host_device *host, const float *x, uint32_t rows,
                              uint32_t columns)
{
    for (uint32_t row = 0; row < rows; row++) {
        float *sums = host->sums + (uint64_t)row * (host->limits.columns_max / 32);
        for (uint32_t i = 0; i + 32 <= columns; i += 32) {
            float sum = 0.0f;
            for (uint32_t j = 0; j < 32; j++) {
                sum += x[(uint64_t)row * columns + i + j];
            }
            sums[i / 32] = sum;
        }
    }
}

enum pp_status gw_host_linear(struct gw_device *device, struct gw_stream *stream,
                              const struct gw_matrix *matrix, const float *x, uint32_t rows,
                              bool add, float *out)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    struct linear_work work = {.host = host,
                               .matrix = matrix,
                               .x = x,
                               .rows = rows,
                               .add = add,
                               .out = out,
                               .row_bytes = gw_matrix_row_bytes(matrix->type, matrix->columns)};
    PP_ASSERT(work.row_bytes != 0 && matrix->columns <= host->limits.columns_max);
    if (rows <= GW_HOST_DOT_ROWS_MAX) {
        linear_block_sums(host, x, rows, matrix->columns);
        uint64_t pieces = (matrix->rows + GW_HOST_DOT_ROWS - 1) / GW_HOST_DOT_ROWS;
        uint64_t values = (uint64_t)rows * matrix->rows * matrix->columns;
        pp_team_for(values < GW_HOST_TEAM_VALUES_MIN ? 1 : host->threads, pieces, linear_dot_piece,
                    &work);
        return PP_OK;
    }
    uint64_t tiles = (matrix->rows + GW_HOST_TILE_ROWS - 1) / GW_HOST_TILE_ROWS;
    pp_team_for(host->threads, tiles, linear_tile, &work);
    int failed = atomic_load(&work.failed);
    if (failed != 0) {
        PP_LOG_ERRORF("device", "matrix product failed", "dnnl_status=%d rows=%u columns=%u",
                      failed, rows, matrix->columns);
        return failed == (int)dnnl_out_of_memory ? PP_MEMORY : PP_INTERNAL;
    }
    return PP_OK;
}
