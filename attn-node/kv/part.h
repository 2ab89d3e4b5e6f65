/*
 * A part: what one open gave a node of a sequence. Its identity, its generation, its lease, and one
 * layer of held tokens for each layer of the model. All sizes and rules are fixed at open.
 * On the walk: exec > table > part > layer. It refuses to know how requests travel.
 * Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_PART_H
#define PIGPEN_ATTN_NODE_KV_PART_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kv/late.h"
#include "attn-node/kv/layer.h"
#include "common/base/limits.h"

/* What an open says; compared whole when the same part id is opened again. */
struct an_part_spec {
    uint8_t sequence_id[PP_ID_BYTES];
    uint8_t part_id[PP_ID_BYTES];
    uint8_t fingerprint[PP_FINGERPRINT_BYTES];
    uint32_t fingerprint_bytes;
    struct pp_shape shape;
    uint32_t kv_head_begin, kv_head_count;
    uint64_t token_begin;
    struct pp_estimator estimator; /* resolved */
    uint64_t hash_seed;
    uint64_t draw_key; /* of `sketch`, in place of the part id; 0: that */
};

/* What an open says of single layers: those that are attended exactly, and other estimators (of
 * several for one layer the last counts). */
struct an_part_layers {
    const uint32_t *dense;
    uint32_t dense_count;
    const struct pp_layer_estimator *estimators;
    uint32_t estimator_count;
};

struct an_part {
    struct an_part_spec spec;
    uint64_t handle;
    uint64_t generation;
    struct an_params *params; /* of layers without an estimator of their own */
    struct an_layer *layers;  /* [spec.shape.layers] */
    uint64_t longest;         /* held tokens of the longest layer, as counted by the owner */
    uint64_t reserved_bytes;  /* kept free for rows and indexes; shrinks as they are charged */
    uint64_t lent_used;       /* of the limit by rows and indexes when the reserve was lent */
    uint64_t own_charge;
    struct an_late *late; /* NULL: none is kept */
    bool forked;          /* by this fork, for asking again */
    uint64_t fork_source, fork_held_tokens, fork_generation;
    /* The last truncate, for asking again. */
    uint64_t truncate_held_tokens;
    uint64_t lease_us; /* from touch to end; the table puts its own for 0 and for more */
    /* Links of the table. */
    uint64_t lease_end_us;
    struct an_part *lease_older, *lease_newer;
    struct an_part *next_by_handle, *next_by_id;
};

/* Checks what a peer said: shape, kv heads in range, named layers below layers, estimators (the
 * spec's resolved in place). PP_BAD_SHAPE, PP_BAD_DTYPE, PP_INVALID_ARGUMENT, PP_UNIMPLEMENTED. */
PP_MUST_USE enum pp_status an_part_check(struct an_part_spec *spec,
                                         const struct an_part_layers *layers);

/* A new, empty part of a checked spec. PP_MEMORY. */
PP_MUST_USE enum pp_status an_part_new(struct an_store *store, const struct an_part_spec *spec,
                                       const struct an_part_layers *layers,
                                       struct an_part **part_out);

/* What `tokens` tokens of an empty part take from the limit: rows as they come in bulk, indexes,
 * and what the store lacks of build scratch. At most PP_TOKENS_PER_PART_MAX. */
uint64_t an_part_need(const struct an_part *part, uint64_t tokens);

/* Takes from the limit what an empty part needs for `tokens`, at least least_bytes, and keeps it
 * for what its rows and indexes will be charged. PP_MEMORY: nothing changed. */
PP_MUST_USE enum pp_status an_part_reserve(struct an_part *part, uint64_t tokens,
                                           uint64_t least_bytes);

/* A part that shares the first held_tokens of every layer of `from`, under other ids. PP_SHORT_PART
 * when a layer is shorter, PP_MEMORY. */
PP_MUST_USE enum pp_status an_part_fork(const struct an_part *from, const uint8_t *sequence_id,
                                        const uint8_t *part_id, uint64_t held_tokens,
                                        uint64_t generation, struct an_part **part_out);
void an_part_destroy(struct an_part *part);

/* PP_OK when an open with this spec means this part; PP_MODEL_MISMATCH (fingerprint, shape, dtype,
 * seed), PP_PART_EXISTS (anything else). */
PP_MUST_USE enum pp_status an_part_matches(const struct an_part *part,
                                           const struct an_part_spec *spec,
                                           const struct an_part_layers *layers);

/* Cuts every layer to held_tokens under the generation rule: from `expected` to new_generation,
 * which must be higher; asked again after it was done: PP_OK and nothing happens.
 * PP_STALE_GENERATION, PP_INVALID_ARGUMENT. */
PP_MUST_USE enum pp_status an_part_truncate(struct an_part *part, uint64_t expected,
                                            uint64_t new_generation, uint64_t held_tokens);

/* Seals the tails of the named layers (0: all). *segments_out counts the new segments. PP_MEMORY:
 * those before stay sealed. */
PP_MUST_USE enum pp_status an_part_seal(struct an_part *part, const uint32_t *layers,
                                        uint32_t layer_count, uint64_t *segments_out);

/* Around an append, on the thread that owns the limit's K/V: lend gives the part's reservation back
 * to the limit, so that the rows may be charged out of it; settle keeps of it what they did not
 * use. */
void an_part_reserve_lend(struct an_part *part);
void an_part_reserve_settle(struct an_part *part);

/* Query heads of the kv heads held here. */
static inline uint32_t an_part_q_heads(const struct an_part *part)
{
    return part->spec.kv_head_count * pp_shape_group(&part->spec.shape);
}

/* Bytes charged to the node for what the part refers to, shared segments in full. */
uint64_t an_part_bytes(const struct an_part *part);

#endif
