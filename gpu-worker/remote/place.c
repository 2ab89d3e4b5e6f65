/*
 * From what nodes said of their memory to the list that a sequence is routed over. Between node and
 * route on the walk. It refuses to know how nodes are chosen (placement.h) and how the list is cut
 * (route.h).
 */
#include <string.h>

#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/placement.h"

uint64_t gw_rows_need(const struct pp_shape *shape, uint32_t kv_heads, uint64_t tokens)
{
    uint64_t token =
        (uint64_t)shape->layers * kv_heads * pp_row_bytes(shape->head_dim, shape->kv_dtype);
    return tokens * (token + token / 10);
}

uint32_t gw_nodes_figures(const struct gw_remote *remote, struct gw_placement_node *figures_out)
{
    uint64_t now_us = gw_remote_now(remote);
    for (uint32_t i = 0; i < remote->config.node_count; ++i) {
        const struct gw_node *node = &remote->nodes[i];
        uint64_t joined_us = atomic_load(&node->joined_us);
        figures_out[i] = (struct gw_placement_node){
            .key = gw_placement_key(node->address.name),
            .memory_bytes = node->memory_bytes,
            .free_bytes = atomic_load_explicit(&node->free_bytes, memory_order_relaxed),
            .up_us = joined_us == 0 ? GW_PLACEMENT_SLOW_START_US : now_us - joined_us,
            .open = !atomic_load(&node->out) && !node->gone};
    }
    return remote->config.node_count;
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

/* Tokens by room: every node of the list gets as large a part of them as of the room of all. False
 * when there is not enough. */
static bool share_by_room(const struct gw_remote *remote,
                          const struct gw_remote_sequence_config *config, const uint32_t *nodes,
                          uint32_t count, uint64_t *shares_out)
{
    uint64_t token = gw_rows_need(&config->shape, config->shape.kv_heads, 1), all = 0, given = 0;
    if (remote->config.shard != GW_SHARD_TOKENS || remote->config.replicas != 1) {
        return false;
    }
    for (uint32_t i = 0; i < count; ++i) {
        uint64_t room = atomic_load(&remote->nodes[nodes[i]].free_bytes);
        shares_out[i] = (room - room / 16) / token;
        all += shares_out[i];
    }
    if (all < config->tokens_expected) {
        return false;
    }
    double full = (double)config->tokens_expected / (double)all;
    for (uint32_t i = 0; i + 1 < count; ++i) {
        shares_out[i] = (uint64_t)((double)shares_out[i] * full);
        given += shares_out[i];
    }
    shares_out[count - 1] = config->tokens_expected - given;
    return true;
}

uint32_t gw_nodes_place(const struct gw_remote *remote,
                        const struct gw_remote_sequence_config *config, uint64_t key,
                        uint32_t *nodes_out, uint64_t *shares_out)
{
    struct gw_placement_node figures[GW_NODES_MAX];
    uint32_t chosen[GW_NODES_MAX], chosen_count = 0;
    uint32_t count = gw_nodes_usable(remote, nodes_out), all = gw_nodes_figures(remote, figures);
    uint64_t bytes = remote->config.replicas *
                     gw_rows_need(&config->shape, config->shape.kv_heads, config->tokens_expected);
    bool known = config->tokens_expected > 0;
    for (uint32_t i = 0; i < count; ++i) {
        known = known && remote->nodes[nodes_out[i]].memory_bytes > 0;
    }
    shares_out[0] = 0;
    if (!known) {
        return count;
    }
    if (gw_placement_spread(figures, all, key, bytes, count, chosen, &chosen_count) != PP_OK) {
        order_by_room(remote, nodes_out, count);
        if (!share_by_room(remote, config, nodes_out, count, shares_out)) {
            sort_indices(nodes_out, count);
            shares_out[0] = 0;
        }
        return count;
    }
    memcpy(nodes_out, chosen, chosen_count * sizeof(*chosen));
    sort_indices(nodes_out, chosen_count);
    order_by_room(remote, nodes_out, chosen_count);
    return chosen_count;
}

uint32_t gw_nodes_fewest(const struct gw_remote *remote, const uint64_t *tokens, uint64_t tried,
                         uint64_t bytes)
{
    struct gw_placement_node figures[GW_NODES_MAX];
    uint32_t count = gw_nodes_figures(remote, figures), chosen = UINT32_MAX;
    bool roomy = false;
    for (uint32_t i = 0; i < count; ++i) {
        bool room = figures[i].memory_bytes == 0 || figures[i].free_bytes >= bytes;
        if (!figures[i].open || (tried & (1ull << i)) != 0 || (roomy && !room)) {
            continue;
        }
        if (chosen == UINT32_MAX || (room && !roomy) || tokens[i] < tokens[chosen]) {
            chosen = i;
            roomy = room;
        }
    }
    return chosen;
}
