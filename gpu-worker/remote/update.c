/*
 * Nodes that come and go while the worker runs. A node keeps its place in the table for good, so
 * that routes need not change; what lives on one that went stays there until its sequence ends or
 * is recovered. It refuses to know where the list comes from.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/remote/node.h"

struct update {
    struct gw_remote *remote;
    const struct gw_node_address *nodes;
    uint32_t count;
    enum pp_status status;
};

static struct gw_node *find(struct gw_remote *remote, const struct gw_node_address *address)
{
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        const struct gw_node_address *mine = &remote->nodes[i].address;
        if (strcmp(mine->name, address->name) == 0 &&
            strcmp(mine->address, address->address) == 0) {
            return &remote->nodes[i];
        }
    }
    return NULL;
}

static enum pp_status join(struct gw_remote *remote, const struct gw_node_address *address)
{
    uint32_t index = remote->config.node_count;
    if (index == GW_NODES_MAX) {
        PP_LOG_ERRORF("remote", "no place for another node", "node=%s max=%u", address->name,
                      GW_NODES_MAX);
        return PP_RESOURCE_EXHAUSTED;
    }
    struct gw_node *node = &remote->nodes[index];
    remote->config.nodes[index] = *address;
    enum pp_status status = gw_node_init(node, remote, index);
    if (status != PP_OK) {
        gw_node_deinit(node);
        return status;
    }
    gw_node_state_init(&node->state, node->state.seed, gw_remote_now(remote));
    atomic_store(&node->out, true); /* until it has answered */
    gw_remote_register_node(remote, node);
    remote->config.node_count = index + 1;
    PP_LOG_INFOF("remote", "node joined", "node=%s address=%s", address->name, address->address);
    return PP_OK;
}

static void run_update(void *context)
{
    struct update *update = context;
    struct gw_remote *remote = update->remote;
    bool named[GW_NODES_MAX] = {false};
    for (uint32_t i = 0; i < update->count; ++i) {
        struct gw_node *node = find(remote, &update->nodes[i]);
        if (node == NULL) {
            enum pp_status status = join(remote, &update->nodes[i]);
            update->status = update->status == PP_OK ? status : update->status;
            node = status == PP_OK ? find(remote, &update->nodes[i]) : NULL;
        }
        if (node != NULL) {
            named[node->index] = true;
        }
    }
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        struct gw_node *node = &remote->nodes[i];
        if (node->gone == named[i]) {
            node->gone = !named[i];
            PP_LOG_INFOF("remote", node->gone ? "node left the list" : "node is in the list again",
                         "node=%s address=%s", node->address.name, node->address.address);
        }
    }
}

enum pp_status gw_remote_update(struct gw_remote *remote, const struct gw_node_address *nodes,
                                uint32_t count)
{
    struct update update = {.remote = remote, .nodes = nodes, .count = count};
    gw_remote_run(remote, run_update, &update);
    return update.status;
}

uint32_t gw_remote_node_count(const struct gw_remote *remote)
{
    return remote->config.node_count;
}

const struct gw_node_address *gw_remote_node(const struct gw_remote *remote, uint32_t node)
{
    return &remote->nodes[node].address;
}

uint32_t gw_remote_nodes_in_use(const struct gw_remote *remote)
{
    uint32_t nodes[GW_NODES_MAX];
    return gw_nodes_usable(remote, nodes);
}
