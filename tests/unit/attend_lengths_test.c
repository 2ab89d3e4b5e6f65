/*
 * A sketch with a budget of rows, at the lengths where something changes: none, one and two tokens,
 * the length from which segments are indexed, and the budget. Up to the budget a sample is all of
 * the rows, behind it all but a few, and the error does not jump. At the level of exec's jobs,
 * against f64.
 */
#include "tests/unit/exec_fixture.h"

#define BUDGET 1500u

static const struct shape sketched = {1,  6,       2,
                                      64, PP_BF16, {.kind = PP_SKETCH, .bits = 2, .rows = BUDGET}};

struct lengths {
    struct fixture fixture;
    uint64_t handle;
    uint32_t held;
    float q[6 * 64];
    struct an_attend_item item;
};

static void lengths_init(struct lengths *lengths)
{
    *lengths = (struct lengths){.fixture = {.now_us = 1}};
    struct an_exec_config config = fixture_config(&lengths->fixture);
    fixture_start(&lengths->fixture, &config);
    make_queries(4, 6 * 64, lengths->q);
    lengths->handle = fixture_open(&lengths->fixture, &sketched, 1);
}

static void lengths_deinit(struct lengths *lengths)
{
    (void)fixture_close(&lengths->fixture, lengths->handle);
    fixture_expect_empty(&lengths->fixture);
    fixture_stop(&lengths->fixture);
}

static void lengths_grow(struct lengths *lengths, uint32_t length)
{
    if (length > lengths->held) {
        assert_int_equal(fixture_append(&lengths->fixture, lengths->handle, 1, &sketched, 0,
                                        lengths->held, length - lengths->held, 8, true),
                         PP_OK);
        lengths->held = length;
    }
}

static void lengths_seal(struct lengths *lengths)
{
    lengths->fixture.job.seal = (struct an_seal_args){.part = {lengths->handle, 1}};
    assert_int_equal(fixture_run(&lengths->fixture, AN_JOB_SEAL), PP_OK);
    uint64_t indexed = fixture_layers(&lengths->fixture, lengths->handle)[0].indexed_tokens;
    assert_int_equal(indexed, lengths->held >= 1024 ? lengths->held : 0);
}

/* The error of the answer by `rows` rows of each kv head; 0: by the part's own budget. */
static double lengths_error(struct lengths *lengths, uint32_t rows)
{
    struct an_attend_item *item = &lengths->item;
    *item = (struct an_attend_item){.part = {lengths->handle, 1},
                                    .held_tokens = lengths->held,
                                    .q_rows = 1,
                                    .estimator = {.kind = PP_SKETCH, .rows = rows},
                                    .q = (const uint8_t *)lengths->q,
                                    .q_bytes = sizeof(lengths->q)};
    lengths->fixture.job.attend =
        (struct an_attend_args){.q_dtype = PP_F32, .items = item, .item_count = 1};
    assert_int_equal(fixture_run(&lengths->fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(item->status, PP_OK);
    return answer_error(item, &sketched, 8, lengths->q);
}

/* All of it is one segment: with an index from 1,024 tokens on, without one before. */
static void up_to_its_budget_a_sketch_is_exact(void **state)
{
    (void)state;
    static const uint32_t lengths_tried[] = {0, 1, 2, 1023, 1024, 1025, BUDGET - 1, BUDGET};
    for (size_t i = 0; i < sizeof(lengths_tried) / sizeof(lengths_tried[0]); i++) {
        struct lengths lengths;
        lengths_init(&lengths);
        lengths_grow(&lengths, lengths_tried[i]);
        lengths_seal(&lengths);
        for (uint32_t rows = 0; rows <= BUDGET; rows += BUDGET) {
            assert_true(lengths_error(&lengths, rows) < 1e-4);
            for (uint32_t head = 0; head < 6; head++) {
                assert_int_equal(lengths.item.keys_read[head], lengths_tried[i]);
                assert_true(lengths.item.var[head] == 0.0f);
                assert_true(lengths.item.lse_var[head] == 0.0f);
            }
        }
        lengths_deinit(&lengths);
    }
}

/* One row fewer than there are, and ten, and a third: the error begins small and grows. */
static void behind_its_budget_the_error_does_not_jump(void **state)
{
    (void)state;
    static const uint32_t lengths_tried[] = {BUDGET, BUDGET + 1, BUDGET + 10, 2 * BUDGET};
    static const double bounds[] = {1e-4, 0.02, 0.05, 0.3};
    for (size_t i = 0; i < sizeof(lengths_tried) / sizeof(lengths_tried[0]); i++) {
        struct lengths lengths;
        lengths_init(&lengths);
        lengths_grow(&lengths, lengths_tried[i]);
        lengths_seal(&lengths);
        double error = lengths_error(&lengths, 0);
        print_message("%u tokens, %u rows: error %.4f\n", lengths_tried[i],
                      lengths.item.keys_read[0], error);
        assert_true(error < bounds[i]);
        for (uint32_t head = 0; head < 6; head++) {
            double read = lengths.item.keys_read[head];
            double left_out = (double)lengths_tried[i] - BUDGET;
            assert_true(read <= lengths_tried[i]);
            assert_true(fabs(read - BUDGET) <= 6.0 * sqrt(left_out));
        }
        lengths_deinit(&lengths);
    }
}

/* As decoding grows it: what is behind the last whole segment is recent, and all of it is read. */
static void the_tail_behind_the_segments_is_read_whole(void **state)
{
    (void)state;
    static const uint32_t lengths_tried[] = {1023, 1024, 1025, 1026, 2047, 2048, 2049};
    struct lengths lengths;
    lengths_init(&lengths);
    for (size_t i = 0; i < sizeof(lengths_tried) / sizeof(lengths_tried[0]); i++) {
        while (lengths.held < lengths_tried[i]) {
            assert_int_equal(fixture_append(&lengths.fixture, lengths.handle, 1, &sketched, 0,
                                            lengths.held++, 1, 8, false),
                             PP_OK);
        }
        /* So few rows that none of the tail's would be drawn by chance. */
        double error = lengths_error(&lengths, 8);
        uint32_t tail = lengths.held % 1024;
        for (uint32_t head = 0; head < 6; head++) {
            assert_true(lengths.item.keys_read[head] >= tail);
            assert_true(lengths.item.keys_read[head] <= tail + 64 || lengths.held < 1024);
        }
        assert_true(lengths.held >= 1024 || error < 1e-4);
    }
    lengths_deinit(&lengths);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(up_to_its_budget_a_sketch_is_exact),
        cmocka_unit_test(behind_its_budget_the_error_does_not_jump),
        cmocka_unit_test(the_tail_behind_the_segments_is_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
