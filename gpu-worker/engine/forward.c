/*
 * The parts of a layer that prefill and step share: queries, keys and values, the output projection
 * and the feed-forward (Llama block: Touvron et al., arXiv 2302.13971), and the logits. On the
 * walk: engine/step > ops > device. It refuses to know where K/V is kept.
 */
#include "common/base/assert.h"
#include "gpu-worker/engine/engine_state.h"

static enum pp_status forward_project(struct gw_engine *engine, const struct gw_matrix *matrix,
                                      const float *bias, uint32_t rows, float *out)
{
    const struct gw_device_ops *ops = engine->device->ops;
    PP_TRY(ops->linear(engine->device, engine->stream, matrix, engine->normed, rows, false, out));
    if (bias != NULL) {
        PP_TRY(ops->add_bias(engine->device, engine->stream, bias, rows, matrix->rows, out));
    }
    return PP_OK;
}

enum pp_status gw_engine_queries(struct gw_engine *engine, const struct gw_layer *layer,
                                 uint64_t position, uint32_t rows)
{
    PP_TRY(forward_project(engine, &layer->q, layer->q_bias, rows, engine->q));
    return engine->device->ops->rope(engine->device, engine->stream, &engine->rope, position, rows,
                                     engine->heads.q_heads, engine->heads.head_dim, engine->q);
}

enum pp_status gw_engine_keys_values(struct gw_engine *engine, const struct gw_layer *layer,
                                     uint64_t position, uint32_t rows, void *k_out, void *v_out)
{
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_heads *heads = &engine->heads;
    uint64_t count = (uint64_t)rows * heads->kv_heads;
    uint32_t dim = heads->head_dim;
    PP_TRY(forward_project(engine, &layer->k, layer->k_bias, rows, engine->k));
    PP_TRY(ops->rope(engine->device, engine->stream, &engine->rope, position, rows, heads->kv_heads,
                     heads->head_dim, engine->k));
    PP_TRY(ops->to_dtype(engine->device, engine->stream, heads->kv_dtype, dim, engine->k, count,
                         k_out));
    PP_TRY(forward_project(engine, &layer->v, layer->v_bias, rows, engine->v));
    return ops->to_dtype(engine->device, engine->stream, heads->kv_dtype, dim, engine->v, count,
                         v_out);
}

enum pp_status gw_engine_finish_stage(struct gw_engine *engine, const struct gw_layer *layer,
                                      uint32_t rows, const float *o, float *x, uint32_t stage)
{
    const struct gw_device_ops *ops = engine->device->ops;
    struct gw_device *device = engine->device;
    struct gw_stream *stream = engine->stream;
    switch (stage) {
    case 0:
        PP_TRY(ops->linear(device, stream, &layer->o, o, rows, false, engine->normed));
        return ops->add_rms_norm(device, stream, engine->normed, layer->ffn_norm,
                                 engine->norm_epsilon, rows, engine->info.hidden, x,
                                 engine->normed);
    case 1:
        return forward_project(engine, &layer->gate, NULL, rows, engine->gate);
    case 2:
        PP_TRY(forward_project(engine, &layer->up, NULL, rows, engine->up));
        return ops->swiglu(device, stream, engine->gate, engine->up, (uint64_t)rows * engine->ffn,
                           engine->gate);
    default:
        return ops->linear(device, stream, &layer->down, engine->gate, rows, true, x);
    }
}

enum pp_status gw_engine_finish_layer(struct gw_engine *engine, const struct gw_layer *layer,
                                      uint32_t rows, const float *o, float *x)
{
    for (uint32_t stage = 0; stage < GW_FINISH_STAGES; stage++) {
        PP_TRY(gw_engine_finish_stage(engine, layer, rows, o, x, stage));
    }
    return PP_OK;
}

enum pp_status gw_engine_queries_each(struct gw_engine *engine, const struct gw_layer *layer,
                                      const struct gw_place *places, uint32_t rows)
{
    const struct gw_heads *heads = &engine->heads;
    uint64_t width = (uint64_t)heads->q_heads * heads->head_dim;
    PP_TRY(forward_project(engine, &layer->q, layer->q_bias, rows, engine->q));
    for (uint32_t row = 0; row < rows; row++) {
        PP_TRY(engine->device->ops->rope(engine->device, engine->stream, &engine->rope,
                                         places[row].position, 1, heads->q_heads, heads->head_dim,
                                         engine->q + row * width));
    }
    return PP_OK;
}

enum pp_status gw_engine_keys_values_each(struct gw_engine *engine, const struct gw_layer *layer,
                                          const struct gw_place *places, uint32_t rows)
{
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_heads *heads = &engine->heads;
    uint32_t dim = heads->head_dim;
    void *k[GW_BATCH_MAX], *v[GW_BATCH_MAX];
    PP_ASSERT(rows <= GW_BATCH_MAX);
    PP_TRY(forward_project(engine, &layer->k, layer->k_bias, rows, engine->k));
    PP_TRY(forward_project(engine, &layer->v, layer->v_bias, rows, engine->v));
    for (uint32_t row = 0; row < rows; row++) {
        k[row] = places[row].k;
        v[row] = places[row].v;
        if (k[row] != NULL) {
            PP_TRY(ops->rope(engine->device, engine->stream, &engine->rope, places[row].position, 1,
                             heads->kv_heads, dim,
                             engine->k + (uint64_t)row * heads->kv_heads * dim));
        }
    }
    PP_TRY(ops->scatter_rows(engine->device, engine->stream, heads->kv_dtype, dim, engine->k, rows,
                             heads->kv_heads, k));
    return ops->scatter_rows(engine->device, engine->stream, heads->kv_dtype, dim, engine->v, rows,
                             heads->kv_heads, v);
}

enum pp_status gw_engine_logits_here(struct gw_engine *engine, const float *x, uint32_t rows)
{
    PP_TRY(engine->device->ops->rms_norm(engine->device, engine->stream, x, engine->output_norm,
                                         engine->norm_epsilon, rows, engine->info.hidden,
                                         engine->normed));
    return forward_project(engine, &engine->output, NULL, rows, engine->logits);
}

enum pp_status gw_engine_logits_each(struct gw_engine *engine, const float *x,
                                     const struct gw_place *places, uint32_t rows)
{
    const struct gw_device_ops *ops = engine->device->ops;
    uint64_t vocab = engine->info.vocab;
    bool any = false;
    PP_TRY(gw_engine_logits_here(engine, x, rows));
    for (uint32_t row = 0; row < rows; row++) {
        any = any || places[row].logits != NULL;
        if (places[row].logits != NULL) {
            PP_TRY(ops->copy_out(engine->device, engine->stream, places[row].logits,
                                 engine->logits + row * vocab, vocab * sizeof(float)));
        }
    }
    return any ? ops->synchronize(engine->device, engine->stream) : PP_OK;
}

enum pp_status gw_engine_logits(struct gw_engine *engine, const float *x, uint32_t rows,
                                float *logits_out)
{
    const struct gw_device_ops *ops = engine->device->ops;
    uint64_t hidden = engine->info.hidden;
    const float *last = x + (rows - 1) * hidden;
    if (last != engine->x) {
        PP_TRY(ops->copy_within(engine->device, engine->stream, engine->x, last,
                                hidden * sizeof(float)));
    }
    for (uint32_t row = 0; logits_out != NULL && row < rows; row += GW_LOGIT_ROWS) {
        struct gw_place places[GW_LOGIT_ROWS] = {{0}};
        uint32_t count = rows - row < GW_LOGIT_ROWS ? rows - row : GW_LOGIT_ROWS;
        for (uint32_t i = 0; i < count; i++) {
            places[i].logits = logits_out + (uint64_t)(row + i) * engine->info.vocab;
        }
        PP_TRY(gw_engine_logits_each(engine, x + row * hidden, places, count));
    }
    return PP_OK;
}
