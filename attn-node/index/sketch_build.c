/*
 * Building a `sketch` index: codes block by block, then factors in units of the largest. On the
 * walk: builder > index > kernels. It refuses to know segments.
 */
#include <math.h>
#include <string.h>

#include "attn-node/index/sketch.h"
#include "common/base/assert.h"
#include "common/run/team.h"

/* A factor this many times the mean would take the others' precision. */
#define FACTOR_ABOVE_MEAN 64.0
#define PIECE_ROWS        1024u

static uint64_t pad64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

static uint64_t blocks_of(uint32_t tokens)
{
    return (tokens + AN_SKETCH_BLOCK - 1) / AN_SKETCH_BLOCK;
}

uint64_t an_sketch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens)
{
    struct an_sketch_shape shape = an_sketch_shape_of(dim, params->estimator.bits);
    return pad64(sizeof(struct an_sketch)) + 2 * pad64(dim * sizeof(float)) +
           blocks_of(tokens) * shape.block_bytes;
}

uint64_t an_sketch_scratch_bytes(uint32_t tokens)
{
    return blocks_of(tokens) * AN_SKETCH_BLOCK * sizeof(float);
}

static double mean_factor(const float *factors, uint32_t tokens)
{
    double sum = 0.0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < tokens; ++i) {
        if (isfinite(factors[i])) {
            sum += (double)factors[i];
            ++count;
        }
    }
    return count > 0 ? sum / count : 0.0;
}

/* Lists the rows that are read for certain and gives them, and others like them, a factor of 0. */
static void choose_certain(struct an_sketch *sketch, float *factors)
{
    double bound = FACTOR_ABOVE_MEAN * mean_factor(factors, sketch->tokens);
    for (uint32_t i = 0; i < sketch->tokens; ++i) {
        bool described = isfinite(factors[i]);
        if (!described || (double)factors[i] > bound) {
            if (sketch->certain_count < AN_SKETCH_CERTAIN_MAX) {
                sketch->certain[sketch->certain_count++] = (uint16_t)i;
                described = false;
            }
        }
        factors[i] = described ? factors[i] : 0.0f;
        sketch->factor_max = factors[i] > sketch->factor_max ? factors[i] : sketch->factor_max;
    }
}

static void write_factors(const struct an_sketch *sketch, const float *factors, uint8_t *stream)
{
    float inverse = sketch->factor_max > 0.0f ? 32767.0f / sketch->factor_max : 0.0f;
    uint64_t at = (uint64_t)sketch->shape.planes * AN_SKETCH_BLOCK;
    for (uint64_t block = 0; block < blocks_of(sketch->tokens); ++block) {
        uint16_t *out = (uint16_t *)(void *)(stream + block * sketch->shape.block_bytes + at);
        for (uint32_t i = 0; i < AN_SKETCH_BLOCK; ++i) {
            out[i] = (uint16_t)(factors[block * AN_SKETCH_BLOCK + i] * inverse + 0.5f);
        }
    }
}

struct build {
    const struct an_sketch_encoder *encoder;
    const struct an_rows *rows;
    uint32_t tokens;
    uint8_t *stream;
    float *factors;
};

static void build_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct build *build = context;
    uint32_t end = (uint32_t)(index + 1) * PIECE_ROWS;
    end = end < build->tokens ? end : build->tokens;
    for (uint32_t row = (uint32_t)index * PIECE_ROWS; row < end; row += AN_SKETCH_BLOCK) {
        uint32_t count = end - row < AN_SKETCH_BLOCK ? end - row : AN_SKETCH_BLOCK;
        uint64_t block = row / AN_SKETCH_BLOCK;
        an_sketch_kernels_get()->encode(build->encoder, build->rows, row, count,
                                        build->stream + block * build->encoder->shape.block_bytes,
                                        build->factors + row);
    }
}

void an_sketch_build(const struct an_index_params *params, const struct an_rows *rows,
                     uint32_t tokens, const float *centre, uint32_t threads, void *memory,
                     void *scratch)
{
    PP_ASSERT(tokens <= PP_SEGMENT_TOKENS_MAX && rows->dim <= PP_HEAD_DIM_MAX);
    struct an_sketch *sketch = memory;
    float *own_centre = (float *)(void *)((uint8_t *)memory + pad64(sizeof(*sketch)));
    float *own_balance = own_centre + pad64(rows->dim * sizeof(float)) / sizeof(float);
    uint8_t *stream = (uint8_t *)own_balance + pad64(rows->dim * sizeof(float));
    float balance_inverse[PP_HEAD_DIM_MAX];
    float *factors = scratch;
    memset(sketch, 0, sizeof(*sketch));
    memcpy(own_centre, centre, rows->dim * sizeof(float));
    sketch->tokens = tokens;
    sketch->shape = an_sketch_shape_of(rows->dim, params->estimator.bits);
    sketch->centre = own_centre;
    sketch->balance = params->balance != NULL ? own_balance : NULL;
    sketch->stream = stream;
    for (uint32_t d = 0; d < rows->dim && params->balance != NULL; ++d) {
        own_balance[d] = params->balance[d];
        balance_inverse[d] = 1.0f / params->balance[d];
    }
    struct an_sketch_encoder encoder = {
        .shape = sketch->shape,
        .signs = params->signs,
        .centre = own_centre,
        .balance_inverse = sketch->balance != NULL ? balance_inverse : NULL,
    };
    struct build build = {
        .encoder = &encoder, .rows = rows, .tokens = tokens, .stream = stream, .factors = factors};
    pp_team_for(threads, (tokens + PIECE_ROWS - 1) / PIECE_ROWS, build_piece, &build);
    choose_certain(sketch, factors);
    write_factors(sketch, factors, stream);
}
