/*
 * The routing table: which part of a sequence holds which tokens and kv heads, and which nodes hold
 * the part. On the walk: engine/step > remote/route > remote/attn_client. It refuses to know nodes'
 * state and the wire: pure arithmetic.
 *
 * GW_SHARD_TOKENS: part i holds every kv head of span i of the tokens; the last span has no end.
 * GW_SHARD_KV_HEADS: part i holds every token of a range of kv heads.
 * GW_SHARD_BOTH: a grid of both, spans in order, the ranges of a span beside each other.
 * Tokens are counted from the first that ever leaves the worker. The table changes between steps
 * only; every change raises its epoch. Threads: any.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_ROUTE_H
#define PIGPEN_GPU_WORKER_REMOTE_ROUTE_H

#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/remote/remote.h"

struct gw_route_part {
    uint32_t nodes[GW_REPLICAS_MAX]; /* indices; all of them hold all of the part */
    uint32_t node_count;             /* 0: lost */
    uint32_t kv_head_begin, kv_head_count;
    uint64_t token_begin, token_end; /* the span; end UINT64_MAX: grows */
};

struct gw_route {
    uint64_t epoch;
    uint32_t part_count;
    struct gw_route_part parts[GW_NODES_MAX];
};

struct gw_route_plan {
    enum gw_shard shard;
    const uint32_t *nodes; /* indices of those that may be used, all different */
    uint32_t node_count;
    uint32_t replicas; /* of a part, on as many nodes; more than node_count: node_count */
    uint32_t kv_heads;
    uint64_t tokens_expected;
    const uint64_t *shares; /* token shards: tokens of each node's span; NULL, or 0 first: even */
    uint64_t turn;          /* sequences take turns at the nodes where one does not need all */
};

/* Plans a new sequence, its epoch 1. Token shards: tokens_expected cut evenly, one span a node; 0
 * (not known): one part, on node turn mod node_count, so that sequences take turns. kv-head shards:
 * min(node_count, kv_heads) ranges that differ by one head at most. Both: as many ranges as the
 * largest divisor of node_count whose square is not above it. The replicas of the part on a node
 * lie on the nodes after it. PP_INVALID_ARGUMENT without nodes, with too many, or without kv heads.
 */
PP_MUST_USE enum pp_status gw_route_make(const struct gw_route_plan *plan,
                                         struct gw_route *route_out);

/* The part is no longer on the node, or is now also there (PP_RESOURCE_EXHAUSTED: it is on as many
 * as there may be). */
void gw_route_leave(struct gw_route *route, uint32_t part, uint32_t node);
PP_MUST_USE enum pp_status gw_route_join(struct gw_route *route, uint32_t part, uint32_t node);

/* The part ends at token `at` of the sequence, which lies in its span; the rest of the span becomes
 * the last part of the route, of the same kv heads and on the nodes that parts[part_count] names.
 * The index of that part, of which there must be room. */
uint32_t gw_route_cut(struct gw_route *route, uint32_t part, uint64_t at);

/* How many of the sequence's first `tokens` tokens lie in a part: they are its first ones, so this
 * is also the held_tokens that asks the part for exactly its share of that prefix (law 1). */
uint64_t gw_route_part_tokens(const struct gw_route *route, uint32_t part, uint64_t tokens);

/* The prefix of the sequence that is held when part i has acknowledged part_tokens[i] tokens. */
uint64_t gw_route_held(const struct gw_route *route, const uint64_t *part_tokens);

#endif
