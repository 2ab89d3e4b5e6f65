/*
 * Tuning a sequence: some of the prompt's last queries are kept by its prefill, asked of the nodes,
 * which then say what each layer needs for an error; what they say is for their own part of an
 * answer, so they are asked for as much more error as the merge with what is attended here takes
 * away. On the walk: behind a prefill, before the first step. It refuses to know how nodes find
 * out.
 */
#include <math.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "gpu-worker/engine/engine_state.h"

/* Nodes aim at this much less than they are asked for (attn-node/index/tune.h); estimators that
 * stay as they are must be as far below. */
#define MARGIN 1.3f
/* Layers that nodes did not speak of are asked again so often: one may have been lost. */
#define PASSES         3u
#define RECOVERIES_MAX 8u
/* Of the share of the nodes' error that is left in a merged answer, as measured. */
#define LEFT_MIN 0.02
#define LEFT_MAX 4.0

static uint64_t row_values(const struct gw_sequence *sequence)
{
    return (uint64_t)sequence->engine->heads.q_heads * sequence->engine->heads.head_dim;
}

static float *late_row(const struct gw_sequence *sequence, uint32_t layer, uint32_t row)
{
    return sequence->late.q + ((uint64_t)layer * GW_LATE_ROWS + row) * row_values(sequence);
}

/* The token of a late query. */
static uint64_t late_position(const struct gw_sequence *sequence, uint32_t row)
{
    return sequence->late.end - 1 - (uint64_t)GW_LATE_STRIDE * (GW_LATE_ROWS - 1 - row);
}

enum pp_status gw_late_begin(struct gw_sequence *sequence, uint64_t count)
{
    if (!sequence->late.wanted || gw_sequence_leaving(sequence, count) == 0) {
        return PP_OK;
    }
    uint64_t values = sequence->engine->info.shape.layers * GW_LATE_ROWS * row_values(sequence);
    sequence->late.q = malloc(values * sizeof(float));
    sequence->late.end = count - sequence->tokens_kept;
    return sequence->late.q != NULL ? PP_OK : PP_MEMORY;
}

enum pp_status gw_late_keep(struct gw_sequence *sequence, uint32_t layer, uint64_t position,
                            uint32_t rows)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    uint32_t width = (uint32_t)row_values(sequence), at[GW_LATE_ROWS], count = 0, first = 0;
    for (uint32_t i = 0; sequence->late.q != NULL && i < GW_LATE_ROWS; i++) {
        uint64_t token = late_position(sequence, i);
        if (token >= position && token < position + rows) {
            first = count == 0 ? i : first;
            at[count++] = (uint32_t)(token - position);
        }
    }
    if (count == 0) {
        return PP_OK;
    }
    /* engine->o is written by the attention behind this. */
    PP_TRY(
        ops->gather_rows(engine->device, engine->stream, engine->q, at, count, width, engine->o));
    PP_TRY(ops->copy_out(engine->device, engine->stream, late_row(sequence, layer, first),
                         engine->o, (uint64_t)count * width * sizeof(float)));
    return ops->synchronize(engine->device, engine->stream);
}

void gw_late_deinit(struct gw_sequence *sequence)
{
    free(sequence->late.q);
    sequence->late.q = NULL;
}

/* Asks a late query of the nodes, as the layer was opened, and adds what is published of it. */
static enum pp_status ask_late(struct gw_sequence *sequence, uint32_t layer, uint32_t row,
                               uint64_t held, double *nodes_out, double *merged_out)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    uint64_t seed = pp_rng_at(sequence->step_seed, late_position(sequence, row)), read;
    const float *q = late_row(sequence, layer, row);
    struct gw_remote_attend attend = {
        .layer = layer, .held_tokens = held, .q_rows = 1, .q = q, .seeds = &seed, .errors = true};
    struct gw_remote_answer answer = {.o = engine->answer_o,
                                      .lse = engine->answer_lse,
                                      .var = engine->answer_var,
                                      .lse_var = engine->answer_lse_var};
    PP_TRY(ops->copy_in(engine->device, engine->stream, engine->q, q,
                        row_values(sequence) * sizeof(float)));
    PP_TRY(gw_step_attend_here(sequence, layer, held, late_position(sequence, row) + 1, engine->q,
                               engine->o, engine->lse, &read));
    PP_TRY(gw_step_take_local(engine, 0, 1));
    PP_TRY(gw_remote_attend_begin(sequence->remote, &attend));
    PP_TRY(gw_remote_attend_wait(sequence->remote, &answer));
    gw_step_add_published(engine, nodes_out, merged_out);
    return PP_OK;
}

/* How much of the nodes' error is left in answers merged with what is attended here; 1 where
 * nothing is known of it. */
static enum pp_status measure_left(struct gw_sequence *sequence, uint32_t layer, double *left_out)
{
    double nodes = 0.0, merged = 0.0;
    uint64_t held = gw_remote_held(sequence->remote, layer);
    *left_out = 1.0;
    for (uint32_t row = 0; sequence->late.q != NULL && row < GW_LATE_ROWS && held > 0; row++) {
        PP_TRY(ask_late(sequence, layer, row, held, &nodes, &merged));
    }
    if (nodes > 0.0 && isfinite(merged / nodes)) {
        double left = merged / nodes;
        *left_out = left < LEFT_MIN ? LEFT_MIN : left > LEFT_MAX ? LEFT_MAX : left;
    }
    return PP_OK;
}

/* What the layer is attended with from now on. */
static struct pp_estimator choose(const struct gw_remote_tuning *said, float part_error)
{
    struct pp_estimator as_opened = {.kind = PP_ESTIMATOR_NONE};
    struct pp_estimator exact = {.kind = PP_EXACT};
    if (said->estimator.kind == PP_ESTIMATOR_NONE) {
        return as_opened;
    }
    if (said->estimator.kind == PP_LSH) { /* its tables stay as they are */
        return said->dense || said->error_now * MARGIN > part_error ? exact : as_opened;
    }
    return said->dense ? exact : said->estimator;
}

/* false in *settled_out: some node did not speak. */
static enum pp_status tune_layer(struct gw_sequence *sequence, uint32_t layer, float error,
                                 bool *settled_out)
{
    struct gw_tuning *tuning = &sequence->tunings[layer];
    struct gw_remote_tuning said;
    double left;
    *settled_out = true;
    if (gw_remote_estimator(sequence->remote, layer)->kind == PP_EXACT) {
        return PP_OK;
    }
    PP_TRY(measure_left(sequence, layer, &left));
    float part_error = fminf(error / (float)left, 1.0f);
    PP_TRY(gw_remote_tune(sequence->remote, layer, part_error, &said));
    *settled_out = said.silent == 0;
    if (said.silent > 0) {
        return PP_OK;
    }
    float kept = (float)left;
    *tuning = (struct gw_tuning){.used = choose(&said, part_error),
                                 .proposed = said.dense ? (struct pp_estimator){.kind = PP_EXACT}
                                                        : said.estimator,
                                 .queries = said.queries,
                                 .rows_share = said.dense ? 1.0f : said.rows_share,
                                 .error = said.dense ? 0.0f : kept * said.error,
                                 .error_worst = said.dense ? 0.0f : kept * said.error_worst,
                                 .rows_share_now = said.rows_share_now,
                                 .error_now = kept * said.error_now};
    return PP_OK;
}

/* One layer; a node that is lost meanwhile is recovered from. */
static enum pp_status tune_through(struct gw_sequence *sequence, uint32_t layer, float error,
                                   bool *settled_out)
{
    enum pp_status status;
    uint32_t recoveries = 0;
    while ((status = tune_layer(sequence, layer, error, settled_out)) != PP_OK) {
        if (recoveries++ == RECOVERIES_MAX) {
            return status;
        }
        PP_TRY(gw_sequence_recover(sequence, status, UINT64_MAX));
    }
    return PP_OK;
}

static enum pp_status tune_all(struct gw_sequence *sequence, float error, gw_progress_fn *progress,
                               void *context)
{
    uint32_t layers = sequence->engine->info.shape.layers;
    bool settled[PP_LAYERS_MAX] = {false};
    uint32_t done = 0;
    for (uint32_t pass = 0; pass < PASSES && done < layers; pass++) {
        for (uint32_t layer = 0; layer < layers; layer++) {
            if (settled[layer]) {
                continue;
            }
            PP_TRY(tune_through(sequence, layer, error, &settled[layer]));
            done += settled[layer] ? 1 : 0;
            if (progress != NULL && !progress(context, GW_PHASE_TUNE, done, layers)) {
                return PP_CANCELLED;
            }
        }
    }
    return PP_OK;
}

enum pp_status gw_sequence_tune(struct gw_sequence *sequence, float error, gw_progress_fn *progress,
                                void *context)
{
    if (!(error > 0.0f && error <= 1.0f)) {
        return PP_INVALID_ARGUMENT;
    }
    if (sequence->broken) {
        return PP_FAILED_PRECONDITION;
    }
    if (sequence->remote == NULL || sequence->handed == 0) {
        return PP_OK;
    }
    if (sequence->tunings == NULL) {
        sequence->tunings = calloc(sequence->engine->info.shape.layers, sizeof(*sequence->tunings));
    }
    enum pp_status status =
        sequence->tunings != NULL ? tune_all(sequence, error, progress, context) : PP_MEMORY;
    gw_late_deinit(sequence);
    sequence->broken = sequence->broken || (status != PP_OK && status != PP_CANCELLED);
    return status;
}

const struct gw_tuning *gw_sequence_tuning(const struct gw_sequence *sequence, uint32_t layer)
{
    return sequence->tunings == NULL ? NULL : &sequence->tunings[layer];
}
