/*
 * The simulated world of remote_sim_test: nodes with their real service and exec, and a worker's
 * remote, on one network and one clock in one thread. A node can be restarted: its parts are gone
 * and its incarnation is another one.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_WORLD_H
#define PIGPEN_TESTS_SIM_SIM_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/service/service.h"
#include "common/base/assert.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/remote.h"
#include "tests/sim/sim_net.h"

#define SIM_NODES_MAX    5u
#define SIM_MEMORY_BYTES (256ull << 20)
#define SIM_STATS        1024u

struct sim_node {
    char name[16], address[32];
    struct sim_world *world;
    struct pp_transport *transport;
    struct an_exec *exec;
    struct an_service *service;
    struct pp_stats stats;
    uint64_t incarnation;
    bool paused;
};

struct sim_world {
    struct pp_sim_net *net;
    struct sim_node nodes[SIM_NODES_MAX];
    uint32_t node_count;
    struct pp_transport *worker;
    struct gw_remote *remote;
    uint32_t seal_tokens;
};

/* The bodies of a node's rpc thread and exec thread, once each. */
static inline bool sim_node_step(void *context)
{
    struct sim_node *node = context;
    uint64_t now_us = pp_sim_net_now_us(node->world->net);
    size_t events = node->transport->ops->poll(node->transport, now_us);
    uint32_t jobs = an_exec_poll(node->exec, 0);
    uint32_t answers = an_service_poll(node->service);
    return events + jobs + answers > 0;
}

static inline void sim_node_start(struct sim_node *node)
{
    struct pp_sim_net *net = node->world->net;
    node->incarnation++;
    node->transport = pp_sim_transport_new(net, node->name);
    PP_ASSERT(pp_stats_init(&node->stats, SIM_STATS) == PP_OK);
    struct an_exec_config exec = {
        .clock = pp_sim_net_clock(net),
        .memory_limit_bytes = SIM_MEMORY_BYTES,
        .threads = 1,
        .seal_tokens = node->world->seal_tokens,
        .index_tokens_min = node->world->seal_tokens,
        .lease_us = 600000000,
        .build_sync = true,
        .hugepages = PP_HUGEPAGES_OFF,
        .queue_depth = 256,
        .stats = &node->stats,
    };
    PP_ASSERT(an_exec_new(&exec, &node->exec) == PP_OK);
    struct an_service_config service = {
        .transport = node->transport,
        .exec = node->exec,
        .clock = pp_sim_net_clock(net),
        .incarnation = node->incarnation,
        .lease_us = 600000000,
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
    pp_sim_process(node->transport, sim_node_step, node);
}

static inline void sim_node_stop(struct sim_node *node)
{
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

static inline void sim_node_restart(struct sim_node *node, bool silent)
{
    pp_sim_crash(node->transport, silent);
    sim_node_stop(node);
    node->paused = false;
    sim_node_start(node);
}

static inline void sim_node_pause(struct sim_node *node, bool paused)
{
    node->paused = paused;
    pp_sim_pause(node->transport, paused);
}

static inline void sim_world_init(struct sim_world *world, const struct pp_sim_config *config,
                                  uint32_t node_count, enum gw_shard shard, uint32_t replicas,
                                  uint32_t seal_tokens)
{
    memset(world, 0, sizeof(*world));
    world->net = pp_sim_net_new(config);
    world->node_count = node_count;
    world->seal_tokens = seal_tokens;
    world->worker = pp_sim_transport_new(world->net, "worker");
    struct gw_remote_config remote = {
        .transport = world->worker,
        .clock = pp_sim_net_clock(world->net),
        .node_count = node_count,
        .shard = shard,
        .replicas = replicas,
        .attend_timeout_us = 1500000,
        .call_timeout_us = 4000000,
        .outbox_bytes_max = 1 << 16,
    };
    for (uint32_t i = 0; i < node_count; ++i) {
        struct sim_node *node = &world->nodes[i];
        node->world = world;
        node->incarnation = 1000 * (i + 1);
        snprintf(node->name, sizeof(node->name), "node-%u", i);
        snprintf(node->address, sizeof(node->address), "node-%u:7450", i);
        snprintf(remote.nodes[i].name, sizeof(remote.nodes[i].name), "node-%u", i);
        snprintf(remote.nodes[i].address, sizeof(remote.nodes[i].address), "node-%u:7450", i);
        sim_node_start(node);
    }
    PP_ASSERT(gw_remote_new(&remote, &world->remote) == PP_OK);
}

/* The sequences must have been closed. */
static inline void sim_world_deinit(struct sim_world *world)
{
    gw_remote_destroy(world->remote);
    world->worker->ops->destroy(world->worker);
    for (uint32_t i = 0; i < world->node_count; ++i) {
        sim_node_stop(&world->nodes[i]);
    }
    pp_sim_net_destroy(world->net);
}

#endif
