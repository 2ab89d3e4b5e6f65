/*
 * A sequence's mark: what it takes to be that short again. Rows that nodes hold are cut there; the
 * rows that were here are kept beside, for they leave or are overwritten as steps go on. On the
 * walk: beside sequence. It refuses to know why somebody goes back.
 */
#include <stdlib.h>

#include "gpu-worker/engine/engine_state.h"

void gw_mark_deinit(struct gw_sequence *sequence)
{
    struct gw_device *device = sequence->engine->device;
    struct gw_mark *mark = &sequence->mark;
    (void)device->ops->synchronize(device, sequence->engine->stream); /* copies may be under way */
    for (uint32_t i = 0; mark->layers != NULL && i < sequence->engine->info.shape.layers; i++) {
        device->ops->free(device, mark->layers[i].v);
        device->ops->free(device, mark->layers[i].k);
    }
    free(mark->layers);
    *mark = (struct gw_mark){0};
}

/* Copies the mark's rows of every layer out of the sequence, or back into it. */
static enum pp_status mark_copy(struct gw_sequence *sequence, bool back)
{
    struct gw_device *device = sequence->engine->device;
    struct gw_stream *stream = sequence->engine->stream;
    const struct gw_mark *mark = &sequence->mark;
    uint64_t bytes = (mark->length - mark->dropped) * sequence->row_bytes;
    for (uint32_t i = 0; i < sequence->engine->info.shape.layers; i++) {
        struct gw_sequence_layer *to = back ? &sequence->layers[i] : &mark->layers[i];
        struct gw_sequence_layer *from = back ? &mark->layers[i] : &sequence->layers[i];
        PP_TRY(device->ops->copy_within(device, stream, to->k, from->k, bytes));
        PP_TRY(device->ops->copy_within(device, stream, to->v, from->v, bytes));
    }
    return PP_OK;
}

static enum pp_status mark_take_rows(struct gw_sequence *sequence)
{
    struct gw_device *device = sequence->engine->device;
    struct gw_mark *mark = &sequence->mark;
    uint32_t layers = sequence->engine->info.shape.layers;
    uint64_t bytes = (mark->length - mark->dropped) * sequence->row_bytes;
    mark->layers = calloc(layers, sizeof(*mark->layers));
    if (mark->layers == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < layers; i++) {
        PP_TRY(device->ops->alloc(device, bytes, &mark->layers[i].k));
        PP_TRY(device->ops->alloc(device, bytes, &mark->layers[i].v));
    }
    return mark_copy(sequence, false);
}

enum pp_status gw_sequence_mark(struct gw_sequence *sequence, uint64_t length)
{
    uint64_t gone = sequence->handed == 0 ? 0 : PP_SINK_TOKENS + sequence->handed;
    if (sequence->broken) {
        return PP_FAILED_PRECONDITION;
    }
    if (length > sequence->length || length < gone) {
        return PP_OUT_OF_RANGE;
    }
    gw_mark_deinit(sequence);
    sequence->mark = (struct gw_mark){
        .set = true, .length = length, .handed = sequence->handed, .dropped = sequence->dropped};
    enum pp_status status = sequence->remote == NULL ? PP_OK : mark_take_rows(sequence);
    if (status != PP_OK) {
        gw_mark_deinit(sequence);
    }
    return status;
}

static enum pp_status rewind_rows(struct gw_sequence *sequence)
{
    uint64_t cut = sequence->mark.handed;
    if (sequence->handed > cut) {
        enum pp_status status = gw_remote_truncate(sequence->remote, cut);
        if (status != PP_OK) {
            PP_TRY(gw_sequence_recover(sequence, status, cut));
        }
    }
    return mark_copy(sequence, true);
}

enum pp_status gw_sequence_rewind(struct gw_sequence *sequence)
{
    const struct gw_mark *mark = &sequence->mark;
    if (sequence->broken || !mark->set) {
        return PP_FAILED_PRECONDITION;
    }
    enum pp_status status = sequence->remote == NULL ? PP_OK : rewind_rows(sequence);
    if (status != PP_OK) {
        sequence->broken = true;
        return status;
    }
    sequence->length = mark->length;
    sequence->handed = mark->handed;
    sequence->dropped = mark->dropped;
    return PP_OK;
}
