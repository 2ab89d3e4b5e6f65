/*
 * Whether a node is in use: a fault puts it out, and from then on it is tried now and then, by
 * Health, until it has answered twice in a row. A trial that fails is the end of what others hold
 * too. Beside node on the walk. It refuses to know parts.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "gpu-worker/remote/node.h"
#include "grpc/health/v1/health.pb-c.h"

#define TRIAL_TIMEOUT_US 1000000u

/* Whether the node as a whole is to be doubted, not only what it said about a part. */
static bool puts_out(enum pp_status status)
{
    switch (status) {
    case PP_UNAVAILABLE:
    case PP_RESOURCE_EXHAUSTED: /* its rows never left the outbox */
    case PP_DEADLINE_EXCEEDED:
    case PP_STARTING:
    case PP_DRAINING:
    case PP_CANCELLED:
    case PP_INTERNAL:
    case PP_PROTOCOL:
    case PP_DATA_LOSS:
        return true;
    default:
        return false;
    }
}

/* New parts come here while it is up. */
static void state_changed(struct gw_node *node, const char *cause)
{
    bool out = !gw_node_state_open(&node->state);
    atomic_store(&node->draining, node->state.phase == GW_NODE_DRAINING);
    if (atomic_exchange(&node->out, out) != out) {
        atomic_store(&node->joined_us, out ? 0 : gw_remote_now(node->remote));
        pp_stat_set(node->up, out ? 0 : 1);
        PP_LOG_WARNF("remote", out ? "node out of use" : "node in use",
                     "node=%s address=%s state=%s cause=%s", node->address.name,
                     node->address.address, gw_node_phase_name(node->state.phase), cause);
    }
}

void gw_node_fault(struct gw_node *node, enum pp_status status)
{
    uint64_t now_us = gw_remote_now(node->remote);
    if (!puts_out(status)) {
        return;
    }
    node->renew_bulk = node->renew_attend = true;
    if (status == PP_DRAINING) {
        gw_node_state_drains(&node->state, now_us);
    } else {
        gw_node_state_fault(&node->state, now_us);
    }
    state_changed(node, pp_status_name(status));
    if (node->state.phase == GW_NODE_DOWN) {
        gw_sets_leave_node(node);
    }
}

void gw_node_doubt(struct gw_node *node)
{
    gw_node_state_doubt(&node->state, gw_remote_now(node->remote));
}

void gw_node_drains(struct gw_node *node)
{
    gw_node_state_drains(&node->state, gw_remote_now(node->remote));
    state_changed(node, "its answers");
}

struct fault {
    struct gw_node *node;
    enum pp_status status;
};

static void run_fault(void *context)
{
    const struct fault *fault = context;
    gw_node_fault(fault->node, fault->status);
}

void gw_node_fault_from_engine(struct gw_node *node, enum pp_status status)
{
    struct fault fault = {.node = node, .status = status};
    gw_remote_run(node->remote, run_fault, &fault);
}

/* Healthy and willing: what a trial wants to hear. */
static enum pp_status take_trial(struct gw_unary *unary, const ProtobufCMessage *message)
{
    const Grpc__Health__V1__HealthCheckResponse *answer = (const void *)message;
    struct gw_node *node = unary->node;
    uint64_t now_us = gw_remote_now(node->remote);
    if (answer == NULL) {
        gw_node_state_fault(&node->state, now_us);
    } else if (answer->status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING) {
        gw_node_state_right(&node->state, now_us);
    } else {
        gw_node_state_drains(&node->state, now_us);
    }
    state_changed(node, "trial");
    if (answer == NULL) {
        gw_sets_leave_node(node);
    }
    return PP_OK;
}

static void start_trial(struct gw_node *node)
{
    Grpc__Health__V1__HealthCheckRequest check;
    struct gw_unary *unary = calloc(1, sizeof(*unary));
    if (unary == NULL) {
        return; /* the next tick tries again */
    }
    grpc__health__v1__health_check_request__init(&check);
    unary->orphan = true;
    gw_node_state_try(&node->state);
    if (gw_unary_start(unary, node, "/grpc.health.v1.Health/Check", TRIAL_TIMEOUT_US, &check.base,
                       &grpc__health__v1__health_check_response__descriptor, take_trial,
                       NULL) != PP_OK) {
        gw_node_state_fault(&node->state, gw_remote_now(node->remote));
        free(unary);
    }
}

uint64_t gw_node_tick(struct gw_node *node, uint64_t now_us)
{
    /* One that has left the list is of interest as long as parts may live on it. */
    if (node->gone && !gw_node_state_lives(&node->state)) {
        return UINT64_MAX;
    }
    if (now_us >= gw_node_state_trial_us(&node->state)) {
        start_trial(node);
    }
    uint64_t next_us = gw_node_state_trial_us(&node->state);
    if (atomic_load(&node->out) || node->gone || node->remote->sequences == NULL) {
        return next_us;
    }
    if (now_us >= node->info_us) {
        node->info_us = now_us + GW_NODE_INFO_US;
        gw_node_ask_info(node);
    }
    return node->info_us < next_us ? node->info_us : next_us;
}

uint32_t gw_nodes_usable(const struct gw_remote *remote, uint32_t *nodes_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        if (!atomic_load(&remote->nodes[i].out) && !remote->nodes[i].gone) {
            nodes_out[count++] = i;
        }
    }
    return count;
}
