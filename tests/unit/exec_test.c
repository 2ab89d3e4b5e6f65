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

static void make_queries(uint64_t salt, uint32_t count, float *q)
{
    struct pp_rng rng = {.seed = salt};
    for (uint32_t i = 0; i < count; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_append_attend_close_gives_exact_attention_and_all_bytes_back),
        cmocka_unit_test(self_test_passes_on_a_fresh_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
