/*
 * The index of a segment: what finds the rows of one kv head that a query should read, and with
 * what probability. Built from rows and a centre, immutable, freed by its owner. `lsh` first
 * (layout: ARCHITECTURE.md, memory of a segment); `sketch` later behind the same calls.
 * Threads: build on the builder, attend on any thread of the team; pure over immutable data.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_INDEX_H
#define PIGPEN_ATTN_NODE_INDEX_INDEX_H

#include <stdint.h>

#include "attn-node/kernels/kernels.h"
#include "common/attn/hash.h"
#include "common/attn/math.h"
#include "common/base/status.h"

/* What all segments of a part share. */
struct an_index_params {
    struct pp_estimator estimator;
    const struct pp_hash *hash;               /* lsh */
    const struct pp_log_u_table *log_u_table; /* lsh */
};

struct an_index; /* of one segment and kv head */

/* Memory an index of `tokens` rows takes, and a build's scratch, in bytes: reserved at append. */
uint64_t an_index_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens);
uint64_t an_index_scratch_bytes(const struct an_index_params *params, uint32_t dim,
                                uint32_t tokens);

/* Builds over rows [0, tokens). centre [dim] f32. codes: signatures made by the worker, table-major
 * [l][stride], or NULL to hash here. memory [an_index_bytes], 64-byte aligned, becomes the index
 * (an_index is its first bytes); scratch [an_index_scratch_bytes], 64-byte aligned. */
PP_MUST_USE enum pp_status an_index_build(const struct an_index_params *params,
                                          const struct an_rows *rows, uint32_t tokens,
                                          const float *centre, const uint16_t *codes,
                                          uint64_t codes_stride, void *memory, void *scratch,
                                          struct an_index **index_out);

/* One q row and head of a sampled attend. */
struct an_index_query {
    const float *q;        /* [dim] f32, not scaled: the cosine needs it plain */
    const float *q_scaled; /* [dim] f32, times scale: the scores */
    const uint16_t *codes; /* lsh: [l] */
    uint64_t *rows_read;   /* attend: bits of the rows read are set, others stay; word i / 64, bit
                              i % 64 for row i, [(end + 63) / 64] words; NULL: not wanted */
};

/* Samples among the rows [begin, end) of the segment (a view may cut it) and attends the sample:
 * adds to the accumulator. scratch [an_index_query_scratch_bytes] is the calling thread's. Returns
 * the number of rows read; 0 means an empty sample (law 2: the caller answers that head
 * otherwise).*/
uint64_t an_index_query_scratch_bytes(const struct an_index_params *params, uint32_t tokens);
uint32_t an_index_attend(const struct an_index *index, const struct an_index_params *params,
                         const struct an_rows *rows, uint32_t begin, uint32_t end,
                         const struct an_index_query *query, void *scratch,
                         struct an_accumulator *accumulator);

/* The rows that the sample would read, without attending: ids in ascending order into
 * ids_out [end - begin] and log u beside; for tests and quality benches. */
uint32_t an_index_sample(const struct an_index *index, const struct an_index_params *params,
                         const struct an_rows *rows, uint32_t begin, uint32_t end,
                         const struct an_index_query *query, void *scratch, uint16_t *ids_out,
                         float *log_u_out);

#endif
