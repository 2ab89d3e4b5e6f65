/*
 * Prefill, layer-major: for a layer, all tokens in chunks with exact attention over that layer's
 * K/V, which then leaves for the nodes while the next layer computes. So a device whose operations
 * run behind their calls holds the K/V of two layers, in turns, and the host that of one. On the
 * walk of a token's K/V: ops (k, v) > here > engine/leaving. It refuses to know how nodes keep it.
 */
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/engine/engine_state.h"
#include "gpu-worker/engine/leaving.h"

/* A prefill that loses a node each time gives up. */
#define PREFILL_TRIES_MAX 8u

struct prefill {
    struct gw_sequence *sequence;
    uint32_t count; /* tokens of this call */
    uint32_t logit_rows;
    float *hidden;     /* [count][hidden] on the device */
    void *k[2], *v[2]; /* remote: [count] rows of a layer, which take turns */
    uint32_t turns;
    struct gw_leaving leaving; /* zeroed: nothing leaves */
    struct gw_balance balance; /* zeroed: not measured */
    bool balancing;            /* it is measured of the layer at hand */
    bool balanced;             /* some layer was */
    gw_progress_fn *progress;
    void *context;
    uint32_t tries;
    uint64_t begin_us;
};

static enum pp_status prefill_report(const struct prefill *prefill, enum gw_phase phase,
                                     uint64_t done, uint64_t total)
{
    bool go_on =
        prefill->progress == NULL || prefill->progress(prefill->context, phase, done, total);
    return go_on ? PP_OK : PP_CANCELLED;
}

/* One chunk of a layer; kv holds the layer's rows from the sequence's first token on. */
static enum pp_status prefill_chunk(struct prefill *prefill, uint32_t index, struct gw_kv_rows *kv,
                                    uint32_t begin, uint32_t rows)
{
    struct gw_sequence *sequence = prefill->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_layer *layer = &engine->layers[index];
    const struct gw_device_ops *ops = engine->device->ops;
    uint64_t position = sequence->length + begin;
    uint64_t offset = position * sequence->row_bytes;
    float *x = prefill->hidden + (uint64_t)begin * engine->info.hidden;
    PP_TRY(ops->rms_norm(engine->device, engine->stream, x, layer->attn_norm, engine->norm_epsilon,
                         rows, engine->info.hidden, engine->normed));
    PP_TRY(gw_engine_queries(engine, layer, position, rows));
    PP_TRY(gw_late_keep(sequence, index, position, rows));
    if (prefill->balancing) {
        PP_TRY(ops->query_squares(engine->device, engine->stream, &engine->heads, engine->q, rows,
                                  prefill->balance.q_squares));
    }
    PP_TRY(gw_engine_keys_values(engine, layer, position, rows,
                                 (uint8_t *)(uintptr_t)kv->k + offset,
                                 (uint8_t *)(uintptr_t)kv->v + offset));
    kv->count = position + rows;
    PP_TRY(ops->attend_causal(engine->device, engine->stream, &engine->heads, kv, position,
                              engine->q, rows, engine->o, NULL));
    return gw_engine_finish_layer(engine, layer, rows, engine->o, x);
}

/* What nodes balance the layer's sketches with goes in front of its rows. */
static enum pp_status prefill_balance(struct prefill *prefill, uint32_t layer, const uint8_t *k,
                                      uint64_t count)
{
    struct gw_sequence *sequence = prefill->sequence;
    struct gw_engine *engine = sequence->engine;
    PP_TRY(gw_balance_measure(engine, &prefill->balance, k, count));
    PP_TRY(gw_remote_balance(sequence->remote, layer, prefill->balance.values));
    gw_balances_take(engine, layer, prefill->balance.values);
    prefill->balanced = true;
    return PP_OK;
}

/* A finished layer's rows begin to leave; the sink and the recent ones are kept. */
static enum pp_status prefill_hand_over(struct prefill *prefill, uint32_t layer)
{
    struct gw_sequence *sequence = prefill->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    uint32_t turn = layer % prefill->turns;
    const uint8_t *k = prefill->k[turn], *v = prefill->v[turn];
    uint64_t leaving = gw_sequence_leaving(sequence, prefill->count);
    uint64_t sink = prefill->count < PP_SINK_TOKENS ? prefill->count : PP_SINK_TOKENS;
    uint64_t sink_bytes = sink * sequence->row_bytes;
    if (prefill->balancing && leaving > 0) {
        PP_TRY(prefill_balance(prefill, layer, k + sink_bytes, leaving));
    }
    PP_TRY(gw_leaving_begin(&prefill->leaving, layer, k + sink_bytes, v + sink_bytes, leaving));
    struct gw_sequence_layer *kept = &sequence->layers[layer];
    uint64_t recent_at = (sink + leaving) * sequence->row_bytes;
    uint64_t recent_bytes = prefill->count * sequence->row_bytes - recent_at;
    PP_TRY(ops->copy_within(engine->device, engine->stream, kept->k, k, sink_bytes));
    PP_TRY(ops->copy_within(engine->device, engine->stream, kept->v, v, sink_bytes));
    PP_TRY(ops->copy_within(engine->device, engine->stream, (uint8_t *)kept->k + sink_bytes,
                            k + recent_at, recent_bytes));
    return ops->copy_within(engine->device, engine->stream, (uint8_t *)kept->v + sink_bytes,
                            v + recent_at, recent_bytes);
}

static enum pp_status prefill_layer(struct prefill *prefill, uint32_t index)
{
    struct gw_sequence *sequence = prefill->sequence;
    struct gw_engine *engine = sequence->engine;
    struct gw_kv_rows kv = {sequence->layers[index].k, sequence->layers[index].v, 0};
    if (sequence->remote != NULL) {
        uint32_t turn = index % prefill->turns;
        kv = (struct gw_kv_rows){prefill->k[turn], prefill->v[turn], 0};
    }
    uint64_t total = (uint64_t)prefill->count * engine->info.shape.layers;
    prefill->balancing = prefill->balance.values != NULL && gw_sequence_balances(sequence, index) &&
                         gw_engine_balance(engine, index) == NULL;
    if (prefill->balancing) {
        gw_balance_clear(&prefill->balance, &engine->heads);
    }
    for (uint32_t begin = 0; begin < prefill->count; begin += engine->chunk_tokens) {
        uint32_t left = prefill->count - begin;
        uint32_t rows = left < engine->chunk_tokens ? left : engine->chunk_tokens;
        PP_TRY(prefill_chunk(prefill, index, &kv, begin, rows));
        if (sequence->remote != NULL) {
            PP_TRY(gw_leaving_go_on(&prefill->leaving));
        }
        PP_TRY(prefill_report(prefill, GW_PHASE_PREFILL,
                              (uint64_t)index * prefill->count + begin + rows, total));
    }
    return sequence->remote == NULL ? PP_OK : prefill_hand_over(prefill, index);
}

static bool prefill_indexed(void *context, uint64_t indexed, uint64_t total)
{
    return prefill_report(context, GW_PHASE_INDEX, indexed, total) == PP_OK;
}

static enum pp_status prefill_compute(struct prefill *prefill, const uint32_t *ids,
                                      float *logits_out)
{
    struct gw_sequence *sequence = prefill->sequence;
    struct gw_engine *engine = sequence->engine;
    PP_TRY(engine->device->ops->embed(engine->device, engine->stream, &engine->embedding, ids,
                                      prefill->count, prefill->hidden));
    for (uint32_t layer = 0; layer < engine->info.shape.layers; layer++) {
        PP_TRY(prefill_layer(prefill, layer));
    }
    uint64_t skipped = prefill->count - prefill->logit_rows;
    if (prefill->logit_rows > 0) {
        PP_TRY(gw_engine_logits(engine, prefill->hidden + skipped * engine->info.hidden,
                                prefill->logit_rows, logits_out));
    }
    if (sequence->remote != NULL) {
        PP_TRY(gw_leaving_finish(&prefill->leaving));
    }
    return engine->device->ops->synchronize(engine->device, engine->stream);
}

/* Waits until the nodes have stored and indexed what left. */
static enum pp_status prefill_store(struct prefill *prefill)
{
    struct gw_sequence *sequence = prefill->sequence;
    PP_TRY(prefill_report(prefill, GW_PHASE_STORE, 0, sequence->handed));
    PP_TRY(gw_remote_flush(sequence->remote));
    PP_TRY(prefill_report(prefill, GW_PHASE_STORE, sequence->handed, sequence->handed));
    return gw_remote_seal(sequence->remote, prefill_indexed, prefill);
}

/* Layers that a lost node had are gone with it: everything is computed again, on the others. */
static enum pp_status prefill_again(struct prefill *prefill, enum pp_status failed)
{
    struct gw_sequence *sequence = prefill->sequence;
    if (sequence->remote == NULL || prefill->tries++ == PREFILL_TRIES_MAX ||
        !gw_remote_recoverable(sequence->remote)) {
        return failed;
    }
    PP_TRY(gw_leaving_drop(&prefill->leaving));
    PP_TRY(gw_remote_sequence_reopen(&sequence->remote));
    gw_sequence_note_recovery(sequence, prefill->begin_us);
    return PP_OK;
}

static enum pp_status prefill_run(struct prefill *prefill, const uint32_t *ids, float *logits_out)
{
    struct gw_sequence *sequence = prefill->sequence;
    enum pp_status status;
    while ((status = prefill_compute(prefill, ids, logits_out)) != PP_OK) {
        PP_TRY(prefill_again(prefill, status));
    }
    sequence->length += prefill->count;
    if (sequence->remote == NULL) {
        return PP_OK;
    }
    memcpy(sequence->ids, ids, prefill->count * sizeof(*ids));
    sequence->ids_known = prefill->count;
    sequence->handed = sequence->dropped = gw_sequence_leaving(sequence, prefill->count);
    while (sequence->handed > 0 && (status = prefill_store(prefill)) != PP_OK) {
        bool ends = prefill->tries++ == PREFILL_TRIES_MAX;
        PP_TRY(ends ? status : gw_sequence_recover(sequence, status, UINT64_MAX));
    }
    return PP_OK;
}

static enum pp_status prefill_check(const struct gw_sequence *sequence, const uint32_t *ids,
                                    uint32_t count, uint32_t logit_rows)
{
    if (sequence->broken || (sequence->remote != NULL && sequence->length != 0)) {
        return PP_FAILED_PRECONDITION;
    }
    if (count == 0 || logit_rows > count) {
        return PP_INVALID_ARGUMENT;
    }
    if (count > sequence->tokens_expected - sequence->length) {
        return PP_OUT_OF_RANGE;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] >= sequence->engine->info.vocab) {
            return PP_INVALID_ARGUMENT;
        }
    }
    return PP_OK;
}

/* Memory of a prefill; what was taken is in it when some cannot be had. */
static enum pp_status prefill_take(struct prefill *prefill)
{
    struct gw_sequence *sequence = prefill->sequence;
    struct gw_device *device = sequence->engine->device;
    uint64_t hidden_bytes =
        (uint64_t)prefill->count * sequence->engine->info.hidden * sizeof(float);
    void *hidden;
    PP_TRY(device->ops->alloc(device, hidden_bytes, &hidden));
    prefill->hidden = hidden;
    prefill->turns = device->ops->queues ? 2 : 1;
    for (uint32_t i = 0; i < prefill->turns && sequence->remote != NULL; i++) {
        uint64_t bytes = prefill->count * sequence->row_bytes;
        PP_TRY(device->ops->alloc(device, bytes, &prefill->k[i]));
        PP_TRY(device->ops->alloc(device, bytes, &prefill->v[i]));
    }
    if (sequence->remote != NULL) {
        PP_TRY(gw_leaving_init(sequence, &prefill->leaving));
    }
    PP_TRY(gw_late_begin(sequence, prefill->count));
    return sequence->balance && prefill->count >= GW_BALANCE_TOKENS
               ? gw_balance_init(&sequence->engine->heads, &prefill->balance)
               : PP_OK;
}

/* A prefill that ends early has work queued on what is freed: its next owner may use any stream. */
static void prefill_give_back(struct prefill *prefill)
{
    struct gw_device *device = prefill->sequence->engine->device;
    gw_leaving_deinit(&prefill->leaving);
    (void)device->ops->synchronize(device, prefill->sequence->engine->stream);
    gw_balance_deinit(&prefill->balance);
    for (uint32_t i = 0; i < 2; i++) {
        device->ops->free(device, prefill->v[i]);
        device->ops->free(device, prefill->k[i]);
    }
    device->ops->free(device, prefill->hidden);
}

enum pp_status gw_sequence_prefill(struct gw_sequence *sequence, const uint32_t *ids,
                                   uint32_t count, uint32_t logit_rows, float *logits_out,
                                   gw_progress_fn *progress, void *context)
{
    PP_TRY(prefill_check(sequence, ids, count, logit_rows));
    struct prefill prefill = {.sequence = sequence,
                              .count = count,
                              .logit_rows = logit_rows,
                              .progress = progress,
                              .context = context,
                              .begin_us = pp_clock_now_us(&sequence->engine->clock)};
    enum pp_status status = prefill_take(&prefill);
    if (status == PP_OK) {
        status = prefill_run(&prefill, ids, logits_out);
    }
    if (status == PP_OK && prefill.balanced) {
        gw_balances_save(sequence->engine);
    }
    sequence->broken = sequence->broken || status != PP_OK;
    prefill_give_back(&prefill);
    return status;
}
