/*
 * A node's channels and the unary calls on them: health and info here, the calls of a sequence's
 * life in sequence.c. Below attn_client and outbox on the walk. It refuses to know tensors.
 */
#include "gpu-worker/remote/node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "gpu-worker/remote/placement.h"
#include "grpc/health/v1/health.pb-c.h"
#include "pigpen/v1/admin.pb-c.h"

/* A call whose transport says nothing is cancelled this long past its deadline. */
#define UNARY_GRACE_US  100000u
#define STREAM_WINDOW   16u
#define INFO_TIMEOUT_US 1000000u

enum pp_status gw_node_init(struct gw_node *node, struct gw_remote *remote, uint32_t index)
{
    const struct pp_transport_ops *ops = remote->config.transport->ops;
    struct pp_transport *transport = remote->config.transport;
    memset(node, 0, sizeof(*node));
    node->remote = remote;
    node->index = index;
    node->address = remote->config.nodes[index];
    gw_node_state_init(&node->state, gw_placement_key(node->address.name) ^ remote->next_request_id,
                       gw_remote_now(remote));
    gw_node_state_right(&node->state, gw_remote_now(remote)); /* until somebody says otherwise */
    node->limits.message_bytes_max = PP_MESSAGE_BYTES_MAX;
    node->limits.q_rows_max = PP_ATTEND_ROWS_MAX;
    node->limits.stream_window = STREAM_WINDOW;
    PP_TRY(ops->channel_open(transport, node->address.address, PP_CHANNEL_LATENCY,
                             remote->config.tls, &node->latency));
    return ops->channel_open(transport, node->address.address, PP_CHANNEL_BULK, remote->config.tls,
                             &node->bulk);
}

void gw_node_deinit(struct gw_node *node)
{
    if (node->remote == NULL) {
        return;
    }
    const struct pp_transport_ops *ops = node->remote->config.transport->ops;
    if (node->bulk != NULL) {
        ops->channel_close(node->bulk);
    }
    if (node->latency != NULL) {
        ops->channel_close(node->latency);
    }
    node->bulk = node->latency = NULL;
}

void gw_node_reopen_bulk(struct gw_node *node)
{
    const struct gw_remote_config *config = &node->remote->config;
    struct pp_channel *bulk = NULL;
    if (node->bulk != NULL) {
        config->transport->ops->channel_close(node->bulk);
    }
    enum pp_status status = config->transport->ops->channel_open(
        config->transport, node->address.address, PP_CHANNEL_BULK, config->tls, &bulk);
    node->bulk = status == PP_OK ? bulk : NULL;
}

void gw_node_take_limits(struct gw_node *node, const Pigpen__V1__Limits *limits)
{
    if (limits == NULL) {
        return;
    }
    if (limits->message_bytes_max > 0) {
        node->limits.message_bytes_max = limits->message_bytes_max;
    }
    if (limits->q_rows_max > 0) {
        node->limits.q_rows_max = limits->q_rows_max;
    }
    if (limits->stream_window > 0) {
        node->limits.stream_window = limits->stream_window;
    }
}

void gw_node_take_free(struct gw_node *node, uint64_t free_bytes)
{
    if (free_bytes > 0) {
        node->info_us = gw_remote_now(node->remote) + GW_NODE_INFO_US;
        atomic_store_explicit(&node->free_bytes, free_bytes, memory_order_relaxed);
    }
}

/* Unary calls. */

static void unary_done(struct gw_unary *unary, enum pp_status status, const char *message)
{
    struct gw_remote *remote = unary->node->remote;
    struct gw_unary **link = &remote->unaries;
    while (*link != NULL && *link != unary) {
        link = &(*link)->next;
    }
    if (*link == unary) {
        *link = unary->next;
    }
    if (unary->status == PP_OK) {
        unary->status = status;
        snprintf(unary->message, sizeof(unary->message), "%s", message != NULL ? message : "");
    }
    if (unary->status == PP_OK && !unary->has_answer) {
        unary->status = PP_INTERNAL;
        snprintf(unary->message, sizeof(unary->message), "the call ended without an answer");
    }
    if (unary->orphan) {
        if (unary->status != PP_OK && unary->answered != NULL) {
            (void)unary->answered(unary, NULL);
        }
        gw_unary_deinit(unary);
        free(unary);
        return;
    }
    atomic_store_explicit(&unary->done, true, memory_order_release);
    gw_remote_signal(remote);
}

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct gw_unary *unary = context;
    struct gw_remote *remote = unary->node->remote;
    ProtobufCMessage *answer = NULL;
    struct pp_payload_view payload;
    pp_codec_arena_reset(&remote->arena);
    enum pp_status status =
        pp_codec_unpack(message, unary->answer_type, &remote->arena, &answer, &payload);
    const char *cause = "an answer that cannot be read";
    if (status == PP_OK) {
        unary->has_answer = true;
        cause = "an answer that contradicts the request";
        status = unary->answered != NULL ? unary->answered(unary, answer) : PP_OK;
    }
    if (status != PP_OK && unary->status == PP_OK) {
        unary->status = status;
        snprintf(unary->message, sizeof(unary->message), "%s", cause);
    }
    pp_message_release(message);
    remote->config.transport->ops->call_receive(call); /* else its end is not told */
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    struct gw_unary *unary = context;
    (void)call;
    unary->call = NULL;
    bool cancelled = unary->timed_out && end->status == PP_CANCELLED;
    unary_done(unary, cancelled ? PP_DEADLINE_EXCEEDED : end->status, end->message);
}

static const struct pp_call_events unary_events = {.message = on_message, .ended = on_ended};

static void run_unary(struct gw_remote *remote, struct gw_command *command)
{
    struct gw_unary *unary = (struct gw_unary *)command;
    const struct pp_transport_ops *ops = remote->config.transport->ops;
    unary->deadline_us = gw_remote_now(remote) + unary->timeout_us;
    enum pp_status status = ops->call_start(unary->node->latency, unary->path, PP_CALL_UNARY,
                                            unary->deadline_us, &unary_events, unary, &unary->call);
    if (status != PP_OK) {
        unary_done(unary, status, "the call could not be started");
        return;
    }
    unary->next = remote->unaries;
    remote->unaries = unary;
    struct pp_call *call = unary->call;
    ops->call_receive(call);
    status = ops->call_send(call, unary->request, unary->request_bytes, NULL, true);
    if (status != PP_OK) {
        unary->status = status;
        ops->call_cancel(call);
    }
}

uint64_t gw_unary_tick(struct gw_remote *remote, uint64_t now_us)
{
    uint64_t next_us = UINT64_MAX;
    for (struct gw_unary *unary = remote->unaries; unary != NULL;) {
        struct gw_unary *after = unary->next;
        uint64_t limit_us = unary->deadline_us + UNARY_GRACE_US;
        if (now_us >= limit_us && !unary->timed_out) {
            unary->timed_out = true;
            remote->config.transport->ops->call_cancel(unary->call);
        } else if (!unary->timed_out) {
            next_us = limit_us < next_us ? limit_us : next_us;
        }
        unary = after;
    }
    return next_us;
}

static enum pp_status pack_unary(struct gw_unary *unary, struct gw_node *node, const char *path,
                                 uint64_t timeout_us, const ProtobufCMessage *request)
{
    size_t bytes = protobuf_c_message_get_packed_size(request);
    unary->request = malloc(bytes > 0 ? bytes : 1);
    if (unary->request == NULL) {
        return PP_MEMORY;
    }
    unary->request_bytes = protobuf_c_message_pack(request, unary->request);
    unary->command.run = run_unary;
    unary->node = node;
    unary->path = path;
    unary->timeout_us = timeout_us;
    return PP_OK;
}

enum pp_status
gw_unary_start(struct gw_unary *unary, struct gw_node *node, const char *path, uint64_t timeout_us,
               const ProtobufCMessage *request, const ProtobufCMessageDescriptor *answer_type,
               enum pp_status (*answered)(struct gw_unary *unary, const ProtobufCMessage *answer),
               void *context)
{
    bool orphan = unary->orphan;
    struct gw_part *part = unary->part;
    memset(unary, 0, sizeof(*unary));
    unary->orphan = orphan;
    unary->part = part;
    unary->answer_type = answer_type;
    unary->answered = answered;
    unary->context = context;
    PP_TRY(pack_unary(unary, node, path, timeout_us, request));
    if (orphan) {
        run_unary(node->remote, &unary->command);
    } else {
        gw_remote_post(node->remote, &unary->command);
    }
    return PP_OK;
}

enum pp_status gw_unary_wait(struct gw_remote *remote, struct gw_unary *unaries, uint32_t count)
{
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < count; ++i) {
        while (unaries[i].node != NULL &&
               !atomic_load_explicit(&unaries[i].done, memory_order_acquire)) {
            gw_remote_pause(remote, gw_remote_now(remote) + GW_WAIT_PAUSE_US);
        }
        status = status != PP_OK ? status : unaries[i].status;
    }
    return status;
}

void gw_unary_deinit(struct gw_unary *unary)
{
    free(unary->request);
    unary->request = NULL;
}

/* Health and info. */

struct probe {
    struct gw_unary health, info;
};

static enum pp_status take_health(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Grpc__Health__V1__HealthCheckResponse *answer = (const void *)message;
    unary->node->serving =
        answer->status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    return PP_OK;
}

static enum pp_status take_info(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Pigpen__V1__GetServerInfoResponse *answer = (const void *)message;
    if (answer == NULL) {
        return PP_OK; /* it was asked in passing */
    }
    if (answer->incarnation == 0 || answer->version[0] == '\0') {
        return PP_PROTOCOL;
    }
    unary->node->incarnation = answer->incarnation;
    unary->node->known = true;
    atomic_store(&unary->node->memory_bytes, answer->memory_limit_bytes);
    atomic_store(&unary->node->free_bytes, answer->memory_free_bytes);
    gw_node_take_limits(unary->node, answer->limits);
    return PP_OK;
}

void gw_node_ask_info(struct gw_node *node)
{
    Pigpen__V1__GetServerInfoRequest info = PIGPEN__V1__GET_SERVER_INFO_REQUEST__INIT;
    struct gw_unary *unary = calloc(1, sizeof(*unary));
    if (unary == NULL) {
        return; /* it is asked again */
    }
    unary->orphan = true;
    if (gw_unary_start(unary, node, "/pigpen.v1.AdminService/GetServerInfo", INFO_TIMEOUT_US,
                       &info.base, &pigpen__v1__get_server_info_response__descriptor, take_info,
                       NULL) != PP_OK) {
        free(unary);
    }
}

static enum pp_status start_probe(struct gw_node *node, struct probe *probe, uint64_t timeout_us)
{
    Grpc__Health__V1__HealthCheckRequest check;
    grpc__health__v1__health_check_request__init(&check);
    Pigpen__V1__GetServerInfoRequest info = PIGPEN__V1__GET_SERVER_INFO_REQUEST__INIT;
    PP_TRY(gw_unary_start(&probe->health, node, "/grpc.health.v1.Health/Check", timeout_us,
                          &check.base, &grpc__health__v1__health_check_response__descriptor,
                          take_health, NULL));
    return gw_unary_start(&probe->info, node, "/pigpen.v1.AdminService/GetServerInfo", timeout_us,
                          &info.base, &pigpen__v1__get_server_info_response__descriptor, take_info,
                          NULL);
}

/* The first of a probe's two calls that failed says why. */
static void say_missing(struct gw_node *node, const struct probe *probe)
{
    const struct gw_unary *failed = probe->health.status != PP_OK ? &probe->health : &probe->info;
    if (failed->status == PP_OK) {
        snprintf(node->missing, sizeof(node->missing), "it is starting or draining");
    } else if (failed->status == PP_DEADLINE_EXCEEDED) {
        snprintf(node->missing, sizeof(node->missing), "no answer");
    } else {
        snprintf(node->missing, sizeof(node->missing), "%s [%s]", failed->message,
                 pp_status_name(failed->status));
    }
}

/* One node under two names would hold two spans of a sequence, and take memory and time for both.
 */
static enum pp_status refuse_twins(struct gw_remote *remote)
{
    struct gw_node *nodes = remote->nodes;
    enum pp_status status = PP_OK;
    for (uint32_t i = 1; i < remote->config.node_count; ++i) {
        for (uint32_t j = 0; j < i && nodes[i].serving; ++j) {
            if (nodes[j].serving && nodes[j].incarnation == nodes[i].incarnation) {
                snprintf(nodes[i].missing, sizeof(nodes[i].missing),
                         "it is the same node as %.60s (%.80s)", nodes[j].address.name,
                         nodes[j].address.address);
                nodes[i].serving = false;
                status = PP_INVALID_ARGUMENT;
            }
        }
    }
    return status;
}

enum pp_status gw_node_probe_all(struct gw_remote *remote, uint64_t timeout_us)
{
    uint32_t count = remote->config.node_count;
    struct probe *probes = calloc(count, sizeof(*probes));
    if (probes == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < count && status == PP_OK; ++i) {
        status = start_probe(&remote->nodes[i], &probes[i], timeout_us);
    }
    for (uint32_t i = 0; i < count; ++i) {
        enum pp_status health = gw_unary_wait(remote, &probes[i].health, 1);
        enum pp_status info = gw_unary_wait(remote, &probes[i].info, 1);
        bool serving = health == PP_OK && info == PP_OK && remote->nodes[i].serving;
        remote->nodes[i].serving = serving;
        if (serving) {
            atomic_store(&remote->nodes[i].out, false);
        }
        pp_stat_set(remote->nodes[i].up, serving ? 1 : 0);
        if (!serving) {
            say_missing(&remote->nodes[i], &probes[i]);
            PP_LOG_DEBUGF("remote", "node is not ready", "node=%s cause=\"%s\"",
                          remote->nodes[i].address.name, remote->nodes[i].missing);
            /* A node that speaks another protocol stays so: waiting does not help. */
            enum pp_status cause = info == PP_PROTOCOL ? PP_PROTOCOL : PP_UNAVAILABLE;
            status = status == PP_OK || status == PP_UNAVAILABLE ? cause : status;
        }
        gw_unary_deinit(&probes[i].health);
        gw_unary_deinit(&probes[i].info);
    }
    free(probes);
    enum pp_status twins = refuse_twins(remote);
    return twins != PP_OK ? twins : status;
}
