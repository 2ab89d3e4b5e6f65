/*
 * Growth goes where there is room: parts end on nodes that run short and go on elsewhere, whether
 * the nodes said so before or refused rows; what they hold stays; only when nobody has room is
 * there an error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/remote/internal.h"
#include "tests/unit/remote_fake.h"

#define EXPECTED 120u
#define BATCH    64u
#define Q_HEADS  8u

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
    uint64_t handed;
};

static float rows[BATCH * 4 * FAKE_DIM];

/* Nodes with room for so many tokens, which they say or do not. */
static struct world world_new(enum gw_shard shard, const uint64_t tokens[FAKE_NODES], bool said)
{
    struct world world = {.net = fake_net_new()};
    struct gw_remote_config config;
    fake_remote_config(world.net, FAKE_NODES, shard, &config);
    for (uint32_t i = 0; i < FAKE_NODES; ++i) {
        world.net->nodes[i].rows_max = tokens[i] * FAKE_LAYERS;
        world.net->nodes[i].memory_bytes = said ? 1u << 30 : 0;
    }
    struct gw_remote_sequence_config sequence = fake_sequence_config(EXPECTED);
    assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
    assert_int_equal(gw_remote_ready(world.remote, 1000000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world.remote, &sequence, &world.sequence), PP_OK);
    return world;
}

static void world_free(struct world *world)
{
    gw_remote_sequence_close(world->sequence);
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
}

static enum pp_status hand_over(struct world *world)
{
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        uint64_t begin = gw_remote_lacking(world->sequence, layer).begin, end = world->handed;
        while (begin < end + BATCH) {
            uint64_t left = end + BATCH - begin;
            uint32_t count = left < BATCH ? (uint32_t)left : BATCH;
            PP_TRY(gw_remote_append(world->sequence, layer, begin, count, rows, rows, false));
            begin += count;
        }
    }
    return gw_remote_flush(world->sequence);
}

/* A batch of tokens leaves, as behind a step; what was refused is handed over again. */
static enum pp_status grow_once(struct world *world)
{
    enum pp_status status;
    while ((status = hand_over(world)) != PP_OK) {
        if (!gw_remote_recoverable(world->sequence)) {
            return status;
        }
        PP_TRY(gw_remote_recover(world->sequence));
    }
    world->handed += BATCH;
    gw_remote_maintain(world->sequence);
    return PP_OK;
}

/* Each token once: the fake's lse of n tokens is log n. */
static void check_held(struct world *world)
{
    float q[Q_HEADS * FAKE_DIM] = {0}, o[Q_HEADS * FAKE_DIM], lse[Q_HEADS];
    struct gw_remote_answer answer = {.o = o, .lse = lse};
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        struct gw_remote_attend attend = {
            .layer = layer, .held_tokens = world->handed, .q_rows = 1, .q = q};
        assert_int_equal(gw_remote_held(world->sequence, layer), world->handed);
        assert_int_equal(gw_remote_attend_begin(world->sequence, &attend), PP_OK);
        assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_OK);
        for (uint32_t head = 0; head < Q_HEADS; ++head) {
            assert_float_equal(expf(lse[head]), (float)world->handed, 0.05f);
        }
    }
}

static uint64_t held_on(const struct world *world, uint32_t node)
{
    uint64_t tokens[GW_NODES_MAX];
    gw_remote_tokens_held(world->sequence, tokens);
    return tokens[node];
}

static void a_part_ends_where_its_node_runs_short_and_goes_on_elsewhere(void **state)
{
    (void)state;
    struct world world = world_new(GW_SHARD_TOKENS, (const uint64_t[]){1400, 1400, 700}, true);
    const struct gw_route *route = &world.sequence->route;
    uint32_t last = route->parts[2].nodes[0], parts = 3;
    uint64_t epoch = route->epoch, at_last = 0;
    for (uint32_t i = 0; i < 25; ++i) {
        assert_int_equal(grow_once(&world), PP_OK);
        if (route->part_count > parts) { /* the next batch goes there, what is there stays */
            assert_int_equal(route->part_count, ++parts);
            assert_int_equal(route->parts[parts - 1].token_begin, world.handed);
            assert_true(route->epoch > epoch);
            epoch = route->epoch;
            at_last = at_last == 0 ? held_on(&world, last) : at_last;
        }
        check_held(&world);
    }
    assert_true(parts > 3);
    assert_int_equal(world.net->nodes[0].closes + world.net->nodes[1].closes, 0);
    assert_true(at_last > 0 && held_on(&world, last) >= at_last);
    world_free(&world);
}

static void a_span_behind_the_tokens_that_are_left_goes_on_elsewhere_whole(void **state)
{
    (void)state;
    struct world world = world_new(GW_SHARD_TOKENS, (const uint64_t[]){1400, 1400, 1400}, true);
    const struct gw_route *route = &world.sequence->route;
    struct gw_node *last = &world.remote->nodes[route->parts[2].nodes[0]];
    assert_int_equal(grow_once(&world), PP_OK);
    assert_int_equal(grow_once(&world), PP_OK);
    assert_true(route->parts[2].token_begin > 20 && world.handed > route->parts[2].token_begin);
    assert_int_equal(gw_remote_truncate(world.sequence, 20), PP_OK);
    world.handed = 20;
    atomic_store(&last->free_bytes, 0);
    gw_remote_maintain(world.sequence);
    assert_int_equal(route->part_count, 4);
    for (uint32_t i = 0; i < 4; ++i) {
        check_held(&world);
        assert_int_equal(grow_once(&world), PP_OK);
    }
    assert_int_equal(route->parts[3].token_begin, route->parts[2].token_begin);
    assert_int_equal(route->parts[2].token_end, route->parts[2].token_begin);
    world_free(&world);
}

static void a_node_that_refuses_rows_keeps_what_it_has(void **state)
{
    (void)state;
    struct world world = world_new(GW_SHARD_TOKENS, (const uint64_t[]){600, 600, 300}, false);
    for (uint32_t i = 0; i < 20; ++i) { /* of the 1,500 that they have room for together */
        assert_int_equal(grow_once(&world), PP_OK);
        check_held(&world);
    }
    for (uint32_t i = 0; i < FAKE_NODES; ++i) {
        assert_int_equal(world.net->nodes[i].closes, 0);
        assert_true(held_on(&world, i) > 100);
    }
    world_free(&world);
}

static void a_range_of_heads_ends_by_itself(void **state)
{
    (void)state;
    struct world world = world_new(GW_SHARD_KV_HEADS, (const uint64_t[]){2000, 600, 2000}, true);
    const struct gw_route *route = &world.sequence->route;
    uint32_t short_of = 0;
    for (uint32_t i = 0; i < 14; ++i) {
        assert_int_equal(grow_once(&world), PP_OK);
        check_held(&world);
    }
    for (uint32_t i = 0; i < route->part_count; ++i) {
        short_of += route->parts[i].token_end != UINT64_MAX ? 1 : 0;
    }
    assert_true(short_of >= 1);
    assert_int_equal(route->part_count, 3 + short_of);
    world_free(&world);
}

static void when_no_node_has_room_the_bytes_that_lack_are_named(void **state)
{
    (void)state;
    struct world world = world_new(GW_SHARD_TOKENS, (const uint64_t[]){400, 400, 400}, true);
    enum pp_status status = PP_OK;
    while (status == PP_OK && world.handed < 2000) {
        status = grow_once(&world);
    }
    assert_int_equal(status, PP_MEMORY);
    assert_in_range(world.handed, 1200 - 3 * BATCH, 1200); /* nearly all there was */
    if (strstr(gw_remote_error(world.sequence), "bytes lack") == NULL) {
        fail_msg("%s", gw_remote_error(world.sequence));
    }
    assert_false(gw_remote_recoverable(world.sequence));
    world_free(&world);
}

static void a_lost_span_that_fits_no_node_is_cut(void **state)
{
    (void)state;
    struct world world = world_new(GW_SHARD_TOKENS, (const uint64_t[]){300, 300, 2000}, true);
    for (uint32_t i = 0; i < 9; ++i) {
        assert_int_equal(grow_once(&world), PP_OK);
    }
    uint32_t most = 0;
    for (uint32_t i = 0; i < FAKE_NODES; ++i) {
        most = held_on(&world, i) > held_on(&world, most) ? i : most;
    }
    assert_true(held_on(&world, most) > 300);
    world.net->nodes[most].down = true;
    fake_end(world.remote->nodes[most].attend_call, PP_UNAVAILABLE, "reset");
    fake_end(world.remote->nodes[most].append_call, PP_UNAVAILABLE, "reset");
    enum pp_status status = grow_once(&world); /* 640 tokens in two nodes that take 600 */
    assert_int_equal(status, PP_MEMORY);
    assert_int_not_equal(world.sequence->route.part_count, 3);
    world_free(&world);
    world = world_new(GW_SHARD_TOKENS, (const uint64_t[]){500, 500, 2000}, true);
    for (uint32_t i = 0; i < 9; ++i) {
        assert_int_equal(grow_once(&world), PP_OK);
    }
    world.net->nodes[2].down = true;
    fake_end(world.remote->nodes[2].attend_call, PP_UNAVAILABLE, "reset");
    fake_end(world.remote->nodes[2].append_call, PP_UNAVAILABLE, "reset");
    assert_int_equal(grow_once(&world), PP_OK);
    check_held(&world);
    assert_int_equal(held_on(&world, 2), 0);
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_ends_where_its_node_runs_short_and_goes_on_elsewhere),
        cmocka_unit_test(a_span_behind_the_tokens_that_are_left_goes_on_elsewhere_whole),
        cmocka_unit_test(a_node_that_refuses_rows_keeps_what_it_has),
        cmocka_unit_test(a_range_of_heads_ends_by_itself),
        cmocka_unit_test(when_no_node_has_room_the_bytes_that_lack_are_named),
        cmocka_unit_test(a_lost_span_that_fits_no_node_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
