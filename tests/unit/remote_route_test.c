/*
 * Spans and ranges: every token and kv head lies in exactly one part, and held prefixes follow.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

#include "gpu-worker/remote/route.h"

static struct gw_route plan(enum gw_shard shard, uint32_t nodes, uint32_t kv_heads,
                            uint64_t expected, uint64_t turn)
{
    struct gw_route route;
    assert_int_equal(gw_route_plan(shard, nodes, kv_heads, expected, turn, &route), PP_OK);
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
        assert_int_equal(route.parts[i].node, i);
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
        assert_int_equal(route.parts[0].node, turn % 3);
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

static void no_nodes_no_heads_or_too_many_are_refused(void **state)
{
    (void)state;
    struct gw_route route;
    assert_int_equal(gw_route_plan(GW_SHARD_TOKENS, 0, 8, 1, 0, &route), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_route_plan(GW_SHARD_TOKENS, GW_NODES_MAX + 1, 8, 1, 0, &route),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_route_plan(GW_SHARD_KV_HEADS, 2, 0, 1, 0, &route), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_route_plan(GW_SHARD_TOKENS, 2, 8, UINT64_MAX, 0, &route),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_route_plan((enum gw_shard)7, 2, 8, 1, 0, &route), PP_INVALID_ARGUMENT);
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
        cmocka_unit_test(no_nodes_no_heads_or_too_many_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
