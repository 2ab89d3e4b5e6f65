/*
 * Receiving on a call: one pull at a time, the size check, and the end of the peer's messages.
 *
 * gRPC ends a cancelled stream for a server exactly as a half-closed one: no message. The
 * cancellation itself comes as another completion, queued at the same time. So a half-close waits
 * until the queue is empty, and is dropped when the call turned out to be over.
 */
#include <inttypes.h>
#include <stdio.h>

#include "common/rpc/grpc_internal.h"

/* The pull is handed to gRPC at the next poll, so that a send that follows an answer goes first. */
void pp_grpc_call_receive(struct pp_call *call)
{
    if (call->receive_armed || call->receive_waits || call->receive_over || call->gone) {
        return;
    }
    call->receive_waits = true;
    call->receive_next = call->transport->receives;
    call->transport->receives = call;
}

void pp_grpc_receives_arm(struct pp_grpc *grpc)
{
    while (grpc->receives != NULL) {
        struct pp_call *call = grpc->receives;
        grpc->receives = call->receive_next;
        call->receive_waits = false;
        if (!call->over) {
            grpc_op op = {.op = GRPC_OP_RECV_MESSAGE,
                          .data.recv_message.recv_message = &call->received};
            call->receive_armed = pp_grpc_call_batch(call, &op, 1, &call->receive_event);
        }
    }
}

void pp_grpc_receive_forget(struct pp_call *call)
{
    if (!call->receive_waits) {
        return;
    }
    struct pp_call **link = &call->transport->receives;
    while (*link != call) {
        link = &(*link)->receive_next;
    }
    *link = call->receive_next;
    call->receive_waits = false;
}

static void half_close_put(struct pp_call *call)
{
    struct pp_grpc *grpc = call->transport;
    call->half_close_waits = true;
    call->half_close_next = grpc->half_closes;
    grpc->half_closes = call;
}

void pp_grpc_half_close_forget(struct pp_call *call)
{
    if (!call->half_close_waits) {
        return;
    }
    struct pp_call **link = &call->transport->half_closes;
    while (*link != call) {
        link = &(*link)->half_close_next;
    }
    *link = call->half_close_next;
    call->half_close_waits = false;
}

void pp_grpc_half_closes_deliver(struct pp_grpc *grpc)
{
    while (grpc->half_closes != NULL) {
        struct pp_call *call = grpc->half_closes;
        grpc->half_closes = call->half_close_next;
        call->half_close_waits = false;
        if (call->over || call->gone || call->events.half_closed == NULL) {
            continue;
        }
        pp_grpc_call_hold(call);
        ++grpc->delivered;
        call->events.half_closed(call->context, call);
        pp_grpc_call_settle(call);
    }
}

static void deliver(struct pp_call *call, grpc_byte_buffer *buffer)
{
    struct pp_grpc *grpc = call->transport;
    char why[128];
    size_t bytes = grpc_byte_buffer_length(buffer);
    if (bytes > grpc->message_bytes_max) {
        grpc_byte_buffer_destroy(buffer);
        snprintf(why, sizeof(why), "message of %zu bytes, max_bytes %" PRIu64, bytes,
                 grpc->message_bytes_max);
        pp_grpc_call_fail(call, PP_MESSAGE_TOO_LARGE, why);
        return;
    }
    struct pp_message *message = NULL;
    enum pp_status status = pp_grpc_message_new(grpc, buffer, &message);
    if (status != PP_OK) {
        pp_grpc_call_fail(call, status, "no memory for a received message");
        return;
    }
    if (call->events.message == NULL) {
        pp_message_release(message);
        return;
    }
    ++grpc->delivered;
    call->events.message(call->context, call, message);
}

void pp_grpc_receive_done(struct pp_grpc_event *event, bool ok)
{
    struct pp_call *call =
        (struct pp_call *)((char *)event - offsetof(struct pp_call, receive_event));
    grpc_byte_buffer *buffer = call->received;
    call->received = NULL;
    call->receive_armed = false;
    if (!ok || buffer == NULL) {
        call->receive_over = true;
    }
    if (buffer != NULL && (!ok || call->gone || call->local_status != PP_OK)) {
        grpc_byte_buffer_destroy(buffer);
    } else if (buffer != NULL) {
        deliver(call, buffer);
    } else if (call->channel == NULL && !call->over && !call->gone) {
        half_close_put(call);
    }
    pp_grpc_call_settle(call);
}
