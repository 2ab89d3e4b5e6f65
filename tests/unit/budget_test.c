/*
 * Budgets of rows: the default falls with the context, a number of rows is divided among the parts
 * by what they hold, shares and targets go to every part as they are.
 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_default_is_chosen_by_the_whole_context),
        cmocka_unit_test(a_number_of_rows_is_divided_by_what_parts_hold),
        cmocka_unit_test(shares_targets_and_other_estimators_stay),
        cmocka_unit_test(the_default_share_falls_and_its_rows_rise_with_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
