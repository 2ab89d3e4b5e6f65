/*
 * What both sides of a call do: the send queue, the end, and the counting of operations that
 * decides when a call may go. One batch of sends is with gRPC at a time (it allows one of a kind);
 * what fits into it goes along: the initial metadata, a message, the half-close or the status.
 */
#include "common/base/assert.h"
#include "common/rpc/grpc_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct pp_call **list_of(struct pp_call *call)
{
    return call->channel != NULL ? &call->channel->calls : &call->transport->server.calls;
}

static void unlink_call(struct pp_call *call)
{
    if (call->previous != NULL) {
        call->previous->next = call->next;
    } else {
        *list_of(call) = call->next;
    }
    if (call->next != NULL) {
        call->next->previous = call->previous;
    }
    call->next = call->previous = NULL;
}

static void send_done(struct pp_grpc_event *event, bool ok);

enum pp_status pp_grpc_call_new(struct pp_grpc *grpc, struct pp_channel *channel, grpc_call *core,
                                struct pp_call **call_out)
{
    struct pp_call *call = calloc(1, sizeof(*call));
    if (call == NULL) {
        return PP_MEMORY;
    }
    call->transport = grpc;
    call->channel = channel;
    call->call = core;
    call->send_event = (struct pp_grpc_event){.done = send_done, .of_server = channel == NULL};
    call->receive_event =
        (struct pp_grpc_event){.done = pp_grpc_receive_done, .of_server = channel == NULL};
    grpc_metadata_array_init(&call->initial_metadata);
    grpc_metadata_array_init(&call->trailing_metadata);
    call->details = grpc_empty_slice();
    struct pp_call **head = list_of(call);
    call->next = *head;
    if (*head != NULL) {
        (*head)->previous = call;
    }
    *head = call;
    ++grpc->calls_pending;
    *call_out = call;
    return PP_OK;
}

static void drop_queue(struct pp_call *call)
{
    call->send_broken = true;
    while (call->queue_count != 0) {
        grpc_byte_buffer_destroy(call->queue[call->queue_first]);
        call->queue_first = (call->queue_first + 1) % PP_SEND_QUEUE_MAX;
        --call->queue_count;
    }
}

static void free_call(struct pp_call *call)
{
    struct pp_grpc *grpc = call->transport;
    drop_queue(call);
    for (size_t i = 0; i < call->trailer_count; ++i) {
        grpc_slice_unref(call->trailers[i].value);
    }
    grpc_metadata_array_destroy(&call->initial_metadata);
    grpc_metadata_array_destroy(&call->trailing_metadata);
    grpc_slice_unref(call->details);
    gpr_free(call->peer);
    grpc_call_unref(call->call);
    --grpc->calls_pending;
    free(call);
}

static void deliver_ended(struct pp_call *call)
{
    struct pp_call_end end;
    char message[256];
    pp_grpc_status_read(call, &end, message, sizeof(message));
    unlink_call(call);
    pp_grpc_half_close_forget(call);
    pp_grpc_receive_forget(call);
    if (call->channel == NULL) {
        --call->transport->server.call_count;
    }
    call->gone = true;
    drop_queue(call);
    if (call->events.ended != NULL) {
        ++call->transport->delivered;
        call->events.ended(call->context, call, &end);
    }
}

void pp_grpc_call_hold(struct pp_call *call)
{
    ++call->pending;
}

void pp_grpc_call_settle(struct pp_call *call)
{
    PP_ASSERT(call->pending != 0);
    if (call->pending == 1 && call->over && !call->gone) {
        deliver_ended(call);
    }
    if (--call->pending == 0 && call->gone) {
        free_call(call);
    }
}

void pp_grpc_call_abandon(struct pp_call *call, const char *why)
{
    if (call->gone) {
        return;
    }
    pp_grpc_call_hold(call);
    call->local_status = PP_CANCELLED;
    snprintf(call->local_message, sizeof(call->local_message), "%s", why);
    if (!call->over) {
        grpc_status_code code =
            call->channel != NULL ? GRPC_STATUS_CANCELLED : GRPC_STATUS_UNAVAILABLE;
        grpc_call_cancel_with_status(call->call, code, why, NULL);
    }
    deliver_ended(call);
    pp_grpc_call_settle(call);
}

bool pp_grpc_call_batch(struct pp_call *call, const grpc_op *ops, size_t op_count,
                        struct pp_grpc_event *event)
{
    grpc_call_error error = grpc_call_start_batch(call->call, ops, op_count, event, NULL);
    if (error != GRPC_CALL_OK) {
        PP_LOG_ERRORF("rpc", "batch refused", "error=\"%s\"", grpc_call_error_to_string(error));
        grpc_call_cancel_with_status(call->call, GRPC_STATUS_INTERNAL, "batch refused", NULL);
        return false;
    }
    pp_grpc_call_hold(call);
    return true;
}

static grpc_op last_op(struct pp_call *call)
{
    if (call->channel != NULL) {
        return (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    }
    pp_grpc_status_write(call, call->finish_status, call->retry_after_ms);
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    op.data.send_status_from_server.trailing_metadata_count = call->trailer_count;
    op.data.send_status_from_server.trailing_metadata = call->trailers;
    op.data.send_status_from_server.status =
        (grpc_status_code)pp_status_grpc_code(call->finish_status);
    op.data.send_status_from_server.status_details = &call->details;
    return op;
}

/* Hands gRPC what is next to send, when nothing is on its way. */
void pp_grpc_call_pump(struct pp_call *call)
{
    grpc_op ops[3];
    size_t op_count = 0;
    if (call->send_busy || call->send_broken || call->over || call->gone) {
        return;
    }
    bool last = call->last_queued && !call->last_sent && call->queue_count <= 1;
    if (!call->initial_sent && (call->queue_count != 0 || call->initial_wanted || last)) {
        ops[op_count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
        call->initial_sent = true;
    }
    if (call->queue_count != 0) {
        call->sending = call->queue[call->queue_first];
        call->queue_first = (call->queue_first + 1) % PP_SEND_QUEUE_MAX;
        --call->queue_count;
        ops[op_count++] =
            (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = call->sending};
    }
    if (last) {
        ops[op_count++] = last_op(call);
        call->last_sent = true;
    }
    if (op_count != 0) {
        call->send_busy = pp_grpc_call_batch(call, ops, op_count, &call->send_event);
    }
}

static void send_done(struct pp_grpc_event *event, bool ok)
{
    struct pp_call *call = (struct pp_call *)((char *)event - offsetof(struct pp_call, send_event));
    call->send_busy = false;
    grpc_byte_buffer_destroy(call->sending);
    call->sending = NULL;
    if (!ok) {
        drop_queue(call);
    }
    bool room = !call->send_broken && !call->last_queued && !call->gone &&
                call->queue_count <= PP_SEND_QUEUE_MAX / 2;
    if (call->want_writable && room) {
        call->want_writable = false;
        if (call->events.writable != NULL) {
            ++call->transport->delivered;
            call->events.writable(call->context, call);
        }
    }
    pp_grpc_call_pump(call);
    pp_grpc_call_settle(call);
}

enum pp_status pp_grpc_call_send(struct pp_call *call, const void *header, size_t header_bytes,
                                 const struct pp_payload *payload, bool last)
{
    if (call->send_broken || call->over || call->gone || call->local_status != PP_OK) {
        return PP_CANCELLED;
    }
    if (call->last_queued) {
        return call->channel == NULL ? PP_CANCELLED : PP_FAILED_PRECONDITION;
    }
    bool only_close = header == NULL && payload == NULL && last;
    size_t payload_bytes = pp_payload_bytes(payload);
    if (header_bytes > call->transport->message_bytes_max ||
        payload_bytes > call->transport->message_bytes_max - header_bytes) {
        return PP_MESSAGE_TOO_LARGE;
    }
    if (!only_close && call->queue_count == PP_SEND_QUEUE_MAX) {
        call->want_writable = true;
        return PP_QUEUE;
    }
    if (!only_close) {
        grpc_byte_buffer *buffer = NULL;
        PP_TRY(pp_grpc_buffer_new(header, header_bytes, payload, &buffer));
        size_t slot = (call->queue_first + call->queue_count) % PP_SEND_QUEUE_MAX;
        call->queue[slot] = buffer;
        ++call->queue_count;
    }
    if (call->channel != NULL && (last || call->kind != PP_CALL_BIDI)) {
        call->last_queued = true;
    }
    pp_grpc_call_pump(call);
    return PP_OK;
}

void pp_grpc_call_cancel(struct pp_call *call)
{
    if (!call->gone && !call->over) {
        grpc_call_cancel(call->call, NULL);
    }
}

void pp_grpc_call_fail(struct pp_call *call, enum pp_status status, const char *message)
{
    if (call->channel == NULL) {
        pp_grpc_call_finish(call, status, message, 0);
    } else if (!call->over) {
        grpc_call_cancel(call->call, NULL);
    }
    call->local_status = status;
    snprintf(call->local_message, sizeof(call->local_message), "%s", message);
}

void pp_grpc_call_finish(struct pp_call *call, enum pp_status status, const char *message,
                         uint64_t retry_after_ms)
{
    PP_ASSERT(call->channel == NULL);
    if (call->last_queued || call->gone || call->over) {
        return;
    }
    call->finish_status = status;
    call->retry_after_ms = retry_after_ms;
    call->details = grpc_slice_from_copied_string(message != NULL ? message : "");
    call->last_queued = true;
    pp_grpc_call_pump(call);
}

const char *pp_grpc_call_peer(struct pp_call *call)
{
    if (call->peer == NULL) {
        call->peer = grpc_call_get_peer(call->call);
    }
    return call->peer != NULL ? call->peer : "unknown";
}
