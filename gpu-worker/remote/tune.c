/*
 * What a layer needs for an error, asked of every node that holds a part of it, and what they say
 * as one answer for the layer. On the walk: engine/tune > here > rpc. It refuses to know what the
 * engine makes of it.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/part.h"
#include "pigpen/v1/admin.pb-c.h"

/* A node tunes one part at a time: how long it is left alone before it is asked again. */
#define BUSY_PERIOD_US 20000u

/* One node's part. */
struct asking {
    struct gw_part *part;
    struct gw_unary unary;
    uint32_t layer;
    bool done; /* it has said something, or never will */
    struct gw_remote_tuning said;
};

static bool is_share(float value)
{
    return value >= 0.0f && value <= 1.0f;
}

static bool is_error(float value)
{
    return isfinite(value) && value >= 0.0f;
}

/* A proposal that this worker could ask for. */
static bool is_proposal(const Pigpen__V1__Estimator *said, struct pp_estimator *out)
{
    *out = (struct pp_estimator){.kind = (enum pp_estimator_kind)said->kind,
                                 .k = said->k,
                                 .l = said->l,
                                 .t = said->t,
                                 .bits = said->bits,
                                 .rows_share = said->rows_share};
    bool sampled = out->kind == PP_LSH || (out->kind == PP_SKETCH && out->rows_share > 0.0f);
    return sampled && pp_estimator_resolve(out) == PP_OK;
}

/* rpc thread. */
static enum pp_status take_tuning(struct gw_unary *unary, const ProtobufCMessage *message)
{
    struct asking *asking = unary->context;
    const Pigpen__V1__TunePartResponse *answer = (const void *)message;
    if (answer->incarnation != asking->part->incarnation) {
        return PP_INCARNATION_CHANGED;
    }
    if (answer->n_layers != 1 || answer->layers[0]->layer != asking->layer) {
        return PP_PROTOCOL;
    }
    const Pigpen__V1__LayerTuning *layer = answer->layers[0];
    if (layer->estimator == NULL || layer->queries == 0) {
        return PP_OK;
    }
    struct gw_remote_tuning said = {.dense = layer->dense,
                                    .queries = layer->queries,
                                    .rows_share = layer->rows_share,
                                    .error = layer->error,
                                    .error_worst = layer->error_worst,
                                    .rows_share_now = layer->rows_share_now,
                                    .error_now = layer->error_now};
    bool numbers = is_share(said.rows_share) && is_share(said.rows_share_now) &&
                   is_error(said.error) && is_error(said.error_worst) && is_error(said.error_now);
    if (!numbers || !is_proposal(layer->estimator, &said.estimator)) {
        return PP_PROTOCOL;
    }
    asking->said = said;
    return PP_OK;
}

static enum pp_status start_tuning(struct asking *asking, float target_error)
{
    struct gw_part *part = asking->part;
    Pigpen__V1__PartRef ref;
    Pigpen__V1__TunePartRequest request;
    pigpen__v1__tune_part_request__init(&request);
    gw_part_ref(part, &ref);
    request.part = &ref;
    request.target_error = target_error;
    request.layer_begin = asking->layer;
    request.layer_count = 1;
    return gw_unary_start(&asking->unary, part->node, "/pigpen.v1.AdminService/TunePart",
                          part->sequence->remote->config.call_timeout_us, &request.base,
                          &pigpen__v1__tune_part_response__descriptor, take_tuning, asking);
}

static void merge_larger(float *into, float value)
{
    *into = value > *into ? value : *into;
}

/* What holds for both parts. Of two proposals for lsh that of the part that reads more counts. */
static void merge_tuning(const struct gw_remote_tuning *said, struct gw_remote_tuning *all)
{
    if (said->estimator.kind == PP_ESTIMATOR_NONE) {
        return;
    }
    if (all->estimator.kind == PP_ESTIMATOR_NONE || said->rows_share > all->rows_share) {
        all->estimator = said->estimator;
    }
    all->dense = all->dense || said->dense;
    all->queries = said->queries > all->queries ? said->queries : all->queries;
    merge_larger(&all->rows_share, said->rows_share);
    merge_larger(&all->error, said->error);
    merge_larger(&all->error_worst, said->error_worst);
    merge_larger(&all->rows_share_now, said->rows_share_now);
    merge_larger(&all->error_now, said->error_now);
}

/* Takes what has come; whether some node was busy with another part and is to be asked again. */
static bool settle(struct asking *asking, uint32_t count, bool last, uint32_t *silent)
{
    bool again = false;
    for (uint32_t i = 0; i < count; ++i) {
        struct gw_unary *unary = &asking[i].unary;
        if (asking[i].done) {
            continue;
        }
        bool busy = unary->status == PP_QUEUE && !last;
        if (unary->status != PP_OK && !busy) {
            PP_LOG_WARNF("remote", "a part could not be tuned", "node=%s layer=%u reason=%s",
                         asking[i].part->node->address.name, asking[i].layer,
                         pp_status_name(unary->status));
            *silent += 1;
        }
        asking[i].done = !busy;
        again = again || busy;
        gw_unary_deinit(unary);
    }
    return again;
}

/* Asks all that have not said anything yet and waits. */
static void ask_all(struct gw_remote *remote, struct asking *asking, uint32_t count,
                    float target_error)
{
    for (uint32_t i = 0; i < count; ++i) {
        if (!asking[i].done) {
            enum pp_status status = start_tuning(&asking[i], target_error);
            if (status != PP_OK) {
                asking[i].unary.node = NULL; /* never started */
                asking[i].unary.status = status;
            }
        }
    }
    for (uint32_t i = 0; i < count; ++i) {
        if (!asking[i].done) {
            (void)gw_unary_wait(remote, &asking[i].unary, 1);
        }
    }
}

enum pp_status gw_remote_tune(struct gw_remote_sequence *sequence, uint32_t layer,
                              float target_error, struct gw_remote_tuning *tuning_out)
{
    struct gw_remote *remote = sequence->remote;
    uint32_t count = 0;
    if (layer >= sequence->config.shape.layers || !(target_error > 0.0f && target_error <= 1.0f)) {
        return PP_INVALID_ARGUMENT;
    }
    struct asking *asking = calloc(sequence->part_count, sizeof(*asking));
    if (asking == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        if (!atomic_load(&sequence->parts[i]->lost)) {
            asking[count++] = (struct asking){.part = sequence->parts[i], .layer = layer};
        }
    }
    *tuning_out = (struct gw_remote_tuning){.estimator = {.kind = PP_ESTIMATOR_NONE}};
    uint64_t until_us = gw_remote_now(remote) + remote->config.call_timeout_us;
    ask_all(remote, asking, count, target_error);
    while (settle(asking, count, gw_remote_now(remote) >= until_us, &tuning_out->silent)) {
        uint64_t next_us = gw_remote_now(remote) + BUSY_PERIOD_US;
        while (gw_remote_now(remote) < next_us) {
            gw_remote_pause(remote, next_us);
        }
        ask_all(remote, asking, count, target_error);
    }
    for (uint32_t i = 0; i < count; ++i) {
        merge_tuning(&asking[i].said, tuning_out);
    }
    free(asking);
    return PP_OK;
}
