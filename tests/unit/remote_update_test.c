/*
 * Nodes that join and leave while the worker runs: new ones are used when they have answered, those
 * that left get nothing new, and what lives stays where it is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>

#include "gpu-worker/remote/internal.h"
#include "tests/unit/remote_fake.h"

#define TOKENS     30u
#define SERIES_MAX 256u

static struct pp_stats stats; /* of the one world there is at a time */

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_node_address all[FAKE_NODES];
};

static struct world world_new(uint32_t node_count)
{
    struct world world = {.net = fake_net_new()};
    struct gw_remote_config config;
    fake_remote_config(world.net, FAKE_NODES, GW_SHARD_TOKENS, &config);
    memcpy(world.all, config.nodes, sizeof(world.all));
    config.node_count = node_count;
    assert_int_equal(pp_stats_init(&stats, SERIES_MAX), PP_OK);
    config.stats = &stats;
    assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
    return world;
}

static void world_free(struct world *world)
{
    gw_remote_destroy(world->remote);
    pp_stats_deinit(&stats);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
}

static struct gw_remote_sequence *open_sequence(struct world *world)
{
    struct gw_remote_sequence_config config = fake_sequence_config(TOKENS);
    struct gw_remote_sequence *sequence;
    assert_int_equal(gw_remote_sequence_open(world->remote, &config, &sequence), PP_OK);
    return sequence;
}

static uint32_t parts_open(const struct world *world, uint32_t node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->net->nodes[node].part_count; ++i) {
        count += world->net->nodes[node].parts[i].open ? 1 : 0;
    }
    return count;
}

static void run_until_in_use(struct world *world, uint32_t count)
{
    for (uint32_t i = 0; i < 10000 && gw_remote_nodes_in_use(world->remote) != count; ++i) {
        (void)gw_remote_poll(world->remote, fake_now(world->net) + 10000);
    }
    assert_int_equal(gw_remote_nodes_in_use(world->remote), count);
}

static void a_node_that_joins_is_used_once_it_has_answered(void **state)
{
    (void)state;
    struct world world = world_new(2);
    struct gw_remote_sequence *before = open_sequence(&world);
    world.net->nodes[2].down = true;
    assert_int_equal(gw_remote_update(world.remote, world.all, 3), PP_OK);
    assert_int_equal(gw_remote_nodes_in_use(world.remote), 2);
    for (uint32_t i = 0; i < 200; ++i) {
        (void)gw_remote_poll(world.remote, fake_now(world.net) + 10000);
    }
    assert_int_equal(gw_remote_nodes_in_use(world.remote), 2); /* it does not answer */
    world.net->nodes[2].down = false;
    run_until_in_use(&world, 3);
    struct gw_remote_sequence *after = open_sequence(&world);
    assert_int_equal(parts_open(&world, 0), 2);
    assert_int_equal(parts_open(&world, 2), 1); /* the one before did not move */
    gw_remote_sequence_close(after);
    gw_remote_sequence_close(before);
    world_free(&world);
}

static void a_node_that_leaves_gets_nothing_new_and_keeps_what_lives(void **state)
{
    (void)state;
    static float rows[TOKENS * 4 * FAKE_DIM];
    struct world world = world_new(2);
    struct gw_remote_sequence *before = open_sequence(&world);
    assert_int_equal(gw_remote_update(world.remote, &world.all[1], 1), PP_OK);
    assert_int_equal(gw_remote_nodes_in_use(world.remote), 1);
    struct gw_remote_sequence *after = open_sequence(&world);
    assert_int_equal(parts_open(&world, 0), 1);
    assert_int_equal(parts_open(&world, 1), 2);
    assert_int_equal(gw_remote_append(before, 0, 0, TOKENS, rows, rows, true), PP_OK);
    assert_int_equal(gw_remote_flush(before), PP_OK);
    assert_int_equal(gw_remote_held(before, 0), TOKENS); /* node a stores its share */
    assert_int_equal(gw_remote_update(world.remote, world.all, 2), PP_OK);
    assert_int_equal(gw_remote_nodes_in_use(world.remote), 2); /* in the list again */
    gw_remote_sequence_close(after);
    gw_remote_sequence_close(before);
    world_free(&world);
}

static void a_name_with_another_address_is_another_node(void **state)
{
    (void)state;
    struct world world = world_new(2);
    struct gw_node_address moved[2] = {world.all[0], world.all[1]};
    moved[0].address[0] = '2';
    assert_int_equal(gw_remote_update(world.remote, moved, 2), PP_OK);
    run_until_in_use(&world, 2);
    struct gw_remote_sequence *sequence = open_sequence(&world);
    assert_int_equal(parts_open(&world, 0), 0);
    assert_int_equal(parts_open(&world, 2), 1);
    gw_remote_sequence_close(sequence);
    world_free(&world);
}

static void a_wait_for_some_nodes_leaves_the_others_out_until_they_answer(void **state)
{
    (void)state;
    struct world world = world_new(3);
    world.remote->config.nodes_min = 2;
    world.net->nodes[0].down = world.net->nodes[1].down = true;
    assert_int_equal(gw_remote_ready(world.remote, 500000, NULL, NULL), PP_UNAVAILABLE);
    world.net->nodes[1].down = false;
    assert_int_equal(gw_remote_ready(world.remote, 500000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_nodes_in_use(world.remote), 2);
    world.net->nodes[0].down = false;
    run_until_in_use(&world, 3);
    world_free(&world);
}

static void more_nodes_than_there_is_place_for_are_left_out(void **state)
{
    (void)state;
    static struct gw_node_address many[GW_NODES_MAX + 1];
    struct world world = world_new(2);
    for (uint32_t i = 0; i <= GW_NODES_MAX; ++i) {
        snprintf(many[i].name, sizeof(many[i].name), "node%u", i);
        snprintf(many[i].address, sizeof(many[i].address), "1:%u", i);
    }
    assert_int_equal(gw_remote_update(world.remote, many, GW_NODES_MAX + 1), PP_RESOURCE_EXHAUSTED);
    run_until_in_use(&world, GW_NODES_MAX - 2); /* the first two are not in the list */
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_that_joins_is_used_once_it_has_answered),
        cmocka_unit_test(a_node_that_leaves_gets_nothing_new_and_keeps_what_lives),
        cmocka_unit_test(a_name_with_another_address_is_another_node),
        cmocka_unit_test(a_wait_for_some_nodes_leaves_the_others_out_until_they_answer),
        cmocka_unit_test(more_nodes_than_there_is_place_for_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
