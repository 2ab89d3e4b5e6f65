/*
 * The states of a node: one fault is a doubt, three are the end, and two right answers in a row a
 * new beginning.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "gpu-worker/remote/node_state.h"

#define T0 1000000ull

static struct gw_node_state up(void)
{
    struct gw_node_state state;
    gw_node_state_init(&state, 7, T0);
    gw_node_state_try(&state);
    gw_node_state_right(&state, T0 + 10);
    assert_int_equal(state.phase, GW_NODE_UP);
    return state;
}

/* Lets a due trial run to its end; the time it began. */
static uint64_t trial(struct gw_node_state *state, bool right)
{
    uint64_t now_us = gw_node_state_trial_us(state);
    assert_true(now_us != UINT64_MAX);
    gw_node_state_try(state);
    assert_int_equal(gw_node_state_trial_us(state), UINT64_MAX); /* one at a time */
    if (right) {
        gw_node_state_right(state, now_us + 5);
    } else {
        gw_node_state_fault(state, now_us + 5);
    }
    return now_us;
}

static void a_new_node_is_tried_at_once_and_used_when_it_answers(void **state)
{
    (void)state;
    struct gw_node_state node;
    gw_node_state_init(&node, 7, T0);
    assert_int_equal(node.phase, GW_NODE_UNKNOWN);
    assert_false(gw_node_state_open(&node));
    assert_int_equal(gw_node_state_trial_us(&node), T0);
    gw_node_state_try(&node);
    gw_node_state_right(&node, T0 + 10);
    assert_true(gw_node_state_open(&node));
    assert_int_equal(node.up_us, T0 + 10);
    assert_int_equal(gw_node_state_trial_us(&node), UINT64_MAX);
}

static void one_fault_is_a_doubt_that_two_right_answers_end(void **state)
{
    (void)state;
    struct gw_node_state node = up();
    gw_node_state_fault(&node, T0 + 100);
    assert_int_equal(node.phase, GW_NODE_SUSPECT);
    assert_false(gw_node_state_open(&node));
    assert_true(gw_node_state_lives(&node));
    trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_SUSPECT); /* once is not enough */
    trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_UP);
}

static void a_node_in_doubt_is_tried_at_once_and_stays_up_meanwhile(void **state)
{
    (void)state;
    struct gw_node_state node = up();
    gw_node_state_doubt(&node, T0 + 100);
    assert_true(gw_node_state_open(&node));
    assert_int_equal(gw_node_state_trial_us(&node), T0 + 100);
    trial(&node, true);
    assert_true(gw_node_state_open(&node)); /* once is enough */
    assert_int_equal(gw_node_state_trial_us(&node), UINT64_MAX);
    gw_node_state_doubt(&node, T0 + 200);
    trial(&node, false);
    assert_int_equal(node.phase, GW_NODE_SUSPECT);
    gw_node_state_doubt(&node, T0 + 300); /* it is doubted already */
    trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_SUSPECT);
}

static void right_and_wrong_in_turn_never_make_it_up(void **state)
{
    (void)state;
    struct gw_node_state node = up();
    gw_node_state_fault(&node, T0 + 100);
    for (uint32_t i = 0; i < 20; i++) {
        trial(&node, true);
        assert_false(gw_node_state_open(&node));
        trial(&node, false);
        assert_false(gw_node_state_open(&node));
    }
}

static void three_faults_or_two_seconds_of_them_take_it_down(void **state)
{
    (void)state;
    struct gw_node_state node = up();
    gw_node_state_fault(&node, T0 + 100);
    gw_node_state_fault(&node, T0 + 200);
    assert_int_equal(node.phase, GW_NODE_SUSPECT);
    gw_node_state_fault(&node, T0 + 300);
    assert_int_equal(node.phase, GW_NODE_DOWN);
    assert_false(gw_node_state_lives(&node));
    node = up();
    gw_node_state_fault(&node, T0 + 100);
    gw_node_state_fault(&node, T0 + 100 + GW_NODE_SILENCE_US);
    assert_int_equal(node.phase, GW_NODE_DOWN);
    node = up();
    for (uint32_t i = 0; i < 10; i++) { /* faults that are not in a row */
        gw_node_state_fault(&node, T0 + 100 + i);
        gw_node_state_right(&node, T0 + 100 + i);
        gw_node_state_right(&node, T0 + 100 + i);
        assert_int_equal(node.phase, GW_NODE_UP);
    }
}

static void a_node_that_is_down_is_tried_half_open_with_growing_pauses(void **state)
{
    (void)state;
    struct gw_node_state node = up();
    for (uint32_t i = 0; i < GW_NODE_FAULTS_DOWN; i++) {
        gw_node_state_fault(&node, T0 + 100);
    }
    uint64_t last_us = T0 + 100, wait_us = GW_NODE_TRIAL_WAIT_US;
    for (uint32_t i = 0; i < 12; i++) {
        uint64_t due_us = gw_node_state_trial_us(&node);
        assert_in_range(due_us - last_us, wait_us / 2, wait_us);
        gw_node_state_try(&node);
        assert_int_equal(node.phase, GW_NODE_TRIAL);
        last_us = due_us;
        gw_node_state_fault(&node, last_us);
        assert_int_equal(node.phase, GW_NODE_DOWN);
        wait_us = 2 * wait_us < GW_NODE_TRIAL_WAIT_US_MAX ? 2 * wait_us : GW_NODE_TRIAL_WAIT_US_MAX;
    }
    assert_int_equal(wait_us, GW_NODE_TRIAL_WAIT_US_MAX);
    trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_TRIAL);
    uint64_t began_us = trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_UP);
    assert_int_equal(node.up_us, began_us + 5); /* it starts slowly again */
    assert_int_equal(node.wait_us, GW_NODE_TRIAL_WAIT_US);
}

static void a_draining_node_lives_but_takes_nothing_new(void **state)
{
    (void)state;
    struct gw_node_state node = up();
    gw_node_state_drains(&node, T0 + 100);
    assert_int_equal(node.phase, GW_NODE_DRAINING);
    assert_false(gw_node_state_open(&node));
    assert_true(gw_node_state_lives(&node));
    trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_DRAINING);
    trial(&node, true);
    assert_int_equal(node.phase, GW_NODE_UP); /* resumed */
}

static void pauses_of_two_workers_differ(void **state)
{
    (void)state;
    struct gw_node_state one, other;
    uint32_t same = 0;
    for (uint64_t i = 0; i < 100; i++) {
        gw_node_state_init(&one, pp_rng_at(1, i), T0);
        gw_node_state_init(&other, pp_rng_at(2, i), T0);
        gw_node_state_fault(&one, T0);
        gw_node_state_fault(&other, T0);
        same += one.trial_us == other.trial_us ? 1 : 0;
    }
    assert_true(same < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_node_is_tried_at_once_and_used_when_it_answers),
        cmocka_unit_test(one_fault_is_a_doubt_that_two_right_answers_end),
        cmocka_unit_test(a_node_in_doubt_is_tried_at_once_and_stays_up_meanwhile),
        cmocka_unit_test(right_and_wrong_in_turn_never_make_it_up),
        cmocka_unit_test(three_faults_or_two_seconds_of_them_take_it_down),
        cmocka_unit_test(a_node_that_is_down_is_tried_half_open_with_growing_pauses),
        cmocka_unit_test(a_draining_node_lives_but_takes_nothing_new),
        cmocka_unit_test(pauses_of_two_workers_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
