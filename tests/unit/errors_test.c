/*
 * Counts of relative errors by layer and head: means, percentiles within a bucket, the worst, and
 * what is zero, infinite or forgotten.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu-worker/engine/errors.h"

static struct gw_errors *errors_of(uint32_t layers, uint32_t heads)
{
    struct gw_errors *errors;
    assert_int_equal(gw_errors_new(layers, heads, &errors), PP_OK);
    return errors;
}

static void means_and_percentiles_are_by_layer_head_and_over_all(void **state)
{
    (void)state;
    struct gw_errors *errors = errors_of(3, 2);
    for (uint32_t i = 1; i <= 100; i++) {
        gw_errors_add(errors, 0, 0, 0.001 * i);
        gw_errors_add(errors, 2, 1, 0.01 * i);
    }
    struct gw_error_summary one = gw_errors_summary(errors, 0, 0);
    assert_int_equal(one.count, 100);
    assert_true(fabs(one.mean - 0.0505) < 1e-9);
    assert_true(one.p95 > 0.095 / 1.19 && one.p95 < 0.095 * 1.19);
    struct gw_error_summary layer = gw_errors_summary(errors, 2, GW_ERRORS_ALL);
    assert_true(layer.count == 100 && fabs(layer.mean - 0.505) < 1e-9);
    struct gw_error_summary all = gw_errors_summary(errors, GW_ERRORS_ALL, GW_ERRORS_ALL);
    assert_true(all.count == 200 && fabs(all.mean - 0.27775) < 1e-9);
    assert_true(all.p95 > 0.9 / 1.19 && all.p95 < 0.9 * 1.19);
    assert_int_equal(gw_errors_summary(errors, 1, GW_ERRORS_ALL).count, 0);
    assert_int_equal(gw_errors_layers(errors), 3);
    gw_errors_destroy(errors);
}

static void the_worst_is_the_layer_and_head_with_the_largest_mean(void **state)
{
    (void)state;
    struct gw_errors *errors = errors_of(4, 3);
    uint32_t layer = 9, head = 9;
    assert_false(gw_errors_worst(errors, &layer, &head));
    assert_true(layer == 9 && head == 9);
    gw_errors_add(errors, 1, 0, 0.9); /* the head with the largest, in a better layer */
    gw_errors_add(errors, 1, 1, 0.0);
    gw_errors_add(errors, 3, 1, 0.5);
    gw_errors_add(errors, 3, 2, 0.6);
    assert_true(gw_errors_worst(errors, &layer, &head));
    assert_true(layer == 3 && head == 2);
    gw_errors_clear(errors);
    assert_false(gw_errors_worst(errors, &layer, &head));
    gw_errors_destroy(errors);
}

static void zeros_and_infinities_are_counted(void **state)
{
    (void)state;
    struct gw_errors *errors = errors_of(1, 1);
    gw_errors_add(errors, 0, 0, 0.0);
    struct gw_error_summary zero = gw_errors_summary(errors, 0, 0);
    assert_true(zero.count == 1 && zero.mean == 0.0 && zero.p95 == 0.0);
    gw_errors_add(errors, 0, 0, INFINITY);
    struct gw_error_summary both = gw_errors_summary(errors, 0, 0);
    assert_true(both.count == 2 && isfinite(both.mean) && both.mean > 1.0);
    assert_true(isfinite(both.p95) && both.p95 > 1.0);
    gw_errors_destroy(errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_and_percentiles_are_by_layer_head_and_over_all),
        cmocka_unit_test(the_worst_is_the_layer_and_head_with_the_largest_mean),
        cmocka_unit_test(zeros_and_infinities_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
