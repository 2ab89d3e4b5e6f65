/*
 * Whether a node is in use: a fault puts it out, and from then on it is tried now and then, by
 * Health, until it has answered twice in a row. Beside node on the walk. It refuses to know parts.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/node.h"
#include "grpc/health/v1/health.pb-c.h"

#define TRIALS_RIGHT      2u
#define TRIAL_TIMEOUT_US  1000000u
#define TRIAL_WAIT_US     100000u
#define TRIAL_WAIT_US_MAX 5000000u

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

/* Workers that lost a node at once do not come back at once. */
static uint64_t jittered(const struct gw_node *node, uint64_t wait_us, uint64_t now_us)
{
    return wait_us / 2 + pp_rng_at(now_us, node->index) % (wait_us / 2 + 1);
}

void gw_node_fault(struct gw_node *node, enum pp_status status)
{
    uint64_t now_us = gw_remote_now(node->remote);
    if (!puts_out(status)) {
        return;
    }
    node->trials_right = 0;
    node->renew_bulk = true;
    if (!atomic_load(&node->out)) {
        node->trial_wait_us = TRIAL_WAIT_US;
        node->trial_us = now_us + jittered(node, node->trial_wait_us, now_us);
        atomic_store(&node->out, true);
        pp_stat_set(node->up, 0);
        PP_LOG_WARNF("remote", "node out of use", "node=%s address=%s reason=%s",
                     node->address.name, node->address.address, pp_status_name(status));
    }
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
    bool right = answer != NULL &&
                 answer->status == GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING;
    node->trying = false;
    node->trials_right = right ? node->trials_right + 1 : 0;
    node->trial_wait_us = right ? TRIAL_WAIT_US : 2 * node->trial_wait_us;
    if (node->trial_wait_us > TRIAL_WAIT_US_MAX) {
        node->trial_wait_us = TRIAL_WAIT_US_MAX;
    }
    node->trial_us = now_us + jittered(node, node->trial_wait_us, now_us);
    if (node->trials_right >= TRIALS_RIGHT && atomic_load(&node->out)) {
        atomic_store(&node->out, false);
        pp_stat_set(node->up, 1);
        PP_LOG_WARNF("remote", "node in use again", "node=%s address=%s", node->address.name,
                     node->address.address);
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
    node->trying = true;
    if (gw_unary_start(unary, node, "/grpc.health.v1.Health/Check", TRIAL_TIMEOUT_US, &check.base,
                       &grpc__health__v1__health_check_response__descriptor, take_trial,
                       NULL) != PP_OK) {
        node->trying = false;
        free(unary);
    }
}

uint64_t gw_node_tick(struct gw_node *node, uint64_t now_us)
{
    if (!atomic_load(&node->out) || node->trying) {
        return UINT64_MAX;
    }
    if (now_us >= node->trial_us) {
        node->trial_us = now_us + TRIAL_WAIT_US;
        start_trial(node);
    }
    return node->trial_us;
}

uint32_t gw_nodes_usable(const struct gw_remote *remote, uint32_t *nodes_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        if (!atomic_load(&remote->nodes[i].out)) {
            nodes_out[count++] = i;
        }
    }
    return count;
}
