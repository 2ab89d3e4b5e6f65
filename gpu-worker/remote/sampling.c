/*
 * Estimators by layer. See sampling.h. Layers of equal k and l share one hash.
 */
#include "gpu-worker/remote/sampling.h"

#include <stdlib.h>

#include "gpu-worker/remote/attn_client.h"

static enum pp_status take_estimators(struct gw_remote_sequence *sequence)
{
    struct gw_remote_sequence_config *config = &sequence->config;
    struct pp_estimators *estimators = &sequence->estimators;
    PP_TRY(pp_estimator_resolve(&config->estimator));
    estimators->common = config->estimator;
    if (config->range_count > PP_ESTIMATOR_RANGES_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    for (uint32_t i = 0; i < config->range_count; ++i) {
        struct pp_estimator_range range = config->ranges[i];
        if (range.first > range.last || range.last >= config->shape.layers) {
            return PP_INVALID_ARGUMENT;
        }
        PP_TRY(pp_estimator_resolve(&range.estimator));
        estimators->ranges[estimators->range_count++] = range;
    }
    config->ranges = NULL; /* the caller's */
    return PP_OK;
}

/* The first layer that is hashed as `layer` is; at most `layer`. */
static uint32_t hashed_alike(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    const struct pp_estimator *own = gw_remote_estimator(sequence, layer);
    uint32_t first = 0;
    const struct pp_estimator *other = gw_remote_estimator(sequence, first);
    while (other->kind != own->kind || other->k != own->k || other->l != own->l) {
        other = gw_remote_estimator(sequence, ++first);
    }
    return first;
}

static enum pp_status make_hashes(struct gw_remote_sequence *sequence)
{
    const struct pp_shape *shape = &sequence->config.shape;
    sequence->hashes = calloc(shape->layers, sizeof(*sequence->hashes));
    if (sequence->hashes == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t layer = 0; layer < shape->layers; ++layer) {
        const struct pp_estimator *own = gw_remote_estimator(sequence, layer);
        uint32_t alike = hashed_alike(sequence, layer);
        if (own->kind == PP_LSH && alike == layer) {
            PP_TRY(pp_hash_new(sequence->config.hash_seed, shape->head_dim, own->k, own->l,
                               &sequence->hashes[layer]));
        }
        sequence->hashes[layer] = sequence->hashes[alike];
    }
    return PP_OK;
}

enum pp_status gw_sampling_init(struct gw_remote_sequence *sequence)
{
    const struct pp_shape *shape = &sequence->config.shape;
    PP_TRY(take_estimators(sequence));
    bool sketch = sequence->estimators.common.kind == PP_SKETCH;
    for (uint32_t i = 0; i < sequence->estimators.range_count; ++i) {
        sketch = sketch || sequence->estimators.ranges[i].estimator.kind == PP_SKETCH;
    }
    if (sketch) {
        uint64_t values = (uint64_t)shape->layers * shape->kv_heads * shape->head_dim;
        sequence->balances = calloc(values, sizeof(*sequence->balances));
        PP_TRY(sequence->balances != NULL ? PP_OK : PP_MEMORY);
    }
    return make_hashes(sequence);
}

void gw_sampling_deinit(struct gw_remote_sequence *sequence)
{
    for (uint32_t layer = 0; sequence->hashes != NULL && layer < sequence->config.shape.layers;
         ++layer) {
        if (hashed_alike(sequence, layer) == layer) {
            pp_hash_destroy(sequence->hashes[layer]);
        }
    }
    free(sequence->hashes);
    free(sequence->balances);
}

const struct pp_estimator *gw_remote_estimator(const struct gw_remote_sequence *sequence,
                                               uint32_t layer)
{
    return pp_estimators_of(&sequence->estimators, layer);
}

const struct pp_hash *gw_remote_hash(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    for (uint32_t i = 0; i < sequence->config.dense_layer_count; ++i) {
        if (sequence->dense_layers[i] == layer) {
            return NULL;
        }
    }
    return sequence->hashes[layer];
}

/* One block of memory: the list, and what it points to. */
struct layer_words {
    Pigpen__V1__LayerEstimator *list[PP_LAYERS_MAX];
    Pigpen__V1__LayerEstimator layers[PP_LAYERS_MAX];
    Pigpen__V1__Estimator estimators[PP_LAYERS_MAX];
};

enum pp_status gw_layer_words_new(const struct gw_remote_sequence *sequence,
                                  struct gw_layer_words *words_out)
{
    struct layer_words *words = malloc(sizeof(*words));
    uint32_t count = 0;
    if (words == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
        const struct pp_estimator *own = gw_remote_estimator(sequence, layer);
        if (own == &sequence->estimators.common) {
            continue;
        }
        pigpen__v1__estimator__init(&words->estimators[count]);
        pigpen__v1__layer_estimator__init(&words->layers[count]);
        gw_estimator_pack(own, &words->estimators[count]);
        words->layers[count].layer = layer;
        words->layers[count].estimator = &words->estimators[count];
        words->list[count] = &words->layers[count];
        ++count;
    }
    *words_out = (struct gw_layer_words){words->list, count};
    return PP_OK;
}
