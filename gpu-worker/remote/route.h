/*
 * Which part of a sequence holds which tokens and kv heads. On the walk: engine/step >
 * remote/route > remote/attn_client. It refuses to know nodes' state and the wire: pure arithmetic.
 *
 * GW_SHARD_TOKENS: part i holds every kv head of span i of the tokens; the last span has no end.
 * GW_SHARD_KV_HEADS: part i holds every token of a range of kv heads.
 * Tokens are counted from the first that ever leaves the worker. Threads: any.
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_ROUTE_H
#define PIGPEN_GPU_WORKER_REMOTE_ROUTE_H

#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/remote/remote.h"

struct gw_route_part {
    uint32_t node; /* index of its node */
    uint32_t kv_head_begin, kv_head_count;
    uint64_t token_begin, token_end; /* the span; end UINT64_MAX: grows */
};

struct gw_route {
    enum gw_shard shard;
    uint32_t part_count;
    struct gw_route_part parts[GW_NODES_MAX];
};

/* Plans a new sequence over nodes [0, node_count). Token shards: tokens_expected cut evenly, one
 * span a node; 0 (not known): one part, on node turn mod node_count, so that sequences take turns.
 * kv-head shards: min(node_count, kv_heads) ranges that differ by one head at most.
 * PP_INVALID_ARGUMENT without nodes, with too many, or without kv heads. */
PP_MUST_USE enum pp_status gw_route_plan(enum gw_shard shard, uint32_t node_count,
                                         uint32_t kv_heads, uint64_t tokens_expected, uint64_t turn,
                                         struct gw_route *route_out);

/* How many of the sequence's first `tokens` tokens lie in a part: they are its first ones, so this
 * is also the held_tokens that asks the part for exactly its share of that prefix (law 1). */
uint64_t gw_route_part_tokens(const struct gw_route *route, uint32_t part, uint64_t tokens);

/* The prefix of the sequence that is held when part i has acknowledged part_tokens[i] tokens. */
uint64_t gw_route_held(const struct gw_route *route, const uint64_t *part_tokens);

#endif
