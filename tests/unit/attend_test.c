/*
 * Attention over what is held, against a plain f64 reference: random interleavings of appends,
 * seals, forks and truncates; lengths around the thresholds; sampling; the same bits at any thread
 * count.
 */
#include "tests/unit/exec_fixture.h"

static const struct shape lsh_shape = {.layers = 3,
                                       .q_heads = 4,
                                       .kv_heads = 2,
                                       .dim = 64,
                                       .dtype = PP_F32,
                                       .estimator = {.kind = PP_LSH, .k = 5, .l = 24, .t = 2}};

/* Bits of one answer, f32s as they are. */
struct bits {
    uint32_t o[2 * 4 * 64], lse[8], var[8], lse_var[8], keys[8];
};

static void take_bits(const struct an_attend_item *item, struct bits *out)
{
    memcpy(out->o, item->o, sizeof(out->o));
    memcpy(out->lse, item->lse, sizeof(out->lse));
    memcpy(out->var, item->var, sizeof(out->var));
    memcpy(out->lse_var, item->lse_var, sizeof(out->lse_var));
    memcpy(out->keys, item->keys_read, sizeof(out->keys));
}

static void answers_have_the_same_bits_at_1_2_and_5_threads(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 5};
    struct bits first[3], bits;
    static const enum pp_estimator_kind kinds[] = {PP_EXACT, PP_LSH, PP_ESTIMATOR_NONE};
    float q[2 * 4 * 64];
    make_queries(3, 2 * 4 * 64, q);
    for (int i = 0; i < 3; i++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.threads = threads[i];
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &lsh_shape, 1);
        /* The layout is a function of the held length: cut the rows differently each time. */
        uint32_t step = 1000 + 531 * (uint32_t)i;
        for (uint32_t at = 0; at < 5000; at += step) {
            uint32_t count = 5000 - at < step ? 5000 - at : step;
            assert_int_equal(
                fixture_append(&fixture, handle, 1, &lsh_shape, 2, at, count, 8, false), PP_OK);
        }
        for (int kind = 0; kind < 3; kind++) {
            struct an_attend_item item;
            assert_int_equal(
                fixture_attend(&fixture, handle, 1, 2, 4800, 2, q, 4, 64, kinds[kind], &item),
                PP_OK);
            assert_true(kinds[kind] == PP_ESTIMATOR_NONE || item.used == kinds[kind]);
            take_bits(&item, i == 0 ? &first[kind] : &bits);
            assert_true(i == 0 || memcmp(&bits, &first[kind], sizeof(bits)) == 0);
        }
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

static void lsh_reads_a_part_of_the_rows_and_comes_near_exact(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &lsh_shape, 1);
    for (uint32_t layer = 0; layer < 3; layer++) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &lsh_shape, layer, 0, 8192, 8, false),
                         PP_OK);
    }
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    struct an_attend_item item;
    float exact_lse[4];
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 8192, 1, q, 4, 64, PP_EXACT, &item),
                     PP_OK);
    memcpy(exact_lse, item.lse, sizeof(exact_lse));
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 8192, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    assert_int_equal(item.used, PP_LSH);
    assert_true(item.rows_read > 0 && item.rows_read < item.rows_held);
    for (int head = 0; head < 4; head++) {
        assert_true(item.keys_read[head] > 0 && item.keys_read[head] < 8192);
        assert_true(item.var[head] > 0 && item.lse_var[head] > 0);
        assert_true(fabsf(item.lse[head] - exact_lse[head]) < 8 * sqrtf(item.lse_var[head]) + .01f);
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void lengths_around_the_switch_read_the_tail_whole_and_stay_near_exact(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    struct shape shape = lsh_shape;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 6, .l = 80, .t = 2};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    static const uint32_t lengths[] = {0, 1, 2, 1022, 1023, 1024, 1025, 1026, 2047, 2048, 2049};
    uint32_t held = 0;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        if (lengths[i] > held) {
            assert_int_equal(
                fixture_append(&fixture, handle, 1, &shape, 0, held, lengths[i] - held, 8, false),
                PP_OK);
            held = lengths[i];
        }
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, held, 1, q, 4, 64, PP_LSH, &item),
                         PP_OK);
        double error = answer_error(&item, &shape, 8, q);
        if (held < 1024) {
            assert_true(error < 1e-4); /* no index yet: exact */
            assert_int_equal(item.rows_read, 2 * held);
        } else {
            print_message("%u tokens: error %.3f\n", held, error);
            assert_true(error < 0.35);
            for (int head = 0; head < 4; head++) {
                assert_true(item.keys_read[head] > held % 1024 && item.keys_read[head] < held);
            }
        }
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void dense_layers_are_exact_and_take_no_index(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    static const uint32_t dense[] = {1, 1};
    fixture.job.open = shape_open(&lsh_shape, 1);
    fixture.job.open.dense_layers = dense;
    fixture.job.open.dense_layer_count = 2;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
    uint64_t handle = fixture.job.open.handle;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK); /* the same, asked again */
    assert_int_equal(fixture_append(&fixture, handle, 1, &lsh_shape, 1, 0, 2048, 8, false), PP_OK);
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 1, 2048, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    assert_int_equal(item.used, PP_EXACT);
    assert_true(answer_error(&item, &lsh_shape, 8, q) < 1e-4);
    const struct an_layer_info *layers = fixture_layers(&fixture, handle);
    assert_int_equal(layers[1].sealed_tokens, 2048);
    assert_int_equal(layers[1].indexed_tokens, 0);
    fixture.job.open.dense_layer_count = 0;
    fixture.job.open = shape_open(&lsh_shape, 1);
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_PART_EXISTS);
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

static void one_bad_item_never_spoils_the_others(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &lsh_shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &lsh_shape, 0, 0, 100, 8, false), PP_OK);
    float q[4 * 64], bad_q[4 * 64];
    make_queries(4, 4 * 64, q);
    memcpy(bad_q, q, sizeof(q));
    bad_q[70] = NAN;
    static const uint64_t seeds[2] = {1, 2};
    struct an_attend_item items[9];
    for (int i = 0; i < 9; i++) {
        items[i] = (struct an_attend_item){.part = {handle, 1},
                                           .held_tokens = 100,
                                           .q_rows = 1,
                                           .q = (const uint8_t *)q,
                                           .q_bytes = sizeof(q)};
    }
    items[1].q = (const uint8_t *)bad_q;
    items[2].part.handle ^= 1;
    items[3].part.generation = 2;
    items[4].held_tokens = 101;
    items[5].q_bytes -= 4;
    items[6].estimator = (struct pp_estimator){.kind = PP_LSH, .k = 7, .l = 24, .t = 2};
    items[7].seeds = seeds;
    items[7].seed_count = 2;
    static const enum pp_status expected[9] = {
        PP_OK,         PP_NON_FINITE,       PP_PART_NOT_FOUND, PP_STALE_GENERATION,
        PP_SHORT_PART, PP_INVALID_ARGUMENT, PP_UNIMPLEMENTED,  PP_INVALID_ARGUMENT,
        PP_OK};
    fixture.job.attend =
        (struct an_attend_args){.q_dtype = PP_F32, .items = items, .item_count = 9};
    assert_int_equal(fixture_run(&fixture, AN_JOB_ATTEND), PP_OK);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(items[i].status, expected[i]);
    }
    assert_true(answer_error(&items[0], &lsh_shape, 8, q) < 1e-4);
    assert_true(answer_error(&items[8], &lsh_shape, 8, q) < 1e-4);
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

static void signatures_outside_their_buckets_are_refused(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &lsh_shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &lsh_shape, 0, 0, 1024, 8, false), PP_OK);
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    uint16_t codes[4][24];
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(7, 64, 5, 24, &hash), PP_OK);
    for (int head = 0; head < 4; head++) {
        pp_hash_query(hash, q + head * 64, codes[head]);
    }
    pp_hash_destroy(hash);
    struct an_attend_item own, sent;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 1024, 1, q, 4, 64, PP_LSH, &own),
                     PP_OK);
    float own_o[4 * 64];
    memcpy(own_o, own.o, sizeof(own_o));
    for (int spoil = 0; spoil < 2; spoil++) {
        sent = (struct an_attend_item){.part = {handle, 1},
                                       .held_tokens = 1024,
                                       .q_rows = 1,
                                       .estimator = {.kind = PP_LSH},
                                       .q = (const uint8_t *)q,
                                       .q_bytes = sizeof(q),
                                       .signatures = (const uint8_t *)codes,
                                       .signature_bytes = sizeof(codes)};
        codes[3][23] = spoil == 0 ? codes[3][23] : 32;
        fixture.job.attend =
            (struct an_attend_args){.q_dtype = PP_F32, .items = &sent, .item_count = 1};
        assert_int_equal(fixture_run(&fixture, AN_JOB_ATTEND), PP_OK);
        assert_int_equal(sent.status, spoil == 0 ? PP_OK : PP_INVALID_ARGUMENT);
        assert_true(spoil == 1 || memcmp(own_o, sent.o, sizeof(own_o)) == 0);
    }
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

/* A clock that moves by itself with every look: the deadline passes between two pieces. */
static uint64_t ticking(void *context)
{
    uint64_t *now_us = context;
    return __atomic_add_fetch(now_us, 1, __ATOMIC_RELAXED);
}

static void a_deadline_ends_an_attend_before_it_starts_and_between_pieces(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1000};
    struct an_exec_config config = fixture_config(&fixture);
    uint64_t ticks = 1000;
    config.clock = (struct pp_clock){ticking, &ticks};
    fixture_start(&fixture, &config);
    struct shape shape = lsh_shape;
    shape.estimator.kind = PP_EXACT;
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 9000, 8, false), PP_OK);
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    for (uint64_t left = 0; left <= 100000; left = left == 0 ? 14 : left + 99986) {
        struct an_attend_item item = {.part = {handle, 1},
                                      .held_tokens = 9000,
                                      .q_rows = 1,
                                      .q = (const uint8_t *)q,
                                      .q_bytes = sizeof(q)};
        fixture.job.attend = (struct an_attend_args){
            .q_dtype = PP_F32, .deadline_us = ticks + left, .items = &item, .item_count = 1};
        enum pp_status status = fixture_run(&fixture, AN_JOB_ATTEND);
        assert_int_equal(status, left == 0 ? PP_DEADLINE_EXCEEDED : PP_OK);
        assert_int_equal(item.status, left > 1000 ? PP_OK : PP_DEADLINE_EXCEEDED);
    }
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

static void many_rows_and_heads_take_several_batches_and_stay_right(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.threads = 2;
    fixture_start(&fixture, &config);
    struct shape shape = {.layers = 1,
                          .q_heads = 142,
                          .kv_heads = 2,
                          .dim = 20,
                          .dtype = PP_F32,
                          .estimator = {.kind = PP_EXACT}};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 300, 8, false), PP_OK);
    float *q = malloc(64 * 142 * 20 * sizeof(float));
    assert_non_null(q);
    make_queries(4, 64 * 142 * 20, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 300, 64, q, 142, 20, PP_EXACT, &item),
                     PP_OK);
    assert_true(answer_error(&item, &shape, 8, q) < 1e-4);
    assert_int_equal(item.rows_read, 300 * 2 * 64);
    assert_int_equal(item.rows_held, 300 * 2 * 64);
    free(q);
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

static void every_kv_head_of_odd_groups_is_used(void **state)
{
    (void)state;
    static const uint32_t heads[][2] = {{28, 4}, {24, 8}, {40, 8}, {15, 5}, {71, 1}, {12, 12}};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        struct shape shape = {1, heads[i][0], heads[i][1], 24, PP_F32, {.kind = PP_EXACT}};
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        static float k[10 * 12 * 24], v[10 * 12 * 24], q[71 * 24];
        for (uint32_t j = 0; j < 10 * shape.kv_heads * 24; j++) {
            k[j] = (float)(j % 7) * 0.1f;
            v[j] = (float)(j / 24 % shape.kv_heads) + 1.0f;
        }
        make_queries(5, shape.q_heads * 24, q);
        fixture.job.append = append_args(handle, 1, &shape, 0, 10, k, v);
        assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
        struct an_attend_item item;
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, 10, 1, q, shape.q_heads, 24, PP_EXACT, &item),
            PP_OK);
        for (uint32_t j = 0; j < shape.q_heads * 24; j++) {
            uint32_t kv = j / 24 / (shape.q_heads / shape.kv_heads);
            assert_true(fabsf(item.o[j] - (float)(kv + 1)) < 1e-4f);
        }
        (void)fixture_close(&fixture, handle);
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void odd_keys_and_a_zero_query_give_no_nan_and_leave_the_others_alone(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    struct shape shape = {1, 2, 1, 64, PP_F32, {.kind = PP_LSH, .k = 4, .l = 40, .t = 2}};
    static float k[1024 * 64], v[1024 * 64];
    make_rows(&shape, 1, 0, 1024, k);
    make_rows(&shape, 2, 0, 1024, v);
    for (int i = 0; i < 64; i++) {
        k[3 * 64 + i] = 0.0f;
        k[5 * 64 + i] = -0.0f;
        k[7 * 64 + i] = 1e-20f;
        k[9 * 64 + i] = 1e4f;
    }
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    fixture.job.append = append_args(handle, 1, &shape, 0, 1024, k, v);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    float q[2 * 64] = {0};
    make_queries(9, 64, q + 64); /* head 0 stays all zero */
    for (int kind = 0; kind < 2; kind++) {
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 1024, 1, q, 2, 64,
                                        kind == 0 ? PP_EXACT : PP_LSH, &item),
                         PP_OK);
        for (int i = 0; i < 128; i++) {
            assert_true(isfinite(item.o[i]));
        }
        assert_true(isfinite(item.lse[0]) && isfinite(item.lse[1]));
        assert_true(isfinite(item.var[0]) && isfinite(item.var[1]));
    }
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

/* One distinct key at tokens around 2 x 65,536, in other extents than the first. */
static void needles_past_the_first_extents_win_and_are_read_back(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    struct shape shape = {1, 2, 2, 8, PP_BF16, {.kind = PP_EXACT}};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    enum { STEP = 16384, TOTAL = 9 * STEP, WIDTH = 16 };
    static const uint32_t needles[] = {65471, 65472, 131071, 131072, 131073};
    static uint16_t k[STEP * WIDTH], v[STEP * WIDTH];
    for (uint32_t at = 0; at < TOTAL; at += STEP) {
        memset(k, 0, sizeof(k));
        memset(v, 0, sizeof(v));
        for (uint32_t i = 0; i < 5; i++) {
            if (needles[i] >= at && needles[i] < at + STEP) {
                uint16_t *key = k + (needles[i] - at) * WIDTH;
                key[i] = key[8 + i] = pp_bf16_from_f32(8.0f);
                v[(needles[i] - at) * WIDTH] = pp_bf16_from_f32((float)(i + 1));
                v[(needles[i] - at) * WIDTH + 8] = pp_bf16_from_f32(-(float)(i + 1));
            }
        }
        fixture.job.append = append_args(handle, 1, &shape, at, STEP, k, v);
        fixture.job.append.bulk = true;
        assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    }
    for (uint32_t i = 0; i < 5; i++) {
        float q[16] = {0};
        q[i] = q[8 + i] = 100.0f;
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, TOTAL, 1, q, 2, 8, PP_EXACT, &item),
                         PP_OK);
        assert_true(fabsf(item.o[0] - (float)(i + 1)) < 1e-3f);
        assert_true(fabsf(item.o[8] + (float)(i + 1)) < 1e-3f);
        uint16_t row[2 * WIDTH];
        fixture.job.read = (struct an_read_args){.part = {handle, 1},
                                                 .start = needles[i],
                                                 .count = 1,
                                                 .out = (uint8_t *)row,
                                                 .out_capacity = sizeof(row)};
        assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OK);
        assert_int_equal(row[i], pp_bf16_from_f32(8.0f));
        assert_int_equal(row[WIDTH], pp_bf16_from_f32((float)(i + 1)));
        /* One token fewer, and the needle is out of sight. */
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, needles[i], 1, q, 2, 8, PP_EXACT, &item), PP_OK);
        assert_true(fabsf(item.o[0]) < 1e-2f);
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needles_past_the_first_extents_win_and_are_read_back),
        cmocka_unit_test(answers_have_the_same_bits_at_1_2_and_5_threads),
        cmocka_unit_test(lsh_reads_a_part_of_the_rows_and_comes_near_exact),
        cmocka_unit_test(lengths_around_the_switch_read_the_tail_whole_and_stay_near_exact),
        cmocka_unit_test(dense_layers_are_exact_and_take_no_index),
        cmocka_unit_test(one_bad_item_never_spoils_the_others),
        cmocka_unit_test(signatures_outside_their_buckets_are_refused),
        cmocka_unit_test(a_deadline_ends_an_attend_before_it_starts_and_between_pieces),
        cmocka_unit_test(many_rows_and_heads_take_several_batches_and_stay_right),
        cmocka_unit_test(every_kv_head_of_odd_groups_is_used),
        cmocka_unit_test(odd_keys_and_a_zero_query_give_no_nan_and_leave_the_others_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
