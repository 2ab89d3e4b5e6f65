/*
 * Handing a prefilled layer to the nodes with its segments' centres and signatures, so that they
 * need not hash. On the walk of a token's K/V: engine/prefill > here > remote/append. It refuses to
 * know which part a segment lies in.
 */
#include <stdlib.h>

#include "gpu-worker/engine/engine_state.h"

struct sign_memory {
    uint32_t tables; /* l of the layer */
    float *centre;   /* [kv head][dim] */
    uint16_t *codes; /* [GW_BULK_TOKENS][kv head][l] */
};

static enum pp_status sign_segment(struct gw_sequence *sequence, uint32_t layer,
                                   const struct pp_hash *hash, uint64_t begin, uint64_t end,
                                   const uint8_t *k, const uint8_t *v,
                                   const struct sign_memory *memory)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    struct gw_remote_segment segment = {.begin = begin,
                                        .count = (uint32_t)(end - begin),
                                        .centre = memory->centre,
                                        .codes = memory->codes};
    PP_TRY(ops->centre_keys(engine->device, engine->stream, &engine->heads,
                            k + begin * sequence->row_bytes, end - begin, memory->centre));
    for (uint64_t start = begin; start < end; start += GW_BULK_TOKENS) {
        uint64_t left = end - start;
        uint32_t count = left < GW_BULK_TOKENS ? (uint32_t)left : GW_BULK_TOKENS;
        uint64_t at = start * sequence->row_bytes;
        PP_TRY(ops->sign_keys(engine->device, engine->stream, &engine->heads, hash, memory->tables,
                              k + at, count, memory->centre, memory->codes));
        struct gw_host_rows rows;
        PP_TRY(gw_engine_view(engine, k + at, v + at, count * sequence->row_bytes, &rows));
        PP_TRY(gw_remote_append_signed(sequence->remote, layer, start, count, rows.k, rows.v,
                                       &segment));
    }
    return PP_OK;
}

enum pp_status gw_sequence_hand_over_signed(struct gw_sequence *sequence, uint32_t layer,
                                            const struct pp_hash *hash, uint64_t count,
                                            const void *k, const void *v)
{
    const struct gw_heads *heads = &sequence->engine->heads;
    uint32_t tables = gw_remote_estimator(sequence->remote, layer)->l;
    uint64_t codes = (uint64_t)GW_BULK_TOKENS * heads->kv_heads * tables;
    struct sign_memory memory = {.tables = tables,
                                 .centre =
                                     malloc(sizeof(float) * heads->kv_heads * heads->head_dim),
                                 .codes = malloc(codes * sizeof(uint16_t))};
    enum pp_status status = memory.centre == NULL || memory.codes == NULL ? PP_MEMORY : PP_OK;
    uint64_t end;
    for (uint64_t begin = 0; begin < count && status == PP_OK; begin = end) {
        end = gw_remote_segment_end(sequence->remote, begin, count);
        status = sign_segment(sequence, layer, hash, begin, end, k, v, &memory);
    }
    free(memory.codes);
    free(memory.centre);
    return status;
}
