/*
 * Statuses: what travels as code and reason comes back as the same status.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/base/status.h"

static void every_status_survives_the_wire(void **state)
{
    (void)state;
    for (int at = 0; at < PP_STATUS_COUNT; ++at) {
        enum pp_status status = (enum pp_status)at;
        assert_int_equal(pp_status_from_wire(pp_status_grpc_code(status), pp_status_name(status)),
                         status);
    }
}

static void names_are_different(void **state)
{
    (void)state;
    for (int one = 0; one < PP_STATUS_COUNT; ++one) {
        for (int other = 0; other < one; ++other) {
            assert_string_not_equal(pp_status_name((enum pp_status)one),
                                    pp_status_name((enum pp_status)other));
        }
    }
}

static void an_unknown_reason_takes_the_plain_status_of_its_code(void **state)
{
    (void)state;
    assert_int_equal(pp_status_from_wire(9, "NEWER_REASON"), PP_FAILED_PRECONDITION);
    assert_int_equal(pp_status_from_wire(8, NULL), PP_RESOURCE_EXHAUSTED);
    assert_int_equal(pp_status_from_wire(14, ""), PP_UNAVAILABLE);
    assert_int_equal(pp_status_from_wire(0, "ANYTHING"), PP_OK);
    assert_int_equal(pp_status_from_wire(10, "APPEND_GAP"), PP_ABORTED);
}

static void a_code_that_is_none_is_internal(void **state)
{
    (void)state;
    assert_int_equal(pp_status_from_wire(17, "MEMORY"), PP_INTERNAL);
    assert_int_equal(pp_status_from_wire(-1, NULL), PP_INTERNAL);
    assert_int_equal(pp_status_grpc_code((enum pp_status)9999), 13);
    assert_string_equal(pp_status_name((enum pp_status) - 1), "INVALID_STATUS");
}

static void codes_are_those_of_the_operators_table(void **state)
{
    (void)state;
    assert_int_equal(pp_status_grpc_code(PP_OK), 0);
    assert_int_equal(pp_status_grpc_code(PP_NON_FINITE), 3);
    assert_int_equal(pp_status_grpc_code(PP_DEADLINE_EXCEEDED), 4);
    assert_int_equal(pp_status_grpc_code(PP_PART_EXPIRED), 5);
    assert_int_equal(pp_status_grpc_code(PP_PART_EXISTS), 6);
    assert_int_equal(pp_status_grpc_code(PP_QUOTA), 8);
    assert_int_equal(pp_status_grpc_code(PP_SHORT_PART), 9);
    assert_int_equal(pp_status_grpc_code(PP_INCARNATION_CHANGED), 10);
    assert_int_equal(pp_status_grpc_code(PP_APPEND_GAP), 11);
    assert_int_equal(pp_status_grpc_code(PP_DRAINING), 14);
    assert_int_equal(pp_status_grpc_code(PP_CHECKSUM), 15);
    assert_int_equal(pp_status_grpc_code(PP_UNAUTHENTICATED), 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_survives_the_wire),
        cmocka_unit_test(names_are_different),
        cmocka_unit_test(an_unknown_reason_takes_the_plain_status_of_its_code),
        cmocka_unit_test(a_code_that_is_none_is_internal),
        cmocka_unit_test(codes_are_those_of_the_operators_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
