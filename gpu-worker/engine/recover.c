/*
 * A sequence after a node was lost: the remote opens the lost parts elsewhere, empty, and here
 * their rows come from. What has not been dropped yet is handed over again; the rest is computed
 * again from the tokens, layer-major as in a prefill: tokens in front of the first one missing are
 * attended over the parts that still hold them, exactly, the others here. On the walk of a token's
 * K/V: as prefill. It refuses to know which nodes were lost.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "gpu-worker/engine/engine_state.h"

/* A sequence that is no further after so many losses in a row gives up. */
#define RECOVERIES_MAX 16u

/* Tokens [begin, end) behind the sink are missing somewhere. K and V of a layer lie behind the
 * sink's rows; with nothing in front of them the sink is computed too. */
struct recompute {
    struct gw_sequence *sequence;
    uint64_t begin, end;
    uint64_t position;         /* of the first token computed */
    uint32_t count;            /* tokens computed */
    uint32_t before;           /* rows of K and V in front of them: the sink's, or none */
    float *hidden;             /* [count][hidden] */
    void *k, *v;               /* [before + count] rows of the layer at hand */
    float *lse;                /* [chunk][q heads] */
    float *sent_q, *o, *o_lse; /* [PP_ATTEND_ROWS_MAX][q heads] x [dim], [dim], [1], on the host */
    float *node_o, *node_lse;  /* the same on the device */
};

/* Merges what nodes answer for tokens [0, begin) into engine->o, some rows at a time. */
static enum pp_status attend_before(struct recompute *work, uint32_t layer, uint32_t rows)
{
    struct gw_sequence *sequence = work->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    uint64_t heads = engine->heads.q_heads, values = heads * engine->heads.head_dim;
    struct gw_remote_answer answer = {.o = work->o, .lse = work->o_lse};
    PP_TRY(ops->synchronize(engine->device, engine->stream));
    for (uint32_t row = 0; row < rows; row += PP_ATTEND_ROWS_MAX) {
        uint32_t count = rows - row < PP_ATTEND_ROWS_MAX ? rows - row : PP_ATTEND_ROWS_MAX;
        struct gw_remote_attend attend = {.layer = layer,
                                          .held_tokens = work->begin,
                                          .q_rows = count,
                                          .q = work->sent_q,
                                          .estimator = {.kind = PP_EXACT}};
        PP_TRY(ops->copy_out(engine->device, engine->stream, work->sent_q, engine->q + row * values,
                             count * values * sizeof(float)));
        PP_TRY(ops->synchronize(engine->device, engine->stream));
        PP_TRY(gw_remote_attend_begin(sequence->remote, &attend));
        PP_TRY(gw_remote_attend_wait(sequence->remote, &answer));
        PP_TRY(ops->copy_in(engine->device, engine->stream, work->node_o, work->o,
                            count * values * sizeof(float)));
        PP_TRY(ops->copy_in(engine->device, engine->stream, work->node_lse, work->o_lse,
                            count * heads * sizeof(float)));
        PP_TRY(ops->merge(engine->device, engine->stream, (uint32_t)(count * heads),
                          engine->heads.head_dim, work->node_o, work->node_lse,
                          engine->o + row * values, work->lse + row * heads));
        PP_TRY(ops->synchronize(engine->device, engine->stream)); /* o is filled again */
    }
    return PP_OK;
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
    PP_TRY(ops->rms_norm(engine->device, engine->stream, x, layer->attn_norm, engine->norm_epsilon,
                         rows, engine->info.hidden, engine->normed));
    PP_TRY(gw_engine_queries(engine, layer, position, rows));
    PP_TRY(gw_engine_keys_values(engine, layer, position, rows, (uint8_t *)work->k + offset,
                                 (uint8_t *)work->v + offset));
    if (index + 1 == engine->info.shape.layers) {
        return PP_OK; /* nobody asks what comes of it */
    }
    struct gw_kv_rows kv = {work->k, work->v, row + rows};
    PP_TRY(ops->attend_causal(engine->device, engine->stream, &engine->heads, &kv, row, engine->q,
                              rows, engine->o, work->lse));
    if (work->begin > 0) {
        PP_TRY(attend_before(work, index, rows));
    }
    return gw_engine_finish_layer(engine, layer, rows, engine->o, x);
}

static enum pp_status recompute_layer(struct recompute *work, uint32_t index)
{
    struct gw_sequence *sequence = work->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_sequence_layer *here = &sequence->layers[index];
    uint64_t sink_bytes = work->before * sequence->row_bytes;
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
    uint64_t rows = (uint64_t)work->before + work->count, heads = engine->heads.q_heads;
    uint64_t asked = PP_ATTEND_ROWS_MAX * heads, dim = engine->heads.head_dim;
    PP_TRY(take_floats(device, (uint64_t)work->count * engine->info.hidden, &work->hidden));
    PP_TRY(device->ops->alloc(device, rows * sequence->row_bytes, &work->k));
    PP_TRY(device->ops->alloc(device, rows * sequence->row_bytes, &work->v));
    PP_TRY(take_floats(device, engine->chunk_tokens * heads, &work->lse));
    PP_TRY(take_floats(device, asked * dim, &work->node_o));
    PP_TRY(take_floats(device, asked, &work->node_lse));
    work->sent_q = malloc(asked * dim * sizeof(float));
    work->o = malloc(asked * dim * sizeof(float));
    work->o_lse = malloc(asked * sizeof(float));
    return work->sent_q == NULL || work->o == NULL || work->o_lse == NULL ? PP_MEMORY : PP_OK;
}

static void recompute_deinit(struct recompute *work)
{
    struct gw_device *device = work->sequence->engine->device;
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

/* Tokens [begin, end) behind the sink, to whichever part lacks them. */
static enum pp_status recompute_rows(struct gw_sequence *sequence, uint64_t begin, uint64_t end)
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

/* Rows that are still here and that some part lacks. */
static enum pp_status hand_over_again(struct gw_sequence *sequence, uint32_t layer, uint64_t end)
{
    uint64_t from = gw_remote_lacking(sequence->remote, layer).begin;
    from = from > sequence->dropped ? from : sequence->dropped;
    if (from >= end) {
        return PP_OK;
    }
    uint64_t at = (PP_SINK_TOKENS + from - sequence->dropped) * sequence->row_bytes;
    const struct gw_sequence_layer *kv = &sequence->layers[layer];
    struct gw_host_rows rows;
    PP_TRY(gw_engine_view(sequence->engine, (const uint8_t *)kv->k + at,
                          (const uint8_t *)kv->v + at, (end - from) * sequence->row_bytes, &rows));
    return gw_remote_append(sequence->remote, layer, from, (uint32_t)(end - from), rows.k, rows.v,
                            false);
}

static enum pp_status refill(struct gw_sequence *sequence, uint64_t cut)
{
    uint32_t layers = sequence->engine->info.shape.layers;
    struct gw_lacking lacking = {UINT64_MAX, 0};
    if (cut != UINT64_MAX) {
        PP_TRY(gw_remote_truncate(sequence->remote, cut));
    }
    uint64_t end = sequence->handed < cut ? sequence->handed : cut;
    uint64_t dropped = sequence->dropped < end ? sequence->dropped : end;
    for (uint32_t layer = 0; layer < layers; layer++) {
        struct gw_lacking more = gw_remote_lacking(sequence->remote, layer);
        lacking.begin = more.begin < lacking.begin ? more.begin : lacking.begin;
        lacking.end = more.end > lacking.end ? more.end : lacking.end;
    }
    bool computed = lacking.begin < dropped;
    if (computed) {
        PP_TRY(
            recompute_rows(sequence, lacking.begin, lacking.end < dropped ? lacking.end : dropped));
    }
    for (uint32_t layer = 0; layer < layers; layer++) {
        PP_TRY(hand_over_again(sequence, layer, end));
    }
    /* What comes in bulk is closed only by request: unsealed it would be read whole from now on. */
    return computed ? gw_remote_seal_begin(sequence->remote) : gw_remote_flush(sequence->remote);
}

void gw_sequence_note_recovery(struct gw_sequence *sequence, uint64_t begin_us)
{
    struct gw_recoveries *all = &sequence->recoveries;
    uint64_t took_us = pp_clock_now_us(&sequence->engine->clock) - begin_us;
    all->count += 1;
    all->total_us += took_us;
    all->longest_us = took_us > all->longest_us ? took_us : all->longest_us;
    PP_LOG_WARNF("engine", "sequence goes on", "recovery_ms=%llu tokens_recomputed_so_far=%llu",
                 (unsigned long long)(took_us / 1000), (unsigned long long)all->tokens_recomputed);
}

enum pp_status gw_sequence_recover(struct gw_sequence *sequence, enum pp_status failed,
                                   uint64_t cut)
{
    uint64_t begin_us = pp_clock_now_us(&sequence->engine->clock);
    for (uint32_t i = 0; failed != PP_OK; i++) {
        if (i == RECOVERIES_MAX) {
            return failed;
        }
        enum pp_status went = gw_remote_recover(sequence->remote);
        if (went != PP_OK) { /* also when it was not a node that failed */
            return went == PP_FAILED_PRECONDITION ? failed : went;
        }
        failed = refill(sequence, cut);
    }
    gw_sequence_note_recovery(sequence, begin_us);
    return PP_OK;
}

void gw_sequence_recoveries(const struct gw_sequence *sequence, struct gw_recoveries *out)
{
    *out = sequence->recoveries;
}
