/*
 * Reads --nodes and waits for them. It refuses to know parts and sequences.
 */
#include "gpu-worker/api/nodes.h"

#include <stdbool.h>
#include <string.h>

#include "gpu-worker/api/interrupt.h"

#define NODES_FIRST_LINE_US  1000000u
#define NODES_LINE_PERIOD_US 5000000u
#define NODES_FAULT_BYTES    400u
#define NODES_LOOK_US        20000u

enum pp_status gw_nodes_parse(const char *text, FILE *errors, struct gw_node_address *nodes_out,
                              uint32_t *count_out)
{
    struct gw_members members;
    char fault[NODES_FAULT_BYTES];
    enum pp_status status = gw_members_parse(text, ",", false, &members, fault, sizeof(fault));
    if (status != PP_OK) {
        fprintf(errors, "--nodes: %s\n", fault);
        return status;
    }
    memcpy(nodes_out, members.nodes, members.count * sizeof(*nodes_out));
    *count_out = members.count;
    return PP_OK;
}

enum pp_status gw_nodes_check(const char *source, FILE *errors)
{
    char fault[NODES_FAULT_BYTES];
    enum gw_membership_kind kind;
    enum pp_status status = gw_membership_check(source, &kind, fault, sizeof(fault));
    if (status != PP_OK) {
        fprintf(errors, "--nodes: %s\n", fault);
    }
    return status;
}

/* Turns the membership until it has named enough nodes. */
enum pp_status gw_nodes_list(struct gw_membership *membership, struct pp_transport *transport,
                             const char *source, uint32_t nodes_min, uint64_t timeout_us,
                             FILE *errors, struct gw_members *members_out)
{
    uint32_t wanted = nodes_min > 0 ? nodes_min : 1;
    uint64_t until_us = pp_clock_now_us(&transport->clock) + timeout_us;
    members_out->count = 0;
    for (;;) {
        char problem[NODES_FAULT_BYTES];
        uint64_t now_us = pp_clock_now_us(&transport->clock);
        uint64_t next_us = gw_membership_tick(membership, now_us);
        if (gw_membership_take(membership, members_out) && members_out->count >= wanted) {
            return PP_OK;
        }
        if (gw_interrupt_signal() != 0) {
            return PP_CANCELLED;
        }
        if (now_us >= until_us) {
            gw_membership_problem(membership, problem, sizeof(problem));
            fprintf(errors, "--nodes=%s names %u nodes of at least %u: %s\n", source,
                    members_out->count, wanted,
                    problem[0] != '\0' ? problem : "the list is too short");
            return PP_UNAVAILABLE;
        }
        uint64_t most_us = now_us + NODES_LOOK_US;
        (void)transport->ops->poll(transport, next_us < most_us ? next_us : most_us);
    }
}

struct nodes_wait {
    struct gw_remote *remote;
    const struct gw_remote_config *config;
    uint64_t timeout_us, next_us;
    FILE *progress;
};

static bool nodes_waiting(void *context, uint64_t waited_us)
{
    struct nodes_wait *wait = context;
    if (gw_interrupt_signal() != 0) {
        return false;
    }
    if (wait->progress == NULL || waited_us < wait->next_us) {
        return true;
    }
    wait->next_us = waited_us + NODES_LINE_PERIOD_US;
    for (uint32_t i = 0; i < wait->config->node_count; i++) {
        const char *cause = gw_remote_missing(wait->remote, i);
        if (cause != NULL) {
            fprintf(wait->progress, "waiting for node %s (%s): %s, %llu s of %llu s\n",
                    wait->config->nodes[i].name, wait->config->nodes[i].address, cause,
                    (unsigned long long)(waited_us / 1000000),
                    (unsigned long long)(wait->timeout_us / 1000000));
        }
    }
    return true;
}

enum pp_status gw_nodes_wait(struct gw_remote *remote, const struct gw_remote_config *config,
                             uint64_t timeout_us, FILE *progress, FILE *errors)
{
    struct nodes_wait wait = {.remote = remote,
                              .config = config,
                              .timeout_us = timeout_us,
                              .next_us = NODES_FIRST_LINE_US,
                              .progress = progress};
    enum pp_status status = gw_remote_ready(remote, timeout_us, nodes_waiting, &wait);
    if (status == PP_OK || status == PP_CANCELLED) {
        return status;
    }
    for (uint32_t i = 0; i < config->node_count; i++) {
        const char *cause = gw_remote_missing(remote, i);
        if (cause != NULL) {
            fprintf(errors, "node %s (%s) is missing: %s\n", config->nodes[i].name,
                    config->nodes[i].address, cause);
        }
    }
    fprintf(errors, "start it with attn-node, or correct --nodes\n");
    return status;
}
