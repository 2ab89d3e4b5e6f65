/*
 * The calling side: channels, one connection each, and the start of calls. The status of a call is
 * asked for at once, in a batch of its own, because that batch ends last.
 */
#include <stdlib.h>
#include <string.h>

#include "common/rpc/grpc_internal.h"
#include "common/rpc/security.h"

enum pp_status pp_grpc_channel_open(struct pp_transport *transport, const char *address,
                                    enum pp_channel_kind kind, const struct pp_tls *tls,
                                    struct pp_channel **channel_out)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    struct pp_channel *channel = calloc(1, sizeof(*channel));
    if (channel == NULL) {
        return PP_MEMORY;
    }
    channel->transport = grpc;
    struct pp_grpc_args args;
    pp_grpc_args_channel(&args, grpc, kind, tls != NULL ? pp_tls_server_name(tls) : NULL);
    grpc_channel_credentials *credentials = pp_grpc_channel_credentials(tls);
    if (credentials == NULL) {
        free(channel);
        return PP_INVALID_ARGUMENT;
    }
    channel->channel = grpc_channel_create(address, credentials, &args.args);
    grpc_channel_credentials_release(credentials);
    if (channel->channel == NULL) {
        free(channel);
        return PP_INVALID_ARGUMENT;
    }
    channel->next = grpc->channels;
    if (grpc->channels != NULL) {
        grpc->channels->previous = channel;
    }
    grpc->channels = channel;
    *channel_out = channel;
    return PP_OK;
}

void pp_grpc_channel_close(struct pp_channel *channel)
{
    struct pp_grpc *grpc = channel->transport;
    while (channel->calls != NULL) {
        pp_grpc_call_abandon(channel->calls, "the channel was closed");
    }
    if (channel->previous != NULL) {
        channel->previous->next = channel->next;
    } else {
        grpc->channels = channel->next;
    }
    if (channel->next != NULL) {
        channel->next->previous = channel->previous;
    }
    grpc_channel_destroy(channel->channel);
    free(channel);
}

static void status_done(struct pp_grpc_event *event, bool ok)
{
    (void)ok; /* the status says it all */
    struct pp_call *call = (struct pp_call *)((char *)event - offsetof(struct pp_call, over_event));
    call->over = true;
    pp_grpc_call_settle(call);
}

static bool start_status(struct pp_call *call)
{
    grpc_op ops[2] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &call->initial_metadata;
    ops[1].data.recv_status_on_client.trailing_metadata = &call->trailing_metadata;
    ops[1].data.recv_status_on_client.status = &call->code;
    ops[1].data.recv_status_on_client.status_details = &call->details;
    call->over_event = (struct pp_grpc_event){.done = status_done};
    return pp_grpc_call_batch(call, ops, 2, &call->over_event);
}

enum pp_status pp_grpc_call_start(struct pp_channel *channel, const char *path,
                                  enum pp_call_kind kind, uint64_t deadline_us,
                                  const struct pp_call_events *events, void *context,
                                  struct pp_call **call_out)
{
    struct pp_grpc *grpc = channel->transport;
    gpr_timespec deadline = pp_grpc_deadline(grpc, deadline_us != 0 ? deadline_us : UINT64_MAX);
    grpc_slice path_slice = grpc_slice_from_copied_string(path);
    grpc_call *core = grpc_channel_create_call(channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                               grpc->queue, path_slice, NULL, deadline, NULL);
    grpc_slice_unref(path_slice);
    struct pp_call *call = NULL;
    enum pp_status status = pp_grpc_call_new(grpc, channel, core, &call);
    if (status != PP_OK) {
        grpc_call_unref(core);
        return status;
    }
    call->kind = kind;
    call->events = *events;
    call->context = context;
    if (!start_status(call)) {
        call->events = (struct pp_call_events){.ended = NULL};
        pp_grpc_call_abandon(call, "not started");
        return PP_INTERNAL;
    }
    /* A stream opens now; other calls open with their one message, in one batch. */
    call->initial_wanted = kind == PP_CALL_BIDI;
    pp_grpc_call_pump(call);
    *call_out = call;
    return PP_OK;
}
