/*
 * Calls that go to every part of a sequence: seal and truncate, and the engine's view of an index
 * being built. On the walk beside remote/outbox. It refuses to know the model and the tokens.
 */
#include <stdlib.h>

#include "gpu-worker/remote/budget.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/part.h"
#include "gpu-worker/remote/refill.h"

#define SERVICE "/pigpen.v1.AttentionService/"
/* How often the nodes are asked how far their indexes are, and how long nothing may change. */
#define PROGRESS_PERIOD_US 20000u
#define PROGRESS_STALL_US  60000000ull

struct index_progress {
    uint64_t indexed, total;
};

void gw_part_ref(const struct gw_part *part, Pigpen__V1__PartRef *ref_out)
{
    pigpen__v1__part_ref__init(ref_out);
    ref_out->handle = part->handle;
    ref_out->incarnation = part->incarnation;
    ref_out->generation = part->sequence->generation;
}

/* Starts one call a part and node by `start`, waits for all. A part whose call failed is lost to
 * that node. */
static enum pp_status call_parts(struct gw_remote_sequence *sequence, const char *what,
                                 enum pp_status (*start)(struct gw_part *part,
                                                         struct gw_unary *unary, void *context),
                                 void *context)
{
    PP_TRY(gw_sequence_failed(sequence));
    uint32_t count = sequence->part_count;
    struct gw_unary *unaries = calloc(count, sizeof(*unaries));
    if (unaries == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < count && status == PP_OK; ++i) {
        if (!atomic_load(&sequence->parts[i]->lost)) {
            status = start(sequence->parts[i], &unaries[i], context);
        }
    }
    (void)gw_unary_wait(sequence->remote, unaries, count);
    for (uint32_t i = 0; i < count; ++i) {
        if (unaries[i].status != PP_OK) {
            gw_part_fail_from_engine(sequence->parts[i], unaries[i].status, what,
                                     unaries[i].message);
        }
        gw_unary_deinit(&unaries[i]);
    }
    free(unaries);
    enum pp_status failed = gw_sequence_failed(sequence);
    return failed != PP_OK ? failed : status;
}

static enum pp_status take_sealed(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__SealPartResponse *answer = (const void *)message;
    const struct gw_part *part = unary->context;
    return answer->incarnation == part->incarnation ? PP_OK : PP_INCARNATION_CHANGED;
}

static enum pp_status start_seal(struct gw_part *part, struct gw_unary *unary, void *context)
{
    Pigpen__V1__PartRef ref;
    Pigpen__V1__SealPartRequest request = PIGPEN__V1__SEAL_PART_REQUEST__INIT;
    (void)context;
    gw_part_ref(part, &ref);
    request.part = &ref;
    return gw_unary_start(unary, part->node, SERVICE "SealPart",
                          part->sequence->remote->config.call_timeout_us, &request.base,
                          &pigpen__v1__seal_part_response__descriptor, take_sealed, part);
}

enum pp_status gw_part_seal(struct gw_part *part)
{
    struct gw_unary unary = {0};
    if (!pp_estimators_sample(&part->sequence->estimators)) {
        return PP_OK;
    }
    PP_TRY(start_seal(part, &unary, NULL));
    enum pp_status status = gw_unary_wait(part->sequence->remote, &unary, 1);
    gw_unary_deinit(&unary);
    return status;
}

static enum pp_status take_progress(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__GetPartResponse *answer = (const void *)message;
    struct index_progress *progress = unary->context;
    if (answer->part == NULL) {
        return PP_INTERNAL;
    }
    for (size_t i = 0; i < answer->part->n_layers; ++i) {
        progress->indexed += answer->part->layers[i]->settled_tokens;
        progress->total += answer->part->layers[i]->sealed_tokens;
    }
    return PP_OK;
}

static enum pp_status start_progress(struct gw_part *part, struct gw_unary *unary, void *context)
{
    Pigpen__V1__PartRef ref;
    Pigpen__V1__GetPartRequest request = PIGPEN__V1__GET_PART_REQUEST__INIT;
    gw_part_ref(part, &ref);
    request.part = &ref;
    return gw_unary_start(unary, part->node, SERVICE "GetPart",
                          part->sequence->remote->config.call_timeout_us, &request.base,
                          &pigpen__v1__get_part_response__descriptor, take_progress, context);
}

enum pp_status gw_remote_seal_begin(struct gw_remote_sequence *sequence)
{
    PP_TRY(gw_remote_flush(sequence));
    return call_parts(sequence, "seal", start_seal, NULL);
}

enum pp_status gw_remote_seal(struct gw_remote_sequence *sequence,
                              bool (*progress)(void *context, uint64_t indexed, uint64_t total),
                              void *context)
{
    struct gw_remote *remote = sequence->remote;
    PP_TRY(gw_remote_seal_begin(sequence));
    uint64_t changed_us = gw_remote_now(remote), last = 0;
    for (;;) {
        struct index_progress now = {0};
        PP_TRY(call_parts(sequence, "index progress", start_progress, &now));
        if (progress != NULL && !progress(context, now.indexed, now.total)) {
            return PP_CANCELLED;
        }
        if (now.indexed >= now.total || !pp_estimators_sample(&sequence->estimators)) {
            return PP_OK;
        }
        uint64_t now_us = gw_remote_now(remote);
        changed_us = now.indexed != last ? now_us : changed_us;
        last = now.indexed;
        if (now_us - changed_us >= PROGRESS_STALL_US) {
            return PP_DEADLINE_EXCEEDED;
        }
        while (gw_remote_now(remote) < now_us + PROGRESS_PERIOD_US) {
            gw_remote_pause(remote, now_us + PROGRESS_PERIOD_US);
        }
    }
}

static enum pp_status take_truncated(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__TruncatePartResponse *answer = (const void *)message;
    const struct gw_part *part = unary->context;
    if (answer->incarnation != part->incarnation) {
        return PP_INCARNATION_CHANGED;
    }
    return answer->generation == part->sequence->generation + 1 ? PP_OK : PP_STALE_GENERATION;
}

static enum pp_status start_truncate(struct gw_part *part, struct gw_unary *unary, void *context)
{
    const uint64_t *held_tokens = context;
    Pigpen__V1__PartRef ref;
    Pigpen__V1__TruncatePartRequest request = PIGPEN__V1__TRUNCATE_PART_REQUEST__INIT;
    gw_part_ref(part, &ref);
    request.part = &ref;
    request.new_generation = part->sequence->generation + 1;
    request.held_tokens = gw_route_part_tokens(&part->sequence->route, part->index, *held_tokens);
    return gw_unary_start(unary, part->node, SERVICE "TruncatePart",
                          part->sequence->remote->config.call_timeout_us, &request.base,
                          &pigpen__v1__truncate_part_response__descriptor, take_truncated, part);
}

static void cut_counts(struct gw_remote_sequence *sequence, uint64_t held_tokens)
{
    for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
        for (uint32_t i = 0; i < sequence->part_count; ++i) {
            struct gw_part *part = sequence->parts[i];
            uint64_t kept = gw_route_part_tokens(&sequence->route, part->index, held_tokens);
            uint64_t acked = atomic_load(&part->acked[layer]);
            atomic_store(&part->acked[layer], acked < kept ? acked : kept);
            part->sent[layer] = part->sent[layer] < kept ? part->sent[layer] : kept;
            part->queued[layer] = part->queued[layer] < kept ? part->queued[layer] : kept;
        }
        gw_set_count_held(sequence, layer);
        if (sequence->handed[layer] > held_tokens) {
            sequence->handed[layer] = held_tokens;
        }
    }
}

enum pp_status gw_remote_truncate(struct gw_remote_sequence *sequence, uint64_t held_tokens)
{
    if (sequence->attending) {
        return PP_FAILED_PRECONDITION;
    }
    gw_refill_abort(sequence); /* at the generation that ends here */
    PP_TRY(gw_remote_flush(sequence));
    PP_TRY(call_parts(sequence, "truncate", start_truncate, &held_tokens));
    /* Nothing is on its way, so no other thread reads or writes these now. */
    sequence->generation++;
    cut_counts(sequence, held_tokens);
    gw_budget_forget(sequence);
    return PP_OK;
}
