/*
 * A segment: at most 65,472 rows of one layer of a part, with one index a kv head. Its rows never
 * change once it is sealed; its index comes later from a build, and until then it is attended
 * exactly. Reference-counted: every view holds one, the list of waiting builds and the builder hold
 * one. A build belongs to its segment and is published while any view refers to it.
 * Threads: everything on the exec thread, except that the builder runs an_segment_build on a
 * segment that was handed to it, touching only what `build` names, and reads `cancelled`.
 */
#ifndef PIGPEN_ATTN_NODE_KV_SEGMENT_H
#define PIGPEN_ATTN_NODE_KV_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "attn-node/index/index.h"
#include "attn-node/kv/balance.h"
#include "attn-node/kv/extent.h"
#include "attn-node/kv/params.h"

/* What a build reads beside the rows, and what it makes. */
struct an_segment_build {
    bool centre_given;    /* by the worker, with its signatures or without */
    uint16_t *codes;      /* [kv head][l][stride] from the worker, or NULL: hash here */
    uint64_t codes_bytes; /* of codes, charged as scratch */
    uint64_t stride;
    struct an_index **made; /* [kv head], owned by the builder until published */
    enum pp_status status;
    uint64_t took_us; /* for the metrics */
};

struct an_segment {
    struct an_params *params;
    struct an_extent *extent;
    struct an_balance *balance; /* of its index; NULL: none */
    uint32_t begin;             /* first row in the extent */
    uint32_t count;
    uint32_t references;
    bool indexed;   /* index[] may be used */
    bool in_build;  /* waiting for or with the builder */
    bool owns_rows; /* its end gives its rows back: not before a merge has ended, not after */
    float *centre;  /* [kv head][dim] f32, mean key summed in f64; set by the build */
    struct an_index **index; /* [kv head]; NULL until published */
    uint64_t index_charge;   /* bytes charged for the indexes */
    uint64_t own_charge;     /* bytes charged for this struct and its arrays */
    _Atomic bool cancelled;  /* no view refers to it any more: the build may stop */
    struct an_segment_build build;
    struct an_segment *build_next;
    struct an_merge *merge; /* of a segment that is being made of others: merge.h */
};

/* What a segment takes from the limit besides rows and indexes. */
uint64_t an_segment_own_bytes(const struct an_params *params);

/* Takes references to params, extent and balance (NULL: none). Starts with one reference and no
 * index. PP_MEMORY. */
PP_MUST_USE enum pp_status an_segment_new(struct an_params *params, struct an_extent *extent,
                                          struct an_balance *balance, uint32_t begin,
                                          uint32_t count, struct an_segment **segment_out);
void an_segment_acquire(struct an_segment *segment);
/* The last one frees the index, and the rows when nothing else needs the extent; rows at the end of
 * an extent's filled part become free for its writer. */
void an_segment_release(struct an_segment *segment);

/* Puts the segment on the store's list of builds (its index memory must be charged). */
void an_segment_want_index(struct an_segment *segment);

/* Mean key of every kv head into centre_out [kv head][dim]: f64 sums in index order. */
void an_segment_centre(const struct an_segment *segment, float *centre_out);

/* The body of a build: centre, index memory, index a kv head. Any one thread. The outcome is in
 * segment->build. */
void an_segment_build(struct an_segment *segment);

/* Takes the outcome over and gives the build's reference back. Returns whether an index was
 * published (false: the build failed, or nobody refers to the segment any more). */
bool an_segment_publish(struct an_segment *segment);

static inline struct an_rows an_segment_rows(const struct an_segment *segment, uint32_t kv_head)
{
    return an_extent_rows(segment->extent, segment->params, kv_head, segment->begin);
}

#endif
