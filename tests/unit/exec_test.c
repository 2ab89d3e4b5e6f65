/*
 * The jobs of a node's exec: open, append, attend, seal, read, close, leases and memory.
 */
#include "tests/unit/exec_fixture.h"

static const struct shape small = {.layers = 2,
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .dim = 16,
                                   .dtype = PP_F32,
                                   .estimator = {.kind = PP_EXACT}};

static void open_append_attend_close_gives_exact_attention_and_all_bytes_back(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.threads = 2;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &small, 1);
    for (uint64_t at = 0; at < 3000; at += 500) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &small, 1, at, 500, 40, false), PP_OK);
        assert_int_equal(fixture.job.append.held_tokens, at + 500);
    }
    float q[3 * 4 * 16];
    make_queries(5, 3 * 4 * 16, q);
    struct an_attend_item item;
    static const uint64_t held[] = {0, 1, 2, 1023, 1024, 1025, 2047, 2048, 3000};
    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 1, held[i], 3, q, 4, 16, PP_EXACT, &item), PP_OK);
        assert_true(answer_error(&item, &small, 40, q) < 1e-4);
        assert_int_equal(item.rows_read, held[i] * 2 * 3);
        assert_int_equal(item.used, PP_EXACT);
    }
    assert_int_equal(fixture_attend(&fixture, handle, 1, 1, 3001, 3, q, 4, 16, PP_EXACT, &item),
                     PP_SHORT_PART);
    assert_true(fixture_close(&fixture, handle) > 0);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void self_test_passes_on_a_fresh_node(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    assert_int_equal(fixture_run(&fixture, AN_JOB_SELF_TEST), PP_OK);
    const struct an_self_test_args *test = &fixture.job.self_test;
    assert_int_equal(test->count, 3);
    for (uint32_t i = 0; i < test->count; i++) {
        print_message("%s: %s\n", test->checks[i].name, test->checks[i].detail);
        assert_true(test->checks[i].ok);
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void self_test_passes_at_any_sealing_options_and_leaves_them(void **state)
{
    (void)state;
    static const uint32_t tokens_min[] = {1, 4061, PP_SEGMENT_TOKENS_MAX};
    struct shape shape = small;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 6, .l = 30, .t = 2};
    float q[64];
    make_queries(3, 64, q);
    for (int i = 0; i < 3; i++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.index_tokens_min = tokens_min[i];
        config.seal_tokens = i == 0 ? 1 : 1024;
        fixture_start(&fixture, &config);
        assert_int_equal(fixture_run(&fixture, AN_JOB_SELF_TEST), PP_OK);
        const struct an_self_test_args *test = &fixture.job.self_test;
        assert_int_equal(test->count, 3);
        for (uint32_t check = 0; check < test->count; check++) {
            print_message("%s: %s\n", test->checks[check].name, test->checks[check].detail);
            assert_true(test->checks[check].ok);
        }
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 2048, 8, i == 0), PP_OK);
        fixture.job.seal = (struct an_seal_args){.part = {handle, 1}};
        assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 2048, 1, q, 4, 16, PP_LSH, &item),
                         PP_OK);
        assert_true(i == 0 ? item.rows_read < item.rows_held : item.rows_read == item.rows_held);
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

/* Fills a node of `limit` bytes with parts until one is refused; returns how many are whole. */
static uint32_t fill_node(struct fixture *fixture, const struct shape *shape, uint64_t *handles,
                          uint32_t parts_max, uint64_t limit)
{
    for (uint32_t part = 0; part < parts_max; part++) {
        fixture->job.open = shape_open(shape, (uint8_t)(part + 1));
        enum pp_status status = fixture_run(fixture, AN_JOB_OPEN);
        if (status != PP_OK) {
            assert_int_equal(status, PP_MEMORY);
            return part;
        }
        handles[part] = fixture->job.open.handle;
        for (uint64_t at = 0; at < 6000; at += 1500) {
            status =
                fixture_append(fixture, handles[part], 1, shape, 0, at, 1500, 100 + part, false);
            struct an_exec_usage usage;
            an_exec_usage(fixture->exec, &usage);
            assert_true(usage.kv_bytes + usage.index_bytes + usage.tail_bytes +
                            usage.scratch_bytes <=
                        limit);
            if (status != PP_OK) {
                assert_int_equal(status, PP_MEMORY);
                (void)fixture_close(fixture, handles[part]);
                return part;
            }
        }
    }
    return parts_max;
}

static void a_full_node_refuses_keeps_what_it_has_and_admits_again_after_a_close(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.memory_limit_bytes = 40ull << 20;
    fixture_start(&fixture, &config);
    struct shape shape = small;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 6, .l = 30, .t = 2};
    uint64_t handles[64];
    uint32_t whole = fill_node(&fixture, &shape, handles, 64, config.memory_limit_bytes);
    print_message("%u parts fit\n", whole);
    assert_true(whole >= 2 && whole < 64);
    float q[64];
    make_queries(3, 64, q);
    struct an_attend_item item;
    for (uint32_t part = 0; part < whole; part++) {
        assert_int_equal(
            fixture_attend(&fixture, handles[part], 1, 0, 6000, 1, q, 4, 16, PP_EXACT, &item),
            PP_OK);
        assert_true(answer_error(&item, &shape, 100 + part, q) < 1e-4);
    }
    assert_true(fixture_close(&fixture, handles[0]) > 0);
    handles[0] = fixture_open(&fixture, &shape, 200);
    assert_int_equal(fixture_append(&fixture, handles[0], 1, &shape, 0, 0, 1500, 5, false), PP_OK);
    for (uint32_t part = 0; part < whole; part++) {
        (void)fixture_close(&fixture, handles[part]);
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* What a node takes that holds a part without rows. */
static uint64_t bytes_of_an_open_part(const struct shape *shape)
{
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    struct an_exec_usage usage;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, shape, 1);
    an_exec_usage(fixture.exec, &usage);
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
    return usage.kv_bytes + usage.index_bytes + usage.tail_bytes + usage.scratch_bytes;
}

static void an_append_that_memory_refuses_in_the_middle_changes_nothing(void **state)
{
    (void)state;
    struct shape shape = small;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 6, .l = 30, .t = 2};
    uint32_t refused = 0;
    uint64_t least = bytes_of_an_open_part(&shape);
    print_message("%.2f MiB with an open part\n", (double)least / (1 << 20));
    /* The limit cuts the append at ever other places: in rows, index, segments, the next tail. */
    for (uint64_t room = 0; room < (3ull << 20); room += 97 * 1024) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.memory_limit_bytes = least + room;
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        enum pp_status status = fixture_append(&fixture, handle, 1, &shape, 0, 0, 700, 8, false);
        if (status == PP_OK) {
            struct an_exec_usage before, after;
            an_exec_usage(fixture.exec, &before);
            status = fixture_append(&fixture, handle, 1, &shape, 0, 700, 5000, 8, false);
            if (status != PP_OK) {
                refused++;
                assert_int_equal(status, PP_MEMORY);
                an_exec_usage(fixture.exec, &after);
                assert_int_equal(after.index_bytes, before.index_bytes);
                assert_int_equal(after.tail_bytes, before.tail_bytes);
                assert_int_equal(after.tokens_held, 700);
            }
            float q[64];
            make_queries(3, 64, q);
            struct an_attend_item item;
            assert_int_equal(fixture_attend(&fixture, handle, 1, 0, status == PP_OK ? 5700 : 700, 1,
                                            q, 4, 16, PP_EXACT, &item),
                             PP_OK);
            assert_true(answer_error(&item, &shape, 8, q) < 1e-4);
        }
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
    print_message("%u appends were refused in the middle\n", refused);
    assert_true(refused > 3);
}

static void reserved_memory_is_kept_for_the_part_that_asked(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.memory_limit_bytes = 32ull << 20;
    fixture_start(&fixture, &config);
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.reserve_bytes = 40ull << 20;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_MEMORY);
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.reserve_bytes = 8ull << 20;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
    uint64_t kept = fixture.job.open.handle;
    uint64_t other = fixture_open(&fixture, &small, 2);
    uint64_t at = 0;
    while (fixture_append(&fixture, other, 1, &small, 0, at, 1000, 8, false) == PP_OK) {
        at += 1000;
    }
    uint64_t held = 0; /* row by row as much as was reserved, but for what granules round up */
    while (fixture_append(&fixture, kept, 1, &small, 0, held, 500, 9, false) == PP_OK) {
        held += 500;
    }
    uint64_t row_bytes = small.kv_heads * pp_row_bytes(small.dim, small.dtype);
    assert_in_range(held * row_bytes, 7ull << 20, 9ull << 20);
    (void)fixture_close(&fixture, other);
    (void)fixture_close(&fixture, kept);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* As many tokens as an open asked for come in, beside a part that takes all that is left free; one
 * token of room fewer and the open is refused, in words. */
static void an_open_for_tokens_keeps_room_for_their_rows_and_indexes(void **state)
{
    (void)state;
    static const struct pp_estimator estimators[] = {
        {.kind = PP_EXACT}, {.kind = PP_LSH, .k = 8, .l = 60, .t = 2}, {.kind = PP_SKETCH}};
    for (uint32_t i = 0; i < 3; i++) {
        struct shape shape = {3, 4, 2, 64, PP_BF16, estimators[i]};
        assert_int_equal(pp_estimator_resolve(&shape.estimator), PP_OK);
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.memory_limit_bytes = 96ull << 20;
        fixture_start(&fixture, &config);
        fixture.job.open = shape_open(&shape, 1);
        fixture.job.open.reserve_tokens = 5000;
        assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
        uint64_t kept = fixture.job.open.handle;
        struct shape other = {3, 4, 2, 64, PP_BF16, {.kind = PP_EXACT}};
        uint64_t greedy = fixture_open(&fixture, &other, 2), at = 0;
        while (fixture_append(&fixture, greedy, 1, &other, 0, at, 500, 8, false) == PP_OK) {
            at += 500;
        }
        for (uint64_t held = 0; held < 5000; held += 500) {
            for (uint32_t layer = 0; layer < 3; layer++) {
                assert_int_equal(
                    fixture_append(&fixture, kept, 1, &shape, layer, held, 500, 9, true), PP_OK);
            }
        }
        fixture.job.open = shape_open(&shape, 3);
        fixture.job.open.reserve_tokens = 5000;
        assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_MEMORY);
        assert_non_null(strstr(fixture.job.detail, " MiB for 5000 tokens, "));
        assert_non_null(
            strstr(fixture.job.detail, "MiB free of 96 MiB for parts: raise --memory-limit"));
        (void)fixture_close(&fixture, greedy);
        (void)fixture_close(&fixture, kept);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

/* Wherever the memory ends, the one who asked is told what is missing. */
static void an_open_that_finds_no_memory_says_what_it_lacks(void **state)
{
    (void)state;
    struct shape shape = {2, 4, 2, 64, PP_BF16, {.kind = PP_LSH, .k = 10, .l = 150, .t = 2}};
    uint32_t refused = 0;
    for (uint64_t bytes = 32ull << 10; bytes < 64ull << 20; bytes += bytes / 16) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.memory_limit_bytes = bytes;
        if (an_exec_new(&config, &fixture.exec) != PP_OK) {
            continue;
        }
        an_exec_destroy(fixture.exec);
        fixture_start(&fixture, &config);
        fixture.job.open = shape_open(&shape, 1);
        fixture.job.open.reserve_tokens = 2000;
        if (fixture_run(&fixture, AN_JOB_OPEN) == PP_OK) {
            (void)fixture_close(&fixture, fixture.job.open.handle);
        } else {
            assert_int_equal(fixture.job.status, PP_MEMORY);
            assert_true(strlen(fixture.job.detail) > 0);
            refused++;
        }
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
    print_message("%u opens were refused\n", refused);
    assert_true(refused > 3);
}

static void a_lease_ends_on_the_clock_and_any_call_renews_it(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.lease_us = 1000;
    fixture_start(&fixture, &config);
    uint64_t idle = fixture_open(&fixture, &small, 1);
    uint64_t appended = fixture_open(&fixture, &small, 2);
    uint64_t renewed = fixture_open(&fixture, &small, 3);
    assert_int_equal(fixture_append(&fixture, idle, 1, &small, 0, 0, 2000, 8, false), PP_OK);
    fixture.now_us = 900;
    assert_int_equal(fixture_append(&fixture, appended, 1, &small, 0, 0, 10, 8, false), PP_OK);
    uint64_t handles[2] = {renewed, 12345}, unknown[2];
    fixture.job.renew = (struct an_renew_args){handles, 2, unknown, 0};
    assert_int_equal(fixture_run(&fixture, AN_JOB_RENEW), PP_OK);
    assert_int_equal(fixture.job.renew.unknown_count, 1);
    assert_int_equal(unknown[0], 12345);
    fixture.now_us = 1000;
    (void)an_exec_poll(fixture.exec, 0);
    struct an_exec_usage usage;
    an_exec_usage(fixture.exec, &usage);
    assert_int_equal(usage.parts, 3);
    fixture.now_us = 1001;
    (void)an_exec_poll(fixture.exec, 0);
    an_exec_usage(fixture.exec, &usage);
    assert_int_equal(usage.parts, 2);
    assert_int_equal(usage.tokens_held, 10);
    assert_int_equal(fixture_append(&fixture, idle, 1, &small, 0, 0, 10, 8, false),
                     PP_PART_EXPIRED);
    fixture.now_us = 1900; /* ends while the request waits: it finds the part gone */
    assert_int_equal(fixture_append(&fixture, appended, 1, &small, 0, 0, 10, 8, false),
                     PP_PART_EXPIRED);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void parts_with_leases_of_their_own_end_in_their_order(void **state)
{
    (void)state;
    static const uint64_t asked[] = {500, 0, 300, 5000, 800};
    static const uint64_t granted[] = {500, 1000, 300, 1000, 800};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    uint64_t handles[5];
    config.lease_us = 1000;
    fixture_start(&fixture, &config);
    for (uint32_t i = 0; i < 5; i++) {
        fixture.job.open = shape_open(&small, (uint8_t)(i + 1));
        fixture.job.open.lease_us = asked[i];
        assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
        assert_int_equal(fixture.job.open.lease_us, granted[i]);
        handles[i] = fixture.job.open.handle;
    }
    fixture.now_us = 201; /* what ended first now ends with the next */
    assert_int_equal(fixture_append(&fixture, handles[2], 1, &small, 0, 0, 10, 8, false), PP_OK);
    static const struct {
        uint64_t now_us, parts;
    } left[] = {{500, 5}, {501, 3}, {800, 3}, {801, 2}, {1000, 2}, {1001, 0}};
    for (uint32_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        struct an_exec_usage usage;
        fixture.now_us = left[i].now_us;
        (void)an_exec_poll(fixture.exec, 0);
        an_exec_usage(fixture.exec, &usage);
        assert_int_equal(usage.parts, left[i].parts);
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void parts_are_listed_in_pages_and_evicted_only_by_force_while_leased(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handles[300];
    for (uint32_t i = 0; i < 300; i++) {
        fixture.job.open = shape_open(&small, 1);
        memcpy(fixture.job.open.part_id, &i, sizeof(i));
        assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
        handles[i] = fixture.job.open.handle;
    }
    struct an_part_info parts[70];
    uint64_t last = 0;
    uint32_t seen = 0;
    do {
        fixture.job.list =
            (struct an_list_args){.after_handle = last, .parts = parts, .capacity = 70};
        assert_int_equal(fixture_run(&fixture, AN_JOB_LIST), PP_OK);
        assert_int_equal(fixture.job.list.parts_total, 300);
        for (uint32_t i = 0; i < fixture.job.list.count; i++) {
            assert_true(parts[i].handle > last);
            last = parts[i].handle;
        }
        seen += fixture.job.list.count;
    } while (fixture.job.list.more);
    assert_int_equal(seen, 300);
    fixture.job.evict = (struct an_evict_args){.handles = handles, .handle_count = 300};
    assert_int_equal(fixture_run(&fixture, AN_JOB_EVICT), PP_OK);
    assert_int_equal(fixture.job.evict.evicted, 0);
    fixture.job.evict.force = true;
    assert_int_equal(fixture_run(&fixture, AN_JOB_EVICT), PP_OK);
    assert_int_equal(fixture.job.evict.evicted, 300);
    assert_true(fixture.job.evict.freed_bytes > 0);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void a_full_queue_refuses_order_is_kept_and_the_rest_is_cancelled(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.queue_depth = 4;
    fixture_start(&fixture, &config);
    struct an_job jobs[5];
    memset(jobs, 0, sizeof(jobs));
    for (int i = 0; i < 5; i++) {
        jobs[i].kind = AN_JOB_GET;
        assert_int_equal(an_exec_submit(fixture.exec, &jobs[i]), i < 4 ? PP_OK : PP_QUEUE);
    }
    assert_int_equal(an_exec_poll(fixture.exec, 0), 4);
    /* Done but not taken back still counts. */
    assert_int_equal(an_exec_submit(fixture.exec, &jobs[4]), PP_QUEUE);
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(an_exec_take_done(fixture.exec), &jobs[i]);
        assert_int_equal(jobs[i].status, PP_PART_NOT_FOUND);
    }
    assert_null(an_exec_take_done(fixture.exec));
    assert_int_equal(an_exec_submit(fixture.exec, &jobs[4]), PP_OK);
    fixture_stop(&fixture);
    assert_int_equal(jobs[4].status, PP_CANCELLED);
}

static void attends_pass_what_waits_but_every_seventeenth_job_is_another(void **state)
{
    (void)state;
    enum { GETS = 3, ATTENDS = 20 };
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.queue_depth = GETS + ATTENDS;
    fixture_start(&fixture, &config);
    static struct an_job jobs[GETS + ATTENDS];
    memset(jobs, 0, sizeof(jobs));
    for (int i = 0; i < GETS + ATTENDS; i++) {
        jobs[i].kind = i < GETS ? AN_JOB_GET : AN_JOB_ATTEND;
        assert_int_equal(an_exec_submit(fixture.exec, &jobs[i]), PP_OK);
    }
    assert_int_equal(an_exec_poll(fixture.exec, 1000000), GETS + ATTENDS);
    for (int i = 0; i < GETS + ATTENDS; i++) {
        const struct an_job *expected = i < 16    ? &jobs[GETS + i]
                                        : i == 16 ? &jobs[0]
                                        : i < 21  ? &jobs[GETS + i - 1]
                                                  : &jobs[i - 20];
        assert_ptr_equal(an_exec_take_done(fixture.exec), expected);
    }
    fixture_stop(&fixture);
}

static void count_wake(void *context)
{
    __atomic_fetch_add((int *)context, 1, __ATOMIC_RELAXED);
}

static void jobs_are_done_on_a_thread_of_their_own(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    int wakes = 0;
    config.wake = count_wake;
    config.wake_context = &wakes;
    config.build_sync = false;
    config.threads = 2;
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 64), PP_OK);
    config.stats = &stats;
    fixture_start(&fixture, &config);
    assert_int_equal(an_exec_start(fixture.exec), PP_OK);
    struct an_job job = {.kind = AN_JOB_SELF_TEST};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(an_exec_submit(fixture.exec, &job), PP_OK);
        while (an_exec_take_done(fixture.exec) == NULL) {
            __builtin_ia32_pause();
        }
        assert_int_equal(job.status, PP_OK);
        for (uint32_t check = 0; check < job.self_test.count; check++) {
            assert_true(job.self_test.checks[check].ok);
        }
    }
    an_exec_stop(fixture.exec);
    assert_int_equal(wakes, 3);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
    pp_stats_deinit(&stats);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_append_attend_close_gives_exact_attention_and_all_bytes_back),
        cmocka_unit_test(self_test_passes_on_a_fresh_node),
        cmocka_unit_test(self_test_passes_at_any_sealing_options_and_leaves_them),
        cmocka_unit_test(a_full_node_refuses_keeps_what_it_has_and_admits_again_after_a_close),
        cmocka_unit_test(an_append_that_memory_refuses_in_the_middle_changes_nothing),
        cmocka_unit_test(reserved_memory_is_kept_for_the_part_that_asked),
        cmocka_unit_test(an_open_for_tokens_keeps_room_for_their_rows_and_indexes),
        cmocka_unit_test(an_open_that_finds_no_memory_says_what_it_lacks),
        cmocka_unit_test(a_lease_ends_on_the_clock_and_any_call_renews_it),
        cmocka_unit_test(parts_with_leases_of_their_own_end_in_their_order),
        cmocka_unit_test(parts_are_listed_in_pages_and_evicted_only_by_force_while_leased),
        cmocka_unit_test(attends_pass_what_waits_but_every_seventeenth_job_is_another),
        cmocka_unit_test(a_full_queue_refuses_order_is_kept_and_the_rest_is_cancelled),
        cmocka_unit_test(jobs_are_done_on_a_thread_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
