/*
 * Parts. See part.h.
 */
#include "attn-node/kv/part.h"

#include <stdlib.h>
#include <string.h>

#include "attn-node/kv/fork.h"
#include "attn-node/kv/merge.h"
#include "attn-node/kv/truncate.h"
#include "common/base/assert.h"

enum pp_status an_part_check(struct an_part_spec *spec, const struct an_part_layers *layers)
{
    PP_TRY(pp_shape_check(&spec->shape));
    if (spec->kv_head_count == 0 || spec->kv_head_begin >= spec->shape.kv_heads ||
        spec->kv_head_count > spec->shape.kv_heads - spec->kv_head_begin) {
        return PP_BAD_SHAPE;
    }
    if (spec->fingerprint_bytes > PP_FINGERPRINT_BYTES ||
        spec->token_begin > PP_TOKENS_PER_PART_MAX || layers->dense_count > spec->shape.layers) {
        return PP_INVALID_ARGUMENT;
    }
    for (uint32_t i = 0; i < layers->dense_count; i++) {
        if (layers->dense[i] >= spec->shape.layers) {
            return PP_INVALID_ARGUMENT;
        }
    }
    for (uint32_t i = 0; i < layers->estimator_count; i++) {
        struct pp_estimator estimator = layers->estimators[i].estimator;
        if (layers->estimators[i].layer >= spec->shape.layers) {
            return PP_INVALID_ARGUMENT;
        }
        PP_TRY(pp_estimator_resolve(&estimator));
    }
    return pp_estimator_resolve(&spec->estimator);
}

/* The estimator of a layer of a part that was checked. */
static struct pp_estimator estimator_of(const struct an_part_spec *spec,
                                        const struct an_part_layers *layers, uint32_t layer)
{
    struct pp_estimator estimator = spec->estimator;
    for (uint32_t i = 0; i < layers->estimator_count; i++) {
        if (layers->estimators[i].layer == layer) {
            estimator = layers->estimators[i].estimator;
        }
    }
    enum pp_status resolved = pp_estimator_resolve(&estimator);
    PP_ASSERT(resolved == PP_OK);
    return estimator;
}

/* A part of `spec` whose layers are to be initialised; takes a reference to params. */
static enum pp_status part_make(const struct an_part_spec *spec, struct an_params *params,
                                struct an_part **part_out)
{
    struct pp_limit *limit = params->store->limit;
    uint64_t bytes = sizeof(struct an_part) + spec->shape.layers * sizeof(struct an_layer);
    PP_TRY(pp_limit_reserve(limit, PP_MEMORY_KV, bytes));
    struct an_part *part = calloc(1, bytes);
    if (part == NULL) {
        pp_limit_release(limit, PP_MEMORY_KV, bytes);
        return PP_MEMORY;
    }
    part->spec = *spec;
    part->own_charge = bytes;
    part->truncate_held_tokens = UINT64_MAX; /* none yet */
    part->layers = (struct an_layer *)(part + 1);
    part->params = params;
    an_params_acquire(params);
    *part_out = part;
    return PP_OK;
}

/* Empty layers; those of one estimator share its params. */
static enum pp_status part_layers_init(struct an_part *part, const struct an_part_layers *layers)
{
    const struct an_part_spec *spec = &part->spec;
    for (uint32_t i = 0; i < spec->shape.layers; i++) {
        struct pp_estimator estimator = estimator_of(spec, layers, i);
        struct an_params *params = part->params;
        for (uint32_t j = i; j > 0 && !pp_estimator_same(&params->index.estimator, &estimator);
             j--) {
            params = part->layers[j - 1].params;
        }
        if (pp_estimator_same(&params->index.estimator, &estimator)) {
            an_layer_init(&part->layers[i], params, false);
            continue;
        }
        PP_TRY(an_params_new(params->store, &estimator, spec->hash_seed, spec->kv_head_count,
                             spec->shape.head_dim, spec->shape.kv_dtype, &params));
        an_layer_init(&part->layers[i], params, false);
        an_params_release(params);
    }
    for (uint32_t i = 0; i < layers->dense_count; i++) {
        part->layers[layers->dense[i]].dense = true;
    }
    return PP_OK;
}

/* Where something is sampled, keeps late queries if memory allows: a part does without. */
static void part_late_init(struct an_part *part)
{
    struct pp_limit *limit = part->params->store->limit;
    const struct pp_shape *shape = &part->spec.shape;
    uint32_t q_heads = an_part_q_heads(part);
    uint64_t bytes = an_late_bytes(shape->layers, q_heads, shape->head_dim);
    bool sampled = false;
    for (uint32_t i = 0; i < shape->layers; i++) {
        const struct an_layer *layer = &part->layers[i];
        sampled = sampled || (!layer->dense && an_params_samples(layer->params));
    }
    if (!sampled || bytes == 0 || pp_limit_reserve(limit, PP_MEMORY_KV, bytes) != PP_OK) {
        return;
    }
    part->late = an_late_new(shape->layers, q_heads, shape->head_dim);
    if (part->late == NULL) {
        pp_limit_release(limit, PP_MEMORY_KV, bytes);
        return;
    }
    part->own_charge += bytes;
}

enum pp_status an_part_new(struct an_store *store, const struct an_part_spec *spec,
                           const struct an_part_layers *layers, struct an_part **part_out)
{
    struct an_params *params;
    PP_TRY(an_params_new(store, &spec->estimator, spec->hash_seed, spec->kv_head_count,
                         spec->shape.head_dim, spec->shape.kv_dtype, &params));
    struct an_part *part;
    enum pp_status status = part_make(spec, params, &part);
    an_params_release(params);
    PP_TRY(status);
    status = part_layers_init(part, layers);
    if (status != PP_OK) {
        an_part_destroy(part);
        return status;
    }
    part_late_init(part);
    *part_out = part;
    return PP_OK;
}

enum pp_status an_part_fork(const struct an_part *from, const uint8_t *sequence_id,
                            const uint8_t *part_id, uint64_t held_tokens, uint64_t generation,
                            struct an_part **part_out)
{
    for (uint32_t i = 0; i < from->spec.shape.layers; i++) {
        if (an_layer_held(&from->layers[i]) < held_tokens) {
            return PP_SHORT_PART;
        }
    }
    struct an_part_spec spec = from->spec;
    memcpy(spec.sequence_id, sequence_id, PP_ID_BYTES);
    memcpy(spec.part_id, part_id, PP_ID_BYTES);
    struct an_part *part;
    PP_TRY(part_make(&spec, from->params, &part));
    part->generation = generation;
    part->lease_us = from->lease_us;
    part->forked = true;
    part->fork_source = from->handle;
    part->fork_held_tokens = held_tokens;
    part->fork_generation = generation;
    for (uint32_t i = 0; i < spec.shape.layers; i++) {
        an_layer_init(&part->layers[i], from->layers[i].params, from->layers[i].dense);
        enum pp_status status = an_fork_layer(&from->layers[i], held_tokens, &part->layers[i]);
        if (status != PP_OK) {
            an_part_destroy(part);
            return status;
        }
    }
    part_late_init(part);
    *part_out = part;
    return PP_OK;
}

void an_part_destroy(struct an_part *part)
{
    if (part == NULL) {
        return;
    }
    struct an_params *params = part->params;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        an_layer_deinit(&part->layers[i]);
    }
    pp_limit_release(params->store->limit, PP_MEMORY_KV, part->reserved_bytes + part->own_charge);
    an_late_destroy(part->late);
    free(part);
    an_params_release(params);
}

static bool model_equal(const struct an_part_spec *one, const struct an_part_spec *other)
{
    const struct pp_shape *a = &one->shape, *b = &other->shape;
    return one->fingerprint_bytes == other->fingerprint_bytes &&
           memcmp(one->fingerprint, other->fingerprint, one->fingerprint_bytes) == 0 &&
           a->layers == b->layers && a->q_heads == b->q_heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->scale == b->scale && a->kv_dtype == b->kv_dtype &&
           one->hash_seed == other->hash_seed;
}

static bool dense_equal(const struct an_part *part, const uint32_t *dense_layers,
                        uint32_t dense_layer_count)
{
    uint32_t dense_count = 0;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        dense_count += part->layers[i].dense ? 1u : 0u;
    }
    uint32_t named = 0;
    for (uint32_t i = 0; i < dense_layer_count; i++) {
        bool again = false;
        for (uint32_t j = 0; j < i; j++) {
            again = again || dense_layers[j] == dense_layers[i];
        }
        if (!part->layers[dense_layers[i]].dense) {
            return false;
        }
        named += again ? 0u : 1u;
    }
    return named == dense_count;
}

enum pp_status an_part_matches(const struct an_part *part, const struct an_part_spec *spec,
                               const struct an_part_layers *layers)
{
    const struct an_part_spec *own = &part->spec;
    if (!model_equal(own, spec)) {
        return PP_MODEL_MISMATCH;
    }
    bool same = memcmp(own->sequence_id, spec->sequence_id, PP_ID_BYTES) == 0 &&
                own->kv_head_begin == spec->kv_head_begin &&
                own->kv_head_count == spec->kv_head_count &&
                own->token_begin == spec->token_begin && own->draw_key == spec->draw_key &&
                pp_estimator_same(&own->estimator, &spec->estimator) &&
                dense_equal(part, layers->dense, layers->dense_count);
    for (uint32_t i = 0; i < own->shape.layers && same; i++) {
        struct pp_estimator said = estimator_of(spec, layers, i);
        same = pp_estimator_same(&part->layers[i].params->index.estimator, &said);
    }
    return same ? PP_OK : PP_PART_EXISTS;
}

enum pp_status an_part_truncate(struct an_part *part, uint64_t expected, uint64_t new_generation,
                                uint64_t held_tokens)
{
    if (new_generation <= expected) {
        return PP_INVALID_ARGUMENT;
    }
    if (part->generation == new_generation && part->truncate_held_tokens == held_tokens) {
        return PP_OK; /* done before; what was appended since stays */
    }
    if (part->generation != expected) {
        return PP_STALE_GENERATION;
    }
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        an_truncate_layer(&part->layers[i], held_tokens);
    }
    part->generation = new_generation;
    part->truncate_held_tokens = held_tokens;
    return PP_OK;
}

enum pp_status an_part_seal(struct an_part *part, const uint32_t *layers, uint32_t layer_count,
                            uint64_t *segments_out)
{
    uint32_t total = layer_count > 0 ? layer_count : part->spec.shape.layers;
    uint64_t segments = 0;
    for (uint32_t i = 0; i < total; i++) {
        struct an_layer *layer = &part->layers[layer_count > 0 ? layers[i] : i];
        uint32_t before = layer->view_count;
        PP_TRY(an_layer_seal(layer));
        if (layer->extent != NULL) {
            an_extent_settle(layer->extent);
        }
        an_layer_schedule(layer, before);
        an_layer_account_tail(layer);
        segments += layer->view_count - before;
        an_merge_plan(layer);
    }
    *segments_out = segments;
    return PP_OK;
}

/* The build scratch of a part that holds `tokens`. */
static uint64_t part_scratch_need(const struct an_part *part, uint64_t tokens)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        uint64_t bytes = an_layer_scratch_need(&part->layers[i], tokens);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint64_t part_rows_need(const struct an_part *part, uint64_t tokens)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < part->spec.shape.layers && tokens > 0; i++) {
        bytes += an_layer_need(&part->layers[i], tokens);
    }
    return bytes;
}

uint64_t an_part_need(const struct an_part *part, uint64_t tokens)
{
    uint64_t scratch = part_scratch_need(part, tokens);
    uint64_t there = part->params->store->build_scratch_bytes;
    return part_rows_need(part, tokens) + (scratch > there ? scratch - there : 0);
}

enum pp_status an_part_reserve(struct an_part *part, uint64_t tokens, uint64_t least_bytes)
{
    struct an_store *store = part->params->store;
    uint64_t bytes = part_rows_need(part, tokens);
    bytes = bytes > least_bytes ? bytes : least_bytes;
    PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_KV, bytes));
    enum pp_status status = an_store_reserve_scratch(store, part_scratch_need(part, tokens));
    if (status != PP_OK) {
        pp_limit_release(store->limit, PP_MEMORY_KV, bytes);
        return status;
    }
    part->reserved_bytes = bytes;
    return PP_OK;
}

/* What the reservation is for. */
static uint64_t rows_used(const struct pp_limit *limit)
{
    return atomic_load_explicit(&limit->used_by_kind[PP_MEMORY_KV], memory_order_relaxed) +
           atomic_load_explicit(&limit->used_by_kind[PP_MEMORY_TAIL], memory_order_relaxed) +
           atomic_load_explicit(&limit->used_by_kind[PP_MEMORY_INDEX], memory_order_relaxed);
}

void an_part_reserve_lend(struct an_part *part)
{
    struct an_store *store = part->params->store;
    pp_limit_release(store->limit, PP_MEMORY_KV, part->reserved_bytes);
    store->lent_bytes = part->reserved_bytes;
    part->lent_used = rows_used(store->limit);
}

void an_part_reserve_settle(struct an_part *part)
{
    struct an_store *store = part->params->store;
    uint64_t used = rows_used(store->limit);
    uint64_t charged = used > part->lent_used ? used - part->lent_used : 0;
    part->reserved_bytes = charged < part->reserved_bytes ? part->reserved_bytes - charged : 0;
    store->lent_bytes = 0;
    if (pp_limit_reserve(store->limit, PP_MEMORY_KV, part->reserved_bytes) != PP_OK) {
        part->reserved_bytes = 0; /* another thread was given it meanwhile */
    }
}

uint64_t an_part_bytes(const struct an_part *part)
{
    const struct an_params *params = part->params;
    uint64_t bytes = part->own_charge + part->reserved_bytes + params->charged_bytes;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        const struct an_layer *layer = &part->layers[i];
        bool counted = layer->params == params;
        for (uint32_t j = 0; j < i && !counted; j++) {
            counted = part->layers[j].params == layer->params;
        }
        bytes += counted ? 0 : layer->params->charged_bytes;
        bytes += layer->tail_index_charge + layer->staging.codes_bytes +
                 layer->staging.centre_bytes + layer->view_capacity * sizeof(struct an_view);
        if (layer->merge != NULL) {
            bytes += layer->merge->index_charge + layer->merge->own_charge;
        }
        const struct an_extent *last = NULL;
        for (uint32_t j = 0; j < layer->view_count; j++) {
            const struct an_segment *segment = layer->views[j].segment;
            bytes += segment->index_charge + segment->own_charge + segment->build.codes_bytes;
            if (segment->extent != last && segment->extent != layer->extent) {
                last = segment->extent;
                bytes += last->committed_bytes * last->kv_heads + sizeof(*last);
            }
        }
        if (layer->extent != NULL) {
            bytes +=
                layer->extent->committed_bytes * layer->extent->kv_heads + sizeof(*layer->extent);
        }
    }
    return bytes;
}
