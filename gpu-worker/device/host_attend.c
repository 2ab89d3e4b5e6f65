/*
 * Attention of the host device, exact, in f32 over K/V rows of a wire dtype. Causal (prefill):
 * blocks of q rows (token and head of a group, flattened, so that any group fills a block) against
 * blocks of 64 keys made f32 once a block, running softmax. Partial (decode): pieces of 1,024
 * tokens, merged in index order by the merge law, so that results do not depend on the number of
 * threads. On the walk: engine/step > device. It refuses to know sequences.
 */
#include <math.h>
#include <string.h>

#include "common/attn/partial.h"
#include "common/base/assert.h"
#include "common/base/limits.h"
#include "common/run/team.h"
#include "gpu-worker/device/host.h"

/* A thread's scratch: everything padded to GW_HOST_LANES columns. */
struct attend_scratch {
    float *q;      /* [GW_HOST_ROW_BLOCK][width], scaled */
    float *o;      /* [GW_HOST_ROW_BLOCK][width] */
    float *scores; /* [GW_HOST_ROW_BLOCK][GW_HOST_KEY_BLOCK] */
    float *keys;   /* causal: [width][GW_HOST_KEY_BLOCK]; partial: [GW_HOST_KEY_BLOCK][width] */
    float *values; /* [GW_HOST_KEY_BLOCK][width] */
    float *max;    /* [GW_HOST_ROW_BLOCK] */
    float *sum;    /* [GW_HOST_ROW_BLOCK] */
};

struct attend_work {
    struct gw_host_device *host;
    const struct gw_heads *heads;
    const struct gw_kv_rows *spans;
    uint32_t span_count;
    uint64_t first;
    const float *q;
    uint32_t rows;
    float *o;
    float *lse;
    uint32_t group, width;
    uint64_t blocks;       /* of q rows (causal) or of tokens (partial) a kv head */
    uint64_t tokens_total; /* partial */
};

static uint32_t attend_width(uint32_t head_dim)
{
    return (head_dim + GW_HOST_LANES - 1) / GW_HOST_LANES * GW_HOST_LANES;
}

uint64_t gw_host_attend_floats(const struct gw_device_limits *limits)
{
    uint64_t width = attend_width(limits->heads.head_dim);
    return 2ull * GW_HOST_ROW_BLOCK * width + GW_HOST_ROW_BLOCK * GW_HOST_KEY_BLOCK +
           2ull * GW_HOST_KEY_BLOCK * width + 2ull * GW_HOST_ROW_BLOCK;
}

static struct attend_scratch attend_scratch_of(const struct attend_work *work, uint32_t thread)
{
    float *base = work->host->scratch + thread * work->host->thread_floats;
    struct attend_scratch scratch;
    scratch.q = base;
    scratch.o = scratch.q + GW_HOST_ROW_BLOCK * work->width;
    scratch.scores = scratch.o + GW_HOST_ROW_BLOCK * work->width;
    scratch.keys = scratch.scores + GW_HOST_ROW_BLOCK * GW_HOST_KEY_BLOCK;
    scratch.values = scratch.keys + GW_HOST_KEY_BLOCK * work->width;
    scratch.max = scratch.values + GW_HOST_KEY_BLOCK * work->width;
    scratch.sum = scratch.max + GW_HOST_ROW_BLOCK;
    return scratch;
}

/* Where row (token and head of the group, flattened) of a kv head lies in q and o, in floats. */
static uint64_t attend_row_at(const struct attend_work *work, uint32_t kv_head, uint64_t row)
{
    uint64_t token = row / work->group;
    uint64_t head = (uint64_t)kv_head * work->group + row % work->group;
    return (token * work->heads->q_heads + head) * work->heads->head_dim;
}

/* Starts `count` rows from `begin` on: q scaled and padded, o zero, softmax empty. */
static void attend_load_rows(const struct attend_work *work, struct attend_scratch *scratch,
                             uint32_t kv_head, uint64_t begin, uint32_t count)
{
    uint32_t dim = work->heads->head_dim;
    memset(scratch->o, 0, (uint64_t)count * work->width * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        const float *from = work->q + attend_row_at(work, kv_head, begin + i);
        float *to = scratch->q + (uint64_t)i * work->width;
        for (uint32_t j = 0; j < dim; j++) {
            to[j] = from[j] * work->heads->scale;
        }
        memset(to + dim, 0, (work->width - dim) * sizeof(float));
        scratch->max[i] = -INFINITY;
        scratch->sum[i] = 0.0f;
    }
}

/* count rows of K or V of a head to f32 [count][width], columns and rows beyond zero. */
static void attend_widen(const struct attend_work *work, const void *rows, uint32_t kv_head,
                         uint64_t token, uint32_t count, float *out)
{
    const struct gw_heads *heads = work->heads;
    uint64_t bytes = pp_vector_bytes(heads->head_dim, heads->kv_dtype);
    uint64_t stride = heads->kv_heads * bytes;
    const uint8_t *from = (const uint8_t *)rows + token * stride + kv_head * bytes;
    for (uint32_t i = 0; i < count; i++) {
        float *to = out + (uint64_t)i * work->width;
        work->host->kernels->widen(heads->kv_dtype, from + i * stride, heads->head_dim, to);
        memset(to + heads->head_dim, 0, (work->width - heads->head_dim) * sizeof(float));
    }
    memset(out + (uint64_t)count * work->width, 0,
           (uint64_t)(GW_HOST_KEY_BLOCK - count) * work->width * sizeof(float));
}

static void attend_transpose(const float *rows, uint32_t width, float *out)
{
    for (uint32_t column = 0; column < width; column++) {
        for (uint32_t i = 0; i < GW_HOST_KEY_BLOCK; i++) {
            out[column * GW_HOST_KEY_BLOCK + i] = rows[(uint64_t)i * width + column];
        }
    }
}

/* One block of 64 keys from `token` on, for rows [0, count) of which row i is row begin + i. */
static void causal_key_block(const struct attend_work *work, struct attend_scratch *scratch,
                             uint32_t kv_head, uint64_t token, uint64_t begin, uint32_t count)
{
    const struct gw_host_kernels *kernels = work->host->kernels;
    const struct gw_kv_rows *kv = work->spans;
    uint32_t width = work->width;
    uint64_t left = kv->count - token;
    uint32_t keys = left < GW_HOST_KEY_BLOCK ? (uint32_t)left : GW_HOST_KEY_BLOCK;
    attend_widen(work, kv->k, kv_head, token, keys, scratch->values);
    attend_transpose(scratch->values, width, scratch->keys);
    attend_widen(work, kv->v, kv_head, token, keys, scratch->values);
    kernels->multiply(count, GW_HOST_KEY_BLOCK, work->heads->head_dim, scratch->q, width,
                      scratch->keys, GW_HOST_KEY_BLOCK, 0, scratch->scores, GW_HOST_KEY_BLOCK);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t last = work->first + (begin + i) / work->group; /* the newest token it may see */
        uint64_t seen = last < token ? 0 : last - token + 1;
        float factor = kernels->softmax(scratch->scores + (uint64_t)i * GW_HOST_KEY_BLOCK,
                                        seen < keys ? (uint32_t)seen : keys, &scratch->max[i],
                                        &scratch->sum[i]);
        if (factor != 1.0f) {
            kernels->scale(scratch->o + (uint64_t)i * width, width, factor);
        }
    }
    kernels->multiply(count, width, GW_HOST_KEY_BLOCK, scratch->scores, GW_HOST_KEY_BLOCK,
                      scratch->values, width, 1, scratch->o, width);
}

static void causal_piece(void *context, uint64_t index, uint32_t thread)
{
    const struct attend_work *work = context;
    struct attend_scratch scratch = attend_scratch_of(work, thread);
    uint32_t kv_head = (uint32_t)(index % work->heads->kv_heads);
    /* The longest pieces first, so that the team ends together. */
    uint64_t block = work->blocks - 1 - index / work->heads->kv_heads;
    uint64_t begin = block * GW_HOST_ROW_BLOCK;
    uint64_t left = (uint64_t)work->rows * work->group - begin;
    uint32_t count = left < GW_HOST_ROW_BLOCK ? (uint32_t)left : GW_HOST_ROW_BLOCK;
    attend_load_rows(work, &scratch, kv_head, begin, count);
    uint64_t end = work->first + (begin + count - 1) / work->group + 1;
    for (uint64_t token = 0; token < end; token += GW_HOST_KEY_BLOCK) {
        causal_key_block(work, &scratch, kv_head, token, begin, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        float *to = work->o + attend_row_at(work, kv_head, begin + i);
        const float *from = scratch.o + (uint64_t)i * work->width;
        for (uint32_t j = 0; j < work->heads->head_dim; j++) {
            to[j] = from[j] / scratch.sum[i];
        }
        if (work->lse != NULL) {
            work->lse[(uint64_t)(to - work->o) / work->heads->head_dim] =
                scratch.max[i] + logf(scratch.sum[i]);
        }
    }
}

enum pp_status gw_host_attend_causal(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const struct gw_kv_rows *kv,
                                     uint64_t first, const float *q, uint32_t rows, float *o,
                                     float *lse)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    PP_ASSERT(rows > 0 && first + rows <= kv->count);
    uint32_t group = heads->q_heads / heads->kv_heads;
    struct attend_work work = {.host = host,
                               .heads = heads,
                               .spans = kv,
                               .span_count = 1,
                               .first = first,
                               .q = q,
                               .rows = rows,
                               .o = o,
                               .lse = lse,
                               .group = group,
                               .width = attend_width(heads->head_dim),
                               .blocks = ((uint64_t)rows * group + GW_HOST_ROW_BLOCK - 1) /
                                         GW_HOST_ROW_BLOCK};
    pp_team_for(host->threads, work.blocks * heads->kv_heads, causal_piece, &work);
    return PP_OK;
}

/* One block of at most 64 keys for the rows of a kv head. */
static void partial_key_block(const struct attend_work *work, struct attend_scratch *scratch,
                              const struct gw_kv_rows *span, uint32_t kv_head, uint64_t token,
                              uint32_t keys, uint32_t count)
{
    const struct gw_host_kernels *kernels = work->host->kernels;
    uint32_t width = work->width;
    attend_widen(work, span->k, kv_head, token, keys, scratch->keys);
    attend_widen(work, span->v, kv_head, token, keys, scratch->values);
    for (uint32_t i = 0; i < count; i++) {
        float *scores = scratch->scores + (uint64_t)i * GW_HOST_KEY_BLOCK;
        kernels->scores(scratch->q + (uint64_t)i * width, width, scratch->keys, width, keys,
                        scores);
        float factor = kernels->softmax(scores, keys, &scratch->max[i], &scratch->sum[i]);
        if (factor != 1.0f) {
            kernels->scale(scratch->o + (uint64_t)i * width, width, factor);
        }
    }
    kernels->multiply(count, width, keys, scratch->scores, GW_HOST_KEY_BLOCK, scratch->values,
                      width, 1, scratch->o, width);
}

/* Tokens [begin, end) of all spans laid end to end. */
static void partial_tokens(const struct attend_work *work, struct attend_scratch *scratch,
                           uint32_t kv_head, uint64_t begin, uint64_t end, uint32_t count)
{
    uint64_t span_begin = 0;
    for (uint32_t i = 0; i < work->span_count; i++) {
        const struct gw_kv_rows *span = &work->spans[i];
        uint64_t from = begin > span_begin ? begin - span_begin : 0;
        uint64_t to = end > span_begin ? end - span_begin : 0;
        to = to < span->count ? to : span->count;
        for (uint64_t token = from; token < to; token += GW_HOST_KEY_BLOCK) {
            uint64_t left = to - token;
            partial_key_block(work, scratch, span, kv_head, token,
                              left < GW_HOST_KEY_BLOCK ? (uint32_t)left : GW_HOST_KEY_BLOCK, count);
        }
        span_begin += span->count;
    }
}

/* The partial of a piece lies at [piece][row][q head]: o [dim], lse, and a spare float. */
static float *partial_slot(const struct attend_work *work, uint64_t piece, uint64_t row_head)
{
    uint64_t heads = (uint64_t)work->rows * work->heads->q_heads;
    return work->host->pieces + (piece * heads + row_head) * (work->heads->head_dim + 2ull);
}

static void partial_piece(void *context, uint64_t index, uint32_t thread)
{
    const struct attend_work *work = context;
    struct attend_scratch scratch = attend_scratch_of(work, thread);
    uint32_t dim = work->heads->head_dim;
    uint32_t kv_head = (uint32_t)(index % work->heads->kv_heads);
    uint64_t piece = index / work->heads->kv_heads;
    uint64_t begin = piece * GW_HOST_TOKEN_BLOCK;
    uint64_t end = begin + GW_HOST_TOKEN_BLOCK;
    uint64_t row_count = (uint64_t)work->rows * work->group;
    for (uint64_t row = 0; row < row_count; row += GW_HOST_ROW_BLOCK) {
        uint64_t left = row_count - row;
        uint32_t count = left < GW_HOST_ROW_BLOCK ? (uint32_t)left : GW_HOST_ROW_BLOCK;
        attend_load_rows(work, &scratch, kv_head, row, count);
        partial_tokens(work, &scratch, kv_head, begin,
                       end < work->tokens_total ? end : work->tokens_total, count);
        for (uint32_t i = 0; i < count; i++) {
            float *slot = partial_slot(work, piece, attend_row_at(work, kv_head, row + i) / dim);
            for (uint32_t j = 0; j < dim; j++) {
                slot[j] = scratch.o[(uint64_t)i * work->width + j] / scratch.sum[i];
            }
            slot[dim] = scratch.max[i] + logf(scratch.sum[i]);
        }
    }
}

static void partial_merge_pieces(const struct attend_work *work)
{
    uint32_t dim = work->heads->head_dim;
    uint64_t count = (uint64_t)work->rows * work->heads->q_heads;
    for (uint64_t i = 0; i < count; i++) {
        struct pp_partial merged = {.o = partial_slot(work, 0, i)};
        merged.lse = merged.o[dim];
        for (uint64_t piece = 1; piece < work->blocks; piece++) {
            struct pp_partial both[2] = {merged, {.o = partial_slot(work, piece, i)}};
            both[1].lse = both[1].o[dim];
            pp_partial_merge(both, 2, dim, &merged);
        }
        memcpy(work->o + i * dim, merged.o, dim * sizeof(float));
        work->lse[i] = merged.lse;
    }
}

enum pp_status gw_host_attend_partial(struct gw_device *device, struct gw_stream *stream,
                                      const struct gw_heads *heads, const struct gw_kv_rows *spans,
                                      uint32_t span_count, const float *q, uint32_t rows, float *o,
                                      float *lse)
{
    (void)stream;
    struct gw_host_device *host = gw_host_device(device);
    struct attend_work work = {.host = host,
                               .heads = heads,
                               .spans = spans,
                               .span_count = span_count,
                               .q = q,
                               .rows = rows,
                               .o = o,
                               .lse = lse,
                               .group = heads->q_heads / heads->kv_heads,
                               .width = attend_width(heads->head_dim)};
    for (uint32_t i = 0; i < span_count; i++) {
        work.tokens_total += spans[i].count;
    }
    work.blocks = (work.tokens_total + GW_HOST_TOKEN_BLOCK - 1) / GW_HOST_TOKEN_BLOCK;
    PP_ASSERT(rows <= GW_HOST_DOT_ROWS_MAX && work.blocks <= host->piece_count_max);
    if (work.tokens_total == 0) {
        for (uint64_t i = 0; i < (uint64_t)rows * heads->q_heads; i++) {
            struct pp_partial partial = {.o = o + i * heads->head_dim};
            pp_partial_clear(&partial, heads->head_dim);
            lse[i] = partial.lse;
        }
        return PP_OK;
    }
    uint64_t values = work.tokens_total * rows * heads->q_heads * heads->head_dim;
    pp_team_for(values < GW_HOST_TEAM_VALUES_MIN ? 1 : host->threads, work.blocks * heads->kv_heads,
                partial_piece, &work);
    partial_merge_pieces(&work);
    return PP_OK;
}

enum pp_status gw_host_merge(struct gw_device *device, struct gw_stream *stream, uint32_t count,
                             uint32_t dim, const float *other_o, const float *other_lse, float *o,
                             float *lse)
{
    (void)device;
    (void)stream;
    for (uint32_t i = 0; i < count; i++) {
        float other[PP_HEAD_DIM_MAX];
        memcpy(other, other_o + (uint64_t)i * dim, dim * sizeof(float));
        struct pp_partial parts[2] = {{.o = o + (uint64_t)i * dim, .lse = lse[i]},
                                      {.o = other, .lse = other_lse[i]}};
        struct pp_partial merged = {.o = parts[0].o};
        pp_partial_merge(parts, 2, dim, &merged);
        lse[i] = merged.lse;
    }
    return PP_OK;
}
