/*
 * From what nodes said of their memory to the list that a sequence is routed over. Between node and
 * route on the walk. It refuses to know how nodes are chosen (placement.h) and how the list is cut
 * (route.h).
 */
#include <string.h>

#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/placement.h"

/* A sequence's rows, and a tenth for its indexes. */
static uint64_t sequence_bytes(const struct gw_remote *remote,
                               const struct gw_remote_sequence_config *config)
{
    const struct pp_shape *shape = &config->shape;
    uint64_t token =
        (uint64_t)shape->layers * shape->kv_heads * pp_row_bytes(shape->head_dim, shape->kv_dtype);
    return config->tokens_expected * (token + token / 10) * remote->config.replicas;
}

/* Nodes whose room differs by less than an eighth of the most keep their order: figures are never
 * quite alike. */
static void order_by_room(const struct gw_remote *remote, uint32_t *nodes, uint32_t count)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; ++i) {
        uint64_t room = remote->nodes[nodes[i]].free_bytes;
        most = room > most ? room : most;
    }
    for (uint32_t i = 1; i < count; ++i) {
        uint32_t node = nodes[i], at = i;
        uint64_t room = remote->nodes[node].free_bytes + most / 8;
        while (at > 0 && remote->nodes[nodes[at - 1]].free_bytes > room) {
            nodes[at] = nodes[at - 1];
            at--;
        }
        nodes[at] = node;
    }
}

static void sort_indices(uint32_t *nodes, uint32_t count)
{
    for (uint32_t i = 1; i < count; ++i) {
        uint32_t node = nodes[i], at = i;
        for (; at > 0 && nodes[at - 1] > node; at--) {
            nodes[at] = nodes[at - 1];
        }
        nodes[at] = node;
    }
}

uint32_t gw_nodes_place(const struct gw_remote *remote,
                        const struct gw_remote_sequence_config *config, uint64_t key,
                        uint32_t *nodes_out)
{
    struct gw_placement_node figures[GW_NODES_MAX];
    uint32_t usable[GW_NODES_MAX], chosen[GW_NODES_MAX], chosen_count = 0;
    uint32_t count = gw_nodes_usable(remote, usable);
    bool known = config->tokens_expected > 0;
    for (uint32_t i = 0; i < count; ++i) {
        const struct gw_node *node = &remote->nodes[usable[i]];
        figures[i] = (struct gw_placement_node){.key = gw_placement_key(node->address.name),
                                                .memory_bytes = node->memory_bytes,
                                                .free_bytes = node->free_bytes,
                                                .up_us = GW_PLACEMENT_SLOW_START_US,
                                                .open = true};
        known = known && node->memory_bytes > 0;
    }
    memcpy(nodes_out, usable, count * sizeof(*usable));
    if (!known || gw_placement_spread(figures, count, key, sequence_bytes(remote, config), count,
                                      chosen, &chosen_count) != PP_OK) {
        return count;
    }
    for (uint32_t i = 0; i < chosen_count; ++i) {
        nodes_out[i] = usable[chosen[i]];
    }
    sort_indices(nodes_out, chosen_count);
    order_by_room(remote, nodes_out, chosen_count);
    return chosen_count;
}
