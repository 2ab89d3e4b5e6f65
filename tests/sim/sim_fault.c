/*
 * Faults of a simulated cluster. See sim_fault.h.
 */
#include "tests/sim/sim_fault.h"

#include <string.h>

#include "attn-node/service/service.h"
#include "common/base/assert.h"

#define SECOND       1000000u
#define MESSAGES_MAX 30u

const char *const sim_fault_names[SIM_FAULT_COUNT] = {
    [SIM_NODE_CRASH + PP_SIM_BEFORE_SEND] = "node crashes before it sends",
    [SIM_NODE_CRASH + PP_SIM_AFTER_SEND] = "node crashes after it sent",
    [SIM_NODE_CRASH + PP_SIM_BEFORE_RECEIVE] = "node crashes before it is told",
    [SIM_NODE_CRASH + PP_SIM_AFTER_RECEIVE] = "node crashes after it was told",
    [SIM_WORKER_CRASH + PP_SIM_BEFORE_SEND] = "worker crashes before it sends",
    [SIM_WORKER_CRASH + PP_SIM_AFTER_SEND] = "worker crashes after it sent",
    [SIM_WORKER_CRASH + PP_SIM_BEFORE_RECEIVE] = "worker crashes before it is told",
    [SIM_WORKER_CRASH + PP_SIM_AFTER_RECEIVE] = "worker crashes after it was told",
    [SIM_LINK_BREAK] = "connections to a node break",
    [SIM_LINK_SLOW] = "slow link",
    [SIM_PARTITION] = "partition",
    [SIM_PARTITION_TO_NODE] = "partition towards a node",
    [SIM_PARTITION_TO_WORKER] = "partition towards the worker",
    [SIM_NODE_PAUSE] = "node stands still",
    [SIM_NODE_SLOW] = "slow node",
    [SIM_NODE_DRAIN] = "node drains",
    [SIM_MEMORY_FULL] = "memory full",
    [SIM_NODE_CLOCK_FORWARD] = "node's clock goes forward",
    [SIM_NODE_CLOCK_BACK] = "node's clock goes back",
    [SIM_WORKER_CLOCK_FORWARD] = "worker's clock goes forward",
    [SIM_WORKER_CLOCK_BACK] = "worker's clock goes back",
    [SIM_WORKER_STALL] = "worker stands still",
    [SIM_NODE_LEAVES] = "node leaves the list",
    [SIM_NODE_JOINS] = "node joins the list",
    [SIM_NODE_MOVES] = "node moves to another address",
};

static uint64_t draw(struct sim_faults *faults, uint64_t below)
{
    return pp_rng_u64(faults->rng) % below;
}

/* How long something lasts: mostly shorter than a timeout, now and then longer than all. */
static uint64_t draw_us(struct sim_faults *faults)
{
    static const uint64_t most_us[] = {50000, SECOND, 3 * SECOND, 20 * SECOND};
    return 1000 + draw(faults, most_us[draw(faults, 4)]);
}

/* Jumps: within a call's timeout, or beyond a lease. */
static int64_t draw_jump_us(struct sim_faults *faults)
{
    return 1000 + (int64_t)draw(faults, draw(faults, 2) == 0 ? 3 * SECOND : SIM_CLOCK_JUMP_US_MAX);
}

static void end_crash(void *context)
{
    struct sim_node *node = context;
    if (node->crashed) {
        sim_node_restart(node, false);
    }
}

static void end_link(void *context)
{
    sim_node_heal_link(context);
}

static void end_pause(void *context)
{
    struct sim_node *node = context;
    pp_sim_pause(node->transport, false);
}

static void end_slow(void *context)
{
    struct sim_node *node = context;
    node->slow_us = node->next_us = 0;
}

static void end_drain(void *context)
{
    struct sim_node *node = context;
    an_service_resume(node->service);
}

static void end_memory(void *context)
{
    sim_node_empty(context);
}

static void strike_link(struct sim_faults *faults, struct sim_node *node)
{
    struct pp_sim_net *net = faults->world->net;
    switch (faults->fault) {
    case SIM_LINK_BREAK:
        pp_sim_link_break(net, "worker", node->name);
        return;
    case SIM_LINK_SLOW:
        pp_sim_link_delay(net, "worker", node->name, 1000, 1000 + draw(faults, 2500000));
        break;
    case SIM_PARTITION:
        pp_sim_link_cut(net, "worker", node->name, true);
        break;
    case SIM_PARTITION_TO_NODE:
        pp_sim_link_cut_one_way(net, "worker", node->name, true);
        break;
    default:
        pp_sim_link_cut_one_way(net, node->name, "worker", true);
        break;
    }
    pp_sim_after(net, draw_us(faults), end_link, node);
}

static void strike_clock(struct sim_faults *faults, const struct sim_node *node)
{
    struct pp_sim_net *net = faults->world->net;
    int64_t by_us = draw_jump_us(faults);
    switch (faults->fault) {
    case SIM_NODE_CLOCK_FORWARD:
        pp_sim_clock_jump(net, node->name, by_us);
        break;
    case SIM_NODE_CLOCK_BACK:
        pp_sim_clock_jump(net, node->name, -by_us);
        faults->nodes_back_us += (uint64_t)by_us;
        break;
    case SIM_WORKER_CLOCK_FORWARD:
        pp_sim_clock_jump(net, "worker", by_us);
        break;
    default:
        pp_sim_clock_jump(net, "worker", -by_us);
        faults->worker_back_us += (uint64_t)by_us;
        break;
    }
}

static void strike_node(struct sim_faults *faults, struct sim_node *node)
{
    struct pp_sim_net *net = faults->world->net;
    switch (faults->fault) {
    case SIM_NODE_PAUSE:
        pp_sim_pause(node->transport, true);
        pp_sim_after(net, draw_us(faults), end_pause, node);
        break;
    case SIM_NODE_SLOW:
        node->slow_us = 1000 + draw(faults, SECOND);
        pp_sim_after(net, draw_us(faults), end_slow, node);
        break;
    case SIM_NODE_DRAIN:
        an_service_drain(node->service);
        pp_sim_after(net, draw_us(faults), end_drain, node);
        break;
    case SIM_MEMORY_FULL:
        sim_node_fill(node, draw(faults, 200000));
        pp_sim_after(net, draw_us(faults), end_memory, node);
        break;
    default: /* a crash */
        sim_node_crash(node, draw(faults, 2) == 0);
        pp_sim_after(net, draw_us(faults), end_crash, node);
        break;
    }
}

/* The list changes between two steps, as the engine takes it. One node stays in it. */
static bool strike_list(struct sim_faults *faults, struct sim_node *node)
{
    struct sim_world *world = faults->world;
    uint32_t listed = 0;
    for (uint32_t i = 0; i < world->config.node_count; ++i) {
        listed += world->nodes[i].listed ? 1 : 0;
    }
    if (faults->fault == SIM_NODE_LEAVES) {
        if (!node->listed || listed == 1) {
            return false;
        }
        node->listed = false;
    } else if (faults->fault == SIM_NODE_JOINS) {
        if (node->listed) {
            return false;
        }
        node->listed = true;
    } else {
        if (!node->listed || node->crashed) {
            return false;
        }
        sim_node_crash(node, draw(faults, 2) == 0);
        sim_node_restart(node, true);
    }
    sim_world_update(world);
    return true;
}

/* Whether it could: a node that is dead does not do anything else. */
static bool strike(struct sim_faults *faults, struct sim_node *node)
{
    struct sim_world *world = faults->world;
    enum sim_fault fault = faults->fault;
    if (fault >= SIM_NODE_LEAVES) {
        return strike_list(faults, node);
    }
    if (fault == SIM_WORKER_STALL) {
        sim_world_stall(world, draw(faults, 2) == 0 ? draw_us(faults) : 2 * SIM_LEASE_US);
    } else if (fault >= SIM_WORKER_CRASH && fault <= SIM_WORKER_CRASH_LAST) {
        pp_sim_cut_off(world->worker, draw(faults, 2) == 0);
        world->worker_crashed = true;
    } else if (fault >= SIM_NODE_CLOCK_FORWARD) {
        strike_clock(faults, node);
    } else if (fault >= SIM_LINK_BREAK && fault <= SIM_PARTITION_TO_WORKER) {
        strike_link(faults, node);
    } else if (node->crashed) {
        return false;
    } else {
        strike_node(faults, node);
    }
    return true;
}

static void watch(void *context, const char *process, enum pp_sim_point point)
{
    struct sim_faults *faults = context;
    if (!faults->armed || strcmp(process, faults->process) != 0 ||
        (!faults->any_point && point != faults->point) || --faults->countdown > 0) {
        return;
    }
    faults->armed = false;
    faults->struck[faults->fault] += strike(faults, faults->node) ? 1 : 0;
}

static enum sim_fault draw_fault(struct sim_faults *faults)
{
    uint64_t left = draw(faults, (uint64_t)__builtin_popcount(faults->mask));
    uint32_t fault = 0;
    for (; (faults->mask & SIM_FAULT(fault)) == 0 || left-- > 0; ++fault) {
    }
    return (enum sim_fault)fault;
}

void sim_faults_draw(struct sim_faults *faults)
{
    struct sim_world *world = faults->world;
    if (faults->armed || faults->mask == 0) {
        return; /* one still waits for its message */
    }
    enum sim_fault fault = draw_fault(faults);
    faults->fault = fault;
    faults->node = &world->nodes[draw(faults, world->config.node_count)];
    faults->any_point = fault > SIM_WORKER_CRASH_LAST;
    faults->point = (enum pp_sim_point)(fault % PP_SIM_POINTS);
    faults->process = fault <= SIM_NODE_CRASH_LAST ? faults->node->name : "worker";
    faults->countdown = 1 + (uint32_t)draw(faults, MESSAGES_MAX);
    bool now = fault >= SIM_WORKER_STALL || (faults->any_point && draw(faults, 3) == 0);
    if (now) {
        faults->struck[fault] += strike(faults, faults->node) ? 1 : 0;
    }
    faults->armed = !now;
}

void sim_faults_init(struct sim_faults *faults, struct sim_world *world, struct pp_rng *rng,
                     uint32_t mask)
{
    memset(faults, 0, sizeof(*faults));
    faults->world = world;
    faults->rng = rng;
    faults->mask = mask;
    pp_sim_watch(world->net, watch, faults);
}

void sim_faults_end(struct sim_faults *faults)
{
    struct sim_world *world = faults->world;
    faults->armed = false;
    faults->mask = 0;
    pp_sim_net_rates(world->net, 0, 0);
    for (uint32_t i = 0; i < world->config.node_count; ++i) {
        struct sim_node *node = &world->nodes[i];
        end_link(node);
        end_crash(node);
        end_pause(node);
        end_slow(node);
        end_drain(node);
        end_memory(node);
        node->listed = true;
    }
    sim_world_update(world);
}
