/*
 * Spans and ranges: every token and kv head lies in exactly one part, and held prefixes follow.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

#include "gpu-worker/remote/route.h"

static const uint32_t numbers[GW_NODES_MAX + 1] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static struct gw_route plan(enum gw_shard shard, uint32_t nodes, uint32_t kv_heads,
                            uint64_t expected, uint64_t turn)
{
    struct gw_route route;
    const struct gw_route_plan plan = {.shard = shard,
                                       .nodes = numbers,
                                       .node_count = nodes,
                                       .replicas = 1,
                                       .kv_heads = kv_heads,
                                       .tokens_expected = expected,
                                       .turn = turn};
    assert_int_equal(gw_route_make(&plan, &route), PP_OK);
    assert_int_equal(route.epoch, 1);
    return route;
}

static void every_token_lies_in_exactly_one_span(void **state)
{
    (void)state;
    static const uint64_t expected[] = {1, 2, 3, 7, 64, 1000, 7345};
    for (uint32_t nodes = 1; nodes <= 5; ++nodes) {
        for (size_t e = 0; e < sizeof(expected) / sizeof(expected[0]); ++e) {
            struct gw_route route = plan(GW_SHARD_TOKENS, nodes, 8, expected[e], 0);
            assert_int_equal(route.part_count, nodes);
            for (uint64_t tokens = 0; tokens < expected[e] + 300; ++tokens) {
                uint64_t sum = 0;
                uint32_t grown = 0;
                for (uint32_t i = 0; i < nodes; ++i) {
                    uint64_t before = gw_route_part_tokens(&route, i, tokens);
                    sum += before;
                    grown += gw_route_part_tokens(&route, i, tokens + 1) != before;
                }
                assert_int_equal(sum, tokens);
                assert_int_equal(grown, 1);
            }
        }
    }
}

static void spans_are_even_and_growth_goes_to_the_last(void **state)
{
    (void)state;
    struct gw_route route = plan(GW_SHARD_TOKENS, 3, 8, 3000, 5);
    for (uint32_t i = 0; i < 3; ++i) {
        assert_int_equal(route.parts[i].nodes[0], i);
        assert_int_equal(gw_route_part_tokens(&route, i, 3000), 1000);
    }
    assert_int_equal(gw_route_part_tokens(&route, 0, 100000), 1000);
    assert_int_equal(gw_route_part_tokens(&route, 2, 100000), 98000);
}

static void unknown_length_takes_one_node_in_turn(void **state)
{
    (void)state;
    for (uint64_t turn = 0; turn < 7; ++turn) {
        struct gw_route route = plan(GW_SHARD_TOKENS, 3, 8, 0, turn);
        assert_int_equal(route.part_count, 1);
        assert_int_equal(route.parts[0].nodes[0], turn % 3);
        assert_int_equal(gw_route_part_tokens(&route, 0, 12345), 12345);
    }
}

static void every_kv_head_lies_in_exactly_one_range(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 9; ++nodes) {
        for (uint32_t kv_heads = 1; kv_heads <= 33; ++kv_heads) {
            struct gw_route route = plan(GW_SHARD_KV_HEADS, nodes, kv_heads, 0, 0);
            assert_int_equal(route.part_count, nodes < kv_heads ? nodes : kv_heads);
            uint32_t next = 0;
            for (uint32_t i = 0; i < route.part_count; ++i) {
                assert_int_equal(route.parts[i].kv_head_begin, next);
                assert_in_range(route.parts[i].kv_head_count, kv_heads / route.part_count,
                                kv_heads / route.part_count + 1);
                assert_int_equal(gw_route_part_tokens(&route, i, 77), 77);
                next += route.parts[i].kv_head_count;
            }
            assert_int_equal(next, kv_heads);
        }
    }
}

static void held_is_the_prefix_without_a_hole(void **state)
{
    (void)state;
    struct gw_route route = plan(GW_SHARD_TOKENS, 3, 8, 300, 0);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){0, 100, 50}), 0);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){99, 100, 50}), 99);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){100, 100, 50}), 250);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){100, 3, 50}), 103);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){100, 100, 5000}), 5200);
}

static void held_of_kv_head_shards_is_the_least(void **state)
{
    (void)state;
    struct gw_route route = plan(GW_SHARD_KV_HEADS, 3, 8, 0, 0);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){70, 64, 128}), 64);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){70, 64, 0}), 0);
}

static void both_is_a_grid_in_which_every_token_and_head_lies_once(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 12; ++nodes) {
        for (uint32_t kv_heads = 1; kv_heads <= 5; ++kv_heads) {
            struct gw_route route = plan(GW_SHARD_BOTH, nodes, kv_heads, 1000, 0);
            for (uint64_t token = 0; token < 1200; token += 7) {
                for (uint32_t head = 0; head < kv_heads; ++head) {
                    uint32_t found = 0;
                    for (uint32_t i = 0; i < route.part_count; ++i) {
                        const struct gw_route_part *part = &route.parts[i];
                        found += token >= part->token_begin && token < part->token_end &&
                                 head >= part->kv_head_begin &&
                                 head - part->kv_head_begin < part->kv_head_count;
                    }
                    assert_int_equal(found, 1);
                }
            }
        }
    }
    assert_int_equal(plan(GW_SHARD_BOTH, 4, 3, 1000, 0).part_count, 4);
    assert_int_equal(plan(GW_SHARD_BOTH, 6, 3, 1000, 0).parts[1].token_end, 334);
    assert_int_equal(plan(GW_SHARD_BOTH, 6, 3, 1000, 0).parts[1].kv_head_begin, 1);
    struct gw_route route = plan(GW_SHARD_BOTH, 4, 4, 100, 0);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){50, 50, 70, 30}), 80);
    assert_int_equal(gw_route_held(&route, (uint64_t[]){50, 49, 70, 30}), 49);
}

static void replicas_lie_on_different_nodes_and_nodes_hold_as_many(void **state)
{
    (void)state;
    static const uint32_t some[] = {7, 3, 5};
    for (uint32_t replicas = 1; replicas <= GW_REPLICAS_MAX; ++replicas) {
        struct gw_route route;
        struct gw_route_plan plan = {.shard = GW_SHARD_TOKENS,
                                     .nodes = some,
                                     .node_count = 3,
                                     .replicas = replicas,
                                     .kv_heads = 2,
                                     .tokens_expected = 90};
        assert_int_equal(gw_route_make(&plan, &route), PP_OK);
        uint32_t held[8] = {0}, each = replicas < 3 ? replicas : 3;
        for (uint32_t i = 0; i < 3; ++i) {
            assert_int_equal(route.parts[i].node_count, each);
            assert_int_equal(route.parts[i].nodes[0], some[i]);
            for (uint32_t j = 0; j < each; ++j) {
                held[route.parts[i].nodes[j]]++;
                assert_true(j == 0 || route.parts[i].nodes[j] != route.parts[i].nodes[0]);
            }
        }
        assert_true(held[7] == each && held[3] == each && held[5] == each);
    }
}

static void every_change_raises_the_epoch(void **state)
{
    (void)state;
    struct gw_route route = plan(GW_SHARD_TOKENS, 3, 8, 300, 0);
    gw_route_leave(&route, 1, 2); /* it is not there */
    assert_int_equal(route.epoch, 1);
    gw_route_leave(&route, 1, 1);
    assert_int_equal(route.epoch, 2);
    assert_int_equal(route.parts[1].node_count, 0);
    for (uint32_t i = 0; i < GW_REPLICAS_MAX; ++i) {
        assert_int_equal(gw_route_join(&route, 1, 10 + i), PP_OK);
    }
    assert_int_equal(route.epoch, 2 + GW_REPLICAS_MAX);
    assert_int_equal(gw_route_join(&route, 1, 30), PP_RESOURCE_EXHAUSTED);
    gw_route_leave(&route, 1, 11);
    assert_int_equal(route.parts[1].nodes[1], 12);
}

static void a_cut_part_ends_there_and_another_begins(void **state)
{
    (void)state;
    struct gw_route route = plan(GW_SHARD_BOTH, 4, 8, 300, 0);
    assert_int_equal(route.part_count, 4);
    assert_int_equal(gw_route_cut(&route, 2, 400), 4);
    assert_int_equal(route.part_count, 5);
    assert_int_equal(route.epoch, 2);
    assert_int_equal(route.parts[4].kv_head_begin, route.parts[2].kv_head_begin);
    assert_int_equal(route.parts[4].kv_head_count, route.parts[2].kv_head_count);
    assert_int_equal(route.parts[4].token_end, UINT64_MAX);
    assert_int_equal(gw_route_part_tokens(&route, 2, 1000), 250);
    assert_int_equal(gw_route_part_tokens(&route, 4, 1000), 600);
    assert_int_equal(gw_route_part_tokens(&route, 3, 1000), 850); /* the other range goes on */
    const uint64_t at_cut[] = {150, 150, 250, 400, 0}, behind[] = {150, 150, 250, 400, 30};
    assert_int_equal(gw_route_held(&route, at_cut), 400);
    assert_int_equal(gw_route_held(&route, behind), 430);
}

static void spans_by_shares_follow_each_other(void **state)
{
    (void)state;
    const uint64_t shares[] = {100, 7, 200};
    struct gw_route route;
    const struct gw_route_plan uneven = {.nodes = numbers,
                                         .node_count = 3,
                                         .replicas = 1,
                                         .kv_heads = 8,
                                         .tokens_expected = 307,
                                         .shares = shares};
    assert_int_equal(gw_route_make(&uneven, &route), PP_OK);
    assert_int_equal(route.part_count, 3);
    assert_int_equal(gw_route_part_tokens(&route, 0, 307), 100);
    assert_int_equal(gw_route_part_tokens(&route, 1, 307), 7);
    assert_int_equal(gw_route_part_tokens(&route, 2, 400), 293); /* it grows */
}

static void no_nodes_no_heads_or_too_many_are_refused(void **state)
{
    (void)state;
    struct gw_route route;
    const struct gw_route_plan right = {
        .nodes = numbers, .node_count = 2, .replicas = 1, .kv_heads = 8, .tokens_expected = 1};
    struct gw_route_plan wrong[7];
    for (size_t i = 0; i < 7; ++i) {
        wrong[i] = right;
    }
    wrong[0].node_count = 0;
    wrong[1].node_count = GW_NODES_MAX + 1;
    wrong[2].kv_heads = 0;
    wrong[3].tokens_expected = UINT64_MAX;
    wrong[4].shard = (enum gw_shard)7;
    wrong[5].replicas = 0;
    wrong[6].replicas = GW_REPLICAS_MAX + 1;
    assert_int_equal(gw_route_make(&right, &route), PP_OK);
    for (size_t i = 0; i < 7; ++i) {
        assert_int_equal(gw_route_make(&wrong[i], &route), PP_INVALID_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_lies_in_exactly_one_span),
        cmocka_unit_test(spans_are_even_and_growth_goes_to_the_last),
        cmocka_unit_test(unknown_length_takes_one_node_in_turn),
        cmocka_unit_test(every_kv_head_lies_in_exactly_one_range),
        cmocka_unit_test(held_is_the_prefix_without_a_hole),
        cmocka_unit_test(held_of_kv_head_shards_is_the_least),
        cmocka_unit_test(both_is_a_grid_in_which_every_token_and_head_lies_once),
        cmocka_unit_test(replicas_lie_on_different_nodes_and_nodes_hold_as_many),
        cmocka_unit_test(every_change_raises_the_epoch),
        cmocka_unit_test(a_cut_part_ends_there_and_another_begins),
        cmocka_unit_test(spans_by_shares_follow_each_other),
        cmocka_unit_test(no_nodes_no_heads_or_too_many_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
