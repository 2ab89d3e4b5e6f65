/*
 * Attention of the CUDA device: which kernel, and how rows, heads and tokens become blocks. Causal
 * attention over 16-bit K/V runs on tensor cores; over int8 and f32, or dimensions that are no
 * multiple of 8, by the kernel of partials with a limit a row. It refuses to know whose K/V it is.
 */
#include "common/base/assert.h"
#include "gpu-worker/device/cuda/internal.h"

#define WARP           32u
#define CAUSAL_ROWS    64u
#define CAUSAL_THREADS 128u
#define CAUSAL_PAD     8u
#define MERGE_THREADS  128u

static uint32_t padded_to_warps(uint32_t dim)
{
    return (dim + WARP - 1) / WARP * WARP;
}

/* The layout of attend_split.cu: pointers of 32 tokens, q, keys of every warp, weights, states. */
static uint32_t split_shared_bytes(uint32_t dim)
{
    uint32_t floats = GW_CUDA_SPLIT_ROWS * dim + dim / WARP * WARP * (WARP + 1) +
                      GW_CUDA_SPLIT_ROWS * WARP + 3 * GW_CUDA_SPLIT_ROWS;
    return 2 * WARP * (uint32_t)sizeof(void *) + floats * (uint32_t)sizeof(float);
}

static struct gw_cuda_attend_split_args split_args(const struct gw_heads *heads,
                                                   const struct gw_kv_rows *spans,
                                                   uint32_t span_count, const float *q,
                                                   uint32_t rows, float *o, float *lse)
{
    struct gw_cuda_attend_split_args args = {.span_count = span_count,
                                             .q_heads = heads->q_heads,
                                             .kv_heads = heads->kv_heads,
                                             .dim = heads->head_dim,
                                             .dtype = (uint32_t)heads->kv_dtype,
                                             .rows = rows,
                                             .scale = heads->scale,
                                             .causal_first = UINT64_MAX,
                                             .q = q,
                                             .o = o,
                                             .lse = lse};
    PP_ASSERT(span_count <= GW_CUDA_SPANS_MAX);
    for (uint32_t i = 0; i < span_count; i++) {
        args.spans[i] = (struct gw_cuda_kv){spans[i].k, spans[i].v, spans[i].count};
        args.tokens += spans[i].count;
    }
    args.piece_tokens = args.tokens;
    return args;
}

static enum pp_status split_launch(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                   const struct gw_cuda_attend_split_args *args, uint32_t pieces)
{
    uint32_t width = padded_to_warps(args->dim);
    uint32_t q_rows = args->rows * (args->q_heads / args->kv_heads);
    const struct gw_cuda_shape shape = {pieces, args->kv_heads,
                                        (q_rows + GW_CUDA_SPLIT_ROWS - 1) / GW_CUDA_SPLIT_ROWS,
                                        width, split_shared_bytes(width)};
    return GW_CUDA_LAUNCH(cuda, stream, GW_CUDA_attend_split, &shape, args);
}

enum pp_status gw_cuda_attend_partial(struct gw_device *device, struct gw_stream *stream,
                                      const struct gw_heads *heads, const struct gw_kv_rows *spans,
                                      uint32_t span_count, const float *q, uint32_t rows, float *o,
                                      float *lse)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    struct gw_cuda_attend_split_args args = split_args(heads, spans, span_count, q, rows, o, lse);
    uint64_t pieces = (args.tokens + GW_CUDA_PIECE_TOKENS - 1) / GW_CUDA_PIECE_TOKENS;
    PP_ASSERT(rows <= GW_CUDA_PARTIAL_ROWS && pieces <= cuda->piece_count_max);
    if (pieces <= 1) {
        return split_launch(cuda, own, &args, 1);
    }
    args.piece_tokens = GW_CUDA_PIECE_TOKENS;
    args.o = cuda->piece_o;
    args.lse = cuda->piece_lse;
    PP_TRY(split_launch(cuda, own, &args, (uint32_t)pieces));
    const struct gw_cuda_attend_pieces_args merged = {.piece_o = cuda->piece_o,
                                                      .piece_lse = cuda->piece_lse,
                                                      .o = o,
                                                      .lse = lse,
                                                      .pieces = (uint32_t)pieces,
                                                      .dim = heads->head_dim};
    const struct gw_cuda_shape shape = {rows * heads->q_heads, 1, 1, MERGE_THREADS, 0};
    return GW_CUDA_LAUNCH(cuda, own, GW_CUDA_attend_pieces, &shape, &merged);
}

/* The kernel for a dimension, the tile's width and its keys. */
static enum gw_cuda_kernel causal_kernel(const struct gw_heads *heads, uint32_t *width_out,
                                         uint32_t *keys_out)
{
    static const struct {
        uint32_t width, keys;
        enum gw_cuda_kernel bf16, f16;
    } kernels[] = {
        {64, 64, GW_CUDA_attend_causal_bf16_64, GW_CUDA_attend_causal_f16_64},
        {96, 64, GW_CUDA_attend_causal_bf16_96, GW_CUDA_attend_causal_f16_96},
        {128, 64, GW_CUDA_attend_causal_bf16_128, GW_CUDA_attend_causal_f16_128},
        {256, 32, GW_CUDA_attend_causal_bf16_256, GW_CUDA_attend_causal_f16_256},
    };
    uint32_t i = 0;
    while (kernels[i].width < heads->head_dim) {
        i++;
    }
    *width_out = kernels[i].width;
    *keys_out = kernels[i].keys;
    return heads->kv_dtype == PP_BF16 ? kernels[i].bf16 : kernels[i].f16;
}

enum pp_status gw_cuda_attend_causal(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const struct gw_kv_rows *kv,
                                     uint64_t first, const float *q, uint32_t rows, float *o,
                                     float *lse)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *own = gw_cuda_stream(cuda, stream);
    PP_ASSERT(rows > 0 && first + rows <= kv->count && heads->head_dim <= PP_HEAD_DIM_MAX);
    bool halves = heads->kv_dtype == PP_BF16 || heads->kv_dtype == PP_F16;
    if (!halves || heads->head_dim % 8 != 0) {
        struct gw_cuda_attend_split_args args = split_args(heads, kv, 1, q, rows, o, lse);
        args.causal_first = first;
        return split_launch(cuda, own, &args, 1);
    }
    const struct gw_cuda_attend_causal_args args = {.kv = {kv->k, kv->v, kv->count},
                                                    .q_heads = heads->q_heads,
                                                    .kv_heads = heads->kv_heads,
                                                    .dim = heads->head_dim,
                                                    .rows = rows,
                                                    .scale = heads->scale,
                                                    .first = first,
                                                    .q = q,
                                                    .o = o,
                                                    .lse = lse};
    uint32_t width, keys;
    enum gw_cuda_kernel kernel = causal_kernel(heads, &width, &keys);
    uint32_t q_rows = rows * (heads->q_heads / heads->kv_heads);
    uint32_t halves_shared = (2 * CAUSAL_ROWS + 2 * keys) * (width + CAUSAL_PAD);
    const struct gw_cuda_shape shape = {(q_rows + CAUSAL_ROWS - 1) / CAUSAL_ROWS, heads->kv_heads,
                                        1, CAUSAL_THREADS,
                                        halves_shared * (uint32_t)sizeof(uint16_t)};
    return GW_CUDA_LAUNCH(cuda, own, kernel, &shape, &args);
}

enum pp_status gw_cuda_merge(struct gw_device *device, struct gw_stream *stream, uint32_t count,
                             uint32_t dim, const float *other_o, const float *other_lse, float *o,
                             float *lse)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    const struct gw_cuda_merge_args args = {
        .other_o = other_o, .other_lse = other_lse, .o = o, .lse = lse, .dim = dim};
    const struct gw_cuda_shape shape = {count, 1, 1, MERGE_THREADS, 0};
    return GW_CUDA_LAUNCH(cuda, gw_cuda_stream(cuda, stream), GW_CUDA_merge, &shape, &args);
}
