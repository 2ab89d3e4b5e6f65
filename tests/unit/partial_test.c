/*
 * The merge law: empties, one among empties bit for bit, many against one softmax over all, and the
 * errors' formula.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/attn/partial.h"
#include "common/base/rng.h"

#define DIM 5u

static void the_merge_of_empties_is_the_empty_partial(void **state)
{
    (void)state;
    float o[3][DIM];
    float merged[DIM];
    struct pp_partial parts[3];
    struct pp_partial out = {.o = merged};
    for (uint32_t i = 0; i < 3; ++i) {
        parts[i].o = o[i];
        pp_partial_clear(&parts[i], DIM);
    }
    for (uint32_t count = 0; count <= 3; ++count) {
        memset(merged, 0x7f, sizeof(merged));
        pp_partial_merge(parts, count, DIM, &out);
        for (uint32_t d = 0; d < DIM; ++d) {
            assert_true(merged[d] == 0.0f);
        }
        assert_true(out.lse == -INFINITY && out.var == 0.0f && out.lse_var == 0.0f);
        assert_int_equal(out.keys_read, 0);
    }
}

static void one_among_empties_comes_back_bit_for_bit(void **state)
{
    (void)state;
    for (uint32_t count = 1; count <= 3; ++count) {
        for (uint32_t full = 0; full < count; ++full) {
            float o[3][DIM];
            float merged[DIM];
            float expected[DIM] = {1.1f, -0.0f, 3e-39f, -7e30f, 0.1f};
            struct pp_partial parts[3];
            struct pp_partial out = {.o = merged};
            for (uint32_t i = 0; i < count; ++i) {
                parts[i].o = o[i];
                pp_partial_clear(&parts[i], DIM);
            }
            memcpy(o[full], expected, sizeof(expected));
            parts[full].lse = -123.456f;
            parts[full].var = 0.25f;
            parts[full].lse_var = 0.5f;
            parts[full].keys_read = 9;
            pp_partial_merge(parts, count, DIM, &out);
            assert_memory_equal(merged, expected, sizeof(expected));
            assert_true(out.lse == -123.456f && out.var == 0.25f && out.lse_var == 0.5f);
            assert_int_equal(out.keys_read, 9);
        }
    }
}

static void shards_merge_to_the_softmax_over_all(void **state)
{
    (void)state;
    enum { COUNT = 64 };
    struct pp_rng rng = {.seed = 3};
    for (uint32_t shards = 2; shards <= 8; ++shards) {
        double scores[COUNT];
        double v[COUNT][DIM];
        double total = 0.0;
        double expected[DIM] = {0.0};
        float o[8][DIM];
        struct pp_partial parts[8];
        for (uint32_t i = 0; i < COUNT; ++i) {
            scores[i] = 10.0 * pp_rng_normal(&rng);
            total += exp(scores[i]);
            for (uint32_t d = 0; d < DIM; ++d) {
                v[i][d] = pp_rng_normal(&rng);
                expected[d] += exp(scores[i]) * v[i][d];
            }
        }
        for (uint32_t s = 0; s < shards; ++s) {
            double sum = 0.0;
            double part[DIM] = {0.0};
            for (uint32_t i = s; i < COUNT; i += shards) {
                sum += exp(scores[i]);
                for (uint32_t d = 0; d < DIM; ++d) {
                    part[d] += exp(scores[i]) * v[i][d];
                }
            }
            for (uint32_t d = 0; d < DIM; ++d) {
                o[s][d] = (float)(part[d] / sum);
            }
            parts[s] = (struct pp_partial){.o = o[s], .lse = (float)log(sum), .keys_read = 1};
        }
        /* The result may take the place of the first. */
        struct pp_partial out = {.o = o[0]};
        pp_partial_merge(parts, shards, DIM, &out);
        for (uint32_t d = 0; d < DIM; ++d) {
            assert_true(fabs((double)out.o[d] - expected[d] / total) < 5e-6);
        }
        assert_true(fabs((double)out.lse - log(total)) < 5e-6);
        assert_true(out.var == 0.0f && out.lse_var == 0.0f);
        assert_int_equal(out.keys_read, shards);
    }
}

static void scores_far_apart_merge_without_overflow(void **state)
{
    (void)state;
    static const float gaps[] = {100.0f, 1000.0f, 10000.0f, 3e38f};
    for (uint32_t i = 0; i < 4; ++i) {
        float near[1] = {2.0f};
        float far[1] = {5.0f};
        float merged[1];
        struct pp_partial parts[2] = {{.o = near, .lse = gaps[i], .var = 0.5f},
                                      {.o = far, .lse = -gaps[i], .var = 100.0f}};
        struct pp_partial out = {.o = merged};
        pp_partial_merge(parts, 2, 1, &out);
        assert_true(merged[0] == 2.0f && out.lse == gaps[i]);
        assert_true(fabsf(out.var - 0.5f) < 1e-6f);
    }
}

static void errors_merge_conservatively(void **state)
{
    (void)state;
    float a[1] = {1.0f};
    float b[1] = {3.0f};
    float merged[1];
    /* Equal weights: pi = 1/2 each, o = 2, |o_s - o| = 1. */
    struct pp_partial parts[2] = {{.o = a, .lse = 1.0f, .var = 0.04f, .lse_var = 0.09f},
                                  {.o = b, .lse = 1.0f, .var = -1.0f, .lse_var = 0.16f}};
    struct pp_partial out = {.o = merged};
    pp_partial_merge(parts, 2, 1, &out);
    double var = 0.25 * 0.5 * 0.5 + 0.25 * 0.4 * 0.4; /* a negative var counts as 0 */
    assert_true(fabs((double)out.var - var) < 1e-6);
    assert_true(fabs((double)out.lse_var - 0.25 * (0.09 + 0.16)) < 1e-6);
    assert_true(merged[0] == 2.0f);
}

static void few_rows_are_less_sure_than_they_look(void **state)
{
    (void)state;
    assert_true(pp_small_sample(0.0f) == 1.0f);
    /* n rows of one weight: n^2 / (n - 1)^2, as when each is left out in turn. */
    for (uint32_t n = 2; n <= 10; ++n) {
        float left = (float)n / (float)(n - 1);
        assert_true(fabsf(pp_small_sample(1.0f / (float)n) / (left * left) - 1.0f) < 1e-5f);
    }
    assert_true(fabsf(pp_small_sample(1.0f) - 100.0f) < 0.01f); /* bounded */
    assert_true(pp_small_sample(3.0f) == pp_small_sample(0.9f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_rows_are_less_sure_than_they_look),
        cmocka_unit_test(the_merge_of_empties_is_the_empty_partial),
        cmocka_unit_test(one_among_empties_comes_back_bit_for_bit),
        cmocka_unit_test(shards_merge_to_the_softmax_over_all),
        cmocka_unit_test(scores_far_apart_merge_without_overflow),
        cmocka_unit_test(errors_merge_conservatively),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
