/*
 * Making and ending the gRPC transport, and its table of operations. Order of ending: calls end,
 * channels and server go, the queue is shut and drained, gRPC is shut down. Knows no messages.
 */
#include "common/rpc/grpc_transport.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/limits.h"
#include "common/rpc/grpc_internal.h"

#define MESSAGE_BYTES_LIMIT (1u << 30)

/* Read by ThreadSanitizer where it is linked. gRPC's library is not instrumented: its own locks are
 * unseen, so what it does to its memory from several threads looks like races. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libgrpc.so\n"
           "called_from_lib:libgpr.so\n"
           "called_from_lib:libssl.so\n"
           "called_from_lib:libcrypto.so\n"
           "called_from_lib:libstdc++.so\n"
           "called_from_lib:libabsl_status.so\n"
           "called_from_lib:libabsl_strings.so\n"
           "called_from_lib:libabsl_graphcycles_internal.so\n"
           "called_from_lib:libabsl_malloc_internal.so\n"
           "called_from_lib:libabsl_time.so\n"
           "called_from_lib:libabsl_cord.so\n"
           "called_from_lib:libabsl_synchronization.so\n";
}

static void transport_destroy(struct pp_transport *transport)
{
    struct pp_grpc *grpc = pp_grpc_of(transport);
    pp_grpc_server_stop(transport);
    while (grpc->channels != NULL) {
        pp_grpc_channel_close(grpc->channels);
    }
    while (grpc->calls_pending != 0) {
        bool turn = false;
        pp_grpc_run_until(grpc, &turn, false);
    }
    pp_grpc_loop_deinit(grpc);
    grpc_resource_quota_unref(grpc->quota);
    pp_grpc_messages_deinit(grpc);
    free(grpc);
    grpc_shutdown();
}

static const struct pp_transport_ops operations = {
    .channel_open = pp_grpc_channel_open,
    .channel_close = pp_grpc_channel_close,
    .call_start = pp_grpc_call_start,
    .call_accept = pp_grpc_call_accept,
    .call_send = pp_grpc_call_send,
    .call_receive = pp_grpc_call_receive,
    .call_cancel = pp_grpc_call_cancel,
    .call_finish = pp_grpc_call_finish,
    .call_peer = pp_grpc_call_peer,
    .server_start = pp_grpc_server_start,
    .server_drain = pp_grpc_server_drain,
    .server_stop = pp_grpc_server_stop,
    .poll = pp_grpc_poll,
    .wake = pp_grpc_wake,
    .destroy = transport_destroy,
};

/* gRPC's errors are warnings of ours: what they mean for a call reaches its owner as a status. */
static void route_log(gpr_log_func_args *line)
{
    enum pp_log_level level = line->severity == GPR_LOG_SEVERITY_ERROR ? PP_LOG_WARN : PP_LOG_DEBUG;
    PP_LOG(level, "grpc", "library", "text=\"%s\"", line->message);
}

/* Debian's abseil keeps a graph of all locks to report deadlocks, in every lock and unlock of
 * gRPC's: 2 to 3 us of a round trip of 30. Its switch is a C++ function of no C header; where it
 * has another name nothing changes but speed. */
static void quiet_lock_graph(void)
{
    static const char *const name =
        "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE";
    void (*set_mode)(int mode) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(&set_mode, &symbol, sizeof(set_mode));
    if (set_mode != NULL) {
        set_mode(0); /* OnDeadlockCycle::kIgnore */
    }
}

/* Without this gRPC 1.51 takes read buffers of 8 or 64 KiB, whatever grpc_args.c says. A name that
 * another version does not know is logged and changes nothing. Who set the variable keeps it. */
static void choose_read_buffers(void)
{
    setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0);
}

/* Its threads inherit the mask: signals stay the main thread's. */
static void library_start(void)
{
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    gpr_set_log_function(route_log);
    quiet_lock_graph();
    choose_read_buffers();
    grpc_init();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

enum pp_status pp_grpc_transport_new(const struct pp_grpc_config *config,
                                     struct pp_transport **transport_out)
{
    if (config->clock.now_us == NULL || config->message_bytes_max > MESSAGE_BYTES_LIMIT) {
        return PP_INVALID_ARGUMENT;
    }
    struct pp_grpc *grpc = calloc(1, sizeof(*grpc));
    if (grpc == NULL) {
        return PP_MEMORY;
    }
    library_start();
    grpc->base.ops = &operations;
    grpc->base.clock = config->clock;
    grpc->quota_bytes = config->quota_bytes != 0 ? config->quota_bytes : PP_GRPC_QUOTA_BYTES;
    grpc->message_bytes_max =
        config->message_bytes_max != 0 ? config->message_bytes_max : PP_MESSAGE_BYTES_MAX;
    pp_spin_init(&grpc->spin, config->spin_us, config->spin_always, pp_spin_cores());
    pp_grpc_messages_init(grpc);
    grpc->quota = grpc_resource_quota_create("pigpen");
    grpc_resource_quota_resize(grpc->quota, grpc->quota_bytes);
    enum pp_status status = pp_grpc_loop_init(grpc);
    if (status != PP_OK) {
        goto err_loop;
    }
    *transport_out = &grpc->base;
    return PP_OK;

err_loop:
    grpc_resource_quota_unref(grpc->quota);
    pp_grpc_messages_deinit(grpc);
    free(grpc);
    grpc_shutdown();
    return status;
}
