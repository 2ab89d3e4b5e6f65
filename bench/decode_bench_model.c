/*
 * A worker that runs its model whole over the nodes. It refuses to know what its figures are
 * compared with.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bench/decode_bench.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "gpu-worker/api/worker.h"

#define NODE_TIMEOUT_US (30u * 1000u * 1000u)
#define NODES_WAIT_US   10000000u
#define MADE_UP_SEED    11u

static struct {
    struct gw_worker worker;
    struct gw_sequence *sequences[DECODE_SEQUENCES_MAX];
    uint32_t *ids; /* [context] */
    float *logits; /* [vocab] */
    float *draws;  /* [GW_BULK_TOKENS rows of K or V] */
    uint64_t turn; /* steps taken */
} model;

/* Steps of a run, exact ones too. */
static uint64_t steps_all(const struct decode_settings *settings)
{
    return 2 * settings->steps + DECODE_WARM_STEPS;
}

static enum pp_status open_worker(const struct decode_settings *settings, const char *nodes)
{
    uint64_t held = settings->synthetic_kv + PP_SINK_TOKENS + PP_RECENT_TOKENS;
    uint64_t start = settings->context > held ? settings->context : held;
    struct gw_worker_options options = {.model = settings->model,
                                        .nodes = nodes,
                                        .context = start + steps_all(settings),
                                        .threads = settings->threads,
                                        .hash_seed = 1,
                                        .node_timeout_us = NODE_TIMEOUT_US,
                                        .nodes_wait_us = NODES_WAIT_US,
                                        .dense_layers = "",
                                        .log_level = PP_LOG_WARN};
    PP_TRY(gw_worker_open(&model.worker, &options, stderr));
    const struct gw_engine_info *info = gw_engine_info(model.worker.engine);
    if (settings->context > info->context) {
        fprintf(stderr,
                "decode_bench: --context: the model reads at most %u tokens; longer ones are made "
                "up with --synthetic-kv\n",
                info->context);
        return PP_OUT_OF_RANGE;
    }
    uint64_t row = (uint64_t)info->shape.kv_heads * info->shape.head_dim;
    model.logits = malloc(info->vocab * sizeof(float));
    model.draws = malloc(GW_BULK_TOKENS * row * sizeof(float));
    model.ids = malloc(settings->context * sizeof(uint32_t));
    return model.logits == NULL || model.draws == NULL || model.ids == NULL ? PP_MEMORY : PP_OK;
}

/* The text's tokens, repeated up to the context. */
static enum pp_status read_text(const struct decode_settings *settings)
{
    char *text;
    size_t bytes, count = 0;
    uint32_t *ids = NULL;
    PP_TRY(gw_file_read(settings->text, stderr, &text, &bytes));
    enum pp_status status =
        gw_tokenizer_encode(model.worker.tokenizer, text, bytes, false, &ids, &count);
    free(text);
    PP_TRY(status);
    for (uint64_t i = 0; i < settings->context && count > 0; ++i) {
        model.ids[i] = ids[i % count];
    }
    free(ids);
    return count > 0 ? PP_OK : PP_INVALID_ARGUMENT;
}

/* For `count` tokens and the steps behind them. */
static enum pp_status open_sequence(const struct decode_settings *settings, uint32_t index,
                                    uint64_t count)
{
    const struct gw_sequence_options options = {.remote = model.worker.remote,
                                                .estimator = settings->estimator,
                                                .hash_seed = 1,
                                                .step_seed = 1 + index,
                                                .tokens_expected = count + steps_all(settings)};
    enum pp_status status =
        gw_sequence_open(model.worker.engine, &options, &model.sequences[index]);
    if (status != PP_OK) {
        gw_worker_explain(stderr, "opening a sequence", status, NULL);
    }
    return status;
}

static enum pp_status prefill(const struct decode_settings *settings, uint32_t index,
                              double *seconds)
{
    const struct pp_clock *clock = &model.worker.clock;
    PP_TRY(open_sequence(settings, index, settings->context));
    uint64_t begun_us = pp_clock_now_us(clock);
    enum pp_status status =
        gw_sequence_prefill(model.sequences[index], model.ids, (uint32_t)settings->context, 1,
                            model.logits, NULL, NULL);
    *seconds += (double)(pp_clock_now_us(clock) - begun_us) * 1e-6;
    if (status != PP_OK) {
        gw_worker_explain(stderr, "prefill", status, model.sequences[index]);
    }
    return status;
}

/* gw_rows_fn: normal draws, other ones every layer and piece. */
static enum pp_status make_up(void *context, uint32_t layer, uint64_t start, uint32_t count,
                              void *k_out, void *v_out)
{
    const struct pp_shape *shape = &gw_engine_info(model.worker.engine)->shape;
    uint64_t values = (uint64_t)count * shape->kv_heads * shape->head_dim;
    uint64_t seed = pp_rng_at(*(const uint64_t *)context + layer, start);
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
        struct pp_rng rng = {.seed = seed + tensor};
        for (uint64_t i = 0; i < values; ++i) {
            model.draws[i] = (float)pp_rng_normal(&rng);
        }
        pp_vectors_from_f32(shape->kv_dtype, shape->head_dim, model.draws, values / shape->head_dim,
                            tensor == 0 ? k_out : v_out);
    }
    return PP_OK;
}

static enum pp_status fill(const struct decode_settings *settings, uint32_t index)
{
    uint64_t seed = MADE_UP_SEED + 1000u * (uint64_t)index;
    uint64_t count = settings->synthetic_kv + PP_SINK_TOKENS + PP_RECENT_TOKENS;
    PP_TRY(open_sequence(settings, index, count));
    const struct gw_fill from = {.count = count, .rows = make_up, .context = &seed};
    enum pp_status status = gw_sequence_fill(model.sequences[index], &from);
    if (status != PP_OK) {
        gw_worker_explain(stderr, "making up keys and values", status, model.sequences[index]);
    }
    return status;
}

static enum pp_status model_open(const struct decode_settings *settings, const char *nodes,
                                 struct decode_start *start_out)
{
    double seconds = 0;
    PP_TRY(open_worker(settings, nodes));
    PP_TRY(read_text(settings));
    uint64_t prefilled = settings->synthetic_kv > 0 ? 1 : settings->sequences;
    for (uint32_t i = 0; i < prefilled; ++i) {
        PP_TRY(prefill(settings, i, &seconds));
    }
    if (settings->synthetic_kv > 0) { /* the prefill was for its own figure */
        gw_sequence_close(model.sequences[0]);
        model.sequences[0] = NULL;
        for (uint32_t i = 0; i < settings->sequences; ++i) {
            PP_TRY(fill(settings, i));
        }
    }
    *start_out = (struct decode_start){.held_tokens = gw_sequence_left(model.sequences[0]),
                                       .layers = gw_engine_info(model.worker.engine)->shape.layers,
                                       .prefill_tokens_per_s =
                                           (double)(settings->context * prefilled) / seconds};
    return PP_OK;
}

static enum pp_status model_step(const struct decode_settings *settings,
                                 const struct pp_estimator *estimator, struct decode_times *times)
{
    struct gw_step_stats sum = {0}, step;
    uint32_t id = model.ids[model.turn++ % settings->context];
    for (uint32_t i = 0; i < settings->sequences; ++i) {
        struct gw_sequence *sequence = model.sequences[i];
        gw_sequence_use(sequence, estimator, false);
        enum pp_status status = gw_sequence_step(sequence, id, model.logits, &step);
        if (status != PP_OK) {
            gw_worker_explain(stderr, "a step", status, sequence);
            return status;
        }
        gw_step_stats_add(&sum, &step);
    }
    times->ms[times->steps++] = (double)sum.total_us * 1e-3;
    times->device_ms += (double)sum.device_us * 1e-3;
    times->wait_ms += (double)sum.wait_us * 1e-3;
    times->node_ms += (double)sum.node_us * 1e-3;
    times->network_ms += (double)sum.network_us * 1e-3;
    times->keys_read += sum.keys_read;
    times->keys_held += sum.keys_held;
    times->used = times->used && sum.attends_estimated == sum.attends;
    return PP_OK;
}

static void model_close(void)
{
    for (uint32_t i = 0; i < DECODE_SEQUENCES_MAX; ++i) {
        gw_sequence_close(model.sequences[i]);
    }
    gw_worker_close(&model.worker);
    free(model.ids);
    free(model.draws);
    free(model.logits);
}

const struct decode_side decode_model = {model_open, model_step, model_close};
