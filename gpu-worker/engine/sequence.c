/*
 * A sequence: which of its tokens' K/V is here and which the nodes acknowledged. Rows of a layer
 * lie dense: the sink, then everything not dropped yet. Recent tokens leave in batches and stay
 * here until every part acknowledged them (law 1). On the walk of a token's K/V: ops (k, v) > here
 * > remote/outbox, and acknowledgements back here. It refuses to know nodes' names and wires.
 */
#include <stdlib.h>

#include "gpu-worker/engine/engine_state.h"

static void sequence_free_layers(struct gw_sequence *sequence)
{
    struct gw_device *device = sequence->engine->device;
    /* A step without logits may be under way, and whoever has the memory next use any stream. */
    (void)device->ops->synchronize(device, sequence->engine->stream);
    for (uint32_t i = 0; sequence->layers != NULL && i < sequence->engine->info.shape.layers; i++) {
        device->ops->free(device, sequence->layers[i].v);
        device->ops->free(device, sequence->layers[i].k);
    }
    free(sequence->layers);
}

static enum pp_status sequence_take_layers(struct gw_sequence *sequence)
{
    struct gw_device *device = sequence->engine->device;
    uint32_t layers = sequence->engine->info.shape.layers;
    uint64_t bytes = sequence->row_capacity * sequence->row_bytes;
    sequence->layers = calloc(layers, sizeof(*sequence->layers));
    if (sequence->layers == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < layers; i++) {
        PP_TRY(device->ops->alloc(device, bytes, &sequence->layers[i].k));
        PP_TRY(device->ops->alloc(device, bytes, &sequence->layers[i].v));
    }
    return PP_OK;
}

static enum pp_status sequence_take_exact(struct gw_sequence *sequence)
{
    const struct gw_heads *heads = &sequence->engine->heads;
    sequence->exact_o = malloc(sizeof(float) * heads->q_heads * heads->head_dim);
    sequence->exact_lse = malloc(sizeof(float) * heads->q_heads);
    return sequence->exact_o == NULL || sequence->exact_lse == NULL ? PP_MEMORY : PP_OK;
}

static enum pp_status sequence_open_remote(struct gw_sequence *sequence,
                                           const struct gw_sequence_options *options)
{
    const struct gw_engine_info *info = &sequence->engine->info;
    struct gw_remote_sequence_config config = {.shape = info->shape,
                                               .fingerprint_bytes = info->fingerprint_bytes,
                                               .estimator = options->estimator,
                                               .ranges = options->ranges,
                                               .range_count = options->range_count,
                                               .nodes_plan = options->nodes_plan,
                                               .hash_seed = options->hash_seed,
                                               .dense_layers = options->dense_layers,
                                               .dense_layer_count = options->dense_layer_count,
                                               .tokens_expected = options->tokens_expected};
    if (options->tokens_reserved > 0 && options->tokens_reserved < options->tokens_expected) {
        config.tokens_expected = options->tokens_reserved;
    }
    for (uint32_t i = 0; i < info->fingerprint_bytes; i++) {
        config.fingerprint[i] = info->fingerprint[i];
    }
    return gw_remote_sequence_open(options->remote, &config, &sequence->remote);
}

enum pp_status gw_sequence_open(struct gw_engine *engine, const struct gw_sequence_options *options,
                                struct gw_sequence **sequence_out)
{
    const struct gw_heads *heads = &engine->heads;
    if (options->tokens_expected == 0 || options->tokens_expected > engine->info.tokens_max) {
        return PP_OUT_OF_RANGE;
    }
    struct gw_sequence *sequence = calloc(1, sizeof(*sequence));
    if (sequence == NULL) {
        return PP_MEMORY;
    }
    sequence->engine = engine;
    sequence->tokens_expected = options->tokens_expected;
    sequence->step_seed = options->step_seed;
    sequence->tokens_kept = options->tokens_kept;
    sequence->signatures = options->worker_signatures;
    sequence->late.wanted = options->tune && options->remote != NULL;
    sequence->balance = options->balance && options->remote != NULL;
    sequence->row_bytes = heads->kv_heads * pp_vector_bytes(heads->head_dim, heads->kv_dtype);
    uint64_t rows_kept = PP_SINK_TOKENS + PP_RECENT_TOKENS + options->tokens_kept +
                         (GW_LEAVE_BATCHES_MAX + 1u) * GW_LEAVE_TOKENS;
    sequence->row_capacity = options->remote == NULL ? options->tokens_expected : rows_kept;
    enum pp_status status = sequence_take_layers(sequence);
    if (status == PP_OK && options->remote != NULL) {
        sequence->ids = malloc(options->tokens_expected * sizeof(*sequence->ids));
        status = sequence->ids != NULL ? PP_OK : PP_MEMORY;
    }
    if (status == PP_OK && options->compare_exact) {
        status = sequence_take_exact(sequence);
    }
    if (status == PP_OK && options->errors && options->remote != NULL) {
        status = gw_errors_new(engine->info.shape.layers, heads->q_heads, &sequence->errors);
    }
    if (status == PP_OK && options->remote != NULL) {
        status = sequence_open_remote(sequence, options);
    }
    if (status == PP_OK && sequence->balance) {
        status = gw_balances_give(sequence);
    }
    if (status != PP_OK) {
        gw_sequence_close(sequence);
        return status;
    }
    *sequence_out = sequence;
    return PP_OK;
}

void gw_sequence_close(struct gw_sequence *sequence)
{
    if (sequence == NULL) {
        return;
    }
    if (sequence->remote != NULL) {
        gw_remote_sequence_close(sequence->remote);
    }
    gw_mark_deinit(sequence);
    gw_late_deinit(sequence);
    free(sequence->tunings);
    sequence_free_layers(sequence);
    gw_errors_destroy(sequence->errors);
    free(sequence->ids);
    free(sequence->exact_lse);
    free(sequence->exact_o);
    free(sequence);
}

uint64_t gw_sequence_leaving(const struct gw_sequence *sequence, uint64_t count)
{
    uint64_t kept = (uint64_t)PP_SINK_TOKENS + PP_RECENT_TOKENS + sequence->tokens_kept;
    return sequence->remote != NULL && count > kept ? count - kept : 0;
}

void gw_sequence_use(struct gw_sequence *sequence, const struct pp_estimator *estimator, bool tuned)
{
    sequence->estimator = *estimator;
    sequence->untuned = !tuned;
    if (sequence->errors != NULL) {
        gw_errors_clear(sequence->errors);
    }
}

const struct gw_errors *gw_sequence_errors(const struct gw_sequence *sequence)
{
    return sequence->errors;
}

static enum pp_status sequence_hand_over(struct gw_sequence *sequence)
{
    const struct gw_engine_info *info = &sequence->engine->info;
    uint64_t row = PP_SINK_TOKENS + sequence->handed - sequence->dropped;
    uint64_t at = row * sequence->row_bytes;
    for (uint32_t layer = 0; layer < info->shape.layers; layer++) {
        const struct gw_sequence_layer *kv = &sequence->layers[layer];
        struct gw_host_rows rows;
        PP_TRY(gw_engine_view(sequence->engine, (const uint8_t *)kv->k + at,
                              (const uint8_t *)kv->v + at, GW_LEAVE_TOKENS * sequence->row_bytes,
                              &rows));
        PP_TRY(gw_remote_append(sequence->remote, layer, sequence->handed, GW_LEAVE_TOKENS, rows.k,
                                rows.v, false));
    }
    sequence->handed += GW_LEAVE_TOKENS;
    return PP_OK;
}

/* Frees the rows that every layer has acknowledged, in whole batches. */
static enum pp_status sequence_drop(struct gw_sequence *sequence)
{
    struct gw_device *device = sequence->engine->device;
    uint64_t held = sequence->handed;
    for (uint32_t layer = 0; layer < sequence->engine->info.shape.layers; layer++) {
        uint64_t layer_held = gw_remote_held(sequence->remote, layer);
        held = layer_held < held ? layer_held : held;
    }
    if (held < sequence->dropped + GW_LEAVE_TOKENS) {
        return PP_OK;
    }
    uint64_t freed = held - sequence->dropped;
    uint64_t to = PP_SINK_TOKENS * sequence->row_bytes;
    uint64_t from = to + freed * sequence->row_bytes;
    uint64_t bytes = gw_sequence_rows(sequence) * sequence->row_bytes - from;
    for (uint32_t layer = 0; layer < sequence->engine->info.shape.layers; layer++) {
        uint8_t *k = sequence->layers[layer].k, *v = sequence->layers[layer].v;
        struct gw_stream *stream = sequence->engine->stream;
        PP_TRY(device->ops->copy_within(device, stream, k + to, k + from, bytes));
        PP_TRY(device->ops->copy_within(device, stream, v + to, v + from, bytes));
    }
    sequence->dropped = held;
    return PP_OK;
}

enum pp_status gw_sequence_leave(struct gw_sequence *sequence)
{
    uint64_t kept = PP_SINK_TOKENS + PP_RECENT_TOKENS + GW_LEAVE_TOKENS;
    if (sequence->length >= kept + sequence->handed) {
        PP_TRY(sequence_hand_over(sequence));
    }
    if (sequence->handed > sequence->dropped) {
        PP_TRY(sequence_drop(sequence));
    }
    if (gw_sequence_rows(sequence) < sequence->row_capacity) {
        return PP_OK;
    }
    PP_TRY(gw_remote_flush(sequence->remote));
    return sequence_drop(sequence);
}

uint32_t gw_sequence_layers(const struct gw_sequence *sequence)
{
    return sequence->engine->info.shape.layers;
}

uint64_t gw_sequence_length(const struct gw_sequence *sequence)
{
    return sequence->length;
}

uint64_t gw_sequence_left(const struct gw_sequence *sequence)
{
    return sequence->handed;
}

const char *gw_sequence_error(const struct gw_sequence *sequence)
{
    return sequence->remote == NULL ? "" : gw_remote_error(sequence->remote);
}

uint32_t gw_sequence_parts(const struct gw_sequence *sequence)
{
    return sequence->remote == NULL ? 0 : gw_remote_parts(sequence->remote);
}

void gw_sequence_tokens_held(struct gw_sequence *sequence, uint64_t *tokens_out)
{
    if (sequence->remote != NULL) {
        gw_remote_tokens_held(sequence->remote, tokens_out);
    }
}
