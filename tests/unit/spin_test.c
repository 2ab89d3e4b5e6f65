/*
 * When the polling thread spins.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/rpc/spin.h"

static void spins_for_its_time_after_an_event_and_not_longer(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 4);
    pp_spin_event(&spin, 1000000);
    assert_true(pp_spin_wanted(&spin, 1000000));
    assert_true(pp_spin_wanted(&spin, 1000199));
    assert_false(pp_spin_wanted(&spin, 1000200));
}

static void fewer_than_two_cores_never_spin_unless_told(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 1.5);
    pp_spin_event(&spin, 1000000);
    assert_false(pp_spin_wanted(&spin, 1000001));
    pp_spin_init(&spin, 200, true, 1.5);
    pp_spin_event(&spin, 1000000);
    assert_true(pp_spin_wanted(&spin, 1000001));
}

static void spinning_rests_when_the_core_is_taken_away_often(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 2);
    pp_spin_check(&spin, 1000000, 100);
    assert_false(pp_spin_due(&spin, 1000000 + PP_SPIN_WINDOW_US - 1));
    uint64_t now_us = 1000000 + PP_SPIN_WINDOW_US;
    assert_true(pp_spin_due(&spin, now_us));
    pp_spin_check(&spin, now_us, 100 + PP_SPIN_SWITCHES_MAX);
    pp_spin_event(&spin, now_us);
    assert_true(pp_spin_wanted(&spin, now_us));
    now_us += PP_SPIN_WINDOW_US;
    pp_spin_check(&spin, now_us, 100 + 2 * PP_SPIN_SWITCHES_MAX + 1);
    pp_spin_event(&spin, now_us);
    assert_false(pp_spin_wanted(&spin, now_us));
    now_us += PP_SPIN_REST_US;
    pp_spin_event(&spin, now_us);
    assert_true(pp_spin_wanted(&spin, now_us));
}

static void switches_while_blocked_for_long_do_not_count(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 2);
    pp_spin_check(&spin, 1000000, 0);
    pp_spin_check(&spin, 9000000, 1000);
    pp_spin_event(&spin, 9000000);
    assert_true(pp_spin_wanted(&spin, 9000001));
}

static void this_machine_has_some_cores_and_counts_switches(void **state)
{
    (void)state;
    double cores = pp_spin_cores();
    assert_true(cores > 0 && cores <= (double)sysconf(_SC_NPROCESSORS_CONF));
    assert_true(pp_spin_switches() <= pp_spin_switches());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spins_for_its_time_after_an_event_and_not_longer),
        cmocka_unit_test(fewer_than_two_cores_never_spin_unless_told),
        cmocka_unit_test(spinning_rests_when_the_core_is_taken_away_often),
        cmocka_unit_test(switches_while_blocked_for_long_do_not_count),
        cmocka_unit_test(this_machine_has_some_cores_and_counts_switches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
