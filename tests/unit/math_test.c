/*
 * log u against a sum of its terms in long double, over the whole range of the cosine and where
 * other forms lose their digits; its table; and e^x.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "common/attn/math.h"

struct setting {
    uint32_t k, l, t;
};
static const struct setting settings[] = {{10, 150, 2}, {9, 120, 2},  {8, 75, 2}, {8, 98, 3},
                                          {7, 92, 4},   {16, 512, 2}, {6, 40, 5}, {10, 150, 1},
                                          {1, 1, 1},    {16, 2, 2},   {5, 5, 5},  {4, 512, 512}};
#define SETTING_COUNT (sizeof(settings) / sizeof(settings[0]))

/* P(at least t of l) as a sum of positive terms, or 1 less the other terms when those are fewer
 * in weight: nothing cancels either way. */
static double reference(long double cosine, const struct setting *s)
{
    long double p = 1.0L - acosl(cosine) / 3.14159265358979323846264L;
    p = p < 1e-6L ? 1e-6L : p;
    long double x = powl(p, s->k);
    long double rest = -expm1l(s->k * logl(p));
    if (rest <= 0.0L) {
        return 0.0;
    }
    long double at_least = 0.0L;
    long double fewer = 0.0L;
    for (uint32_t j = 0; j <= s->l; ++j) {
        long double choose = lgammal(s->l + 1.0L) - lgammal(j + 1.0L) - lgammal(s->l - j + 1.0L);
        long double term = expl(choose + j * logl(x) + (s->l - j) * logl(rest));
        *(j >= s->t ? &at_least : &fewer) += term;
    }
    return (double)(fewer < 0.5L ? log1pl(-fewer) : logl(at_least));
}

static void log_u_equals_the_sum_of_its_terms(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SETTING_COUNT; ++i) {
        const struct setting *s = &settings[i];
        for (int step = -1000; step <= 1000; ++step) {
            double cosine = step / 1000.0;
            double expected = reference((long double)cosine, s);
            double log_u = pp_log_u(cosine, s->k, s->l, s->t);
            double bound = 2e-5 + 1e-11 * fabs(expected);
            if (!(fabs(log_u - expected) <= bound)) {
                fail_msg("(%u,%u,%u) at %.3f: %.12g, not %.12g", s->k, s->l, s->t, cosine, log_u,
                         expected);
            }
        }
    }
}

static void log_u_stays_finite_at_the_ends_and_beyond(void **state)
{
    (void)state;
    static const double ends[] = {1.0, 1.0 - DBL_EPSILON, 1.0001, 1e30, -1.0, -1.0 + 1e-16, -1e30};
    for (uint32_t i = 0; i < SETTING_COUNT; ++i) {
        const struct setting *s = &settings[i];
        struct pp_log_u_table table;
        pp_log_u_table_init(&table, s->k, s->l, s->t);
        for (uint32_t e = 0; e < sizeof(ends) / sizeof(ends[0]); ++e) {
            double log_u = pp_log_u(ends[e], s->k, s->l, s->t);
            float looked_up = pp_log_u_lookup(&table, (float)ends[e]);
            assert_true(isfinite(log_u) && log_u <= 0.0);
            assert_true(isfinite(looked_up) && looked_up <= 0.0f);
        }
        assert_true(pp_log_u(1.0, s->k, s->l, s->t) == 0.0);
        assert_true(pp_log_u_lookup(&table, 1.0f) == 0.0f);
    }
}

static void log_u_rises_with_the_cosine(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < SETTING_COUNT; ++i) {
        const struct setting *s = &settings[i];
        double before = -INFINITY;
        for (int step = -2000; step <= 2000; ++step) {
            double log_u = pp_log_u(step / 2000.0, s->k, s->l, s->t);
            assert_true(log_u >= before - 2e-5);
            before = log_u;
        }
    }
}

static void the_table_is_close_to_the_formula(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; ++i) { /* the paper's settings */
        const struct setting *s = &settings[i];
        struct pp_log_u_table table;
        pp_log_u_table_init(&table, s->k, s->l, s->t);
        double worst = 0.0;
        for (int step = -10000; step <= 9990; ++step) {
            float cosine = (float)step / 10000.0f;
            double expected = pp_log_u((double)cosine, s->k, s->l, s->t);
            worst = fmax(worst, fabs((double)pp_log_u_lookup(&table, cosine) - expected));
        }
        print_message("(%u,%u,%u): table off by at most %.2g\n", s->k, s->l, s->t, worst);
        assert_true(worst < 6e-5);
    }
}

static void exp_neg_is_close_to_exp(void **state)
{
    (void)state;
    for (int step = 0; step <= 87000; ++step) {
        float x = (float)-step / 1000.0f;
        double expected = exp((double)x);
        assert_true(fabs((double)pp_exp_neg(x) - expected) <= 4e-7 * expected);
    }
    assert_true(pp_exp_neg(0.0f) == 1.0f);
    assert_true(pp_exp_neg(-87.5f) == 0.0f);
    assert_true(pp_exp_neg(-1e30f) == 0.0f);
    assert_true(pp_exp_neg(-INFINITY) == 0.0f);
    assert_true(isnan(pp_exp_neg(NAN)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_u_equals_the_sum_of_its_terms),
        cmocka_unit_test(log_u_stays_finite_at_the_ends_and_beyond),
        cmocka_unit_test(log_u_rises_with_the_cosine),
        cmocka_unit_test(the_table_is_close_to_the_formula),
        cmocka_unit_test(exp_neg_is_close_to_exp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
