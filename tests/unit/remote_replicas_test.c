/*
 * Parts that two nodes hold: a node that is known to be away is left by all of them at once, also
 * by those that nobody waits for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/remote/internal.h"
#include "tests/unit/remote_fake.h"

#define TOKENS 30u

static struct fake_world world_new(void)
{
    struct fake_net *net = fake_net_new();
    struct gw_remote_config config;
    fake_remote_config(net, FAKE_NODES, GW_SHARD_TOKENS, &config);
    config.replicas = 2;
    struct gw_remote_sequence_config sequence = fake_sequence_config(TOKENS);
    return fake_world_open(net, &config, &sequence);
}

/* Members of all sets on the node. */
static uint32_t members_on(const struct fake_world *world, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->sequence->route.part_count; ++i) {
        const struct gw_set *set = &world->sequence->sets[i];
        for (uint32_t j = 0; j < set->member_count; ++j) {
            count += set->members[j]->node->index == node ? 1 : 0;
        }
    }
    return count;
}

static void poll_until(const struct fake_world *world, uint32_t node, uint32_t members)
{
    for (uint32_t i = 0; i < 10000 && members_on(world, node) != members; ++i) {
        (void)gw_remote_poll(world->remote, fake_now(world->net) + 10000);
    }
    assert_int_equal(members_on(world, node), members);
}

/* The connection goes, and nobody answers at the address. */
static void kill_node(struct fake_world *world, uint32_t node)
{
    world->net->nodes[node].down = true;
    fake_end(world->remote->nodes[node].attend_call, PP_UNAVAILABLE, "reset");
    fake_end(world->remote->nodes[node].append_call, PP_UNAVAILABLE, "reset");
}

static void a_node_that_dies_is_left_by_parts_that_are_not_asked(void **state)
{
    (void)state;
    struct fake_world world = world_new();
    assert_int_equal(members_on(&world, 1), 2);
    uint64_t begun_us = fake_now(world.net);
    kill_node(&world, 1);
    poll_until(&world, 1, 0);
    assert_in_range(fake_now(world.net) - begun_us, 0, 500000); /* not at the end of its lease */
    assert_int_equal(members_on(&world, 0) + members_on(&world, 2), 4);
    assert_int_equal(gw_remote_nodes_in_use(world.remote), 2);
    fake_world_free(&world);
}

static void the_last_member_is_kept_until_somebody_needs_it(void **state)
{
    (void)state;
    static float rows[TOKENS * 4 * FAKE_DIM];
    struct fake_world world = world_new();
    kill_node(&world, 1);
    poll_until(&world, 1, 0);
    kill_node(&world, 2);
    poll_until(&world, 2, 1); /* the part that both of them held */
    assert_int_equal(gw_remote_append(world.sequence, 0, 0, TOKENS, rows, rows, true), PP_OK);
    assert_int_not_equal(gw_remote_flush(world.sequence), PP_OK);
    assert_true(gw_remote_recoverable(world.sequence));
    fake_world_free(&world);
}

static void a_stream_that_ends_on_a_node_that_answers_costs_nothing(void **state)
{
    (void)state;
    struct fake_world world = world_new();
    fake_end(world.remote->nodes[1].attend_call, PP_UNAVAILABLE, "reset");
    fake_end(world.remote->nodes[1].append_call, PP_UNAVAILABLE, "reset");
    for (uint32_t i = 0; i < 200; ++i) {
        (void)gw_remote_poll(world.remote, fake_now(world.net) + 10000);
        assert_int_equal(gw_remote_nodes_in_use(world.remote), FAKE_NODES);
    }
    assert_int_equal(members_on(&world, 1), 2);
    fake_world_free(&world);
}

/* Both drain by the time the copy is whole: somebody has to answer for the part. */
static void a_draining_node_is_not_left_for_one_that_drains_too(void **state)
{
    (void)state;
    struct fake_world world = {.net = fake_net_new()};
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(0); /* one part */
    fake_remote_config(world.net, 2, GW_SHARD_TOKENS, &config);
    assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world.remote, &sequence, &world.sequence), PP_OK);
    uint32_t first = world.sequence->parts[0]->node->index;
    atomic_store(&world.remote->nodes[first].draining, true);
    gw_remote_maintain(world.sequence);
    assert_int_equal(world.net->nodes[1 - first].part_count, 1); /* the copy is begun */
    atomic_store(&world.remote->nodes[1 - first].draining, true);
    for (uint32_t i = 0; i < 100 && world.remote->copied == 0; ++i) {
        gw_remote_maintain(world.sequence);
    }
    assert_int_equal(world.remote->copied, 1);
    assert_int_equal(world.sequence->sets[0].member_count, 2);
    assert_int_equal(world.net->nodes[first].closes, 0);
    fake_world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_that_dies_is_left_by_parts_that_are_not_asked),
        cmocka_unit_test(the_last_member_is_kept_until_somebody_needs_it),
        cmocka_unit_test(a_stream_that_ends_on_a_node_that_answers_costs_nothing),
        cmocka_unit_test(a_draining_node_is_not_left_for_one_that_drains_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
