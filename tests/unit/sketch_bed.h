/*
 * An index of sketches over made-up rows, and attends by it beside exact ones. Header-only: each
 * test is one program.
 */
#ifndef PIGPEN_TESTS_UNIT_SKETCH_BED_H
#define PIGPEN_TESTS_UNIT_SKETCH_BED_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn-node/index/index.h"
#include "common/base/rng.h"

#define GROUP_MAX 8u

struct bed {
    struct an_index_params params;
    struct an_sketch_signs signs;
    struct an_rows rows;
    uint32_t tokens, dim, group;
    uint8_t *memory;
    float centre[PP_HEAD_DIM_MAX];
    void *index_memory, *scratch;
    struct an_index *index;
    float q[GROUP_MAX * PP_HEAD_DIM_MAX];
    uint64_t *bits;
};

static inline void *padded_alloc(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~63ull);
    assert_non_null(memory);
    return memory;
}

static inline float *row_of(struct bed *bed, uint32_t i)
{
    return (float *)(void *)(bed->memory + i * bed->rows.row_bytes);
}

/* Keys of f32 around a centre that is not zero; queries whose scores spread by about `sharp`. */
static inline void bed_init(struct bed *bed, uint32_t dim, uint32_t bits, uint32_t group,
                            uint32_t tokens, float sharp)
{
    struct pp_rng rng = {.seed = dim * 1000 + bits * 10 + group};
    memset(bed, 0, sizeof(*bed));
    bed->tokens = tokens;
    bed->dim = dim;
    bed->group = group;
    bed->rows =
        (struct an_rows){.row_bytes = 8ull * dim, .v_offset = 4 * dim, .dim = dim, .dtype = PP_F32};
    bed->memory = malloc(tokens * bed->rows.row_bytes);
    assert_non_null(bed->memory);
    bed->rows.base = bed->memory;
    for (uint32_t i = 0; i < tokens; ++i) {
        for (uint32_t d = 0; d < 2 * dim; ++d) {
            row_of(bed, i)[d] = (float)pp_rng_normal(&rng) + (d < dim ? 0.3f : 0.0f);
        }
    }
    for (uint32_t i = 0; i < group * dim; ++i) {
        bed->q[i] = sharp / sqrtf((float)dim) * (float)pp_rng_normal(&rng);
    }
    bed->params.estimator = (struct pp_estimator){.kind = PP_SKETCH, .bits = bits};
    assert_int_equal(pp_estimator_resolve(&bed->params.estimator), PP_OK);
    an_sketch_signs_init(&bed->signs, 7);
    bed->params.signs = &bed->signs;
    bed->index_memory = padded_alloc(an_index_bytes(&bed->params, dim, tokens));
    bed->scratch = padded_alloc(an_index_query_scratch_bytes(&bed->params, tokens));
    bed->bits = calloc((tokens + 63) / 64, sizeof(*bed->bits));
}

static inline void bed_build(struct bed *bed)
{
    double sums[PP_HEAD_DIM_MAX] = {0.0};
    for (uint32_t i = 0; i < bed->tokens; ++i) {
        for (uint32_t d = 0; d < bed->dim; ++d) {
            sums[d] += (double)row_of(bed, i)[d];
        }
    }
    for (uint32_t d = 0; d < bed->dim; ++d) {
        bed->centre[d] = (float)(sums[d] / bed->tokens);
    }
    void *scratch = padded_alloc(an_index_scratch_bytes(&bed->params, bed->dim, bed->tokens, 2));
    assert_int_equal(an_index_build(&bed->params, &bed->rows, bed->tokens, bed->centre, NULL, 0, 2,
                                    bed->index_memory, scratch, &bed->index),
                     PP_OK);
    free(scratch);
}

static inline void bed_deinit(struct bed *bed)
{
    free(bed->memory);
    free(bed->index_memory);
    free(bed->scratch);
    free(bed->bits);
}

struct sums {
    struct an_accumulator heads[GROUP_MAX];
    float o[GROUP_MAX][PP_HEAD_DIM_MAX], b1[GROUP_MAX][PP_HEAD_DIM_MAX];
};

static inline void sums_clear(struct sums *sums, uint32_t dim)
{
    for (uint32_t h = 0; h < GROUP_MAX; ++h) {
        sums->heads[h] = (struct an_accumulator){.o = sums->o[h], .b1 = sums->b1[h]};
        an_accumulator_clear(&sums->heads[h], dim);
    }
}

static inline struct an_index_query query_of(struct bed *bed, float share, uint64_t seed)
{
    return (struct an_index_query){.heads = bed->group,
                                   .q = bed->q,
                                   .q_scaled = bed->q,
                                   .draw = {.seed = pp_rng_at(99, seed), .first = 12345},
                                   .rows_share = share,
                                   .rows_read = bed->bits};
}

static inline void attend(struct bed *bed, uint32_t begin, uint32_t end, float share, uint64_t seed,
                          struct sums *sums)
{
    struct an_index_query query = query_of(bed, share, seed);
    memset(bed->bits, 0, (bed->tokens + 63) / 64 * sizeof(*bed->bits));
    sums_clear(sums, bed->dim);
    an_index_attend(bed->index, &bed->params, &bed->rows, begin, end, &query, bed->scratch,
                    sums->heads);
}

static inline void attend_exactly(struct bed *bed, uint32_t begin, uint32_t end, struct sums *sums)
{
    sums_clear(sums, bed->dim);
    an_kernels_get()->attend_exact(&bed->rows, begin, end, bed->q, bed->group, sums->heads);
}

static inline double distance(const struct an_accumulator *a, const struct an_accumulator *b,
                              uint32_t dim)
{
    double sum = 0.0;
    for (uint32_t d = 0; d < dim; ++d) {
        double difference = (double)(a->o[d] / a->sum) - (double)(b->o[d] / b->sum);
        sum += difference * difference;
    }
    return sqrt(sum);
}

/* sqrt(V) of the header of attend_finish. */
static inline double published(const struct an_accumulator *sum, uint32_t dim)
{
    double o_norm = 0.0;
    double o_b1 = 0.0;
    for (uint32_t d = 0; d < dim; ++d) {
        double o = (double)(sum->o[d] / sum->sum);
        o_norm += o * o;
        o_b1 += o * (double)sum->b1[d];
    }
    double var = (double)sum->b2 - 2.0 * o_b1 + o_norm * (double)sum->b0;
    return sqrt(var > 0.0 ? var : 0.0) / (double)sum->sum;
}

#endif
