/*
 * 16-bit floats against their definition, for every one of the 65,536 patterns of each kind, and
 * rounding against the two neighbours.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "common/base/half.h"

/* The value by the definition of IEEE 754 binary16, in doubles. */
static double f16_value(uint16_t half)
{
    int exponent = half >> 10 & 0x1f;
    double mantissa = half & 0x3ff;
    double magnitude = exponent == 0    ? ldexp(mantissa, -24)
                       : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                        : ldexp(1024 + mantissa, exponent - 25);
    return half & 0x8000 ? -magnitude : magnitude;
}

static double bf16_value(uint16_t half)
{
    int exponent = half >> 7 & 0xff;
    double mantissa = half & 0x7f;
    double magnitude = exponent == 0     ? ldexp(mantissa, -133)
                       : exponent == 255 ? (mantissa == 0 ? INFINITY : NAN)
                                         : ldexp(128 + mantissa, exponent - 134);
    return half & 0x8000 ? -magnitude : magnitude;
}

static void expect_same(double wanted, float got)
{
    if (isnan(wanted)) {
        assert_true(isnan(got));
        return;
    }
    assert_true(wanted == (double)got);
    assert_int_equal(signbit(wanted) != 0, signbit(got) != 0);
}

static void every_pattern_has_its_value(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; ++half) {
        expect_same(f16_value((uint16_t)half), pp_f16_to_f32((uint16_t)half));
        expect_same(bf16_value((uint16_t)half), pp_bf16_to_f32((uint16_t)half));
    }
}

static void every_pattern_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; ++half) {
        uint16_t f16 = pp_f16_from_f32(pp_f16_to_f32((uint16_t)half));
        uint16_t bf16 = pp_bf16_from_f32(pp_bf16_to_f32((uint16_t)half));
        if (isnan(f16_value((uint16_t)half))) {
            assert_true(isnan(f16_value(f16)));
        } else {
            assert_int_equal(f16, half);
        }
        if (isnan(bf16_value((uint16_t)half))) {
            assert_true(isnan(bf16_value(bf16)));
        } else {
            assert_int_equal(bf16, half);
        }
    }
}

/* Between each two neighbours: below the middle down, above up, the middle to the even one. Beyond
 * the largest the next step would be 2^(max + 1): that is where infinity begins. */
static void check_rounding(double (*value)(uint16_t), uint16_t (*from)(float), uint16_t last)
{
    for (uint16_t half = 0; half <= last; ++half) {
        double low = value(half);
        double high =
            half == last ? 2 * low - value((uint16_t)(half - 1)) : value((uint16_t)(half + 1));
        float middle = (float)((low + high) / 2);
        assert_true((double)middle == (low + high) / 2);
        uint16_t even = half & 1 ? (uint16_t)(half + 1) : half;
        assert_int_equal(from(middle), even);
        assert_int_equal(from(nextafterf(middle, 0.0f)), half);
        assert_int_equal(from(nextafterf(middle, INFINITY)), half + 1);
        assert_int_equal(from(-middle), even | 0x8000);
        assert_int_equal(from(nextafterf(-middle, 0.0f)), half | 0x8000);
    }
}

static void f16_rounds_half_to_even(void **state)
{
    (void)state;
    check_rounding(f16_value, pp_f16_from_f32, 0x7bff);
}

static void bf16_rounds_half_to_even(void **state)
{
    (void)state;
    /* From the smallest normal: below it f32 itself is coarse, and that is checked by round trip.
     */
    for (uint32_t half = 0x80; half < 0x7f7f; ++half) {
        float low = pp_bf16_to_f32((uint16_t)half);
        float high = pp_bf16_to_f32((uint16_t)(half + 1));
        float middle = low + (high - low) / 2;
        assert_int_equal(pp_bf16_from_f32(middle), half & 1 ? half + 1 : half);
        assert_int_equal(pp_bf16_from_f32(nextafterf(middle, 0.0f)), half);
        assert_int_equal(pp_bf16_from_f32(nextafterf(middle, INFINITY)), half + 1);
    }
    assert_int_equal(pp_bf16_from_f32(3.4028235e38f), 0x7f80);
}

static void specials_stay_what_they_are(void **state)
{
    (void)state;
    assert_int_equal(pp_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(pp_f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(pp_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(pp_f16_from_f32(-0.0f), 0x8000);
    assert_int_equal(pp_f16_from_f32(1e-30f), 0);
    assert_true(isnan(pp_f16_to_f32(pp_f16_from_f32(NAN))));
    assert_int_equal(pp_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(pp_bf16_from_f32(-0.0f), 0x8000);
    /* A NaN whose upper bits are zero must not become infinity. */
    uint32_t bits = 0x7f800001u;
    float low_nan;
    memcpy(&low_nan, &bits, sizeof(low_nan));
    assert_true(isnan(pp_bf16_to_f32(pp_bf16_from_f32(low_nan))));
    assert_true(isnan(pp_f16_to_f32(pp_f16_from_f32(low_nan))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_has_its_value),
        cmocka_unit_test(every_pattern_survives_the_round_trip),
        cmocka_unit_test(f16_rounds_half_to_even),
        cmocka_unit_test(bf16_rounds_half_to_even),
        cmocka_unit_test(specials_stay_what_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
