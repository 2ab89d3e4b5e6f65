/*
 * The clock: it is what is handed in, and the system's goes forward.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"

static uint64_t give_context(void *context)
{
    return *(uint64_t *)context;
}

static void a_clock_that_is_handed_in_is_asked(void **state)
{
    (void)state;
    uint64_t now_us = 5;
    struct pp_clock clock = {.now_us = give_context, .context = &now_us};
    assert_int_equal(pp_clock_now_us(&clock), 5);
    now_us = UINT64_C(1) << 40;
    assert_true(pp_clock_now_us(&clock) == UINT64_C(1) << 40);
}

static void the_system_clock_goes_forward(void **state)
{
    (void)state;
    struct pp_clock clock = pp_clock_system();
    uint64_t start_us = pp_clock_now_us(&clock);
    uint64_t last_us = start_us;
    while (last_us < start_us + 2000) {
        uint64_t now_us = pp_clock_now_us(&clock);
        assert_true(now_us >= last_us);
        last_us = now_us;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clock_that_is_handed_in_is_asked),
        cmocka_unit_test(the_system_clock_goes_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
