/*
 * What a sequence needs after a node was lost: parts that nobody holds any more are opened, empty,
 * on other nodes, and the routing table names those. Between steps only. On the walk:
 * engine/recover > here > part. It refuses to know where the missing rows come from.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/remote/budget.h"
#include "gpu-worker/remote/grow.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/part.h"
#include "gpu-worker/remote/refill.h"

/* How long nodes that are out may take to say that they are not, when no other is left. */
#define LAST_PROBE_US 500000u

static void nothing(void *context)
{
    (void)context;
}

void gw_sequence_purge(struct gw_remote_sequence *sequence)
{
    uint32_t kept = 0;
    gw_remote_run(sequence->remote, nothing, NULL); /* commands that name them have run */
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        if (atomic_load(&part->lost)) {
            gw_route_leave(&sequence->route, part->index, part->node->index);
            gw_part_destroy(part);
        } else {
            sequence->parts[kept++] = part;
        }
    }
    sequence->part_count = kept;
}

/* Parts that are lost leave the table; rows that were on their way are to be sent again. */
static void forget_lost(struct gw_remote_sequence *sequence)
{
    gw_sequence_purge(sequence);
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
            part->queued[layer] = atomic_load(&part->acked[layer]);
        }
    }
}

/* Of the nodes in use that were not tried yet: the one with the fewest of our tokens, rather one
 * with room. UINT32_MAX: none. */
static uint32_t choose_node(struct gw_remote_sequence *sequence, uint32_t index, uint64_t tried)
{
    uint64_t held[GW_NODES_MAX];
    gw_remote_tokens_held(sequence, held);
    return gw_nodes_fewest(sequence->remote, held, tried,
                           gw_rows_need(&sequence->config.shape,
                                        sequence->route.parts[index].kv_head_count,
                                        gw_grow_reserve(sequence, index)));
}

static enum pp_status open_on(struct gw_remote_sequence *sequence, uint32_t index, uint32_t node)
{
    struct gw_part *part;
    PP_TRY(gw_part_new(sequence, index, &sequence->remote->nodes[node], &part));
    enum pp_status status = gw_parts_open(&part, 1);
    if (status != PP_OK) {
        gw_part_destroy(part);
        return status;
    }
    sequence->parts[sequence->part_count++] = part;
    return gw_route_join(&sequence->route, index, node);
}

/* Opens a part that nobody holds on a node that takes it; where none has room for all of it, what
 * the roomiest has room for, and the rest is another part. */
static enum pp_status replace_part(struct gw_remote_sequence *sequence, uint32_t index)
{
    uint64_t refused = gw_sequence_refused(sequence), tried = refused;
    enum pp_status status = refused != 0 ? PP_MEMORY : PP_UNAVAILABLE;
    for (bool probed = false;;) {
        uint32_t node = choose_node(sequence, index, tried);
        if (node == UINT32_MAX && probed) {
            if (status != PP_MEMORY || !gw_grow_cut_fitting(sequence, index)) {
                return status;
            }
            tried = 0;
            continue;
        }
        if (node == UINT32_MAX) {
            probed = true;
            tried = refused;
            /* It is known from the nodes' states who serves. */
            (void)gw_node_probe_all(sequence->remote, LAST_PROBE_US);
            continue;
        }
        tried |= 1ull << node;
        status = open_on(sequence, index, node);
        if (status == PP_OK) {
            return PP_OK;
        }
    }
}

static enum pp_status replace_all(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        if (sequence->route.parts[i].node_count == 0) {
            PP_TRY(replace_part(sequence, i));
        }
    }
    return PP_OK;
}

/* rpc thread: the sets are what the engine's parts say, and the failure is over. */
static void install(void *context)
{
    struct gw_remote_sequence *sequence = context;
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        sequence->sets[i].member_count = 0;
    }
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        struct gw_set *set = &sequence->sets[part->index];
        if (atomic_load(&part->lost)) {
            continue; /* meanwhile */
        }
        set->members[set->member_count++] = part;
        for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
            part->sent[layer] = atomic_load(&part->acked[layer]);
        }
    }
    for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
        gw_set_count_held(sequence, layer);
    }
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        if (sequence->sets[i].member_count == 0) {
            return; /* once more */
        }
    }
    sequence->recoverable = false;
    atomic_store_explicit(&sequence->failed, PP_OK, memory_order_release);
}

/* rpc thread: everything that the engine handed over before has been seen, and dropped. */
static void settle(void *context)
{
    gw_sequence_drop_all(context);
}

static enum pp_status give_up(struct gw_remote_sequence *sequence, enum pp_status status)
{
    char cause[GW_ERROR_BYTES], what[96] = "no node is left for its part";
    memcpy(cause, sequence->error, sizeof(cause));
    if (status == PP_MEMORY) {
        gw_grow_explain(sequence, what, sizeof(what));
        atomic_store_explicit(&sequence->failed, PP_MEMORY, memory_order_release);
    }
    snprintf(sequence->error, sizeof(sequence->error), "%s [%s]; %.200s", what,
             pp_status_name(status), cause);
    sequence->recoverable = false;
    PP_LOG_ERRORF("remote", "sequence failed", "cause=\"%s\"", sequence->error);
    return gw_sequence_failed(sequence);
}

bool gw_remote_recoverable(const struct gw_remote_sequence *sequence)
{
    return gw_sequence_failed(sequence) != PP_OK && sequence->recoverable;
}

enum pp_status gw_remote_recover(struct gw_remote_sequence *sequence)
{
    enum pp_status failed = gw_sequence_failed(sequence);
    if (failed == PP_OK || !sequence->recoverable || sequence->attending) {
        return failed == PP_OK ? PP_FAILED_PRECONDITION : failed;
    }
    gw_refill_abort(sequence);
    gw_budget_forget(sequence);
    while (gw_sequence_failed(sequence) != PP_OK) {
        gw_remote_run(sequence->remote, settle, sequence);
        forget_lost(sequence);
        enum pp_status status = gw_grow_cut_full(sequence);
        status = status == PP_OK ? replace_all(sequence) : status;
        if (status != PP_OK) {
            return give_up(sequence, status);
        }
        gw_remote_run(sequence->remote, install, sequence);
    }
    return PP_OK;
}
