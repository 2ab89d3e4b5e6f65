/*
 * Attention over keys and scores that break a careless sum: zeros, tiny and huge keys, one key ten
 * thousand times, scores ten thousand apart, keys parallel to the query, samples that find nothing
 * on any node. Exact and lsh, at the level of exec's jobs, against f64.
 */
#include "common/attn/partial.h"
#include "tests/unit/exec_fixture.h"

#define DIM    64u
#define TOKENS 1024u

static const struct shape one_head = {1,   1,      1,
                                      DIM, PP_F32, {.kind = PP_LSH, .k = 4, .l = 40, .t = 2}};

/* K and V of one kv head, and what a part that holds them answers. */
struct bed {
    struct fixture fixture;
    uint64_t handle;
    float *k, *v;
    uint32_t count;
    struct an_attend_item item;
};

static void bed_init(struct bed *bed, uint32_t count)
{
    *bed = (struct bed){.fixture = {.now_us = 1}, .count = count};
    struct an_exec_config config = fixture_config(&bed->fixture);
    fixture_start(&bed->fixture, &config);
    bed->k = malloc((uint64_t)count * DIM * sizeof(float));
    bed->v = malloc((uint64_t)count * DIM * sizeof(float));
    assert_true(bed->k != NULL && bed->v != NULL);
    make_rows(&one_head, 1, 0, count, bed->k);
    make_rows(&one_head, 2, 0, count, bed->v);
}

/* Appends the rows as one segment around `centre`, or around the node's own mean if it is NULL. */
static void bed_hold(struct bed *bed, const struct shape *shape, const float *centre)
{
    bed->handle = fixture_open(&bed->fixture, shape, 1);
    struct an_append_args *args = &bed->fixture.job.append;
    *args = append_args(bed->handle, 1, shape, 0, bed->count, bed->k, bed->v);
    args->segment_given = true;
    args->segment_count = bed->count;
    args->centre = pp_span_of(centre, centre == NULL ? 0 : DIM * sizeof(float));
    assert_int_equal(fixture_run(&bed->fixture, AN_JOB_APPEND), PP_OK);
}

/* The answer stays until the next job; all of it is finite. */
static void bed_attend(struct bed *bed, const float *q, enum pp_estimator_kind kind)
{
    struct an_attend_item *item = &bed->item;
    assert_int_equal(
        fixture_attend(&bed->fixture, bed->handle, 1, 0, bed->count, 1, q, 1, DIM, kind, item),
        PP_OK);
    assert_int_equal(item->used, kind);
    for (uint32_t d = 0; d < DIM; d++) {
        assert_true(isfinite(item->o[d]));
    }
    assert_true(isfinite(item->lse[0]) && isfinite(item->var[0]) && isfinite(item->lse_var[0]));
    assert_true(item->var[0] >= 0.0f && item->lse_var[0] >= 0.0f);
}

static double bed_reference(const struct bed *bed, const float *q, double *o)
{
    return an_self_test_reference(q, bed->k, bed->v, DIM, bed->count, DIM, 1.0 / sqrt((double)DIM),
                                  o);
}

static void bed_deinit(struct bed *bed)
{
    (void)fixture_close(&bed->fixture, bed->handle);
    fixture_expect_empty(&bed->fixture);
    fixture_stop(&bed->fixture);
    free(bed->k);
    free(bed->v);
}

static void expect_near(const struct bed *bed, const float *q, double o_bound, double lse_bound)
{
    double o[PP_HEAD_DIM_MAX];
    double lse = bed_reference(bed, q, o);
    assert_true(fabs(lse - (double)bed->item.lse[0]) <= lse_bound);
    for (uint32_t d = 0; d < DIM; d++) {
        assert_true(fabs(o[d] - (double)bed->item.o[d]) <= o_bound);
    }
}

static void normal_query(uint64_t seed, float *q)
{
    struct pp_rng rng = {.seed = seed};
    for (uint32_t d = 0; d < DIM; d++) {
        q[d] = (float)pp_rng_normal(&rng);
    }
}

#define STRANGE_COUNT 8u
static const uint32_t strange_rows[STRANGE_COUNT] = {0, 3, 5, 511, 512, 700, 1022, 1023};

static void set_strange_keys(struct bed *bed)
{
    static const float values[4] = {0.0f, -0.0f, 1e-20f, 1e4f};
    for (uint32_t i = 0; i < STRANGE_COUNT; i++) {
        for (uint32_t d = 0; d < DIM; d++) {
            bed->k[strange_rows[i] * DIM + d] = values[i % 4];
        }
    }
}

/* Queries a strange key may win with, must lose with, and the all-zero one. */
static void make_query(uint32_t which, float *q)
{
    normal_query(9, q);
    float sum = 0.0f;
    for (uint32_t d = 0; d < DIM; d++) {
        sum += q[d];
    }
    for (uint32_t d = 0; d < DIM; d++) {
        q[d] = which == 2 ? 0.0f : (which == 0) == (sum > 0.0f) ? q[d] : -q[d];
    }
}

static void strange_keys_and_a_zero_query_are_attended_exactly(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed, TOKENS);
    set_strange_keys(&bed);
    bed_hold(&bed, &one_head, NULL);
    for (uint32_t which = 0; which < 3; which++) {
        float q[DIM];
        make_query(which, q);
        bed_attend(&bed, q, PP_EXACT);
        expect_near(&bed, q, 1e-4, 1e-4 + 1e-6 * fabs((double)bed.item.lse[0]));
        /*
         * The node's own mean is pulled far away by the huge keys: seen from there all others lie
         * in one direction and are found or missed together. That is one draw of sum 1 / u, off by
         * a factor of 1 / u and no more; their weights among one another stay right.
         */
        bed_attend(&bed, q, PP_LSH);
        double o[PP_HEAD_DIM_MAX], square = 0.0;
        double lse = bed_reference(&bed, q, o);
        assert_true(fabs(lse - (double)bed.item.lse[0]) <= log(2.0) + 1e-6 * fabs(lse));
        for (uint32_t d = 0; d < DIM; d++) {
            square += (o[d] - (double)bed.item.o[d]) * (o[d] - (double)bed.item.o[d]);
        }
        assert_true(square <= 9.0 * (double)bed.item.var[0]);
    }
    bed_deinit(&bed);
}

/*
 * Where V of a strange row is zero, sum e^score v = o e^lse is of the normal keys alone: with
 * strange keys among them it must be what it is without, though o and lse are not.
 */
static void what_normal_keys_give_does_not_change_beside_strange_ones(void **state)
{
    (void)state;
    static const enum pp_estimator_kind kinds[2] = {PP_EXACT, PP_LSH};
    static const float centre[DIM];
    double sums[2][2][2][DIM];
    for (uint32_t strange = 0; strange < 2; strange++) {
        struct bed bed;
        bed_init(&bed, TOKENS);
        for (uint32_t i = 0; i < STRANGE_COUNT; i++) {
            memset(bed.v + strange_rows[i] * DIM, 0, DIM * sizeof(float));
        }
        if (strange == 1) {
            set_strange_keys(&bed);
        }
        bed_hold(&bed, &one_head, centre);
        for (uint32_t i = 0; i < 4; i++) {
            float q[DIM];
            make_query(1 + i / 2, q);
            bed_attend(&bed, q, kinds[i % 2]);
            assert_true(i % 2 == 0 || bed.item.keys_read[0] < TOKENS);
            for (uint32_t d = 0; d < DIM; d++) {
                sums[strange][i / 2][i % 2][d] =
                    (double)bed.item.o[d] * exp((double)bed.item.lse[0]);
            }
        }
        bed_deinit(&bed);
    }
    for (uint32_t i = 0; i < 4 * DIM; i++) {
        double with = (&sums[1][0][0][0])[i], without = (&sums[0][0][0][0])[i];
        assert_true(fabs(without) > 0.0);
        /* Sums of about 1,000 terms of either sign, each of the order of one. */
        assert_true(fabs(with - without) <= 5e-3);
    }
}

static void ten_thousand_identical_keys_give_the_mean_of_their_values(void **state)
{
    (void)state;
    static const float zero[DIM];
    for (uint32_t own = 0; own < 2; own++) {
        struct bed bed;
        bed_init(&bed, 10000);
        for (uint32_t i = 1; i < bed.count; i++) {
            memcpy(bed.k + i * DIM, bed.k, DIM * sizeof(float));
        }
        bed_hold(&bed, &one_head, own == 1 ? NULL : zero);
        for (uint32_t parallel = 0; parallel < 2; parallel++) {
            float q[DIM];
            normal_query(4, q);
            memcpy(q, parallel == 1 ? bed.k : q, sizeof(q));
            bed_attend(&bed, q, PP_EXACT);
            expect_near(&bed, q, 1e-4, 1e-4);
            bed_attend(&bed, q, PP_LSH);
            /* One key: all are found or none is, and none is answered exactly. */
            assert_int_equal(bed.item.keys_read[0], bed.count);
            bool known = own == 1 || parallel == 1 || bed.item.flags != 0;
            expect_near(&bed, q, 1e-3, known ? 1e-2 : INFINITY);
        }
        bed_deinit(&bed);
    }
}

/* Keys along the query whose scores are `gap` above, below and beside one another. */
static void set_parallel_keys(struct bed *bed, const float *q, double gap)
{
    double square = 0.0;
    for (uint32_t d = 0; d < DIM; d++) {
        square += (double)q[d] * (double)q[d];
    }
    const double scores[4] = {gap, -gap, 0.0, 2.0 * gap};
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t d = 0; d < DIM; d++) {
            bed->k[(100 + 200 * i) * DIM + d] =
                (float)((double)q[d] * scores[i] * sqrt((double)DIM) / square);
        }
    }
}

static void scores_ten_thousand_apart_are_right_exactly_and_sampled(void **state)
{
    (void)state;
    static const double gaps[] = {100.0, 1000.0, 10000.0};
    static const float zero[DIM];
    for (uint32_t i = 0; i < 6; i++) {
        struct bed bed;
        float q[DIM];
        bed_init(&bed, TOKENS);
        normal_query(20 + i, q);
        set_parallel_keys(&bed, q, gaps[i % 3]);
        /* Parallel to the query around zero; around their mean nearly so. */
        bed_hold(&bed, &one_head, i < 3 ? zero : NULL);
        double bound = 1e-3 + 1e-6 * gaps[i % 3];
        bed_attend(&bed, q, PP_EXACT);
        expect_near(&bed, q, 1e-4, bound);
        bed_attend(&bed, q, PP_LSH);
        expect_near(&bed, q, 1e-4, bound + 1e-2);
        assert_true(bed.item.keys_read[0] < TOKENS);
        /* All far below: the best of them is what is left. */
        for (uint32_t d = 0; d < DIM; d++) {
            q[d] = -q[d];
        }
        bed_attend(&bed, q, PP_EXACT);
        expect_near(&bed, q, 1e-4, bound);
        bed_attend(&bed, q, PP_LSH);
        expect_near(&bed, q, 1e-4, bound + 1e-2);
        bed_deinit(&bed);
    }
}

/*
 * A sketch samples by codes of a few bits: keys that are zero, tiny or huge among the others, and
 * scores that lie far apart, must neither become NaN nor hide what has the weight.
 */
static void strange_keys_and_far_scores_are_attended_by_a_sketch(void **state)
{
    (void)state;
    struct shape shape = one_head;
    shape.estimator = (struct pp_estimator){.kind = PP_SKETCH, .bits = 2, .rows_share = 0.2f};
    for (uint32_t which = 0; which < 3; which++) {
        struct bed bed;
        float q[DIM];
        double o[PP_HEAD_DIM_MAX], square = 0.0;
        bed_init(&bed, TOKENS);
        set_strange_keys(&bed);
        bed_hold(&bed, &shape, NULL);
        make_query(which, q);
        bed_attend(&bed, q, PP_SKETCH);
        assert_true(bed.item.keys_read[0] < TOKENS / 2);
        double lse = bed_reference(&bed, q, o);
        double spread = sqrt((double)bed.item.lse_var[0]);
        assert_true(fabs(lse - (double)bed.item.lse[0]) <= 4.0 * spread + 1e-6 * fabs(lse));
        for (uint32_t d = 0; d < DIM; d++) {
            square += (o[d] - (double)bed.item.o[d]) * (o[d] - (double)bed.item.o[d]);
        }
        assert_true(square <= 9.0 * (double)bed.item.var[0] + 1e-8);
        bed_deinit(&bed);
    }
    static const double gaps[] = {100.0, 1000.0, 10000.0};
    for (uint32_t i = 0; i < 3; i++) {
        struct bed bed;
        float q[DIM];
        bed_init(&bed, TOKENS);
        normal_query(20 + i, q);
        set_parallel_keys(&bed, q, gaps[i]);
        bed_hold(&bed, &shape, NULL);
        for (uint32_t side = 0; side < 2; side++) {
            bed_attend(&bed, q, PP_SKETCH);
            expect_near(&bed, q, 1e-3, 1e-3 + 1e-6 * gaps[i]);
            for (uint32_t d = 0; d < DIM; d++) { /* below: the best of them is what is left */
                q[d] = -q[d];
            }
        }
        bed_deinit(&bed);
    }
}

/* The norm kept as f16 may be too small by 2^-11: the cosine then passes 1, and u must not. */
static void keys_parallel_to_the_query_count_once_whatever_their_norm_rounds_to(void **state)
{
    (void)state;
    static const float zero[DIM];
    for (uint32_t i = 0; i < 40; i++) {
        struct bed bed;
        float q[DIM];
        bed_init(&bed, TOKENS);
        normal_query(50, q);
        float scale = 3.0f * (1.0f + (float)i / 20000.0f); /* across several steps of f16 */
        for (uint32_t d = 0; d < DIM; d++) {
            bed.k[77 * DIM + d] = q[d] * scale;
        }
        bed_hold(&bed, &one_head, zero);
        bed_attend(&bed, q, PP_EXACT);
        expect_near(&bed, q, 1e-4, 1e-4);
        bed_attend(&bed, q, PP_LSH);
        /* It holds all but e^-15 of the weight: missed or counted twice, lse would tell. */
        expect_near(&bed, q, 1e-3, 1e-3);
        bed_deinit(&bed);
    }
}

/* Two nodes whose samples are both empty: each answers exactly, and so is the merge. */
static void samples_empty_on_every_node_merge_to_exact_attention(void **state)
{
    (void)state;
    struct shape shape = one_head;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 16, .l = 2, .t = 2};
    struct bed beds[2];
    float q[DIM], o[3][DIM];
    normal_query(4, q);
    struct pp_partial partials[3] = {{.o = o[0]}, {.o = o[1]}, {.o = o[2]}};
    double total = 0.0, expected[DIM] = {0.0};
    for (uint32_t node = 0; node < 2; node++) {
        struct bed *bed = &beds[node];
        bed_init(bed, TOKENS);
        make_rows(&shape, 11 + node, 0, TOKENS, bed->k);
        make_rows(&shape, 21 + node, 0, TOKENS, bed->v);
        bed_hold(bed, &shape, NULL);
        bed_attend(bed, q, PP_LSH);
        assert_int_equal(bed->item.flags, 1);
        assert_int_equal(bed->item.keys_read[0], TOKENS);
        memcpy(o[node], bed->item.o, sizeof(o[node]));
        partials[node].lse = bed->item.lse[0];
        double part[PP_HEAD_DIM_MAX];
        double weight = exp(bed_reference(bed, q, part));
        total += weight;
        for (uint32_t d = 0; d < DIM; d++) {
            expected[d] += weight * part[d];
        }
    }
    /* A third node that holds nothing changes no bit. */
    pp_partial_clear(&partials[2], DIM);
    float merged[2][DIM];
    struct pp_partial out[2] = {{.o = merged[0]}, {.o = merged[1]}};
    pp_partial_merge(partials, 2, DIM, &out[0]);
    pp_partial_merge(partials, 3, DIM, &out[1]);
    assert_memory_equal(merged[0], merged[1], sizeof(merged[0]));
    assert_true(out[0].lse == out[1].lse);
    assert_true(fabs((double)out[0].lse - log(total)) < 1e-4);
    for (uint32_t d = 0; d < DIM; d++) {
        assert_true(fabs((double)merged[0][d] - expected[d] / total) < 1e-4);
    }
    bed_deinit(&beds[0]);
    bed_deinit(&beds[1]);
}

/* V of a kv head is its number: any weights at all give it back, exact or sampled. */
static void expect_constants(const struct shape *shape, uint64_t seed)
{
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t width = (uint64_t)shape->kv_heads * shape->dim;
    float *k = malloc(2 * TOKENS * width * sizeof(float));
    assert_non_null(k);
    float *v = k + TOKENS * width, q[71 * 24];
    make_rows(shape, 5, 0, TOKENS, k);
    for (uint64_t i = 0; i < TOKENS * width; i++) {
        v[i] = (float)(i / shape->dim % shape->kv_heads) + 1.0f;
    }
    make_queries(seed, shape->q_heads * shape->dim, q);
    uint64_t handle = fixture_open(&fixture, shape, 1);
    fixture.job.append = append_args(handle, 1, shape, 0, TOKENS, k, v);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    const enum pp_estimator_kind kinds[2] = {PP_EXACT, shape->estimator.kind};
    for (int i = 0; i < 2; i++) {
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, TOKENS, 1, q, shape->q_heads,
                                        shape->dim, kinds[i], &item),
                         PP_OK);
        assert_int_equal(item.used, kinds[i]);
        for (uint32_t j = 0; j < shape->q_heads * shape->dim; j++) {
            uint32_t kv = j / shape->dim / (shape->q_heads / shape->kv_heads);
            assert_true(fabsf(item.o[j] - (float)(kv + 1)) < 1e-4f);
        }
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
    free(k);
}

static void kv_heads_of_constants_come_back_from_their_own_groups(void **state)
{
    (void)state;
    static const uint32_t heads[][2] = {{28, 4}, {24, 8}, {40, 8}, {15, 5}, {71, 1}, {12, 12}};
    static const struct pp_estimator estimators[] = {
        {.kind = PP_LSH, .k = 4, .l = 40, .t = 2},
        {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.1f}};
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        for (size_t j = 0; j < 2; j++) {
            struct shape shape = {1, heads[i][0], heads[i][1], 24, PP_F32, estimators[j]};
            expect_constants(&shape, i);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strange_keys_and_a_zero_query_are_attended_exactly),
        cmocka_unit_test(what_normal_keys_give_does_not_change_beside_strange_ones),
        cmocka_unit_test(ten_thousand_identical_keys_give_the_mean_of_their_values),
        cmocka_unit_test(scores_ten_thousand_apart_are_right_exactly_and_sampled),
        cmocka_unit_test(strange_keys_and_far_scores_are_attended_by_a_sketch),
        cmocka_unit_test(keys_parallel_to_the_query_count_once_whatever_their_norm_rounds_to),
        cmocka_unit_test(samples_empty_on_every_node_merge_to_exact_attention),
        cmocka_unit_test(kv_heads_of_constants_come_back_from_their_own_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
