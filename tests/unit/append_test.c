/*
 * The rules of appending, at the level of exec's jobs: what is appended, what is met again, what is
 * refused, and that a refused append changes nothing.
 */
#include "common/base/crc32c.h"
#include "tests/unit/exec_fixture.h"

static const struct shape small = {.layers = 2,
                                   .q_heads = 3,
                                   .kv_heads = 3,
                                   .dim = 5,
                                   .dtype = PP_F32,
                                   .estimator = {.kind = PP_EXACT}};

static struct fixture fixture;
static uint64_t handle;

static int set_up(void **state)
{
    (void)state;
    fixture = (struct fixture){.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    handle = fixture_open(&fixture, &small, 1);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    if (handle != 0) {
        (void)fixture_close(&fixture, handle);
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
    return 0;
}

/* CRC of all held rows of a layer: what a refused append must not change. */
static uint32_t content(uint32_t layer, uint32_t count)
{
    static uint8_t out[1 << 20];
    if (count == 0) {
        return 0;
    }
    fixture.job.read = (struct an_read_args){.part = {handle, 1},
                                             .layer = layer,
                                             .count = count,
                                             .out = out,
                                             .out_capacity = sizeof(out)};
    assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OK);
    uint32_t crc = pp_crc32c(0, out, fixture.job.read.out_bytes);
    assert_int_equal(fixture.job.read.crc32c, crc);
    return crc;
}

static uint64_t held(uint32_t layer)
{
    return fixture_layers(&fixture, handle)[layer].held_tokens;
}

static enum pp_status append(uint64_t start, uint32_t count, uint64_t salt)
{
    return fixture_append(&fixture, handle, 1, &small, 0, start, count, salt, false);
}

static void append_at_the_length_is_appended(void **state)
{
    (void)state;
    assert_int_equal(append(0, 10, 1), PP_OK);
    assert_false(fixture.job.append.duplicate);
    assert_int_equal(append(10, 5, 1), PP_OK);
    assert_int_equal(fixture.job.append.held_tokens, 15);
    assert_int_equal(held(1), 0);
}

static void append_sent_again_is_a_duplicate_once_held(void **state)
{
    (void)state;
    assert_int_equal(append(0, 1500, 1), PP_OK);
    uint32_t before = content(0, 1500);
    assert_int_equal(append(0, 1500, 1), PP_OK);
    assert_true(fixture.job.append.duplicate);
    assert_int_equal(append(1000, 100, 1), PP_OK);
    assert_true(fixture.job.append.duplicate);
    assert_int_equal(fixture.job.append.held_tokens, 1500);
    assert_int_equal(content(0, 1500), before);
}

static void append_over_the_end_keeps_the_equal_part_and_adds_the_rest(void **state)
{
    (void)state;
    assert_int_equal(append(0, 1020, 1), PP_OK);
    assert_int_equal(append(1000, 60, 1), PP_OK);
    assert_false(fixture.job.append.duplicate);
    assert_int_equal(fixture.job.append.held_tokens, 1060);
    uint32_t whole = content(0, 1060);
    (void)fixture_close(&fixture, handle);
    handle = fixture_open(&fixture, &small, 1);
    assert_int_equal(append(0, 1060, 1), PP_OK);
    assert_int_equal(content(0, 1060), whole);
}

static void different_rows_are_a_conflict_and_change_nothing(void **state)
{
    (void)state;
    assert_int_equal(append(0, 30, 1), PP_OK);
    uint32_t before = content(0, 30);
    assert_int_equal(append(0, 30, 9), PP_APPEND_CONFLICT);
    assert_int_equal(append(29, 2, 9), PP_APPEND_CONFLICT);
    assert_int_equal(held(0), 30);
    assert_int_equal(content(0, 30), before);
}

static void append_past_the_length_is_a_gap_with_the_expected_start(void **state)
{
    (void)state;
    assert_int_equal(append(0, 30, 1), PP_OK);
    assert_int_equal(append(35, 5, 1), PP_APPEND_GAP);
    assert_int_equal(fixture.job.append.held_tokens, 30);
    assert_int_equal(held(0), 30);
}

/* Sends an append of `count` rows whose arguments `spoil` has changed. */
static enum pp_status spoiled(uint32_t count, void (*spoil)(struct an_append_args *args))
{
    static float rows[2 * 64 * 15];
    make_rows(&small, 1, 0, 64, rows);
    make_rows(&small, 2, 0, 64, rows + 64 * 15);
    fixture.job.append = append_args(handle, 1, &small, 0, count, rows, rows + 64 * 15);
    spoil(&fixture.job.append);
    return fixture_run(&fixture, AN_JOB_APPEND);
}

static void start_at_the_end_of_64_bits(struct an_append_args *args)
{
    args->start = UINT64_MAX;
}
static void start_at_the_limit(struct an_append_args *args)
{
    args->start = PP_TOKENS_PER_PART_MAX - 1;
}
static void count_zero(struct an_append_args *args)
{
    args->count = 0;
}
static void count_huge(struct an_append_args *args)
{
    args->count = UINT32_MAX;
}
static void v_shorter(struct an_append_args *args)
{
    args->v = pp_span_part(args->v, 0, args->v.bytes - 4);
}
static void both_shorter(struct an_append_args *args)
{
    args->k = pp_span_part(args->k, 0, args->k.bytes - 4);
    v_shorter(args);
}
static void no_k(struct an_append_args *args)
{
    args->k = pp_span_of(NULL, 0);
}
static void layer_past_the_end(struct an_append_args *args)
{
    args->layer = 2;
}
static void terabyte_declared(struct an_append_args *args)
{
    args->k.bytes = 1ull << 40;
    args->v.bytes = 1ull << 40;
}
static void rows_outside_their_segment(struct an_append_args *args)
{
    args->segment_given = true;
    args->segment_count = 1;
}
static void segment_too_long(struct an_append_args *args)
{
    args->segment_given = true;
    args->segment_count = PP_SEGMENT_TOKENS_MAX + 1ull;
}
static void signatures_without_lsh(struct an_append_args *args)
{
    args->segment_given = true;
    args->segment_count = 2;
    args->centre = pp_span_part(args->k, 0, 15 * 4);
    args->signatures = pp_span_part(args->k, 0, 12);
}

static void sizes_that_do_not_fit_are_refused_and_change_nothing(void **state)
{
    (void)state;
    static void (*const spoils[])(struct an_append_args *) = {start_at_the_end_of_64_bits,
                                                              start_at_the_limit,
                                                              count_zero,
                                                              count_huge,
                                                              v_shorter,
                                                              both_shorter,
                                                              no_k,
                                                              layer_past_the_end,
                                                              terabyte_declared,
                                                              rows_outside_their_segment,
                                                              segment_too_long,
                                                              signatures_without_lsh};
    assert_int_equal(append(0, 20, 1), PP_OK);
    uint32_t before = content(0, 20);
    struct an_exec_usage usage_before, usage;
    an_exec_usage(fixture.exec, &usage_before);
    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        assert_int_equal(spoiled(2, spoils[i]), PP_INVALID_ARGUMENT);
        assert_int_equal(held(0), 20);
    }
    an_exec_usage(fixture.exec, &usage);
    assert_memory_equal(&usage, &usage_before, sizeof(usage));
    assert_int_equal(content(0, 20), before);
}

static void dtype_bf16(struct an_append_args *args)
{
    args->dtype = PP_BF16;
}
static void dtype_own(struct an_append_args *args)
{
    args->dtype = PP_F32;
}
static void dtype_unknown(struct an_append_args *args)
{
    args->dtype = (enum pp_dtype)0x7fffffff;
}

static void another_dtype_is_refused_by_name(void **state)
{
    (void)state;
    assert_int_equal(spoiled(2, dtype_bf16), PP_MODEL_MISMATCH);
    assert_int_equal(spoiled(2, dtype_unknown), PP_BAD_DTYPE);
    assert_int_equal(held(0), 0);
    assert_int_equal(spoiled(2, dtype_own), PP_OK);
}

static uint32_t right_crc;
static void checksum_wrong(struct an_append_args *args)
{
    args->checksum_given = true;
    args->payload = args->k;
    right_crc = pp_crc32c(0, args->k.data, args->k.bytes);
    args->crc32c = right_crc ^ 1u;
}
static void checksum_right(struct an_append_args *args)
{
    checksum_wrong(args);
    args->crc32c = right_crc;
}

static void wrong_checksum_is_data_loss_and_changes_nothing(void **state)
{
    (void)state;
    assert_int_equal(spoiled(2, checksum_wrong), PP_CHECKSUM);
    assert_int_equal(held(0), 0);
    assert_int_equal(spoiled(2, checksum_right), PP_OK);
    assert_int_equal(held(0), 2);
}

static void values_that_are_not_finite_or_too_large_are_refused(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1.8p40f, -0x1.8p40f};
    float rows[2][30] = {{0}};
    for (size_t i = 0; i < 5; i++) {
        for (int where = 0; where < 60; where += 59) {
            memset(rows, 0, sizeof(rows));
            rows[where / 30][where % 30] = bad[i];
            fixture.job.append = append_args(handle, 1, &small, 0, 2, rows[0], rows[1]);
            assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_NON_FINITE);
        }
    }
    assert_int_equal(held(0), 0);
    memset(rows, 0, sizeof(rows));
    rows[1][3] = 0x1p40f;
    rows[0][3] = -0x1p40f;
    fixture.job.append = append_args(handle, 1, &small, 0, 2, rows[0], rows[1]);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
}

static void unaligned_payloads_are_read_as_they_are(void **state)
{
    (void)state;
    uint8_t bytes[2 * 2 * 15 * 4 + 1];
    float rows[2 * 2 * 15];
    make_rows(&small, 1, 0, 2, rows);
    make_rows(&small, 2, 0, 2, rows + 30);
    memcpy(bytes + 1, rows, sizeof(rows));
    fixture.job.append = append_args(handle, 1, &small, 0, 2, bytes + 1, bytes + 1 + 120);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    assert_int_equal(content(0, 2), pp_crc32c(0, rows, sizeof(rows)));
}

#define CUT_ROWS  24u
#define CUT_BYTES (2u * CUT_ROWS * 15u * sizeof(float))

/* An append of CUT_ROWS rows from `start` on whose payload lies in pieces of `step` bytes. */
static enum pp_status append_cut(uint64_t start, const void *payload, size_t step, uint32_t crc)
{
    static struct pp_piece pieces[CUT_BYTES];
    uint64_t count = 0;
    for (size_t at = 0; at < CUT_BYTES; at += step) {
        size_t left = CUT_BYTES - at;
        pieces[count++] =
            (struct pp_piece){(const uint8_t *)payload + at, left < step ? left : step};
    }
    struct an_append_args *args = &fixture.job.append;
    *args = append_args(handle, 1, &small, start, CUT_ROWS, NULL, NULL);
    args->payload = pp_span_of_pieces(pieces, CUT_BYTES);
    args->k = pp_span_part(args->payload, 0, CUT_BYTES / 2);
    args->v = pp_span_part(args->payload, CUT_BYTES / 2, CUT_BYTES / 2);
    args->checksum_given = true;
    args->crc32c = crc;
    return fixture_run(&fixture, AN_JOB_APPEND);
}

static void rows_cut_into_pieces_anywhere_are_stored_like_whole_ones(void **state)
{
    (void)state;
    static float rows[2 * CUT_ROWS * 15];
    uint64_t start = 0;
    for (size_t step = 1; step <= 130; step++) {
        make_rows(&small, 3, start, CUT_ROWS, rows);
        make_rows(&small, 4, start, CUT_ROWS, rows + CUT_ROWS * 15);
        uint32_t crc = pp_crc32c(0, rows, CUT_BYTES);
        assert_int_equal(append_cut(start, rows, step, crc ^ 1), PP_CHECKSUM);
        assert_int_equal(held(0), start);
        assert_int_equal(append_cut(start, rows, step, crc), PP_OK);
        assert_int_equal(append_cut(start, rows, step, crc), PP_OK); /* met again, compared */
        assert_true(fixture.job.append.duplicate);
        start += CUT_ROWS;
    }
    uint32_t in_pieces = content(0, (uint32_t)start);
    (void)fixture_close(&fixture, handle);
    handle = fixture_open(&fixture, &small, 1);
    assert_int_equal(append(0, (uint32_t)start, 3), PP_OK);
    assert_int_equal(content(0, (uint32_t)start), in_pieces);
}

static void a_bad_value_or_another_row_is_found_wherever_the_pieces_are_cut(void **state)
{
    (void)state;
    static float rows[2 * CUT_ROWS * 15];
    for (size_t step = 1; step <= 130; step += 3) {
        for (size_t at = step; at < 2 * CUT_ROWS * 15; at += 131) {
            uint64_t start = held(0);
            make_rows(&small, 3, start, CUT_ROWS, rows);
            make_rows(&small, 4, start, CUT_ROWS, rows + CUT_ROWS * 15);
            float right = rows[at];
            rows[at] = NAN;
            uint32_t crc = pp_crc32c(0, rows, CUT_BYTES);
            assert_int_equal(append_cut(start, rows, step, crc), PP_NON_FINITE);
            rows[at] = right;
            crc = pp_crc32c(0, rows, CUT_BYTES);
            assert_int_equal(append_cut(start, rows, step, crc), PP_OK);
            rows[at] = -right;
            crc = pp_crc32c(0, rows, CUT_BYTES);
            assert_int_equal(append_cut(start, rows, step, crc), PP_APPEND_CONFLICT);
            assert_int_equal(held(0), start + CUT_ROWS);
        }
    }
}

static void stale_generation_and_unknown_handle_are_told_apart(void **state)
{
    (void)state;
    assert_int_equal(fixture_append(&fixture, handle, 2, &small, 0, 0, 2, 1, false),
                     PP_STALE_GENERATION);
    assert_int_equal(fixture_append(&fixture, handle, 0, &small, 0, 0, 2, 1, false),
                     PP_STALE_GENERATION);
    assert_int_equal(fixture_append(&fixture, handle ^ 1, 1, &small, 0, 0, 2, 1, false),
                     PP_PART_NOT_FOUND);
    assert_int_equal(held(0), 0);
}

static void rows_come_back_as_they_were_sent_across_seals(void **state)
{
    (void)state;
    assert_int_equal(append(0, 2500, 77), PP_OK);
    float k[100 * 15], v[100 * 15], out[2 * 100 * 15];
    static const uint32_t starts[] = {0, 960, 1023, 1024, 2000, 2400};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        make_rows(&small, 77, starts[i], 100, k);
        make_rows(&small, 78, starts[i], 100, v);
        fixture.job.read = (struct an_read_args){.part = {handle, 1},
                                                 .start = starts[i],
                                                 .count = 100,
                                                 .out = (uint8_t *)out,
                                                 .out_capacity = sizeof(out)};
        assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OK);
        assert_memory_equal(out, k, sizeof(k));
        assert_memory_equal(out + 1500, v, sizeof(v));
    }
    fixture.job.read = (struct an_read_args){.part = {handle, 1}, .start = 2401, .count = 100};
    assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OUT_OF_RANGE);
    fixture.job.read = (struct an_read_args){.part = {handle, 1}, .start = UINT64_MAX, .count = 2};
    assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OUT_OF_RANGE);
}

/* code(t, h, d) is read back through attention: one-hot queries of a large magnitude pick a token.
 */
static void rows_are_read_back_through_attention_with_one_hot_queries(void **state)
{
    (void)state;
    enum { TOKENS = 5 };
    float k[TOKENS][3][5] = {{{0}}}, v[TOKENS][3][5];
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < 3; h++) {
            k[t][h][t] = 1.0f;
            for (int d = 0; d < 5; d++) {
                v[t][h][d] = (float)(100 * t + 10 * h + d);
            }
        }
    }
    fixture.job.append = append_args(handle, 1, &small, 0, TOKENS, k, v);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    for (int t = 0; t < TOKENS; t++) {
        float q[3][5] = {{0}};
        for (int h = 0; h < 3; h++) {
            q[h][t] = 1000.0f;
        }
        struct an_attend_item item;
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, TOKENS, 1, q[0], 3, 5, PP_EXACT, &item), PP_OK);
        for (int i = 0; i < 15; i++) {
            assert_true(item.o[i] == v[t][i / 5][i % 5]);
        }
    }
}

/* The same of K: one-hot V makes the weights of the tokens the answer, and ln of their ratios is
 * the difference of the codes that the one-hot query picked. */
static void keys_are_read_back_through_the_weights_of_one_hot_queries(void **state)
{
    (void)state;
    enum { TOKENS = 5 };
    float k[TOKENS][3][5], v[TOKENS][3][5] = {{{0}}};
    for (int t = 0; t < TOKENS; t++) {
        for (int h = 0; h < 3; h++) {
            v[t][h][t] = 1.0f;
            for (int d = 0; d < 5; d++) {
                k[t][h][d] = (float)(t * t + 7 * h * t + 3 * d * t);
            }
        }
    }
    fixture.job.append = append_args(handle, 1, &small, 0, TOKENS, k, v);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    const float step = 0.05f; /* of a score, for a step of the code */
    for (int d = 0; d < 5; d++) {
        float q[3][5] = {{0}};
        for (int h = 0; h < 3; h++) {
            q[h][d] = step * sqrtf(5.0f);
        }
        struct an_attend_item item;
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, TOKENS, 1, q[0], 3, 5, PP_EXACT, &item), PP_OK);
        for (int h = 0; h < 3; h++) {
            const float *weights = item.o + 5 * h;
            for (int t = 0; t < TOKENS; t++) {
                float code = logf(weights[t] / weights[0]) / step;
                assert_true(fabsf(code - (k[t][h][d] - k[0][h][d])) < 0.01f);
            }
        }
    }
}

static void open_refuses_shapes_that_cannot_be(void **state)
{
    (void)state;
    (void)fixture_close(&fixture, handle);
    handle = 0;
    struct an_exec_usage usage;
    static const struct {
        struct shape shape;
        uint32_t kv_begin, kv_count;
        enum pp_status status;
    } bad[] = {
        {{1, 33, 2, 16, PP_F32, {.kind = PP_EXACT}}, 0, 2, PP_BAD_SHAPE},
        {{1, 4, 0, 16, PP_F32, {.kind = PP_EXACT}}, 0, 0, PP_BAD_SHAPE},
        {{1, 2, 4, 16, PP_F32, {.kind = PP_EXACT}}, 0, 4, PP_BAD_SHAPE},
        {{0, 4, 2, 16, PP_F32, {.kind = PP_EXACT}}, 0, 2, PP_BAD_SHAPE},
        {{1, 65536, 65536, 65536, PP_F32, {.kind = PP_EXACT}}, 0, 65536, PP_BAD_SHAPE},
        {{1, 4, 2, 257, PP_F32, {.kind = PP_EXACT}}, 0, 2, PP_BAD_SHAPE},
        {{1, 4, 2, 16, (enum pp_dtype)7, {.kind = PP_EXACT}}, 0, 2, PP_BAD_DTYPE},
        {{1, 4, 2, 16, (enum pp_dtype)0x7fffffff, {.kind = PP_EXACT}}, 0, 2, PP_BAD_DTYPE},
        {{1, 4, 2, 16, (enum pp_dtype) - 1, {.kind = PP_EXACT}}, 0, 2, PP_BAD_DTYPE},
        {{1, 4, 2, 16, PP_F32, {.kind = PP_EXACT}}, 1, 2, PP_BAD_SHAPE},
        {{1, 4, 2, 16, PP_F32, {.kind = PP_EXACT}}, 0xffffffffu, 2, PP_BAD_SHAPE},
        {{1, 4, 2, 16, PP_F32, {.kind = PP_EXACT}}, 0, 0, PP_BAD_SHAPE},
        {{1, 4, 2, 16, PP_F32, {.kind = PP_LSH, .k = 17, .l = 5, .t = 2}},
         0,
         2,
         PP_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        fixture.job.open = shape_open(&bad[i].shape, 3);
        fixture.job.open.kv_head_begin = bad[i].kv_begin;
        fixture.job.open.kv_head_count = bad[i].kv_count;
        assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), bad[i].status);
        an_exec_usage(fixture.exec, &usage);
        assert_memory_equal(&usage, &fixture.empty, sizeof(usage));
    }
}

static void open_again_gives_the_same_handle_and_other_parameters_are_refused(void **state)
{
    (void)state;
    assert_int_equal(append(0, 12, 1), PP_OK);
    uint64_t held_tokens[2] = {99, 99};
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.held_tokens = held_tokens;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
    assert_true(fixture.job.open.existed);
    assert_int_equal(fixture.job.open.handle, handle);
    assert_int_equal(held_tokens[0], 12);
    assert_int_equal(held_tokens[1], 0);
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.token_begin = 5;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_PART_EXISTS);
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.fingerprint[0] = 1;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_MODEL_MISMATCH);
    fixture.job.open.part_id[0] = 77; /* another part of the same sequence */
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_MODEL_MISMATCH);
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.shape.kv_dtype = PP_F16;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_MODEL_MISMATCH);
    fixture.job.open = shape_open(&small, 1);
    fixture.job.open.hash_seed++;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_MODEL_MISMATCH);
}

#define RULE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RULE(append_at_the_length_is_appended),
        RULE(append_sent_again_is_a_duplicate_once_held),
        RULE(append_over_the_end_keeps_the_equal_part_and_adds_the_rest),
        RULE(different_rows_are_a_conflict_and_change_nothing),
        RULE(append_past_the_length_is_a_gap_with_the_expected_start),
        RULE(sizes_that_do_not_fit_are_refused_and_change_nothing),
        RULE(another_dtype_is_refused_by_name),
        RULE(wrong_checksum_is_data_loss_and_changes_nothing),
        RULE(values_that_are_not_finite_or_too_large_are_refused),
        RULE(unaligned_payloads_are_read_as_they_are),
        RULE(rows_cut_into_pieces_anywhere_are_stored_like_whole_ones),
        RULE(a_bad_value_or_another_row_is_found_wherever_the_pieces_are_cut),
        RULE(stale_generation_and_unknown_handle_are_told_apart),
        RULE(rows_come_back_as_they_were_sent_across_seals),
        RULE(rows_are_read_back_through_attention_with_one_hot_queries),
        RULE(keys_are_read_back_through_the_weights_of_one_hot_queries),
        RULE(open_refuses_shapes_that_cannot_be),
        RULE(open_again_gives_the_same_handle_and_other_parameters_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
