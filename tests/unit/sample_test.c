/*
 * Sampling and scores of logits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "gpu-worker/ops/sample.h"

#define VOCAB 8u

static const float some_logits[VOCAB] = {0.0f, 2.0f, 1.0f, -3.0f, 2.0f, 0.5f, -INFINITY, 1.5f};

static void counts_of(const struct gw_sampler *from, uint32_t draws, uint32_t *counts_out)
{
    struct gw_sampler sampler = *from;
    memset(counts_out, 0, VOCAB * sizeof(*counts_out));
    for (uint32_t i = 0; i < draws; i++) {
        uint32_t id;
        assert_int_equal(gw_sampler_next(&sampler, some_logits, &id), PP_OK);
        assert_true(id < VOCAB);
        counts_out[id]++;
    }
}

static void greedy_takes_the_lowest_id_among_the_likeliest(void **state)
{
    (void)state;
    struct gw_sampler sampler;
    uint32_t id;
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 0.0, 0, 1.0, 7), PP_OK);
    assert_int_equal(gw_sampler_next(&sampler, some_logits, &id), PP_OK);
    assert_int_equal(id, 1);
    gw_sampler_deinit(&sampler);
}

static void draws_follow_the_softmax_at_a_temperature(void **state)
{
    (void)state;
    struct gw_sampler sampler;
    uint32_t counts[VOCAB];
    const double temperature = 0.7;
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, temperature, 0, 1.0, 7), PP_OK);
    counts_of(&sampler, 100000, counts);
    double total = 0.0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        total += exp((double)some_logits[i] / temperature);
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        double p = exp((double)some_logits[i] / temperature) / total;
        double error = fabs(counts[i] / 1e5 - p);
        assert_true(error <= 4.0 * sqrt(p * (1.0 - p) / 1e5));
    }
    gw_sampler_deinit(&sampler);
}

static void top_k_and_top_p_cut_the_tail(void **state)
{
    (void)state;
    struct gw_sampler sampler;
    uint32_t counts[VOCAB];
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1.0, 3, 1.0, 7), PP_OK);
    counts_of(&sampler, 5000, counts);
    assert_true(counts[1] > 0 && counts[4] > 0 && counts[7] > 0);
    assert_int_equal(counts[1] + counts[4] + counts[7], 5000);
    gw_sampler_deinit(&sampler);
    /* 1 and 4 have 0.307 each: together they pass 0.5, alone neither does. */
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1.0, 0, 0.5, 7), PP_OK);
    counts_of(&sampler, 5000, counts);
    assert_true(counts[1] > 0 && counts[4] > 0);
    assert_int_equal(counts[1] + counts[4], 5000);
    gw_sampler_deinit(&sampler);
}

static void the_same_seed_draws_the_same_tokens_and_another_does_not(void **state)
{
    (void)state;
    struct gw_sampler one, two, other;
    uint32_t different = 0;
    assert_int_equal(gw_sampler_init(&one, VOCAB, 1.0, 0, 1.0, 7), PP_OK);
    assert_int_equal(gw_sampler_init(&two, VOCAB, 1.0, 0, 1.0, 7), PP_OK);
    assert_int_equal(gw_sampler_init(&other, VOCAB, 1.0, 0, 1.0, 8), PP_OK);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t ids[3];
        assert_int_equal(gw_sampler_next(&one, some_logits, &ids[0]), PP_OK);
        assert_int_equal(gw_sampler_next(&two, some_logits, &ids[1]), PP_OK);
        assert_int_equal(gw_sampler_next(&other, some_logits, &ids[2]), PP_OK);
        assert_int_equal(ids[0], ids[1]);
        different += ids[0] != ids[2] ? 1 : 0;
    }
    assert_true(different > 20);
    gw_sampler_deinit(&one);
    gw_sampler_deinit(&two);
    gw_sampler_deinit(&other);
}

static void parameters_that_mean_nothing_are_refused(void **state)
{
    (void)state;
    struct gw_sampler sampler;
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, NAN, 0, 1.0, 7), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, -1.0, 0, 1.0, 7), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, INFINITY, 0, 1.0, 7), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1.0, 0, 0.0, 7), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1.0, 0, 1.0001, 7), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sampler_init(&sampler, 0, 1.0, 0, 1.0, 7), PP_INVALID_ARGUMENT);
}

static void a_tiny_temperature_is_greedy_and_a_huge_one_uniform(void **state)
{
    (void)state;
    struct gw_sampler sampler;
    uint32_t counts[VOCAB];
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1e-45, 1, 1.0, 7), PP_OK);
    counts_of(&sampler, 100, counts);
    assert_int_equal(counts[1], 100);
    gw_sampler_deinit(&sampler);
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1e6, 0, 1.0, 7), PP_OK);
    counts_of(&sampler, 70000, counts);
    assert_int_equal(counts[6], 0); /* -inf is never drawn */
    assert_true(counts[3] > 9600 && counts[3] < 10400);
    gw_sampler_deinit(&sampler);
}

static void logits_that_are_no_numbers_are_an_error(void **state)
{
    (void)state;
    struct gw_sampler sampler;
    uint32_t id;
    float logits[VOCAB] = {0.0f, NAN};
    float nothing[VOCAB];
    for (uint32_t i = 0; i < VOCAB; i++) {
        nothing[i] = -INFINITY;
    }
    assert_int_equal(gw_sampler_init(&sampler, VOCAB, 1.0, 0, 1.0, 7), PP_OK);
    assert_int_equal(gw_sampler_next(&sampler, logits, &id), PP_NON_FINITE);
    assert_int_equal(gw_sampler_next(&sampler, nothing, &id), PP_NON_FINITE);
    gw_sampler_deinit(&sampler);
}

static void kl_is_zero_for_equal_rows_and_matches_a_closed_form(void **state)
{
    (void)state;
    const float p[2] = {0.0f, 1.0f}, shifted[2] = {5.0f, 6.0f}, q[2] = {0.0f, 0.0f};
    double p1 = 1.0 / (1.0 + exp(-1.0));
    double expected = p1 * log(2.0 * p1) + (1.0 - p1) * log(2.0 * (1.0 - p1));
    assert_true(gw_kl(p, p, 2) == 0.0);
    assert_true(gw_kl(p, shifted, 2) < 1e-12);
    assert_true(fabs(gw_kl(p, q, 2) - expected) < 1e-12);
    assert_true(fabs(gw_log_sum_exp(p, 2) - log(1.0 + exp(1.0))) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_id_among_the_likeliest),
        cmocka_unit_test(draws_follow_the_softmax_at_a_temperature),
        cmocka_unit_test(top_k_and_top_p_cut_the_tail),
        cmocka_unit_test(the_same_seed_draws_the_same_tokens_and_another_does_not),
        cmocka_unit_test(parameters_that_mean_nothing_are_refused),
        cmocka_unit_test(a_tiny_temperature_is_greedy_and_a_huge_one_uniform),
        cmocka_unit_test(logits_that_are_no_numbers_are_an_error),
        cmocka_unit_test(kl_is_zero_for_equal_rows_and_matches_a_closed_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
