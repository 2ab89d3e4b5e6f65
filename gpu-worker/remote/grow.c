/*
 * Growth goes where there is room: a part whose node runs short of memory ends at the tokens that
 * it has, and those that come then go to a new part on another node. Between steps only; what a
 * part holds never moves. On the walk of a token's K/V: before the outbox. It refuses to know where
 * rows come from.
 *
 * What nodes have free they say with every acknowledgement; memory that they keep for a part is not
 * in it.
 */
#include "gpu-worker/remote/grow.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/part.h"
#include "gpu-worker/remote/placement.h"
#include "gpu-worker/remote/refill.h"

#define RETRY_US 500000u
/* Pieces of a part that fits nowhere as a whole are multiples of this; where nodes are nearly full
 * they are asked to keep so much for growth. */
#define PIECE_TOKENS 64u

static uint64_t part_bytes(const struct gw_remote_sequence *sequence, uint32_t index,
                           uint64_t tokens)
{
    return gw_rows_need(&sequence->config.shape, sequence->route.parts[index].kv_head_count,
                        tokens);
}

/* Tokens of the part that have been handed over. */
static uint64_t part_handed(const struct gw_remote_sequence *sequence, uint32_t index)
{
    return gw_route_part_tokens(&sequence->route, index, sequence->handed[0]);
}

uint64_t gw_grow_reserve(const struct gw_remote_sequence *sequence, uint32_t index)
{
    uint64_t expected = sequence->config.tokens_expected, handed = sequence->handed[0];
    bool grows = sequence->route.parts[index].token_end == UINT64_MAX;
    if (handed == 0 || handed < expected || !grows) {
        return gw_route_part_tokens(&sequence->route, index, expected > handed ? expected : handed);
    }
    return part_handed(sequence, index) + PIECE_TOKENS;
}

/* What the node must have free, besides what it keeps for the part, for the tokens to come. */
static uint64_t ahead_bytes(const struct gw_part *part)
{
    const struct gw_remote_sequence *sequence = part->sequence;
    uint64_t held = part_handed(sequence, part->index), next = held + GW_GROW_AHEAD_TOKENS;
    uint64_t kept = part->reserved_tokens;
    uint64_t lacking = next > kept ? next - kept : 0;
    lacking = lacking < GW_GROW_AHEAD_TOKENS ? lacking : GW_GROW_AHEAD_TOKENS;
    return part_bytes(sequence, part->index, lacking);
}

static bool runs_short(const struct gw_part *part)
{
    const struct gw_remote_sequence *sequence = part->sequence;
    uint64_t end = sequence->route.parts[part->index].token_end;
    return !atomic_load(&part->lost) && end > sequence->handed[0] && part->node->memory_bytes > 0 &&
           atomic_load_explicit(&part->node->free_bytes, memory_order_relaxed) < ahead_bytes(part);
}

/* The route changes where the rpc thread, which reads it, does not run. */
struct cut {
    struct gw_remote_sequence *sequence;
    struct gw_part *part; /* on the first node of the new part; NULL: none yet */
    uint32_t index;
    uint64_t at;
};

/* Rows behind the cut that a node has got already count no more; it is never asked for them. */
static void clip_counts(struct gw_part *part, uint64_t tokens)
{
    for (uint32_t layer = 0; layer < part->sequence->config.shape.layers; ++layer) {
        uint64_t acked = atomic_load(&part->acked[layer]);
        atomic_store(&part->acked[layer], acked < tokens ? acked : tokens);
        part->sent[layer] = part->sent[layer] < tokens ? part->sent[layer] : tokens;
        part->queued[layer] = part->queued[layer] < tokens ? part->queued[layer] : tokens;
    }
}

static void run_cut(void *context)
{
    const struct cut *cut = context;
    struct gw_remote_sequence *sequence = cut->sequence;
    struct gw_route *route = &sequence->route;
    uint32_t behind = gw_route_cut(route, cut->index, cut->at);
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        if (sequence->parts[i]->index == cut->index) {
            clip_counts(sequence->parts[i], cut->at - route->parts[cut->index].token_begin);
        }
    }
    struct gw_set *set = &sequence->sets[behind];
    set->member_count = 0;
    if (cut->part != NULL) {
        set->members[set->member_count++] = cut->part;
        gw_node_open_streams(cut->part->node);
    }
    for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
        gw_set_count_held(sequence, layer);
    }
}

/* What the new part will be, for who opens it; the route counts it when it is cut. */
static enum pp_status prepare_cut(struct gw_remote_sequence *sequence, uint32_t index, uint64_t at)
{
    struct gw_route *route = &sequence->route;
    if (route->part_count == GW_NODES_MAX) {
        return PP_RESOURCE_EXHAUSTED;
    }
    struct gw_route_part *behind = &route->parts[route->part_count];
    *behind = route->parts[index];
    behind->node_count = 0;
    behind->token_begin = at;
    return gw_set_init(sequence, route->part_count);
}

enum pp_status gw_grow_cut(struct gw_remote_sequence *sequence, uint32_t index, uint64_t at,
                           uint32_t *index_out)
{
    struct cut cut = {.sequence = sequence, .index = index, .at = at};
    PP_TRY(prepare_cut(sequence, index, at));
    gw_remote_run(sequence->remote, run_cut, &cut);
    *index_out = sequence->route.part_count - 1;
    return PP_OK;
}

/* A node for the tokens behind the part's, open and with room. */
static enum pp_status choose(const struct gw_part *part, uint32_t *node_out)
{
    struct gw_remote_sequence *sequence = part->sequence;
    struct gw_placement_node figures[GW_NODES_MAX];
    uint32_t count = gw_nodes_figures(sequence->remote, figures);
    uint64_t key;
    memcpy(&key, sequence->id, sizeof(key));
    return gw_placement_grow(figures, count, pp_rng_at(key, sequence->route.part_count),
                             part->node->index, ahead_bytes(part),
                             part_bytes(sequence, part->index, GW_GROW_TOKENS), node_out);
}

static enum pp_status grow(struct gw_part *from)
{
    struct gw_remote_sequence *sequence = from->sequence;
    struct gw_remote *remote = sequence->remote;
    uint32_t node, behind = sequence->route.part_count;
    /* After a cut of the sequence, the tokens handed over may end before this span. */
    uint64_t begin = sequence->route.parts[from->index].token_begin, handed = sequence->handed[0];
    struct cut cut = {
        .sequence = sequence, .index = from->index, .at = handed > begin ? handed : begin};
    PP_TRY(choose(from, &node));
    if (node == from->node->index || sequence->part_count == GW_SEQUENCE_PARTS_MAX) {
        return PP_RESOURCE_EXHAUSTED;
    }
    PP_TRY(prepare_cut(sequence, cut.index, cut.at));
    PP_TRY(gw_part_new(sequence, behind, &remote->nodes[node], &cut.part));
    cut.part->reserved_tokens = GW_GROW_TOKENS;
    enum pp_status status = gw_parts_open(&cut.part, 1);
    if (status != PP_OK) {
        gw_part_destroy(cut.part);
        return status;
    }
    sequence->parts[sequence->part_count++] = cut.part;
    gw_remote_run(remote, run_cut, &cut);
    pp_stat_add(remote->parts_grown, 1);
    PP_LOG_INFOF("grow", "a sequence grows on another node",
                 "from=%s to=%s part=%u tokens=%llu free_bytes=%llu", from->node->address.name,
                 cut.part->node->address.name, behind, (unsigned long long)cut.at,
                 (unsigned long long)atomic_load(&from->node->free_bytes));
    return gw_route_join(&sequence->route, behind, node);
}

/* Every layer has been handed the same tokens: a step is not half done. */
static bool is_even(const struct gw_remote_sequence *sequence)
{
    for (uint32_t layer = 1; layer < sequence->config.shape.layers; ++layer) {
        if (sequence->handed[layer] != sequence->handed[0]) {
            return false;
        }
    }
    return true;
}

void gw_grow_maintain(struct gw_remote_sequence *sequence)
{
    uint64_t now_us = gw_remote_now(sequence->remote);
    if (now_us < sequence->grow_us || !is_even(sequence)) {
        return;
    }
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        if (!runs_short(part)) {
            continue;
        }
        gw_refill_abort(sequence); /* it copies what is to be cut */
        if (grow(part) != PP_OK) {
            sequence->grow_us = now_us + RETRY_US;
        }
        return;
    }
}

/* Tokens of a part that all who hold it have acknowledged, in every layer. */
static uint64_t acknowledged(const struct gw_remote_sequence *sequence, uint32_t index)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        const struct gw_part *part = sequence->parts[i];
        for (uint32_t layer = 0; part->index == index && layer < sequence->config.shape.layers;
             ++layer) {
            uint64_t acked = atomic_load(&part->acked[layer]);
            least = acked < least ? acked : least;
        }
    }
    return least;
}

static void lose_quietly(void *context)
{
    gw_part_leave(context);
}

/* Nothing of the part is worth keeping where it is. */
static void leave_all(struct gw_remote_sequence *sequence, uint32_t index)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        if (part->index == index && !atomic_load(&part->lost)) {
            gw_remote_run(sequence->remote, lose_quietly, part);
            gw_parts_close(&part, 1);
        }
    }
}

enum pp_status gw_grow_cut_full(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        uint32_t index = part->index, behind;
        if (!part->full) {
            continue;
        }
        part->full = false;
        uint64_t begin = sequence->route.parts[index].token_begin;
        uint64_t at = begin + acknowledged(sequence, index);
        if (at == begin) {
            leave_all(sequence, index);
        } else if (sequence->route.parts[index].token_end > at) {
            PP_TRY(gw_grow_cut(sequence, index, at, &behind));
            pp_stat_add(sequence->remote->parts_grown, 1);
        }
    }
    gw_sequence_purge(sequence);
    return PP_OK;
}

static uint64_t most_room(const struct gw_remote_sequence *sequence)
{
    struct gw_placement_node figures[GW_NODES_MAX];
    uint32_t count = gw_nodes_figures(sequence->remote, figures);
    uint64_t most = 0;
    for (uint32_t i = 0; i < count; ++i) {
        uint64_t room = figures[i].open ? figures[i].free_bytes : 0;
        most = room > most ? room : most;
    }
    return most;
}

bool gw_grow_cut_fitting(struct gw_remote_sequence *sequence, uint32_t index)
{
    uint32_t behind;
    uint64_t wanted = gw_grow_reserve(sequence, index), most = most_room(sequence);
    most -= most / 16; /* a part takes a little more than its rows and indexes */
    uint64_t fitting = most / part_bytes(sequence, index, 1);
    fitting = fitting < wanted ? fitting : wanted / 4 * 3; /* it was refused all the same */
    fitting = fitting / PIECE_TOKENS * PIECE_TOKENS;
    uint64_t at = sequence->route.parts[index].token_begin + fitting;
    return fitting > 0 && gw_grow_cut(sequence, index, at, &behind) == PP_OK;
}

void gw_grow_explain(const struct gw_remote_sequence *sequence, char *text_out, size_t bytes)
{
    uint64_t most = most_room(sequence), needed = 0;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        if (sequence->route.parts[i].node_count == 0) {
            needed += part_bytes(sequence, i, gw_grow_reserve(sequence, i));
        }
    }
    snprintf(text_out, bytes, "no node has room for its part: %llu bytes lack, of %llu",
             (unsigned long long)(needed > most ? needed - most : needed),
             (unsigned long long)needed);
}
