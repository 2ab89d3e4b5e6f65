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

static struct gw_device *host(void)
{
    static struct gw_device *device;
    if (device == NULL) {
        assert_int_equal(gw_host_device_new(1, &device), PP_OK);
    }
    return device;
}

static struct gw_sampler sampler_of(const struct gw_sampling *sampling)
{
    struct gw_sampler sampler;
    assert_int_equal(gw_sampler_init(&sampler, host(), VOCAB, sampling), PP_OK);
    return sampler;
}

static struct gw_sampling sampling_at(double temperature)
{
    struct gw_sampling sampling = GW_SAMPLING_GREEDY;
    sampling.temperature = temperature;
    sampling.seed = 7;
    return sampling;
}

static void counts_of(const struct gw_sampling *sampling, uint32_t draws, uint32_t *counts_out)
{
    struct gw_sampler sampler = sampler_of(sampling);
    memset(counts_out, 0, VOCAB * sizeof(*counts_out));
    for (uint32_t i = 0; i < draws; i++) {
        uint32_t id;
        assert_int_equal(gw_sampler_next(&sampler, NULL, some_logits, &id), PP_OK);
        assert_true(id < VOCAB);
        counts_out[id]++;
    }
    gw_sampler_deinit(&sampler);
}

static void greedy_takes_the_lowest_id_among_the_likeliest(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    counts_of(&GW_SAMPLING_GREEDY, 3, counts);
    assert_int_equal(counts[1], 3);
}

static void draws_follow_the_softmax_at_a_temperature(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    const double temperature = 0.7;
    const struct gw_sampling sampling = sampling_at(temperature);
    counts_of(&sampling, 100000, counts);
    double total = 0.0;
    for (uint32_t i = 0; i < VOCAB; i++) {
        total += exp((double)some_logits[i] / temperature);
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        double p = exp((double)some_logits[i] / temperature) / total;
        double error = fabs(counts[i] / 1e5 - p);
        assert_true(error <= 4.0 * sqrt(p * (1.0 - p) / 1e5));
    }
}

static void top_k_top_p_and_min_p_cut_the_tail(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct gw_sampling sampling = sampling_at(1.0);
    sampling.top_k = 3;
    counts_of(&sampling, 5000, counts);
    assert_true(counts[1] > 0 && counts[4] > 0 && counts[7] > 0);
    assert_int_equal(counts[1] + counts[4] + counts[7], 5000);
    /* 1 and 4 have 0.307 each: together they pass 0.5, alone neither does. */
    sampling = sampling_at(1.0);
    sampling.top_p = 0.5;
    counts_of(&sampling, 5000, counts);
    assert_true(counts[1] > 0 && counts[4] > 0);
    assert_int_equal(counts[1] + counts[4], 5000);
    /* 7 has e^-0.5 = 0.607 of the likeliest ones' probability, 2 has e^-1 = 0.368. */
    sampling = sampling_at(1.0);
    sampling.min_p = 0.4;
    counts_of(&sampling, 5000, counts);
    assert_true(counts[1] > 0 && counts[4] > 0 && counts[7] > 0);
    assert_int_equal(counts[1] + counts[4] + counts[7], 5000);
}

static void equals_at_a_cut_are_kept_in_order_of_their_ids(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct gw_sampling sampling = sampling_at(1.0);
    sampling.top_p = 0.2;
    counts_of(&sampling, 1000, counts);
    assert_int_equal(counts[1], 1000);
}

/* 1 and 4 have 2, 7 has 1.5, 2 has 1: of the prompt 1 and 2, divided by 2 to 1 and 0.5; 4 is drawn
 * first and then has 2 / 2 - 0.25 - 0.5. */
static void what_was_seen_becomes_less_likely(void **state)
{
    (void)state;
    struct gw_sampling sampling = GW_SAMPLING_GREEDY;
    sampling.repetition = 2.0;
    sampling.presence = 0.25;
    sampling.frequency = 0.5;
    struct gw_sampler sampler = sampler_of(&sampling);
    const uint32_t prompt[] = {1, 2, 1, VOCAB + 3}, expected[] = {4, 7, 1, 2, 5};
    assert_int_equal(gw_sampler_prompt(&sampler, prompt, 4), PP_OK);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t id;
        assert_int_equal(gw_sampler_next(&sampler, NULL, some_logits, &id), PP_OK);
        assert_int_equal(id, expected[i]);
    }
    gw_sampler_deinit(&sampler);
}

static void the_same_seed_draws_the_same_tokens_and_another_does_not(void **state)
{
    (void)state;
    struct gw_sampling sampling = sampling_at(1.0);
    struct gw_sampler one = sampler_of(&sampling), two = sampler_of(&sampling);
    sampling.seed = 8;
    struct gw_sampler other = sampler_of(&sampling);
    uint32_t different = 0;
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t ids[3];
        assert_int_equal(gw_sampler_next(&one, NULL, some_logits, &ids[0]), PP_OK);
        assert_int_equal(gw_sampler_next(&two, NULL, some_logits, &ids[1]), PP_OK);
        assert_int_equal(gw_sampler_next(&other, NULL, some_logits, &ids[2]), PP_OK);
        assert_int_equal(ids[0], ids[1]);
        different += ids[0] != ids[2] ? 1 : 0;
    }
    assert_true(different > 20);
    gw_sampler_deinit(&one);
    gw_sampler_deinit(&two);
    gw_sampler_deinit(&other);
}

static void refused(const struct gw_sampling *sampling, uint32_t vocab)
{
    struct gw_sampler sampler;
    assert_int_equal(gw_sampler_init(&sampler, host(), vocab, sampling), PP_INVALID_ARGUMENT);
}

static void parameters_that_mean_nothing_are_refused(void **state)
{
    (void)state;
    const double temperatures[] = {(double)NAN, -1.0, (double)INFINITY};
    const double shares[] = {0.0, -0.1, 1.0001, (double)NAN};
    struct gw_sampling sampling;
    for (uint32_t i = 0; i < 3; i++) {
        sampling = sampling_at(temperatures[i]);
        refused(&sampling, VOCAB);
        sampling = sampling_at(1.0);
        sampling.presence = i == 1 ? (double)NAN : temperatures[i];
        refused(&sampling, i == 1 ? 0 : VOCAB);
        sampling = sampling_at(1.0);
        sampling.repetition = temperatures[i];
        refused(&sampling, VOCAB);
    }
    for (uint32_t i = 0; i < 4; i++) {
        sampling = sampling_at(1.0);
        sampling.top_p = shares[i];
        refused(&sampling, VOCAB);
        sampling = sampling_at(1.0);
        sampling.min_p = i == 0 ? -1.0 : shares[i];
        refused(&sampling, VOCAB);
    }
}

static void a_tiny_temperature_is_greedy_and_a_huge_one_uniform(void **state)
{
    (void)state;
    uint32_t counts[VOCAB];
    struct gw_sampling sampling = sampling_at(1e-45);
    sampling.top_k = 1;
    counts_of(&sampling, 100, counts);
    assert_int_equal(counts[1], 100);
    sampling = sampling_at(5e-324); /* whose inverse is infinite */
    counts_of(&sampling, 100, counts);
    assert_int_equal(counts[1] + counts[4], 100);
    sampling = sampling_at(1e6);
    counts_of(&sampling, 70000, counts);
    assert_int_equal(counts[6], 0); /* -inf is never drawn */
    assert_true(counts[3] > 9600 && counts[3] < 10400);
}

static void logits_that_are_no_numbers_are_an_error(void **state)
{
    (void)state;
    const struct gw_sampling sampling = sampling_at(1.0);
    struct gw_sampler sampler = sampler_of(&sampling);
    uint32_t id;
    float nan[VOCAB] = {0.0f, NAN}, infinite[VOCAB] = {0.0f, INFINITY}, nothing[VOCAB];
    for (uint32_t i = 0; i < VOCAB; i++) {
        nothing[i] = -INFINITY;
    }
    assert_int_equal(gw_sampler_next(&sampler, NULL, nan, &id), PP_NON_FINITE);
    assert_int_equal(gw_sampler_next(&sampler, NULL, infinite, &id), PP_NON_FINITE);
    assert_int_equal(gw_sampler_next(&sampler, NULL, nothing, &id), PP_NON_FINITE);
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

/* The draws share one device, which is the host. */
static int close_host(void **state)
{
    (void)state;
    host()->ops->destroy(host());
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_lowest_id_among_the_likeliest),
        cmocka_unit_test(draws_follow_the_softmax_at_a_temperature),
        cmocka_unit_test(top_k_top_p_and_min_p_cut_the_tail),
        cmocka_unit_test(equals_at_a_cut_are_kept_in_order_of_their_ids),
        cmocka_unit_test(what_was_seen_becomes_less_likely),
        cmocka_unit_test(the_same_seed_draws_the_same_tokens_and_another_does_not),
        cmocka_unit_test(parameters_that_mean_nothing_are_refused),
        cmocka_unit_test(a_tiny_temperature_is_greedy_and_a_huge_one_uniform),
        cmocka_unit_test(logits_that_are_no_numbers_are_an_error),
        cmocka_unit_test(kl_is_zero_for_equal_rows_and_matches_a_closed_form),
    };
    return cmocka_run_group_tests(tests, NULL, close_host);
}
