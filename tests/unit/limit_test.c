/*
 * The memory account: to the byte at the limit, from several threads at once, near 2^64.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "common/mem/limit.h"

static void bytes_are_given_up_to_the_limit_and_not_one_more(void **state)
{
    (void)state;
    struct pp_limit limit;
    pp_limit_init(&limit, 1000);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_KV, 600), PP_OK);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_INDEX, 401), PP_MEMORY);
    assert_int_equal(pp_limit_used(&limit), 600);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_INDEX, 400), PP_OK);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_TAIL, 1), PP_MEMORY);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_TAIL, 0), PP_OK);
    pp_limit_release(&limit, PP_MEMORY_KV, 600);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_TAIL, 600), PP_OK);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_KV], 0);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_INDEX], 400);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_TAIL], 600);
}

static void sums_that_would_wrap_are_refused(void **state)
{
    (void)state;
    struct pp_limit limit;
    pp_limit_init(&limit, UINT64_MAX);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_KV, UINT64_MAX - 5), PP_OK);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_KV, 6), PP_MEMORY);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_KV, UINT64_MAX), PP_MEMORY);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_KV, 5), PP_OK);
}

static void a_move_changes_kinds_and_not_the_sum(void **state)
{
    (void)state;
    struct pp_limit limit;
    pp_limit_init(&limit, 100);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_TAIL, 100), PP_OK);
    pp_limit_move(&limit, PP_MEMORY_TAIL, PP_MEMORY_KV, 70);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_TAIL], 30);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_KV], 70);
    assert_int_equal(pp_limit_used(&limit), 100);
}

static uint64_t reclaims;

static void give_spare_back(void *context, uint64_t bytes)
{
    reclaims++;
    pp_limit_release(context, PP_MEMORY_SPARE, bytes);
}

static void spare_bytes_are_within_the_limit_and_come_back_when_asked_for(void **state)
{
    (void)state;
    struct pp_limit limit;
    pp_limit_init(&limit, 100);
    limit.reclaim = give_spare_back;
    limit.reclaim_context = &limit;
    reclaims = 0;
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_KV, 60), PP_OK);
    pp_limit_move(&limit, PP_MEMORY_KV, PP_MEMORY_SPARE, 40);
    assert_int_equal(pp_limit_used(&limit), 20);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_INDEX, 40), PP_OK);
    assert_int_equal(reclaims, 0);
    assert_int_equal(limit.taken, 100);
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_INDEX, 41), PP_MEMORY);
    assert_int_equal(reclaims, 0); /* it would not help */
    assert_int_equal(pp_limit_reserve(&limit, PP_MEMORY_INDEX, 30), PP_OK);
    assert_int_equal(reclaims, 1);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_SPARE], 10);
    assert_int_equal(limit.taken, 100);
    assert_int_equal(pp_limit_used(&limit), 90);
}

static void *take_and_give(void *argument)
{
    struct pp_limit *limit = argument;
    for (int round = 0; round < 50000; ++round) {
        if (pp_limit_reserve(limit, PP_MEMORY_SCRATCH, 60) == PP_OK) {
            if (pp_limit_used(limit) > limit->bytes_max) {
                return limit;
            }
            pp_limit_release(limit, PP_MEMORY_SCRATCH, 60);
        }
    }
    return NULL;
}

static void threads_never_pass_it_together(void **state)
{
    (void)state;
    struct pp_limit limit;
    pthread_t threads[4];
    pp_limit_init(&limit, 150);
    for (int index = 0; index < 4; ++index) {
        assert_int_equal(pthread_create(&threads[index], NULL, take_and_give, &limit), 0);
    }
    for (int index = 0; index < 4; ++index) {
        void *passed;
        assert_int_equal(pthread_join(threads[index], &passed), 0);
        assert_null(passed);
    }
    assert_int_equal(pp_limit_used(&limit), 0);
    assert_int_equal(limit.used_by_kind[PP_MEMORY_SCRATCH], 0);
}

static void there_is_memory_on_this_machine(void **state)
{
    (void)state;
    assert_true(pp_memory_available_bytes() > 1u << 20);
    assert_true(pp_memory_available_bytes() < UINT64_C(1) << 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_given_up_to_the_limit_and_not_one_more),
        cmocka_unit_test(sums_that_would_wrap_are_refused),
        cmocka_unit_test(a_move_changes_kinds_and_not_the_sum),
        cmocka_unit_test(spare_bytes_are_within_the_limit_and_come_back_when_asked_for),
        cmocka_unit_test(threads_never_pass_it_together),
        cmocka_unit_test(there_is_memory_on_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
