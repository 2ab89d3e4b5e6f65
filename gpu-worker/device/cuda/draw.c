/*
 * Draws tokens on the GPU: a row a block, up to GW_CUDA_DRAWS a launch; only ids come back.
 */
#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

enum pp_status gw_cuda_draw(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_draw *draws, uint32_t rows, uint32_t *ids_out)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    uint32_t most = cuda->limits.rows_max; /* numbers that there is room for */
    uint32_t step = most < GW_CUDA_DRAWS ? most : GW_CUDA_DRAWS;
    for (uint32_t begin = 0; begin < rows; begin += step) {
        uint32_t count = rows - begin < step ? rows - begin : step;
        const struct gw_cuda_shape shape = {count, 1, 1, GW_CUDA_DRAW_THREADS,
                                            sizeof(struct gw_cuda_draw_shared)};
        const struct gw_cuda_draw_args args = {.draws = cuda->draws, .ids = cuda->ids};
        for (uint32_t i = 0; i < count; i++) {
            PP_ASSERT(draws[begin + i].count > 0);
        }
        PP_TRY(gw_cuda_copy_in(device, stream, cuda->draws, draws + begin, count * sizeof(*draws)));
        PP_TRY(GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_draw, &shape, &args));
        PP_TRY(
            gw_cuda_copy_out(device, stream, ids_out + begin, cuda->ids, count * sizeof(*ids_out)));
    }
    return gw_cuda_synchronize(device, stream);
}
