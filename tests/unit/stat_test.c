/*
 * Series: counting from several threads, buckets at their borders, names that clash.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>

#include "common/base/stat.h"

#define ROUNDS 20000

static void *count(void *argument)
{
    struct pp_stat *stats = argument;
    for (int round = 0; round < ROUNDS; ++round) {
        pp_stat_add(&stats[0], 1);
        pp_stat_observe(&stats[1], 0.5);
    }
    return NULL;
}

static void nothing_is_lost_between_threads(void **state)
{
    (void)state;
    struct pp_stats stats;
    pthread_t threads[4];
    assert_int_equal(pp_stats_init(&stats, 2), PP_OK);
    struct pp_stat *counter = pp_stats_counter(&stats, "calls_total", "", "");
    struct pp_stat *histogram = pp_stats_histogram(&stats, "time_seconds", "", "", 0.25, 2, 4);
    for (int index = 0; index < 4; ++index) {
        assert_int_equal(pthread_create(&threads[index], NULL, count, stats.series), 0);
    }
    for (int index = 0; index < 4; ++index) {
        assert_int_equal(pthread_join(threads[index], NULL), 0);
    }
    assert_true(pp_stat_value(counter) == 4.0 * ROUNDS);
    assert_true(pp_stat_value(histogram) == 2.0 * ROUNDS);
    assert_int_equal(histogram->bucket[1], 4 * ROUNDS);
    pp_stats_deinit(&stats);
}

static void values_fall_into_the_bucket_of_their_upper_bound(void **state)
{
    (void)state;
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 1), PP_OK);
    struct pp_stat *stat = pp_stats_histogram(&stats, "h", "", "", 1.0, 10, 3);
    const double values[] = {-1, 0, 1.0, 1.0001, 10, 100, 100.5, INFINITY, NAN};
    for (size_t index = 0; index < sizeof(values) / sizeof(values[0]); ++index) {
        pp_stat_observe(stat, values[index]);
    }
    assert_true(stat->bucket_bounds[2] == 100.0);
    assert_int_equal(stat->bucket[0], 3);
    assert_int_equal(stat->bucket[1], 2);
    assert_int_equal(stat->bucket[2], 1);
    assert_int_equal(stat->bucket[3], 3);
    pp_stats_deinit(&stats);
}

static void a_gauge_is_what_it_was_set_to(void **state)
{
    (void)state;
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 2), PP_OK);
    struct pp_stat *one = pp_stats_gauge(&stats, "g", "kind=\"a\"", "");
    struct pp_stat *two = pp_stats_gauge(&stats, "g", "kind=\"b\"", "");
    assert_true(pp_stat_value(one) == 0.0);
    pp_stat_set(one, -2.5);
    pp_stat_add(one, 0.5);
    assert_true(pp_stat_value(one) == -2.0);
    assert_true(pp_stat_value(two) == 0.0);
    assert_int_equal(stats.count, 2);
    pp_stats_deinit(&stats);
    pp_stats_deinit(&stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_between_threads),
        cmocka_unit_test(values_fall_into_the_bucket_of_their_upper_bound),
        cmocka_unit_test(a_gauge_is_what_it_was_set_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
