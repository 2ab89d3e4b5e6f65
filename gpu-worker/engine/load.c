/*
 * Turns a model's configuration and tensors into the engine's: weights stay in place and quantised.
 * It refuses to know the file behind them.
 */
#include "gpu-worker/engine/load.h"

#include <stdio.h>
#include <stdlib.h>

#include "gpu-worker/model/config.h"
#include "gpu-worker/model/weights.h"

static enum pp_status load_matrix(struct gw_engine *engine, const struct gw_tensor *tensor,
                                  struct gw_matrix *matrix_out)
{
    /* The values of gw_tensor_type are those of gw_weight_type: both are GGUF's ids. */
    struct gw_matrix matrix = {.type = (enum gw_weight_type)tensor->type,
                               .rows = (uint32_t)tensor->dims[1],
                               .columns = (uint32_t)tensor->dims[0]};
    PP_TRY(engine->device->ops->import(engine->device, tensor->data, tensor->bytes, &matrix.data));
    *matrix_out = matrix;
    return PP_OK;
}

static enum pp_status load_vector(struct gw_engine *engine, const struct gw_tensor *tensor,
                                  const float **vector_out)
{
    const void *data;
    PP_TRY(engine->device->ops->import(engine->device, tensor->data, tensor->bytes, &data));
    *vector_out = data;
    return PP_OK;
}

static enum pp_status load_layer(struct gw_engine *engine, const struct gw_layer_weights *from,
                                 struct gw_layer *to)
{
    PP_TRY(load_vector(engine, from->attn_norm, &to->attn_norm));
    PP_TRY(load_vector(engine, from->ffn_norm, &to->ffn_norm));
    PP_TRY(load_matrix(engine, from->attn_q, &to->q));
    PP_TRY(load_matrix(engine, from->attn_k, &to->k));
    PP_TRY(load_matrix(engine, from->attn_v, &to->v));
    PP_TRY(load_matrix(engine, from->attn_output, &to->o));
    PP_TRY(load_matrix(engine, from->ffn_gate, &to->gate));
    PP_TRY(load_matrix(engine, from->ffn_up, &to->up));
    return load_matrix(engine, from->ffn_down, &to->down);
}

static enum pp_status load_weights(struct gw_engine *engine, const struct gw_weights *weights,
                                   const struct gw_config *config)
{
    engine->layers = calloc(config->layers, sizeof(*engine->layers));
    if (engine->layers == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < config->layers; i++) {
        PP_TRY(load_layer(engine, &weights->layers[i], &engine->layers[i]));
    }
    PP_TRY(load_matrix(engine, weights->embedding, &engine->embedding));
    PP_TRY(load_matrix(engine, weights->output, &engine->output));
    PP_TRY(load_vector(engine, weights->output_norm, &engine->output_norm));
    float inv_freq[PP_HEAD_DIM_MAX / 2];
    gw_weights_rope(weights, config, inv_freq);
    return gw_rope_init(&engine->rope, engine->device, inv_freq, config->head_dim,
                        config->rope_style == GW_ROPE_INTERLEAVED, engine->info.tokens_max);
}

static void load_info(struct gw_engine *engine, const struct gw_engine_config *options,
                      const struct gw_config *config)
{
    struct gw_engine_info *info = &engine->info;
    info->shape = (struct pp_shape){.layers = config->layers,
                                    .q_heads = config->q_heads,
                                    .kv_heads = config->kv_heads,
                                    .head_dim = config->head_dim,
                                    .scale = config->attention_scale,
                                    .kv_dtype = options->kv_dtype};
    info->vocab = config->vocab;
    info->hidden = config->hidden;
    info->context = config->context_length;
    info->tokens_max = options->tokens_max == 0 ? config->context_length : options->tokens_max;
    engine->heads = (struct gw_heads){config->q_heads, config->kv_heads, config->head_dim,
                                      config->attention_scale, options->kv_dtype};
    engine->ffn = config->ffn;
    engine->norm_epsilon = config->rms_eps;
}

enum pp_status gw_engine_load(struct gw_engine *engine, const struct gw_engine_config *config,
                              char *error_out, size_t error_bytes)
{
    struct gw_config model;
    struct gw_weights weights;
    PP_TRY(gw_config_read(config->gguf, error_out, error_bytes, &model));
    load_info(engine, config, &model);
    enum pp_status status = pp_shape_check(&engine->info.shape);
    if (status != PP_OK) {
        snprintf(error_out, error_bytes, "%u q heads, %u kv heads of %u dimensions: %s",
                 model.q_heads, model.kv_heads, model.head_dim, pp_status_name(status));
        return status;
    }
    PP_TRY(gw_weights_init(&weights, config->gguf, &model, error_out, error_bytes));
    status = load_weights(engine, &weights, &model);
    gw_weights_deinit(&weights);
    return status;
}
