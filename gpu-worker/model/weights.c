/*
 * Tensors by name and shape: third step on a model's way in, after gguf.c and config.c, before the
 * engine. A table says which tensors a layer has. Knows nothing of what is computed with them.
 */
#include "gpu-worker/model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 80

/* Sizes that shapes are made of. */
enum size_of { SIZE_HIDDEN, SIZE_Q, SIZE_KV, SIZE_FFN, SIZE_COUNT };

struct layer_tensor {
    const char *suffix;
    size_t offset; /* of the pointer in struct gw_layer_weights */
    enum size_of in;
    enum size_of out; /* ignored for vectors */
    bool vector;      /* one dimension, f32 */
};

static const struct layer_tensor LAYER_TENSORS[] = {
    {"attn_norm.weight", offsetof(struct gw_layer_weights, attn_norm), SIZE_HIDDEN, 0, true},
    {"attn_q.weight", offsetof(struct gw_layer_weights, attn_q), SIZE_HIDDEN, SIZE_Q, false},
    {"attn_k.weight", offsetof(struct gw_layer_weights, attn_k), SIZE_HIDDEN, SIZE_KV, false},
    {"attn_v.weight", offsetof(struct gw_layer_weights, attn_v), SIZE_HIDDEN, SIZE_KV, false},
    {"attn_output.weight", offsetof(struct gw_layer_weights, attn_output), SIZE_Q, SIZE_HIDDEN,
     false},
    {"ffn_norm.weight", offsetof(struct gw_layer_weights, ffn_norm), SIZE_HIDDEN, 0, true},
    {"ffn_gate.weight", offsetof(struct gw_layer_weights, ffn_gate), SIZE_HIDDEN, SIZE_FFN, false},
    {"ffn_up.weight", offsetof(struct gw_layer_weights, ffn_up), SIZE_HIDDEN, SIZE_FFN, false},
    {"ffn_down.weight", offsetof(struct gw_layer_weights, ffn_down), SIZE_FFN, SIZE_HIDDEN, false},
};
#define LAYER_TENSOR_COUNT (sizeof(LAYER_TENSORS) / sizeof(LAYER_TENSORS[0]))

struct finder {
    const struct gw_gguf *gguf;
    char *error;
    size_t error_bytes;
};

/* A tensor [in, out], or a vector f32 [in] when out is 0. */
static enum pp_status find(const struct finder *finder, const char *name, uint64_t in, uint64_t out,
                           const struct gw_tensor **tensor_out)
{
    const struct gw_tensor *tensor = gw_gguf_tensor(finder->gguf, name);
    if (tensor == NULL) {
        (void)snprintf(finder->error, finder->error_bytes, "tensor '%s' is missing", name);
        return PP_INVALID_ARGUMENT;
    }
    const uint32_t dim_count = out == 0 ? 1 : 2;
    const uint64_t rows = out == 0 ? 1 : out;
    if (tensor->dim_count != dim_count || tensor->dims[0] != in || tensor->dims[1] != rows) {
        (void)snprintf(finder->error, finder->error_bytes,
                       "tensor '%s' is [%llu, %llu] of %u dimensions, the model's keys ask for "
                       "[%llu, %llu] of %u",
                       name, (unsigned long long)tensor->dims[0],
                       (unsigned long long)tensor->dims[1], tensor->dim_count,
                       (unsigned long long)in, (unsigned long long)rows, dim_count);
        return PP_INVALID_ARGUMENT;
    }
    if (out == 0 && tensor->type != GW_TENSOR_F32) {
        (void)snprintf(finder->error, finder->error_bytes, "tensor '%s' is not of type F32", name);
        return PP_INVALID_ARGUMENT;
    }
    *tensor_out = tensor;
    return PP_OK;
}

static enum pp_status find_layer(const struct finder *finder, const struct gw_config *config,
                                 uint32_t layer, struct gw_layer_weights *weights)
{
    const uint64_t sizes[SIZE_COUNT] = {
        [SIZE_HIDDEN] = config->hidden,
        [SIZE_Q] = (uint64_t)config->q_heads * config->head_dim,
        [SIZE_KV] = (uint64_t)config->kv_heads * config->head_dim,
        [SIZE_FFN] = config->ffn,
    };
    for (size_t index = 0; index < LAYER_TENSOR_COUNT; index++) {
        const struct layer_tensor *wanted = &LAYER_TENSORS[index];
        char name[NAME_BYTES];
        (void)snprintf(name, sizeof(name), "blk.%u.%s", layer, wanted->suffix);
        const struct gw_tensor *tensor = NULL;
        PP_TRY(find(finder, name, sizes[wanted->in], wanted->vector ? 0 : sizes[wanted->out],
                    &tensor));
        memcpy((char *)weights + wanted->offset, &tensor, sizeof(tensor));
    }
    return PP_OK;
}

static enum pp_status find_rope(const struct finder *finder, const struct gw_config *config,
                                const struct gw_tensor **tensor_out)
{
    if (gw_gguf_tensor(finder->gguf, "rope_freqs.weight") == NULL) {
        *tensor_out = NULL;
        return PP_OK;
    }
    PP_TRY(find(finder, "rope_freqs.weight", config->head_dim / 2, 0, tensor_out));
    for (uint32_t pair = 0; pair < config->head_dim / 2; pair++) {
        float factor = 0;
        memcpy(&factor, (*tensor_out)->data + pair * sizeof(factor), sizeof(factor));
        if (!(factor > 0 && factor < 1e6F)) {
            (void)snprintf(finder->error, finder->error_bytes,
                           "tensor 'rope_freqs.weight' has the factor %g at %u", (double)factor,
                           pair);
            return PP_INVALID_ARGUMENT;
        }
    }
    return PP_OK;
}

static bool is_layer_tensor(const char *name, uint32_t layer_count)
{
    unsigned layer = 0;
    int prefix = 0;
    if (sscanf(name, "blk.%9u.%n", &layer, &prefix) != 1 || prefix == 0 || layer >= layer_count) {
        return false;
    }
    for (size_t index = 0; index < LAYER_TENSOR_COUNT; index++) {
        char expected[NAME_BYTES];
        (void)snprintf(expected, sizeof(expected), "blk.%u.%s", layer, LAYER_TENSORS[index].suffix);
        if (strcmp(name, expected) == 0) {
            return true;
        }
    }
    return false;
}

/* A tensor nobody asked for (a bias, a second norm) means another model than the one computed. */
static enum pp_status check_extra(const struct finder *finder, uint32_t layer_count)
{
    static const char *const GLOBALS[] = {"token_embd.weight", "output_norm.weight",
                                          "output.weight", "rope_freqs.weight"};
    for (uint64_t index = 0; index < gw_gguf_tensor_count(finder->gguf); index++) {
        const char *name = gw_gguf_tensor_at(finder->gguf, index)->name;
        bool known = strstr(name, "rotary_emb.inv_freq") != NULL ||
                     strstr(name, "attn_rot_embd") != NULL; /* stale tables, never used */
        for (size_t global = 0; global < sizeof(GLOBALS) / sizeof(GLOBALS[0]); global++) {
            known = known || strcmp(name, GLOBALS[global]) == 0;
        }
        if (!known && !is_layer_tensor(name, layer_count)) {
            (void)snprintf(finder->error, finder->error_bytes,
                           "tensor '%s' has no place in a llama model of %u layers", name,
                           layer_count);
            return PP_INVALID_ARGUMENT;
        }
    }
    return PP_OK;
}

static enum pp_status find_all(const struct finder *finder, const struct gw_config *config,
                               struct gw_weights *weights)
{
    PP_TRY(find(finder, "token_embd.weight", config->hidden, config->vocab, &weights->embedding));
    PP_TRY(find(finder, "output_norm.weight", config->hidden, 0, &weights->output_norm));
    weights->output = weights->embedding;
    if (!config->tied) {
        PP_TRY(find(finder, "output.weight", config->hidden, config->vocab, &weights->output));
    }
    PP_TRY(find_rope(finder, config, &weights->rope_freqs));
    for (uint32_t layer = 0; layer < config->layers; layer++) {
        PP_TRY(find_layer(finder, config, layer, &weights->layers[layer]));
    }
    return check_extra(finder, config->layers);
}

enum pp_status gw_weights_init(struct gw_weights *weights, const struct gw_gguf *gguf,
                               const struct gw_config *config, char *error_out, size_t error_bytes)
{
    const struct finder finder = {gguf, error_out, error_bytes};
    struct gw_weights found = {.layer_count = config->layers};
    found.layers = calloc(config->layers, sizeof(*found.layers));
    if (found.layers == NULL) {
        (void)snprintf(error_out, error_bytes, "out of memory for %u layers", config->layers);
        return PP_MEMORY;
    }
    const enum pp_status status = find_all(&finder, config, &found);
    if (status != PP_OK) {
        gw_weights_deinit(&found);
        return status;
    }
    *weights = found;
    return PP_OK;
}

void gw_weights_deinit(struct gw_weights *weights)
{
    free(weights->layers);
    memset(weights, 0, sizeof(*weights));
}

void gw_weights_rope(const struct gw_weights *weights, const struct gw_config *config,
                     float *inv_freq_out)
{
    for (uint32_t pair = 0; pair < config->rope_dim / 2; pair++) {
        const double exponent = -2.0 * (double)pair / (double)config->rope_dim;
        double inv_freq = pow(config->rope_theta, exponent) * config->rope_scale;
        if (weights->rope_freqs != NULL) {
            float factor = 0;
            memcpy(&factor, weights->rope_freqs->data + pair * sizeof(factor), sizeof(factor));
            inv_freq /= (double)factor;
        }
        inv_freq_out[pair] = (float)inv_freq;
    }
}
