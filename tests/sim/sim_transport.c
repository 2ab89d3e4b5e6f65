/*
 * The operations of an endpoint of the simulated network: channels, calls and servers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim_internal.h"

static enum pp_status channel_open(struct pp_transport *transport, const char *address,
                                   enum pp_channel_kind kind, const struct pp_tls *tls,
                                   struct pp_channel **channel_out)
{
    (void)tls;
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_channel *channel = calloc(1, sizeof(*channel));
    PP_ASSERT(channel != NULL && strlen(address) < sizeof(channel->address));
    channel->endpoint = endpoint;
    channel->kind = kind;
    snprintf(channel->address, sizeof(channel->address), "%s", address);
    channel->next = endpoint->channels;
    endpoint->channels = channel;
    *channel_out = channel;
    return PP_OK;
}

/* Tells the user now; the peer hears of it when it may. */
static void abandon(struct pp_call *call, const char *why)
{
    struct sim_stream *stream = call->stream;
    int to = 1 - call->side;
    if (!call->ended) {
        struct sim_end end =
            sim_end_of(call->side == SIM_CLIENT ? PP_CANCELLED : PP_UNAVAILABLE, why);
        if (!call->endpoint->dead) {
            sim_post(call->endpoint->net, stream, SIM_CANCEL, to, NULL, &end);
        }
    }
    call->ended = true;
    call->end = sim_end_of(PP_CANCELLED, why);
    sim_call_tell_end(call);
}

static void channel_close(struct pp_channel *channel)
{
    struct sim_endpoint *endpoint = channel->endpoint;
    while (channel->calls != NULL) {
        abandon(channel->calls, "the channel was closed");
    }
    if (channel->connection != NULL) {
        sim_keep_sent(endpoint->net, endpoint, channel->connection);
    }
    struct pp_channel **link = &endpoint->channels;
    while (*link != channel) {
        link = &(*link)->next;
    }
    *link = channel->next;
    free(channel);
}

static enum pp_status call_start(struct pp_channel *channel, const char *path,
                                 enum pp_call_kind kind, uint64_t deadline_us,
                                 const struct pp_call_events *events, void *context,
                                 struct pp_call **call_out)
{
    struct sim_endpoint *endpoint = channel->endpoint;
    struct pp_sim_net *net = endpoint->net;
    if (channel->connection == NULL || !channel->connection->alive) {
        struct sim_endpoint *server = sim_listener(net, channel->address);
        channel->connection =
            sim_connection_new(net, endpoint, server != NULL ? server->name : channel->address,
                               channel->kind == PP_CHANNEL_BULK);
    }
    struct sim_stream *stream = calloc(1, sizeof(*stream));
    PP_ASSERT(stream != NULL && strlen(path) < sizeof(stream->path));
    snprintf(stream->path, sizeof(stream->path), "%s", path);
    snprintf(stream->address, sizeof(stream->address), "%s", channel->address);
    stream->connection = channel->connection;
    stream->kind = kind;
    struct pp_call *call = sim_call_new(endpoint, channel, stream, SIM_CLIENT);
    call->events = *events;
    call->context = context;
    snprintf(call->peer, sizeof(call->peer), "sim:%s", channel->address);
    if (deadline_us != 0) {
        uint64_t now_us = sim_clock_now(endpoint->clock);
        uint64_t left_us = deadline_us > now_us ? deadline_us - now_us : 0;
        sim_post_local(net, stream, stream->connection, SIM_DEADLINE, SIM_CLIENT,
                       net->now_us + left_us);
    }
    if (endpoint->cut_off) {
        sim_post_local(net, stream, stream->connection, SIM_LOST, SIM_CLIENT, net->now_us + 1);
    }
    sim_post(net, stream, SIM_OPEN, SIM_SERVER, NULL, NULL);
    *call_out = call;
    return PP_OK;
}

static void call_accept(struct pp_call *call, const struct pp_call_events *events, void *context)
{
    call->events = *events;
    call->context = context;
}

static enum pp_status call_send(struct pp_call *call, const void *header, size_t header_bytes,
                                const struct pp_payload *payload, bool last)
{
    struct pp_sim_net *net = call->endpoint->net;
    if (call->ended || call->gone || (call->side == SIM_SERVER && call->last_queued)) {
        return PP_CANCELLED;
    }
    if (call->last_queued) {
        return PP_FAILED_PRECONDITION;
    }
    bool only_close = header == NULL && payload == NULL && last;
    if (!only_close) {
        sim_pass(call->endpoint, PP_SIM_BEFORE_SEND);
    }
    if (call->endpoint->dead || call->endpoint->cut_off) {
        return PP_CANCELLED;
    }
    size_t bytes = header_bytes + pp_payload_bytes(payload);
    if (bytes > net->config.message_bytes_max) {
        return PP_MESSAGE_TOO_LARGE;
    }
    if (!only_close && call->queue_count == PP_SEND_QUEUE_MAX) {
        call->want_writable = true;
        return PP_QUEUE;
    }
    if (!only_close) {
        size_t slot = (call->queue_first + call->queue_count) % PP_SEND_QUEUE_MAX;
        call->queue[slot] = sim_item_new(header, header_bytes, payload);
        ++call->queue_count;
    }
    if (call->side == SIM_CLIENT && (last || call->stream->kind != PP_CALL_BIDI)) {
        call->last_queued = true;
    }
    sim_call_pump(call);
    if (!only_close) {
        sim_pass(call->endpoint, PP_SIM_AFTER_SEND);
    }
    return PP_OK;
}

static void call_receive(struct pp_call *call)
{
    if (!call->gone) {
        call->armed = true;
        sim_call_ready(call);
    }
}

static void call_cancel(struct pp_call *call)
{
    if (call->ended || call->gone) {
        return;
    }
    struct sim_end end = sim_end_of(PP_CANCELLED, "cancelled");
    if (!call->endpoint->dead) {
        sim_post(call->endpoint->net, call->stream, SIM_CANCEL, 1 - call->side, NULL, &end);
    }
    sim_call_end(call, &end, false);
}

static void call_finish(struct pp_call *call, enum pp_status status, const char *message,
                        uint64_t retry_after_ms)
{
    PP_ASSERT(call->side == SIM_SERVER);
    if (call->ended || call->gone || call->last_queued) {
        return;
    }
    call->finish = sim_end_of(status, message);
    call->finish.retry_after_ms = retry_after_ms;
    call->last_queued = true;
    sim_call_pump(call);
}

static const char *call_peer(struct pp_call *call)
{
    return call->peer;
}

static enum pp_status server_start(struct pp_transport *transport,
                                   const struct pp_server_config *config, int *port_out)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    PP_ASSERT(!endpoint->listening);
    const char *colon = strrchr(config->address, ':');
    PP_ASSERT(colon != NULL);
    int port = (int)strtol(colon + 1, NULL, 10);
    if (port == 0) {
        port = endpoint->net->port_next++;
    }
    char address[64];
    snprintf(address, sizeof(address), "%.*s:%d", (int)(colon - config->address), config->address,
             port);
    if (sim_listener(endpoint->net, address) != NULL) {
        return PP_UNAVAILABLE;
    }
    snprintf(endpoint->address, sizeof(endpoint->address), "%s", address);
    endpoint->methods = calloc(config->method_count, sizeof(*endpoint->methods));
    PP_ASSERT(endpoint->methods != NULL);
    memcpy(endpoint->methods, config->methods, config->method_count * sizeof(*endpoint->methods));
    endpoint->method_count = config->method_count;
    endpoint->context = config->context;
    endpoint->listening = true;
    endpoint->draining = false;
    *port_out = port;
    return PP_OK;
}

static void server_drain(struct pp_transport *transport)
{
    ((struct sim_endpoint *)transport)->draining = true;
}

static void server_stop(struct pp_transport *transport)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    while (endpoint->served != NULL) {
        abandon(endpoint->served, "the server stops");
    }
    for (struct sim_connection *at = endpoint->net->connections; at != NULL; at = at->next) {
        if (at->ends[SIM_SERVER] == endpoint && !endpoint->dead) {
            /* After what was said last. */
            sim_post_local(endpoint->net, NULL, at, SIM_BREAK, SIM_CLIENT,
                           at->clear_us[SIM_CLIENT]);
        }
    }
    free(endpoint->methods);
    endpoint->methods = NULL;
    endpoint->method_count = 0;
    endpoint->listening = false;
    endpoint->draining = false;
}

static void wake(struct pp_transport *transport)
{
    atomic_store(&((struct sim_endpoint *)transport)->woken, true);
}

static void destroy(struct pp_transport *transport)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    server_stop(transport);
    while (endpoint->channels != NULL) {
        channel_close(endpoint->channels);
    }
    sim_keep_sent(net, endpoint, NULL);
    for (struct sim_connection *at = net->connections; at != NULL; at = at->next) {
        for (int side = 0; side < 2; ++side) {
            if (at->ends[side] == endpoint) {
                at->ends[side] = NULL;
            }
        }
    }
    struct sim_endpoint **link = &net->endpoints;
    while (*link != endpoint) {
        link = &(*link)->next;
    }
    *link = endpoint->next;
    free(endpoint);
}

const struct pp_transport_ops sim_operations = {
    .channel_open = channel_open,
    .channel_close = channel_close,
    .call_start = call_start,
    .call_accept = call_accept,
    .call_send = call_send,
    .call_receive = call_receive,
    .call_cancel = call_cancel,
    .call_finish = call_finish,
    .call_peer = call_peer,
    .server_start = server_start,
    .server_drain = server_drain,
    .server_stop = server_stop,
    .poll = sim_poll,
    .wake = wake,
    .destroy = destroy,
};

struct pp_transport *pp_sim_transport_new(struct pp_sim_net *net, const char *name)
{
    struct sim_endpoint *endpoint = calloc(1, sizeof(*endpoint));
    PP_ASSERT(endpoint != NULL && strlen(name) < sizeof(endpoint->name));
    endpoint->base =
        (struct pp_transport){.ops = &sim_operations, .clock = pp_sim_clock(net, name)};
    endpoint->net = net;
    endpoint->clock = sim_clock_of(net, name);
    snprintf(endpoint->name, sizeof(endpoint->name), "%s", name);
    /* At the end: processes take their steps in order of making. */
    struct sim_endpoint **link = &net->endpoints;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = endpoint;
    return &endpoint->base;
}
