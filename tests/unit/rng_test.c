/*
 * Random numbers: the published values of the generator, and moments of the draws.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "common/base/rng.h"

#define DRAWS 200000

static void draws_are_those_of_splitmix64(void **state)
{
    (void)state;
    /* The first outputs of the reference SplitMix64 for seed 1234567. */
    static const uint64_t wanted[] = {UINT64_C(6457827717110365317), UINT64_C(3203168211198807973),
                                      UINT64_C(9817491932198370423), UINT64_C(4593380528125082431),
                                      UINT64_C(16408922859458223821)};
    struct pp_rng rng = {.seed = 1234567};
    for (uint64_t index = 0; index < 5; ++index) {
        assert_true(pp_rng_at(1234567, index) == wanted[index]);
        assert_true(pp_rng_u64(&rng) == wanted[index]);
    }
}

static void uniform_draws_fill_the_unit_interval(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = 42};
    double sum = 0;
    uint32_t tenths[10] = {0};
    for (int draw = 0; draw < DRAWS; ++draw) {
        double value = pp_rng_uniform(&rng);
        assert_true(value >= 0.0 && value < 1.0);
        sum += value;
        ++tenths[(int)(value * 10)];
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 5 * sqrt(1.0 / 12 / DRAWS));
    for (int tenth = 0; tenth < 10; ++tenth) {
        assert_true(fabs(tenths[tenth] - 0.1 * DRAWS) < 5 * sqrt(0.09 * DRAWS));
    }
}

static void normal_draws_have_the_normal_moments(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = 7};
    double sums[5] = {0};
    for (int draw = 0; draw < DRAWS; ++draw) {
        double value = pp_rng_normal(&rng);
        assert_true(isfinite(value));
        for (int power = 1; power <= 4; ++power) {
            sums[power] += pow(value, power);
        }
    }
    assert_true(fabs(sums[1] / DRAWS) < 5 * sqrt(1.0 / DRAWS));
    assert_true(fabs(sums[2] / DRAWS - 1) < 5 * sqrt(2.0 / DRAWS));
    assert_true(fabs(sums[3] / DRAWS) < 5 * sqrt(15.0 / DRAWS));
    assert_true(fabs(sums[4] / DRAWS - 3) < 5 * sqrt(96.0 / DRAWS));
}

static void the_kernel_fills_every_byte_it_is_asked_for(void **state)
{
    (void)state;
    unsigned char bytes[300];
    uint32_t changed = 0;
    memset(bytes, 0x5a, sizeof(bytes));
    assert_int_equal(pp_rng_system(bytes, 299), PP_OK);
    for (int index = 0; index < 299; ++index) {
        changed += bytes[index] != 0x5a;
    }
    assert_true(changed > 250);
    assert_int_equal(bytes[299], 0x5a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_those_of_splitmix64),
        cmocka_unit_test(uniform_draws_fill_the_unit_interval),
        cmocka_unit_test(normal_draws_have_the_normal_moments),
        cmocka_unit_test(the_kernel_fills_every_byte_it_is_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
