/*
 * One layer of a decode step, for the rows of a micro-batch. Queries first; the attend of each
 * row's held prefix goes out at once, for all of them in one message a node; k, v and the attention
 * over sink, recent and unacknowledged tokens run while the nodes work; merge; output projection;
 * feed-forward. What lies between two points of the network is one piece of the device's. The held
 * prefix is read once a layer, before dispatch (law 1): what the nodes are not asked for is
 * attended here. On the walk: between engine/step and remote/attend. It refuses to know how an
 * attend travels and which rows there are.
 */
#include <math.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/engine/step_state.h"

/* The rows of a micro-batch that have not failed, one after another; NULL: no more. */
static struct gw_step_row *next_row(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                    struct gw_step_row *row)
{
    struct gw_step_row *end = &batch->rows[micro->begin + micro->count];
    row = row == NULL ? &batch->rows[micro->begin] : row + 1;
    while (row < end && row->status != PP_OK) {
        row++;
    }
    return row < end ? row : NULL;
}

static uint32_t index_of(const struct gw_batch *batch, const struct gw_step_row *row)
{
    return (uint32_t)(row - batch->rows);
}

static uint64_t q_values(const struct gw_engine *engine)
{
    return (uint64_t)engine->heads.q_heads * engine->heads.head_dim;
}

/* What the nodes are asked for. A target is for the whole answer: then they are told what is
 * attended here. */
static void row_choose(struct gw_step_row *row, uint32_t layer)
{
    const struct gw_sequence *sequence = row->step->sequence;
    uint64_t held = sequence->remote == NULL ? 0 : gw_remote_held(sequence->remote, layer);
    held = held < sequence->handed ? held : sequence->handed;
    if (held < sequence->dropped) { /* a node lost what it had acknowledged */
        PP_LOG_ERRORF("engine", "nodes hold less than they acknowledged",
                      "layer=%u held=%llu acknowledged=%llu", layer, (unsigned long long)held,
                      (unsigned long long)sequence->dropped);
        row->status = PP_SHORT_PART;
    }
    row->held = row->status == PP_OK ? held : 0;
    row->target = held > 0 && gw_sequence_target(sequence, layer) > 0.0;
    row->answered = false;
}

static bool any_asks(struct gw_batch *batch, const struct gw_micro_batch *micro, bool target)
{
    struct gw_step_row *row = NULL;
    while ((row = next_row(batch, micro, row)) != NULL) {
        if (row->held > 0 && row->target == target) {
            return true;
        }
    }
    return false;
}

/* Sends the attends of rows with a target, or of those without. */
static void ask(struct gw_batch *batch, const struct gw_micro_batch *micro, uint32_t layer,
                bool target)
{
    struct gw_remote_begin begins[GW_BATCH_MAX];
    struct gw_step_row *asked[GW_BATCH_MAX], *row = NULL;
    uint32_t count = 0;
    while ((row = next_row(batch, micro, row)) != NULL) {
        const struct gw_sequence *sequence = row->step->sequence;
        struct gw_row_host host = gw_row_host(batch->engine, index_of(batch, row));
        if (row->held == 0 || row->target != target) {
            continue;
        }
        asked[count] = row;
        begins[count++] =
            (struct gw_remote_begin){.sequence = sequence->remote,
                                     .attend = {.layer = layer,
                                                .held_tokens = row->held,
                                                .q_rows = 1,
                                                .q = host.sent_q,
                                                .seeds = &row->seed,
                                                .estimator = *gw_sequence_asks(sequence, layer),
                                                .local_o = target ? host.local_o : NULL,
                                                .local_lse = target ? host.local_lse : NULL,
                                                .errors = sequence->errors != NULL}};
    }
    gw_remote_attends_begin(begins, count);
    for (uint32_t i = 0; i < count; i++) {
        asked[i]->status = begins[i].status;
        asked[i]->in_flight = begins[i].status == PP_OK;
    }
}

enum pp_status gw_step_attend_here(struct gw_sequence *sequence, uint32_t layer, uint64_t held,
                                   uint64_t end, const float *q, float *o, float *lse,
                                   uint64_t *rows_out)
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
                                               spans, 2, q, 1, o, lse);
}

/* Where a micro-batch's rows stand, and where their k and v of the layer go. */
static void find_places(struct gw_batch *batch, const struct gw_micro_batch *micro, uint32_t layer,
                        struct gw_place *places_out)
{
    for (uint32_t i = 0; i < micro->count; i++) {
        const struct gw_step_row *row = &batch->rows[micro->begin + i];
        const struct gw_sequence *sequence = row->step->sequence;
        const struct gw_sequence_layer *kv = &sequence->layers[layer];
        uint64_t at = gw_sequence_rows(sequence) * sequence->row_bytes;
        bool on = row->status == PP_OK;
        places_out[i] = (struct gw_place){.position = sequence->length,
                                          .k = on ? (uint8_t *)kv->k + at : NULL,
                                          .v = on ? (uint8_t *)kv->v + at : NULL};
    }
}

/* The partials over everything the nodes are not asked for. */
static enum pp_status attend_here(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                  uint32_t layer)
{
    struct gw_engine *engine = batch->engine;
    struct gw_step_row *row = NULL;
    while ((row = next_row(batch, micro, row)) != NULL) {
        struct gw_sequence *sequence = row->step->sequence;
        uint32_t index = index_of(batch, row);
        uint64_t read;
        PP_TRY(gw_step_attend_here(sequence, layer, row->held, sequence->length + 1,
                                   engine->q + (index - micro->begin) * q_values(engine),
                                   engine->o + index * q_values(engine),
                                   engine->lse + (uint64_t)index * engine->heads.q_heads, &read));
        row->step->stats.keys_local += read * engine->heads.kv_heads;
    }
    return PP_OK;
}

static void row_wait(struct gw_batch *batch, struct gw_step_row *row,
                     struct gw_remote_answer *answer_out)
{
    struct gw_row_host host = gw_row_host(batch->engine, index_of(batch, row));
    *answer_out = (struct gw_remote_answer){.o = host.answer_o,
                                            .lse = host.answer_lse,
                                            .var = host.answer_var,
                                            .lse_var = host.answer_lse_var};
    row->status = gw_remote_attend_wait(row->step->sequence->remote, answer_out);
    row->in_flight = false;
    row->answered = row->status == PP_OK;
}

static bool any_in_flight(const struct gw_batch *batch, const struct gw_micro_batch *micro)
{
    bool any = false;
    for (uint32_t i = 0; i < micro->count; i++) {
        any = any || batch->rows[micro->begin + i].in_flight;
    }
    return any;
}

/* Waits for the answers of all rows. Those that were not asked have the empty one. Where nobody was
 * asked, nobody waited for the queries either: the memory of answers is not touched. */
static bool take_answers(struct gw_batch *batch, const struct gw_micro_batch *micro,
                         struct gw_remote_answer *answers)
{
    struct gw_engine *engine = batch->engine;
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    bool any = false;
    if (!any_in_flight(batch, micro)) {
        return false;
    }
    for (uint32_t i = 0; i < micro->count; i++) {
        struct gw_step_row *row = &batch->rows[micro->begin + i];
        struct gw_row_host host = gw_row_host(engine, micro->begin + i);
        if (row->in_flight) {
            row_wait(batch, row, &answers[i]);
        }
        if (!row->answered) {
            memset(host.answer_o, 0, q_values(engine) * sizeof(float));
            for (uint32_t head = 0; head < engine->heads.q_heads; head++) {
                host.answer_lse[head] = -INFINITY;
            }
        }
        any = any || row->answered;
    }
    batch->wait_us += pp_clock_now_us(&engine->clock) - begin_us;
    return any;
}

static void row_count(struct gw_batch *batch, struct gw_step_row *row, uint32_t layer,
                      const struct gw_remote_answer *answer)
{
    struct gw_sequence *sequence = row->step->sequence;
    struct gw_step_stats *stats = &row->step->stats;
    bool used = answer->estimator_used && !gw_sequence_tuned_exact(sequence, layer);
    bool estimated = used || (answer->flags & GW_ANSWER_TARGET_MISSED) != 0;
    stats->attends += 1;
    stats->attends_estimated += used ? 1 : 0;
    stats->node_us += answer->node_us;
    stats->network_us += answer->network_us;
    gw_step_count_answer(batch->engine, answer, stats);
    if (sequence->errors != NULL) {
        gw_step_count_errors(sequence, index_of(batch, row), layer);
    }
    if (sequence->exact_o != NULL && estimated) {
        row->status = gw_step_compare(sequence, index_of(batch, row), layer, row->held, stats);
    }
}

/* Rows' errors are of what was attended here too: it comes over where nobody has it yet. */
static enum pp_status count_answers(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                    uint32_t layer, const struct gw_remote_answer *answers)
{
    bool unknown = false;
    for (uint32_t i = 0; i < micro->count; i++) {
        const struct gw_step_row *row = &batch->rows[micro->begin + i];
        const struct gw_sequence *sequence = row->step->sequence;
        bool wanted = sequence->errors != NULL || sequence->exact_o != NULL;
        unknown = unknown || (row->answered && wanted && !row->target);
    }
    if (unknown) {
        PP_TRY(gw_step_take_local(batch->engine, micro->begin, micro->count));
    }
    for (uint32_t i = 0; i < micro->count; i++) {
        struct gw_step_row *row = &batch->rows[micro->begin + i];
        if (row->answered) {
            row_count(batch, row, layer, &answers[i]);
        }
    }
    return PP_OK;
}

static enum pp_status merge(struct gw_engine *engine, const struct gw_micro_batch *micro)
{
    const struct gw_device_ops *ops = engine->device->ops;
    struct gw_row_host host = gw_row_host(engine, micro->begin);
    uint64_t heads = (uint64_t)micro->begin * engine->heads.q_heads;
    uint64_t values = micro->begin * q_values(engine);
    uint32_t count = micro->count * engine->heads.q_heads;
    PP_TRY(ops->pinned_in(engine->device, engine->stream, engine->node_o + values, host.answer_o,
                          micro->count * q_values(engine) * sizeof(float)));
    PP_TRY(ops->pinned_in(engine->device, engine->stream, engine->node_lse + heads, host.answer_lse,
                          count * sizeof(float)));
    return ops->merge(engine->device, engine->stream, count, engine->heads.head_dim,
                      engine->node_o + values, engine->node_lse + heads, engine->o + values,
                      engine->lse + heads);
}

/* The rest of the layer before, and this one's queries, on their way to the host where nodes may be
 * asked. */
static enum pp_status compute_queries(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                      uint32_t layer, bool merges)
{
    struct gw_engine *engine = batch->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    struct gw_place places[GW_BATCH_MAX];
    float *x = engine->x + (uint64_t)micro->begin * engine->info.hidden;
    bool leaves = false;
    if (merges) {
        PP_TRY(merge(engine, micro));
    }
    if (layer > 0) {
        PP_TRY(gw_engine_finish_layer(engine, &engine->layers[layer - 1], micro->count,
                                      engine->o + micro->begin * q_values(engine), x));
    }
    if (layer == engine->info.shape.layers) {
        return PP_OK;
    }
    for (uint32_t i = 0; i < micro->count; i++) {
        const struct gw_sequence *sequence = batch->rows[micro->begin + i].step->sequence;
        places[i] = (struct gw_place){.position = sequence->length};
        leaves = leaves || sequence->handed > 0;
    }
    PP_TRY(ops->rms_norm(engine->device, engine->stream, x, engine->layers[layer].attn_norm,
                         engine->norm_epsilon, micro->count, engine->info.hidden, engine->normed));
    PP_TRY(gw_engine_queries_each(engine, &engine->layers[layer], places, micro->count));
    return leaves ? ops->pinned_out(engine->device, engine->stream,
                                    gw_row_host(engine, micro->begin).sent_q, engine->q,
                                    micro->count * q_values(engine) * sizeof(float))
                  : PP_OK;
}

/* k and v, and the partials over what the nodes are not asked for. */
static enum pp_status compute_here(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                   uint32_t layer)
{
    struct gw_engine *engine = batch->engine;
    struct gw_place places[GW_BATCH_MAX];
    find_places(batch, micro, layer, places);
    PP_TRY(gw_engine_piece_begin(engine, micro->number, GW_PIECE_HERE, layer));
    enum pp_status status =
        gw_engine_keys_values_each(engine, &engine->layers[layer], places, micro->count);
    status = status == PP_OK ? attend_here(batch, micro, layer) : status;
    return gw_engine_piece_end(engine, micro->number, GW_PIECE_HERE, layer, status);
}

/* Sends the queries of rows without a target, once they are here. */
static enum pp_status ask_now(struct gw_batch *batch, const struct gw_micro_batch *micro,
                              uint32_t layer)
{
    struct gw_engine *engine = batch->engine;
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    PP_TRY(gw_engine_wait(engine));
    batch->device_wait_us += pp_clock_now_us(&engine->clock) - begin_us;
    ask(batch, micro, layer, false);
    return PP_OK;
}

/* Those with a target go with what was attended here. */
static enum pp_status ask_later(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                uint32_t layer)
{
    struct gw_engine *engine = batch->engine;
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    PP_TRY(gw_step_take_local(engine, micro->begin, micro->count));
    batch->device_wait_us += pp_clock_now_us(&engine->clock) - begin_us;
    ask(batch, micro, layer, true);
    return PP_OK;
}

/* From the queries on. A device whose operations run behind their calls has all of the layer's
 * before anybody waits for its queries; on the host the nodes are asked first. */
static enum pp_status layer_begin(struct gw_batch *batch, const struct gw_micro_batch *micro,
                                  uint32_t layer)
{
    bool queues = batch->engine->device->ops->queues;
    struct gw_step_row *row = NULL;
    while ((row = next_row(batch, micro, row)) != NULL) {
        row_choose(row, layer);
    }
    if (next_row(batch, micro, NULL) == NULL) {
        return PP_OK;
    }
    bool now = any_asks(batch, micro, false), later = any_asks(batch, micro, true);
    if (now) {
        PP_TRY(gw_engine_mark(batch->engine));
    }
    if (now && !queues) {
        PP_TRY(ask_now(batch, micro, layer));
    }
    PP_TRY(compute_here(batch, micro, layer));
    if (now && queues) {
        PP_TRY(ask_now(batch, micro, layer));
    }
    return later ? ask_later(batch, micro, layer) : PP_OK;
}

enum pp_status gw_step_layer(struct gw_batch *batch, const struct gw_micro_batch *micro,
                             uint32_t layer)
{
    struct gw_engine *engine = batch->engine;
    struct gw_remote_answer answers[GW_BATCH_MAX];
    bool merges = layer > 0 && take_answers(batch, micro, answers);
    if (merges) {
        PP_TRY(count_answers(batch, micro, layer - 1, answers));
    }
    if (next_row(batch, micro, NULL) == NULL) {
        return PP_OK;
    }
    PP_TRY(gw_engine_piece_begin(engine, micro->number, GW_PIECE_QUERIES, layer));
    enum pp_status status = compute_queries(batch, micro, layer, merges);
    PP_TRY(gw_engine_piece_end(engine, micro->number, GW_PIECE_QUERIES, layer, status));
    return layer == engine->info.shape.layers ? PP_OK : layer_begin(batch, micro, layer);
}

void gw_step_drain(struct gw_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        struct gw_remote_answer answer;
        if (batch->rows[i].in_flight) {
            row_wait(batch, &batch->rows[i], &answer);
        }
    }
}
