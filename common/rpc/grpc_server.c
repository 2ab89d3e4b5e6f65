/*
 * The serving side: the listening port, the armed requests for calls, and the ways to stop. All
 * methods come through gRPC's generic requests and are found by their path here, so an unknown one
 * is answered at once. gRPC queues un-armed calls without limit: streams and calls are bounded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/rpc/accept.h"
#include "common/rpc/grpc_internal.h"

void pp_grpc_call_accept(struct pp_call *call, const struct pp_call_events *events, void *context)
{
    call->events = *events;
    call->context = context;
}

static void close_done(struct pp_grpc_event *event, bool ok)
{
    (void)ok;
    struct pp_call *call = (struct pp_call *)((char *)event - offsetof(struct pp_call, over_event));
    call->over = true;
    pp_grpc_call_settle(call);
}

static void accept_arm(struct pp_grpc_accept *accept)
{
    struct pp_grpc *grpc = accept->transport;
    if (grpc->server.draining) {
        return;
    }
    grpc_call_details_init(&accept->details);
    grpc_metadata_array_init(&accept->metadata);
    grpc_call_error error =
        grpc_server_request_call(grpc->server.server, &accept->call, &accept->details,
                                 &accept->metadata, grpc->queue, grpc->queue, &accept->event);
    accept->armed = error == GRPC_CALL_OK;
}

static const struct pp_method *find_method(const struct pp_grpc_server *server, grpc_slice path)
{
    for (size_t i = 0; i < server->method_count; ++i) {
        if (grpc_slice_str_cmp(path, server->methods[i].path) == 0) {
            return &server->methods[i];
        }
    }
    return NULL;
}

static void serve(struct pp_grpc *grpc, grpc_call *core, const struct pp_method *method)
{
    struct pp_grpc_server *server = &grpc->server;
    struct pp_call *call = NULL;
    if (pp_grpc_call_new(grpc, NULL, core, &call) != PP_OK) {
        grpc_call_cancel_with_status(core, GRPC_STATUS_RESOURCE_EXHAUSTED, "no memory", NULL);
        grpc_call_unref(core);
        return;
    }
    ++server->call_count;
    pp_grpc_call_hold(call);
    call->over_event = (struct pp_grpc_event){.done = close_done, .of_server = true};
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                  .data.recv_close_on_server.cancelled = &call->cancelled};
    if (!pp_grpc_call_batch(call, &op, 1, &call->over_event)) {
        pp_grpc_call_abandon(call, "not started");
    } else if (method == NULL) {
        pp_grpc_call_finish(call, PP_UNIMPLEMENTED, "unknown method", 0);
    } else if (server->call_count > PP_GRPC_CALLS_MAX) {
        pp_grpc_call_finish(call, PP_QUEUE, "too many calls at once", 1000);
    } else {
        call->kind = method->kind;
        ++grpc->delivered;
        method->opened(server->context, call);
    }
    pp_grpc_call_settle(call);
}

static void accept_done(struct pp_grpc_event *event, bool ok)
{
    struct pp_grpc_accept *accept = (struct pp_grpc_accept *)event;
    struct pp_grpc *grpc = accept->transport;
    grpc_call *core = ok ? accept->call : NULL;
    const struct pp_method *method = ok ? find_method(&grpc->server, accept->details.method) : NULL;
    grpc_call_details_destroy(&accept->details);
    grpc_metadata_array_destroy(&accept->metadata);
    accept->call = NULL;
    accept->armed = false;
    if (core == NULL) {
        return;
    }
    if (grpc->server.stopping) {
        grpc_call_cancel_with_status(core, GRPC_STATUS_UNAVAILABLE, "stopping", NULL);
        grpc_call_unref(core);
        return;
    }
    accept_arm(accept);
    serve(grpc, core, method);
}

static void shutdown_done(struct pp_grpc_event *event, bool ok)
{
    (void)ok;
    struct pp_grpc *grpc =
        (struct pp_grpc *)((char *)event - offsetof(struct pp_grpc, server.shutdown_event));
    grpc->server.down = true;
}

/* gRPC takes the path of a socket over from a server that still listens there: ask first. */
static bool socket_taken(const char *address)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (strncmp(address, "unix:", 5) != 0 || strlen(address + 5) >= sizeof(name.sun_path)) {
        return false;
    }
    memcpy(name.sun_path, address + 5, strlen(address + 5) + 1);
    int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (file < 0) {
        return false;
    }
    bool taken = connect(file, (const struct sockaddr *)&name, sizeof(name)) == 0;
    close(file);
    return taken;
}

static enum pp_status listen_on(struct pp_grpc *grpc, const struct pp_server_config *config,
                                int *port_out)
{
    grpc->server.tls = (struct pp_grpc_server_tls){.tls = config->tls};
    grpc_server_credentials *credentials = pp_grpc_server_credentials(&grpc->server.tls);
    if (credentials == NULL) {
        return PP_INVALID_ARGUMENT;
    }
    int port = 0;
    if (!socket_taken(config->address)) {
        port = grpc_server_add_http2_port(grpc->server.server, config->address, credentials);
    }
    grpc_server_credentials_release(credentials);
    if (port == 0) {
        PP_LOG_ERRORF("rpc", "cannot listen: the address is taken or not of this machine",
                      "address=%s", config->address);
        return PP_UNAVAILABLE;
    }
    *port_out = strncmp(config->address, "unix:", 5) == 0 ? 0 : port;
    if (config->connections_max != 0) {
        PP_TRY(
            pp_accept_begin(config->address, *port_out, config->connections_max, grpc->base.clock));
        grpc->server.gated = true;
    }
    return PP_OK;
}

/* Shuts it down and waits; only its own events run meanwhile. */
static void take_down(struct pp_grpc *grpc)
{
    struct pp_grpc_server *server = &grpc->server;
    if (!server->draining) {
        server->draining = true;
        grpc_server_shutdown_and_notify(server->server, grpc->queue, &server->shutdown_event);
    }
    grpc_server_cancel_all_calls(server->server);
    if (!server->down) {
        pp_grpc_run_until(grpc, &server->down, true);
    }
    grpc_server_destroy(server->server);
    if (server->gated) {
        pp_accept_end();
    }
    free(server->methods);
    memset(server, 0, sizeof(*server));
}

enum pp_status pp_grpc_server_start(struct pp_transport *transport,
                                    const struct pp_server_config *config, int *port_out)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    struct pp_grpc_server *server = &grpc->server;
    PP_ASSERT(server->server == NULL);
    struct pp_grpc_args args;
    pp_grpc_args_server(&args, grpc);
    server->methods = calloc(config->method_count, sizeof(*server->methods));
    if (server->methods == NULL) {
        return PP_MEMORY;
    }
    memcpy(server->methods, config->methods, config->method_count * sizeof(*server->methods));
    server->method_count = config->method_count;
    server->context = config->context;
    server->shutdown_event = (struct pp_grpc_event){.done = shutdown_done, .of_server = true};
    server->server = grpc_server_create(&args.args, NULL);
    grpc_server_register_completion_queue(server->server, grpc->queue, NULL);
    int port = 0;
    enum pp_status status = listen_on(grpc, config, &port);
    if (status != PP_OK) {
        take_down(grpc);
        return status;
    }
    grpc_server_start(server->server);
    for (size_t i = 0; i < PP_GRPC_ACCEPTS; ++i) {
        struct pp_grpc_accept *accept = &server->accepts[i];
        accept->event = (struct pp_grpc_event){.done = accept_done, .of_server = true};
        accept->transport = grpc;
        accept_arm(accept);
    }
    *port_out = port;
    return PP_OK;
}

void pp_grpc_server_drain(struct pp_transport *transport)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    struct pp_grpc_server *server = &grpc->server;
    if (server->server == NULL || server->draining) {
        return;
    }
    server->draining = true;
    grpc_server_shutdown_and_notify(server->server, grpc->queue, &server->shutdown_event);
}

void pp_grpc_server_stop(struct pp_transport *transport)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    struct pp_grpc_server *server = &grpc->server;
    if (server->server == NULL) {
        return;
    }
    server->stopping = true;
    while (server->calls != NULL) {
        pp_grpc_call_abandon(server->calls, "the server stops");
    }
    take_down(grpc);
}
