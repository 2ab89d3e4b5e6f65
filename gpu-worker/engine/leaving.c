/*
 * Prefilled layers leave beside the next one's computing: pieces, the events around them, and their
 * signatures. On the walk of a token's K/V: engine/prefill > here > remote/outbox. It refuses to
 * know which part a row lies in, and when a layer is computed.
 */
#include "gpu-worker/engine/leaving.h"

#include <stdlib.h>
#include <string.h>

static const struct gw_device_ops *ops_of(const struct gw_leaving *leaving)
{
    return leaving->sequence->engine->device->ops;
}

static struct gw_device *device_of(const struct gw_leaving *leaving)
{
    return leaving->sequence->engine->device;
}

enum pp_status gw_leaving_init(struct gw_sequence *sequence, struct gw_leaving *leaving_out)
{
    *leaving_out =
        (struct gw_leaving){.sequence = sequence, .stream = sequence->engine->copy_stream};
    const struct gw_device_ops *ops = ops_of(leaving_out);
    struct gw_device *device = device_of(leaving_out);
    leaving_out->slots = ops->queues ? GW_LEAVING_PIECES : 1;
    PP_TRY(ops->event_new(device, &leaving_out->computed));
    PP_TRY(ops->event_new(device, &leaving_out->copied));
    for (uint32_t i = 0; i < GW_LEAVING_PIECES; i++) {
        PP_TRY(ops->event_new(device, &leaving_out->pieces[i].done));
    }
    return PP_OK;
}

enum pp_status gw_leaving_drop(struct gw_leaving *leaving)
{
    leaving->used = 0;
    leaving->next = leaving->count = 0;
    return ops_of(leaving)->synchronize(device_of(leaving), leaving->stream);
}

void gw_leaving_deinit(struct gw_leaving *leaving)
{
    if (leaving->sequence == NULL) {
        return;
    }
    const struct gw_device_ops *ops = ops_of(leaving);
    struct gw_device *device = device_of(leaving);
    (void)gw_leaving_drop(leaving); /* the next wait of the stream says what failed */
    for (uint32_t i = 0; i < GW_LEAVING_PIECES; i++) {
        ops->event_destroy(device, leaving->pieces[i].done);
        free(leaving->pieces[i].codes);
        free(leaving->pieces[i].centre);
    }
    ops->event_destroy(device, leaving->copied);
    ops->event_destroy(device, leaving->computed);
    memset(leaving, 0, sizeof(*leaving));
}

/* Memory of a piece for signatures of the layer at hand. */
static enum pp_status piece_reserve(const struct gw_leaving *leaving,
                                    struct gw_leaving_piece *piece, uint32_t tables)
{
    const struct gw_heads *heads = &leaving->sequence->engine->heads;
    if (piece->centre == NULL) {
        piece->centre = malloc(sizeof(float) * heads->kv_heads * heads->head_dim);
    }
    if (piece->codes_tables < tables) {
        free(piece->codes);
        piece->codes = malloc(sizeof(uint16_t) * GW_BULK_TOKENS * heads->kv_heads * tables);
        piece->codes_tables = piece->codes == NULL ? 0 : tables;
    }
    return piece->centre == NULL || piece->codes == NULL ? PP_MEMORY : PP_OK;
}

/* The centre of the segment that the piece begins, or that of the piece before, and its codes. Both
 * are in host memory when the calls return: they wait for the stream of the copies only. */
static enum pp_status piece_sign(struct gw_leaving *leaving, struct gw_leaving_piece *piece)
{
    struct gw_sequence *sequence = leaving->sequence;
    const struct gw_device_ops *ops = ops_of(leaving);
    const struct gw_heads *heads = &sequence->engine->heads;
    uint32_t tables = gw_remote_estimator(sequence->remote, leaving->layer)->l;
    const struct gw_leaving_piece *before =
        &leaving->pieces[(piece - leaving->pieces + leaving->slots - 1) % leaving->slots];
    uint64_t tokens = leaving->segment_end - leaving->segment_begin;
    PP_TRY(piece_reserve(leaving, piece, tables));
    if (piece->start == leaving->segment_begin) {
        PP_TRY(ops->centre_keys(device_of(leaving), leaving->stream, heads,
                                leaving->k + piece->start * sequence->row_bytes, tokens,
                                piece->centre));
    } else if (before != piece) {
        memcpy(piece->centre, before->centre, sizeof(float) * heads->kv_heads * heads->head_dim);
    }
    piece->segment = (struct gw_remote_segment){.begin = leaving->segment_begin,
                                                .count = (uint32_t)tokens,
                                                .centre = piece->centre,
                                                .codes = piece->codes};
    return ops->sign_keys(device_of(leaving), leaving->stream, heads, leaving->hash, tables,
                          leaving->k + piece->start * sequence->row_bytes, piece->count,
                          piece->centre, piece->codes);
}

/* The next piece of the layer, on its way. There is room for it. */
static enum pp_status piece_send(struct gw_leaving *leaving)
{
    struct gw_sequence *sequence = leaving->sequence;
    const struct gw_device_ops *ops = ops_of(leaving);
    uint32_t at = (leaving->first + leaving->used) % leaving->slots;
    struct gw_leaving_piece *piece = &leaving->pieces[at];
    if (leaving->hash != NULL && leaving->next == leaving->segment_end) {
        leaving->segment_begin = leaving->next;
        leaving->segment_end =
            gw_remote_segment_end(sequence->remote, leaving->next, leaving->count);
    }
    uint64_t end = leaving->hash != NULL ? leaving->segment_end : leaving->count;
    uint64_t left = end - leaving->next, offset = leaving->next * sequence->row_bytes;
    piece->layer = leaving->layer;
    piece->start = leaving->next;
    piece->count = left < GW_BULK_TOKENS ? (uint32_t)left : GW_BULK_TOKENS;
    piece->is_signed = leaving->hash != NULL;
    if (piece->is_signed) {
        PP_TRY(piece_sign(leaving, piece));
    }
    uint64_t bytes = piece->count * sequence->row_bytes;
    PP_TRY(ops->view(device_of(leaving), leaving->stream, 2 * at, leaving->k + offset, bytes,
                     &piece->k));
    PP_TRY(ops->view(device_of(leaving), leaving->stream, 2 * at + 1, leaving->v + offset, bytes,
                     &piece->v));
    PP_TRY(ops->event_record(device_of(leaving), piece->done, leaving->stream));
    leaving->next += piece->count;
    leaving->used += 1;
    sequence->engine->overlap.pieces += 1;
    sequence->engine->overlap.pieces_beside += leaving->beside ? 1 : 0;
    return PP_OK;
}

/* The oldest piece on its way goes to the remote. */
static enum pp_status piece_take(struct gw_leaving *leaving)
{
    struct gw_engine *engine = leaving->sequence->engine;
    struct gw_remote_sequence *remote = leaving->sequence->remote;
    const struct gw_leaving_piece *piece = &leaving->pieces[leaving->first];
    uint64_t begin_us = pp_clock_now_us(&engine->clock);
    PP_TRY(ops_of(leaving)->event_synchronize(device_of(leaving), piece->done));
    engine->overlap.copy_wait_us += pp_clock_now_us(&engine->clock) - begin_us;
    leaving->first = (leaving->first + 1) % leaving->slots;
    leaving->used -= 1;
    return piece->is_signed
               ? gw_remote_append_signed(remote, piece->layer, piece->start, piece->count, piece->k,
                                         piece->v, &piece->segment)
               : gw_remote_append(remote, piece->layer, piece->start, piece->count, piece->k,
                                  piece->v, true);
}

/* What is left of the layer at hand is on its way. */
static enum pp_status layer_send(struct gw_leaving *leaving)
{
    while (leaving->next < leaving->count) {
        if (leaving->used == leaving->slots) {
            PP_TRY(piece_take(leaving));
        }
        PP_TRY(piece_send(leaving));
    }
    return PP_OK;
}

enum pp_status gw_leaving_begin(struct gw_leaving *leaving, uint32_t layer, const void *k,
                                const void *v, uint64_t count)
{
    struct gw_sequence *sequence = leaving->sequence;
    struct gw_stream *computes = sequence->engine->stream;
    const struct gw_device_ops *ops = ops_of(leaving);
    struct gw_device *device = device_of(leaving);
    PP_TRY(layer_send(leaving));
    PP_TRY(ops->event_record(device, leaving->copied, leaving->stream));
    PP_TRY(ops->event_wait(device, leaving->copied, computes));
    PP_TRY(ops->event_record(device, leaving->computed, computes));
    PP_TRY(ops->event_wait(device, leaving->computed, leaving->stream));
    leaving->layer = layer;
    leaving->hash = sequence->signatures ? gw_remote_hash(sequence->remote, layer) : NULL;
    leaving->k = k;
    leaving->v = v;
    leaving->count = count;
    leaving->next = leaving->segment_begin = leaving->segment_end = 0;
    leaving->beside = false;
    return ops->queues ? PP_OK : gw_leaving_finish(leaving);
}

enum pp_status gw_leaving_go_on(struct gw_leaving *leaving)
{
    const struct gw_device_ops *ops = ops_of(leaving);
    struct gw_device *device = device_of(leaving);
    leaving->beside = true;
    while (leaving->used > 0 && ops->event_done(device, leaving->pieces[leaving->first].done)) {
        PP_TRY(piece_take(leaving));
    }
    /* Signing waits for its result: it is begun when it can be. */
    bool can = leaving->hash == NULL || ops->event_done(device, leaving->computed);
    while (can && leaving->next < leaving->count && leaving->used < leaving->slots) {
        PP_TRY(piece_send(leaving));
    }
    return PP_OK;
}

enum pp_status gw_leaving_finish(struct gw_leaving *leaving)
{
    PP_TRY(layer_send(leaving));
    while (leaving->used > 0) {
        PP_TRY(piece_take(leaving));
    }
    return PP_OK;
}
