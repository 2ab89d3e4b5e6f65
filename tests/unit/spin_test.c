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

static void spinning_rests_when_the_core_comes_back_late_too_often(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 2);
    uint64_t now_us = 1000000;
    for (unsigned i = 0; i < PP_SPIN_AWAY_MAX; i++) {
        pp_spin_yielded(&spin, now_us, now_us + PP_SPIN_AWAY_US);
        now_us += PP_SPIN_AWAY_US;
        pp_spin_event(&spin, now_us);
        assert_true(pp_spin_wanted(&spin, now_us));
    }
    pp_spin_yielded(&spin, now_us, now_us + PP_SPIN_AWAY_US);
    now_us += PP_SPIN_AWAY_US;
    pp_spin_event(&spin, now_us);
    assert_false(pp_spin_wanted(&spin, now_us));
    now_us += PP_SPIN_REST_US;
    pp_spin_event(&spin, now_us);
    assert_true(pp_spin_wanted(&spin, now_us));
    pp_spin_yielded(&spin, now_us, now_us + PP_SPIN_AWAY_US); /* counts anew */
    assert_true(pp_spin_wanted(&spin, now_us));
}

static void a_core_that_others_spin_on_or_that_is_seldom_away_is_no_reason_to_rest(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 2);
    uint64_t now_us = 1000000;
    for (unsigned i = 0; i < 10000; i++) {
        pp_spin_yielded(&spin, now_us, now_us + PP_SPIN_AWAY_US - 1);
        now_us += PP_SPIN_AWAY_US;
    }
    for (unsigned i = 0; i < 100; i++) {
        pp_spin_yielded(&spin, now_us, now_us + 10000);
        now_us += PP_SPIN_WINDOW_US / PP_SPIN_AWAY_MAX;
        pp_spin_event(&spin, now_us);
        assert_true(pp_spin_wanted(&spin, now_us));
    }
    pp_spin_init(&spin, 200, true, 2);
    for (unsigned i = 0; i < 100; i++) {
        pp_spin_yielded(&spin, now_us, now_us + 1000);
    }
    pp_spin_event(&spin, now_us);
    assert_true(pp_spin_wanted(&spin, now_us));
}

/* Turns until the core is offered; the offer then takes took_us. */
static unsigned turns_to_offer(struct pp_spin *spin, uint64_t took_us)
{
    unsigned turns = 1;
    while (!pp_spin_yields(spin)) {
        turns++;
    }
    pp_spin_yielded(spin, 1000, 1000 + took_us);
    return turns;
}

static void the_core_is_offered_every_second_turn_while_somebody_takes_it(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 2);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(turns_to_offer(&spin, PP_SPIN_TAKEN_US), PP_SPIN_OFFER_TURNS_MIN);
    }
}

static void a_core_that_nobody_takes_is_offered_less_and_less_until_somebody_does(void **state)
{
    (void)state;
    struct pp_spin spin;
    pp_spin_init(&spin, 200, false, 2);
    for (unsigned turns = PP_SPIN_OFFER_TURNS_MIN; turns < PP_SPIN_OFFER_TURNS_MAX; turns *= 2) {
        assert_int_equal(turns_to_offer(&spin, PP_SPIN_TAKEN_US - 1), turns);
    }
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(turns_to_offer(&spin, 0), PP_SPIN_OFFER_TURNS_MAX);
    }
    assert_int_equal(turns_to_offer(&spin, PP_SPIN_TAKEN_US), PP_SPIN_OFFER_TURNS_MAX);
    assert_int_equal(turns_to_offer(&spin, 0), PP_SPIN_OFFER_TURNS_MIN);
    assert_int_equal(turns_to_offer(&spin, 0), 2 * PP_SPIN_OFFER_TURNS_MIN);
    /* Whoever computes on it keeps it for long: that is no spinning peer. */
    assert_int_equal(turns_to_offer(&spin, PP_SPIN_AWAY_US), 4 * PP_SPIN_OFFER_TURNS_MIN);
    assert_int_equal(turns_to_offer(&spin, 0), 8 * PP_SPIN_OFFER_TURNS_MIN);
}

static void this_machine_has_some_cores(void **state)
{
    (void)state;
    double cores = pp_spin_cores();
    assert_true(cores > 0 && cores <= (double)sysconf(_SC_NPROCESSORS_CONF));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spins_for_its_time_after_an_event_and_not_longer),
        cmocka_unit_test(fewer_than_two_cores_never_spin_unless_told),
        cmocka_unit_test(spinning_rests_when_the_core_comes_back_late_too_often),
        cmocka_unit_test(a_core_that_others_spin_on_or_that_is_seldom_away_is_no_reason_to_rest),
        cmocka_unit_test(the_core_is_offered_every_second_turn_while_somebody_takes_it),
        cmocka_unit_test(a_core_that_nobody_takes_is_offered_less_and_less_until_somebody_does),
        cmocka_unit_test(this_machine_has_some_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
