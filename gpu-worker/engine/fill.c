/*
 * A sequence that starts with K/V that was not computed here. On the walk of a token's K/V: from
 * somebody's rows > engine/sequence > remote/outbox, where a prefill would have it from ops. It
 * refuses to know where the rows come from.
 */
#include <stdlib.h>
#include <string.h>

#include "gpu-worker/engine/engine_state.h"

/* A fill that loses a node each time it starts again gives up. */
#define FILL_TRIES_MAX 8u

struct fill {
    struct gw_sequence *sequence;
    const struct gw_fill *from;
    uint64_t leaving; /* tokens behind the sink that go to the nodes */
    void *k, *v;      /* [GW_BULK_TOKENS] rows on the host */
};

static enum pp_status fill_report(const struct fill *fill, enum gw_phase phase, uint64_t done,
                                  uint64_t total)
{
    const struct gw_fill *from = fill->from;
    bool go_on =
        from->progress == NULL || from->progress(from->progress_context, phase, done, total);
    return go_on ? PP_OK : PP_CANCELLED;
}

/* Rows that stay: `row` is where they lie among those that are here. */
static enum pp_status fill_here(struct fill *fill, uint32_t layer, uint64_t start, uint32_t count,
                                uint64_t row)
{
    struct gw_sequence *sequence = fill->sequence;
    struct gw_engine *engine = sequence->engine;
    const struct gw_device_ops *ops = engine->device->ops;
    struct gw_sequence_layer *kept = &sequence->layers[layer];
    uint64_t at = row * sequence->row_bytes, bytes = count * sequence->row_bytes;
    PP_TRY(fill->from->rows(fill->from->context, layer, start, count, fill->k, fill->v));
    PP_TRY(ops->copy_in(engine->device, engine->stream, (uint8_t *)kept->k + at, fill->k, bytes));
    PP_TRY(ops->copy_in(engine->device, engine->stream, (uint8_t *)kept->v + at, fill->v, bytes));
    return ops->synchronize(engine->device, engine->stream); /* k and v are filled again */
}

static enum pp_status fill_there(struct fill *fill, uint32_t layer, uint64_t start, uint32_t count)
{
    PP_TRY(fill->from->rows(fill->from->context, layer, start, count, fill->k, fill->v));
    return gw_remote_append(fill->sequence->remote, layer, start - PP_SINK_TOKENS, count, fill->k,
                            fill->v, true);
}

static enum pp_status fill_balance(struct fill *fill, uint32_t layer)
{
    const struct gw_heads *heads = &fill->sequence->engine->heads;
    if (!gw_sequence_balances(fill->sequence, layer) || fill->from->balances == NULL ||
        fill->leaving == 0) {
        return PP_OK;
    }
    uint64_t at = (uint64_t)layer * heads->kv_heads * heads->head_dim;
    return gw_remote_balance(fill->sequence->remote, layer, fill->from->balances + at);
}

static bool fill_indexed(void *context, uint64_t indexed, uint64_t total)
{
    return fill_report(context, GW_PHASE_INDEX, indexed, total) == PP_OK;
}

/* The sink, what leaves, and the rest, each in pieces of at most GW_BULK_TOKENS. */
static enum pp_status fill_layer(struct fill *fill, uint32_t layer)
{
    const struct gw_engine_info *info = &fill->sequence->engine->info;
    uint64_t count = fill->from->count;
    uint64_t sink = count < PP_SINK_TOKENS ? count : PP_SINK_TOKENS;
    const uint64_t borders[3] = {sink, sink + fill->leaving, count};
    uint64_t start = 0;
    PP_TRY(fill_balance(fill, layer));
    for (uint32_t piece = 0; piece < 3; piece++) {
        while (start < borders[piece]) {
            uint64_t left = borders[piece] - start;
            uint32_t rows = left < GW_BULK_TOKENS ? (uint32_t)left : GW_BULK_TOKENS;
            if (piece == 1) {
                PP_TRY(fill_there(fill, layer, start, rows));
            } else {
                uint64_t row = piece == 0 ? start : start - fill->leaving;
                PP_TRY(fill_here(fill, layer, start, rows, row));
            }
            start += rows;
            PP_TRY(fill_report(fill, GW_PHASE_FILL, layer * count + start,
                               info->shape.layers * count));
        }
    }
    return PP_OK;
}

static enum pp_status fill_run(struct fill *fill)
{
    struct gw_sequence *sequence = fill->sequence;
    uint64_t bytes = GW_BULK_TOKENS * sequence->row_bytes;
    fill->k = malloc(bytes);
    fill->v = malloc(bytes);
    if (fill->k == NULL || fill->v == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t layer = 0; layer < sequence->engine->info.shape.layers; layer++) {
        PP_TRY(fill_layer(fill, layer));
    }
    sequence->length = fill->from->count;
    sequence->handed = fill->leaving;
    sequence->dropped = fill->leaving;
    if (sequence->ids != NULL && fill->from->ids != NULL) {
        memcpy(sequence->ids, fill->from->ids, fill->from->count * sizeof(*sequence->ids));
        sequence->ids_known = fill->from->count;
    }
    return fill->leaving == 0 ? PP_OK : gw_remote_seal(sequence->remote, fill_indexed, fill);
}

enum pp_status gw_sequence_fill(struct gw_sequence *sequence, const struct gw_fill *from)
{
    if (sequence->broken || sequence->length != 0) {
        return PP_FAILED_PRECONDITION;
    }
    if (from->count == 0 || from->count > sequence->tokens_expected) {
        return PP_OUT_OF_RANGE;
    }
    struct fill fill = {
        .sequence = sequence, .from = from, .leaving = gw_sequence_leaving(sequence, from->count)};
    enum pp_status status = fill_run(&fill);
    for (uint32_t i = 0; i < FILL_TRIES_MAX && status != PP_OK && sequence->remote != NULL &&
                         gw_remote_recoverable(sequence->remote);
         i++) {
        free(fill.v);
        free(fill.k);
        fill.k = fill.v = NULL;
        status = gw_remote_sequence_reopen(&sequence->remote);
        status = status == PP_OK ? fill_run(&fill) : status;
    }
    sequence->broken = status != PP_OK;
    free(fill.v);
    free(fill.k);
    return status;
}
