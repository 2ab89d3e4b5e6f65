/*
 * Merging segments: how many a growing sequence keeps, that the layout follows from what it holds,
 * what forks, cuts and closes do to a merge under way, and where its memory comes from and goes.
 */
#include "tests/unit/exec_fixture.h"

static const struct shape shape = {.layers = 2,
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .dim = 32,
                                   .dtype = PP_F32,
                                   .estimator = {.kind = PP_LSH, .k = 6, .l = 40, .t = 2}};

static void grow(struct fixture *fixture, uint64_t handle, uint32_t from, uint32_t to,
                 uint32_t step)
{
    for (uint32_t at = from; at < to; at += step) {
        uint32_t count = to - at < step ? to - at : step;
        assert_int_equal(fixture_append(fixture, handle, 1, &shape, 0, at, count, 3, false), PP_OK);
    }
}

static void attend(struct fixture *fixture, uint64_t handle, uint64_t held,
                   enum pp_estimator_kind kind, struct an_attend_item *item)
{
    float q[4 * 32];
    make_queries(5, 4 * 32, q);
    assert_int_equal(fixture_attend(fixture, handle, 1, 0, held, 1, q, 4, 32, kind, item), PP_OK);
    assert_true(answer_error(item, &shape, 3, q) < (kind == PP_EXACT ? 1e-4 : 0.5));
}

static int merges_counted(const struct pp_stats *stats)
{
    for (size_t i = 0; i < stats->count; i++) {
        if (strcmp(stats->series[i].name, "pigpen_node_index_merges_total") == 0) {
            return (int)pp_stat_value(&stats->series[i]);
        }
    }
    return -1;
}

static void growth_by_decoding_keeps_few_segments(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 64), PP_OK);
    struct an_exec_config config = fixture_config(&fixture);
    config.stats = &stats;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    for (uint32_t at = 0; at < 20032; at += 64) {
        grow(&fixture, handle, at, at + 64, 64);
        uint32_t digits = 0;
        for (uint32_t rest = (at + 64) / 1024; rest > 0; rest /= 4) {
            digits += rest % 4;
        }
        assert_int_equal(fixture_layers(&fixture, handle)->segments, digits);
        assert_int_equal(fixture.layers[0].indexed_tokens, (at + 64) / 1024 * 1024);
    }
    assert_int_equal(fixture.layers[0].segments, 4); /* 16,384 and 3 of 1,024 */
    assert_int_equal(merges_counted(&stats), 5);
    struct an_attend_item item;
    attend(&fixture, handle, 20032, PP_LSH, &item);
    assert_int_equal(item.used, PP_LSH);
    assert_true(item.rows_read < 2 * 20032);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
    pp_stats_deinit(&stats);
}

static void the_layout_follows_from_the_held_length(void **state)
{
    (void)state;
    static const uint32_t steps[] = {64, 1000, 7000, 20032};
    float sampled[4 * 32], exact[4 * 32];
    for (int i = 0; i < 4; i++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        grow(&fixture, handle, 0, 20032, steps[i]);
        struct an_attend_item item;
        attend(&fixture, handle, 20032, PP_LSH, &item);
        i == 0 ? (void)memcpy(sampled, item.o, sizeof(sampled))
               : assert_memory_equal(sampled, item.o, sizeof(sampled));
        attend(&fixture, handle, 20032, PP_EXACT, &item);
        i == 0 ? (void)memcpy(exact, item.o, sizeof(exact))
               : assert_memory_equal(exact, item.o, sizeof(exact));
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

static void exact_answers_stay_to_the_bit_and_sampled_ones_stay_estimates(void **state)
{
    (void)state;
    float exact[4 * 32];
    for (int merged = 0; merged < 2; merged++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.keep_segments = merged == 0;
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        grow(&fixture, handle, 0, 9000, 64);
        assert_int_equal(fixture_layers(&fixture, handle)->segments, merged == 0 ? 8 : 2);
        struct an_attend_item item;
        attend(&fixture, handle, 9000, PP_LSH, &item);
        attend(&fixture, handle, 9000, PP_EXACT, &item);
        if (merged == 0) {
            memcpy(exact, item.o, sizeof(exact));
        } else {
            assert_memory_equal(exact, item.o, sizeof(exact));
        }
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

static void a_full_extent_becomes_one_segment(void **state)
{
    (void)state;
    struct shape small = {1, 1, 1, 16, PP_F32, {.kind = PP_LSH, .k = 4, .l = 4, .t = 2}};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &small, 1);
    uint32_t held = PP_SEGMENT_TOKENS_MAX;
    assert_int_equal(fixture_append(&fixture, handle, 1, &small, 0, 0, held, 3, false), PP_OK);
    uint32_t open = fixture_layers(&fixture, handle)->segments;
    assert_true(open > 1 && open < 10);
    assert_int_equal(fixture_append(&fixture, handle, 1, &small, 0, held, 1, 3, false), PP_OK);
    assert_int_equal(fixture_layers(&fixture, handle)->segments, 1);
    assert_int_equal(fixture.layers[0].indexed_tokens, held);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static uint64_t fork_part(struct fixture *fixture, uint64_t handle, uint64_t held)
{
    fixture->job.fork =
        (struct an_fork_args){.part = {handle, 1}, .held_tokens = held, .generation = 1};
    fixture->job.fork.part_id[0] = 9;
    assert_int_equal(fixture_run(fixture, AN_JOB_FORK), PP_OK);
    return fixture->job.fork.handle;
}

static void what_a_fork_sees_is_merged_when_the_fork_is_gone(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 1, 0, 3072, 3, false), PP_OK);
    grow(&fixture, handle, 0, 3072, 1024);
    uint64_t child = fork_part(&fixture, handle, 3072);
    grow(&fixture, handle, 3072, 4096, 1024);
    assert_int_equal(fixture_layers(&fixture, handle)->segments, 4);
    (void)fixture_close(&fixture, child);
    grow(&fixture, handle, 4096, 4160, 64);
    assert_int_equal(fixture_layers(&fixture, handle)->segments, 1);
    assert_int_equal(fixture_layers(&fixture, handle)->indexed_tokens, 4096);
    struct an_attend_item item;
    attend(&fixture, handle, 4160, PP_LSH, &item);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void without_room_to_spare_segments_stay_and_appends_go_on(void **state)
{
    (void)state;
    uint64_t used = 0;
    for (int tight = 0; tight < 2; tight++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.keep_segments = tight == 0;
        if (tight == 1) {
            config.memory_limit_bytes = used + used / 16;
        }
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        grow(&fixture, handle, 0, 4096, 64);
        assert_int_equal(fixture_layers(&fixture, handle)->segments, 4);
        struct an_exec_usage usage;
        an_exec_usage(fixture.exec, &usage);
        used = usage.kv_bytes + usage.index_bytes + usage.tail_bytes + usage.scratch_bytes;
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

/* Polls until layer 0 has that many segments, all indexed. */
static void wait_segments(struct fixture *fixture, uint64_t handle, uint32_t segments)
{
    while (fixture_layers(fixture, handle)->segments != segments ||
           fixture->layers[0].indexed_tokens != fixture->layers[0].sealed_tokens) {
        (void)an_exec_poll(fixture->exec, 100000);
    }
}

static void merges_in_the_background_end_alike(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    config.threads = 2;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    struct an_attend_item item;
    for (uint32_t at = 0; at < 9000; at += 200) {
        grow(&fixture, handle, at, at + 200, 200);
        attend(&fixture, handle, at + 200, at % 400 == 0 ? PP_LSH : PP_EXACT, &item);
    }
    wait_segments(&fixture, handle, 2);
    attend(&fixture, handle, 9000, PP_LSH, &item);
    (void)fixture_close(&fixture, handle);
    fixture_wait_empty(&fixture);
    fixture_stop(&fixture);
}

static void forks_cuts_and_closes_under_a_merge_leave_right_answers_and_nothing_behind(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    fixture_start(&fixture, &config);
    struct an_attend_item item;
    for (uint32_t round = 1; round <= 24; round++) {
        uint64_t handle = fixture_open(&fixture, &shape, (uint8_t)round);
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 1, 0, 3500, 3, false), PP_OK);
        grow(&fixture, handle, 0, 4300, 4300); /* the merge of four begins here */
        uint64_t child = 0;
        if (round % 2 == 0) {
            child = fork_part(&fixture, handle, 3500);
        }
        if (round % 3 == 0) {
            fixture.job.truncate = (struct an_truncate_args){
                .part = {handle, 1}, .new_generation = 2, .held_tokens = 1500 + round};
            assert_int_equal(fixture_run(&fixture, AN_JOB_TRUNCATE), PP_OK);
            assert_int_equal(
                fixture_append(&fixture, handle, 2, &shape, 0, 1500 + round, 3000, 3, false),
                PP_OK);
            float q[4 * 32];
            make_queries(5, 4 * 32, q);
            assert_int_equal(
                fixture_attend(&fixture, handle, 2, 0, 4500 + round, 1, q, 4, 32, PP_EXACT, &item),
                PP_OK);
            assert_true(answer_error(&item, &shape, 3, q) < 1e-4);
        }
        (void)fixture_close(&fixture, handle);
        if (child != 0) {
            attend(&fixture, child, 3500, PP_EXACT, &item);
            (void)fixture_close(&fixture, child);
        }
    }
    fixture_wait_empty(&fixture);
    fixture_stop(&fixture);
}

static void destroy_with_a_merge_under_way_frees_everything(void **state)
{
    (void)state;
    for (uint32_t held = 4096; held <= 20480; held += 4096) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.build_sync = false;
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        grow(&fixture, handle, 0, held, held);
        fixture_stop(&fixture); /* asserts that nothing is charged any more */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growth_by_decoding_keeps_few_segments),
        cmocka_unit_test(the_layout_follows_from_the_held_length),
        cmocka_unit_test(exact_answers_stay_to_the_bit_and_sampled_ones_stay_estimates),
        cmocka_unit_test(a_full_extent_becomes_one_segment),
        cmocka_unit_test(what_a_fork_sees_is_merged_when_the_fork_is_gone),
        cmocka_unit_test(without_room_to_spare_segments_stay_and_appends_go_on),
        cmocka_unit_test(merges_in_the_background_end_alike),
        cmocka_unit_test(
            forks_cuts_and_closes_under_a_merge_leave_right_answers_and_nothing_behind),
        cmocka_unit_test(destroy_with_a_merge_under_way_frees_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
