/*
 * A transport without a network, for the tests of gpu-worker/remote: one thread, answers in order,
 * a virtual clock that moves only when nothing is left to deliver. The nodes: remote_fake_node.h.
 */
#ifndef PIGPEN_TESTS_UNIT_REMOTE_FAKE_H
#define PIGPEN_TESTS_UNIT_REMOTE_FAKE_H

#include "gpu-worker/remote/remote.h"
#include "tests/unit/remote_fake_node.h"

/* The transport. */

static inline enum pp_status fake_channel_open(struct pp_transport *transport, const char *address,
                                               enum pp_channel_kind kind, const struct pp_tls *tls,
                                               struct pp_channel **channel_out)
{
    (void)kind;
    (void)tls;
    struct pp_channel *channel = calloc(1, sizeof(*channel));
    channel->net = (struct fake_net *)transport;
    channel->node = &channel->net->nodes[address[0] - '0'];
    *channel_out = channel;
    return PP_OK;
}

static inline void fake_call_gone(struct pp_call *call, const struct pp_call_end *end)
{
    struct pp_call **link = &call->channel->calls;
    while (*link != call) {
        link = &(*link)->next;
    }
    *link = call->next;
    call->channel->net->calls_open--;
    call->gone = true;
    struct fake_event **event = &call->channel->net->first;
    call->channel->net->last = NULL;
    while (*event != NULL) {
        struct fake_event *this = *event;
        if (this->call == call) {
            *event = this->next;
            free(this);
        } else {
            call->channel->net->last = this;
            event = &this->next;
        }
    }
    call->events.ended(call->context, call, end);
    free(call);
}

static inline void fake_channel_close(struct pp_channel *channel)
{
    while (channel->calls != NULL) {
        fake_call_gone(channel->calls, &(struct pp_call_end){.status = PP_CANCELLED});
    }
    free(channel);
}

static inline enum pp_status fake_call_start(struct pp_channel *channel, const char *path,
                                             enum pp_call_kind kind, uint64_t deadline_us,
                                             const struct pp_call_events *events, void *context,
                                             struct pp_call **call_out)
{
    /* Nothing ends a call at its deadline: the remote's own must do. */
    uint64_t patience_us = deadline_us - fake_now(channel->net);
    if (patience_us < channel->net->patience_min_us) {
        channel->net->patience_min_us = patience_us;
    }
    struct pp_call *call = calloc(1, sizeof(*call));
    call->channel = channel;
    strncpy(call->path, path, sizeof(call->path) - 1);
    call->events = *events;
    call->context = context;
    call->next = channel->calls;
    channel->calls = call;
    channel->net->calls_open++;
    channel->node->streams += kind == PP_CALL_BIDI ? 1 : 0;
    if (channel->node->down) {
        fake_end(call, PP_UNAVAILABLE, "connection refused");
    }
    *call_out = call;
    return PP_OK;
}

static inline enum pp_status fake_call_send(struct pp_call *call, const void *header,
                                            size_t header_bytes, const struct pp_payload *payload,
                                            bool last)
{
    (void)last;
    size_t count = header_bytes;
    uint8_t *bytes = malloc(header_bytes + pp_payload_bytes(payload) + 1);
    memcpy(bytes, header, header_bytes);
    for (; payload != NULL; payload = payload->next) {
        memcpy(bytes + count, payload->data, payload->bytes);
        count += payload->bytes;
        if (payload->release != NULL) {
            payload->release(payload->context);
        }
    }
    if (!call->channel->node->down) {
        fake_serve(call, bytes, count);
    }
    free(bytes);
    return PP_OK;
}

static inline void fake_call_receive(struct pp_call *call)
{
    (void)call;
}

static inline void fake_call_cancel(struct pp_call *call)
{
    fake_end(call, PP_CANCELLED, "cancelled");
}

static inline size_t fake_poll(struct pp_transport *transport, uint64_t until_us)
{
    struct fake_net *net = (struct fake_net *)transport;
    struct fake_event *event = net->first;
    if (event == NULL) {
        net->now_us = until_us > net->now_us ? until_us : net->now_us;
        return 0;
    }
    net->now_us += FAKE_HOP_US;
    net->first = event->next;
    net->last = net->first == NULL ? NULL : net->last;
    struct pp_call *call = event->call;
    if (event->ends) {
        struct pp_call_end end = event->end;
        free(event);
        fake_call_gone(call, &end);
    } else {
        call->events.message(call->context, call, &event->message);
    }
    return 1;
}

static inline void fake_wake(struct pp_transport *transport)
{
    (void)transport;
}

static const struct pp_transport_ops fake_ops = {
    .channel_open = fake_channel_open,
    .channel_close = fake_channel_close,
    .call_start = fake_call_start,
    .call_send = fake_call_send,
    .call_receive = fake_call_receive,
    .call_cancel = fake_call_cancel,
    .poll = fake_poll,
    .wake = fake_wake,
};

/* A net of nodes "0", "1", "2" named a, b, c, and a remote on the first node_count of them. */
static inline struct fake_net *fake_net_new(void)
{
    struct fake_net *net = calloc(1, sizeof(*net));
    net->transport.ops = &fake_ops;
    net->transport.clock = (struct pp_clock){.now_us = fake_now, .context = net};
    net->now_us = 1000000;
    for (uint32_t i = 0; i < FAKE_NODES_MAX; ++i) {
        net->nodes[i].incarnation = 7 + i;
        net->nodes[i].constant = (float)(i + 1);
        net->nodes[i].lease_ms = 600000;
    }
    return net;
}

static inline void fake_remote_config(struct fake_net *net, uint32_t node_count,
                                      enum gw_shard shard, struct gw_remote_config *config)
{
    memset(config, 0, sizeof(*config));
    config->transport = &net->transport;
    config->clock = net->transport.clock;
    config->node_count = node_count;
    for (uint32_t i = 0; i < node_count; ++i) {
        config->nodes[i].name[0] = (char)('a' + (char)i);
        config->nodes[i].address[0] = (char)('0' + (char)i);
    }
    config->shard = shard;
    config->attend_timeout_us = 1500000;
    config->call_timeout_us = 10000000;
    config->outbox_bytes_max = 1u << 20;
}

static inline struct gw_remote_sequence_config fake_sequence_config(uint64_t tokens_expected)
{
    struct gw_remote_sequence_config config = {
        .shape = {.layers = FAKE_LAYERS,
                  .q_heads = 8,
                  .kv_heads = 4,
                  .head_dim = FAKE_DIM,
                  .scale = 0.5f,
                  .kv_dtype = PP_F32},
        .fingerprint = {1, 2, 3},
        .fingerprint_bytes = 3,
        .estimator = {.kind = PP_EXACT},
        .hash_seed = 1,
        .tokens_expected = tokens_expected,
    };
    return config;
}

/* A remote over the net, and one sequence of it. */
struct fake_world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
};

static inline struct fake_world fake_world_open(struct fake_net *net,
                                                const struct gw_remote_config *config,
                                                const struct gw_remote_sequence_config *sequence)
{
    struct fake_world world = {.net = net};
    assert_int_equal(gw_remote_new(config, &world.remote), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world.remote, sequence, &world.sequence), PP_OK);
    return world;
}

static inline void fake_world_free(struct fake_world *world)
{
    gw_remote_sequence_close(world->sequence);
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
}

#endif
