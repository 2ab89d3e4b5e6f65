/*
 * The routing arithmetic: spans of tokens and ranges of kv heads to parts. On the walk it stands
 * between engine/step and attn_client. It refuses to know nodes' state and the wire.
 */
#include "gpu-worker/remote/route.h"

#include <string.h>

static void plan_tokens(uint32_t node_count, uint32_t kv_heads, uint64_t tokens_expected,
                        uint64_t turn, struct gw_route *route)
{
    bool known = tokens_expected > 0;
    uint64_t share = tokens_expected / node_count + (tokens_expected % node_count > 0 ? 1 : 0);
    route->part_count = known ? node_count : 1;
    for (uint32_t i = 0; i < route->part_count; ++i) {
        route->parts[i] = (struct gw_route_part){
            .node = known ? i : (uint32_t)(turn % node_count),
            .kv_head_count = kv_heads,
            .token_begin = share * i,
            .token_end = i + 1 == route->part_count ? UINT64_MAX : share * (i + 1),
        };
    }
}

static void plan_kv_heads(uint32_t node_count, uint32_t kv_heads, struct gw_route *route)
{
    route->part_count = node_count < kv_heads ? node_count : kv_heads;
    for (uint32_t i = 0; i < route->part_count; ++i) {
        uint32_t begin = (uint32_t)((uint64_t)kv_heads * i / route->part_count);
        uint32_t end = (uint32_t)((uint64_t)kv_heads * (i + 1) / route->part_count);
        route->parts[i] = (struct gw_route_part){
            .node = i,
            .kv_head_begin = begin,
            .kv_head_count = end - begin,
            .token_end = UINT64_MAX,
        };
    }
}

enum pp_status gw_route_plan(enum gw_shard shard, uint32_t node_count, uint32_t kv_heads,
                             uint64_t tokens_expected, uint64_t turn, struct gw_route *route_out)
{
    if (node_count == 0 || node_count > GW_NODES_MAX || kv_heads == 0 ||
        tokens_expected > PP_TOKENS_PER_PART_MAX * GW_NODES_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    if (shard != GW_SHARD_TOKENS && shard != GW_SHARD_KV_HEADS) {
        return PP_INVALID_ARGUMENT;
    }
    memset(route_out, 0, sizeof(*route_out));
    route_out->shard = shard;
    if (shard == GW_SHARD_TOKENS) {
        plan_tokens(node_count, kv_heads, tokens_expected, turn, route_out);
    } else {
        plan_kv_heads(node_count, kv_heads, route_out);
    }
    return PP_OK;
}

uint64_t gw_route_part_tokens(const struct gw_route *route, uint32_t part, uint64_t tokens)
{
    const struct gw_route_part *span = &route->parts[part];
    if (tokens <= span->token_begin) {
        return 0;
    }
    uint64_t end = tokens < span->token_end ? tokens : span->token_end;
    return end - span->token_begin;
}

uint64_t gw_route_held(const struct gw_route *route, const uint64_t *part_tokens)
{
    if (route->shard == GW_SHARD_KV_HEADS) {
        uint64_t least = UINT64_MAX;
        for (uint32_t i = 0; i < route->part_count; ++i) {
            least = part_tokens[i] < least ? part_tokens[i] : least;
        }
        return least;
    }
    uint64_t held = 0;
    for (uint32_t i = 0; i < route->part_count; ++i) {
        uint64_t length = route->parts[i].token_end - route->parts[i].token_begin;
        held += part_tokens[i] < length ? part_tokens[i] : length;
        if (part_tokens[i] < length) {
            break;
        }
    }
    return held;
}
