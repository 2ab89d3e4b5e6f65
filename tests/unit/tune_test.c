/*
 * The tuner's closed forms against plain f64 sums over all rows and against what samples do: rows
 * and errors of lsh by the formula row by row, errors of a sketch by the mean square over seeds;
 * choices meet their target and are the cheapest that do.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/index/tune.h"
#include "common/base/rng.h"

#define DIM    32u
#define GROUP  3u
#define Q_ROWS 2u
#define TOKENS 3000u
#define VIEWS  2u /* of half the rows each; the second begins inside its segment */
#define CUT    100u

struct bed {
    struct an_index_params params;
    struct an_sketch_signs signs;
    struct an_tune_view views[VIEWS];
    float centre[VIEWS][DIM];
    void *memory[VIEWS];
    float *rows;
    float q[Q_ROWS * GROUP * DIM], q_scaled[Q_ROWS * GROUP * DIM];
    struct an_tune_input input;
    void *scratch;
    struct an_tune_head *heads; /* [GROUP] */
};

static void *taken(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~63ull);
    assert_non_null(memory);
    memset(memory, 0, (bytes + 63) & ~63ull);
    return memory;
}

/* Keys around a centre, some of them near the queries; values of mean .5. */
static void make_rows(struct bed *bed)
{
    struct pp_rng rng = {.seed = 5};
    for (uint32_t i = 0; i < Q_ROWS * GROUP * DIM; ++i) {
        bed->q[i] = 2.0f * (float)pp_rng_normal(&rng);
        bed->q_scaled[i] = bed->q[i] / sqrtf((float)DIM);
    }
    bed->rows = taken(TOKENS * 2ull * DIM * sizeof(float));
    for (uint32_t i = 0; i < TOKENS; ++i) {
        const float *near = bed->q + i % (Q_ROWS * GROUP) * DIM;
        for (uint32_t d = 0; d < DIM; ++d) {
            float pull = i % 29 == 0 ? 0.4f * near[d] : 0.0f;
            bed->rows[i * 2 * DIM + d] = 0.3f + (float)pp_rng_normal(&rng) + pull;
            bed->rows[i * 2 * DIM + DIM + d] = 0.5f + (float)pp_rng_normal(&rng);
        }
    }
}

static void bed_init(struct bed *bed, enum pp_estimator_kind kind)
{
    memset(bed, 0, sizeof(*bed));
    bed->params.estimator = (struct pp_estimator){.kind = kind};
    assert_int_equal(pp_estimator_resolve(&bed->params.estimator), PP_OK);
    an_sketch_signs_init(&bed->signs, 3);
    bed->params.signs = &bed->signs;
    make_rows(bed);
    uint32_t each = TOKENS / VIEWS;
    void *build_scratch = taken(an_index_scratch_bytes(&bed->params, DIM, each, 1) + 1);
    for (uint32_t i = 0; i < VIEWS; ++i) {
        struct an_tune_view *view = &bed->views[i];
        view->rows = (struct an_rows){.base = (uint8_t *)(bed->rows + i * each * 2ull * DIM),
                                      .row_bytes = 2 * DIM * sizeof(float),
                                      .v_offset = DIM * sizeof(float),
                                      .dim = DIM,
                                      .dtype = PP_F32};
        view->begin = i == 1 ? CUT : 0;
        view->end = each;
        for (uint32_t row = 0; row < each; ++row) {
            for (uint32_t d = 0; d < DIM; ++d) {
                bed->centre[i][d] += bed->rows[(i * each + row) * 2 * DIM + d] / (float)each;
            }
        }
        view->centre = bed->centre[i];
        if (kind == PP_SKETCH) {
            struct an_index *index;
            bed->memory[i] = taken(an_index_bytes(&bed->params, DIM, each));
            assert_int_equal(an_index_build(&bed->params, &view->rows, each, view->centre, NULL, 0,
                                            1, bed->memory[i], build_scratch, &index),
                             PP_OK);
            view->index = index;
        } else {
            view->index = (const struct an_index *)bed; /* that there is one is all lsh asks */
        }
    }
    free(build_scratch);
    bed->input = (struct an_tune_input){.params = &bed->params,
                                        .views = bed->views,
                                        .view_count = VIEWS,
                                        .q = bed->q,
                                        .q_scaled = bed->q_scaled,
                                        .q_rows = Q_ROWS,
                                        .group = GROUP};
    bed->scratch = taken(an_tune_scratch_bytes(&bed->params, DIM, each));
    bed->heads = taken(GROUP * sizeof(*bed->heads));
    an_tune_add(&bed->input, bed->scratch, bed->heads);
}

static void bed_free(struct bed *bed)
{
    free(bed->memory[0]);
    free(bed->memory[1]);
    free(bed->rows);
    free(bed->scratch);
    free(bed->heads);
}

/* A head's exact answer in f64. */
struct truth {
    double o[DIM], sum, norm_square;
};

static double score_of(const float *q_scaled, const float *k)
{
    double score = 0.0;
    for (uint32_t d = 0; d < DIM; ++d) {
        score += (double)q_scaled[d] * (double)k[d];
    }
    return score;
}

static const float *row_of(const struct an_tune_view *view, uint32_t row)
{
    return (const float *)(const void *)(view->rows.base + row * view->rows.row_bytes);
}

static struct truth truth_of(const struct bed *bed, const float *q_scaled)
{
    struct truth truth = {.sum = 0.0};
    for (uint32_t i = 0; i < VIEWS; ++i) {
        const struct an_tune_view *view = &bed->views[i];
        for (uint32_t row = view->begin; row < view->end; ++row) {
            double weight = exp(score_of(q_scaled, row_of(view, row)));
            truth.sum += weight;
            for (uint32_t d = 0; d < DIM; ++d) {
                truth.o[d] += weight * (double)row_of(view, row)[DIM + d];
            }
        }
    }
    for (uint32_t d = 0; d < DIM; ++d) {
        truth.o[d] /= truth.sum;
        truth.norm_square += truth.o[d] * truth.o[d];
    }
    return truth;
}

static uint32_t token_count(void)
{
    return TOKENS - CUT;
}

/* Rows and squared relative error of one query and head by lsh, row by row. */
static void lsh_by_rows(const struct bed *bed, const float *q_scaled, uint32_t k, uint32_t l,
                        uint32_t t, double *rows, double *square)
{
    struct truth truth = truth_of(bed, q_scaled);
    for (uint32_t i = 0; i < VIEWS; ++i) {
        const struct an_tune_view *view = &bed->views[i];
        for (uint32_t row = view->begin; row < view->end; ++row) {
            double dot = 0.0;
            double q_square = 0.0;
            double k_square = 0.0;
            double distance = 0.0;
            for (uint32_t d = 0; d < DIM; ++d) {
                double x = (double)(row_of(view, row)[d] - view->centre[d]);
                double off = (double)row_of(view, row)[DIM + d] - truth.o[d];
                dot += x * (double)q_scaled[d];
                q_square += (double)q_scaled[d] * (double)q_scaled[d];
                k_square += x * x;
                distance += off * off;
            }
            double u = exp(pp_log_u(dot / sqrt(q_square * k_square), k, l, t));
            double weight = exp(score_of(q_scaled, row_of(view, row))) / truth.sum;
            *rows += u;
            *square += weight * weight * (1.0 - u) / u * distance / truth.norm_square;
        }
    }
}

static void lsh_is_predicted_as_row_by_row(void **state)
{
    (void)state;
    static const uint32_t settings[][3] = {{10, 150, 2}, {8, 98, 3}, {6, 20, 2}, {7, 92, 4}};
    struct bed bed;
    bed_init(&bed, PP_LSH);
    for (uint32_t i = 0; i < sizeof(settings) / sizeof(settings[0]); ++i) {
        const uint32_t *klt = settings[i];
        for (uint32_t g = 0; g < GROUP; ++g) {
            double rows = 0.0;
            double square = 0.0;
            double share;
            double error;
            for (uint32_t q = 0; q < Q_ROWS; ++q) {
                lsh_by_rows(&bed, bed.q_scaled + (q * GROUP + g) * DIM, klt[0], klt[1], klt[2],
                            &rows, &square);
            }
            an_tune_lsh(&bed.heads[g], token_count(), klt[0], klt[1], klt[2], &share, &error);
            double true_share = rows / Q_ROWS / token_count();
            double true_error = 1.2 * sqrt(square / Q_ROWS);
            printf("(%u,%u,%u) head %u: share %.4f of %.4f, error %.4f of %.4f\n", klt[0], klt[1],
                   klt[2], g, share, true_share, error, true_error);
            assert_true(fabs(share / true_share - 1.0) < 0.02);
            assert_true(fabs(error / true_error - 1.0) < 0.03);
        }
    }
    bed_free(&bed);
}

/* Mean square over seeds of what one query's heads are off, relative, into squares [GROUP]. */
static void sketch_by_draws(const struct bed *bed, uint32_t q_row, float share, uint32_t seeds,
                            double *squares)
{
    void *scratch = taken(an_index_query_scratch_bytes(&bed->params, TOKENS));
    for (uint32_t seed = 0; seed < seeds; ++seed) {
        static float o[GROUP][DIM];
        static float b1[GROUP][DIM];
        struct an_accumulator sums[GROUP];
        struct an_index_view views[VIEWS];
        for (uint32_t g = 0; g < GROUP; ++g) {
            sums[g] = (struct an_accumulator){.o = o[g], .b1 = b1[g]};
            an_accumulator_clear(&sums[g], DIM);
        }
        for (uint32_t i = 0; i < VIEWS; ++i) {
            const struct an_tune_view *view = &bed->views[i];
            views[i] = (struct an_index_view){.index = view->index,
                                              .rows = view->rows,
                                              .begin = view->begin,
                                              .end = view->end,
                                              .first = i * 4000,
                                              .accumulators = sums,
                                              .next = i + 1 < VIEWS ? &views[i + 1] : NULL};
        }
        struct an_index_query query = {.heads = GROUP,
                                       .q = bed->q + q_row * GROUP * DIM,
                                       .q_scaled = bed->q_scaled + q_row * GROUP * DIM,
                                       .draw = {.seed = pp_rng_at(9, seed)},
                                       .rows_share = share};
        an_index_attend_views(&bed->params, views, &query, scratch);
        for (uint32_t g = 0; g < GROUP; ++g) {
            struct truth truth = truth_of(bed, bed->q_scaled + (q_row * GROUP + g) * DIM);
            for (uint32_t d = 0; d < DIM; ++d) {
                double off = (double)(sums[g].o[d] / sums[g].sum) - truth.o[d];
                squares[g] += off * off / truth.norm_square / seeds / Q_ROWS;
            }
        }
    }
    free(scratch);
}

static void a_sketch_errs_as_its_draws_do(void **state)
{
    (void)state;
    static const float shares[] = {0.05f, 0.16f, 0.3f};
    struct bed bed;
    bed_init(&bed, PP_SKETCH);
    for (uint32_t i = 0; i < sizeof(shares) / sizeof(shares[0]); ++i) {
        double squares[GROUP] = {0.0};
        for (uint32_t q = 0; q < Q_ROWS; ++q) {
            sketch_by_draws(&bed, q, shares[i], 60, squares);
        }
        for (uint32_t g = 0; g < GROUP; ++g) {
            double predicted = an_tune_sketch(&bed.heads[g], shares[i]);
            printf("share %.2f head %u: error %.4f, of the draws %.4f\n", (double)shares[i], g,
                   predicted, sqrt(squares[g]));
            assert_true(fabs(predicted / sqrt(squares[g]) - 1.0) < 0.15);
        }
    }
    assert_true(an_tune_sketch(&bed.heads[0], 1.0f) == 0.0);
    bed_free(&bed);
}

static void a_choice_meets_its_target_and_no_cheaper_one_does(void **state)
{
    (void)state;
    struct bed bed;
    double scratch[GROUP];
    struct an_tune_choice loose;
    struct an_tune_choice strict;
    bed_init(&bed, PP_LSH);
    an_tune_choose(&bed.params.estimator, bed.heads, GROUP, token_count(), 0.5f, scratch, &loose);
    assert_false(loose.dense);
    assert_true(loose.error <= 0.5f / 1.3f && loose.error <= loose.error_worst);
    assert_true(loose.estimator.k >= 6 && loose.estimator.k <= 11 && loose.estimator.t <= 5);
    double share;
    uint32_t met = 0;
    for (uint32_t g = 0; g < GROUP; ++g) {
        double error;
        an_tune_lsh(&bed.heads[g], token_count(), loose.estimator.k, loose.estimator.l - 1,
                    loose.estimator.t, &share, &error);
        met += error <= 0.5 / 1.3;
    }
    assert_true(met <= GROUP / 2); /* one table less: the median misses it */
    an_tune_choose(&bed.params.estimator, bed.heads, GROUP, token_count(), 0.25f, scratch, &strict);
    assert_true(strict.dense || strict.rows_share > loose.rows_share);
    an_tune_choose(&bed.params.estimator, bed.heads, GROUP, token_count(), 1e-4f, scratch, &strict);
    assert_true(strict.dense);
    bed_free(&bed);

    bed_init(&bed, PP_SKETCH);
    bed.params.estimator.rows_share = 0.04f;
    an_tune_choose(&bed.params.estimator, bed.heads, GROUP, token_count(), 0.2f, scratch, &loose);
    assert_false(loose.dense);
    assert_true(loose.error <= 0.2f / 1.3f && loose.error > 0.95f * 0.2f / 1.3f);
    assert_true(fabsf(loose.rows_share - loose.estimator.rows_share) < 1e-6f);
    assert_true(loose.rows_share_now == 0.04f && loose.error_now > 0.0f);
    an_tune_choose(&bed.params.estimator, bed.heads, GROUP, token_count(), 1e-5f, scratch, &strict);
    assert_true(strict.dense);
    bed_free(&bed);
}

static void rows_without_an_index_are_read_and_never_err(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed, PP_LSH);
    memset(bed.heads, 0, GROUP * sizeof(*bed.heads));
    bed.views[0].index = bed.views[1].index = NULL;
    an_tune_add(&bed.input, bed.scratch, bed.heads);
    double share;
    double error;
    an_tune_lsh(&bed.heads[1], token_count(), 10, 150, 2, &share, &error);
    assert_true(fabs(share - 1.0) < 1e-9 && error == 0.0);
    bed_free(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lsh_is_predicted_as_row_by_row),
        cmocka_unit_test(a_sketch_errs_as_its_draws_do),
        cmocka_unit_test(a_choice_meets_its_target_and_no_cheaper_one_does),
        cmocka_unit_test(rows_without_an_index_are_read_and_never_err),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
