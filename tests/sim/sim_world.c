/*
 * The simulated cluster. See sim_world.h.
 */
#include "tests/sim/sim_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/exec/exec_internal.h"
#include "attn-node/service/internal.h"
#include "common/base/assert.h"
#include "gpu-worker/remote/internal.h"

#define NODE_STATS   1024u
#define WORKER_STATS 256u
#define TICK_US      20000u
#define FAR_AWAY     8u /* times the delay of others */
/* Waits of more than a second look at the world so often. */
#define TICK_COARSE_US 500000u

const char *const sim_seen_names[SIM_SEEN_COUNT] = {
    [SIM_SEEN_BREAKS] = "connections broken by a message",
    [SIM_SEEN_DUPLICATES] = "answers delivered twice",
    [SIM_SEEN_LATE_ANSWERS] = "answers too late",
    [SIM_SEEN_RESENDS] = "appends sent again",
    [SIM_SEEN_HEDGES] = "second nodes asked",
    [SIM_SEEN_PARTS_LOST] = "parts lost",
    [SIM_SEEN_PARTS_BEHIND] = "parts too far behind",
    [SIM_SEEN_PARTS_COPIED] = "parts copied",
    [SIM_SEEN_APPENDS_REPEATED] = "appends held already",
    [SIM_SEEN_MEMORY_REFUSED] = "refusals for want of memory",
    [SIM_SEEN_LEASES_ENDED] = "leases ended",
    [SIM_SEEN_RECOVERIES] = "recoveries",
    [SIM_SEEN_ENDED] = "sequences ended",
    [SIM_SEEN_ANSWERS] = "answers right",
    [SIM_SEEN_ROWS_READ] = "rows read back",
};

static struct pp_rng entropy;

enum pp_status pp_rng_system(void *out, uint64_t bytes)
{
    uint8_t *at = out;
    for (uint64_t i = 0; i < bytes; ++i) {
        at[i] = (uint8_t)pp_rng_u64(&entropy);
    }
    return PP_OK;
}

/* The bodies of a node's rpc thread and exec thread, once each. */
static bool node_step(void *context)
{
    struct sim_node *node = context;
    uint64_t net_us = pp_sim_net_now_us(node->world->net);
    if (net_us < node->next_us) {
        return false;
    }
    node->next_us = net_us + node->slow_us;
    uint64_t now_us = pp_clock_now_us(&node->transport->clock);
    size_t events = node->transport->ops->poll(node->transport, now_us);
    uint32_t jobs = an_exec_poll(node->exec, 0);
    uint32_t answers = an_service_poll(node->service);
    return events + jobs + answers > 0;
}

static void node_start(struct sim_node *node)
{
    struct pp_sim_net *net = node->world->net;
    node->incarnation++;
    snprintf(node->address, sizeof(node->address), "%s:%u", node->name, 7450 + node->moves);
    node->transport = pp_sim_transport_new(net, node->name);
    PP_ASSERT(pp_stats_init(&node->stats, NODE_STATS) == PP_OK);
    struct an_exec_config exec = {
        .clock = pp_sim_clock(net, node->name),
        .memory_limit_bytes = SIM_MEMORY_BYTES,
        .threads = 1,
        .seal_tokens = node->world->config.seal_tokens,
        .index_tokens_min = node->world->config.seal_tokens,
        .lease_us = 10 * SIM_LEASE_US,
        .build_sync = true,
        .hugepages = PP_HUGEPAGES_OFF,
        .queue_depth = 256,
        .stats = &node->stats,
    };
    PP_ASSERT(an_exec_new(&exec, &node->exec) == PP_OK);
    struct an_service_config service = {
        .transport = node->transport,
        .exec = node->exec,
        .clock = pp_sim_clock(net, node->name),
        .incarnation = node->incarnation,
        .lease_us = 10 * SIM_LEASE_US,
        .memory_limit_bytes = SIM_MEMORY_BYTES / 4,
        .threads = 1,
        .self_test_us = 120000000,
        .node_name = node->name,
        .version = "simulated",
        .commit = "none",
        .isa = "any",
        .stats = &node->stats,
    };
    PP_ASSERT(an_service_new(&service, &node->service) == PP_OK);
    int port = 0;
    PP_ASSERT(an_service_listen(node->service, node->address, NULL, &port) == PP_OK);
    pp_sim_process(node->transport, node_step, node);
}

static void see(struct sim_world *world, enum sim_seen what, const struct pp_stat *stat)
{
    world->seen[what] += (uint64_t)pp_stat_value(stat);
}

static void node_stop(struct sim_node *node)
{
    struct sim_world *world = node->world;
    see(world, SIM_SEEN_APPENDS_REPEATED, node->exec->stats.append_duplicates);
    see(world, SIM_SEEN_LEASES_ENDED, node->exec->stats.parts_expired);
    see(world, SIM_SEEN_MEMORY_REFUSED, node->service->metrics.rejected[PP_MEMORY]);
    sim_node_empty(node);
    an_service_stop(node->service);
    node->transport->ops->server_stop(node->transport);
    while (!an_service_idle(node->service)) {
        (void)an_exec_poll(node->exec, 0);
        (void)an_service_poll(node->service);
    }
    node->transport->ops->destroy(node->transport);
    an_service_destroy(node->service);
    an_exec_destroy(node->exec);
    pp_stats_deinit(&node->stats);
}

void sim_node_fill(struct sim_node *node, uint64_t left_bytes)
{
    struct pp_limit *limit = &node->exec->limit;
    uint64_t free_bytes = limit->bytes_max - pp_limit_used(limit);
    if (free_bytes > left_bytes &&
        pp_limit_reserve(limit, PP_MEMORY_KV, free_bytes - left_bytes) == PP_OK) {
        node->ballast_bytes += free_bytes - left_bytes;
    }
}

void sim_node_empty(struct sim_node *node)
{
    pp_limit_release(&node->exec->limit, PP_MEMORY_KV, node->ballast_bytes);
    node->ballast_bytes = 0;
}

void sim_node_heal_link(struct sim_node *node)
{
    struct pp_sim_net *net = node->world->net;
    uint64_t least_us = node->world->config.net.delay_us_min;
    pp_sim_link_delay(net, "worker", node->name, least_us, node->delay_us_max);
    pp_sim_link_cut(net, "worker", node->name, false);
}

void sim_node_crash(struct sim_node *node, bool silent)
{
    pp_sim_crash(node->transport, silent);
    node->crashed = true;
}

void sim_node_restart(struct sim_node *node, bool moved)
{
    node_stop(node);
    node->crashed = false;
    node->moves += moved ? 1 : 0;
    node->slow_us = node->next_us = 0;
    node_start(node);
}

bool sim_node_holds(const struct sim_node *node, uint64_t incarnation, uint64_t handle,
                    uint32_t layer, uint64_t *tokens_out, uint64_t *generation_out)
{
    if (node->crashed || node->incarnation != incarnation) {
        return false;
    }
    const struct an_part *part = an_table_peek(&node->exec->table, handle);
    if (part == NULL) {
        return false;
    }
    *tokens_out = an_layer_held(&part->layers[layer]);
    *generation_out = part->generation;
    return true;
}

const struct sim_node *sim_world_node_at(const struct sim_world *world, const char *address)
{
    for (uint32_t i = 0; i < world->config.node_count; ++i) {
        if (strcmp(world->nodes[i].address, address) == 0) {
            return &world->nodes[i];
        }
    }
    return NULL;
}

/* The nodes of the worker's list; how many they are. */
static uint32_t list_nodes(const struct sim_world *world, struct gw_node_address *nodes_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->config.node_count; ++i) {
        const struct sim_node *node = &world->nodes[i];
        if (node->listed) {
            memset(&nodes_out[count], 0, sizeof(*nodes_out));
            snprintf(nodes_out[count].name, sizeof(nodes_out->name), "%s", node->name);
            snprintf(nodes_out[count++].address, sizeof(nodes_out->address), "%s", node->address);
        }
    }
    return count;
}

void sim_world_update(struct sim_world *world)
{
    struct gw_node_address nodes[SIM_NODES_MAX];
    uint32_t count = list_nodes(world, nodes);
    PP_ASSERT(gw_remote_update(world->remote, nodes, count) == PP_OK);
}

static void worker_start(struct sim_world *world)
{
    world->worker = pp_sim_transport_new(world->net, "worker");
    PP_ASSERT(pp_stats_init(&world->worker_stats, WORKER_STATS) == PP_OK);
    struct gw_remote_config config = {
        .transport = world->worker,
        .clock = pp_sim_clock(world->net, "worker"),
        .shard = world->config.shard,
        .replicas = world->config.replicas,
        .attend_timeout_us = 1500000,
        .call_timeout_us = 4000000,
        .outbox_bytes_max = 1 << 16,
        .stats = &world->worker_stats,
    };
    config.node_count = list_nodes(world, config.nodes);
    PP_ASSERT(gw_remote_new(&config, &world->remote) == PP_OK);
}

static void worker_stop(struct sim_world *world)
{
    const struct gw_remote *remote = world->remote;
    see(world, SIM_SEEN_LATE_ANSWERS, remote->late_answers);
    see(world, SIM_SEEN_RESENDS, remote->append_resends);
    see(world, SIM_SEEN_HEDGES, remote->hedges);
    see(world, SIM_SEEN_PARTS_LOST, remote->parts_lost);
    see(world, SIM_SEEN_PARTS_BEHIND, remote->parts_behind);
    see(world, SIM_SEEN_PARTS_COPIED, remote->parts_copied);
    gw_remote_destroy(world->remote);
    world->worker->ops->destroy(world->worker);
    pp_stats_deinit(&world->worker_stats);
}

void sim_world_replace_worker(struct sim_world *world)
{
    worker_stop(world);
    world->worker_crashed = false;
    worker_start(world);
}

uint64_t sim_world_now_us(const struct sim_world *world)
{
    return pp_clock_now_us(&world->worker->clock);
}

void sim_world_wait(struct sim_world *world, uint64_t us)
{
    uint64_t end_us = pp_sim_net_now_us(world->net) + us;
    pp_sim_net_tick(world->net, us > 1000000 ? TICK_COARSE_US : TICK_US);
    for (uint64_t now_us; (now_us = pp_sim_net_now_us(world->net)) < end_us;) {
        (void)gw_remote_poll(world->remote, sim_world_now_us(world) + (end_us - now_us));
    }
    pp_sim_net_tick(world->net, TICK_US);
}

void sim_world_stall(struct sim_world *world, uint64_t us)
{
    pp_sim_pause(world->worker, true);
    pp_sim_net_tick(world->net, TICK_COARSE_US);
    (void)pp_sim_net_run(world->net, pp_sim_net_now_us(world->net) + us, NULL, NULL);
    pp_sim_net_tick(world->net, TICK_US);
    pp_sim_pause(world->worker, false);
}

void sim_world_init(struct sim_world *world, const struct sim_world_config *config)
{
    memset(world, 0, sizeof(*world));
    entropy = (struct pp_rng){.seed = config->net.seed ^ 0x656e74726f7079u};
    world->config = *config;
    world->config.net.tick_us = TICK_US;
    world->net = pp_sim_net_new(&world->config.net);
    for (uint32_t i = 0; i < config->node_count; ++i) {
        struct sim_node *node = &world->nodes[i];
        node->world = world;
        node->incarnation = 1000 * (i + 1);
        node->listed = i < config->listed_count;
        node->delay_us_max = config->net.delay_us_max * (i % 3 == 2 ? FAR_AWAY : 1);
        snprintf(node->name, sizeof(node->name), "node-%u", i);
        sim_node_heal_link(node);
        node_start(node);
    }
    worker_start(world);
}

void sim_world_deinit(struct sim_world *world)
{
    worker_stop(world);
    for (uint32_t i = 0; i < world->config.node_count; ++i) {
        node_stop(&world->nodes[i]);
    }
    world->seen[SIM_SEEN_BREAKS] += pp_sim_net_breaks(world->net);
    world->seen[SIM_SEEN_DUPLICATES] += pp_sim_net_duplicates(world->net);
    pp_sim_net_destroy(world->net);
}
