/*
 * Parts whose K/V is int8 with a scale a vector: attended, sampled, read back and checked as what
 * the int8 stands for.
 */
#include "tests/unit/exec_fixture.h"

static const struct shape exact_shape = {.layers = 1,
                                         .q_heads = 6,
                                         .kv_heads = 2,
                                         .dim = 33,
                                         .dtype = PP_I8,
                                         .estimator = {.kind = PP_EXACT}};
static const struct shape lsh_shape = {.layers = 1,
                                       .q_heads = 4,
                                       .kv_heads = 2,
                                       .dim = 64,
                                       .dtype = PP_I8,
                                       .estimator = {.kind = PP_LSH, .k = 4, .l = 32, .t = 2}};

static void queries(uint32_t count, float *q)
{
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < count; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
}

static void start(struct fixture *fixture)
{
    *fixture = (struct fixture){.now_us = 1};
    struct an_exec_config config = fixture_config(fixture);
    fixture_start(fixture, &config);
}

static void finish(struct fixture *fixture, uint64_t handle)
{
    (void)fixture_close(fixture, handle);
    fixture_expect_empty(fixture);
    fixture_stop(fixture);
}

static void exact_equals_the_reference_over_the_rounded_rows(void **state)
{
    (void)state;
    static const uint32_t held[] = {1, 15, 1000, 1023, 1024, 1025, 2500};
    float q[6 * 33];
    struct fixture fixture;
    queries(6 * 33, q);
    start(&fixture);
    uint64_t handle = fixture_open(&fixture, &exact_shape, 1);
    for (uint32_t at = 0; at < 2500; at += 500) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &exact_shape, 0, at, 500, 3, false),
                         PP_OK);
    }
    for (uint32_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        struct an_attend_item item;
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, held[i], 1, q, 6, 33, PP_ESTIMATOR_NONE, &item),
            PP_OK);
        assert_true(answer_error(&item, &exact_shape, 3, q) < 1e-5);
    }
    finish(&fixture, handle);
}

/* Centre, norms and signatures are of the rounded rows: an f32 part of those rows draws the same
 * keys, and its answer differs in rounding only. */
static void lsh_draws_as_an_f32_part_of_the_same_values(void **state)
{
    (void)state;
    enum { TOKENS = 3000, VALUES = TOKENS * 2 * 64 };
    struct shape wide_shape = lsh_shape;
    wide_shape.dtype = PP_F32;
    float *rows = malloc(2 * VALUES * sizeof(*rows));
    float q[4 * 64];
    uint32_t keys_read[4];
    float o[4 * 64];
    struct fixture fixture;
    assert_non_null(rows);
    queries(4 * 64, q);
    make_rounded(&lsh_shape, 5, TOKENS, rows);
    make_rounded(&lsh_shape, 6, TOKENS, rows + VALUES);
    start(&fixture);
    uint64_t wide = fixture_open(&fixture, &wide_shape, 1);
    uint64_t narrow = fixture_open(&fixture, &lsh_shape, 2);
    for (uint32_t at = 0; at < TOKENS; at += 1000) {
        fixture.job.append =
            append_args(wide, 1, &wide_shape, at, 1000, rows + at * 128, rows + VALUES + at * 128);
        assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
        assert_int_equal(fixture_append(&fixture, narrow, 1, &lsh_shape, 0, at, 1000, 5, false),
                         PP_OK);
    }
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, wide, 1, 0, TOKENS, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    memcpy(keys_read, item.keys_read, sizeof(keys_read));
    memcpy(o, item.o, sizeof(o));
    assert_true(keys_read[0] < TOKENS); /* sampled */
    assert_int_equal(fixture_attend(&fixture, narrow, 1, 0, TOKENS, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    assert_memory_equal(item.keys_read, keys_read, sizeof(keys_read));
    for (uint32_t i = 0; i < 4 * 64; i++) {
        assert_true(fabsf(item.o[i] - o[i]) < 1e-5f);
    }
    free(rows);
    (void)fixture_close(&fixture, wide);
    finish(&fixture, narrow);
}

static void rows_come_back_with_their_scales_and_equal_ones_are_duplicates(void **state)
{
    (void)state;
    enum { TOKENS = 1100, BYTES = TOKENS * 2 * 37 };
    uint8_t *sent = malloc(2 * BYTES);
    uint8_t *got = malloc(2 * BYTES);
    struct fixture fixture;
    assert_true(sent != NULL && got != NULL);
    make_vectors(&exact_shape, 9, 0, TOKENS, sent);
    make_vectors(&exact_shape, 10, 0, TOKENS, sent + BYTES);
    start(&fixture);
    uint64_t handle = fixture_open(&fixture, &exact_shape, 1);
    for (int again = 0; again < 2; again++) {
        fixture.job.append = append_args(handle, 1, &exact_shape, 0, TOKENS, sent, sent + BYTES);
        assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
        assert_int_equal(fixture.job.append.duplicate, again);
    }
    fixture.job.read = (struct an_read_args){
        .part = {handle, 1}, .count = TOKENS, .out = got, .out_capacity = 2 * BYTES};
    assert_int_equal(fixture_run(&fixture, AN_JOB_READ), PP_OK);
    assert_int_equal(fixture.job.read.out_bytes, 2 * BYTES);
    assert_memory_equal(sent, got, 2 * BYTES);
    /* Another scale is another row. */
    sent[33] ^= 1;
    fixture.job.append = append_args(handle, 1, &exact_shape, 0, 10, sent, sent + BYTES);
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_APPEND_CONFLICT);
    free(sent);
    free(got);
    finish(&fixture, handle);
}

static void scales_out_of_range_are_refused_in_keys_and_values(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -1.0f, 0x1p34f};
    uint8_t rows[2][3 * 2 * 37];
    struct fixture fixture;
    start(&fixture);
    uint64_t handle = fixture_open(&fixture, &exact_shape, 1);
    for (uint32_t i = 0; i < 8; i++) {
        make_vectors(&exact_shape, 1, 0, 3, rows[0]);
        make_vectors(&exact_shape, 2, 0, 3, rows[1]);
        memcpy(rows[i % 2] + 5 * 37 + 33, &bad[i / 2], sizeof(float));
        fixture.job.append = append_args(handle, 1, &exact_shape, 0, 3, rows[0], rows[1]);
        assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_NON_FINITE);
    }
    finish(&fixture, handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_equals_the_reference_over_the_rounded_rows),
        cmocka_unit_test(lsh_draws_as_an_f32_part_of_the_same_values),
        cmocka_unit_test(rows_come_back_with_their_scales_and_equal_ones_are_duplicates),
        cmocka_unit_test(scales_out_of_range_are_refused_in_keys_and_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
