/*
 * The index of a segment: what finds the rows of one kv head that a query should read, and with
 * what probability. Built from rows and a centre, immutable, freed by its owner. `lsh` and `sketch`
 * (layouts: ARCHITECTURE.md, memory of a segment) stand behind the same calls.
 * Threads: build on the builder, attend on any thread of the team; pure over immutable data.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_INDEX_H
#define PIGPEN_ATTN_NODE_INDEX_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kernels/kernels.h"
#include "attn-node/kernels/sketch.h"
#include "common/attn/hash.h"
#include "common/attn/math.h"
#include "common/base/status.h"

/* What all segments of a part share. */
struct an_index_params {
    struct pp_estimator estimator;
    const struct pp_hash *hash;               /* lsh */
    const struct pp_log_u_table *log_u_table; /* lsh */
    const struct an_sketch_signs *signs;      /* sketch */
    const float *balance; /* sketch, of a build: [dim] of this layer and kv head, > 0; NULL: ones.
                             The index keeps its own. */
};

struct an_index; /* of one segment and kv head */

#define AN_INDEX_HEADS_MAX 16u  /* of a query */
#define AN_INDEX_VIEWS_MAX 512u /* of a call */

/* Memory an index of `tokens` rows takes, and a build's scratch, in bytes: reserved at append. */
uint64_t an_index_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens);
uint64_t an_index_scratch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens,
                                uint32_t threads);

/* Builds over rows [0, tokens) with a team of `threads`. centre [dim] f32. codes: signatures made
 * by the worker, table-major [l][stride], or NULL to hash here. memory [an_index_bytes], 64-byte
 * aligned, becomes the index (an_index is its first bytes); scratch [an_index_scratch_bytes],
 * 64-byte aligned. */
PP_MUST_USE enum pp_status an_index_build(const struct an_index_params *params,
                                          const struct an_rows *rows, uint32_t tokens,
                                          const float *centre, const uint16_t *codes,
                                          uint64_t codes_stride, uint32_t threads, void *memory,
                                          void *scratch, struct an_index **index_out);

/* The random numbers of one q row and kv head: a function of seed and of first + i for row i of the
 * segment. seed is made of the step's, the part's id, layer and kv head; first + i is the held
 * index. So replicas draw alike and shards independently. */
struct an_index_draw {
    uint64_t seed, first;
};

/* Heads of one q row's group that are sampled together. */
struct an_index_query {
    uint32_t heads;            /* 1 to an_index_heads_at_once */
    const float *q;            /* [heads][dim] f32, not scaled: the cosine needs it plain */
    const float *q_scaled;     /* [heads][dim] f32, times scale: the scores */
    const uint16_t *codes;     /* lsh: [heads][l] */
    struct an_index_draw draw; /* first: where there is one view */
    float rows_share;    /* sketch: the rows that are read, in expectation, of those asked for */
    uint64_t *rows_read; /* where there is one view: as a view's */
};

/* A weight as its log in 1/128 octave: of the centre, and how far above that; apart, since scores
 * may be large. log is -INFINITY where there is none. */
struct an_index_mass {
    double centre, log;
};

/* Rows [begin, end) of a segment: what a sequence has of it. Several views make one sample. */
struct an_index_view {
    const struct an_index *index;
    struct an_rows rows;
    uint32_t begin, end;
    uint64_t first;      /* held index of row 0: of the draw */
    uint64_t *rows_read; /* bits of the rows read are set, others stay; word i / 64, bit i % 64 for
                            row i, [(end + 63) / 64] words; NULL: not wanted */
    struct an_accumulator *accumulators;             /* [heads] */
    struct an_index_view *next;                      /* NULL: the last */
    struct an_index_mass masses[AN_INDEX_HEADS_MAX]; /* of the call: the heads' weights by codes */
};

/* How many heads of a group one call is best given: all of them where they share a sample; one for
 * lsh, whose heads sample each for itself and spread better over threads. */
uint32_t an_index_heads_at_once(const struct an_index_params *params, uint32_t group);

/* Samples among the rows of the views and attends the sample, on the calling thread (by a team:
 * split.h): adds to each view's accumulators
 * [heads] (with error sums, for sketch), whose keys_read say what each head read; a head that read
 * nothing had an empty sample (law 2: the caller answers it otherwise). Views of a sketch are one
 * sample: a view has of the budget what its rows weigh, not what they are. scratch
 * [an_index_query_scratch_bytes of the longest segment] is the calling thread's. */
uint64_t an_index_query_scratch_bytes(const struct an_index_params *params, uint32_t tokens);
void an_index_attend_views(const struct an_index_params *params, struct an_index_view *views,
                           const struct an_index_query *query, void *scratch);
/* Rows that the views of one call may have together, each view's counted by an_index_view_rows, for
 * so many heads and scratch for `tokens`; a single view may always be one. */
uint64_t an_index_rows_at_once(const struct an_index_params *params, uint32_t heads,
                               uint32_t tokens);
uint32_t an_index_view_rows(uint32_t begin, uint32_t end);

/* The same of one view: the rows [begin, end) of a segment. */
void an_index_attend(const struct an_index *index, const struct an_index_params *params,
                     const struct an_rows *rows, uint32_t begin, uint32_t end,
                     const struct an_index_query *query, void *scratch,
                     struct an_accumulator *accumulators);

/* Whether sampling is expected to take less time than reading the rows [begin, end) for these lanes
 * (q rows x heads of the group), by the kernels' costs, by the length of some of the buckets that
 * the lanes ask for (lsh: codes [lanes][l]) or by the share of rows to be read (sketch). A function
 * of its arguments and the instruction set only. costs_out: NULL, or the two predictions. */
struct an_index_costs {
    double sampled_ns, exact_ns; /* of one thread */
};
struct an_index_lanes {
    uint32_t group, count;
    const uint16_t *codes;
    float rows_share;
    uint64_t sample_rows; /* sketch: rows of all views that would be one sample with these */
};
bool an_index_pays(const struct an_index *index, const struct an_index_params *params,
                   const struct an_rows *rows, uint32_t begin, uint32_t end,
                   const struct an_index_lanes *lanes, struct an_index_costs *costs_out);

/* The rows that the sample would read, without attending: ids in ascending order into
 * ids_out [end - begin] and log u beside; of lsh for the first head. Returns their number. For
 * tests and quality benches. */
uint32_t an_index_sample(const struct an_index *index, const struct an_index_params *params,
                         const struct an_rows *rows, uint32_t begin, uint32_t end,
                         const struct an_index_query *query, void *scratch, uint16_t *ids_out,
                         float *log_u_out);

#endif
