/*
 * An attend takes nothing from the heap once a part is open and filled: exact, lsh, sketch,
 * planned, with a uniform sample, to a target error, one q row and many, on one thread and on
 * several.
 */
#include "tests/unit/allocations.h"

#include "tests/unit/exec_fixture.h"

#define HELD 20000u
#define ROWS 9u

static void the_counter_sees_what_is_taken(void **state)
{
    (void)state;
    assert_true(allocations_are_seen());
}

/* Attends of one part; the first of each kind may start the team's threads. */
static void attend_and_count(uint32_t threads, const struct pp_estimator *estimator)
{
    const enum pp_estimator_kind kinds[] = {PP_EXACT, estimator->kind, PP_ESTIMATOR_NONE};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.threads = threads;
    fixture_start(&fixture, &config);
    struct shape shape = {.layers = 1,
                          .q_heads = 6,
                          .kv_heads = 2,
                          .dim = 32,
                          .dtype = PP_F32,
                          .estimator = *estimator};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, HELD, 8, true), PP_OK);
    fixture.job.seal = (struct an_seal_args){.part = {handle, 1}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, HELD, 100, 8, false), PP_OK);
    float q[ROWS * 6 * 32];
    struct pp_rng rng = {.seed = 2};
    for (uint32_t i = 0; i < ROWS * 6 * 32; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t kind = 0; kind < 3; kind++) {
            for (uint32_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
                struct an_attend_item item;
                uint64_t before = atomic_load(&allocations);
                allocations_count(round > 0);
                enum pp_status status = fixture_attend(&fixture, handle, 1, 0, HELD + 100, rows, q,
                                                       6, 32, kinds[kind], &item);
                allocations_count(false);
                assert_int_equal(status, PP_OK);
                assert_int_equal(atomic_load(&allocations), before);
                bool named = kinds[kind] != PP_ESTIMATOR_NONE && estimator->target_error == 0.0f;
                assert_true(!named || item.used == kinds[kind]);
                bool uniform = (item.flags & AN_ATTEND_UNIFORM) != 0;
                assert_true(uniform == (item.used == PP_LSH && estimator->l < 3));
            }
        }
    }
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

static void attends_take_nothing_from_the_heap_on_one_thread_and_on_three(void **state)
{
    (void)state;
    static const struct pp_estimator estimators[] = {
        {.kind = PP_LSH, .k = 6, .l = 24, .t = 2},
        {.kind = PP_LSH, .k = 5, .l = 40, .t = 3},
        {.kind = PP_LSH, .k = 16, .l = 2, .t = 2}, /* finds nothing: a uniform sample */
        {.kind = PP_SKETCH, .bits = 2},
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.5f},
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.01f}, /* misses it: all rows */
    };
    for (uint32_t threads = 1; threads <= 3; threads += 2) {
        for (uint32_t i = 0; i < sizeof(estimators) / sizeof(estimators[0]); i++) {
            attend_and_count(threads, &estimators[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_sees_what_is_taken),
        cmocka_unit_test(attends_take_nothing_from_the_heap_on_one_thread_and_on_three),
    };
    allocations_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
