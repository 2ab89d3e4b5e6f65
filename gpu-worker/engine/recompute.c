/*
 * Rows that went with a node, computed again from their tokens, layer-major as in a prefill. Tokens
 * in front of the first one missing are attended over the parts that still hold them, exactly, the
 * others here. While nodes attend for some rows of a chunk, the worker attends its own share of the
 * chunk and brings the chunk before it on through the rest of the layer. On the walk of a token's
 * K/V: as prefill. It refuses to know who lacks them.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "gpu-worker/engine/engine_state.h"

/* An answer of nodes may take this share of the time after which they are taken for lost: a step's
 * single row is answered far within it, 64 rows over a long part are not. */
#define PATIENCE_SHARE 8u
/* Rows of the next request are at most so many times those of the last. */
#define ROWS_GROWTH 4u
/* What is attended here between two looks for the nodes' answer. */
#define HERE_ROWS 64u

/* A chunk whose attention is complete, on its way through the rest of its layer. */
struct behind {
    const struct gw_layer *layer;
    float *x;
    uint32_t rows; /* 0: none */
    uint32_t stage;
};

/* Tokens [begin, end) behind the sink are missing somewhere. K and V of a layer lie behind the
 * sink's rows; with nothing in front of them the sink is computed too. */
struct recompute {
    struct gw_sequence *sequence;
    uint64_t begin, end;
    uint64_t position;         /* of the first token computed */
    uint32_t count;            /* tokens computed */
    uint32_t before;           /* rows of K and V in front of them: the sink's, or none */
    uint32_t rows_asked;       /* of the next request */
    uint64_t patience_us;      /* what it should take at most */
    float *hidden;             /* [count][hidden] */
    void *k, *v;               /* [before + count] rows of the layer at hand */
    float *lse;                /* [chunk][q heads] */
    float *sent_q, *o, *o_lse; /* [chunk][q heads] x [dim], [dim], [1], on the host */
    float *node_o, *node_lse;  /* the same on the device */
    struct behind behind;
};

/* Rows of a chunk: how far the worker's own share of their attention has come. */
struct chunk {
    uint32_t rows, here;
    struct gw_kv_rows kv; /* those in front of the chunk and its own */
};

static enum pp_status behind_go_on(struct recompute *work)
{
    struct gw_engine *engine = work->sequence->engine;
    struct behind *behind = &work->behind;
    PP_TRY(gw_engine_finish_stage(engine, behind->layer, behind->rows, engine->o, behind->x,
                                  behind->stage));
    behind->stage++;
    behind->rows = behind->stage == GW_FINISH_STAGES ? 0 : behind->rows;
    return PP_OK;
}

static enum pp_status behind_finish(struct recompute *work)
{
    while (work->behind.rows > 0) {
        PP_TRY(behind_go_on(work));
    }
    return PP_OK;
}

static bool left_here(const struct recompute *work, const struct chunk *chunk)
{
    return work->behind.rows > 0 || chunk->here < chunk->rows;
}

/* Some of what there is to do here. The chunk behind comes first: it still needs its o. */
static enum pp_status do_here(struct recompute *work, struct chunk *chunk)
{
    struct gw_engine *engine = work->sequence->engine;
    uint64_t heads = engine->heads.q_heads, at = chunk->here * heads;
    uint64_t first = chunk->kv.count - chunk->rows + chunk->here;
    uint32_t left = chunk->rows - chunk->here, rows = left < HERE_ROWS ? left : HERE_ROWS;
    if (work->behind.rows > 0) {
        PP_TRY(behind_go_on(work));
    }
    if (rows == 0) {
        return PP_OK;
    }
    struct gw_kv_rows kv = {chunk->kv.k, chunk->kv.v, first + rows};
    chunk->here += rows;
    return engine->device->ops->attend_causal(engine->device, engine->stream, &engine->heads, &kv,
                                              first, engine->q + at * engine->heads.head_dim, rows,
                                              engine->o + at * engine->heads.head_dim,
                                              work->lse + at);
}

/* So many rows that the next answer takes its patience, as far as the last one tells. */
static void learn_rows(struct recompute *work, uint32_t rows, uint64_t took_us)
{
    uint64_t fit = took_us == 0 ? PP_ATTEND_ROWS_MAX : rows * work->patience_us / took_us;
    uint64_t most = (uint64_t)rows * ROWS_GROWTH;
    fit = fit < most ? fit : most;
    fit = fit < PP_ATTEND_ROWS_MAX ? fit : PP_ATTEND_ROWS_MAX;
    work->rows_asked = fit > 1 ? (uint32_t)fit : 1;
}

/* What nodes answer for `rows` rows of the chunk from `at` on, over tokens [0, begin). */
static enum pp_status ask_before(struct recompute *work, uint32_t layer, struct chunk *chunk,
                                 uint32_t at, uint32_t rows)
{
    struct gw_sequence *sequence = work->sequence;
    uint64_t heads = sequence->engine->heads.q_heads, dim = sequence->engine->heads.head_dim;
    struct gw_remote_answer answer = {.o = work->o + at * heads * dim,
                                      .lse = work->o_lse + at * heads};
    struct gw_remote_attend attend = {.layer = layer,
                                      .held_tokens = work->begin,
                                      .q_rows = rows,
                                      .q = work->sent_q + at * heads * dim,
                                      .estimator = {.kind = PP_EXACT}};
    PP_TRY(gw_remote_attend_begin(sequence->remote, &attend));
    enum pp_status here = do_here(work, chunk);
    while (here == PP_OK && at + rows == chunk->rows && left_here(work, chunk)) {
        here = do_here(work, chunk);
    }
    enum pp_status status = gw_remote_attend_wait(sequence->remote, &answer);
    PP_TRY(here); /* the wait came first: nothing is in flight on the way out */
    PP_TRY(status);
    learn_rows(work, rows, answer.node_us + answer.network_us);
    return PP_OK;
}

/* The chunk's attention over everything in front of it, into engine->o. */
static enum pp_status attend_all(struct recompute *work, uint32_t layer, struct chunk *chunk)
{
    struct gw_engine *engine = work->sequence->engine;
    struct gw_device *device = engine->device;
    const struct gw_device_ops *ops = device->ops;
    uint64_t heads = (uint64_t)chunk->rows * engine->heads.q_heads;
    uint64_t bytes = heads * engine->heads.head_dim * sizeof(float);
    PP_TRY(ops->copy_out(device, engine->stream, work->sent_q, engine->q, bytes));
    PP_TRY(ops->synchronize(device, engine->stream));
    for (uint32_t at = 0, rows; at < chunk->rows; at += rows) {
        uint32_t left = chunk->rows - at;
        rows = left < work->rows_asked ? left : work->rows_asked;
        PP_TRY(ask_before(work, layer, chunk, at, rows));
    }
    PP_TRY(ops->copy_in(device, engine->stream, work->node_o, work->o, bytes));
    PP_TRY(
        ops->copy_in(device, engine->stream, work->node_lse, work->o_lse, heads * sizeof(float)));
    return ops->merge(device, engine->stream, (uint32_t)heads, engine->heads.head_dim, work->node_o,
                      work->node_lse, engine->o, work->lse);
}

static enum pp_status recompute_chunk(struct recompute *work, uint32_t index, uint32_t begin,
                                      uint32_t rows)
{
    struct gw_sequence *sequence = work->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_layer *layer = &engine->layers[index];
    uint64_t row = work->before + begin, position = work->position + begin;
    uint64_t offset = row * sequence->row_bytes;
    float *x = work->hidden + (uint64_t)begin * engine->info.hidden;
    struct chunk chunk = {.rows = rows, .kv = {work->k, work->v, row + rows}};
    PP_TRY(ops->rms_norm(engine->device, engine->stream, x, layer->attn_norm, engine->norm_epsilon,
                         rows, engine->info.hidden, engine->normed));
    PP_TRY(gw_engine_queries(engine, layer, position, rows));
    PP_TRY(gw_engine_keys_values(engine, layer, position, rows, (uint8_t *)work->k + offset,
                                 (uint8_t *)work->v + offset));
    if (index + 1 == engine->info.shape.layers) {
        return PP_OK; /* nobody asks what comes of it */
    }
    if (work->begin == 0) {
        PP_TRY(ops->attend_causal(engine->device, engine->stream, &engine->heads, &chunk.kv, row,
                                  engine->q, rows, engine->o, NULL));
        return gw_engine_finish_layer(engine, layer, rows, engine->o, x);
    }
    PP_TRY(attend_all(work, index, &chunk));
    work->behind = (struct behind){.layer = layer, .x = x, .rows = rows};
    /* Only another chunk can be computed meanwhile. */
    return rows == work->count ? behind_finish(work) : PP_OK;
}

static enum pp_status recompute_layer(struct recompute *work, uint32_t index)
{
    struct gw_sequence *sequence = work->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_sequence_layer *here = &sequence->layers[index];
    uint64_t sink_bytes = work->before * sequence->row_bytes;
    if (index + 1 == engine->info.shape.layers) {
        PP_TRY(behind_finish(work)); /* no attend comes that it could be done beside */
    }
    PP_TRY(ops->copy_within(engine->device, engine->stream, work->k, here->k, sink_bytes));
    PP_TRY(ops->copy_within(engine->device, engine->stream, work->v, here->v, sink_bytes));
    for (uint32_t begin = 0; begin < work->count; begin += engine->chunk_tokens) {
        uint32_t left = work->count - begin;
        PP_TRY(recompute_chunk(work, index, begin,
                               left < engine->chunk_tokens ? left : engine->chunk_tokens));
    }
    PP_TRY(ops->synchronize(engine->device, engine->stream));
    for (uint64_t start = work->begin; start < work->end; start += GW_BULK_TOKENS) {
        uint64_t left = work->end - start;
        uint32_t count = left < GW_BULK_TOKENS ? (uint32_t)left : GW_BULK_TOKENS;
        uint64_t at = (PP_SINK_TOKENS + start - work->begin) * sequence->row_bytes;
        struct gw_host_rows rows;
        PP_TRY(gw_engine_view(engine, (const uint8_t *)work->k + at, (const uint8_t *)work->v + at,
                              count * sequence->row_bytes, &rows));
        PP_TRY(gw_remote_append(sequence->remote, index, start, count, rows.k, rows.v, true));
    }
    return PP_OK;
}

static enum pp_status take_floats(struct gw_device *device, uint64_t count, float **out)
{
    void *memory = NULL;
    PP_TRY(device->ops->alloc(device, count * sizeof(float), &memory));
    *out = memory;
    return PP_OK;
}

static enum pp_status recompute_take(struct recompute *work)
{
    struct gw_sequence *sequence = work->sequence;
    struct gw_engine *engine = sequence->engine;
    struct gw_device *device = engine->device;
    uint64_t rows = (uint64_t)work->before + work->count, dim = engine->heads.head_dim;
    uint64_t heads = (uint64_t)engine->chunk_tokens * engine->heads.q_heads;
    PP_TRY(take_floats(device, (uint64_t)work->count * engine->info.hidden, &work->hidden));
    PP_TRY(device->ops->alloc(device, rows * sequence->row_bytes, &work->k));
    PP_TRY(device->ops->alloc(device, rows * sequence->row_bytes, &work->v));
    PP_TRY(take_floats(device, heads, &work->lse));
    PP_TRY(take_floats(device, heads * dim, &work->node_o));
    PP_TRY(take_floats(device, heads, &work->node_lse));
    work->sent_q = malloc(heads * dim * sizeof(float));
    work->o = malloc(heads * dim * sizeof(float));
    work->o_lse = malloc(heads * sizeof(float));
    return work->sent_q == NULL || work->o == NULL || work->o_lse == NULL ? PP_MEMORY : PP_OK;
}

static void recompute_deinit(struct recompute *work)
{
    struct gw_device *device = work->sequence->engine->device;
    /* Where it ended early, work is queued on what is freed. */
    (void)device->ops->synchronize(device, work->sequence->engine->stream);
    free(work->o_lse);
    free(work->o);
    free(work->sent_q);
    device->ops->free(device, work->node_lse);
    device->ops->free(device, work->node_o);
    device->ops->free(device, work->lse);
    device->ops->free(device, work->v);
    device->ops->free(device, work->k);
    device->ops->free(device, work->hidden);
}

enum pp_status gw_sequence_recompute(struct gw_sequence *sequence, uint64_t begin, uint64_t end)
{
    struct gw_engine *engine = sequence->engine;
    uint32_t before = begin > 0 ? PP_SINK_TOKENS : 0;
    struct recompute work = {
        .sequence = sequence,
        .begin = begin,
        .end = end,
        .position = before + begin,
        .count = (uint32_t)(PP_SINK_TOKENS - before + end - begin),
        .before = before,
        .rows_asked = 1,
        .patience_us = gw_remote_attend_timeout_us(sequence->remote) / PATIENCE_SHARE,
    };
    if (sequence->ids_known < PP_SINK_TOKENS + end) {
        PP_LOG_ERRORF("engine", "lost rows were not computed here, and cannot be again",
                      "tokens=%llu known=%llu", (unsigned long long)(PP_SINK_TOKENS + end),
                      (unsigned long long)sequence->ids_known);
        return PP_FAILED_PRECONDITION;
    }
    enum pp_status status = recompute_take(&work);
    if (status == PP_OK) {
        status = engine->device->ops->embed(engine->device, engine->stream, &engine->embedding,
                                            sequence->ids + work.position, work.count, work.hidden);
    }
    for (uint32_t layer = 0; layer < engine->info.shape.layers && status == PP_OK; layer++) {
        status = recompute_layer(&work, layer);
    }
    recompute_deinit(&work);
    sequence->recoveries.tokens_recomputed += status == PP_OK ? work.count : 0;
    return status;
}
