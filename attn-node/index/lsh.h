/*
 * The memory of an `lsh` index, private to this folder: one block, in this order, each array padded
 * to 64 bytes: header, centre [dim] f32, norms [tokens] f16 |k - centre| (0: not representable),
 * offsets [l][2^k] u16 (where a bucket starts in its table), ids [l][tokens] u16 sorted by bucket.
 * 2L + 2 bytes a token and 2L 2^k bytes a segment.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_LSH_H
#define PIGPEN_ATTN_NODE_INDEX_LSH_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/index/index.h"

/* Rows equal to the centre have no direction: they are read for certain (u = 1). With more than
 * this many the segment is attended exactly. */
#define AN_LSH_CENTRAL_MAX 64u

struct an_lsh {
    uint32_t tokens, dim, k, l;
    uint32_t central_count; /* above AN_LSH_CENTRAL_MAX: not listed, attend exactly */
    uint16_t central[AN_LSH_CENTRAL_MAX];
    const float *centre;
    const uint16_t *norms;
    const uint16_t *offsets;
    const uint16_t *ids;
};

/* The ids of a table's bucket, and how many they are. */
static inline const uint16_t *an_lsh_bucket(const struct an_lsh *index, uint32_t table,
                                            uint32_t code, uint32_t *count_out)
{
    const uint16_t *offsets = index->offsets + ((uint64_t)table << index->k);
    uint32_t begin = offsets[code];
    uint32_t end = code + 1 < (1u << index->k) ? offsets[code + 1] : index->tokens;
    *count_out = end - begin;
    return index->ids + (uint64_t)table * index->tokens + begin;
}

/* Rows seen in at least t of the l tables, ascending, within [begin, end), without central rows.
 * rows_read: NULL, or as in an_index_query. scratch: an_lsh_scratch_bytes. Returns their number. */
uint64_t an_lsh_scratch_bytes(uint32_t tokens, uint32_t t);
uint32_t an_lsh_candidates(const struct an_lsh *index, const uint16_t *codes, uint32_t t,
                           uint32_t begin, uint32_t end, void *scratch, uint64_t *rows_read,
                           uint16_t *ids_out);

/* What index.h says of them, for the kind lsh. */
uint64_t an_lsh_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens);
uint64_t an_lsh_build_bytes(const struct an_index_params *params, uint32_t tokens,
                            uint32_t threads);
PP_MUST_USE enum pp_status an_lsh_build(const struct an_index_params *params,
                                        const struct an_rows *rows, uint32_t tokens,
                                        const float *centre, const uint16_t *codes,
                                        uint64_t codes_stride, uint32_t threads, void *memory,
                                        void *scratch);
uint64_t an_lsh_query_scratch_bytes(const struct an_index_params *params, uint32_t tokens);
void an_lsh_attend(const struct an_lsh *index, const struct an_index_params *params,
                   const struct an_rows *rows, uint32_t begin, uint32_t end,
                   const struct an_index_query *query, void *scratch,
                   struct an_accumulator *accumulators);
bool an_lsh_pays(const struct an_lsh *index, const struct an_index_params *params,
                 const struct an_rows *rows, uint32_t begin, uint32_t end, uint32_t lanes,
                 const uint16_t *codes, struct an_index_costs *costs_out);
uint32_t an_lsh_sample(const struct an_lsh *index, const struct an_index_params *params,
                       const struct an_rows *rows, uint32_t begin, uint32_t end,
                       const struct an_index_query *query, void *scratch, uint16_t *ids_out,
                       float *log_u_out);

#endif
