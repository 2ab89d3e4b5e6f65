/*
 * Fork and truncate: what each side sees, generations, asking again, and bytes that come back.
 */
#include "tests/unit/exec_fixture.h"

static const struct shape shape = {.layers = 2,
                                   .q_heads = 2,
                                   .kv_heads = 1,
                                   .dim = 32,
                                   .dtype = PP_F32,
                                   .estimator = {.kind = PP_LSH, .k = 4, .l = 16, .t = 2}};

static struct fixture fixture;

static int set_up(void **state)
{
    (void)state;
    fixture = (struct fixture){.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
    return 0;
}

static enum pp_status append_both(uint64_t handle, uint64_t generation, uint64_t start,
                                  uint32_t count, uint64_t salt)
{
    enum pp_status status =
        fixture_append(&fixture, handle, generation, &shape, 0, start, count, salt, false);
    return status != PP_OK
               ? status
               : fixture_append(&fixture, handle, generation, &shape, 1, start, count, salt, false);
}

static enum pp_status fork_part(uint64_t handle, uint64_t generation, uint64_t held, uint8_t id)
{
    fixture.job.fork =
        (struct an_fork_args){.part = {handle, generation}, .held_tokens = held, .generation = 1};
    memset(fixture.job.fork.sequence_id, id, PP_ID_BYTES);
    memset(fixture.job.fork.part_id, id, PP_ID_BYTES);
    return fixture_run(&fixture, AN_JOB_FORK);
}

static enum pp_status truncate_part(uint64_t handle, uint64_t generation, uint64_t next,
                                    uint64_t held)
{
    fixture.job.truncate = (struct an_truncate_args){
        .part = {handle, generation}, .new_generation = next, .held_tokens = held};
    return fixture_run(&fixture, AN_JOB_TRUNCATE);
}

/* Rows [start, start + count) of layer 0 are those made with salt. */
static void expect_rows(uint64_t handle, uint64_t generation, uint64_t start, uint32_t count,
                        uint64_t salt)
{
    uint64_t half = (uint64_t)count * 32;
    float *out = malloc(4 * half * sizeof(float));
    assert_non_null(out);
    fixture.job.read = (struct an_read_args){.part = {handle, generation},
                                             .start = start,
                                             .count = count,
                                             .out = (uint8_t *)out,
                                             .out_capacity = 2 * half * sizeof(float)};
    assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OK);
    make_rows(&shape, salt, start, count, out + 2 * half);
    make_rows(&shape, salt + 1, start, count, out + 3 * half);
    assert_memory_equal(out, out + 2 * half, 2 * half * sizeof(float));
    free(out);
}

static void each_side_of_a_fork_sees_its_own_after_appends_seals_and_truncates(void **state)
{
    (void)state;
    uint64_t parent = fixture_open(&fixture, &shape, 1);
    assert_int_equal(append_both(parent, 1, 0, 2500, 10), PP_OK);
    assert_int_equal(fork_part(parent, 1, 2300, 2), PP_OK);
    uint64_t child = fixture.job.fork.handle;
    assert_int_equal(append_both(child, 1, 2300, 900, 20), PP_OK);
    assert_int_equal(append_both(parent, 1, 2500, 700, 10), PP_OK);
    expect_rows(child, 1, 0, 2300, 10);
    expect_rows(child, 1, 2300, 900, 20);
    expect_rows(parent, 1, 0, 3200, 10);
    fixture.job.seal = (struct an_seal_args){.part = {child, 1}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
    assert_int_equal(fixture.job.seal.segments, 2);
    assert_int_equal(truncate_part(parent, 1, 2, 1500), PP_OK);
    assert_int_equal(append_both(parent, 2, 1500, 1700, 30), PP_OK);
    expect_rows(parent, 2, 0, 1500, 10);
    expect_rows(parent, 2, 1500, 1700, 30);
    expect_rows(child, 1, 0, 2300, 10);
    expect_rows(child, 1, 2300, 900, 20);
    float q[64];
    for (int i = 0; i < 64; i++) {
        q[i] = (float)(i % 5) - 2.0f;
    }
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, child, 1, 0, 2300, 1, q, 2, 32, PP_EXACT, &item),
                     PP_OK);
    assert_true(answer_error(&item, &shape, 10, q) < 1e-4);
    /* A view that cuts a segment, sampled: only rows below the cut may be read. */
    assert_int_equal(fixture_attend(&fixture, parent, 2, 0, 1500, 1, q, 2, 32, PP_LSH, &item),
                     PP_OK);
    assert_int_equal(item.used, PP_LSH);
    assert_true(item.keys_read[0] <= 1500);
    (void)fixture_close(&fixture, parent);
    expect_rows(child, 1, 0, 2300, 10);
    (void)fixture_close(&fixture, child);
}

static void fork_asked_again_is_the_same_part_and_otherwise_exists(void **state)
{
    (void)state;
    uint64_t parent = fixture_open(&fixture, &shape, 1);
    assert_int_equal(append_both(parent, 1, 0, 100, 10), PP_OK);
    assert_int_equal(fork_part(parent, 1, 101, 2), PP_SHORT_PART);
    assert_int_equal(fork_part(parent, 1, 60, 2), PP_OK);
    uint64_t child = fixture.job.fork.handle;
    assert_int_equal(append_both(child, 1, 60, 5, 20), PP_OK);
    assert_int_equal(fork_part(parent, 1, 60, 2), PP_OK);
    assert_int_equal(fixture.job.fork.handle, child);
    assert_int_equal(fixture_layers(&fixture, child)[0].held_tokens, 65);
    assert_int_equal(fork_part(parent, 1, 61, 2), PP_PART_EXISTS);
    assert_int_equal(fork_part(parent, 1, 60, 1), PP_PART_EXISTS);
    assert_int_equal(fork_part(parent, 2, 60, 3), PP_STALE_GENERATION);
    (void)fixture_close(&fixture, child);
    (void)fixture_close(&fixture, parent);
}

static void truncate_raises_the_generation_once_and_old_requests_are_stale(void **state)
{
    (void)state;
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(append_both(handle, 1, 0, 2000, 10), PP_OK);
    assert_int_equal(truncate_part(handle, 1, 1, 5), PP_INVALID_ARGUMENT);
    assert_int_equal(truncate_part(handle, 3, 4, 5), PP_STALE_GENERATION);
    assert_int_equal(fixture_layers(&fixture, handle)[0].held_tokens, 2000);
    assert_int_equal(truncate_part(handle, 1, 4, 1200), PP_OK);
    assert_int_equal(fixture_layers(&fixture, handle)[0].held_tokens, 1200);
    assert_int_equal(append_both(handle, 1, 1200, 10, 10), PP_STALE_GENERATION);
    assert_int_equal(append_both(handle, 4, 1200, 10, 10), PP_OK);
    /* The truncate's answer was lost and it is sent again: the ten rows stay. */
    assert_int_equal(truncate_part(handle, 1, 4, 1200), PP_OK);
    assert_int_equal(fixture_layers(&fixture, handle)[0].held_tokens, 1210);
    assert_int_equal(truncate_part(handle, 1, 4, 1100), PP_STALE_GENERATION);
    assert_int_equal(truncate_part(handle, 4, 5, 0), PP_OK);
    assert_int_equal(fixture_layers(&fixture, handle)[1].held_tokens, 0);
    assert_int_equal(append_both(handle, 5, 0, 1030, 40), PP_OK);
    expect_rows(handle, 5, 0, 1030, 40);
    (void)fixture_close(&fixture, handle);
}

static void truncate_in_the_tail_lets_the_rows_be_written_anew(void **state)
{
    (void)state;
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(append_both(handle, 1, 0, 900, 10), PP_OK);
    struct an_exec_usage before, after;
    an_exec_usage(fixture.exec, &before);
    for (uint64_t i = 1; i < 50; i++) {
        assert_int_equal(truncate_part(handle, i, i + 1, 300), PP_OK);
        assert_int_equal(append_both(handle, i + 1, 300, 600, 20 + i), PP_OK);
    }
    an_exec_usage(fixture.exec, &after);
    assert_int_equal(after.kv_bytes + after.tail_bytes, before.kv_bytes + before.tail_bytes);
    expect_rows(handle, 50, 0, 300, 10);
    expect_rows(handle, 50, 300, 600, 69);
    (void)fixture_close(&fixture, handle);
}

static void dropped_segments_give_their_rows_back_to_the_extent(void **state)
{
    (void)state;
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(append_both(handle, 1, 0, 4096, 10), PP_OK);
    struct an_exec_usage before, after;
    /* The first cut leaves the rows of the merged segment behind it unused. */
    for (uint64_t i = 1; i < 40; i++) {
        assert_int_equal(truncate_part(handle, i, i + 1, 1024), PP_OK);
        assert_int_equal(append_both(handle, i + 1, 1024, 3072, 20 + i), PP_OK);
        if (i == 1) {
            an_exec_usage(fixture.exec, &before);
        }
    }
    an_exec_usage(fixture.exec, &after);
    assert_int_equal(after.kv_bytes, before.kv_bytes);
    assert_int_equal(after.index_bytes, before.index_bytes);
    (void)fixture_close(&fixture, handle);
}

static void a_full_segment_of_identical_keys_does_not_wrap(void **state)
{
    (void)state;
    struct shape one = {1, 1, 1, 64, PP_BF16, {.kind = PP_LSH, .k = 4, .l = 4, .t = 2}};
    uint64_t handle = fixture_open(&fixture, &one, 1);
    uint32_t count = PP_SEGMENT_TOKENS_MAX;
    uint16_t *rows = malloc((uint64_t)count * 64 * 2);
    assert_non_null(rows);
    for (uint64_t i = 0; i < (uint64_t)count * 64; i++) {
        rows[i] = pp_bf16_from_f32((float)(i % 64) * 0.125f - 3.0f);
    }
    fixture.job.append = append_args(handle, 1, &one, 0, count, rows, rows);
    fixture.job.append.bulk = true;
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    const struct an_layer_info *layer = fixture_layers(&fixture, handle);
    assert_int_equal(layer->segments, 1);
    assert_int_equal(layer->indexed_tokens, count);
    /* One row more begins the next extent. */
    fixture.job.append = append_args(handle, 1, &one, count, 1, rows, rows);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    float q[64];
    for (int i = 0; i < 64; i++) {
        q[i] = (float)(i % 3) - 1.0f;
    }
    for (int kind = 0; kind < 2; kind++) {
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, count + 1, 1, q, 1, 64,
                                        kind == 0 ? PP_EXACT : PP_LSH, &item),
                         PP_OK);
        for (int i = 0; i < 64; i++) {
            assert_true(fabsf(item.o[i] - pp_bf16_to_f32(rows[i])) < 1e-3f);
        }
        assert_int_equal(item.keys_read[0], count + 1);
    }
    free(rows);
    (void)fixture_close(&fixture, handle);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(each_side_of_a_fork_sees_its_own_after_appends_seals_and_truncates),
        CASE(fork_asked_again_is_the_same_part_and_otherwise_exists),
        CASE(truncate_raises_the_generation_once_and_old_requests_are_stale),
        CASE(truncate_in_the_tail_lets_the_rows_be_written_anew),
        CASE(dropped_segments_give_their_rows_back_to_the_extent),
        CASE(a_full_segment_of_identical_keys_does_not_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
