/*
 * Decode steps, of one sequence or of several at once: the rows of all go through a layer together
 * (step_layer.c), in one micro-batch or in two that take turns, so that network and nodes work for
 * one while the device computes the other. A sequence that fails on the way drops out of the pass;
 * when the others have finished it is recovered and runs again. On the walk: its start and its end.
 * It refuses to know what a layer does.
 */
#include "common/base/assert.h"
#include "common/base/rng.h"
#include "gpu-worker/engine/step_state.h"

/* A step that loses a node each time it starts again gives up. */
#define STEP_RECOVERIES_MAX 8u

void gw_step_stats_add(struct gw_step_stats *sum, const struct gw_step_stats *step)
{
    sum->steps += step->steps;
    sum->total_us += step->total_us;
    sum->device_us += step->device_us;
    sum->wait_us += step->wait_us;
    sum->device_wait_us += step->device_wait_us;
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

/* Two micro-batches where there is something to wait for. */
static uint32_t batch_cut(const struct gw_batch *batch, struct gw_micro_batch *micros)
{
    bool waits = false;
    for (uint32_t i = 0; i < batch->count; i++) {
        waits = waits || batch->rows[i].step->sequence->remote != NULL;
    }
    uint32_t half = (batch->count + 1) / 2;
    micros[0] = (struct gw_micro_batch){0, batch->count, 0};
    if (!waits || batch->count < 2 || batch->engine->micro_batches < 2) {
        return 1;
    }
    micros[0].count = half;
    micros[1] = (struct gw_micro_batch){half, batch->count - half, 1};
    return 2;
}

static enum pp_status batch_embed(struct gw_batch *batch)
{
    struct gw_engine *engine = batch->engine;
    uint32_t ids[GW_BATCH_MAX];
    for (uint32_t i = 0; i < batch->count; i++) {
        ids[i] = batch->rows[i].step->id;
    }
    return engine->device->ops->embed(engine->device, engine->stream, &engine->embedding, ids,
                                      batch->count, engine->x);
}

PP_STATIC_ASSERT(GW_BATCH_MAX <= GW_PICKS_MAX, "a batch is drawn for at once");

/* The tokens behind the rows that want one, all at once. */
static enum pp_status batch_draw(struct gw_batch *batch)
{
    struct gw_engine *engine = batch->engine;
    struct gw_pick picks[GW_BATCH_MAX];
    struct gw_step_row *rows[GW_BATCH_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct gw_step_row *row = &batch->rows[i];
        if (row->status == PP_OK && row->step->sampler != NULL) {
            picks[count] =
                (struct gw_pick){.sampler = row->step->sampler,
                                 .logits = engine->logits + (uint64_t)i * engine->info.vocab};
            rows[count++] = row;
        }
    }
    if (count == 0) {
        return PP_OK;
    }
    PP_TRY(gw_samplers_next(picks, count, engine->stream));
    for (uint32_t i = 0; i < count; i++) {
        rows[i]->step->next = picks[i].id;
        rows[i]->status = picks[i].id == GW_DRAW_NONE ? PP_NON_FINITE : PP_OK;
    }
    return PP_OK;
}

static enum pp_status batch_logits(struct gw_batch *batch)
{
    struct gw_place places[GW_BATCH_MAX] = {{0}};
    bool wanted = false;
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct gw_step_row *row = &batch->rows[i];
        bool runs = row->status == PP_OK;
        places[i].logits = runs ? row->step->logits_out : NULL;
        wanted = wanted || (runs && (row->step->logits_out != NULL || row->step->sampler != NULL));
    }
    if (!wanted) {
        return PP_OK;
    }
    PP_TRY(gw_engine_logits_each(batch->engine, batch->engine->x, places, batch->count));
    return batch_draw(batch);
}

/* While a micro-batch waits for its nodes the other's layer is begun. */
static enum pp_status batch_layers(struct gw_batch *batch)
{
    struct gw_micro_batch micros[2];
    uint32_t count = batch_cut(batch, micros);
    uint32_t layers = batch->engine->info.shape.layers;
    PP_TRY(batch_embed(batch));
    for (uint32_t layer = 0; layer <= layers; layer++) {
        for (uint32_t i = 0; i < count; i++) {
            PP_TRY(gw_step_layer(batch, &micros[i], layer));
        }
    }
    return batch_logits(batch);
}

/* What fails for one row is the row's status; what fails for the device is everybody's. */
static void batch_pass(struct gw_batch *batch)
{
    enum pp_status status = batch_layers(batch);
    if (status == PP_OK) {
        return;
    }
    gw_step_drain(batch);
    for (uint32_t i = 0; i < batch->count; i++) {
        struct gw_step_row *row = &batch->rows[i];
        row->status = row->status == PP_OK ? status : row->status;
    }
}

static enum pp_status row_recover(struct gw_step_row *row)
{
    struct gw_sequence *sequence = row->step->sequence;
    bool give_up = sequence->remote == NULL || row->recoveries++ == STEP_RECOVERIES_MAX;
    return give_up ? row->status : gw_sequence_recover(sequence, row->status, UINT64_MAX);
}

/* The token is one of the sequence; what is due then leaves. */
static enum pp_status row_settle(struct gw_step_row *row)
{
    struct gw_sequence *sequence = row->step->sequence;
    if (sequence->ids != NULL && sequence->ids_known >= sequence->length) {
        sequence->ids[sequence->length] = row->step->id;
        sequence->ids_known = sequence->length + 1;
    }
    sequence->length += 1;
    if (sequence->remote == NULL) {
        return PP_OK;
    }
    while ((row->status = gw_sequence_leave(sequence)) != PP_OK) {
        PP_TRY(row_recover(row));
    }
    gw_remote_maintain(sequence->remote);
    return PP_OK;
}

/* After a pass: rows that are through are settled, those whose nodes were lost run once more. */
static void batch_settle(struct gw_batch *batch)
{
    uint32_t again = 0;
    for (uint32_t i = 0; i < batch->count; i++) {
        struct gw_step_row row = batch->rows[i];
        struct gw_step *step = row.step;
        bool through = row.status == PP_OK;
        step->status = through ? row_settle(&row) : row_recover(&row);
        if (step->status != PP_OK) {
            step->sequence->broken = true;
        } else if (!through) {
            step->stats = (struct gw_step_stats){.steps = 1}; /* of what counts */
            row.status = PP_OK;
            batch->rows[again++] = row;
        }
    }
    batch->count = again;
}

static enum pp_status step_check(const struct gw_engine *engine, const struct gw_step *step)
{
    const struct gw_sequence *sequence = step->sequence;
    if (sequence->broken) {
        return PP_FAILED_PRECONDITION;
    }
    if (step->id >= engine->info.vocab) {
        return PP_INVALID_ARGUMENT;
    }
    return sequence->length < sequence->tokens_expected ? PP_OK : PP_OUT_OF_RANGE;
}

static bool steps_fit(const struct gw_engine *engine, const struct gw_step *steps, uint32_t count)
{
    bool fit = count > 0 && count <= GW_BATCH_MAX;
    for (uint32_t i = 0; i < count && fit; i++) {
        fit = steps[i].sequence->engine == engine;
        for (uint32_t j = 0; j < i && fit; j++) {
            fit = steps[j].sequence != steps[i].sequence;
        }
    }
    return fit;
}

enum pp_status gw_engine_step(struct gw_engine *engine, struct gw_step *steps, uint32_t count)
{
    if (!steps_fit(engine, steps, count)) {
        return PP_INVALID_ARGUMENT;
    }
    struct gw_batch batch = {.engine = engine};
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    for (uint32_t i = 0; i < count; i++) {
        struct gw_step *step = &steps[i];
        step->status = step_check(engine, step);
        step->stats = (struct gw_step_stats){.steps = 1};
        if (step->status == PP_OK) {
            batch.rows[batch.count++] = (struct gw_step_row){
                .step = step, .seed = pp_rng_at(step->sequence->step_seed, step->sequence->length)};
        }
    }
    while (batch.count > 0) {
        batch_pass(&batch);
        batch_settle(&batch);
    }
    uint64_t total_us = pp_clock_now_us(&engine->clock) - begin_us;
    for (uint32_t i = 0; i < count; i++) {
        steps[i].stats.total_us = total_us;
        steps[i].stats.wait_us = batch.wait_us;
        steps[i].stats.device_wait_us = batch.device_wait_us;
        steps[i].stats.device_us = total_us - batch.wait_us;
    }
    return PP_OK;
}

enum pp_status gw_sequence_step(struct gw_sequence *sequence, uint32_t id, float *logits_out,
                                struct gw_step_stats *stats)
{
    struct gw_step step = {.sequence = sequence, .id = id, .logits_out = logits_out};
    PP_TRY(gw_engine_step(sequence->engine, &step, 1));
    if (step.status == PP_OK && stats != NULL) {
        *stats = step.stats;
    }
    return step.status;
}
