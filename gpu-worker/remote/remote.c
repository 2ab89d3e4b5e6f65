/*
 * The remote as a whole: construction, the rpc thread's body, and the hand-over between it and the
 * engine thread. On the walk: engine/step > remote > rpc. It refuses to know what the commands do.
 */
#include "gpu-worker/remote/remote.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "gpu-worker/remote/attn_client.h"
#include "gpu-worker/remote/internal.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/outbox.h"

/* Chunks of one prefill layer on all nodes, dispatches and unary calls of all sequences. */
#define COMMANDS_MAX 4096u
/* The largest answer plus its unpacked header. */
#define ARENA_BYTES      (PP_MESSAGE_BYTES_MAX + (1u << 20))
#define OUTBOX_BYTES_MIN (1ull << 16)
#define POLL_US          50000u
#define PROBE_PERIOD_US  100000u
/* How long a node may take to answer one probe; it is probed again until the wait ends. */
#define PROBE_PATIENCE_US 2000000u

struct gw_buffer *gw_buffer_new(uint64_t bytes)
{
    struct gw_buffer *buffer = malloc(sizeof(*buffer) + bytes);
    if (buffer != NULL) {
        atomic_init(&buffer->refs, 1);
        buffer->bytes = bytes;
    }
    return buffer;
}

void gw_buffer_release(void *context)
{
    struct gw_buffer *buffer = context;
    if (atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel) == 1) {
        free(buffer);
    }
}

/* Series that nobody collects, so that counting needs no branches. */
static struct pp_stat unread[11];

static void register_stats(struct gw_remote *remote)
{
    struct pp_stats *stats = remote->config.stats;
    remote->late_answers = &unread[0];
    remote->failures = &unread[1];
    remote->outbox_bytes = &unread[2];
    remote->append_resends = &unread[3];
    remote->parts_lost = &unread[6];
    remote->hedges = &unread[7];
    remote->parts_copied = &unread[8];
    remote->parts_grown = &unread[9];
    remote->parts_behind = &unread[10];
    if (stats != NULL) {
        remote->late_answers = pp_stats_counter(stats, "pigpen_worker_late_answers_total", "",
                                                "Answers that came after their request ended.");
        remote->failures = pp_stats_counter(stats, "pigpen_worker_remote_failures_total", "",
                                            "Sequences ended by a failure of a node.");
        remote->outbox_bytes = pp_stats_gauge(stats, "pigpen_worker_outbox_bytes", "",
                                              "K/V waiting for acknowledgement.");
        remote->append_resends = pp_stats_counter(stats, "pigpen_worker_append_resends_total", "",
                                                  "Append messages sent again.");
        remote->parts_lost = pp_stats_counter(stats, "pigpen_worker_parts_lost_total", "",
                                              "Parts that a node no longer serves.");
        remote->parts_behind =
            pp_stats_counter(stats, "pigpen_worker_parts_behind_total", "",
                             "Lost parts whose node works, but took appends too slowly.");
        remote->parts_copied = pp_stats_counter(stats, "pigpen_worker_parts_copied_total", "",
                                                "Parts copied from node to node.");
        remote->parts_grown =
            pp_stats_counter(stats, "pigpen_worker_parts_grown_total", "",
                             "Parts that ended where their node had no room, to go on elsewhere.");
        remote->hedges = pp_stats_counter(stats, "pigpen_worker_hedges_total", "",
                                          "Attends that a second node was asked.");
    }
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        gw_remote_register_node(remote, &remote->nodes[i]);
    }
}

void gw_remote_register_node(struct gw_remote *remote, struct gw_node *node)
{
    struct pp_stats *stats = remote->config.stats;
    node->up = &unread[4];
    node->rtt = &unread[5];
    if (stats != NULL) {
        snprintf(node->labels, sizeof(node->labels), "node=\"%s\",address=\"%s\"",
                 node->address.name, node->address.address);
        node->up = pp_stats_gauge(stats, "pigpen_worker_node_up", node->labels,
                                  "1 while the node answers.");
        node->rtt = pp_stats_histogram(stats, "pigpen_worker_node_rtt_seconds", node->labels,
                                       "Dispatch of an attend to its answer.", 50e-6, 2, 20);
    }
}

static enum pp_status check_config(const struct gw_remote_config *config)
{
    bool right = config->transport != NULL && config->clock.now_us != NULL &&
                 config->node_count >= 1 && config->node_count <= GW_NODES_MAX &&
                 config->replicas <= GW_REPLICAS_MAX &&
                 config->outbox_bytes_max >= OUTBOX_BYTES_MIN && config->attend_timeout_us > 0 &&
                 config->call_timeout_us > 0;
    return right ? PP_OK : PP_INVALID_ARGUMENT;
}

enum pp_status gw_remote_new(const struct gw_remote_config *config, struct gw_remote **remote_out)
{
    PP_TRY(check_config(config));
    struct gw_remote *remote = calloc(1, sizeof(*remote));
    if (remote == NULL) {
        return PP_MEMORY;
    }
    remote->config = *config;
    remote->config.replicas = config->replicas > 0 ? config->replicas : 1;
    remote->next_request_id = 1;
    enum pp_status status = PP_MEMORY;
    remote->nodes = calloc(GW_NODES_MAX, sizeof(*remote->nodes));
    if (remote->nodes == NULL) {
        goto err_destroy;
    }
    status = pp_ring_new(COMMANDS_MAX, &remote->commands);
    status = status == PP_OK ? pp_ring_new(2, &remote->events) : status;
    status = status == PP_OK ? pp_codec_arena_init(&remote->arena, ARENA_BYTES) : status;
    status =
        status == PP_OK ? gw_outbox_memory_new(config->outbox_bytes_max, &remote->outbox) : status;
    for (uint32_t i = 0; i < config->node_count && status == PP_OK; ++i) {
        status = gw_node_init(&remote->nodes[i], remote, i);
    }
    if (status != PP_OK) {
        goto err_destroy;
    }
    register_stats(remote);
    *remote_out = remote;
    return PP_OK;
err_destroy:
    gw_remote_destroy(remote);
    return status;
}

void gw_remote_destroy(struct gw_remote *remote)
{
    if (remote == NULL) {
        return;
    }
    PP_ASSERT(remote->thread == NULL && remote->sequences == NULL);
    for (uint32_t i = 0; remote->nodes != NULL && i < remote->config.node_count; ++i) {
        gw_node_deinit(&remote->nodes[i]);
    }
    gw_outbox_memory_release(remote->outbox);
    pp_codec_arena_deinit(&remote->arena);
    pp_ring_destroy(remote->events);
    pp_ring_destroy(remote->commands);
    free(remote->nodes);
    free(remote);
}

static uint64_t earlier(uint64_t one_us, uint64_t other_us)
{
    return one_us < other_us ? one_us : other_us;
}

size_t gw_remote_poll(struct gw_remote *remote, uint64_t until_us)
{
    size_t events = 0;
    for (struct gw_command *command; (command = pp_ring_pop(remote->commands)) != NULL;) {
        command->run(remote, command);
        events++;
    }
    uint64_t now_us = gw_remote_now(remote);
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        until_us = earlier(until_us, gw_attn_client_tick(&remote->nodes[i], now_us));
        until_us = earlier(until_us, gw_outbox_tick(&remote->nodes[i], now_us));
        until_us = earlier(until_us, gw_node_tick(&remote->nodes[i], now_us));
    }
    if (remote->config.tick != NULL) {
        until_us = earlier(until_us, remote->config.tick(remote->config.tick_context, now_us));
    }
    until_us = earlier(until_us, gw_unary_tick(remote, now_us));
    until_us = earlier(until_us, gw_sequence_tick(remote, now_us));
    return events + remote->config.transport->ops->poll(remote->config.transport, until_us);
}

static void poll_thread(void *context)
{
    struct gw_remote *remote = context;
    (void)gw_remote_poll(remote, gw_remote_now(remote) + POLL_US);
}

static void kick_thread(void *context)
{
    struct gw_remote *remote = context;
    remote->config.transport->ops->wake(remote->config.transport);
}

enum pp_status gw_remote_start(struct gw_remote *remote)
{
    if (remote->thread != NULL) {
        return PP_FAILED_PRECONDITION;
    }
    remote->threaded = true;
    enum pp_status status = pp_thread_start("gw-rpc", poll_thread, remote, 0, &remote->thread);
    remote->threaded = status == PP_OK;
    return status;
}

void gw_remote_stop(struct gw_remote *remote)
{
    if (remote->thread != NULL) {
        pp_thread_stop(remote->thread, kick_thread, remote);
        remote->thread = NULL;
        remote->threaded = false;
    }
}

void gw_remote_post(struct gw_remote *remote, struct gw_command *command)
{
    if (!remote->threaded) {
        command->run(remote, command);
        return;
    }
    while (!pp_ring_push(remote->commands, command)) {
        gw_remote_pause(remote, gw_remote_now(remote) + 1000);
    }
    remote->config.transport->ops->wake(remote->config.transport);
}

struct errand {
    struct gw_command command;
    void (*body)(void *context);
    void *context;
    _Atomic bool done;
};

static void run_errand(struct gw_remote *remote, struct gw_command *command)
{
    struct errand *errand = (struct errand *)command;
    errand->body(errand->context);
    atomic_store_explicit(&errand->done, true, memory_order_release);
    gw_remote_signal(remote);
}

void gw_remote_run(struct gw_remote *remote, void (*body)(void *context), void *context)
{
    struct errand errand = {.command.run = run_errand, .body = body, .context = context};
    gw_remote_post(remote, &errand.command);
    while (!atomic_load_explicit(&errand.done, memory_order_acquire)) {
        gw_remote_pause(remote, gw_remote_now(remote) + GW_WAIT_PAUSE_US);
    }
}

void gw_remote_pause(struct gw_remote *remote, uint64_t until_us)
{
    if (!remote->threaded) {
        (void)gw_remote_poll(remote, until_us);
        return;
    }
    uint64_t now_us = gw_remote_now(remote);
    if (until_us > now_us) {
        pp_ring_wait(remote->events, GW_WAIT_SPIN_US, until_us - now_us);
    }
}

void gw_remote_signal(struct gw_remote *remote)
{
    if (remote->threaded) {
        pp_ring_wake(remote->events);
    }
}

/* As many as are wanted; the others are tried until they answer. */
static bool enough_serve(struct gw_remote *remote)
{
    uint32_t serving = 0;
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        serving += remote->nodes[i].serving ? 1 : 0;
    }
    if (remote->config.nodes_min == 0 || serving < remote->config.nodes_min) {
        return false;
    }
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        if (!remote->nodes[i].serving) {
            gw_node_fault_from_engine(&remote->nodes[i], PP_UNAVAILABLE);
        }
    }
    return true;
}

enum pp_status gw_remote_ready(struct gw_remote *remote, uint64_t timeout_us,
                               gw_remote_waiting_fn *waiting, void *context)
{
    uint64_t begun_us = gw_remote_now(remote), deadline_us = begun_us + timeout_us;
    /* The last probe is as patient as the first: cut short, it would blame nodes that serve. */
    uint64_t call_us =
        earlier(earlier(timeout_us, PROBE_PATIENCE_US), remote->config.call_timeout_us);
    for (;;) {
        enum pp_status status = gw_node_probe_all(remote, call_us);
        uint64_t now_us = gw_remote_now(remote);
        if (status == PP_UNAVAILABLE && enough_serve(remote)) {
            return PP_OK;
        }
        if (status != PP_UNAVAILABLE || now_us >= deadline_us) {
            return status;
        }
        if (waiting != NULL && !waiting(context, now_us - begun_us)) {
            return PP_CANCELLED;
        }
        uint64_t next_us = earlier(now_us + PROBE_PERIOD_US, deadline_us);
        while (gw_remote_now(remote) < next_us) {
            gw_remote_pause(remote, next_us);
        }
    }
}

const char *gw_remote_missing(const struct gw_remote *remote, uint32_t node)
{
    return remote->nodes[node].serving ? NULL : remote->nodes[node].missing;
}
