/*
 * A sequence's rows, wherever they are: the sink and the newest ones here, the others on the nodes.
 * The walk of a token's K/V backwards. It refuses to know what rows are read for.
 */
#include "gpu-worker/engine/engine_state.h"

/* A read that loses a node each time gives up. */
#define READ_RECOVERIES_MAX 8u

/* Rows that are here; `row` is where they lie. */
static enum pp_status read_here(struct gw_sequence *sequence, uint32_t layer, uint64_t row,
                                uint64_t count, uint8_t *k_out, uint8_t *v_out)
{
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    const struct gw_sequence_layer *kept = &sequence->layers[layer];
    uint64_t at = row * sequence->row_bytes, bytes = count * sequence->row_bytes;
    PP_TRY(
        ops->copy_out(engine->device, engine->stream, k_out, (const uint8_t *)kept->k + at, bytes));
    return ops->copy_out(engine->device, engine->stream, v_out, (const uint8_t *)kept->v + at,
                         bytes);
}

/* Rows that nodes have, counted behind the sink; what is lost with a node meanwhile comes back
 * first. */
static enum pp_status read_there(struct gw_sequence *sequence, uint32_t layer, uint64_t start,
                                 uint32_t count, uint8_t *k_out, uint8_t *v_out)
{
    enum pp_status status;
    uint32_t recoveries = 0;
    while ((status = gw_remote_read(sequence->remote, layer, start, count, k_out, v_out)) !=
           PP_OK) {
        PP_TRY(recoveries++ == READ_RECOVERIES_MAX
                   ? status
                   : gw_sequence_recover(sequence, status, UINT64_MAX));
    }
    return PP_OK;
}

enum pp_status gw_sequence_read(struct gw_sequence *sequence, uint32_t layer, uint64_t start,
                                uint32_t count, void *k_out, void *v_out)
{
    if (sequence->broken) {
        return PP_FAILED_PRECONDITION;
    }
    if (layer >= sequence->engine->info.shape.layers || count == 0 || count > GW_BULK_TOKENS ||
        start > sequence->length || count > sequence->length - start) {
        return PP_OUT_OF_RANGE;
    }
    uint64_t gone = PP_SINK_TOKENS + sequence->dropped, end = start + count;
    const uint64_t borders[3] = {PP_SINK_TOKENS, gone, end};
    for (uint32_t piece = 0; piece < 3 && start < end; piece++) {
        uint64_t border = borders[piece] < end ? borders[piece] : end;
        if (border <= start) {
            continue;
        }
        uint64_t at = (count - (end - start)) * sequence->row_bytes;
        uint8_t *k = (uint8_t *)k_out + at, *v = (uint8_t *)v_out + at;
        if (piece == 1) {
            PP_TRY(read_there(sequence, layer, start - PP_SINK_TOKENS, (uint32_t)(border - start),
                              k, v));
        } else {
            uint64_t row = piece == 0 ? start : start - sequence->dropped;
            PP_TRY(read_here(sequence, layer, row, border - start, k, v));
        }
        start = border;
    }
    return sequence->engine->device->ops->synchronize(sequence->engine->device,
                                                      sequence->engine->stream);
}

const float *gw_sequence_balance_of(const struct gw_sequence *sequence, uint32_t layer)
{
    return sequence->remote == NULL ? NULL : gw_remote_balance_of(sequence->remote, layer);
}
