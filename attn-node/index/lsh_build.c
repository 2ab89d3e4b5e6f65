/*
 * Building an `lsh` index: norms and central rows, signatures where the worker sent none, and one
 * counting sort a table. A team takes first blocks of rows, whose keys are read from memory once
 * for norms and signatures, then tables. On the walk: builder > index. It refuses to know segments.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attn-node/index/index.h"
#include "attn-node/index/lsh.h"
#include "common/base/assert.h"
#include "common/base/half.h"
#include "common/base/limits.h"
#include "common/run/team.h"

/* Rows whose keys stay in the second-level cache between norms and signatures. */
#define BLOCK_ROWS 512u

/* Of a central row until all are counted: a norm is never negative. */
#define CENTRAL_MARK 0x8000u

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
    layout.centre = pad64(sizeof(struct an_lsh));
    layout.norms = layout.centre + pad64(dim * sizeof(float));
    layout.offsets = layout.norms + pad64(2ull * tokens);
    layout.ids = layout.offsets + pad64(2ull * estimator->l * (1ull << estimator->k));
    layout.end = layout.ids + pad64(2ull * estimator->l * tokens);
    return layout;
}

uint64_t an_lsh_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens)
{
    return lay_out(&params->estimator, dim, tokens).end;
}

uint64_t an_lsh_build_bytes(const struct an_index_params *params, uint32_t tokens, uint32_t threads)
{
    uint64_t codes = pad64(2ull * params->estimator.l * stride_of(tokens));
    return codes + threads * an_sort_scratch_bytes(tokens, params->estimator.k);
}

struct build {
    const struct an_index_params *params;
    const struct an_rows *rows;
    const float *centre;
    double centre_square;
    uint32_t tokens;
    uint16_t *norms, *offsets, *ids; /* of the index */
    uint16_t *own_codes;             /* NULL: the worker sent them */
    const uint16_t *codes;
    uint64_t codes_stride;
    uint8_t *sort_scratch; /* [thread] */
    _Atomic bool codes_too_large;
};

/* Norms of a block of rows; those with |k - c|^2 < 1e-12 |c|^2 are central. */
static void measure_norms(const struct build *build, uint32_t begin, uint32_t end)
{
    double squares[BLOCK_ROWS];
    an_kernels_get()->square_distances(build->rows, begin, end, build->centre, squares);
    for (uint32_t i = begin; i < end; ++i) {
        double square = squares[i - begin];
        if (square == 0.0 || square < 1e-12 * build->centre_square) {
            build->norms[i] = CENTRAL_MARK;
            continue;
        }
        uint16_t norm = pp_f16_from_f32((float)sqrt(square));
        bool representable = (norm & 0x7c00u) != 0x7c00u && (norm & 0x7c00u) != 0;
        build->norms[i] = representable ? norm : 0;
    }
}

static void build_block(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct build *build = context;
    uint32_t begin = (uint32_t)index * BLOCK_ROWS;
    uint32_t end = build->tokens - begin < BLOCK_ROWS ? build->tokens : begin + BLOCK_ROWS;
    measure_norms(build, begin, end);
    if (build->own_codes != NULL) {
        const struct an_rows *rows = build->rows;
        pp_hash_keys(build->params->hash, rows->base + begin * rows->row_bytes, rows->row_bytes,
                     rows->dtype, build->centre, end - begin, build->own_codes + begin,
                     build->codes_stride);
    }
}

static void build_table(void *context, uint64_t table, uint32_t thread)
{
    struct build *build = context;
    const struct pp_estimator *estimator = &build->params->estimator;
    const uint16_t *codes = build->codes + table * build->codes_stride;
    if (build->own_codes == NULL) {
        uint32_t seen = 0;
        for (uint32_t i = 0; i < build->tokens; ++i) {
            seen |= codes[i];
        }
        if ((seen >> estimator->k) != 0) {
            build->codes_too_large = true;
            return;
        }
    }
    uint64_t scratch_bytes = an_sort_scratch_bytes(build->tokens, estimator->k);
    an_kernels_get()->sort_codes(
        codes, build->tokens, estimator->k, build->sort_scratch + thread * scratch_bytes,
        build->offsets + (table << estimator->k), build->ids + table * build->tokens);
}

static void list_central(struct an_lsh *index, uint16_t *norms)
{
    for (uint32_t i = 0; i < index->tokens; ++i) {
        if (norms[i] == CENTRAL_MARK) {
            if (index->central_count < AN_LSH_CENTRAL_MAX) {
                index->central[index->central_count] = (uint16_t)i;
            }
            ++index->central_count;
            norms[i] = 0;
        }
    }
}

enum pp_status an_lsh_build(const struct an_index_params *params, const struct an_rows *rows,
                            uint32_t tokens, const float *centre, const uint16_t *codes,
                            uint64_t codes_stride, uint32_t threads, void *memory, void *scratch)
{
    const struct pp_estimator *estimator = &params->estimator;
    PP_ASSERT(tokens <= PP_SEGMENT_TOKENS_MAX && rows->dim <= PP_HEAD_DIM_MAX);
    struct layout layout = lay_out(estimator, rows->dim, tokens);
    uint8_t *base = memory;
    float *own_centre = (float *)(void *)(base + layout.centre);
    uint64_t stride = stride_of(tokens);
    struct build build = {
        .params = params,
        .rows = rows,
        .centre = own_centre,
        .tokens = tokens,
        .norms = (uint16_t *)(void *)(base + layout.norms),
        .offsets = (uint16_t *)(void *)(base + layout.offsets),
        .ids = (uint16_t *)(void *)(base + layout.ids),
        .own_codes = codes == NULL ? scratch : NULL,
        .codes = codes == NULL ? scratch : codes,
        .codes_stride = codes == NULL ? stride : codes_stride,
        .sort_scratch = (uint8_t *)scratch + pad64(2ull * estimator->l * stride),
    };
    memcpy(own_centre, centre, rows->dim * sizeof(*own_centre));
    for (uint32_t d = 0; d < rows->dim; ++d) {
        build.centre_square += (double)centre[d] * (double)centre[d];
    }
    pp_team_for(threads, (tokens + BLOCK_ROWS - 1) / BLOCK_ROWS, build_block, &build);
    pp_team_for(threads, estimator->l, build_table, &build);
    if (build.codes_too_large) {
        return PP_INVALID_ARGUMENT;
    }
    struct an_lsh *index = memory;
    memset(index, 0, sizeof(*index));
    index->tokens = tokens;
    index->dim = rows->dim;
    index->k = estimator->k;
    index->l = estimator->l;
    index->centre = own_centre;
    index->norms = build.norms;
    index->offsets = build.offsets;
    index->ids = build.ids;
    list_central(index, build.norms);
    return PP_OK;
}
