/*
 * The shadow check through exec: it runs when nothing waits, over tokens as they were asked for,
 * counts true over published error by estimator, leaves out what was exact, keeps its place against
 * later ones, and is dropped with a part that goes or is cut.
 */
#include <stdio.h>

#include "tests/unit/exec_fixture.h"

#define HELD  6000u
#define HEADS 6u
#define DIM   64u
#define POLLS 64u /* more than a check takes */

static const struct shape sketch_shape = {
    .layers = 2,
    .q_heads = HEADS,
    .kv_heads = 2,
    .dim = DIM,
    .dtype = PP_BF16,
    .estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.1f}};

struct bed {
    struct fixture fixture;
    struct pp_stats stats;
    uint64_t handle;
    float q[4 * HEADS * DIM];
};

static void bed_start(struct bed *bed, const struct shape *shape, uint64_t every)
{
    memset(bed, 0, sizeof(*bed));
    bed->fixture = (struct fixture){.now_us = 1};
    struct an_exec_config config = fixture_config(&bed->fixture);
    assert_int_equal(pp_stats_init(&bed->stats, 64), PP_OK);
    config.stats = &bed->stats;
    config.shadow_every = every;
    fixture_start(&bed->fixture, &config);
    bed->handle = fixture_open(&bed->fixture, shape, 1);
    for (uint32_t at = 0; at < HELD; at += 500) {
        assert_int_equal(fixture_append(&bed->fixture, bed->handle, 1, shape, 1, at, 500, 3, false),
                         PP_OK);
    }
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < 4 * HEADS * DIM; i++) {
        bed->q[i] = 2.0f * (float)pp_rng_normal(&rng);
    }
}

static void bed_stop(struct bed *bed)
{
    (void)fixture_close(&bed->fixture, bed->handle);
    fixture_stop(&bed->fixture);
    pp_stats_deinit(&bed->stats);
}

static const struct pp_stat *stat_of(const struct bed *bed, const char *name, const char *labels)
{
    for (size_t i = 0; i < bed->stats.count; i++) {
        const struct pp_stat *stat = &bed->stats.series[i];
        if (strcmp(stat->name, name) == 0 && strcmp(stat->labels, labels) == 0) {
            return stat;
        }
    }
    fail_msg("no series %s{%s}", name, labels);
    return NULL;
}

static uint32_t checks(const struct bed *bed, const char *labels)
{
    return (uint32_t)pp_stat_value(stat_of(bed, "pigpen_node_shadow_checks_total", labels));
}

static uint64_t heads_checked(const struct bed *bed, const char *labels)
{
    const struct pp_stat *stat = stat_of(bed, "pigpen_node_shadow_error_ratio", labels);
    uint64_t count = 0;
    for (uint32_t i = 0; i <= stat->bucket_count; i++) {
        count += atomic_load(&stat->bucket[i]);
    }
    return count;
}

static void attend_with(struct bed *bed, uint32_t q_rows, enum pp_estimator_kind kind)
{
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&bed->fixture, bed->handle, 1, 1, HELD, q_rows, bed->q, HEADS,
                                    DIM, kind, &item),
                     PP_OK);
    assert_int_equal(item.used, kind);
}

/* Lets exec find nothing else to do until a check has ended. */
static void idle(struct bed *bed)
{
    for (uint32_t i = 0; i < POLLS; i++) {
        assert_int_equal(an_exec_poll(bed->fixture.exec, 0), 0);
    }
}

static void sampled_answers_are_held_against_exact_ones(void **state)
{
    (void)state;
    static struct bed bed;
    bed_start(&bed, &sketch_shape, 1);
    for (uint32_t i = 1; i <= 8; i++) {
        attend_with(&bed, 1, PP_SKETCH);
        assert_int_equal(checks(&bed, "result=\"done\""), i - 1);
        idle(&bed);
        assert_int_equal(checks(&bed, "result=\"done\""), i);
        assert_int_equal(heads_checked(&bed, "estimator=\"sketch\""), 3 * i);
    }
    double mean =
        pp_stat_value(stat_of(&bed, "pigpen_node_shadow_error_ratio", "estimator=\"sketch\"")) / 24;
    printf("true over published error: %.3f\n", mean);
    assert_true(mean > 0.3 && mean < 2.0);
    assert_int_equal(heads_checked(&bed, "estimator=\"lsh\""), 0);
    assert_int_equal(checks(&bed, "result=\"dropped\""), 0);
    bed_stop(&bed);
}

static void one_of_so_many_q_rows_is_checked_and_no_exact_one(void **state)
{
    (void)state;
    static struct bed bed;
    bed_start(&bed, &sketch_shape, 10);
    for (uint32_t i = 0; i < 20; i++) {
        attend_with(&bed, 4, PP_EXACT);
        idle(&bed);
    }
    assert_int_equal(checks(&bed, "result=\"done\""), 0);
    for (uint32_t i = 0; i < 10; i++) { /* 40 rows */
        attend_with(&bed, 4, PP_SKETCH);
        idle(&bed);
    }
    assert_in_range(checks(&bed, "result=\"done\""), 3, 4);
    bed_stop(&bed);
}

static void a_check_that_runs_keeps_its_place(void **state)
{
    (void)state;
    static struct bed bed;
    bed_start(&bed, &sketch_shape, 1);
    for (uint32_t i = 0; i < 5; i++) {
        attend_with(&bed, 1, PP_SKETCH);
    }
    assert_int_equal(checks(&bed, "result=\"dropped\""), 4);
    /* What comes in between changes nothing of the tokens that were asked for. */
    assert_int_equal(an_exec_poll(bed.fixture.exec, 0), 0);
    assert_int_equal(
        fixture_append(&bed.fixture, bed.handle, 1, &sketch_shape, 1, HELD, 500, 3, false), PP_OK);
    idle(&bed);
    assert_int_equal(checks(&bed, "result=\"done\""), 1);
    assert_int_equal(heads_checked(&bed, "estimator=\"sketch\""), 3);
    bed_stop(&bed);
}

static void a_part_that_goes_or_is_cut_takes_its_check_along(void **state)
{
    (void)state;
    static struct bed bed;
    bed_start(&bed, &sketch_shape, 1);
    attend_with(&bed, 1, PP_SKETCH);
    assert_int_equal(an_exec_poll(bed.fixture.exec, 0), 0);
    bed.fixture.job.truncate = (struct an_truncate_args){
        .part = {bed.handle, 1}, .new_generation = 2, .held_tokens = HELD - 1};
    assert_int_equal(fixture_run(&bed.fixture, AN_JOB_TRUNCATE), PP_OK);
    idle(&bed);
    assert_int_equal(checks(&bed, "result=\"dropped\""), 1);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&bed.fixture, bed.handle, 2, 1, HELD - 1, 1, bed.q, HEADS, DIM,
                                    PP_SKETCH, &item),
                     PP_OK);
    (void)fixture_close(&bed.fixture, bed.handle);
    idle(&bed);
    assert_int_equal(checks(&bed, "result=\"dropped\""), 2);
    assert_int_equal(checks(&bed, "result=\"done\""), 0);
    fixture_expect_empty(&bed.fixture);
    fixture_stop(&bed.fixture);
    pp_stats_deinit(&bed.stats);
}

static void lsh_is_counted_by_itself(void **state)
{
    (void)state;
    static struct bed bed;
    struct shape shape = sketch_shape;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 6, .l = 100, .t = 2};
    bed_start(&bed, &shape, 1);
    attend_with(&bed, 1, PP_LSH);
    idle(&bed);
    assert_int_equal(heads_checked(&bed, "estimator=\"lsh\""), 3);
    assert_int_equal(heads_checked(&bed, "estimator=\"sketch\""), 0);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_check_that_runs_keeps_its_place),
        cmocka_unit_test(a_part_that_goes_or_is_cut_takes_its_check_along),
        cmocka_unit_test(lsh_is_counted_by_itself),
        cmocka_unit_test(one_of_so_many_q_rows_is_checked_and_no_exact_one),
        cmocka_unit_test(sampled_answers_are_held_against_exact_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
