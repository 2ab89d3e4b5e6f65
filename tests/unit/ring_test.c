/*
 * Rings: order, refusal when full, waits that end by an item, a wake or the time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/run/ring.h"

#define ITEMS   200000u
#define FOREVER (600u * 1000000u)

static void *item_of(uintptr_t number)
{
    static char base[ITEMS + 1];
    return base + number;
}

static void items_come_out_in_order(void **state)
{
    (void)state;
    struct pp_ring *ring;
    assert_int_equal(pp_ring_new(4, &ring), PP_OK);
    assert_null(pp_ring_pop(ring));
    for (uintptr_t round = 0; round < 100; ++round) {
        for (uintptr_t at = 0; at < 3; ++at) {
            assert_true(pp_ring_push(ring, item_of(3 * round + at)));
        }
        assert_int_equal(pp_ring_count(ring), 3);
        for (uintptr_t at = 0; at < 3; ++at) {
            assert_ptr_equal(pp_ring_pop(ring), item_of(3 * round + at));
        }
        assert_null(pp_ring_pop(ring));
    }
    pp_ring_destroy(ring);
}

static void a_full_ring_refuses(void **state)
{
    (void)state;
    struct pp_ring *ring;
    assert_int_equal(pp_ring_new(5, &ring), PP_OK); /* rounded up to 8 */
    for (uintptr_t at = 0; at < 8; ++at) {
        assert_true(pp_ring_push(ring, item_of(at)));
    }
    assert_false(pp_ring_push(ring, item_of(9)));
    assert_int_equal(pp_ring_count(ring), 8);
    assert_ptr_equal(pp_ring_pop(ring), item_of(0));
    assert_true(pp_ring_push(ring, item_of(9)));
    assert_false(pp_ring_push(ring, item_of(10)));
    pp_ring_destroy(ring);
    assert_int_equal(pp_ring_new(UINT32_MAX, &ring), PP_MEMORY);
    pp_ring_destroy(NULL);
}

static void a_wake_before_the_wait_counts_once(void **state)
{
    (void)state;
    struct pp_ring *ring;
    struct pp_clock clock = pp_clock_system();
    assert_int_equal(pp_ring_new(4, &ring), PP_OK);
    pp_ring_wake(ring);
    pp_ring_wake(ring);
    pp_ring_wait(ring, 0, FOREVER);
    uint64_t before_us = pp_clock_now_us(&clock);
    pp_ring_wait(ring, 100, 3000); /* the wakes are used up: this one runs out */
    assert_true(pp_clock_now_us(&clock) - before_us >= 3000);
    pp_ring_wait(ring, 0, 0);
    pp_ring_destroy(ring);
}

static void an_item_ends_the_wait_at_once(void **state)
{
    (void)state;
    struct pp_ring *ring;
    assert_int_equal(pp_ring_new(4, &ring), PP_OK);
    assert_true(pp_ring_push(ring, item_of(1)));
    pp_ring_wait(ring, 0, UINT64_MAX);
    assert_ptr_equal(pp_ring_pop(ring), item_of(1));
    pp_ring_destroy(ring);
}

/* A producer and a consumer that sleeps whenever the ring is empty. */
struct flow {
    struct pp_ring *ring;
    uint64_t spin_us;
    uint64_t pauses; /* the producer lets the consumer run dry every so many items */
    uint64_t payload[ITEMS + 1];
    _Atomic uint64_t consumed;
};

static void *produce(void *argument)
{
    struct flow *flow = argument;
    for (uint64_t number = 1; number <= ITEMS; ++number) {
        flow->payload[number] = number * 3; /* handed over with the item */
        while (!pp_ring_push(flow->ring, &flow->payload[number])) {
            sched_yield();
        }
        while (number % flow->pauses == 0 && atomic_load(&flow->consumed) < number) {
            sched_yield();
        }
    }
    return NULL;
}

static void run_flow(uint64_t spin_us, uint64_t pauses)
{
    static struct flow flow;
    pthread_t producer;
    flow.spin_us = spin_us;
    flow.pauses = pauses;
    atomic_store(&flow.consumed, 0);
    assert_int_equal(pp_ring_new(64, &flow.ring), PP_OK);
    assert_int_equal(pthread_create(&producer, NULL, produce, &flow), 0);
    for (uint64_t number = 1; number <= ITEMS;) {
        uint64_t *item = pp_ring_pop(flow.ring);
        if (item == NULL) {
            pp_ring_wait(flow.ring, spin_us, FOREVER); /* a lost wake would hang here */
            continue;
        }
        if (*item != number * 3) {
            fail_msg("item %llu holds %llu", (unsigned long long)number, (unsigned long long)*item);
        }
        atomic_store(&flow.consumed, number++);
    }
    assert_int_equal(pthread_join(producer, NULL), 0);
    pp_ring_destroy(flow.ring);
}

static void no_item_and_no_wake_is_lost_between_threads(void **state)
{
    (void)state;
    run_flow(0, 1000);
    run_flow(0, 7);
    run_flow(20, 50);
}

static void *wake_later(void *argument)
{
    pp_ring_wake(argument);
    return NULL;
}

static void a_wake_from_another_thread_ends_the_wait(void **state)
{
    (void)state;
    struct pp_ring *ring;
    assert_int_equal(pp_ring_new(4, &ring), PP_OK);
    for (int round = 0; round < 200; ++round) {
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, wake_later, ring), 0);
        pp_ring_wait(ring, 0, FOREVER);
        assert_int_equal(pthread_join(other, NULL), 0);
    }
    pp_ring_destroy(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_come_out_in_order),
        cmocka_unit_test(a_full_ring_refuses),
        cmocka_unit_test(a_wake_before_the_wait_counts_once),
        cmocka_unit_test(an_item_ends_the_wait_at_once),
        cmocka_unit_test(no_item_and_no_wake_is_lost_between_threads),
        cmocka_unit_test(a_wake_from_another_thread_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
