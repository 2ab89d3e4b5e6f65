/*
 * One unary call, waited for.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "deploy/ctl/ctl.h"

struct waiting {
    struct pp_message *message;
    bool ended;
    enum pp_status status;
    char text[512];
};

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct waiting *waiting = context;
    if (waiting->message != NULL) {
        pp_message_release(waiting->message);
    }
    waiting->message = message;
    (void)call;
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    struct waiting *waiting = context;
    waiting->ended = true;
    waiting->status = end->status;
    (void)snprintf(waiting->text, sizeof(waiting->text), "%s",
                   end->message != NULL ? end->message : "");
    (void)call;
}

static enum ctl_exit explain(const struct ctl *ctl, const struct waiting *waiting)
{
    bool unreachable = waiting->status == PP_UNAVAILABLE || waiting->status == PP_DEADLINE_EXCEEDED;
    fprintf(stderr, "pigpenctl: %s: %s%s%s\n", ctl->node, pp_status_name(waiting->status),
            waiting->text[0] != '\0' ? ": " : "", waiting->text);
    if (waiting->status == PP_DEADLINE_EXCEEDED) {
        fprintf(stderr,
                "pigpenctl: no answer in %.3g s: is it attn-node's gRPC port, and is TLS "
                "the same on both sides?\n",
                (double)ctl->timeout_us * 1e-6);
    } else if (waiting->status == PP_UNAVAILABLE) {
        fprintf(stderr, "pigpenctl: nothing answers there: check --node and the --tls-* options\n");
    }
    return unreachable ? CTL_UNREACHABLE : CTL_REFUSED;
}

static enum ctl_exit start(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                           struct waiting *waiting)
{
    static const struct pp_call_events events = {.message = on_message, .ended = on_ended};
    static uint8_t packed[4096];
    const struct pp_transport_ops *ops = ctl->transport->ops;
    if (protobuf_c_message_get_packed_size(request) > sizeof(packed)) {
        fprintf(stderr, "pigpenctl: the request is too long\n");
        return CTL_USAGE;
    }
    size_t bytes = protobuf_c_message_pack(request, packed);
    struct pp_call *call = NULL;
    uint64_t deadline_us = pp_clock_now_us(&ctl->transport->clock) + ctl->timeout_us;
    enum pp_status status =
        ops->call_start(ctl->channel, path, PP_CALL_UNARY, deadline_us, &events, waiting, &call);
    if (status == PP_OK) {
        ops->call_receive(call);
        status = ops->call_send(call, packed, bytes, NULL, true);
    }
    if (status != PP_OK) {
        fprintf(stderr, "pigpenctl: the call cannot start: %s\n", pp_status_name(status));
        return CTL_UNREACHABLE;
    }
    return CTL_OK;
}

enum ctl_exit ctl_call(struct ctl *ctl, const char *path, const ProtobufCMessage *request,
                       const ProtobufCMessageDescriptor *answer,
                       const ProtobufCMessage **answer_out)
{
    struct waiting waiting = {.message = NULL};
    enum ctl_exit outcome = start(ctl, path, request, &waiting);
    if (outcome != CTL_OK) {
        return outcome;
    }
    while (!waiting.ended) {
        uint64_t now_us = pp_clock_now_us(&ctl->transport->clock);
        (void)ctl->transport->ops->poll(ctl->transport, now_us + 100000);
    }
    if (waiting.status != PP_OK || waiting.message == NULL) {
        outcome = explain(ctl, &waiting);
    } else {
        struct pp_payload_view payload;
        ProtobufCMessage *message = NULL;
        pp_codec_arena_reset(&ctl->arena);
        enum pp_status status =
            pp_codec_unpack(waiting.message, answer, &ctl->arena, &message, &payload);
        *answer_out = message;
        if (status != PP_OK) {
            fprintf(stderr, "pigpenctl: the answer cannot be read: %s\n", pp_status_name(status));
            outcome = CTL_REFUSED;
        }
    }
    if (waiting.message != NULL) {
        pp_message_release(waiting.message);
    }
    return outcome;
}
