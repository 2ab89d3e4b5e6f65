/*
 * The held tokens of one layer of a part, in order: views of sealed segments, then the tail. The
 * tail lies at the end of the layer's own extent, which nobody else writes. Sealing makes a segment
 * of the tail without moving a row. A worker may choose a segment's border, centre and signatures
 * ("staging"): then the tail closes exactly there.
 * Index bytes of the tail are charged as it grows, so that sealing never lacks memory for them.
 * On the walk: kv/append and exec/attend. Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_LAYER_H
#define PIGPEN_ATTN_NODE_KV_LAYER_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kv/view.h"

/* What the worker said about the segment that the tail is becoming. */
struct an_staging {
    bool open;
    uint32_t count; /* rows that the segment shall have */
    float *centre;  /* [kv head][dim]; NULL: none was given */
    uint64_t centre_bytes;
    uint16_t *codes; /* [kv head][l][stride]; NULL: none, or given up */
    uint64_t codes_bytes;
    uint64_t stride;
    uint32_t code_rows; /* rows of the tail whose signatures came */
};

struct an_layer {
    struct an_params *params;   /* a reference */
    struct an_balance *balance; /* of the indexes to come; NULL: none yet */
    bool dense;                 /* never indexed */
    struct an_view *views;
    uint32_t view_count, view_capacity;
    uint64_t sealed_tokens;          /* sum over views */
    struct an_extent *extent;        /* where the tail lies; NULL: none yet */
    uint32_t tail_begin, tail_count; /* rows of extent */
    bool tail_bulk;                  /* closes only when full or sealed by request */
    uint64_t tail_index_charge;      /* bytes reserved for the tail's index */
    uint64_t tail_kv_charge;         /* bytes shown as tail, not as kv */
    struct an_staging staging;
    struct an_segment *merge; /* the merge under way, with a reference; NULL: none */
};

void an_layer_init(struct an_layer *layer, struct an_params *params, bool dense);
/* Accepts a zeroed layer. Frees what only it refers to. */
void an_layer_deinit(struct an_layer *layer);

static inline uint64_t an_layer_held(const struct an_layer *layer)
{
    return layer->sealed_tokens + layer->tail_count;
}

/* A stretch of held tokens that lies in one place: a view (segment not NULL) or the tail. */
struct an_stretch {
    const struct an_extent *extent;
    const struct an_segment *segment;
    uint32_t base;       /* row of the extent that row numbers below count from */
    uint32_t begin, end; /* rows; of the segment for a view, of the tail for the tail */
    uint64_t held_begin; /* held index of row `begin` */
};

/* Number of stretches, and the index-th clipped to held indexes below `held`; an empty one
 * (begin == end) when nothing is left of it. */
static inline uint32_t an_layer_stretch_count(const struct an_layer *layer)
{
    return layer->view_count + (layer->tail_count > 0 ? 1u : 0u);
}
struct an_stretch an_layer_stretch(const struct an_layer *layer, uint32_t index, uint64_t held);
/* The index of the stretch that holds held index `held` (< an_layer_held). */
uint32_t an_layer_find(const struct an_layer *layer, uint64_t held);

/* Bytes of the index that a tail of `tokens` rows will want; 0 on dense layers. */
uint64_t an_layer_index_bytes(const struct an_layer *layer, uint32_t tokens);

/* What `tokens` rows that come in bulk take from the limit, indexes included, in an empty layer;
 * and the build scratch that they want of the store. */
uint64_t an_layer_need(const struct an_layer *layer, uint64_t tokens);
uint64_t an_layer_scratch_need(const struct an_layer *layer, uint64_t tokens);

/* Sets the tail's index reservation (and build scratch) to what `tokens` rows need. Shrinking never
 * fails. PP_MEMORY: nothing changed. */
PP_MUST_USE enum pp_status an_layer_reserve_index(struct an_layer *layer, uint32_t tokens);

/* Closes the tail into a segment; a tail of 0 rows is left as it is. The segment is not given to
 * the builder yet (an_layer_schedule). PP_MEMORY: nothing changed. */
PP_MUST_USE enum pp_status an_layer_seal(struct an_layer *layer);

/* Asks for the indexes of the segments of views [from, view_count) that have room reserved. */
void an_layer_schedule(struct an_layer *layer, uint32_t from);

/* Adds a view, taking over the caller's reference to its segment. PP_MEMORY: nothing changed. */
PP_MUST_USE enum pp_status an_layer_add_view(struct an_layer *layer, const struct an_view *view);

/* Gives the layer's extent up (the tail must be empty), so that the next row begins a new one. */
void an_layer_leave_extent(struct an_layer *layer);

/* Brings what is counted as tail memory up to date. */
void an_layer_account_tail(struct an_layer *layer);

void an_layer_staging_drop(struct an_layer *layer);

#endif
