/*
 * Between steps: a part that lies on fewer nodes than it should, or on one that is being drained,
 * is copied to another node, a piece a step: ReadKv from a node that holds it, append to the new
 * one. When that has acknowledged everything it joins the part's set, and the draining node is
 * left. Live parts move for no other reason. On the walk of a token's K/V: read > here > outbox. It
 * refuses to know tokens: rows as they lie. What fails here fails nobody; it is tried again.
 */
#include "gpu-worker/remote/refill.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/remote/grow.h"
#include "gpu-worker/remote/node.h"
#include "gpu-worker/remote/outbox.h"
#include "gpu-worker/remote/part.h"
#include "gpu-worker/remote/read.h"

#define PIECE_BYTES (1u << 21) /* of K */
#define RETRY_US    500000u
/* A member this far behind another one leaves its set: 4 batches of decoding. */
#define LAG_TOKENS_MAX 256u

struct gw_refill {
    struct gw_part *part, *from; /* NULL: nothing is being copied */
    uint64_t retry_us;
    bool reading;
    struct gw_read read;
    uint32_t layer;
    uint64_t begin, count; /* of the piece that is read */
    uint64_t token_bytes, piece_tokens;
    uint8_t *k, *v; /* [piece_tokens] rows of the part's heads */
};

static bool in_use(const struct gw_part *part)
{
    return !atomic_load(&part->lost) && !atomic_load(&part->node->draining);
}

/* Every command that names the part has run; nothing leads to it. */
static void nothing(void *context)
{
    (void)context;
}

static void lose_quietly(void *context)
{
    gw_part_leave(context);
}

static void discard(struct gw_refill *refill)
{
    struct gw_part *part = refill->part;
    struct gw_remote *remote = part->sequence->remote;
    if (refill->reading) {
        gw_read_cancel(&refill->read);
        (void)gw_read_wait(&refill->read);
        refill->reading = false;
    }
    gw_remote_run(remote, atomic_load(&part->lost) ? nothing : lose_quietly, part);
    gw_parts_close(&part, 1);
    gw_part_destroy(part);
    refill->part = refill->from = NULL;
    refill->retry_us = gw_remote_now(remote) + RETRY_US;
}

void gw_refill_abort(struct gw_remote_sequence *sequence)
{
    if (sequence->refill != NULL && sequence->refill->part != NULL) {
        discard(sequence->refill);
    }
}

void gw_refill_destroy(struct gw_remote_sequence *sequence)
{
    gw_refill_abort(sequence);
    if (sequence->refill != NULL) {
        free(sequence->refill->k);
        free(sequence->refill->v);
        free(sequence->refill);
    }
}

/* A node for the part besides those that hold it: in use, and with the fewest of our tokens. */
static struct gw_node *choose_node(struct gw_remote_sequence *sequence, uint32_t index)
{
    uint64_t held[GW_NODES_MAX], holders = gw_sequence_refused(sequence);
    struct gw_remote *remote = sequence->remote;
    gw_remote_tokens_held(sequence, held);
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        const struct gw_part *part = sequence->parts[i];
        holders |= part->index == index ? 1ull << part->node->index : 0;
    }
    uint64_t bytes =
        gw_rows_need(&sequence->config.shape, sequence->route.parts[index].kv_head_count,
                     gw_grow_reserve(sequence, index));
    uint32_t chosen = gw_nodes_fewest(remote, held, holders, bytes);
    return chosen == UINT32_MAX ? NULL : &remote->nodes[chosen];
}

/* The first part that wants another node, and who has its rows; NULL: none. */
static struct gw_part *find_source(struct gw_remote_sequence *sequence, struct gw_node **node_out)
{
    for (uint32_t i = 0; i < sequence->route.part_count; ++i) {
        struct gw_part *source = NULL;
        uint32_t members = 0;
        for (uint32_t j = 0; j < sequence->part_count; ++j) {
            struct gw_part *part = sequence->parts[j];
            if (part->index == i && !atomic_load(&part->lost)) {
                source = source == NULL || in_use(part) ? part : source;
                members += in_use(part) ? 1 : 0;
            }
        }
        if (source != NULL && members < sequence->remote->config.replicas) {
            *node_out = choose_node(sequence, i);
            if (*node_out != NULL) {
                return source;
            }
        }
    }
    return NULL;
}

static enum pp_status take_memory(struct gw_refill *refill, const struct gw_part *from)
{
    const struct gw_remote_sequence *sequence = from->sequence;
    const struct pp_shape *shape = &sequence->config.shape;
    uint64_t heads = sequence->route.parts[from->index].kv_head_count;
    refill->token_bytes = heads * pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t most = PIECE_BYTES / refill->token_bytes;
    refill->piece_tokens = most > 0 ? most : 1;
    free(refill->k);
    free(refill->v);
    refill->k = malloc(refill->piece_tokens * refill->token_bytes);
    refill->v = malloc(refill->piece_tokens * refill->token_bytes);
    return refill->k != NULL && refill->v != NULL ? PP_OK : PP_MEMORY;
}

static void begin(struct gw_remote_sequence *sequence, struct gw_refill *refill)
{
    struct gw_node *node = NULL;
    struct gw_part *from = find_source(sequence, &node), *part = NULL;
    uint64_t now_us = gw_remote_now(sequence->remote);
    refill->retry_us = now_us + RETRY_US;
    if (from == NULL || sequence->part_count == GW_SEQUENCE_PARTS_MAX ||
        take_memory(refill, from) != PP_OK ||
        gw_part_new(sequence, from->index, node, &part) != PP_OK) {
        return;
    }
    if (gw_parts_open(&part, 1) != PP_OK) {
        gw_part_destroy(part);
        return;
    }
    PP_LOG_INFOF("refill", "a part is copied", "from=%s to=%s part=%u", from->node->address.name,
                 node->address.name, from->index);
    refill->part = part;
    refill->from = from;
}

static void append_piece(struct gw_refill *refill)
{
    struct gw_part *part = refill->part;
    const struct gw_remote_sequence *sequence = part->sequence;
    const struct pp_shape *shape = &sequence->config.shape;
    const struct gw_route_part *route = &sequence->route.parts[part->index];
    const float *balance = gw_remote_balance_of(sequence, refill->layer);
    struct gw_rows rows = {
        .k = refill->k,
        .v = refill->v,
        .token_bytes = refill->token_bytes,
        .head_bytes = pp_vector_bytes(shape->head_dim, shape->kv_dtype),
        .kv_head_count = route->kv_head_count,
        .count = (uint32_t)refill->count,
    };
    if (refill->begin == 0 && balance != NULL) {
        rows.balance = balance + (uint64_t)route->kv_head_begin * shape->head_dim;
        rows.balance_bytes = shape->head_dim * (uint32_t)sizeof(float);
    }
    part->queued[refill->layer] = refill->begin + refill->count;
    (void)gw_outbox_append(part, refill->layer, refill->begin, &rows, true);
}

/* Starts to read the next rows that the part lacks; false when it has been given all there are. */
static bool read_piece(struct gw_refill *refill)
{
    const struct gw_part *part = refill->part;
    uint32_t layers = part->sequence->config.shape.layers;
    for (uint32_t layer = 0; layer < layers; ++layer) {
        uint64_t begin = part->queued[layer], end = atomic_load(&refill->from->acked[layer]);
        if (begin < end) {
            refill->layer = layer;
            refill->begin = begin;
            refill->count = end - begin < refill->piece_tokens ? end - begin : refill->piece_tokens;
            refill->reading = true;
            gw_read_start(&refill->read, refill->from, layer, begin, refill->count, refill->k,
                          refill->v, refill->token_bytes);
            return true;
        }
    }
    return false;
}

/* Whether the part has acknowledged all that was ever handed over of it. */
static bool caught_up(const struct gw_part *part)
{
    const struct gw_remote_sequence *sequence = part->sequence;
    for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
        uint64_t share =
            gw_route_part_tokens(&sequence->route, part->index, sequence->handed[layer]);
        if (atomic_load(&part->acked[layer]) != share) {
            return false;
        }
    }
    return true;
}

static void join_set(void *context)
{
    struct gw_part *part = context;
    struct gw_set *set = &part->sequence->sets[part->index];
    if (!atomic_load(&part->lost) && set->member_count < GW_REPLICAS_MAX) {
        set->members[set->member_count++] = part;
    }
}

struct leaving {
    struct gw_part *part;
    bool left;
};

/* rpc thread: only there it is sure that another member stays. The new one may drain by now. */
static void leave(void *context)
{
    struct leaving *leaving = context;
    struct gw_part *part = leaving->part;
    const struct gw_set *set = &part->sequence->sets[part->index];
    if (atomic_load(&part->lost)) {
        return; /* meanwhile */
    }
    for (uint32_t i = 0; i < set->member_count && !leaving->left; ++i) {
        leaving->left = set->members[i] != part && in_use(set->members[i]);
    }
    if (leaving->left) {
        gw_part_leave(part);
    }
}

/* Nodes that drain are left by parts that another one holds now. */
static void leave_draining(struct gw_remote_sequence *sequence, uint32_t index)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct leaving leaving = {.part = sequence->parts[i]};
        struct gw_part *part = leaving.part;
        if (part->index == index && !atomic_load(&part->lost) &&
            atomic_load(&part->node->draining)) {
            gw_remote_run(sequence->remote, leave, &leaving);
        }
        if (leaving.left) {
            gw_parts_close(&part, 1);
            PP_LOG_WARNF("refill", "a part has left a draining node", "node=%s part=%u",
                         part->node->address.name, index);
        }
    }
    gw_sequence_purge(sequence);
}

static void join(struct gw_remote_sequence *sequence, struct gw_refill *refill)
{
    struct gw_part *part = refill->part;
    if (gw_part_seal(part) != PP_OK ||
        gw_route_join(&sequence->route, part->index, part->node->index) != PP_OK) {
        discard(refill);
        return;
    }
    refill->part = refill->from = NULL;
    sequence->parts[sequence->part_count++] = part;
    gw_remote_run(sequence->remote, join_set, part);
    sequence->remote->copied++;
    pp_stat_add(sequence->remote->parts_copied, 1);
    PP_LOG_INFOF("refill", "a part lies on one more node", "node=%s part=%u",
                 part->node->address.name, part->index);
    leave_draining(sequence, part->index);
}

static void go_on(struct gw_remote_sequence *sequence, struct gw_refill *refill)
{
    const struct gw_remote *remote = sequence->remote;
    if (atomic_load(&refill->part->lost) || atomic_load(&refill->from->lost)) {
        discard(refill);
        return;
    }
    if (refill->reading) {
        if (!atomic_load_explicit(&refill->read.done, memory_order_acquire) ||
            gw_outbox_used(remote->outbox) > remote->outbox->capacity / 2) {
            return;
        }
        refill->reading = false;
        if (gw_read_wait(&refill->read) != PP_OK) {
            discard(refill);
            return;
        }
        append_piece(refill);
    }
    if (!read_piece(refill) && caught_up(refill->part)) {
        join(sequence, refill);
    }
}

/* Members that do not keep up hold the others back. */
static void lose_laggards(struct gw_remote_sequence *sequence)
{
    for (uint32_t i = 0; i < sequence->part_count; ++i) {
        struct gw_part *part = sequence->parts[i];
        for (uint32_t j = 0; j < sequence->part_count && !atomic_load(&part->lost); ++j) {
            const struct gw_part *other = sequence->parts[j];
            if (other->index != part->index || other == part || atomic_load(&other->lost)) {
                continue;
            }
            for (uint32_t layer = 0; layer < sequence->config.shape.layers; ++layer) {
                if (atomic_load(&other->acked[layer]) >
                    atomic_load(&part->acked[layer]) + LAG_TOKENS_MAX) {
                    gw_part_fail_from_engine(part, PP_QUEUE, "append",
                                             "too far behind its replica");
                    pp_stat_add(sequence->remote->parts_behind, 1);
                    break;
                }
            }
        }
    }
}

void gw_remote_maintain(struct gw_remote_sequence *sequence)
{
    if (gw_sequence_failed(sequence) != PP_OK || sequence->attending) {
        return;
    }
    if (sequence->remote->config.replicas > 1) {
        lose_laggards(sequence);
    }
    gw_grow_maintain(sequence);
    struct gw_refill *refill = sequence->refill;
    if (refill != NULL && refill->part != NULL) {
        go_on(sequence, refill);
        return;
    }
    struct gw_node *node;
    if (refill == NULL && find_source(sequence, &node) != NULL) {
        refill = sequence->refill = calloc(1, sizeof(*refill));
    }
    if (refill != NULL && gw_remote_now(sequence->remote) >= refill->retry_us) {
        gw_sequence_purge(sequence);
        begin(sequence, refill);
    }
}
