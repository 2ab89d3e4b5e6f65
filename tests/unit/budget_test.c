/*
 * Budgets of rows: the default falls with the context, a number of rows is divided among the parts
 * by what they hold, shares and targets go to every part as they are.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/attn/budget.h"

static void the_default_share_falls_and_its_rows_rise_with_the_context(void **state)
{
    (void)state;
    float before = 1.0f;
    double rows_before = 0.0;
    for (uint64_t tokens = 2048; tokens <= 1u << 24; tokens *= 4) {
        float share = pp_budget_share(tokens);
        assert_true(share > 0.0f && share <= before);
        assert_true((double)share * (double)tokens > rows_before);
        before = share;
        rows_before = (double)share * (double)tokens;
    }
    assert_true(pp_budget_share(0) > 0.0f && pp_budget_share(UINT64_MAX) > 0.0f);
}

static void a_number_of_rows_is_divided_by_what_parts_hold(void **state)
{
    (void)state;
    const struct pp_estimator whole = {.kind = PP_SKETCH, .bits = 2, .rows = 1000};
    const uint64_t parts[] = {60000, 30000, 9999, 1};
    const uint32_t rows[] = {600, 300, 100, 1};
    for (uint32_t i = 0; i < 4; i++) {
        struct pp_estimator part = pp_budget_of_part(&whole, parts[i], 100000);
        assert_int_equal(part.rows, rows[i]);
        assert_int_equal(part.bits, 2);
        assert_true(part.rows_share == 0.0f);
    }
    const struct pp_estimator most = {.kind = PP_SKETCH, .bits = 2, .rows = UINT32_MAX};
    assert_int_equal(pp_budget_of_part(&most, 100000, 100000).rows, UINT32_MAX);
}

static void a_default_is_chosen_by_the_whole_context(void **state)
{
    (void)state;
    const struct pp_estimator open = {.kind = PP_SKETCH, .bits = 2};
    assert_true(pp_budget_of_part(&open, 4000, 100000).rows_share == pp_budget_share(100000));
}

static void shares_targets_and_other_estimators_stay(void **state)
{
    (void)state;
    const struct pp_estimator same[] = {
        {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.5f},
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.1f},
        {.kind = PP_LSH, .k = 10, .l = 150, .t = 2, .target_error = 0.1f},
        {.kind = PP_EXACT},
    };
    for (uint32_t i = 0; i < 4; i++) {
        struct pp_estimator part = pp_budget_of_part(&same[i], 10, 1000);
        assert_true(pp_estimator_same(&part, &same[i]));
    }
}

static void rows_are_divided_by_weight_and_a_quarter_by_tokens(void **state)
{
    (void)state;
    const struct pp_budget_part even[] = {{1000, 0.0}, {3000, 0.0}};
    const struct pp_budget_part uneven[] = {{1000, 0.9}, {1000, 0.1}, {2000, 0.0}};
    double rows[3];
    pp_budget_divide(400.0, even, 2, rows);
    assert_true(fabs(rows[0] - 100.0) < 1e-9 && fabs(rows[1] - 300.0) < 1e-9);
    pp_budget_divide(400.0, uneven, 3, rows);
    assert_true(fabs(rows[0] - (25.0 + 270.0)) < 1e-9);
    assert_true(fabs(rows[1] - (25.0 + 30.0)) < 1e-9 && fabs(rows[2] - 50.0) < 1e-9);
}

static void no_part_gets_more_rows_than_it_has_and_none_are_lost(void **state)
{
    (void)state;
    const struct pp_budget_part parts[] = {{100, 1.0}, {1000, 1e-3}, {5000, 1e-6}, {300, 0.1}};
    for (double rows = 1.0; rows < 20000.0; rows *= 1.3) {
        double divided[4];
        double sum = 0.0;
        pp_budget_divide(rows, parts, 4, divided);
        for (uint32_t i = 0; i < 4; i++) {
            assert_true(divided[i] > 0.0 && divided[i] <= (double)parts[i].tokens);
            sum += divided[i];
        }
        assert_true(fabs(sum - (rows < 6400.0 ? rows : 6400.0)) < 1e-6 * rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_divided_by_weight_and_a_quarter_by_tokens),
        cmocka_unit_test(no_part_gets_more_rows_than_it_has_and_none_are_lost),
        cmocka_unit_test(a_default_is_chosen_by_the_whole_context),
        cmocka_unit_test(a_number_of_rows_is_divided_by_what_parts_hold),
        cmocka_unit_test(shares_targets_and_other_estimators_stay),
        cmocka_unit_test(the_default_share_falls_and_its_rows_rise_with_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
