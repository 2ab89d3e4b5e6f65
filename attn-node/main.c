/*
 * attn-node: options, then the threads of ARCHITECTURE.md around one transport, one exec and one
 * service, then signals. It holds no data of its own: it starts things in order and stops them in
 * the reverse one.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "attn-node/exec/exec.h"
#include "attn-node/files.h"
#include "attn-node/registration.h"
#include "attn-node/service/service.h"
#include "attn-node/settings.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/rng.h"
#include "common/mem/limit.h"
#include "common/obs/admin_http.h"
#include "common/obs/metrics.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/security.h"
#include "common/run/cpu.h"
#include "common/run/team.h"
#include "common/run/thread.h"

#define EXIT_USAGE          2
#define STATS_MAX           1024u
#define LIVE_SILENCE_US     5000000ull
#define STOP_PATIENCE_MS    10000
#define RPC_QUOTA_BYTES_MIN (32ull << 20)
#define EXEC_BYTES_MIN      (32ull << 20)

struct node {
    struct an_settings settings;
    struct pp_options *options;
    int argument_count;
    char **arguments; /* read again at SIGHUP */
    struct pp_clock clock;
    struct pp_stats stats;
    struct pp_tls *tls;
    struct pp_transport *transport;
    struct an_exec *exec;
    struct an_service *service;
    struct pp_admin_http *admin;
    struct an_registration *registration; /* NULL: none */
    struct pp_thread *rpc;
    bool exec_started;
    uint64_t incarnation;
    uint32_t connections_max;
    char host_name[256];
    char build_labels[256];
};

/* How the memory limit is shared out. */
struct budget {
    uint64_t buffers, quota, exec;
};

static enum pp_status share_memory(uint64_t limit, struct budget *budget_out)
{
    struct budget budget = {.buffers = an_service_buffer_bytes(limit), .quota = limit / 16};
    if (budget.quota < RPC_QUOTA_BYTES_MIN) {
        budget.quota = RPC_QUOTA_BYTES_MIN;
    } else if (budget.quota > PP_GRPC_QUOTA_BYTES) {
        budget.quota = PP_GRPC_QUOTA_BYTES;
    }
    uint64_t taken = budget.buffers + budget.quota;
    if (limit < taken + EXEC_BYTES_MIN) {
        fprintf(stderr,
                "attn-node: --memory-limit of %llu bytes is too small: %llu for messages in work + "
                "%llu for the network + at least %llu for K/V = %llu\n",
                (unsigned long long)limit, (unsigned long long)budget.buffers,
                (unsigned long long)budget.quota, (unsigned long long)EXEC_BYTES_MIN,
                (unsigned long long)(taken + EXEC_BYTES_MIN));
        return PP_MEMORY;
    }
    budget.exec = limit - taken;
    *budget_out = budget;
    return PP_OK;
}

static void wake_transport(void *context)
{
    struct node *node = context;
    node->transport->ops->wake(node->transport);
}

static void rpc_poll(void *context)
{
    struct node *node = context;
    uint64_t next_us = an_service_next_us(node->service);
    if (node->registration != NULL) {
        uint64_t now_us = pp_clock_now_us(&node->clock);
        uint64_t tick_us = an_registration_tick(node->registration, now_us);
        next_us = tick_us < next_us ? tick_us : next_us;
    }
    (void)node->transport->ops->poll(node->transport, next_us);
    (void)an_service_poll(node->service);
}

static bool answer_live(void *context, FILE *details)
{
    const struct node *node = context;
    uint64_t ticked_us = an_service_ticked_us(node->service);
    uint64_t now_us = pp_clock_now_us(&node->clock);
    bool ok = now_us < ticked_us + LIVE_SILENCE_US;
    return pp_admin_http_put_check(details, "rpc-loop", ok, ok ? "" : "has not turned for 5 s");
}

static bool answer_ready(void *context, FILE *details)
{
    const struct node *node = context;
    const char *why;
    bool ready = an_service_ready(node->service, &why);
    bool live = answer_live(context, details);
    bool fits = true;
    if (node->registration != NULL) {
        char detail[320];
        fits = an_registration_fits(node->registration, detail, sizeof(detail));
        (void)pp_admin_http_put_check(details, "registration", fits, detail);
    }
    return pp_admin_http_put_check(details, "service", ready, ready ? "" : why) && live && fits;
}

static void answer_metrics(void *context, FILE *output)
{
    const struct node *node = context;
    pp_metrics_render(&node->stats, output);
    pp_metrics_render_process(output);
}

static void answer_config(void *context, FILE *output)
{
    const struct node *node = context;
    pp_options_print(node->options, output);
}

static enum pp_status write_number(const char *path, int number)
{
    if (path[0] == '\0') {
        return PP_OK;
    }
    char part[4096];
    int length = snprintf(part, sizeof(part), "%s.part", path);
    FILE *file = length > 0 && (size_t)length < sizeof(part) ? fopen(part, "w") : NULL;
    bool ok = file != NULL && fprintf(file, "%d\n", number) > 0;
    ok = file != NULL && fclose(file) == 0 && ok;
    if (!ok || rename(part, path) != 0) {
        PP_LOG_ERRORF("main", "port file not written", "path=\"%s\" error=\"%s\"", path,
                      strerror(errno));
        return PP_IO;
    }
    return PP_OK;
}

static enum pp_status start_tls(struct node *node)
{
    const struct an_settings *settings = &node->settings;
    if (settings->tls_cert_file[0] == '\0') {
        return PP_OK;
    }
    const struct pp_tls_config config = {
        .cert_file = settings->tls_cert_file,
        .key_file = settings->tls_key_file,
        .ca_file = settings->tls_ca_file[0] != '\0' ? settings->tls_ca_file : NULL,
        .client_auth = settings->tls_client_auth,
    };
    return pp_tls_new(&config, &node->tls);
}

static enum pp_status start_parts(struct node *node, const struct budget *budget)
{
    const struct an_settings *settings = &node->settings;
    const struct pp_grpc_config grpc = {
        .clock = node->clock, .spin_us = settings->spin_us, .quota_bytes = budget->quota};
    PP_TRY(pp_grpc_transport_new(&grpc, &node->transport));
    uint32_t threads =
        settings->threads != 0 ? (uint32_t)settings->threads : pp_team_threads_default();
    struct pp_topology topology;
    bool known = pp_topology_read(&topology) == PP_OK;
    const struct an_exec_config exec = {
        .clock = node->clock,
        .memory_limit_bytes = budget->exec,
        .threads = threads,
        .seal_tokens = (uint32_t)settings->seal_tokens,
        .index_tokens_min = (uint32_t)settings->index_tokens_min,
        .lease_us = settings->lease_us,
        .build_sync = settings->build == 1,
        .hugepages = (enum pp_hugepages)settings->hugepages,
        .topology = known ? &topology : NULL,
        .queue_depth = 256,
        .shadow_every = settings->shadow_every,
        .stats = &node->stats,
        .wake = wake_transport,
        .wake_context = node,
    };
    PP_TRY(an_exec_new(&exec, &node->exec));
    PP_TRY(an_files_plan(settings->connections_max, budget->quota, &node->connections_max));
    const struct an_service_config service = {
        .transport = node->transport,
        .exec = node->exec,
        .clock = node->clock,
        .incarnation = node->incarnation,
        .lease_us = settings->lease_us,
        .memory_limit_bytes = settings->memory_limit,
        .connections_max = node->connections_max,
        .threads = threads,
        .node_name = node->host_name,
        .version = PP_VERSION,
        .commit = PP_COMMIT,
        .isa = pp_isa_name(pp_isa_get()),
        .stats = &node->stats,
    };
    return an_service_new(&service, &node->service);
}

/* The address that workers are told: the listening one, with the port that it got. */
static enum pp_status start_registration(struct node *node, int port)
{
    const struct an_settings *settings = &node->settings;
    char advertise[256];
    if (settings->registration[0] == '\0') {
        return PP_OK;
    }
    const char *colon = strrchr(settings->listen, ':');
    int host = colon == NULL ? 0 : (int)(colon - settings->listen);
    snprintf(advertise, sizeof(advertise), "%.*s:%d", host, settings->listen, port);
    const struct an_registration_config config = {
        .transport = node->transport,
        .clock = node->clock,
        .target = settings->registration,
        .name = node->host_name,
        .advertise = settings->advertise[0] != '\0' ? settings->advertise : advertise,
        .incarnation = node->incarnation,
        .lease_s = settings->registration_lease_us / 1000000};
    return an_registration_new(&config, &node->registration);
}

static enum pp_status start_listening(struct node *node, int *port_out, uint16_t *admin_port_out)
{
    const struct an_settings *settings = &node->settings;
    PP_TRY(an_service_listen(node->service, settings->listen, node->tls, port_out));
    if (settings->admin_listen[0] != '\0') {
        const struct pp_admin_http_calls calls = {
            .context = node,
            .live = answer_live,
            .ready = answer_ready,
            .metrics = answer_metrics,
            .config = answer_config,
        };
        PP_TRY(pp_admin_http_start(settings->admin_listen, &calls, admin_port_out, &node->admin));
        PP_TRY(write_number(settings->admin_port_file, *admin_port_out));
    }
    PP_TRY(start_registration(node, *port_out));
    PP_TRY(an_exec_start(node->exec));
    node->exec_started = true;
    return pp_thread_start("rpc", rpc_poll, node, 0, &node->rpc);
}

static enum pp_status prepare(struct node *node, struct budget *budget_out)
{
    node->clock = pp_clock_system();
    PP_TRY(share_memory(node->settings.memory_limit, budget_out));
    uint64_t available = pp_memory_available_bytes();
    if (node->settings.memory_limit > available) {
        PP_LOG_WARNF("main", "the memory limit is above what there is", "limit=%llu available=%llu",
                     (unsigned long long)node->settings.memory_limit,
                     (unsigned long long)available);
    }
    PP_TRY(pp_rng_system(&node->incarnation, sizeof(node->incarnation)));
    node->incarnation |= 1; /* 0 means any */
    (void)snprintf(node->host_name, sizeof(node->host_name), "%s", node->settings.node_name);
    if (node->host_name[0] == '\0' &&
        gethostname(node->host_name, sizeof(node->host_name) - 1) != 0) {
        (void)snprintf(node->host_name, sizeof(node->host_name), "attn-node");
    }
    PP_TRY(pp_stats_init(&node->stats, STATS_MAX));
    (void)snprintf(node->build_labels, sizeof(node->build_labels),
                   "version=\"%s\",commit=\"%s\",isa=\"%s\"", PP_VERSION, PP_COMMIT,
                   pp_isa_name(pp_isa_get()));
    pp_stat_set(pp_stats_gauge(&node->stats, "pigpen_node_build_info", node->build_labels,
                               "Always 1; the labels say what runs."),
                1);
    return start_tls(node);
}

static enum pp_status start(struct node *node)
{
    struct budget budget;
    PP_TRY(prepare(node, &budget));
    PP_TRY(start_parts(node, &budget));
    int port = 0;
    uint16_t admin_port = 0;
    PP_TRY(start_listening(node, &port, &admin_port));
    PP_LOG_INFOF("main", "boot",
                 "version=%s commit=%s node=%s incarnation=%016llx isa=%s memory_limit=%llu "
                 "kv_bytes=%llu buffer_bytes=%llu quota_bytes=%llu listen=%s port=%d "
                 "admin_port=%u tls=%s connections_max=%u",
                 PP_VERSION, PP_COMMIT, node->host_name, (unsigned long long)node->incarnation,
                 pp_isa_name(pp_isa_get()), (unsigned long long)node->settings.memory_limit,
                 (unsigned long long)budget.exec, (unsigned long long)budget.buffers,
                 (unsigned long long)budget.quota, node->settings.listen, port, admin_port,
                 node->tls != NULL ? "on" : "off", node->connections_max);
    return write_number(node->settings.port_file, port);
}

/* The next signal, or 0 after wait_ms. */
static int next_signal(const sigset_t *signals, long wait_ms)
{
    struct timespec wait = {.tv_sec = wait_ms / 1000, .tv_nsec = wait_ms % 1000 * 1000000};
    int number = sigtimedwait(signals, NULL, &wait);
    return number > 0 ? number : 0;
}

static bool ends(int number)
{
    return number == SIGTERM || number == SIGINT;
}

/* Nothing is left to serve. */
static bool drained(const struct node *node)
{
    struct an_exec_usage usage;
    an_exec_usage(node->exec, &usage);
    bool left = node->registration == NULL || an_registration_left(node->registration);
    return left && usage.parts == 0 && an_service_idle(node->service) &&
           an_service_state(node->service) == AN_DRAINING;
}

/* SIGHUP: what can change while the node runs is read again, all of it or nothing. The settings
 * stay what they were at start otherwise, and so does /config. */
static void reload(struct node *node)
{
    struct an_settings settings;
    struct pp_options *options = NULL;
    enum pp_options_outcome outcome;
    enum pp_status status =
        an_settings_parse(node->argument_count, node->arguments, &settings, &outcome, &options);
    if (status == PP_OK && node->tls != NULL) {
        status = pp_tls_reload(node->tls);
    }
    if (status == PP_OK) {
        pp_log_configure((enum pp_log_level)settings.log_level,
                         (enum pp_log_format)settings.log_format);
        PP_LOG_WARNF("main", "reloaded", "log_level=%s tls=%s",
                     pp_log_level_name((enum pp_log_level)settings.log_level),
                     node->tls != NULL ? "read again" : "off");
    } else {
        PP_LOG_ERRORF("main", "SIGHUP: nothing reloaded", "status=%s", pp_status_name(status));
    }
    pp_options_destroy(options);
}

static void run(struct node *node, const sigset_t *signals)
{
    bool announced = false;
    int number = 0;
    while (!ends(number)) {
        number = next_signal(signals, announced ? 1000 : 20);
        if (!announced && an_service_state(node->service) == AN_SERVING) {
            announced = true;
            PP_LOG_INFOF("main", "READY", "node=%s", node->host_name);
        }
        if (number == SIGHUP) {
            reload(node);
        }
    }
    uint64_t until_us = pp_clock_now_us(&node->clock) + node->settings.drain_timeout_us;
    PP_LOG_INFOF("main", "draining", "timeout_us=%llu",
                 (unsigned long long)node->settings.drain_timeout_us);
    an_service_ends_at(node->service, until_us);
    an_service_drain(node->service);
    if (node->registration != NULL) {
        an_registration_leave(node->registration);
    }
    wake_transport(node);
    number = 0;
    while (!drained(node) && pp_clock_now_us(&node->clock) < until_us && !ends(number)) {
        number = next_signal(signals, 20);
    }
    struct an_exec_usage usage;
    an_exec_usage(node->exec, &usage);
    PP_LOG_INFOF("main", "drained", "parts_left=%llu cause=\"%s\"", (unsigned long long)usage.parts,
                 drained(node)  ? "nothing is left"
                 : ends(number) ? "a second signal"
                                : "--drain-timeout");
}

/* Jobs still with exec come back, so that what they hold of the transport is given up. */
static void settle(struct node *node)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int waited = 0; waited < STOP_PATIENCE_MS; ++waited) {
        (void)an_service_poll(node->service);
        if (an_service_idle(node->service)) {
            return;
        }
        (void)nanosleep(&pause, NULL);
    }
    PP_LOG_ERRORF("main", "jobs did not come back", "waited_ms=%d", STOP_PATIENCE_MS);
    _exit(EXIT_FAILURE); /* their buffers are in use: nothing may be freed */
}

static void stop(struct node *node)
{
    if (node->service != NULL) {
        an_service_stop(node->service);
    }
    if (node->rpc != NULL) {
        pp_thread_stop(node->rpc, wake_transport, node);
    }
    if (node->exec_started) {
        node->transport->ops->server_stop(node->transport);
        settle(node);
        an_exec_stop(node->exec);
    }
    pp_admin_http_stop(node->admin);
    an_registration_destroy(node->registration);
    if (node->transport != NULL) {
        node->transport->ops->destroy(node->transport);
    }
    an_service_destroy(node->service); /* after the transport: it may still send from buffers */
    if (node->exec != NULL) {
        an_exec_destroy(node->exec);
    }
    if (node->tls != NULL) {
        pp_tls_destroy(node->tls);
    }
    pp_stats_deinit(&node->stats);
    pp_options_destroy(node->options);
}

int main(int argc, char **argv)
{
    static struct node node = {0};
    node.argument_count = argc;
    node.arguments = argv;
    enum pp_options_outcome outcome;
    if (an_settings_parse(argc, argv, &node.settings, &outcome, &node.options) != PP_OK) {
        return EXIT_USAGE;
    }
    if (outcome == PP_OPTIONS_EXIT_0) {
        return EXIT_SUCCESS;
    }
    pp_log_configure((enum pp_log_level)node.settings.log_level,
                     (enum pp_log_format)node.settings.log_format);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    enum pp_status status = start(&node);
    if (status == PP_OK) {
        run(&node, &signals);
    } else {
        PP_LOG_ERRORF("main", "start failed", "status=%s", pp_status_name(status));
    }
    stop(&node);
    PP_LOG_INFOF("main", "stopped", "status=%s", pp_status_name(status));
    return status == PP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
