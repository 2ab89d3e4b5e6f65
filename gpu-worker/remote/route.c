/*
 * The routing arithmetic: spans of tokens and ranges of kv heads to parts, parts to nodes. On the
 * walk it stands between engine/step and attn_client. It refuses to know nodes' state and the wire.
 */
#include "gpu-worker/remote/route.h"

#include <string.h>

#include "common/base/assert.h"

/* Ranges of kv heads that the sequence is cut into; the spans are part_count / ranges. */
static uint32_t count_ranges(const struct gw_route_plan *plan)
{
    uint32_t most = plan->node_count < plan->kv_heads ? plan->node_count : plan->kv_heads;
    uint32_t ranges = 1;
    if (plan->shard == GW_SHARD_TOKENS) {
        return 1;
    }
    if (plan->shard == GW_SHARD_KV_HEADS || plan->tokens_expected == 0) {
        return most;
    }
    for (uint32_t i = 2; i <= most && i * i <= plan->node_count; ++i) {
        ranges = plan->node_count % i == 0 ? i : ranges;
    }
    return ranges;
}

static uint32_t count_spans(const struct gw_route_plan *plan, uint32_t ranges)
{
    bool one = plan->shard == GW_SHARD_KV_HEADS || plan->tokens_expected == 0;
    return one ? 1 : plan->node_count / ranges;
}

static void place(const struct gw_route_plan *plan, uint32_t first, struct gw_route_part *part)
{
    part->node_count = plan->replicas < plan->node_count ? plan->replicas : plan->node_count;
    for (uint32_t i = 0; i < part->node_count; ++i) {
        part->nodes[i] = plan->nodes[(first + i) % plan->node_count];
    }
}

enum pp_status gw_route_make(const struct gw_route_plan *plan, struct gw_route *route_out)
{
    if (plan->node_count == 0 || plan->node_count > GW_NODES_MAX || plan->kv_heads == 0 ||
        plan->tokens_expected > PP_TOKENS_PER_PART_MAX * GW_NODES_MAX || plan->replicas == 0 ||
        plan->replicas > GW_REPLICAS_MAX || plan->shard < GW_SHARD_TOKENS ||
        plan->shard > GW_SHARD_BOTH) {
        return PP_INVALID_ARGUMENT;
    }
    uint32_t ranges = count_ranges(plan), spans = count_spans(plan, ranges);
    uint64_t share = plan->tokens_expected / spans + (plan->tokens_expected % spans > 0 ? 1 : 0);
    memset(route_out, 0, sizeof(*route_out));
    route_out->epoch = 1;
    route_out->part_count = spans * ranges;
    bool even = plan->shares == NULL || plan->shares[0] == 0 || ranges > 1;
    uint64_t begin = 0;
    uint32_t turn = 0;
    if (route_out->part_count == 1) {
        turn = (uint32_t)(plan->turn % plan->node_count);
    }
    for (uint32_t i = 0; i < route_out->part_count; ++i) {
        struct gw_route_part *part = &route_out->parts[i];
        uint64_t span = i / ranges, range = i % ranges;
        part->kv_head_begin = (uint32_t)(plan->kv_heads * range / ranges);
        part->kv_head_count =
            (uint32_t)(plan->kv_heads * (range + 1) / ranges) - part->kv_head_begin;
        uint64_t end = even ? share * (span + 1) : begin + plan->shares[i];
        part->token_begin = even ? share * span : begin;
        part->token_end = span + 1 == spans ? UINT64_MAX : end;
        begin = end;
        place(plan, i + turn, part);
    }
    return PP_OK;
}

void gw_route_leave(struct gw_route *route, uint32_t part, uint32_t node)
{
    struct gw_route_part *at = &route->parts[part];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < at->node_count; ++i) {
        if (at->nodes[i] != node) {
            at->nodes[kept++] = at->nodes[i];
        }
    }
    route->epoch += at->node_count - kept;
    at->node_count = kept;
}

enum pp_status gw_route_join(struct gw_route *route, uint32_t part, uint32_t node)
{
    struct gw_route_part *at = &route->parts[part];
    if (at->node_count == GW_REPLICAS_MAX) {
        return PP_RESOURCE_EXHAUSTED;
    }
    at->nodes[at->node_count++] = node;
    route->epoch++;
    return PP_OK;
}

uint32_t gw_route_cut(struct gw_route *route, uint32_t part, uint64_t at)
{
    struct gw_route_part *before = &route->parts[part], *behind = &route->parts[route->part_count];
    PP_ASSERT(before->token_begin <= at && at <= before->token_end);
    behind->kv_head_begin = before->kv_head_begin;
    behind->kv_head_count = before->kv_head_count;
    behind->token_begin = at;
    behind->token_end = before->token_end;
    before->token_end = at;
    route->epoch++;
    return route->part_count++;
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
    uint64_t held = UINT64_MAX;
    for (uint32_t i = 0; i < route->part_count; ++i) {
        const struct gw_route_part *part = &route->parts[i];
        uint64_t end = part->token_begin + part_tokens[i];
        bool full = end >= part->token_end;
        held = !full && end < held ? end : held;
    }
    return held;
}
