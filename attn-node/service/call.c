/*
 * Calls of peers: takes messages off the wire, starts them when there are buffers, sends answers
 * while the send queue has room, and pulls the next message of a stream only while fewer than a
 * window are in work. On the walk: rpc > service > exec, and back. It refuses to know what is in a
 * message: the table of methods does.
 */
#include "attn-node/service/internal.h"
#include "common/base/log.h"
#include "common/rpc/peer.h"

#include <string.h>

static const struct pp_transport_ops *ops_of(const struct an_call *call)
{
    return call->service->config.transport->ops;
}

static void call_free(struct an_call *call)
{
    struct an_service *service = call->service;
    if (call->in_parked) {
        return; /* freed when the parked list meets it */
    }
    pp_share_give(&service->share, call->peer);
    an_metrics_calls(&service->metrics, &service->share);
    memset(call, 0, sizeof(*call));
    call->next_free = service->free_calls;
    service->free_calls = call;
}

void an_call_finish(struct an_call *call, enum pp_status status, const char *message)
{
    if (call->finished || call->ended) {
        return;
    }
    call->finished = true;
    uint64_t retry_ms = status == PP_QUEUE || status == PP_MEMORY ? 100 : 0;
    ops_of(call)->call_finish(call->wire, status, message, retry_ms);
}

static void call_count(struct an_call *call, enum pp_status status, uint64_t received_us)
{
    struct an_service *service = call->service;
    an_metrics_count(&service->metrics, call->method->id, status,
                     an_service_now(service) - received_us);
}

void an_request_end(struct an_request *request)
{
    struct an_call *call = request->call;
    if (call != NULL) {
        if (request->previous != NULL) {
            request->previous->next = request->next;
        } else {
            call->requests = request->next;
        }
        if (request->next != NULL) {
            request->next->previous = request->previous;
        }
        --call->in_work;
    }
    pp_stat_set(request->service->metrics.inflight,
                (double)(an_pool_requests_taken(request->service->pool) - 1));
    an_pool_give_request(request->service->pool, request);
}

/* Pulls the next message, or ends a stream whose client has said all. */
static void call_pull(struct an_call *call)
{
    if (call->finished || call->ended || call->method->kind != PP_CALL_BIDI) {
        return;
    }
    bool quiet = call->parked == NULL && call->unsent_head == NULL;
    if (call->half_closed && quiet && call->in_work == 0) {
        an_call_finish(call, PP_OK, NULL);
    } else if (!call->half_closed && quiet && call->in_work < AN_STREAM_WINDOW) {
        ops_of(call)->call_receive(call->wire);
    }
}

enum pp_status an_call_send(struct an_call *call, struct an_request *request,
                            const ProtobufCMessage *header, struct pp_payload *payload)
{
    struct an_service *service = call->service;
    uint8_t *out = service->scratch->header;
    size_t bytes = 0;
    bool with_payload = payload->data != NULL;
    if (with_payload) {
        PP_TRY(pp_codec_pack(header, payload->bytes, out, AN_HEADER_BYTES, &bytes));
        payload->release = an_reply_release;
        payload->context = request->reply;
    } else if (protobuf_c_message_get_packed_size(header) > AN_HEADER_BYTES) {
        return PP_MESSAGE_TOO_LARGE;
    } else {
        bytes = protobuf_c_message_pack(header, out);
    }
    PP_TRY(ops_of(call)->call_send(call->wire, out, bytes, with_payload ? payload : NULL, false));
    if (with_payload) {
        request->reply = NULL; /* the transport releases it */
    }
    pp_stat_add(service->metrics.sent, (double)(bytes + payload->bytes));
    return PP_OK;
}

/* False: the send queue is full, the answer is met again when the call is writable. */
static bool send_answer(struct an_call *call, struct an_request *request,
                        enum pp_status *outcome_out)
{
    struct an_service *service = call->service;
    const struct an_method *method = call->method;
    enum pp_status status = request->job.status;
    *outcome_out = status;
    if (method->kind != PP_CALL_BIDI && status != PP_OK) {
        if (status == PP_APPEND_GAP) { /* on streams a field of Status */
            (void)an_decode_refuse(&request->job, status, "expected_start=%llu",
                                   (unsigned long long)request->job.append.held_tokens);
        }
        an_call_finish(call, status, request->job.detail);
        return true;
    }
    struct pp_payload payload = {.data = NULL};
    const ProtobufCMessage *header = method->encode(service, request, &payload);
    enum pp_status sent = an_call_send(call, request, header, &payload);
    if (sent == PP_QUEUE) {
        return false;
    }
    if (sent != PP_OK) {
        *outcome_out = sent;
        an_call_finish(call, sent, "the answer could not be sent");
    } else if (method->kind != PP_CALL_BIDI) {
        an_call_finish(call, PP_OK, NULL);
    }
    return true;
}

static void call_flush(struct an_call *call)
{
    while (call->unsent_head != NULL) {
        struct an_request *request = call->unsent_head;
        enum pp_status outcome = PP_OK;
        if (!send_answer(call, request, &outcome)) {
            return;
        }
        call_count(call, outcome, request->job.received_us);
        call->unsent_head = request->next_queued;
        if (call->unsent_head == NULL) {
            call->unsent_tail = NULL;
        }
        an_request_end(request);
    }
    call_pull(call);
}

void an_call_answer(struct an_request *request)
{
    struct an_call *call = request->call;
    if (call == NULL) {
        an_request_end(request);
        return;
    }
    request->next_queued = NULL;
    if (call->unsent_tail != NULL) {
        call->unsent_tail->next_queued = request;
    } else {
        call->unsent_head = request;
    }
    call->unsent_tail = request;
    if (call->unsent_head == request) {
        call_flush(call);
    }
}

void an_request_submit(struct an_request *request)
{
    enum pp_status status = an_exec_submit(request->service->config.exec, &request->job);
    if (status != PP_OK) {
        request->job.status = status;
        (void)an_decode_refuse(&request->job, status, "the node's queue is full");
        an_call_answer(request);
    }
}

/* A message whose payload was copied out, or that has none, need not be held. */
static void release_copied(struct an_request *request)
{
    bool in_pieces = request->method->in_pieces;
    const uint8_t *data = in_pieces ? request->pieces.data : request->payload.data;
    uint64_t bytes = in_pieces ? request->pieces.bytes : request->payload.bytes;
    const uint8_t *base = request->arena.base;
    bool in_arena = data >= base && data < base + request->arena.bytes;
    if (data == NULL || bytes == 0 || in_arena) {
        pp_message_release(request->message);
        request->message = NULL;
    }
}

static void request_link(struct an_request *request, struct an_call *call)
{
    request->service = call->service;
    request->call = call;
    request->method = call->method;
    request->next = call->requests;
    if (call->requests != NULL) {
        call->requests->previous = request;
    }
    call->requests = request;
    ++call->in_work;
    pp_stat_set(call->service->metrics.inflight,
                (double)an_pool_requests_taken(call->service->pool));
}

/* Gives the request back and leaves the message parked. */
static bool start_later(struct an_request *request)
{
    request->message = NULL;
    an_request_end(request);
    return false;
}

static void start_malformed(struct an_call *call, struct an_request *request, enum pp_status status)
{
    call->parked = NULL;
    call_count(call, status, request->job.received_us);
    an_request_end(request);
    an_call_finish(call, status, "the message is malformed or needs too much memory to unpack");
}

static enum pp_status request_unpack(struct an_request *request)
{
    const ProtobufCMessageDescriptor *type = request->method->request;
    if (request->method->in_pieces) {
        return pp_codec_unpack_in_pieces(request->message, type, &request->arena, &request->header,
                                         &request->pieces);
    }
    return pp_codec_unpack(request->message, type, &request->arena, &request->header,
                           &request->payload);
}

/* Starts the parked message: false when a buffer is missing. */
static bool call_start(struct an_call *call)
{
    struct an_service *service = call->service;
    struct an_request *request = an_pool_take_request(service->pool, call->parked->bytes);
    if (request == NULL) {
        return false;
    }
    request_link(request, call);
    request->message = call->parked;
    request->job.received_us = call->parked_us;
    enum pp_status status = request_unpack(request);
    if (status != PP_OK) {
        start_malformed(call, request, status);
        return true;
    }
    enum an_next next = AN_NEXT_JOB;
    status = call->method->decode(service, request, &next);
    if (status == PP_QUEUE) {
        return start_later(request);
    }
    call->parked = NULL;
    release_copied(request);
    if (status != PP_OK || next == AN_NEXT_ANSWER) {
        request->job.status = status;
        an_call_answer(request);
    } else if (next == AN_NEXT_JOB) {
        an_request_submit(request);
    } else {
        an_request_end(request);
    }
    return true;
}

static void call_park(struct an_call *call)
{
    struct an_service *service = call->service;
    if (call->in_parked) {
        return;
    }
    call->in_parked = true;
    call->next_parked = NULL;
    if (service->parked_tail != NULL) {
        service->parked_tail->next_parked = call;
    } else {
        service->parked_head = call;
    }
    service->parked_tail = call;
}

void an_service_start_parked(struct an_service *service)
{
    while (service->parked_head != NULL) {
        struct an_call *call = service->parked_head;
        if (!call->ended && call->parked != NULL && !call_start(call)) {
            return;
        }
        service->parked_head = call->next_parked;
        if (service->parked_head == NULL) {
            service->parked_tail = NULL;
        }
        call->in_parked = false;
        if (call->ended) {
            call_free(call);
        } else {
            call_pull(call);
        }
    }
}

static void on_message(void *context, struct pp_call *wire, struct pp_message *message)
{
    (void)wire;
    struct an_call *call = context;
    struct an_service *service = call->service;
    pp_stat_add(service->metrics.received, (double)message->bytes);
    bool again = call->method->kind != PP_CALL_BIDI && call->had_message;
    call->had_message = true;
    if (call->finished || call->parked != NULL || again) {
        pp_message_release(message);
        return;
    }
    if (message->bytes > PP_MESSAGE_BYTES_MAX) {
        pp_message_release(message);
        an_metrics_count(&service->metrics, call->method->id, PP_MESSAGE_TOO_LARGE, 0);
        an_call_finish(call, PP_MESSAGE_TOO_LARGE, "max_bytes=16777216");
        return;
    }
    call->parked = message;
    call->parked_us = an_service_now(service);
    if (service->parked_head != NULL || !call_start(call)) {
        call_park(call);
        return;
    }
    call_pull(call);
}

static void on_writable(void *context, struct pp_call *wire)
{
    (void)wire;
    struct an_call *call = context;
    if (call->requests != NULL && call->requests->read_ready) {
        an_read_send(call->requests);
        return;
    }
    call_flush(call);
}

static void on_half_closed(void *context, struct pp_call *wire)
{
    (void)wire;
    struct an_call *call = context;
    call->half_closed = true;
    if (call->method->kind != PP_CALL_BIDI && !call->had_message) {
        an_call_finish(call, PP_INVALID_ARGUMENT, "the call has no message");
    }
    call_pull(call);
}

static void on_ended(void *context, struct pp_call *wire, const struct pp_call_end *end)
{
    (void)wire;
    (void)end;
    struct an_call *call = context;
    call->ended = true;
    call->wire = NULL;
    call->watching = false;
    if (call->parked != NULL) {
        pp_message_release(call->parked);
        call->parked = NULL;
    }
    while (call->unsent_head != NULL) { /* done: nobody else refers to them */
        struct an_request *request = call->unsent_head;
        call->unsent_head = request->next_queued;
        an_request_end(request);
    }
    call->unsent_tail = NULL;
    while (call->requests != NULL) { /* with exec: they come back without a caller */
        struct an_request *request = call->requests;
        call->requests = request->next;
        request->call = NULL;
        request->next = NULL;
        request->previous = NULL;
        if (request->read_ready) { /* waited for the send queue */
            an_request_end(request);
        }
    }
    call->in_work = 0;
    call_free(call);
}

static const struct pp_call_events call_events = {
    .message = on_message,
    .writable = on_writable,
    .half_closed = on_half_closed,
    .ended = on_ended,
};
static const struct pp_call_events refused_events = {.message = NULL};

static void refuse_call(struct an_service *service, enum an_method_id method, struct pp_call *wire,
                        enum pp_status status, const char *message)
{
    const struct pp_transport_ops *ops = service->config.transport->ops;
    ops->call_accept(wire, &refused_events, service);
    ops->call_finish(wire, status, message, 1000);
    an_metrics_count(&service->metrics, method, status, 0);
}

void an_call_opened(struct an_service *service, enum an_method_id method, struct pp_call *wire)
{
    const struct pp_transport_ops *ops = service->config.transport->ops;
    uint64_t peer = pp_peer_key(ops->call_peer(wire));
    enum pp_share_outcome outcome = pp_share_take(&service->share, peer);
    if (outcome == PP_SHARE_FULL) {
        refuse_call(service, method, wire, PP_QUEUE, "too many calls at once");
        return;
    }
    if (outcome == PP_SHARE_USED_UP) {
        refuse_call(service, method, wire, PP_QUOTA, "this host has its share of the node's calls");
        return;
    }
    struct an_call *call = service->free_calls; /* as many as shares */
    service->free_calls = call->next_free;
    memset(call, 0, sizeof(*call));
    call->service = service;
    call->wire = wire;
    call->method = &an_methods[method];
    call->peer = peer;
    an_metrics_calls(&service->metrics, &service->share);
    ops->call_accept(wire, &call_events, call);
    ops->call_receive(wire);
}
