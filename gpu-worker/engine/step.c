/*
 * One decode step. Per layer: q first; the attend of the held prefix goes out at once; k, v and the
 * attention over sink, recent and unacknowledged tokens run while the nodes work; merge; output
 * projection; feed-forward. The held prefix is read once a layer, before dispatch (law 1): what the
 * nodes are not asked for is attended here. On the walk: its start and its end. It refuses to know
 * how an attend travels.
 */
#include "common/base/log.h"
#include "common/base/rng.h"
#include "gpu-worker/engine/engine_state.h"

/* A step that loses a node each time it starts again gives up. */
#define STEP_RECOVERIES_MAX 8u

void gw_step_stats_add(struct gw_step_stats *sum, const struct gw_step_stats *step)
{
    sum->steps += step->steps;
    sum->total_us += step->total_us;
    sum->device_us += step->device_us;
    sum->wait_us += step->wait_us;
    sum->node_us += step->node_us;
    sum->network_us += step->network_us;
    sum->attends += step->attends;
    sum->attends_estimated += step->attends_estimated;
    sum->keys_read += step->keys_read;
    sum->keys_held += step->keys_held;
    sum->keys_read_q += step->keys_read_q;
    sum->keys_held_q += step->keys_held_q;
    sum->keys_local += step->keys_local;
    sum->error_sum += step->error_sum;
    sum->errors += step->errors;
    sum->errors_targeted += step->errors_targeted;
    sum->errors_within += step->errors_within;
    sum->errors_estimated += step->errors_estimated;
    sum->errors_covered += step->errors_covered;
    sum->published_sum += step->published_sum;
    sum->merged_error_sum += step->merged_error_sum;
    sum->attends_empty += step->attends_empty;
    sum->attends_uniform += step->attends_uniform;
    sum->attends_missed += step->attends_missed;
}

static enum pp_status step_ask(struct gw_sequence *sequence, uint32_t layer, uint64_t held,
                               const uint64_t *seed)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    bool local = gw_sequence_target(sequence, layer) > 0.0;
    uint64_t bytes = sizeof(float) * engine->heads.q_heads * engine->heads.head_dim;
    PP_TRY(ops->copy_out(engine->device, engine->stream, engine->sent_q, engine->q, bytes));
    PP_TRY(ops->synchronize(engine->device, engine->stream));
    struct gw_remote_attend attend = {.layer = layer,
                                      .held_tokens = held,
                                      .q_rows = 1,
                                      .q = engine->sent_q,
                                      .seeds = seed,
                                      .estimator = *gw_sequence_asks(sequence, layer),
                                      .local_o = local ? engine->local_o : NULL,
                                      .local_lse = local ? engine->local_lse : NULL,
                                      .errors = sequence->errors != NULL};
    return gw_remote_attend_begin(sequence->remote, &attend);
}

/* Waits for the nodes and merges their partial into the local one. */
static enum pp_status step_answer(struct gw_sequence *sequence, uint32_t layer, uint64_t held,
                                  enum pp_status local, struct gw_step_stats *stats)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_heads *heads = &engine->heads;
    struct gw_remote_answer answer = {.o = engine->answer_o,
                                      .lse = engine->answer_lse,
                                      .var = engine->answer_var,
                                      .lse_var = engine->answer_lse_var};
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    enum pp_status status = gw_remote_attend_wait(sequence->remote, &answer);
    stats->wait_us += pp_clock_now_us(&engine->clock) - begin_us;
    PP_TRY(local); /* the wait came first: nothing is in flight on the way out */
    PP_TRY(status);
    bool used = answer.estimator_used && !gw_sequence_tuned_exact(sequence, layer);
    stats->attends += 1;
    stats->attends_estimated += used ? 1 : 0;
    stats->node_us += answer.node_us;
    stats->network_us += answer.network_us;
    gw_step_count_answer(engine, &answer, stats);
    bool known = gw_sequence_target(sequence, layer) > 0.0; /* local_* is filled */
    if (!known && (sequence->errors != NULL || sequence->exact_o != NULL)) {
        PP_TRY(gw_step_take_local(engine));
    }
    if (sequence->errors != NULL) {
        gw_step_count_errors(sequence, layer);
    }
    bool estimated = used || (answer.flags & GW_ANSWER_TARGET_MISSED) != 0;
    if (sequence->exact_o != NULL && estimated) {
        PP_TRY(gw_step_compare(sequence, layer, held, stats));
    }
    uint64_t lse_bytes = sizeof(float) * heads->q_heads;
    PP_TRY(ops->copy_in(engine->device, engine->stream, engine->node_o, engine->answer_o,
                        lse_bytes * heads->head_dim));
    PP_TRY(ops->copy_in(engine->device, engine->stream, engine->node_lse, engine->answer_lse,
                        lse_bytes));
    return ops->merge(engine->device, engine->stream, heads->q_heads, heads->head_dim,
                      engine->node_o, engine->node_lse, engine->o, engine->lse);
}

enum pp_status gw_step_attend_here(struct gw_sequence *sequence, uint32_t layer, uint64_t held,
                                   uint64_t end, uint64_t *rows_out)
{
    struct gw_engine *engine = sequence->engine;
    struct gw_sequence_layer *kv = &sequence->layers[layer];
    uint64_t row_bytes = sequence->row_bytes;
    uint64_t rows = end - sequence->dropped;
    uint64_t sink = rows < PP_SINK_TOKENS ? rows : PP_SINK_TOKENS;
    uint64_t asked = held > sequence->dropped ? held - sequence->dropped : 0;
    uint64_t rest = sink + asked;
    struct gw_kv_rows spans[2] = {
        {kv->k, kv->v, sink},
        {(uint8_t *)kv->k + rest * row_bytes, (uint8_t *)kv->v + rest * row_bytes, rows - rest}};
    *rows_out = rows - asked;
    return engine->device->ops->attend_partial(engine->device, engine->stream, &engine->heads,
                                               spans, 2, engine->q, 1, engine->o, engine->lse);
}

/* k and v of the token, and the partial over everything the nodes were not asked for. */
static enum pp_status step_local(struct gw_sequence *sequence, uint32_t index, uint64_t held,
                                 struct gw_step_stats *stats)
{
    struct gw_engine *engine = sequence->engine;
    struct gw_sequence_layer *kv = &sequence->layers[index];
    uint64_t row_bytes = sequence->row_bytes;
    uint64_t rows = gw_sequence_rows(sequence), read;
    PP_TRY(gw_engine_keys_values(engine, &engine->layers[index], sequence->length, 1,
                                 (uint8_t *)kv->k + rows * row_bytes,
                                 (uint8_t *)kv->v + rows * row_bytes));
    PP_TRY(gw_step_attend_here(sequence, index, held, sequence->length + 1, &read));
    stats->keys_local += read * engine->heads.kv_heads;
    return PP_OK;
}

static enum pp_status step_layer(struct gw_sequence *sequence, uint32_t index, const uint64_t *seed,
                                 struct gw_step_stats *stats)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_layer *layer = &engine->layers[index];
    PP_TRY(ops->rms_norm(engine->device, engine->stream, engine->x, layer->attn_norm,
                         engine->norm_epsilon, 1, engine->info.hidden, engine->normed));
    PP_TRY(gw_engine_queries(engine, layer, sequence->length, 1));
    uint64_t held = sequence->remote == NULL ? 0 : gw_remote_held(sequence->remote, index);
    held = held < sequence->handed ? held : sequence->handed;
    if (held < sequence->dropped) { /* a node lost what it had acknowledged */
        PP_LOG_ERRORF("engine", "nodes hold less than they acknowledged",
                      "layer=%u held=%llu acknowledged=%llu", index, (unsigned long long)held,
                      (unsigned long long)sequence->dropped);
        return PP_SHORT_PART;
    }
    /* A target is for the whole answer: then the nodes are told what is attended here. */
    bool first = held > 0 && gw_sequence_target(sequence, index) > 0.0;
    if (first) {
        PP_TRY(step_local(sequence, index, held, stats));
        PP_TRY(gw_step_take_local(engine));
    }
    if (held > 0) {
        PP_TRY(step_ask(sequence, index, held, seed));
    }
    enum pp_status status = first ? PP_OK : step_local(sequence, index, held, stats);
    if (held > 0) {
        status = step_answer(sequence, index, held, status, stats);
    }
    PP_TRY(status);
    return gw_engine_finish_layer(engine, layer, 1, engine->x);
}

static enum pp_status step_recover(struct gw_sequence *sequence, enum pp_status status,
                                   uint32_t *recoveries)
{
    bool give_up = sequence->remote == NULL || (*recoveries)++ == STEP_RECOVERIES_MAX;
    return give_up ? status : gw_sequence_recover(sequence, status, UINT64_MAX);
}

static enum pp_status step_run(struct gw_sequence *sequence, uint32_t id, float *logits_out,
                               struct gw_step_stats *stats)
{
    struct gw_engine *engine = sequence->engine;
    uint64_t seed = pp_rng_at(sequence->step_seed, sequence->length);
    PP_TRY(engine->device->ops->embed(engine->device, engine->stream, &engine->embedding, &id, 1,
                                      engine->x));
    for (uint32_t layer = 0; layer < engine->info.shape.layers; layer++) {
        PP_TRY(step_layer(sequence, layer, &seed, stats));
    }
    return logits_out != NULL ? gw_engine_logits(engine, engine->x, 1, logits_out) : PP_OK;
}

/* The token's layers, and what leaves then; either starts again when a node was lost. */
static enum pp_status step_all(struct gw_sequence *sequence, uint32_t id, float *logits_out,
                               struct gw_step_stats *stats)
{
    enum pp_status status;
    uint32_t recoveries = 0;
    while ((status = step_run(sequence, id, logits_out, stats)) != PP_OK) {
        PP_TRY(step_recover(sequence, status, &recoveries));
        *stats = (struct gw_step_stats){.steps = 1}; /* of what counts */
    }
    if (sequence->ids != NULL && sequence->ids_known >= sequence->length) {
        sequence->ids[sequence->length] = id;
        sequence->ids_known = sequence->length + 1;
    }
    sequence->length += 1;
    while (sequence->remote != NULL && (status = gw_sequence_leave(sequence)) != PP_OK) {
        PP_TRY(step_recover(sequence, status, &recoveries));
    }
    if (sequence->remote != NULL) {
        gw_remote_maintain(sequence->remote);
    }
    return PP_OK;
}

enum pp_status gw_sequence_step(struct gw_sequence *sequence, uint32_t id, float *logits_out,
                                struct gw_step_stats *stats)
{
    struct gw_engine *engine = sequence->engine;
    if (sequence->broken) {
        return PP_FAILED_PRECONDITION;
    }
    if (id >= engine->info.vocab) {
        return PP_INVALID_ARGUMENT;
    }
    if (sequence->length >= sequence->tokens_expected) {
        return PP_OUT_OF_RANGE;
    }
    struct gw_step_stats step = {.steps = 1};
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    enum pp_status status = step_all(sequence, id, logits_out, &step);
    if (status != PP_OK) {
        sequence->broken = true;
        return status;
    }
    step.total_us = pp_clock_now_us(&engine->clock) - begin_us;
    step.device_us = step.total_us - step.wait_us;
    if (stats != NULL) {
        *stats = step;
    }
    return PP_OK;
}
