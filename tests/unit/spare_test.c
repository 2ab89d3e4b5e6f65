/*
 * Spare memory: freed rows' pages serve the next rows of their layout, never pass their bound or
 * the limit, come back when asked for or when nobody wants them, and show nobody what lay in them.
 */
#include "tests/unit/exec_fixture.h"

#include <stdio.h>
#include <unistd.h>

#include "attn-node/exec/exec_internal.h"
#include "attn-node/kv/extent.h"

#define HUGE  PP_HUGE_PAGE_BYTES
#define HEADS 2u
#define ROW   256u /* bytes, at dim 64 in bf16 */
#define ROWS  (3u * (uint32_t)(HUGE / ROW))

struct node {
    struct pp_limit limit;
    struct an_store store;
};

static void node_init(struct node *node, uint64_t limit_bytes, uint64_t spare_bytes)
{
    memset(node, 0, sizeof(*node));
    pp_limit_init(&node->limit, limit_bytes);
    node->store.limit = &node->limit;
    node->store.hugepages = PP_HUGEPAGES_TRY;
    an_spares_init(&node->store, spare_bytes);
}

static uint64_t spare_bytes(const struct node *node)
{
    return node->limit.used_by_kind[PP_MEMORY_SPARE];
}

static void node_deinit(struct node *node)
{
    assert_int_equal(pp_limit_used(&node->limit), 0);
    an_spares_deinit(&node->store);
    assert_int_equal(node->limit.taken, 0);
    assert_null(node->store.spares.oldest);
    assert_null(node->store.spares.newest);
}

static struct an_params *params_new(struct node *node, uint32_t dim, enum pp_dtype dtype)
{
    const struct pp_estimator exact = {.kind = PP_EXACT};
    struct an_params *params;
    assert_int_equal(an_params_new(&node->store, &exact, 1, HEADS, dim, dtype, &params), PP_OK);
    return params;
}

/* A bulk extent with `rows` rows of `byte`. */
static struct an_extent *filled(const struct an_params *params, uint32_t rows, int byte)
{
    struct an_extent *extent;
    assert_int_equal(an_extent_new(params, true, &extent), PP_OK);
    assert_int_equal(an_extent_commit(extent, rows, true), PP_OK);
    for (uint32_t head = 0; head < HEADS; head++) {
        memset(an_extent_row(extent, head, 0), byte, rows * params->row_bytes);
    }
    extent->filled = rows;
    return extent;
}

static void freed_memory_is_spare_and_serves_the_next_rows_of_its_layout(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 64 * HUGE, 8 * HUGE);
    struct an_params *params = params_new(&node, 64, PP_BF16);
    uint64_t empty = pp_limit_used(&node.limit);
    struct an_extent *extent = filled(params, ROWS, 7);
    const uint8_t *base = extent->base;
    an_extent_release(extent);
    assert_int_equal(pp_limit_used(&node.limit), empty);
    assert_int_equal(spare_bytes(&node), 3 * HUGE * HEADS + sizeof(*extent));

    struct an_extent *small;
    assert_int_equal(an_extent_new(params, false, &small), PP_OK); /* not for a few rows */
    assert_ptr_not_equal(small->base, base);
    extent = filled(params, 100, 8);
    assert_ptr_equal(extent->base, base);
    uint64_t charged = HEADS * extent->committed_bytes;
    assert_int_equal(pp_limit_used(&node.limit), empty + charged + 2 * sizeof(*extent));
    assert_int_equal(spare_bytes(&node), 3 * HUGE * HEADS - charged);
    assert_int_equal(an_extent_row(extent, 1, 99)[ROW - 1], 8);
    assert_int_equal(an_extent_row(extent, 1, ROWS - 1)[0], 7); /* the page itself, not a new one */
    assert_int_equal(an_extent_commit(extent, ROWS + 1, true), PP_OK);
    assert_int_equal(spare_bytes(&node), 0);
    assert_int_equal(an_extent_row(extent, 1, ROWS)[0], 0);
    an_extent_release(extent);
    an_extent_release(small);
    an_params_release(params);
    node_deinit(&node);
}

static void rows_of_another_layout_get_memory_of_their_own(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 64 * HUGE, 16 * HUGE);
    struct an_params *params = params_new(&node, 64, PP_BF16);
    struct an_extent *extent = filled(params, ROWS, 7);
    const uint8_t *base = extent->base;
    an_extent_release(extent);
    static const struct {
        uint32_t dim;
        enum pp_dtype dtype;
    } others[] = {{64, PP_F16}, {32, PP_F32}, {56, PP_BF16}, {128, PP_BF16}};
    for (uint32_t i = 0; i < 4; i++) {
        struct an_params *other = params_new(&node, others[i].dim, others[i].dtype);
        struct an_extent *own;
        assert_int_equal(an_extent_new(other, true, &own), PP_OK);
        assert_ptr_not_equal(own->base, base);
        assert_int_equal(an_extent_commit(own, 100, true), PP_OK);
        assert_int_equal(an_extent_row(own, 1, 99)[0], 0);
        an_extent_release(own);
        an_params_release(other);
    }
    an_params_release(params);
    node_deinit(&node);
}

static void a_reservation_that_would_be_refused_takes_spare_memory_back(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 16 * HUGE, 16 * HUGE);
    struct an_params *params = params_new(&node, 64, PP_BF16);
    an_extent_release(filled(params, ROWS, 7));
    struct an_extent *extent = filled(params, 100, 8); /* live, with spare pages past its rows */
    uint64_t room = node.limit.bytes_max - pp_limit_used(&node.limit);
    assert_int_equal(pp_limit_reserve(&node.limit, PP_MEMORY_INDEX, room + 1), PP_MEMORY);
    assert_int_equal(spare_bytes(&node), 3 * HUGE * HEADS - HEADS * extent->committed_bytes);
    assert_int_equal(pp_limit_reserve(&node.limit, PP_MEMORY_INDEX, room), PP_OK);
    assert_int_equal(spare_bytes(&node), 0);
    assert_int_equal(node.limit.taken, node.limit.bytes_max);
    assert_int_equal(an_extent_row(extent, 1, 99)[0], 8);
    assert_int_equal(an_extent_commit(extent, ROWS, true), PP_MEMORY);
    pp_limit_release(&node.limit, PP_MEMORY_INDEX, room);
    assert_int_equal(an_extent_commit(extent, ROWS, true), PP_OK);
    assert_int_equal(an_extent_row(extent, 1, ROWS - 1)[0], 0); /* a new page */
    an_extent_release(extent);
    an_params_release(params);
    node_deinit(&node);
}

static void a_commit_that_is_refused_leaves_spare_pages_spare(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 8 * HUGE, 8 * HUGE);
    struct an_params *params = params_new(&node, 64, PP_BF16);
    an_extent_release(filled(params, ROWS, 7));
    struct an_extent *extent = filled(params, 100, 8);
    uint64_t used = pp_limit_used(&node.limit), spare = spare_bytes(&node);
    uint64_t committed = extent->committed_bytes;
    assert_int_equal(an_extent_commit(extent, 2 * ROWS, true), PP_MEMORY);
    assert_int_equal(extent->committed_bytes, committed);
    assert_int_equal(pp_limit_used(&node.limit), used);
    assert_int_equal(spare_bytes(&node), spare);
    an_extent_release(extent);
    an_params_release(params);
    node_deinit(&node);
}

static void spare_memory_decays_when_nobody_wants_it(void **state)
{
    (void)state;
    struct node node;
    node_init(&node, 1ull << 30, 1ull << 28);
    struct an_params *params = params_new(&node, 128, PP_BF16);
    an_extent_release(filled(params, AN_EXTENT_ROWS, 7)); /* 64 MiB */
    an_extent_release(filled(params, 3 * 8192, 7));
    struct an_extent *extent = filled(params, AN_EXTENT_ROWS, 7);
    an_extent_release(filled(params, AN_EXTENT_ROWS, 7));
    an_extent_release(extent);
    uint64_t kept = spare_bytes(&node);
    assert_true(kept > 100u << 20);
    uint64_t now_us = 1000;
    an_spares_decay(&node.store, now_us);
    an_spares_decay(&node.store, now_us + 9999999);
    assert_int_equal(spare_bytes(&node), kept);
    an_spares_decay(&node.store, now_us += 10000000);
    uint64_t first = spare_bytes(&node);
    assert_true(first < kept && first > 0);
    an_spares_decay(&node.store, now_us + 99999);
    assert_int_equal(spare_bytes(&node), first);
    for (int i = 0; i < 4; i++) {
        an_spares_decay(&node.store, now_us += 100000);
    }
    assert_int_equal(spare_bytes(&node), 0);
    an_params_release(params);
    node_deinit(&node);
}

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *stream = fopen("/proc/self/statm", "re");
    assert_non_null(stream);
    assert_int_equal(fscanf(stream, "%*u %llu", &pages), 1);
    fclose(stream);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Random extents of two layouts live side by side, settle, are trimmed and freed. */
static void many_cycles_pass_neither_the_bound_nor_the_limit(void **state)
{
    (void)state;
    struct node node;
    const uint64_t limit = 32 * HUGE, bound = 8 * HUGE;
    node_init(&node, limit, bound);
    struct an_params *params[2] = {params_new(&node, 64, PP_BF16), params_new(&node, 128, PP_BF16)};
    struct an_extent *live[6] = {0};
    uint64_t begin = resident_bytes(), reused = 0;
    for (uint64_t step = 0; step < 4000; step++) {
        uint64_t random = pp_rng_at(11, step);
        struct an_extent **slot = &live[random % 6];
        uint32_t rows = 1 + (uint32_t)(random >> 8) % (2 * ROWS);
        if (*slot == NULL) {
            uint64_t before = spare_bytes(&node);
            assert_int_equal(an_extent_new(params[random >> 40 & 1], (random >> 41 & 3) != 0, slot),
                             PP_OK);
            reused += spare_bytes(&node) < before;
        } else if ((random >> 43 & 3) == 0) {
            an_extent_release(*slot);
            *slot = NULL;
        } else if ((random >> 45 & 3) == 0) {
            an_extent_settle(*slot);
        } else if (rows > (*slot)->filled &&
                   an_extent_commit(*slot, rows, (random >> 47 & 1) != 0) == PP_OK) {
            for (uint32_t head = 0; head < HEADS; head++) {
                memset(an_extent_row(*slot, head, (*slot)->filled), 1,
                       (rows - (*slot)->filled) * (*slot)->row_bytes);
            }
            (*slot)->filled = rows;
        }
        assert_true(spare_bytes(&node) <= bound && node.limit.taken <= limit);
        an_spares_decay(&node.store, step * 1000);
        assert_true(step % 64 != 0 || resident_bytes() <= begin + limit + (8u << 20));
    }
    assert_true(reused > 100);
    for (uint32_t i = 0; i < 6; i++) {
        an_extent_release(live[i]);
    }
    an_params_release(params[0]);
    an_params_release(params[1]);
    node_deinit(&node);
    assert_true(resident_bytes() <= begin + (8u << 20));
}

static uint64_t spare_of(const struct fixture *fixture)
{
    struct an_exec_usage usage;
    an_exec_usage(fixture->exec, &usage);
    return usage.spare_bytes;
}

static enum pp_status read_rows(struct fixture *fixture, uint64_t handle, uint64_t start,
                                uint32_t count)
{
    static uint8_t out[4u << 20];
    fixture->job.read = (struct an_read_args){.part = {handle, 1},
                                              .start = start,
                                              .count = count,
                                              .out = out,
                                              .out_capacity = sizeof(out)};
    return fixture_run(fixture, AN_JOB_READ);
}

/* Nothing but zeros stands between the values of rows, neither of these nor of those before. */
static void expect_padding_zero(struct fixture *fixture, uint64_t handle)
{
    struct an_part *part;
    const struct an_part_ref ref = {handle, 1};
    assert_int_equal(an_exec_find(fixture->exec, &ref, false, &part), PP_OK);
    const struct an_extent *extent = part->layers[0].extent;
    const struct an_params *params = part->layers[0].params;
    uint64_t bytes = pp_vector_bytes(params->dim, params->dtype);
    assert_true(params->v_offset + bytes < extent->row_bytes);
    for (uint32_t row = 0; row < extent->resident_bytes / extent->row_bytes; row++) {
        const uint8_t *at = an_extent_row(extent, 1, row);
        for (uint64_t i = bytes; i < extent->row_bytes; i++) {
            bool value = i >= params->v_offset && i < params->v_offset + bytes;
            assert_true(value || at[i] == 0);
        }
    }
}

static void a_part_on_spare_memory_shows_its_own_rows_and_no_others(void **state)
{
    (void)state;
    struct fixture fixture = {0};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    const struct shape shape = {1, 4, 2, 40, PP_BF16, {.kind = PP_EXACT}};
    const uint32_t before = 30000, rows = 5000;
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    for (uint32_t at = 0; at < before; at += 10000) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, at, 10000, 5, true), PP_OK);
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    uint64_t kept = spare_of(&fixture);
    assert_true(kept > 0);

    handle = fixture_open(&fixture, &shape, 2);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, rows, 9, true), PP_OK);
    assert_true(spare_of(&fixture) < kept);
    assert_true(spare_of(&fixture) > 0); /* old rows lie past the new ones */
    expect_padding_zero(&fixture, handle);

    float q[4 * 40];
    make_rows(&(struct shape){.kv_heads = 4, .dim = 40}, 3, 0, 1, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, rows, 1, q, 4, 40, PP_EXACT, &item),
                     PP_OK);
    assert_true(answer_error(&item, &shape, 9, q) < 1e-4);
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, rows + 1, 1, q, 4, 40, PP_EXACT, &item),
                     PP_SHORT_PART);

    uint64_t half = (uint64_t)rows * shape.kv_heads * pp_vector_bytes(40, PP_BF16);
    uint8_t *expected = malloc(2 * half);
    assert_non_null(expected);
    make_vectors(&shape, 9, 0, rows, expected);
    make_vectors(&shape, 10, 0, rows, expected + half);
    assert_int_equal(read_rows(&fixture, handle, 0, rows), PP_OK);
    assert_int_equal(fixture.job.read.out_bytes, 2 * half);
    assert_memory_equal(fixture.job.read.out, expected, 2 * half);
    free(expected);
    assert_int_equal(read_rows(&fixture, handle, 0, rows + 1), PP_OUT_OF_RANGE);
    assert_int_equal(read_rows(&fixture, handle, rows, 1), PP_OUT_OF_RANGE);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freed_memory_is_spare_and_serves_the_next_rows_of_its_layout),
        cmocka_unit_test(rows_of_another_layout_get_memory_of_their_own),
        cmocka_unit_test(a_reservation_that_would_be_refused_takes_spare_memory_back),
        cmocka_unit_test(a_commit_that_is_refused_leaves_spare_pages_spare),
        cmocka_unit_test(spare_memory_decays_when_nobody_wants_it),
        cmocka_unit_test(many_cycles_pass_neither_the_bound_nor_the_limit),
        cmocka_unit_test(a_part_on_spare_memory_shows_its_own_rows_and_no_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
