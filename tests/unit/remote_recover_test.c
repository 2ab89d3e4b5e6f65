/*
 * Where a lost part is opened again: not on a node that has just had no room for its rows, or it
 * would be refused there for ever.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/remote/internal.h"
#include "tests/unit/remote_fake.h"

#define TOKENS 30u

static struct fake_world world_new(uint32_t nodes)
{
    struct fake_net *net = fake_net_new();
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(0);
    fake_remote_config(net, nodes, GW_SHARD_TOKENS, &config);
    return fake_world_open(net, &config, &sequence);
}

static enum pp_status hand_over(struct fake_world *world)
{
    static float rows[TOKENS * 4 * FAKE_DIM];
    PP_TRY(gw_remote_append(world->sequence, 0, 0, TOKENS, rows, rows, true));
    return gw_remote_flush(world->sequence);
}

static void refused_rows_go_to_another_node(void **state)
{
    (void)state;
    struct fake_world world = world_new(2);
    uint32_t first = world.sequence->parts[0]->node->index;
    world.net->nodes[first].append_mode = FAKE_MEMORY;
    assert_int_equal(hand_over(&world), PP_MEMORY);
    assert_int_equal(gw_remote_recover(world.sequence), PP_OK);
    assert_int_equal(world.sequence->parts[0]->node->index, 1 - first);
    assert_int_equal(hand_over(&world), PP_OK);
    fake_world_free(&world);
}

static void rows_that_nobody_has_room_for_end_the_sequence(void **state)
{
    (void)state;
    struct fake_world world = world_new(1);
    world.net->nodes[0].append_mode = FAKE_MEMORY;
    assert_int_equal(hand_over(&world), PP_MEMORY);
    assert_int_equal(gw_remote_recover(world.sequence), PP_MEMORY);
    assert_non_null(strstr(gw_remote_error(world.sequence), "no node has room for its part"));
    assert_non_null(strstr(gw_remote_error(world.sequence), "node a"));
    assert_false(gw_remote_recoverable(world.sequence));
    fake_world_free(&world);
}

static void a_node_may_have_room_again_after_a_while(void **state)
{
    (void)state;
    struct fake_world world = world_new(1);
    world.net->nodes[0].append_mode = FAKE_MEMORY;
    assert_int_equal(hand_over(&world), PP_MEMORY);
    world.net->nodes[0].append_mode = FAKE_RIGHT;
    world.net->now_us += 10000000;
    assert_int_equal(gw_remote_recover(world.sequence), PP_OK);
    assert_int_equal(hand_over(&world), PP_OK);
    fake_world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_rows_go_to_another_node),
        cmocka_unit_test(rows_that_nobody_has_room_for_end_the_sequence),
        cmocka_unit_test(a_node_may_have_room_again_after_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
