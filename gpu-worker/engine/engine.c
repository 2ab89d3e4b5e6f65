/*
 * Opens and closes an engine: weights of a model file on a device, the tables of rotary angles and
 * all memory of a step, sized once. It refuses to know sequences.
 */
#include "gpu-worker/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "gpu-worker/engine/engine_state.h"
#include "gpu-worker/engine/load.h"

#define ENGINE_CHUNK_TOKENS 512u

/* One buffer of the step: where its pointer goes and how many floats it has. */
struct engine_buffer {
    float **memory;
    uint64_t count;
};

#define ENGINE_BUFFERS 19u

static void engine_buffers(struct gw_engine *engine, struct engine_buffer *buffers)
{
    const struct gw_heads *heads = &engine->heads;
    uint64_t rows = engine->chunk_rows, batch = GW_BATCH_MAX;
    uint64_t q_width = (uint64_t)heads->q_heads * heads->head_dim;
    uint64_t kv_width = (uint64_t)heads->kv_heads * heads->head_dim;
    const struct engine_buffer all[ENGINE_BUFFERS] = {
        {&engine->x, batch * engine->info.hidden},
        {&engine->normed, rows * engine->info.hidden},
        {&engine->q, rows * q_width},
        {&engine->o, rows * q_width},
        {&engine->k, rows * kv_width},
        {&engine->v, rows * kv_width},
        {&engine->gate, rows * engine->ffn},
        {&engine->up, rows * engine->ffn},
        {&engine->logits, (uint64_t)GW_LOGIT_ROWS * engine->info.vocab},
        {&engine->lse, batch * heads->q_heads},
        {&engine->node_o, batch * q_width},
        {&engine->node_lse, batch * heads->q_heads},
        {&engine->sent_q, batch * q_width},
        {&engine->answer_o, batch * q_width},
        {&engine->answer_lse, batch * heads->q_heads},
        {&engine->answer_var, batch * heads->q_heads},
        {&engine->answer_lse_var, batch * heads->q_heads},
        {&engine->local_o, batch * q_width},
        {&engine->local_lse, batch * heads->q_heads},
    };
    memcpy(buffers, all, sizeof(all));
}

/* The last seven are the host's, which copies run from and to. */
static bool engine_buffer_on_host(uint32_t index)
{
    return index >= ENGINE_BUFFERS - 7;
}

static enum pp_status engine_take_buffers(struct gw_engine *engine)
{
    struct engine_buffer buffers[ENGINE_BUFFERS];
    engine_buffers(engine, buffers);
    for (uint32_t i = 0; i < ENGINE_BUFFERS; i++) {
        void *memory = NULL;
        if (engine_buffer_on_host(i)) {
            PP_TRY(engine->device->ops->pinned_alloc(engine->device,
                                                     buffers[i].count * sizeof(float), &memory));
        } else {
            PP_TRY(engine->device->ops->alloc(engine->device, buffers[i].count * sizeof(float),
                                              &memory));
        }
        *buffers[i].memory = memory;
    }
    return PP_OK;
}

static void engine_free_buffers(struct gw_engine *engine)
{
    struct engine_buffer buffers[ENGINE_BUFFERS];
    engine_buffers(engine, buffers);
    for (uint32_t i = 0; i < ENGINE_BUFFERS; i++) {
        if (engine_buffer_on_host(i)) {
            engine->device->ops->pinned_free(engine->device, *buffers[i].memory);
        } else {
            engine->device->ops->free(engine->device, *buffers[i].memory);
        }
    }
}

static enum pp_status engine_prepare(struct gw_engine *engine)
{
    const struct gw_engine_info *info = &engine->info;
    uint32_t q_width = engine->heads.q_heads * engine->heads.head_dim;
    uint32_t columns = info->hidden > engine->ffn ? info->hidden : engine->ffn;
    struct gw_device_limits limits = {.columns_max = columns > q_width ? columns : q_width,
                                      .rows_max = engine->chunk_rows,
                                      .heads = engine->heads,
                                      .kv_tokens_max = info->tokens_max};
    uint64_t tokens = info->tokens_max < GW_BULK_TOKENS ? info->tokens_max : GW_BULK_TOKENS;
    limits.view_bytes = tokens * engine->heads.kv_heads *
                        pp_vector_bytes(engine->heads.head_dim, engine->heads.kv_dtype);
    PP_TRY(engine->device->ops->prepare(engine->device, &limits));
    PP_TRY(engine->device->ops->stream_new(engine->device, &engine->stream));
    PP_TRY(engine->device->ops->stream_new(engine->device, &engine->copy_stream));
    PP_TRY(engine->device->ops->event_new(engine->device, &engine->reached));
    PP_TRY(engine_take_buffers(engine));
    bool graphs = !engine->no_graphs && engine->device->ops->graph_new != NULL;
    return graphs ? gw_engine_graphs_new(engine) : PP_OK;
}

/* What this model is: nodes refuse parts of another one. The shape is compared by itself; this is
 * the sum over all weights. */
static void engine_fingerprint(struct gw_engine *engine, const struct gw_gguf *gguf)
{
    uint32_t crc = 0;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < gw_gguf_tensor_count(gguf); i++) {
        const struct gw_tensor *tensor = gw_gguf_tensor_at(gguf, i);
        crc = pp_crc32c(crc, tensor->name, strlen(tensor->name));
        crc = pp_crc32c(crc, tensor->data, tensor->bytes);
        bytes += tensor->bytes;
    }
    engine->info.weight_bytes = bytes;
    memcpy(engine->info.fingerprint, &crc, sizeof(crc));
    memcpy(engine->info.fingerprint + sizeof(crc), &bytes, sizeof(bytes));
    engine->info.fingerprint_bytes = sizeof(crc) + sizeof(bytes);
}

enum pp_status gw_engine_new(const struct gw_engine_config *config, char *error_out,
                             size_t error_bytes, struct gw_engine **engine_out)
{
    error_out[0] = '\0';
    struct gw_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return PP_MEMORY;
    }
    engine->device = config->device;
    engine->clock = config->clock;
    engine->no_graphs = config->no_graphs;
    gw_engine_stats_init(config->stats, &engine->stats);
    engine->chunk_tokens = config->chunk_tokens == 0 ? ENGINE_CHUNK_TOKENS : config->chunk_tokens;
    engine->chunk_rows = engine->chunk_tokens > GW_BATCH_MAX ? engine->chunk_tokens : GW_BATCH_MAX;
    gw_engine_micro_batches(engine, config->micro_batches);
    enum pp_status status = gw_engine_load(engine, config, error_out, error_bytes);
    if (status == PP_OK) {
        engine_fingerprint(engine, config->gguf);
        status = engine_prepare(engine);
    }
    if (status != PP_OK) {
        if (error_out[0] == '\0') {
            snprintf(error_out, error_bytes, "the model does not fit: %s", pp_status_name(status));
        }
        gw_engine_destroy(engine);
        return status;
    }
    *engine_out = engine;
    return PP_OK;
}

void gw_engine_destroy(struct gw_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    engine->device->ops->stream_destroy(engine->device, engine->copy_stream);
    engine->device->ops->stream_destroy(engine->device, engine->stream); /* nothing is under way */
    engine->device->ops->event_destroy(engine->device, engine->reached);
    gw_engine_graphs_destroy(engine);
    engine_free_buffers(engine);
    gw_rope_deinit(&engine->rope, engine->device);
    free(engine->balances_folder);
    free(engine->balances);
    free(engine->layers);
    free(engine);
}

void gw_engine_micro_batches(struct gw_engine *engine, uint32_t micro_batches)
{
    uint32_t of_device = engine->device->ops->queues ? 2 : 1;
    engine->micro_batches = micro_batches == 0 ? of_device : micro_batches;
}

void gw_engine_overlap(const struct gw_engine *engine, struct gw_overlap *out)
{
    *out = engine->overlap;
}

const struct gw_engine_info *gw_engine_info(const struct gw_engine *engine)
{
    return &engine->info;
}
