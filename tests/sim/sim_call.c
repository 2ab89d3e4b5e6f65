/*
 * One side of a simulated call: its queue and inbox, what arrives at it, and the order in which it
 * is told, which is that of common/rpc/transport.h and grpc_transport.h. A payload is read when its
 * message arrives, not when it is sent, so that a sender that reuses it early is found out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim_internal.h"

void sim_item_free(struct sim_item *item)
{
    if (item->copied) {
        free((void *)(uintptr_t)item->payload.data);
    } else if (item->payload.release != NULL) {
        item->payload.release(item->payload.context);
    }
    free(item->header);
    free(item);
}

/* The sender goes: what it said stays on the way, its memory does not. */
void sim_item_keep(struct sim_item *item)
{
    if (item->copied || item->payload.release == NULL) {
        return;
    }
    uint8_t *copy = malloc(item->payload.bytes + 1);
    PP_ASSERT(copy != NULL);
    if (item->payload.bytes != 0) {
        memcpy(copy, item->payload.data, item->payload.bytes);
    }
    item->payload.release(item->payload.context);
    item->payload.data = copy;
    item->payload.release = NULL;
    item->copied = true;
}

/* The bytes of all, which are given back. */
static void *payloads_copy(const struct pp_payload *payload)
{
    uint8_t *copy = malloc(pp_payload_bytes(payload) + 1), *to = copy;
    PP_ASSERT(copy != NULL);
    for (; payload != NULL; payload = payload->next) {
        if (payload->bytes != 0) {
            memcpy(to, payload->data, payload->bytes);
        }
        to += payload->bytes;
        if (payload->release != NULL) {
            payload->release(payload->context);
        }
    }
    return copy;
}

struct sim_item *sim_item_new(const void *header, size_t header_bytes,
                              const struct pp_payload *payload)
{
    struct sim_item *item = calloc(1, sizeof(*item));
    PP_ASSERT(item != NULL);
    item->header = malloc(header_bytes + 1);
    PP_ASSERT(item->header != NULL);
    if (header_bytes != 0) {
        memcpy(item->header, header, header_bytes);
    }
    item->header_bytes = header_bytes;
    if (payload == NULL) {
        return item;
    }
    item->payload = *payload;
    item->payload.next = NULL;
    if (payload->release == NULL || payload->next != NULL) {
        item->payload =
            (struct pp_payload){.data = payloads_copy(payload), .bytes = pp_payload_bytes(payload)};
        item->copied = true;
    }
    return item;
}

struct sim_item *sim_item_copy(const struct sim_item *item)
{
    struct pp_payload payload = {.data = item->payload.data, .bytes = item->payload.bytes};
    return sim_item_new(item->header, item->header_bytes, &payload);
}

size_t sim_item_bytes(const struct sim_item *item)
{
    return item->header_bytes + item->payload.bytes;
}

static void message_release(struct pp_message *message)
{
    free(message);
}

/* The bytes as one message, cut into pieces at random. */
static struct sim_message *message_new(struct pp_sim_net *net, const struct sim_item *item)
{
    size_t bytes = sim_item_bytes(item);
    struct sim_message *message = malloc(sizeof(*message) + bytes);
    PP_ASSERT(message != NULL);
    memcpy(message->data, item->header, item->header_bytes);
    if (item->payload.bytes != 0) {
        memcpy(message->data + item->header_bytes, item->payload.data, item->payload.bytes);
    }
    size_t count = 0;
    size_t begin = 0;
    size_t pieces = 1 + pp_rng_u64(&net->rng) % SIM_PIECES;
    while (begin < bytes) {
        size_t left = bytes - begin;
        size_t part = count + 1 == pieces ? left : 1 + pp_rng_u64(&net->rng) % left;
        message->pieces[count++] = (struct pp_piece){.data = message->data + begin, .bytes = part};
        begin += part;
    }
    message->base = (struct pp_message){.pieces = message->pieces,
                                        .piece_count = count,
                                        .bytes = bytes,
                                        .release = message_release};
    message->next = NULL;
    return message;
}

void sim_call_ready(struct pp_call *call)
{
    struct sim_endpoint *endpoint = call->endpoint;
    if (call->ready || call->gone) {
        return;
    }
    call->ready = true;
    call->ready_next = NULL;
    if (endpoint->ready_first == NULL) {
        endpoint->ready_first = call;
    } else {
        endpoint->ready_last->ready_next = call;
    }
    endpoint->ready_last = call;
}

static void drop_inbox(struct pp_call *call)
{
    while (call->inbox_first != NULL) {
        struct sim_message *message = call->inbox_first;
        call->inbox_first = message->next;
        free(message);
    }
    call->inbox_last = NULL;
}

static void drop_queue(struct pp_call *call)
{
    while (call->queue_count != 0) {
        sim_item_free(call->queue[call->queue_first]);
        call->queue_first = (call->queue_first + 1) % PP_SEND_QUEUE_MAX;
        --call->queue_count;
    }
}

void sim_call_end(struct pp_call *call, const struct sim_end *end, bool clean)
{
    if (call->ended) {
        return;
    }
    call->ended = true;
    call->end = *end;
    drop_queue(call);
    /* Whoever's call has ended is given back what it sent, wherever that is. */
    sim_keep_sent(call->endpoint->net, call->endpoint, call->stream->connection);
    if (!clean) {
        drop_inbox(call);
    }
    sim_call_ready(call);
}

struct sim_end sim_end_of(enum pp_status status, const char *message)
{
    struct sim_end end = {.status = status};
    snprintf(end.message, sizeof(end.message), "%s", message != NULL ? message : "");
    return end;
}

static void end_with(struct pp_call *call, enum pp_status status, const char *message)
{
    struct sim_end end = sim_end_of(status, message);
    sim_call_end(call, &end, false);
}

static struct pp_call **list_of(struct pp_call *call)
{
    return call->side == SIM_CLIENT ? &call->channel->calls : &call->endpoint->served;
}

struct pp_call *sim_call_new(struct sim_endpoint *endpoint, struct pp_channel *channel,
                             struct sim_stream *stream, int side)
{
    struct pp_call *call = calloc(1, sizeof(*call));
    PP_ASSERT(call != NULL);
    call->endpoint = endpoint;
    call->channel = channel;
    call->stream = stream;
    call->side = side;
    stream->side[side] = call;
    ++stream->refs;
    struct pp_call **head = list_of(call);
    call->next = *head;
    if (*head != NULL) {
        (*head)->previous = call;
    }
    *head = call;
    return call;
}

static void unready(struct pp_call *call)
{
    if (!call->ready) {
        return;
    }
    struct sim_endpoint *endpoint = call->endpoint;
    struct pp_call *before = NULL;
    for (struct pp_call *at = endpoint->ready_first; at != call; at = at->ready_next) {
        before = at;
    }
    *(before != NULL ? &before->ready_next : &endpoint->ready_first) = call->ready_next;
    if (endpoint->ready_last == call) {
        endpoint->ready_last = before;
    }
    call->ready = false;
}

static void call_free(struct pp_call *call)
{
    sim_stream_release(call->stream);
    free(call);
}

void sim_call_tell_end(struct pp_call *call)
{
    if (call->previous != NULL) {
        call->previous->next = call->next;
    } else {
        *list_of(call) = call->next;
    }
    if (call->next != NULL) {
        call->next->previous = call->previous;
    }
    unready(call);
    drop_inbox(call);
    drop_queue(call);
    call->gone = true;
    call->stream->side[call->side] = NULL;
    bool outer = call->held;
    call->held = true;
    sim_digest(call->endpoint->net, 4 + (uint64_t)call->end.status);
    if (call->events.ended != NULL) {
        struct pp_call_end end = {.status = call->end.status,
                                  .message = call->end.message,
                                  .retry_after_ms = call->end.retry_after_ms};
        call->events.ended(call->context, call, &end);
    }
    call->held = outer;
    if (!outer) {
        call_free(call);
    }
}

void sim_call_pump(struct pp_call *call)
{
    struct sim_stream *stream = call->stream;
    struct pp_sim_net *net = call->endpoint->net;
    int to = 1 - call->side;
    while (call->queue_count != 0) {
        struct sim_item *item = call->queue[call->queue_first];
        size_t bytes = sim_item_bytes(item);
        if (stream->unread[to] != 0 && stream->unread[to] + bytes > SIM_WINDOW_BYTES) {
            break;
        }
        stream->unread[to] += bytes;
        call->queue_first = (call->queue_first + 1) % PP_SEND_QUEUE_MAX;
        --call->queue_count;
        sim_post(net, stream, SIM_MESSAGE, to, item, NULL);
    }
    if (call->last_queued && !call->last_sent && call->queue_count == 0) {
        call->last_sent = true;
        if (call->side == SIM_CLIENT) {
            sim_post(net, stream, SIM_HALF_CLOSE, to, NULL, NULL);
        } else {
            struct sim_end sent = sim_end_of(PP_OK, NULL);
            sim_post(net, stream, SIM_FINISH, to, NULL, &call->finish);
            sim_call_end(call, &sent, false);
        }
    }
    if (call->want_writable && !call->last_queued && call->queue_count <= PP_SEND_QUEUE_MAX / 2) {
        call->want_writable = false;
        call->writable_due = true;
        sim_call_ready(call);
    }
}

static void refuse(struct pp_sim_net *net, struct sim_stream *stream, enum pp_status status,
                   const char *message)
{
    struct sim_end end = sim_end_of(status, message);
    sim_post(net, stream, SIM_CANCEL, SIM_CLIENT, NULL, &end);
}

static void arrive_open(struct pp_sim_net *net, struct sim_event *event)
{
    struct sim_stream *stream = event->stream;
    struct sim_connection *connection = stream->connection;
    struct sim_endpoint *endpoint = sim_listener(net, stream->address);
    if (endpoint == NULL) {
        sim_connection_break(net, connection); /* refused: so is all that waits on it */
        return;
    }
    connection->ends[SIM_SERVER] = endpoint;
    if (endpoint->draining) {
        refuse(net, stream, PP_UNAVAILABLE, "the server takes no new calls");
        return;
    }
    const struct pp_method *method = NULL;
    for (size_t i = 0; i < endpoint->method_count; ++i) {
        if (strcmp(endpoint->methods[i].path, stream->path) == 0) {
            method = &endpoint->methods[i];
        }
    }
    if (method == NULL) {
        refuse(net, stream, PP_UNIMPLEMENTED, "unknown method");
        return;
    }
    struct pp_call *call = sim_call_new(endpoint, NULL, stream, SIM_SERVER);
    call->method = method;
    snprintf(call->peer, sizeof(call->peer), "sim:%s", connection->names[SIM_CLIENT]);
    sim_call_ready(call);
}

static void arrive_message(struct pp_sim_net *net, struct pp_call *call, struct sim_item *item)
{
    struct sim_message *message = message_new(net, item);
    if (call->inbox_first == NULL) {
        call->inbox_first = message;
    } else {
        call->inbox_last->next = message;
    }
    call->inbox_last = message;
    sim_call_ready(call);
}

void sim_call_event(struct pp_sim_net *net, struct sim_event *event)
{
    struct pp_call *call = event->stream->side[event->to];
    if (event->kind == SIM_OPEN) {
        arrive_open(net, event);
        return;
    }
    if (call == NULL || call->ended || call->endpoint->dead) {
        return;
    }
    switch (event->kind) {
    case SIM_MESSAGE:
        arrive_message(net, call, event->item);
        break;
    case SIM_HALF_CLOSE:
        call->half_close_arrived = true;
        sim_call_ready(call);
        break;
    case SIM_FINISH:
        sim_call_end(call, &event->end, true);
        break;
    case SIM_CANCEL:
        sim_call_end(call, &event->end, false);
        break;
    case SIM_WINDOW:
        sim_call_pump(call);
        break;
    case SIM_LOST:
        end_with(call, call->side == SIM_CLIENT ? PP_UNAVAILABLE : PP_CANCELLED,
                 "the connection broke");
        break;
    case SIM_DEADLINE: {
        struct sim_end end = sim_end_of(PP_CANCELLED, "the client's deadline passed");
        sim_post(net, event->stream, SIM_CANCEL, SIM_SERVER, NULL, &end);
        end_with(call, PP_DEADLINE_EXCEEDED, "deadline exceeded");
        break;
    }
    default:
        PP_ASSERT(false);
    }
}

static uint64_t message_hash(const struct sim_message *message)
{
    uint64_t hash = message->base.bytes;
    for (size_t i = 0; i < message->base.bytes; ++i) {
        hash = (hash ^ message->data[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static void deliver_message(struct pp_call *call)
{
    struct pp_sim_net *net = call->endpoint->net;
    struct sim_stream *stream = call->stream;
    struct sim_message *message = call->inbox_first;
    call->inbox_first = message->next;
    call->armed = false;
    stream->unread[call->side] -= message->base.bytes;
    if (stream->side[1 - call->side] != NULL) {
        sim_post(net, stream, SIM_WINDOW, 1 - call->side, NULL, NULL);
    }
    sim_digest(net, message_hash(message));
    sim_pass(call->endpoint, PP_SIM_BEFORE_RECEIVE);
    if (call->events.message != NULL && !call->endpoint->dead && !call->endpoint->cut_off) {
        call->events.message(call->context, call, &message->base);
        sim_pass(call->endpoint, PP_SIM_AFTER_RECEIVE);
    } else {
        free(message);
    }
}

/* One callback to a call; false: it has nothing to tell now. */
static bool deliver(struct pp_call *call)
{
    struct pp_sim_net *net = call->endpoint->net;
    call->writable_due &= call->events.writable != NULL;
    call->half_close_told |= call->method == NULL && call->events.half_closed == NULL;
    if (call->method != NULL) {
        const struct pp_method *method = call->method;
        call->method = NULL;
        sim_digest(net, 1);
        method->opened(call->endpoint->context, call);
    } else if (call->writable_due) {
        call->writable_due = false;
        call->events.writable(call->context, call);
    } else if (call->armed && call->inbox_first != NULL) {
        deliver_message(call);
    } else if (call->armed && call->half_close_arrived && !call->half_close_told && !call->ended) {
        call->half_close_told = true;
        sim_digest(net, 2);
        call->events.half_closed(call->context, call);
    } else if (call->ended && (call->inbox_first == NULL || call->side == SIM_SERVER)) {
        sim_call_tell_end(call);
    } else {
        return false;
    }
    return true;
}

bool sim_deliver_one(struct sim_endpoint *endpoint)
{
    while (endpoint->ready_first != NULL && !endpoint->dead && !endpoint->paused) {
        struct pp_call *call = endpoint->ready_first;
        unready(call);
        call->held = true;
        bool did = deliver(call);
        call->held = false;
        if (call->gone) {
            call_free(call);
        } else if (did) {
            sim_call_ready(call); /* there may be more */
        }
        if (did) {
            ++endpoint->net->deliveries;
            return true;
        }
    }
    return false;
}
