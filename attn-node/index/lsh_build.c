/*
 * Building an `lsh` index: norms and central rows, signatures where the worker sent none, and one
 * counting sort a table. On the walk: builder > index. It refuses to know segments and threads.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attn-node/index/index.h"
#include "attn-node/index/lsh.h"
#include "common/base/assert.h"
#include "common/base/half.h"
#include "common/base/limits.h"

static uint64_t pad64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

static uint64_t stride_of(uint32_t tokens)
{
    return (tokens + 31ull) & ~31ull;
}

struct layout {
    uint64_t centre, norms, offsets, ids, end;
};

static struct layout lay_out(const struct pp_estimator *estimator, uint32_t dim, uint32_t tokens)
{
    struct layout layout;
    layout.centre = pad64(sizeof(struct an_index));
    layout.norms = layout.centre + pad64(dim * sizeof(float));
    layout.offsets = layout.norms + pad64(2ull * tokens);
    layout.ids = layout.offsets + pad64(2ull * estimator->l * (1ull << estimator->k));
    layout.end = layout.ids + pad64(2ull * estimator->l * tokens);
    return layout;
}

uint64_t an_index_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens)
{
    return params->estimator.kind == PP_LSH ? lay_out(&params->estimator, dim, tokens).end : 0;
}

uint64_t an_index_scratch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens)
{
    (void)dim;
    if (params->estimator.kind != PP_LSH) {
        return 0;
    }
    uint64_t codes = 2ull * params->estimator.l * stride_of(tokens);
    uint64_t cursors = sizeof(uint32_t) << params->estimator.k;
    return pad64(codes) + pad64(cursors);
}

/* |k - centre| of every row; rows with |k - c|^2 < 1e-12 |c|^2 are central. */
static void measure_norms(struct an_index *index, const struct an_rows *rows, const float *centre,
                          uint16_t *norms)
{
    float key[PP_HEAD_DIM_MAX];
    double centre_square = 0.0;
    for (uint32_t d = 0; d < rows->dim; ++d) {
        centre_square += (double)centre[d] * (double)centre[d];
    }
    for (uint32_t i = 0; i < index->tokens; ++i) {
        pp_dtype_to_f32(rows->dtype, rows->base + i * rows->row_bytes, rows->dim, key);
        double square = 0.0;
        for (uint32_t d = 0; d < rows->dim; ++d) {
            double difference = (double)(key[d] - centre[d]);
            square += difference * difference;
        }
        if (square == 0.0 || square < 1e-12 * centre_square) {
            if (index->central_count < AN_LSH_CENTRAL_MAX) {
                index->central[index->central_count] = (uint16_t)i;
            }
            ++index->central_count;
            norms[i] = 0;
            continue;
        }
        uint16_t norm = pp_f16_from_f32((float)sqrt(square));
        bool representable = (norm & 0x7c00u) != 0x7c00u && (norm & 0x7c00u) != 0;
        norms[i] = representable ? norm : 0;
    }
}

/* ids of one table in order of bucket, and within a bucket in order of id. */
static void sort_table(const uint16_t *codes, uint32_t tokens, uint32_t k, uint32_t *cursors,
                       uint16_t *offsets, uint16_t *ids)
{
    uint32_t bucket_count = 1u << k;
    memset(cursors, 0, bucket_count * sizeof(*cursors));
    for (uint32_t i = 0; i < tokens; ++i) {
        ++cursors[codes[i]];
    }
    uint32_t start = 0;
    for (uint32_t bucket = 0; bucket < bucket_count; ++bucket) {
        uint32_t count = cursors[bucket];
        offsets[bucket] = (uint16_t)start;
        cursors[bucket] = start;
        start += count;
    }
    for (uint32_t i = 0; i < tokens; ++i) {
        ids[cursors[codes[i]]++] = (uint16_t)i;
    }
}

static bool codes_within(const uint16_t *codes, uint64_t stride, uint32_t tokens,
                         const struct pp_estimator *estimator)
{
    uint32_t seen = 0;
    for (uint32_t t = 0; t < estimator->l; ++t) {
        for (uint32_t i = 0; i < tokens; ++i) {
            seen |= codes[t * stride + i];
        }
    }
    return (seen >> estimator->k) == 0;
}

enum pp_status an_index_build(const struct an_index_params *params, const struct an_rows *rows,
                              uint32_t tokens, const float *centre, const uint16_t *codes,
                              uint64_t codes_stride, void *memory, void *scratch,
                              struct an_index **index_out)
{
    const struct pp_estimator *estimator = &params->estimator;
    if (estimator->kind != PP_LSH) {
        return PP_UNIMPLEMENTED;
    }
    PP_ASSERT(tokens <= PP_SEGMENT_TOKENS_MAX && rows->dim <= PP_HEAD_DIM_MAX);
    struct layout layout = lay_out(estimator, rows->dim, tokens);
    uint8_t *base = memory;
    struct an_index *index = memory;
    memset(index, 0, sizeof(*index));
    index->tokens = tokens;
    index->dim = rows->dim;
    index->k = estimator->k;
    index->l = estimator->l;
    float *own_centre = (float *)(void *)(base + layout.centre);
    uint16_t *norms = (uint16_t *)(void *)(base + layout.norms);
    uint16_t *offsets = (uint16_t *)(void *)(base + layout.offsets);
    uint16_t *ids = (uint16_t *)(void *)(base + layout.ids);
    memcpy(own_centre, centre, rows->dim * sizeof(*own_centre));
    measure_norms(index, rows, centre, norms);

    uint64_t stride = stride_of(tokens);
    uint16_t *own_codes = scratch;
    uint32_t *cursors =
        (uint32_t *)(void *)((uint8_t *)scratch + pad64(2ull * estimator->l * stride));
    if (codes != NULL && !codes_within(codes, codes_stride, tokens, estimator)) {
        return PP_INVALID_ARGUMENT;
    }
    if (codes == NULL) {
        pp_hash_keys(params->hash, rows->base, rows->row_bytes, rows->dtype, centre, tokens,
                     own_codes, stride);
        codes = own_codes;
        codes_stride = stride;
    }
    for (uint32_t t = 0; t < estimator->l; ++t) {
        sort_table(codes + t * codes_stride, tokens, estimator->k, cursors,
                   offsets + ((uint64_t)t << estimator->k), ids + (uint64_t)t * tokens);
    }
    index->centre = own_centre;
    index->norms = norms;
    index->offsets = offsets;
    index->ids = ids;
    *index_out = index;
    return PP_OK;
}
