/*
 * Extents: rows never move, memory is charged before it is used and comes back, and sizes are
 * 64-bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "attn-node/kv/extent.h"

struct node {
    struct pp_limit limit;
    struct an_store store;
    struct an_params *params;
};

static void node_init(struct node *node, uint64_t limit_bytes, uint32_t kv_heads, uint32_t dim)
{
    memset(node, 0, sizeof(*node));
    pp_limit_init(&node->limit, limit_bytes);
    node->store.limit = &node->limit;
    node->store.seal_tokens = 1024;
    node->store.index_tokens_min = 1024;
    const struct pp_estimator exact = {.kind = PP_EXACT};
    assert_int_equal(an_params_new(&node->store, &exact, 1, kv_heads, dim, PP_BF16, &node->params),
                     PP_OK);
}

static void node_deinit(struct node *node)
{
    an_params_release(node->params);
    assert_int_equal(pp_limit_used(&node->limit), 0);
}

static void rows_stay_where_they_are_as_the_extent_fills(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 2, 64);
    struct an_extent *extent;
    assert_int_equal(an_extent_new(node.params, false, &extent), PP_OK);
    uint8_t *first = NULL;
    for (uint32_t rows = 1; rows <= AN_EXTENT_ROWS; rows += 1 + rows / 3) {
        assert_int_equal(an_extent_commit(extent, rows, false), PP_OK);
        uint8_t *row = an_extent_row(extent, 1, rows - 1);
        memset(row, (int)(rows & 0xff), 256);
        first = first == NULL ? row : first;
        assert_int_equal(first[255], 1);
        uint64_t used = 2 * rows * 256ull, charged = 2 * extent->committed_bytes;
        assert_true(charged >= used && charged <= used + used / 8 + (64u << 10));
    }
    assert_int_equal(an_extent_commit(extent, AN_EXTENT_ROWS, false), PP_OK);
    memset(an_extent_row(extent, 1, AN_EXTENT_ROWS - 1), 1, 256);
    an_extent_release(extent);
    node_deinit(&node);
}

static void a_commit_past_the_limit_is_refused_and_charges_nothing(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 256u << 10, 2, 64);
    struct an_extent *extent;
    assert_int_equal(an_extent_new(node.params, false, &extent), PP_OK);
    assert_int_equal(an_extent_commit(extent, 100, false), PP_OK);
    uint64_t used = pp_limit_used(&node.limit);
    assert_int_equal(an_extent_commit(extent, 1000, false), PP_MEMORY);
    assert_int_equal(pp_limit_used(&node.limit), used);
    /* The last rows that do fit are given, without the rest of their granule. */
    assert_int_equal(an_extent_commit(extent, 480, false), PP_OK);
    memset(an_extent_row(extent, 1, 479), 7, 256);
    an_extent_release(extent);
    node_deinit(&node);
}

static void trimming_gives_back_what_is_past_the_filled_rows(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 1, 64);
    struct an_extent *extent;
    assert_int_equal(an_extent_new(node.params, false, &extent), PP_OK);
    assert_int_equal(an_extent_commit(extent, 5000, false), PP_OK);
    memset(an_extent_row(extent, 0, 99), 9, 256);
    memset(an_extent_row(extent, 0, 4000), 9, 256);
    extent->filled = 100;
    an_extent_trim(extent);
    assert_int_equal(extent->committed_bytes, 28672); /* 25,600 in whole pages */
    assert_int_equal(an_extent_row(extent, 0, 99)[0], 9);
    assert_int_equal(an_extent_commit(extent, 5000, false), PP_OK);
    assert_int_equal(an_extent_row(extent, 0, 4000)[0], 0);
    an_extent_release(extent);
    node_deinit(&node);
}

static void
bulk_rows_are_committed_by_whole_huge_pages_and_settling_gives_the_rest_back(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 2, 64);
    struct an_extent *extent;
    assert_int_equal(an_extent_new(node.params, false, &extent), PP_OK);
    for (uint32_t rows = 64; rows <= 20000; rows += 64) {
        assert_int_equal(an_extent_commit(extent, rows, true), PP_OK);
        uint64_t used = rows * 256ull;
        assert_true(extent->committed_bytes >= used);
        assert_true(extent->committed_bytes <= 2 * used + (16u << 10));
        assert_true(used < PP_HUGE_PAGE_BYTES || extent->committed_bytes % PP_HUGE_PAGE_BYTES == 0);
        memset(an_extent_row(extent, 1, rows - 1), (int)(rows & 0xff), 256);
        extent->filled = rows;
    }
    uint64_t charged = pp_limit_used(&node.limit);
    uint64_t used = extent->filled * 256ull;
    an_extent_settle(extent);
    assert_true(extent->committed_bytes >= used && extent->committed_bytes <= used + used / 8);
    assert_true(pp_limit_used(&node.limit) < charged);
    assert_int_equal(an_extent_row(extent, 1, extent->filled - 1)[255], extent->filled & 0xff);
    an_extent_settle(extent);
    assert_int_equal(an_extent_commit(extent, 40000, true), PP_OK);
    assert_int_equal(an_extent_row(extent, 1, 39999)[0], 0);
    an_extent_release(extent);
    node_deinit(&node);
}

static void the_last_reference_frees_the_rows(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 1, 64);
    struct an_extent *extent;
    assert_int_equal(an_extent_new(node.params, false, &extent), PP_OK);
    an_extent_acquire(extent);
    assert_int_equal(an_extent_commit(extent, 10, false), PP_OK);
    an_extent_release(extent);
    memset(an_extent_row(extent, 0, 9), 1, 256);
    an_extent_release(extent);
    an_extent_release(NULL);
    node_deinit(&node);
}

/* 80 kv heads of dim 256: the last head's rows lie past 4 GiB. */
static void rows_past_2_and_4_gib_are_rows_of_their_own(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 80, 256);
    struct an_extent *extent;
    assert_int_equal(an_extent_new(node.params, false, &extent), PP_OK);
    assert_true(an_extent_row(extent, 79, 0) - extent->base > (4ll << 30));
    assert_int_equal(an_extent_commit(extent, 16, false), PP_OK);
    for (uint32_t head = 0; head < 80; head++) {
        for (uint32_t row = 0; row < 16; row++) {
            memset(an_extent_row(extent, head, row), (int)(head + row), 1024);
        }
    }
    for (uint32_t head = 0; head < 80; head++) {
        struct an_rows rows = an_extent_rows(extent, node.params, head, 15);
        assert_int_equal(rows.base[0], head + 15);
        assert_int_equal(rows.base[rows.v_offset + 511], head + 15);
    }
    an_extent_release(extent);
    node_deinit(&node);
}

/* The largest indexes there are: of one kv head a few dozen MiB, of 64 past 4 GiB. */
static void indexes_of_64_kv_heads_pass_4_gib_and_are_counted_whole(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 1, 64);
    const struct pp_estimator largest = {
        .kind = PP_LSH, .k = PP_LSH_K_MAX, .l = PP_LSH_L_MAX, .t = 2};
    struct an_params *params[2];
    assert_int_equal(an_params_new(&node.store, &largest, 1, 1, 256, PP_BF16, &params[0]), PP_OK);
    assert_int_equal(an_params_new(&node.store, &largest, 1, 64, 256, PP_BF16, &params[1]), PP_OK);
    uint64_t one = an_params_index_bytes(params[0], PP_SEGMENT_TOKENS_MAX);
    uint64_t ids = 2ull * PP_LSH_L_MAX * PP_SEGMENT_TOKENS_MAX;
    uint64_t offsets = 2ull * PP_LSH_L_MAX << PP_LSH_K_MAX;
    assert_true(one >= ids + offsets && one < ids + offsets + (1u << 20));
    assert_true(an_params_index_bytes(params[1], PP_SEGMENT_TOKENS_MAX) == 64 * one);
    assert_true(64 * one > 8ull << 30);
    an_params_release(params[0]);
    an_params_release(params[1]);
    node_deinit(&node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_stay_where_they_are_as_the_extent_fills),
        cmocka_unit_test(a_commit_past_the_limit_is_refused_and_charges_nothing),
        cmocka_unit_test(trimming_gives_back_what_is_past_the_filled_rows),
        cmocka_unit_test(
            bulk_rows_are_committed_by_whole_huge_pages_and_settling_gives_the_rest_back),
        cmocka_unit_test(the_last_reference_frees_the_rows),
        cmocka_unit_test(rows_past_2_and_4_gib_are_rows_of_their_own),
        cmocka_unit_test(indexes_of_64_kv_heads_pass_4_gib_and_are_counted_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
