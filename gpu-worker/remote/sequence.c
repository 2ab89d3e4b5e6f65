/*
 * A sequence's life on the nodes: open, append, flush, truncate, close, leases, and how it fails.
 * On the walk: engine/sequence > here > outbox, and the acknowledged counts back (law 1). It
 * refuses to know the model and the tokens.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/outbox.h"
#include "gpu-worker/remote/sampling.h"

#define SERVICE          "/pigpen.v1.AttentionService/"
#define CLOSE_TIMEOUT_US 500000u
#define LEASE_DEFAULT_US 600000000ull
/* A node that was away when its part was closed frees it so long after the worker's last word. */
#define LEASE_ASKED_MS 60000u

/* Failure. */

static void drop_all(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        gw_attn_client_drop(&sequence->parts[i].dispatch);
        gw_outbox_drop(sequence->parts[i].node, sequence);
    }
}

void gw_sequence_fail(struct gw_remote_sequence *sequence, const struct gw_node *node,
                      enum pp_status status, const char *format, ...)
{
    if (gw_sequence_failed(sequence) == PP_OK) {
        int used = 0;
        if (node != NULL) {
            used = snprintf(sequence->error, sizeof(sequence->error),
                            "node %s (%s): ", node->address.name, node->address.address);
        }
        size_t at = used > 0 && (size_t)used < sizeof(sequence->error) ? (size_t)used : 0;
        va_list arguments;
        va_start(arguments, format);
        int more = vsnprintf(sequence->error + at, sizeof(sequence->error) - at, format, arguments);
        va_end(arguments);
        at += more > 0 ? (size_t)more : 0;
        if (at < sizeof(sequence->error)) {
            snprintf(sequence->error + at, sizeof(sequence->error) - at, " [%s]",
                     pp_status_name(status));
        }
        PP_LOG_ERRORF("remote", "sequence failed", "cause=\"%s\"", sequence->error);
        pp_stat_add(sequence->remote->failures, 1);
        if (node != NULL && (status == PP_UNAVAILABLE || status == PP_DEADLINE_EXCEEDED)) {
            pp_stat_set(node->up, 0);
        }
        atomic_store_explicit(&sequence->failed, (int)status, memory_order_release);
    }
    drop_all(sequence);
    gw_remote_signal(sequence->remote);
}

const char *gw_remote_error(const struct gw_remote_sequence *sequence)
{
    return gw_sequence_failed(sequence) != PP_OK ? sequence->error : "";
}

/* Commands that only the rpc thread may run, awaited by the engine thread. */

static void await_flag(struct gw_remote *remote, const _Atomic bool *flag)
{
    while (!atomic_load_explicit(flag, memory_order_acquire)) {
        gw_remote_pause(remote, gw_remote_now(remote) + GW_WAIT_PAUSE_US);
    }
}

struct failure {
    struct gw_command command;
    struct gw_remote_sequence *sequence;
    const struct gw_node *node;
    const char *what, *message;
    enum pp_status status;
    _Atomic bool done;
};

static void run_failure(struct gw_remote *remote, struct gw_command *command)
{
    struct failure *failure = (struct failure *)command;
    gw_sequence_fail(failure->sequence, failure->node, failure->status, "%s: %s", failure->what,
                     failure->message);
    atomic_store_explicit(&failure->done, true, memory_order_release);
    gw_remote_signal(remote);
}

void gw_sequence_fail_from_engine(struct gw_remote_sequence *sequence, const struct gw_node *node,
                                  enum pp_status status, const char *what, const char *message)
{
    struct failure failure = {
        .command.run = run_failure,
        .sequence = sequence,
        .node = node,
        .what = what,
        .message = message,
        .status = status,
    };
    gw_remote_post(sequence->remote, &failure.command);
    await_flag(sequence->remote, &failure.done);
}

static uint64_t renew_period_us(const struct gw_remote_sequence *sequence)
{
    uint64_t least_us = LEASE_DEFAULT_US;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        uint64_t lease_us = sequence->parts[i].lease_us;
        least_us = lease_us < least_us ? lease_us : least_us;
    }
    return least_us / 3 > 1000 ? least_us / 3 : 1000;
}

static void run_enlist(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_remote_sequence *sequence =
        (void *)((char *)command - offsetof(struct gw_remote_sequence, enlist));
    sequence->next = remote->sequences;
    remote->sequences = sequence;
    sequence->renew_us = gw_remote_now(remote) + renew_period_us(sequence);
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        /* Failing here is met again, and told, by the first attend or append. */
        (void)gw_attn_client_open(sequence->parts[i].node);
        (void)gw_outbox_open(sequence->parts[i].node);
    }
    atomic_store_explicit(&sequence->enlisted, true, memory_order_release);
    gw_remote_signal(remote);
}

static void run_detach(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_remote_sequence *sequence =
        (void *)((char *)command - offsetof(struct gw_remote_sequence, detach));
    struct gw_remote_sequence **link = &remote->sequences;
    while (*link != NULL && *link != sequence) {
        link = &(*link)->next;
    }
    if (*link == sequence) {
        *link = sequence->next;
    }
    drop_all(sequence);
    for (struct gw_unary *unary = remote->unaries; unary != NULL; unary = unary->next) {
        if (unary->part != NULL && unary->part->sequence == sequence) {
            unary->part = NULL;
        }
    }
    atomic_store_explicit(&sequence->detached, true, memory_order_release);
    gw_remote_signal(remote);
}

/* Leases. */

static enum pp_status take_renewal(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__RenewPartsResponse *answer = (const void *)message;
    struct gw_part *part = unary->part;
    if (part == NULL) {
        return PP_OK;
    }
    if (answer == NULL) {
        bool restarted = unary->status == PP_INCARNATION_CHANGED;
        if (restarted) {
            gw_sequence_fail(part->sequence, unary->node, unary->status, "lease: %s",
                             unary->message);
        }
        return PP_OK;
    }
    if (answer->incarnation != part->incarnation) {
        gw_sequence_fail(part->sequence, unary->node, PP_INCARNATION_CHANGED,
                         "lease: the node was restarted");
    } else if (answer->n_unknown_handles > 0) {
        gw_sequence_fail(part->sequence, unary->node, PP_PART_EXPIRED,
                         "the node no longer holds the part");
    }
    return PP_OK;
}

static void renew_part(struct gw_part *part)
{
    struct gw_unary *unary = calloc(1, sizeof(*unary));
    Pigpen__V1__RenewPartsRequest request = PIGPEN__V1__RENEW_PARTS_REQUEST__INIT;
    uint64_t handle = part->handle;
    if (unary == NULL) {
        return; /* the next period tries again */
    }
    unary->orphan = true;
    unary->part = part;
    request.incarnation = part->incarnation;
    request.n_handles = 1;
    request.handles = &handle;
    if (gw_unary_start(unary, part->node, SERVICE "RenewParts",
                       part->sequence->remote->config.call_timeout_us, &request.base,
                       &pigpen__v1__renew_parts_response__descriptor, take_renewal,
                       NULL) != PP_OK) {
        free(unary);
    }
}

uint64_t gw_sequence_tick(struct gw_remote *remote, uint64_t now_us)
{
    uint64_t next_us = UINT64_MAX;
    for (struct gw_remote_sequence *sequence = remote->sequences; sequence != NULL;
         sequence = sequence->next) {
        if (gw_sequence_failed(sequence) != PP_OK) {
            continue;
        }
        if (now_us >= sequence->renew_us) {
            sequence->renew_us = now_us + renew_period_us(sequence);
            for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
                renew_part(&sequence->parts[i]);
            }
        }
        next_us = sequence->renew_us < next_us ? sequence->renew_us : next_us;
    }
    return next_us;
}

/* Counts. */

uint64_t gw_remote_held(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    return atomic_load_explicit(&sequence->held[layer], memory_order_acquire);
}

enum pp_status gw_remote_flush(struct gw_remote_sequence *sequence)
{
    struct gw_remote *remote = sequence->remote;
    while (atomic_load_explicit(&sequence->chunks_waiting, memory_order_acquire) > 0) {
        PP_TRY(gw_sequence_failed(sequence));
        gw_remote_pause(remote, gw_remote_now(remote) + GW_WAIT_PAUSE_US);
    }
    return gw_sequence_failed(sequence);
}

void gw_remote_tokens_held(struct gw_remote_sequence *sequence, uint64_t *tokens_out)
{
    memset(tokens_out, 0, sequence->remote->config.node_count * sizeof(*tokens_out));
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        uint64_t most = 0;
        for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
            uint64_t acked = atomic_load(&sequence->parts[i].acked[layer]);
            most = acked > most ? acked : most;
        }
        tokens_out[sequence->parts[i].node->index] += most;
    }
}

/* Open and close. */

static void sequence_free(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; sequence->parts != NULL && i < sequence->route.part_count; ++i) {
        gw_dispatch_deinit(&sequence->parts[i].dispatch);
        free(sequence->parts[i].acked);
        free(sequence->parts[i].sent);
    }
    gw_sampling_deinit(sequence);
    free(sequence->parts);
    free(sequence->handed);
    free(sequence->held);
    free(sequence->dense_layers);
    free(sequence);
}

static enum pp_status check_config(const struct gw_remote *remote,
                                   struct gw_remote_sequence_config *config)
{
    PP_TRY(pp_shape_check(&config->shape));
    uint64_t token_bytes = 2ull * config->shape.kv_heads *
                           pp_vector_bytes(config->shape.head_dim, config->shape.kv_dtype);
    if (config->fingerprint_bytes == 0 || config->fingerprint_bytes > PP_FINGERPRINT_BYTES ||
        config->dense_layer_count > config->shape.layers ||
        token_bytes > remote->config.outbox_bytes_max / 4) {
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

static enum pp_status init_parts(struct gw_remote_sequence *sequence)
{
    const struct pp_shape *shape = &sequence->config.shape;
    sequence->parts = calloc(sequence->route.part_count, sizeof(*sequence->parts));
    if (sequence->parts == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_part *part = &sequence->parts[i];
        const struct gw_route_part *route = &sequence->route.parts[i];
        part->sequence = sequence;
        part->node = &sequence->remote->nodes[route->node];
        part->index = i;
        part->acked = calloc(shape->layers, sizeof(*part->acked));
        part->sent = calloc(shape->layers, sizeof(*part->sent));
        part->dispatch.command.run = gw_attn_client_run;
        part->dispatch.sequence = sequence;
        part->dispatch.part = part;
        part->dispatch.q_heads = route->kv_head_count * pp_shape_group(shape);
        part->dispatch.kv_heads = route->kv_head_count;
        part->dispatch.head_dim = shape->head_dim;
        if (part->acked == NULL || part->sent == NULL) {
            return PP_MEMORY;
        }
        PP_TRY(gw_dispatch_reserve(&part->dispatch, 1));
    }
    return PP_OK;
}

static enum pp_status sequence_new(struct gw_remote *remote,
                                   const struct gw_remote_sequence_config *config,
                                   struct gw_remote_sequence **sequence_out)
{
    struct gw_remote_sequence *sequence = calloc(1, sizeof(*sequence));
    if (sequence == NULL) {
        return PP_MEMORY;
    }
    sequence->remote = remote;
    sequence->config = *config;
    sequence->generation = 1;
    sequence->enlist.run = run_enlist;
    sequence->detach.run = run_detach;
    enum pp_status status = check_config(remote, &sequence->config);
    if (status == PP_OK) {
        const struct pp_shape *shape = &sequence->config.shape;
        sequence->handed = calloc(shape->layers, sizeof(*sequence->handed));
        sequence->held = calloc(shape->layers, sizeof(*sequence->held));
        sequence->dense_layers = calloc(config->dense_layer_count + 1, sizeof(uint32_t));
        bool memory =
            sequence->handed != NULL && sequence->held != NULL && sequence->dense_layers != NULL;
        status = memory ? pp_rng_system(sequence->id, sizeof(sequence->id)) : PP_MEMORY;
    }
    if (status == PP_OK) {
        for (uint32_t i = 0; i < config->dense_layer_count; ++i) {
            sequence->dense_layers[i] = config->dense_layers[i];
        }
        status = gw_route_plan(remote->config.shard, remote->config.node_count,
                               sequence->config.shape.kv_heads, config->tokens_expected,
                               remote->turn++, &sequence->route);
    }
    status = status == PP_OK ? gw_sampling_init(sequence) : status;
    status = status == PP_OK ? init_parts(sequence) : status;
    if (status != PP_OK) {
        sequence_free(sequence);
        return status;
    }
    *sequence_out = sequence;
    return PP_OK;
}

static enum pp_status take_opened(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__OpenPartResponse *answer = (const void *)message;
    struct gw_part *part = unary->context;
    if (answer->existed || answer->handle == 0 || answer->incarnation == 0 ||
        answer->generation != part->sequence->generation) {
        return PP_PROTOCOL;
    }
    part->handle = answer->handle;
    part->incarnation = answer->incarnation;
    part->lease_us = answer->lease_ms > 0 ? answer->lease_ms * 1000 : LEASE_DEFAULT_US;
    part->node->incarnation = answer->incarnation;
    gw_node_take_limits(part->node, answer->limits);
    return PP_OK;
}

static enum pp_status start_open(struct gw_part *part, struct gw_unary *unary)
{
    struct gw_remote_sequence *sequence = part->sequence;
    const struct gw_remote_sequence_config *config = &sequence->config;
    const struct gw_route_part *route = &sequence->route.parts[part->index];
    uint8_t part_id[PP_ID_BYTES];
    Pigpen__V1__OpenPartRequest request = PIGPEN__V1__OPEN_PART_REQUEST__INIT;
    Pigpen__V1__Model model = PIGPEN__V1__MODEL__INIT;
    Pigpen__V1__Estimator estimator = PIGPEN__V1__ESTIMATOR__INIT;
    memcpy(part_id, sequence->id, sizeof(part_id));
    part_id[PP_ID_BYTES - 1] ^= (uint8_t)(part->index + 1);
    model.fingerprint.data = sequence->config.fingerprint;
    model.fingerprint.len = config->fingerprint_bytes;
    model.layers = config->shape.layers;
    model.q_heads = config->shape.q_heads;
    model.kv_heads = config->shape.kv_heads;
    model.head_dim = config->shape.head_dim;
    model.scale = config->shape.scale;
    model.kv_dtype = (Pigpen__V1__Dtype)config->shape.kv_dtype;
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
    request.dense_layers = sequence->dense_layers;
    request.n_dense_layers = config->dense_layer_count;
    request.generation = sequence->generation;
    request.lease_ms = LEASE_ASKED_MS;
    request.reserve_tokens =
        gw_route_part_tokens(&sequence->route, part->index, config->tokens_expected);
    struct gw_layer_words layers;
    PP_TRY(gw_layer_words_new(sequence, &layers));
    request.layer_estimators = layers.list;
    request.n_layer_estimators = layers.count;
    enum pp_status status = gw_unary_start(
        unary, part->node, SERVICE "OpenPart", sequence->remote->config.call_timeout_us,
        &request.base, &pigpen__v1__open_part_response__descriptor, take_opened, part);
    free(layers.list);
    return status;
}

static enum pp_status open_parts(struct gw_remote_sequence *sequence)
{
    struct gw_remote *remote = sequence->remote;
    uint32_t count = sequence->route.part_count;
    struct gw_unary *unaries = calloc(count, sizeof(*unaries));
    if (unaries == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < count && status == PP_OK; ++i) {
        status = start_open(&sequence->parts[i], &unaries[i]);
    }
    enum pp_status answered = gw_unary_wait(remote, unaries, count);
    status = status != PP_OK ? status : answered;
    for (uint32_t i = 0; i < count; ++i) {
        if (unaries[i].status != PP_OK) {
            PP_LOG_ERRORF("remote", "part not opened", "node=%s address=%s reason=%s cause=\"%s\"",
                          sequence->parts[i].node->address.name,
                          sequence->parts[i].node->address.address,
                          pp_status_name(unaries[i].status), unaries[i].message);
            sequence->parts[i].handle = 0;
        }
        gw_unary_deinit(&unaries[i]);
    }
    free(unaries);
    return status;
}

enum pp_status gw_remote_sequence_open(struct gw_remote *remote,
                                       const struct gw_remote_sequence_config *config,
                                       struct gw_remote_sequence **sequence_out)
{
    struct gw_remote_sequence *sequence = NULL;
    PP_TRY(sequence_new(remote, config, &sequence));
    enum pp_status status = open_parts(sequence);
    if (status != PP_OK) {
        gw_remote_sequence_close(sequence);
        return status;
    }
    gw_remote_post(remote, &sequence->enlist);
    await_flag(remote, &sequence->enlisted);
    *sequence_out = sequence;
    return PP_OK;
}

static void close_parts(struct gw_remote_sequence *sequence)
{
    uint32_t count = sequence->route.part_count;
    struct gw_unary *unaries = calloc(count, sizeof(*unaries));
    if (unaries == NULL) {
        return; /* the leases end */
    }
    for (uint32_t i = 0; i < count; ++i) {
        Pigpen__V1__PartRef ref = PIGPEN__V1__PART_REF__INIT;
        Pigpen__V1__ClosePartRequest request = PIGPEN__V1__CLOSE_PART_REQUEST__INIT;
        ref.handle = sequence->parts[i].handle;
        ref.incarnation = sequence->parts[i].incarnation;
        ref.generation = sequence->generation;
        request.part = &ref;
        if (ref.handle != 0 &&
            gw_unary_start(&unaries[i], sequence->parts[i].node, SERVICE "ClosePart",
                           CLOSE_TIMEOUT_US, &request.base,
                           &pigpen__v1__close_part_response__descriptor, NULL, NULL) != PP_OK) {
            unaries[i].node = NULL;
        }
    }
    (void)gw_unary_wait(sequence->remote, unaries, count);
    for (uint32_t i = 0; i < count; ++i) {
        gw_unary_deinit(&unaries[i]);
    }
    free(unaries);
}

void gw_remote_sequence_close(struct gw_remote_sequence *sequence)
{
    if (sequence == NULL) {
        return;
    }
    struct gw_remote *remote = sequence->remote;
    if (atomic_load(&sequence->enlisted)) {
        gw_remote_post(remote, &sequence->detach);
        await_flag(remote, &sequence->detached);
    }
    close_parts(sequence);
    sequence_free(sequence);
}
