/*
 * Tuning a part through exec: what is proposed for a target error meets it when it is asked for,
 * from the queries that attends left behind; layers without any say so; appends and attends go on
 * beside it; a part that is closed meanwhile ends it; nothing stays charged.
 */
#include <stdio.h>

#include "attn-node/kv/late.h"
#include "tests/unit/exec_fixture.h"

#define HEADS  6u
#define DIM    64u
#define VALUES (HEADS * DIM)
#define TOKENS 4096u
#define TARGET 0.2f

static const struct shape sketch_shape = {
    .layers = 3,
    .q_heads = HEADS,
    .kv_heads = 2,
    .dim = DIM,
    .dtype = PP_BF16,
    .estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.02f}};

static void make_query(uint64_t seed, float *q)
{
    struct pp_rng rng = {.seed = seed};
    for (uint32_t i = 0; i < VALUES; i++) {
        q[i] = 2.0f * (float)pp_rng_normal(&rng);
    }
}

static uint64_t open_filled(struct fixture *fixture, const struct shape *shape)
{
    uint64_t handle = fixture_open(fixture, shape, 1);
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t at = 0; at < TOKENS; at += 512) {
            assert_int_equal(
                fixture_append(fixture, handle, 1, shape, layer, at, 512, 3 + layer, false), PP_OK);
        }
    }
    return handle;
}

static void ask(struct fixture *fixture, uint64_t handle, uint32_t layer, uint64_t held,
                uint64_t seed, const struct pp_estimator *estimator, struct an_attend_item *item)
{
    float q[VALUES];
    make_query(seed, q);
    *item = (struct an_attend_item){.part = {handle, 1},
                                    .held_tokens = held,
                                    .q_rows = 1,
                                    .estimator = *estimator,
                                    .q = (const uint8_t *)q,
                                    .q_bytes = sizeof(q),
                                    .seeds = &seed,
                                    .seed_count = 1};
    fixture->job.attend =
        (struct an_attend_args){.layer = layer, .q_dtype = PP_F32, .items = item, .item_count = 1};
    assert_int_equal(fixture_run(fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(item->status, PP_OK);
}

static enum pp_status tune(struct fixture *fixture, uint64_t handle, float target,
                           struct an_tune_layer *layers)
{
    fixture->job.tune =
        (struct an_tune_args){.part = {handle, 0}, .target_error = target, .layers = layers};
    return fixture_run(fixture, AN_JOB_TUNE);
}

/* Root of the mean over heads and queries of |o' - o|^2 / |o|^2 under an estimator. */
static double true_error(struct fixture *fixture, uint64_t handle, uint32_t layer,
                         const struct pp_estimator *estimator)
{
    const struct pp_estimator exact = {.kind = PP_EXACT};
    double sum = 0.0;
    for (uint64_t seed = 100; seed < 100 + AN_LATE_ROWS; seed++) {
        struct an_attend_item item;
        float o[VALUES];
        ask(fixture, handle, layer, TOKENS, seed, &exact, &item);
        memcpy(o, item.o, sizeof(o));
        ask(fixture, handle, layer, TOKENS, seed, estimator, &item);
        for (uint32_t h = 0; h < HEADS; h++) {
            double off = 0.0;
            double size = 0.0;
            for (uint32_t i = h * DIM; i < (h + 1) * DIM; i++) {
                off += ((double)item.o[i] - (double)o[i]) * ((double)item.o[i] - (double)o[i]);
                size += (double)o[i] * (double)o[i];
            }
            sum += off / size / HEADS / AN_LATE_ROWS;
        }
    }
    return sqrt(sum);
}

static void what_is_proposed_meets_the_target(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[PP_LAYERS_MAX];
    fixture_start(&fixture, &config);
    uint64_t handle = open_filled(&fixture, &sketch_shape);
    const struct pp_estimator own = {.kind = PP_SKETCH};
    double now = true_error(&fixture, handle, 0, &own);
    assert_int_equal(tune(&fixture, handle, TARGET, layers), PP_OK);
    assert_int_equal(fixture.job.tune.layer_count, 3);
    const struct an_tune_layer *first = &layers[0];
    assert_int_equal(first->estimator.kind, PP_SKETCH);
    assert_int_equal(first->queries, AN_LATE_ROWS);
    assert_int_equal(first->tokens, TOKENS);
    assert_false(first->dense);
    struct pp_estimator proposed = {.kind = PP_SKETCH, .rows_share = first->estimator.rows_share};
    double then = true_error(&fixture, handle, 0, &proposed);
    printf("now %.3f, predicted %.3f; proposed share %.3f: %.3f, predicted %.3f\n", now,
           (double)first->error_now, (double)first->rows_share, then, (double)first->error);
    assert_true(fabs(now / (double)first->error_now - 1.0) < 0.35);
    assert_true(fabs(then / (double)first->error - 1.0) < 0.35);
    assert_true(then < (double)TARGET && first->error < TARGET);
    assert_int_equal(layers[1].estimator.kind, PP_ESTIMATOR_NONE); /* was not asked */
    assert_int_equal(layers[1].tokens, TOKENS);
    assert_int_equal(layers[2].tokens, 0);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void lsh_layers_get_tables_of_their_own(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[PP_LAYERS_MAX];
    struct shape shape = sketch_shape;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 8, .l = 40, .t = 2};
    fixture_start(&fixture, &config);
    uint64_t handle = open_filled(&fixture, &shape);
    const struct pp_estimator own = {.kind = PP_LSH};
    double now = true_error(&fixture, handle, 0, &own);
    assert_int_equal(tune(&fixture, handle, 0.4f, layers), PP_OK);
    printf("now %.3f, predicted %.3f with %.3f of the rows; (%u,%u,%u): %.3f with %.3f\n", now,
           (double)layers[0].error_now, (double)layers[0].rows_share_now, layers[0].estimator.k,
           layers[0].estimator.l, layers[0].estimator.t, (double)layers[0].error,
           (double)layers[0].rows_share);
    assert_int_equal(layers[0].estimator.kind, PP_LSH);
    assert_true(fabs(now / (double)layers[0].error_now - 1.0) < 0.5);
    assert_true(layers[0].dense || layers[0].error <= 0.4f / 1.3f);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void a_range_of_layers_is_tuned_by_itself(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[PP_LAYERS_MAX];
    const struct pp_estimator own = {.kind = PP_SKETCH};
    struct an_attend_item item;
    fixture_start(&fixture, &config);
    uint64_t handle = open_filled(&fixture, &sketch_shape);
    for (uint32_t layer = 0; layer < 2; layer++) {
        ask(&fixture, handle, layer, TOKENS, 5, &own, &item);
    }
    static const struct {
        uint32_t begin, count, found; /* 0: refused */
    } ranges[] = {{1, 1, 1}, {0, 2, 2}, {1, 0, 2}, {3, 0, 0}, {2, 2, 0}, {0, UINT32_MAX, 0}};
    for (uint32_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        memset(layers, 0, sizeof(layers));
        fixture.job.tune = (struct an_tune_args){.part = {handle, 0},
                                                 .target_error = TARGET,
                                                 .layers = layers,
                                                 .layer_begin = ranges[i].begin,
                                                 .layer_count = ranges[i].count};
        enum pp_status status = fixture_run(&fixture, AN_JOB_TUNE);
        assert_int_equal(status, ranges[i].found > 0 ? PP_OK : PP_INVALID_ARGUMENT);
        for (uint32_t layer = 0; layer < 3 && status == PP_OK; layer++) {
            bool asked =
                layer >= ranges[i].begin && layer < ranges[i].begin + ranges[i].found && layer < 2;
            assert_int_equal(fixture.job.tune.layer_count, ranges[i].found);
            assert_int_equal(layers[layer].estimator.kind, asked ? PP_SKETCH : PP_ESTIMATOR_NONE);
        }
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* All its rows are read whatever the settings are: the least budget would be as good as any, and
 * wrong for the rows to come. */
static void a_layer_without_an_index_has_nothing_to_tune(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[PP_LAYERS_MAX];
    const struct pp_estimator exact = {.kind = PP_EXACT};
    struct an_attend_item item;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &sketch_shape, 0, 0, 512, 3, false),
                     PP_OK);
    fixture.job.seal = (struct an_seal_args){.part = {handle, 1}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
    assert_int_equal(fixture_layers(&fixture, handle)->sealed_tokens, 512);
    assert_int_equal(fixture_layers(&fixture, handle)->indexed_tokens, 0);
    ask(&fixture, handle, 0, 512, 5, &exact, &item);
    assert_int_equal(tune(&fixture, handle, TARGET, layers), PP_OK);
    assert_int_equal(layers[0].tokens, 512);
    assert_int_equal(layers[0].estimator.kind, PP_ESTIMATOR_NONE);
    assert_int_equal(layers[0].queries, 0);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* Polls until the index of a layer that was filled is there. */
static void wait_indexed(struct fixture *fixture, uint64_t handle, uint32_t layer)
{
    while (fixture_layers(fixture, handle)[layer].indexed_tokens < TOKENS) {
        (void)an_exec_poll(fixture->exec, 100000);
    }
}

static void wrong_tunes_are_refused(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[PP_LAYERS_MAX];
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
    const float wrong[] = {0.0f, -0.1f, 1.5f, NAN};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(tune(&fixture, handle, wrong[i], layers), PP_INVALID_ARGUMENT);
    }
    assert_int_equal(tune(&fixture, handle + 1, TARGET, layers), PP_PART_NOT_FOUND);
    assert_int_equal(tune(&fixture, handle, TARGET, layers), PP_OK); /* nothing is held */
    assert_int_equal(layers[0].estimator.kind, PP_ESTIMATOR_NONE);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* Runs jobs of the second kind until the tune is done; polls the tune to its end. */
static void a_tune_goes_on_beside_other_jobs_and_ends_with_its_part(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[2][PP_LAYERS_MAX];
    static struct an_job jobs[2];
    const struct pp_estimator own = {.kind = PP_SKETCH};
    struct an_attend_item item;
    config.build_sync = false;
    fixture_start(&fixture, &config);
    uint64_t handle = open_filled(&fixture, &sketch_shape);
    for (uint32_t layer = 0; layer < 2; layer++) {
        ask(&fixture, handle, layer, TOKENS, 5, &own, &item);
    }
    wait_indexed(&fixture, handle, 0);
    for (uint32_t i = 0; i < 2; i++) {
        jobs[i] = (struct an_job){.kind = AN_JOB_TUNE};
        jobs[i].tune =
            (struct an_tune_args){.part = {handle, 1}, .target_error = TARGET, .layers = layers[i]};
        assert_int_equal(an_exec_submit(fixture.exec, &jobs[i]), PP_OK);
    }
    /* One at a time; the first goes on while its part is closed and ends without it, or before. */
    struct an_job close = {.kind = AN_JOB_CLOSE, .close = {.part = {handle, 1}}};
    assert_int_equal(an_exec_submit(fixture.exec, &close), PP_OK);
    uint32_t done = 0;
    while (done < 3) {
        (void)an_exec_poll(fixture.exec, 1000);
        while (an_exec_take_done(fixture.exec) != NULL) {
            done++;
        }
    }
    assert_int_equal(jobs[1].status, PP_QUEUE);
    assert_int_equal(close.status, PP_OK);
    assert_true(jobs[0].status == PP_OK || jobs[0].status == PP_PART_NOT_FOUND);
    assert_int_equal(layers[0][0].estimator.kind, PP_SKETCH); /* its first layer was in work */
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void a_node_that_stops_ends_the_tune(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static struct an_tune_layer layers[PP_LAYERS_MAX];
    static struct an_job job;
    const struct pp_estimator own = {.kind = PP_SKETCH};
    struct an_attend_item item;
    config.build_sync = false;
    fixture_start(&fixture, &config);
    uint64_t handle = open_filled(&fixture, &sketch_shape);
    ask(&fixture, handle, 0, TOKENS, 5, &own, &item);
    job = (struct an_job){.kind = AN_JOB_TUNE};
    job.tune = (struct an_tune_args){.part = {handle, 1}, .target_error = TARGET, .layers = layers};
    assert_int_equal(an_exec_submit(fixture.exec, &job), PP_OK);
    (void)an_exec_poll(fixture.exec, 0);
    fixture_stop(&fixture); /* asserts that nothing stays charged */
    assert_true(job.status == PP_CANCELLED || job.status == PP_OK);
}

static void check_late(enum pp_dtype dtype)
{
    struct an_late *late = an_late_new(2, 2, 3);
    assert_non_null(late);
    float out[AN_LATE_ROWS * 6];
    assert_int_equal(an_late_get(late, 1, out), 0);
    for (uint32_t put = 0; put < 21; put++) {
        uint8_t memory[2 * 6 * sizeof(float) + 1];
        float rows[2][6];
        uint8_t given[sizeof(rows)];
        for (uint32_t i = 0; i < 12; i++) {
            rows[i / 6][i % 6] = (float)(put * 2 + i / 6);
        }
        pp_dtype_from_f32(dtype, rows[0], 12, given);
        memcpy(memory + 1, given, sizeof(given)); /* of any alignment */
        an_late_put(late, 1, dtype, memory + 1, 2);
    }
    assert_int_equal(an_late_get(late, 0, out), 0);
    assert_int_equal(an_late_get(late, 1, out), AN_LATE_ROWS);
    uint32_t seen = 0;
    for (uint32_t row = 0; row < AN_LATE_ROWS; row++) {
        for (uint32_t i = 1; i < 6; i++) {
            assert_true(out[row * 6 + i] == out[row * 6]);
        }
        assert_true(out[row * 6] >= 42.0f - AN_LATE_ROWS && out[row * 6] < 42.0f);
        seen |= 1u << (uint32_t)(42.0f - out[row * 6] - 1.0f);
    }
    assert_int_equal(seen, (1u << AN_LATE_ROWS) - 1);
    an_late_destroy(late);
}

static void late_queries_are_the_last_ones(void **state)
{
    (void)state;
    check_late(PP_F32);
    check_late(PP_F16);
    check_late(PP_BF16);
    assert_int_equal(an_late_bytes(PP_LAYERS_MAX, 1024, 256), 0); /* too large: none is kept */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_proposed_meets_the_target),
        cmocka_unit_test(lsh_layers_get_tables_of_their_own),
        cmocka_unit_test(a_range_of_layers_is_tuned_by_itself),
        cmocka_unit_test(a_layer_without_an_index_has_nothing_to_tune),
        cmocka_unit_test(wrong_tunes_are_refused),
        cmocka_unit_test(a_tune_goes_on_beside_other_jobs_and_ends_with_its_part),
        cmocka_unit_test(a_node_that_stops_ends_the_tune),
        cmocka_unit_test(late_queries_are_the_last_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
