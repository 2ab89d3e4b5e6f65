/*
 * Pools: bounded, warm buffers first, memory only where it was used, threads.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/mem/pool.h"

static void buffers_run_out_and_come_back(void **state)
{
    (void)state;
    struct pp_pool *pool;
    void *buffers[3];
    void *more = NULL;
    assert_int_equal(pp_pool_new(5000, 3, PP_HUGEPAGES_OFF, &pool), PP_OK);
    assert_int_equal(pp_pool_buffer_bytes(pool), 8192);
    for (int index = 0; index < 3; ++index) {
        assert_int_equal(pp_pool_take(pool, &buffers[index]), PP_OK);
        memset(buffers[index], index, 8192);
    }
    assert_int_equal(pp_pool_take(pool, &more), PP_QUEUE);
    assert_null(more);
    assert_int_equal(pp_pool_taken(pool), 3);
    for (int index = 0; index < 3; ++index) {
        assert_int_equal(((char *)buffers[index])[8191], index);
    }
    pp_pool_give(pool, buffers[1]);
    assert_int_equal(pp_pool_take(pool, &more), PP_OK);
    assert_ptr_equal(more, buffers[1]);
    for (int index = 0; index < 3; ++index) {
        pp_pool_give(pool, buffers[index]);
    }
    pp_pool_give(pool, NULL);
    assert_int_equal(pp_pool_taken(pool), 0);
    pp_pool_destroy(pool);
    pp_pool_destroy(NULL);
}

static void memory_is_held_only_for_buffers_in_use_before(void **state)
{
    (void)state;
    struct pp_pool *pool;
    void *one;
    void *two;
    assert_int_equal(pp_pool_new(4096, 1000, PP_HUGEPAGES_TRY, &pool), PP_OK);
    assert_int_equal(pp_pool_committed_bytes(pool), 0);
    for (int round = 0; round < 10; ++round) {
        assert_int_equal(pp_pool_take(pool, &one), PP_OK);
        assert_int_equal(pp_pool_take(pool, &two), PP_OK);
        pp_pool_give(pool, two);
        pp_pool_give(pool, one);
    }
    assert_int_equal(pp_pool_committed_bytes(pool), 8192);
    assert_int_equal(pp_pool_take(pool, &one), PP_OK);
    memset(one, 9, 4096);
    pp_pool_trim(pool);
    assert_int_equal(pp_pool_committed_bytes(pool), 4096);
    assert_int_equal(((char *)one)[4095], 9);
    assert_int_equal(pp_pool_take(pool, &two), PP_OK);
    assert_int_equal(((char *)two)[0], 0);
    pp_pool_give(pool, one);
    pp_pool_give(pool, two);
    pp_pool_destroy(pool);
}

static void impossible_sizes_are_refused(void **state)
{
    (void)state;
    struct pp_pool *pool = NULL;
    assert_int_equal(pp_pool_new(0, 4, PP_HUGEPAGES_OFF, &pool), PP_MEMORY);
    assert_int_equal(pp_pool_new(4096, 0, PP_HUGEPAGES_OFF, &pool), PP_MEMORY);
    assert_int_equal(pp_pool_new(UINT64_MAX, 4, PP_HUGEPAGES_OFF, &pool), PP_MEMORY);
    assert_int_equal(pp_pool_new(UINT64_C(1) << 40, 1u << 20, PP_HUGEPAGES_OFF, &pool), PP_MEMORY);
    assert_null(pool);
}

struct shared {
    struct pp_pool *pool;
    _Atomic uint64_t taken;
    _Atomic uint64_t mixed;
};

static void *use(void *argument)
{
    struct shared *shared = argument;
    unsigned char own = (unsigned char)(uintptr_t)pthread_self();
    for (int round = 0; round < 5000; ++round) {
        void *memory;
        if (pp_pool_take(shared->pool, &memory) != PP_OK) {
            sched_yield();
            continue;
        }
        unsigned char *bytes = memory;
        memset(bytes, own, 256);
        for (int at = 0; at < 256; ++at) {
            atomic_fetch_add_explicit(&shared->mixed, bytes[at] != own, memory_order_relaxed);
        }
        atomic_fetch_add_explicit(&shared->taken, 1, memory_order_relaxed);
        pp_pool_give(shared->pool, memory);
    }
    return NULL;
}

static void no_two_threads_hold_one_buffer(void **state)
{
    (void)state;
    struct shared shared = {0};
    pthread_t threads[4];
    assert_int_equal(pp_pool_new(4096, 2, PP_HUGEPAGES_OFF, &shared.pool), PP_OK);
    for (int index = 0; index < 4; ++index) {
        assert_int_equal(pthread_create(&threads[index], NULL, use, &shared), 0);
    }
    for (int index = 0; index < 4; ++index) {
        assert_int_equal(pthread_join(threads[index], NULL), 0);
    }
    assert_int_equal(shared.mixed, 0);
    assert_true(shared.taken > 0);
    pp_pool_destroy(shared.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_run_out_and_come_back),
        cmocka_unit_test(memory_is_held_only_for_buffers_in_use_before),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(no_two_threads_hold_one_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
