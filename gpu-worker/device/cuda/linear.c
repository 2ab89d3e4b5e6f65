/*
 * Matrix products of the CUDA device. Few rows (decode): gemv kernels on the weights as they lie.
 * More (prefill): activations and, a tile of outputs at a time, weights become 16-bit floats, which
 * a library multiplies; F16 and BF16 weights are used in place, F32 ones multiply as f32. Where
 * that costs little, or bf16 would keep 8 bits only, either is two halves, high + low, and the
 * products of the halves that matter are added up, as exact as f32. It refuses to know what the
 * matrices mean.
 */
#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

#define THREADS         256u
#define WARPS           8u
#define GROUP           8u /* columns that a lane takes at once */
#define HALVES_ALIGNED  8u
#define BLOCKS_WANTED   4u /* a processor, before a warp takes several outputs */
#define MANY_OUTPUTS    4u
#define MANY_ROWS_PAIRS 2u

struct linear_call {
    struct gw_cuda_device *cuda;
    struct CUstream_st *stream;
    const struct gw_matrix *matrix;
    const float *x;
    uint32_t rows;
    bool add;
    float *out;
    uint64_t row_bytes;
    uint32_t stride; /* columns rounded up */
    bool x_low;      /* activations have low halves, behind the high ones */
    bool weights_low;
};

/* The first of a type's three kernels (GW_CUDA_GEMV_KERNELS). */
static enum gw_cuda_kernel gemv_of(enum gw_weight_type type)
{
    switch (type) {
    case GW_WEIGHT_F16:
        return GW_CUDA_gemv_f16_1x1;
    case GW_WEIGHT_BF16:
        return GW_CUDA_gemv_bf16_1x1;
    case GW_WEIGHT_Q4_0:
        return GW_CUDA_gemv_q4_0_1x1;
    case GW_WEIGHT_Q4_1:
        return GW_CUDA_gemv_q4_1_1x1;
    case GW_WEIGHT_Q8_0:
        return GW_CUDA_gemv_q8_0_1x1;
    case GW_WEIGHT_F32:
        break;
    }
    return GW_CUDA_gemv_f32_1x1;
}

static enum pp_status linear_few(const struct linear_call *call, uint32_t begin, uint32_t rows)
{
    const struct gw_matrix *matrix = call->matrix;
    const struct gw_cuda_gemv_args args = {.weights = matrix->data,
                                           .x = call->x + (uint64_t)begin * matrix->columns,
                                           .out = call->out + (uint64_t)begin * matrix->rows,
                                           .row_bytes = call->row_bytes,
                                           .outputs = matrix->rows,
                                           .columns = matrix->columns,
                                           .x_rows = rows,
                                           .type = (uint32_t)matrix->type,
                                           .add = call->add};
    uint32_t wanted = BLOCKS_WANTED * call->cuda->processors * WARPS;
    enum gw_cuda_kernel kernel = gemv_of(matrix->type);
    uint32_t outputs = 1; /* a warp */
    if (matrix->columns % GROUP != 0) {
        kernel = GW_CUDA_gemv_any;
    } else if (rows > 1) {
        kernel += 2;
        outputs = MANY_ROWS_PAIRS;
    } else if (matrix->rows / MANY_OUTPUTS >= wanted) {
        kernel += 1;
        outputs = MANY_OUTPUTS;
    }
    uint32_t of_block = WARPS * outputs;
    const struct gw_cuda_shape shape = {(matrix->rows + of_block - 1) / of_block, 1, 1, THREADS, 0};
    return GW_CUDA_LAUNCH(call->cuda, call->stream, kernel, &shape, &args);
}

static uint16_t *halves_low(const struct linear_call *call)
{
    return call->cuda->halves + (uint64_t)call->rows * call->stride;
}

/* Activations to halves; the factor that undoes theirs goes to scalars. */
static enum pp_status linear_round(const struct linear_call *call)
{
    struct gw_cuda_device *cuda = call->cuda;
    bool bf16 = call->matrix->type == GW_WEIGHT_BF16;
    uint64_t count = (uint64_t)call->rows * call->matrix->columns;
    struct gw_cuda_shape shape = gw_cuda_striding(cuda, count, THREADS);
    if (!bf16) {
        const struct gw_cuda_largest_args largest = {
            .values = call->x, .bits = &cuda->scalars->largest_bits, .count = count};
        const struct gw_cuda_work clear = {.kind = GW_CUDA_FILLS,
                                           .to = gw_cuda_pointer_of(largest.bits),
                                           .bytes = sizeof(*largest.bits)};
        PP_TRY(gw_cuda_give(cuda, call->stream, &clear));
        PP_TRY(GW_CUDA_LAUNCH(cuda, call->stream, GW_CUDA_largest, &shape, &largest));
    }
    const struct gw_cuda_round_args args = {.values = call->x,
                                            .largest_bits =
                                                bf16 ? NULL : &cuda->scalars->largest_bits,
                                            .back = &cuda->scalars->factor,
                                            .out = cuda->halves,
                                            .low = call->x_low ? halves_low(call) : NULL,
                                            .count = (uint64_t)call->rows * call->stride,
                                            .columns = call->matrix->columns,
                                            .stride = call->stride};
    return GW_CUDA_LAUNCH(cuda, call->stream, GW_CUDA_round, &shape, &args);
}

/* out (+)= x W^T for some outputs. add: beside what is there. */
static enum pp_status linear_multiply(const struct linear_call *call, enum gw_cuda_number type,
                                      const void *x, const void *weights, uint32_t begin,
                                      uint32_t outputs, bool add)
{
    struct gw_cuda_device *cuda = call->cuda;
    const struct gw_cuda_scalars *scalars = cuda->scalars;
    const struct gw_cuda_work work = {
        .kind = GW_CUDA_MULTIPLIES,
        .product = {.type = type,
                    .rows = call->rows,
                    .outputs = outputs,
                    .stride = call->stride,
                    .out_stride = call->matrix->rows,
                    .x = gw_cuda_pointer_of(x),
                    .weights = gw_cuda_pointer_of(weights),
                    .out = gw_cuda_pointer_of(call->out + begin),
                    .factor =
                        gw_cuda_pointer_of(type == GW_CUDA_F32 ? &scalars->one : &scalars->factor),
                    .kept = gw_cuda_pointer_of(add ? &scalars->one : &scalars->zero)}};
    return gw_cuda_give(cuda, call->stream, &work);
}

/* The products of halves; that of both low ones is below the bits of f32. low: NULL: weights have
 * none. */
static enum pp_status linear_halves(const struct linear_call *call, const void *weights,
                                    const void *low, uint32_t begin, uint32_t outputs)
{
    bool bf16 = call->matrix->type == GW_WEIGHT_BF16;
    enum gw_cuda_number type = bf16 ? GW_CUDA_BF16 : GW_CUDA_F16;
    const uint16_t *x = call->cuda->halves;
    PP_TRY(linear_multiply(call, type, x, weights, begin, outputs, call->add));
    if (call->x_low) {
        PP_TRY(linear_multiply(call, type, halves_low(call), weights, begin, outputs, true));
    }
    return low != NULL ? linear_multiply(call, type, x, low, begin, outputs, true) : PP_OK;
}

static enum pp_status linear_tiles(const struct linear_call *call)
{
    struct gw_cuda_device *cuda = call->cuda;
    const struct gw_matrix *matrix = call->matrix;
    uint32_t row_bytes = call->stride * (uint32_t)sizeof(uint16_t);
    uint32_t step = GW_CUDA_TILE_BYTES / (row_bytes * (call->weights_low ? 2 : 1));
    uint16_t *low = call->weights_low ? cuda->tile + (uint64_t)step * call->stride : NULL;
    PP_ASSERT(step > 0);
    for (uint32_t begin = 0; begin < matrix->rows; begin += step) {
        uint32_t left = matrix->rows - begin;
        const struct gw_cuda_dequantise_args args = {.weights = (const uint8_t *)matrix->data +
                                                                begin * call->row_bytes,
                                                     .out = cuda->tile,
                                                     .low = low,
                                                     .row_bytes = call->row_bytes,
                                                     .type = (uint32_t)matrix->type,
                                                     .rows = left < step ? left : step,
                                                     .columns = matrix->columns,
                                                     .stride = call->stride};
        const struct gw_cuda_shape shape =
            gw_cuda_striding(cuda, (uint64_t)args.rows * call->stride / GROUP, THREADS);
        PP_TRY(GW_CUDA_LAUNCH(cuda, call->stream, GW_CUDA_dequantise, &shape, &args));
        PP_TRY(linear_halves(call, cuda->tile, low, begin, args.rows));
    }
    return PP_OK;
}

static enum pp_status linear_many(struct linear_call *call)
{
    const struct gw_matrix *matrix = call->matrix;
    bool whole = matrix->columns == call->stride;
    bool half = matrix->type == GW_WEIGHT_F16 || matrix->type == GW_WEIGHT_BF16;
    bool exact = call->rows <= GW_CUDA_EXACT_ROWS;
    if (matrix->type == GW_WEIGHT_F32) {
        return linear_multiply(call, GW_CUDA_F32, call->x, matrix->data, 0, matrix->rows,
                               call->add);
    }
    call->x_low = exact || matrix->type == GW_WEIGHT_BF16;
    call->weights_low = exact && !half;
    PP_TRY(linear_round(call));
    if (whole && half) {
        return linear_halves(call, matrix->data, NULL, 0, matrix->rows);
    }
    return linear_tiles(call);
}

enum pp_status gw_cuda_linear(struct gw_device *device, struct gw_stream *stream,
                              const struct gw_matrix *matrix, const float *x, uint32_t rows,
                              bool add, float *out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct linear_call call = {.cuda = cuda,
                               .stream = gw_cuda_stream(cuda, stream),
                               .matrix = matrix,
                               .x = x,
                               .rows = rows,
                               .add = add,
                               .out = out,
                               .row_bytes = gw_matrix_row_bytes(matrix->type, matrix->columns),
                               .stride = (matrix->columns + HALVES_ALIGNED - 1) / HALVES_ALIGNED *
                                         HALVES_ALIGNED};
    PP_ASSERT(call.row_bytes != 0 && matrix->columns <= cuda->limits.columns_max &&
              rows <= cuda->limits.rows_max);
    bool odd = matrix->type == GW_WEIGHT_F32 && call.stride != matrix->columns;
    if (rows > GW_CUDA_GEMV_ROWS && !odd) {
        return linear_many(&call);
    }
    for (uint32_t begin = 0; begin < rows; begin += GW_CUDA_GEMV_ROWS) {
        uint32_t left = rows - begin;
        PP_TRY(linear_few(&call, begin, left < GW_CUDA_GEMV_ROWS ? left : GW_CUDA_GEMV_ROWS));
    }
    return PP_OK;
}
