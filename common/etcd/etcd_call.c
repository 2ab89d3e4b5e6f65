/*
 * Calls to etcd: pack, send, unpack, and one end that is always told. It refuses to know which
 * calls there are.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/etcd/internal.h"

static void call_over(struct etcd_call *call, enum pp_status status, const char *message)
{
    call->call = NULL;
    if (call->refused != PP_OK) {
        status = call->refused;
        message = pp_status_name(status);
    } else if (status == PP_OK && call->unary && !call->answered_once) {
        status = PP_INTERNAL;
        message = "no answer";
    }
    call->ended(call->etcd, status, message != NULL ? message : "");
}

static void on_message(void *context, struct pp_call *handle, struct pp_message *message)
{
    struct etcd_call *call = context;
    struct pp_etcd *etcd = call->etcd;
    ProtobufCMessage *answer = NULL;
    struct pp_payload_view payload;
    pp_codec_arena_reset(&etcd->arena);
    enum pp_status status = pp_codec_unpack(message, call->type, &etcd->arena, &answer, &payload);
    if (status == PP_OK && call->refused == PP_OK) {
        call->answered_once = true;
        status = call->answered(etcd, answer);
    }
    pp_message_release(message);
    if (status != PP_OK) {
        pp_etcd_call_end(call, status);
    }
    etcd->config.transport->ops->call_receive(handle);
}

static void on_ended(void *context, struct pp_call *handle, const struct pp_call_end *end)
{
    (void)handle;
    call_over(context, end->status, end->message);
}

static const struct pp_call_events call_events = {.message = on_message, .ended = on_ended};

static enum pp_status call_put(struct etcd_call *call, const ProtobufCMessage *request)
{
    size_t bytes = protobuf_c_message_get_packed_size(request);
    uint8_t *packed = malloc(bytes + 1);
    if (packed == NULL) {
        return PP_MEMORY;
    }
    protobuf_c_message_pack(request, packed);
    enum pp_status status =
        call->etcd->config.transport->ops->call_send(call->call, packed, bytes, NULL, call->unary);
    free(packed);
    return status;
}

void pp_etcd_call_start(struct etcd_call *call, const char *path, enum pp_call_kind kind,
                        uint64_t timeout_us, const ProtobufCMessage *request)
{
    struct pp_etcd *etcd = call->etcd;
    const struct pp_transport_ops *ops = etcd->config.transport->ops;
    uint64_t deadline_us = timeout_us == 0 ? 0 : etcd_now(etcd) + timeout_us;
    call->unary = kind == PP_CALL_UNARY;
    call->answered_once = false;
    call->refused = PP_OK;
    enum pp_status status =
        ops->call_start(etcd->channel, path, kind, deadline_us, &call_events, call, &call->call);
    if (status != PP_OK) {
        call_over(call, status, "the call could not be started");
        return;
    }
    ops->call_receive(call->call);
    pp_etcd_call_send(call, request);
}

void pp_etcd_call_send(struct etcd_call *call, const ProtobufCMessage *request)
{
    enum pp_status status = call_put(call, request);
    if (status != PP_OK) {
        pp_etcd_call_end(call, status);
    }
}

void pp_etcd_call_end(struct etcd_call *call, enum pp_status status)
{
    if (call->call != NULL && call->refused == PP_OK) {
        call->refused = status;
        call->etcd->config.transport->ops->call_cancel(call->call);
    }
}
