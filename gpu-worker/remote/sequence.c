/*
 * A sequence's life on the nodes: open, append, flush, truncate, close, leases, and how it fails.
 * On the walk: engine/sequence > here > outbox, and the acknowledged counts back (law 1). It
 * refuses to know the model and the tokens.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/budget.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/outbox.h"
#include "gpu-worker/remote/part.h"
#include "gpu-worker/remote/refill.h"
#include "gpu-worker/remote/sampling.h"

#define SERVICE          "/pigpen.v1.AttentionService/"
#define LEASE_DEFAULT_US 600000000ull
/* How long nodes that refused a sequence may take to say what they have free. */
#define PROBE_US 500000u

const char *gw_remote_error(const struct gw_remote_sequence *sequence)
{
    return gw_sequence_failed(sequence) != PP_OK ? sequence->error : "";
}

static uint64_t renew_period_us(const struct gw_remote_sequence *sequence)
{
    uint64_t least_us = LEASE_DEFAULT_US;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        const struct gw_set *set = &sequence->sets[i];
        for (uint32_t j = 0; j < set->member_count; ++j) {
            uint64_t lease_us = set->members[j]->lease_us;
            least_us = lease_us < least_us ? lease_us : least_us;
        }
    }
    return least_us / 3 > 1000 ? least_us / 3 : 1000;
}

static void enlist(void *context)
{
    struct gw_remote_sequence *sequence = context;
    struct gw_remote *remote = sequence->remote;
    sequence->next = remote->sequences;
    remote->sequences = sequence;
    sequence->renew_us = gw_remote_now(remote) + renew_period_us(sequence);
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_set *set = &sequence->sets[i];
        for (uint32_t j = 0; j < set->member_count; ++j) {
            gw_node_open_streams(set->members[j]->node);
        }
    }
}

static void detach(void *context)
{
    struct gw_remote_sequence *sequence = context;
    struct gw_remote *remote = sequence->remote;
    struct gw_remote_sequence **link = &remote->sequences;
    while (*link != NULL && *link != sequence) {
        link = &(*link)->next;
    }
    if (*link == sequence) {
        *link = sequence->next;
    }
    gw_sequence_drop_all(sequence);
    for (struct gw_unary *unary = remote->unaries; unary != NULL; unary = unary->next) {
        if (unary->part != NULL && unary->part->sequence == sequence) {
            unary->part = NULL;
        }
    }
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
        if (unary->status == PP_INCARNATION_CHANGED) {
            gw_part_fail(part, unary->status, "lease: %s", unary->message);
        }
        return PP_OK;
    }
    gw_node_take_free(part->node, answer->memory_free_bytes);
    if (answer->incarnation != part->incarnation) {
        gw_part_fail(part, PP_INCARNATION_CHANGED, "lease: the node was restarted");
    } else if (answer->n_unknown_handles > 0) {
        gw_part_fail(part, PP_PART_EXPIRED, "the node no longer holds the part");
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

static void renew_parts(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        const struct gw_set *set = &sequence->sets[i];
        for (uint32_t j = 0; j < set->member_count; ++j) {
            renew_part(set->members[j]);
        }
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
            renew_parts(sequence);
        }
        uint64_t hedge_us = gw_set_tick(sequence, now_us);
        next_us = sequence->renew_us < next_us ? sequence->renew_us : next_us;
        next_us = hedge_us < next_us ? hedge_us : next_us;
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

uint32_t gw_remote_parts(const struct gw_remote_sequence *sequence)
{
    return sequence->route.part_count;
}

void gw_remote_tokens_held(struct gw_remote_sequence *sequence, uint64_t *tokens_out)
{
    memset(tokens_out, 0, sequence->remote->config.node_count * sizeof(*tokens_out));
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        const struct gw_part *part = sequence->parts[i];
        uint64_t most = 0;
        for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
            uint64_t acked = atomic_load(&part->acked[layer]);
            most = acked > most ? acked : most;
        }
        tokens_out[part->node->index] += atomic_load(&part->lost) ? 0 : most;
    }
}

/* Open and close. */

static void sequence_free(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        gw_part_destroy(sequence->parts[i]);
    }
    for (uint32_t i = 0; sequence->sets != NULL && i < GW_NODES_MAX; ++i) {
        gw_dispatch_deinit(&sequence->sets[i].dispatch);
    }
    gw_sampling_deinit(sequence);
    gw_budget_deinit(sequence);
    free(sequence->parts);
    free(sequence->sets);
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

static enum pp_status init_sets(struct gw_remote_sequence *sequence)
{
    sequence->sets = calloc(GW_NODES_MAX, sizeof(*sequence->sets));
    sequence->parts = calloc(GW_SEQUENCE_PARTS_MAX, sizeof(struct gw_part *));
    if (sequence->sets == NULL || sequence->parts == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        PP_TRY(gw_set_init(sequence, i));
    }
    return PP_OK;
}

static enum pp_status plan_route(struct gw_remote_sequence *sequence)
{
    struct gw_remote *remote = sequence->remote;
    uint32_t nodes[GW_NODES_MAX];
    uint64_t key, shares[GW_NODES_MAX];
    memcpy(&key, sequence->id, sizeof(key));
    const struct gw_route_plan plan = {
        .shard = remote->config.shard,
        .nodes = nodes,
        .node_count = gw_nodes_place(remote, &sequence->config, key, nodes, shares),
        .shares = shares,
        .replicas = remote->config.replicas,
        .kv_heads = sequence->config.shape.kv_heads,
        .tokens_expected = sequence->config.tokens_expected,
        .turn = remote->turn++,
    };
    if (plan.node_count == 0) {
        return PP_UNAVAILABLE;
    }
    return gw_route_make(&plan, &sequence->route);
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
        sequence->config.dense_layers = sequence->dense_layers;
        status = plan_route(sequence);
    }
    status = status == PP_OK ? gw_sampling_init(sequence) : status;
    status = status == PP_OK ? gw_budget_init(sequence) : status;
    status = status == PP_OK ? init_sets(sequence) : status;
    if (status != PP_OK) {
        sequence_free(sequence);
        return status;
    }
    *sequence_out = sequence;
    return PP_OK;
}

/* Opens every part on every node of the route. */
static enum pp_status open_parts(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        const struct gw_route_part *route = &sequence->route.parts[i];
        for (uint32_t j = 0; j < route->node_count; ++j) {
            struct gw_node *node = &sequence->remote->nodes[route->nodes[j]];
            PP_TRY(gw_part_new(sequence, i, node, &sequence->parts[sequence->part_count]));
            sequence->part_count++;
        }
    }
    PP_TRY(gw_parts_open(sequence->parts, sequence->part_count));
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_set *set = &sequence->sets[sequence->parts[i]->index];
        set->members[set->member_count++] = sequence->parts[i];
    }
    return PP_OK;
}

static enum pp_status open_once(struct gw_remote *remote,
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
    gw_remote_run(remote, enlist, sequence);
    sequence->enlisted = true;
    *sequence_out = sequence;
    return PP_OK;
}

/* Whether some node said what it has free, so that asking again may lead elsewhere. */
static bool figures_known(const struct gw_remote *remote)
{
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        if (atomic_load(&remote->nodes[i].memory_bytes) > 0) {
            return true;
        }
    }
    return false;
}

enum pp_status gw_remote_sequence_open(struct gw_remote *remote,
                                       const struct gw_remote_sequence_config *config,
                                       struct gw_remote_sequence **sequence_out)
{
    enum pp_status status = PP_UNAVAILABLE;
    uint32_t nodes[GW_NODES_MAX], before = gw_nodes_usable(remote, nodes);
    for (bool asked = false;;) {
        status = open_once(remote, config, sequence_out);
        if (status == PP_MEMORY && !asked &&
            figures_known(remote)) { /* somebody else was quicker: by what is left now */
            asked = true;
            (void)gw_node_probe_all(remote, PROBE_US);
            status = open_once(remote, config, sequence_out);
        }
        /* A node that turned out to be gone is out of use now: the others may do. */
        uint32_t left = gw_nodes_usable(remote, nodes);
        if (status == PP_OK || left == 0 || left >= before) {
            return status;
        }
        before = left;
    }
}

void gw_remote_sequence_close(struct gw_remote_sequence *sequence)
{
    if (sequence == NULL) {
        return;
    }
    if (sequence->enlisted) {
        gw_remote_run(sequence->remote, detach, sequence);
    }
    gw_refill_destroy(sequence);
    gw_parts_close(sequence->parts, sequence->part_count);
    sequence_free(sequence);
}

enum pp_status gw_remote_sequence_reopen(struct gw_remote_sequence **sequence)
{
    struct gw_remote_sequence *fresh = NULL;
    struct gw_remote_sequence_config config = (*sequence)->config;
    config.ranges = (*sequence)->estimators.ranges;
    if (gw_sequence_failed(*sequence) == PP_MEMORY) { /* its own rows may be what fills a node */
        struct gw_remote *remote = (*sequence)->remote;
        gw_parts_close((*sequence)->parts, (*sequence)->part_count);
        for (uint32_t i = 0; i < (*sequence)->part_count; ++i) {
            (*sequence)->parts[i]->handle = 0;
        }
        (void)gw_node_probe_all(remote, PROBE_US);
    }
    PP_TRY(gw_remote_sequence_open((*sequence)->remote, &config, &fresh));
    gw_remote_sequence_close(*sequence);
    *sequence = fresh;
    return PP_OK;
}
