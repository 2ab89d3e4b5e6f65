/* How many calls a service has open, and who may have them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "tests/unit/service_fake.h"

static int set_up(void **state)
{
    (void)state;
    fake_start(1ull << 30);
    fake_run(); /* the first self test */
    return an_service_state(fake.service) == AN_SERVING ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    fake_stop();
    return 0;
}

/* A host each. */
static struct pp_call *open_from_host(uint32_t number)
{
    char peer[64];
    snprintf(peer, sizeof(peer), "ipv4:10.0.%u.%u:50000", number / 256, number % 256);
    return fake_open_from("AttendStream", peer);
}

static void calls_beyond_the_limit_are_refused(void **state)
{
    (void)state;
    static struct pp_call *calls[AN_CALLS_MAX + 1];
    for (uint32_t index = 0; index <= AN_CALLS_MAX; ++index) {
        calls[index] = open_from_host(index);
    }
    assert_true(calls[AN_CALLS_MAX]->finished);
    assert_int_equal(PP_QUEUE, calls[AN_CALLS_MAX]->status);
    assert_false(calls[0]->finished);
    for (uint32_t index = 0; index <= AN_CALLS_MAX; ++index) {
        fake_end(calls[index]);
    }
    struct pp_call *call = fake_open("AttendStream");
    assert_false(call->finished);
    fake_end(call);
}

static void a_host_that_has_its_share_of_the_calls_leaves_room_for_others(void **state)
{
    (void)state;
    enum { SHARE = AN_CALLS_MAX / 2 };
    static struct pp_call *calls[SHARE + 1];
    for (uint32_t index = 0; index <= SHARE; ++index) { /* from as many ports */
        char peer[64];
        snprintf(peer, sizeof(peer), "ipv4:10.0.0.1:%u", 1000 + index);
        calls[index] = fake_open_from("AttendStream", peer);
    }
    assert_false(calls[SHARE - 1]->finished);
    assert_true(calls[SHARE]->finished);
    assert_int_equal(PP_QUOTA, calls[SHARE]->status);
    assert_int_equal(1000, calls[SHARE]->retry_after_ms);
    struct pp_call *other = open_from_host(77);
    assert_false(other->finished);
    assert_true(SHARE + 1 == pp_stat_value(fake.service->metrics.calls));
    assert_true(2 == pp_stat_value(fake.service->metrics.call_hosts));
    assert_true(1 <= pp_stat_value(fake.service->metrics.rejected[PP_QUOTA]));
    fake_end(calls[0]);
    fake_end(other);
    struct pp_call *again = fake_open_from("AttendStream", "ipv4:10.0.0.1:999");
    assert_false(again->finished);
    fake_end(again);
    for (uint32_t index = 1; index <= SHARE; ++index) {
        fake_end(calls[index]);
    }
    assert_true(0 == pp_stat_value(fake.service->metrics.calls));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_beyond_the_limit_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            a_host_that_has_its_share_of_the_calls_leaves_room_for_others, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
