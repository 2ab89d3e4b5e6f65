/*
 * Which nodes get the runs of a new or growing sequence: rendezvous hashing weighted by free
 * memory, the fuller of the best two left out. On the walk: before remote/route, when a sequence is
 * opened or a part is full; never for a part that lives. It refuses to know channels, parts and
 * where the figures come from. Pure, any thread.
 *
 * Score of node i for key s: -ln(u) / weight, u in (0, 1) a hash of (s, i), weight the node's free
 * bytes; least wins, so that a node wins in proportion to its weight, and a node that comes or goes
 * moves only the choices that it wins or had won, nearly (Schindelhauer and Schomaker, "Weighted
 * distributed hash tables", 2005). Of the two best the one with the larger share of its memory free
 * is taken: with n runs a node the fullest then holds n + O(ln ln nodes), not n + O(sqrt n)
 * (Mitzenmacher, "The power of two choices in randomized load balancing", 2001); and workers that
 * all hear the same figures late still choose differently.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_PLACEMENT_H
#define PIGPEN_GPU_WORKER_REMOTE_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* A node's weight climbs to its free bytes over so long after it came, from a tenth of them: its
 * memory is still cold and its figures are young. */
#define GW_PLACEMENT_SLOW_START_US 60000000ull

struct gw_placement_node {
    uint64_t key;          /* of its name: gw_placement_key */
    uint64_t memory_bytes; /* its limit */
    uint64_t free_bytes;   /* of that, as it said last, less what was promised since */
    uint64_t up_us;        /* how long it has been up */
    bool open;             /* up, and not draining: takes new runs */
};

uint64_t gw_placement_key(const char *name);

/* What counts of a node's free bytes; 0: it takes nothing. */
uint64_t gw_placement_weight(const struct gw_placement_node *node);

/* `wanted` nodes that are open and have `bytes` free each, all different, best first: indices in
 * chosen_out [wanted]. PP_MEMORY: there are not so many. */
PP_MUST_USE enum pp_status gw_placement_choose(const struct gw_placement_node *nodes,
                                               uint32_t node_count, uint64_t key, uint64_t bytes,
                                               uint32_t wanted, uint32_t *chosen_out);

/* Nodes for `bytes` cut evenly over `wanted` of them; over more where the pieces are too large for
 * so many, and over fewer where fewer are open. chosen_out [node_count]. PP_MEMORY: no even cut
 * fits. */
PP_MUST_USE enum pp_status gw_placement_spread(const struct gw_placement_node *nodes,
                                               uint32_t node_count, uint64_t key, uint64_t bytes,
                                               uint32_t wanted, uint32_t *chosen_out,
                                               uint32_t *chosen_count_out);

/* Where a run grows that node `holder` holds the end of: there while it is open and has
 * `ahead_bytes` free, else on the best other one that has `bytes` free: more, so that a run does
 * not come and go. PP_MEMORY: nowhere. */
PP_MUST_USE enum pp_status gw_placement_grow(const struct gw_placement_node *nodes,
                                             uint32_t node_count, uint64_t key, uint32_t holder,
                                             uint64_t ahead_bytes, uint64_t bytes,
                                             uint32_t *node_out);

#endif
