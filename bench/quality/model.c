/*
 * The model with estimators for attention. See model.h.
 */
#include "bench/quality/model.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/run/team.h"
#include "gpu-worker/engine/engine_state.h"

static struct model {
    struct gw_worker *worker;
    uint32_t threads;
    struct gw_device_ops ops;
    const struct gw_device_ops *inner;
    uint64_t seed;
    /* of a prefill */
    struct gw_balance balance; /* of the layer at hand */
    double *q_squares;         /* [layer][kv head][dim] */
    uint32_t layers_begun;
    /* of a run */
    struct quality_held *held;                 /* NULL: attends pass through */
    uint32_t only_layer;                       /* that the estimator answers in */
    const struct quality_estimator *estimator; /* NULL: exact, and recorded */
    uint64_t attends;
    const float *q; /* of the attend at hand */
    float *o, *lse; /* [q head][dim], [q head] of held tokens */
    uint32_t step, layer;
} model;

static enum pp_status attend_causal(struct gw_device *device, struct gw_stream *stream,
                                    const struct gw_heads *heads, const struct gw_kv_rows *kv,
                                    uint64_t first, const float *q, uint32_t rows, float *o,
                                    float *lse)
{
    if (model.q_squares != NULL) {
        uint64_t layer_values = (uint64_t)heads->kv_heads * heads->head_dim;
        model.layers_begun += first == 0 ? 1 : 0;
        double *sums = model.q_squares + (model.layers_begun - 1) * layer_values;
        PP_TRY(model.inner->query_squares(device, stream, heads, q, rows, sums));
    }
    return model.inner->attend_causal(device, stream, heads, kv, first, q, rows, o, lse);
}

static void answer_group(void *context, uint64_t kv_head, uint32_t thread)
{
    (void)context;
    const struct quality_held *held = model.held;
    const struct quality_head *head = quality_head_at(held, model.layer, (uint32_t)kv_head);
    uint64_t at = kv_head * head->group;
    bool all = model.only_layer == QUALITY_ALL_LAYERS;
    if (model.estimator == NULL || !(all || model.only_layer == model.layer)) {
        quality_exact(head, model.q + at * head->dim, model.o + at * head->dim, model.lse + at);
        return;
    }
    struct quality_answer answer = {.o = model.o + at * head->dim};
    quality_attend(model.estimator, model.layer, (uint32_t)kv_head, model.q + at * head->dim,
                   quality_draw_seed(held, model.step, model.layer, (uint32_t)kv_head), thread,
                   &answer);
    memcpy(model.lse + at, answer.lse, head->group * sizeof(float));
}

static void record(void)
{
    struct quality_held *held = model.held;
    const struct pp_shape *shape = &held->shape;
    uint64_t at = quality_recorded_at(held, model.step, model.layer);
    uint64_t bytes = sizeof(float) * shape->q_heads;
    memcpy(held->q + at * shape->head_dim, model.q, bytes * shape->head_dim);
    memcpy(held->o + at * shape->head_dim, model.o, bytes * shape->head_dim);
    memcpy(held->lse + at, model.lse, bytes);
}

/* spans: the sink, and all behind it; so the held tokens are the first of the second. */
static enum pp_status attend_partial(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const struct gw_kv_rows *spans,
                                     uint32_t span_count, const float *q, uint32_t rows, float *o,
                                     float *lse)
{
    if (model.held == NULL) {
        return model.inner->attend_partial(device, stream, heads, spans, span_count, q, rows, o,
                                           lse);
    }
    uint64_t held_bytes = model.held->tokens * (uint64_t)heads->kv_heads *
                          pp_vector_bytes(heads->head_dim, heads->kv_dtype);
    struct gw_kv_rows local[2] = {spans[0],
                                  {(const uint8_t *)spans[1].k + held_bytes,
                                   (const uint8_t *)spans[1].v + held_bytes,
                                   spans[1].count - model.held->tokens}};
    PP_TRY(model.inner->attend_partial(device, stream, heads, local, 2, q, rows, o, lse));
    model.layer = (uint32_t)(model.attends % model.held->shape.layers);
    model.step = (uint32_t)(model.attends / model.held->shape.layers);
    model.attends += 1;
    model.q = q;
    pp_team_for(model.threads, heads->kv_heads, answer_group, NULL);
    if (model.estimator == NULL) {
        record();
    }
    return model.inner->merge(device, stream, heads->q_heads, heads->head_dim, model.o, model.lse,
                              o, lse);
}

void quality_model_init(struct gw_worker *worker, uint32_t threads)
{
    struct gw_device *device = worker->device;
    model = (struct model){
        .worker = worker, .threads = threads, .inner = device->ops, .ops = *device->ops};
    model.ops.attend_causal = attend_causal;
    model.ops.attend_partial = attend_partial;
    device->ops = &model.ops;
}

uint64_t quality_draw_seed(const struct quality_held *held, uint32_t step, uint32_t layer,
                           uint32_t kv_head)
{
    uint64_t heads = held->shape.kv_heads;
    return pp_rng_at(1, (step * (uint64_t)held->shape.layers + layer) * heads + kv_head);
}

/* Rows, centres and balances of the tokens that nodes would hold. */
static enum pp_status take_held(const struct gw_sequence *sequence, struct quality_held *held)
{
    struct gw_engine *engine = model.worker->engine;
    const struct gw_heads *heads = &engine->heads;
    uint64_t layer_values = (uint64_t)heads->kv_heads * heads->head_dim;
    uint64_t sink_bytes = PP_SINK_TOKENS * sequence->row_bytes;
    enum pp_status status = gw_balance_init(heads, &model.balance);
    for (uint32_t layer = 0; status == PP_OK && layer < held->shape.layers; ++layer) {
        const uint8_t *k = (const uint8_t *)sequence->layers[layer].k + sink_bytes;
        const uint8_t *v = (const uint8_t *)sequence->layers[layer].v + sink_bytes;
        gw_balance_clear(&model.balance, heads);
        memcpy(model.balance.q_squares, model.q_squares + layer * layer_values,
               layer_values * sizeof(double));
        status = gw_balance_measure(engine, &model.balance, k, held->tokens);
        quality_held_fill(held, layer, k, v, model.balance.values);
    }
    gw_balance_deinit(&model.balance);
    return status;
}

static enum pp_status prefill(struct gw_eval_text *text, struct gw_progress *progress,
                              struct gw_sequence **sequence_out)
{
    const struct gw_engine *engine = model.worker->engine;
    struct gw_sequence_options options = {.tokens_expected = text->id_count,
                                          .tokens_kept = (uint32_t)text->tokens};
    uint64_t values = (uint64_t)engine->info.shape.layers * engine->heads.kv_heads;
    PP_TRY(gw_sequence_open(model.worker->engine, &options, sequence_out));
    model.layers_begun = 0;
    model.q_squares = calloc(values * engine->heads.head_dim, sizeof(double));
    return model.q_squares == NULL ? PP_MEMORY
                                   : gw_eval_text_prefill(text, *sequence_out, progress);
}

/* The measured tokens with the estimator's answers; NULL: with exact ones, recorded. */
static enum pp_status run_held(struct gw_eval_text *text, struct gw_sequence *sequence,
                               struct quality_held *held, const struct quality_estimator *estimator,
                               struct gw_progress *progress, struct gw_eval_run *run_out)
{
    uint64_t heads = held->shape.q_heads;
    model.o = malloc(heads * held->shape.head_dim * sizeof(float));
    model.lse = malloc(heads * sizeof(float));
    model.attends = 0;
    model.estimator = estimator;
    model.held = held;
    enum pp_status status = model.o == NULL || model.lse == NULL
                                ? PP_MEMORY
                                : gw_eval_text_run(text, sequence, progress, run_out);
    model.held = NULL;
    free(model.o);
    free(model.lse);
    return status;
}

enum pp_status quality_model_record(struct gw_eval_text *text, struct gw_progress *progress,
                                    struct gw_sequence **sequence_out, struct quality_held *held,
                                    struct gw_eval_run *run_out)
{
    uint64_t kept = PP_SINK_TOKENS + PP_RECENT_TOKENS + text->tokens + 1;
    if (text->id_count <= kept) {
        return PP_OUT_OF_RANGE;
    }
    enum pp_status status = prefill(text, progress, sequence_out);
    if (status == PP_OK) {
        status = quality_held_init(&model.worker->engine->info.shape,
                                   (uint32_t)(text->id_count - kept), (uint32_t)text->tokens, held);
    }
    if (status == PP_OK) {
        status = take_held(*sequence_out, held);
    }
    free(model.q_squares);
    model.q_squares = NULL;
    PP_TRY(status);
    return run_held(text, *sequence_out, held, NULL, progress, run_out);
}

enum pp_status quality_model_run(struct gw_eval_text *text, struct gw_sequence *sequence,
                                 const struct quality_estimator *estimator, uint32_t layer,
                                 struct gw_progress *progress, struct gw_eval_run *run_out)
{
    model.only_layer = layer;
    return run_held(text, sequence, (struct quality_held *)(uintptr_t)estimator->held, estimator,
                    progress, run_out);
}
