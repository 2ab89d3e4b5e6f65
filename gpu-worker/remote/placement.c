/*
 * Chooses nodes by weighted rendezvous hashing with two choices. See placement.h. It refuses to
 * know where the figures come from.
 */
#include "gpu-worker/remote/placement.h"

#include <math.h>
#include <stddef.h>

#include "common/base/rng.h"

#define NONE UINT32_MAX

uint64_t gw_placement_key(const char *name)
{
    uint64_t key = 0;
    for (const char *next = name; *next != '\0'; next++) {
        key = pp_rng_at(key, (uint8_t)*next);
    }
    return key;
}

uint64_t gw_placement_weight(const struct gw_placement_node *node)
{
    if (!node->open) {
        return 0;
    }
    uint64_t tenth = node->free_bytes / 10;
    if (node->up_us >= GW_PLACEMENT_SLOW_START_US) {
        return node->free_bytes;
    }
    double share = (double)node->up_us / (double)GW_PLACEMENT_SLOW_START_US;
    uint64_t weight = (uint64_t)(share * (double)node->free_bytes);
    return weight > tenth ? weight : tenth;
}

static double score_of(const struct gw_placement_node *node, uint64_t key)
{
    uint64_t draw = pp_rng_at(key, node->key) >> 11; /* 53 bits */
    double u = ((double)draw + 0.5) * 0x1p-53;
    return -log(u) / (double)gw_placement_weight(node);
}

/* How empty the node is, a newcomer less than it is. */
static double share_of(const struct gw_placement_node *node)
{
    return (double)gw_placement_weight(node) / (double)(node->memory_bytes + 1);
}

static bool is_among(uint32_t node, const uint32_t *chosen, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (chosen[i] == node) {
            return true;
        }
    }
    return false;
}

/* The emptier of the two best that are not among the chosen; NONE. */
static uint32_t choose_one(const struct gw_placement_node *nodes, uint32_t node_count, uint64_t key,
                           uint64_t bytes, const uint32_t *chosen, uint32_t chosen_count)
{
    uint32_t best[2] = {NONE, NONE};
    double scores[2] = {INFINITY, INFINITY};
    for (uint32_t i = 0; i < node_count; i++) {
        bool fits = gw_placement_weight(&nodes[i]) > 0 && nodes[i].free_bytes >= bytes;
        if (!fits || is_among(i, chosen, chosen_count)) {
            continue;
        }
        double score = score_of(&nodes[i], key);
        if (score < scores[0]) {
            best[1] = best[0];
            scores[1] = scores[0];
            best[0] = i;
            scores[0] = score;
        } else if (score < scores[1]) {
            best[1] = i;
            scores[1] = score;
        }
    }
    bool second = best[1] != NONE && share_of(&nodes[best[1]]) > share_of(&nodes[best[0]]);
    return best[second ? 1 : 0];
}

enum pp_status gw_placement_choose(const struct gw_placement_node *nodes, uint32_t node_count,
                                   uint64_t key, uint64_t bytes, uint32_t wanted,
                                   uint32_t *chosen_out)
{
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t node = choose_one(nodes, node_count, key, bytes, chosen_out, i);
        if (node == NONE) {
            return PP_MEMORY;
        }
        chosen_out[i] = node;
    }
    return PP_OK;
}

/* How many open nodes have so many bytes free. */
static uint32_t fitting(const struct gw_placement_node *nodes, uint32_t node_count, uint64_t bytes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node_count; i++) {
        count += gw_placement_weight(&nodes[i]) > 0 && nodes[i].free_bytes >= bytes ? 1 : 0;
    }
    return count;
}

enum pp_status gw_placement_spread(const struct gw_placement_node *nodes, uint32_t node_count,
                                   uint64_t key, uint64_t bytes, uint32_t wanted,
                                   uint32_t *chosen_out, uint32_t *chosen_count_out)
{
    wanted = wanted < 1 ? 1 : wanted > node_count ? node_count : wanted;
    /* wanted, wanted + 1, ..., node_count, then wanted - 1, ..., 1 */
    for (uint32_t i = 0; i < node_count; i++) {
        uint32_t over = node_count - wanted;
        uint32_t count = i <= over ? wanted + i : node_count - i;
        uint64_t piece = bytes / count + (bytes % count != 0 ? 1 : 0);
        if (fitting(nodes, node_count, piece) >= count) {
            *chosen_count_out = count;
            return gw_placement_choose(nodes, node_count, key, piece, count, chosen_out);
        }
    }
    return PP_MEMORY;
}

enum pp_status gw_placement_grow(const struct gw_placement_node *nodes, uint32_t node_count,
                                 uint64_t key, uint32_t holder, uint64_t ahead_bytes,
                                 uint64_t bytes, uint32_t *node_out)
{
    if (nodes[holder].open && nodes[holder].free_bytes >= ahead_bytes) {
        *node_out = holder;
        return PP_OK;
    }
    uint32_t node = choose_one(nodes, node_count, key, bytes, &holder, 1);
    if (node == NONE) {
        return PP_MEMORY;
    }
    *node_out = node;
    return PP_OK;
}
