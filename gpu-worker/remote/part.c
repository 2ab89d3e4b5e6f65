/*
 * A part on one node: its memory here, OpenPart and ClosePart. On the walk: below sequence and
 * recover, above node. It refuses to know what a part is filled with.
 */
#include "gpu-worker/remote/part.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/grow.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/sampling.h"

#define SERVICE          "/pigpen.v1.AttentionService/"
#define CLOSE_TIMEOUT_US 500000u
#define LEASE_DEFAULT_US 600000000ull
/* A node that was away when its part was closed frees it so long after the worker's last word. */
#define LEASE_ASKED_MS 60000u

enum pp_status gw_part_new(struct gw_remote_sequence *sequence, uint32_t index,
                           struct gw_node *node, struct gw_part **part_out)
{
    uint32_t layers = sequence->config.shape.layers;
    struct gw_part *part = calloc(1, sizeof(*part));
    if (part == NULL) {
        return PP_MEMORY;
    }
    part->sequence = sequence;
    part->index = index;
    part->node = node;
    part->reserved_tokens = gw_grow_reserve(sequence, index);
    part->acked = calloc(layers, sizeof(*part->acked));
    part->sent = calloc(layers, sizeof(*part->sent));
    part->queued = calloc(layers, sizeof(*part->queued));
    if (part->acked == NULL || part->sent == NULL || part->queued == NULL) {
        gw_part_destroy(part);
        return PP_MEMORY;
    }
    *part_out = part;
    return PP_OK;
}

void gw_part_destroy(struct gw_part *part)
{
    if (part != NULL) {
        free(part->acked);
        free(part->sent);
        free(part->queued);
        free(part);
    }
}

struct opening {
    struct gw_unary unary;
    struct gw_part *part;
    bool existed;
};

static enum pp_status take_opened(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__OpenPartResponse *answer = (const void *)message;
    struct opening *opening = unary->context;
    struct gw_part *part = opening->part;
    if (answer->handle == 0 || answer->incarnation == 0 ||
        (!answer->existed && answer->generation != part->sequence->generation)) {
        return PP_PROTOCOL;
    }
    opening->existed = answer->existed;
    part->handle = answer->handle;
    part->incarnation = answer->incarnation;
    part->lease_us = answer->lease_ms > 0 ? answer->lease_ms * 1000 : LEASE_DEFAULT_US;
    part->node->incarnation = answer->incarnation;
    gw_node_take_limits(part->node, answer->limits);
    gw_node_take_free(part->node, answer->memory_free_bytes);
    return PP_OK;
}

static void pack_model(struct gw_remote_sequence *sequence, Pigpen__V1__Model *model)
{
    struct gw_remote_sequence_config *config = &sequence->config;
    model->fingerprint.data = config->fingerprint;
    model->fingerprint.len = config->fingerprint_bytes;
    model->layers = config->shape.layers;
    model->q_heads = config->shape.q_heads;
    model->kv_heads = config->shape.kv_heads;
    model->head_dim = config->shape.head_dim;
    model->scale = config->shape.scale;
    model->kv_dtype = (Pigpen__V1__Dtype)config->shape.kv_dtype;
}

static enum pp_status start_open(struct opening *opening)
{
    struct gw_part *part = opening->part;
    struct gw_remote_sequence *sequence = part->sequence;
    const struct gw_remote_sequence_config *config = &sequence->config;
    const struct gw_route_part *route = &sequence->route.parts[part->index];
    uint8_t part_id[PP_ID_BYTES];
    Pigpen__V1__OpenPartRequest request = PIGPEN__V1__OPEN_PART_REQUEST__INIT;
    Pigpen__V1__Model model = PIGPEN__V1__MODEL__INIT;
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    memcpy(part_id, sequence->id, sizeof(part_id));
    part_id[PP_ID_BYTES - 1] ^= (uint8_t)(part->index + 1);
    pack_model(sequence, &model);
    gw_estimator_pack(&sequence->estimators.common, &estimator);
    request.sequence_id.data = sequence->id;
    request.sequence_id.len = sizeof(sequence->id);
    request.part_id.data = part_id;
    request.part_id.len = sizeof(part_id);
    request.model = &model;
    request.kv_head_begin = route->kv_head_begin;
    request.kv_head_count = route->kv_head_count;
    request.token_begin = route->token_begin;
    request.estimator = &estimator;
    request.hash_seed = config->hash_seed;
    request.draw_key = part->index + 1; /* the id is another in every run, draws are not */
    request.dense_layers = sequence->dense_layers;
    request.n_dense_layers = config->dense_layer_count;
    request.generation = sequence->generation;
    request.lease_ms = LEASE_ASKED_MS;
    request.reserve_tokens = part->reserved_tokens;
    struct gw_layer_words layers;
    PP_TRY(gw_layer_words_new(sequence, &layers));
    request.layer_estimators = layers.list;
    request.n_layer_estimators = layers.count;
    enum pp_status status = gw_unary_start(
        &opening->unary, part->node, SERVICE "OpenPart", sequence->remote->config.call_timeout_us,
        &request.base, &pigpen__v1__open_part_response__descriptor, take_opened, opening);
    free(layers.list);
    return status;
}

/* Which of the calls failed is told, and what that says about the node. */
static void tell_unopened(struct opening *opening)
{
    struct gw_part *part = opening->part;
    const struct gw_unary *unary = &opening->unary;
    PP_LOG_ERRORF("remote", "part not opened", "node=%s address=%s reason=%s cause=\"%s\"",
                  part->node->address.name, part->node->address.address,
                  pp_status_name(unary->status), unary->message);
    gw_node_fault_from_engine(part->node, unary->status);
    part->handle = 0;
}

static enum pp_status open_all(struct gw_part *const *parts, uint32_t count,
                               struct opening *openings)
{
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < count && status == PP_OK; ++i) {
        openings[i].part = parts[i];
        status = start_open(&openings[i]);
    }
    for (uint32_t i = 0; i < count; ++i) {
        enum pp_status answered = gw_unary_wait(parts[i]->sequence->remote, &openings[i].unary, 1);
        status = status != PP_OK ? status : answered;
        if (openings[i].unary.status != PP_OK) {
            tell_unopened(&openings[i]);
        }
        gw_unary_deinit(&openings[i].unary);
    }
    return status;
}

/* A node that was away may still hold the part as it was: it is not to be trusted. */
static enum pp_status open_afresh(struct opening *opening)
{
    struct gw_part *part = opening->part;
    gw_parts_close(&part, 1);
    part->handle = 0;
    memset(opening, 0, sizeof(*opening));
    PP_TRY(open_all(&part, 1, opening));
    return opening->existed ? PP_PART_EXISTS : PP_OK;
}

enum pp_status gw_parts_open(struct gw_part *const *parts, uint32_t count)
{
    struct opening *openings = calloc(count, sizeof(*openings));
    if (openings == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = open_all(parts, count, openings);
    for (uint32_t i = 0; i < count && status == PP_OK; ++i) {
        status = openings[i].existed ? open_afresh(&openings[i]) : PP_OK;
    }
    free(openings);
    return status;
}

void gw_parts_close(struct gw_part *const *parts, uint32_t count)
{
    struct gw_unary *unaries = count > 0 ? calloc(count, sizeof(*unaries)) : NULL;
    if (unaries == NULL) {
        return; /* the leases end */
    }
    for (uint32_t i = 0; i < count; ++i) {
        Pigpen__V1__PartRef ref = PIGPEN__V1__PART_REF__INIT;
        Pigpen__V1__ClosePartRequest request = PIGPEN__V1__CLOSE_PART_REQUEST__INIT;
        ref.handle = parts[i]->handle;
        ref.incarnation = parts[i]->incarnation;
        ref.generation = parts[i]->sequence->generation;
        request.part = &ref;
        const struct gw_node *node = parts[i]->node;
        bool away = atomic_load(&node->out) && !atomic_load(&node->draining);
        if (ref.handle != 0 && !away &&
            gw_unary_start(&unaries[i], parts[i]->node, SERVICE "ClosePart", CLOSE_TIMEOUT_US,
                           &request.base, &pigpen__v1__close_part_response__descriptor, NULL,
                           NULL) != PP_OK) {
            unaries[i].node = NULL;
        }
    }
    (void)gw_unary_wait(parts[0]->sequence->remote, unaries, count);
    for (uint32_t i = 0; i < count; ++i) {
        gw_unary_deinit(&unaries[i]);
    }
    free(unaries);
}
