/*
 * Shapes, estimators and dtypes: what is accepted, what is refused, and how values round.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "common/attn/shape.h"
#include "common/base/limits.h"

static struct pp_shape shape_of(uint32_t q_heads, uint32_t kv_heads)
{
    return (struct pp_shape){.layers = 2,
                             .q_heads = q_heads,
                             .kv_heads = kv_heads,
                             .head_dim = 64,
                             .scale = 0.125f,
                             .kv_dtype = PP_BF16};
}

static void head_counts_must_divide(void **state)
{
    (void)state;
    static const uint32_t bad[][2] = {{33, 2}, {3, 2}, {4, 0}, {2, 4}, {0, 1}, {1025, 1025}};
    static const uint32_t good[][3] = {{28, 4, 7}, {24, 8, 3},  {40, 8, 5},
                                       {15, 5, 3}, {71, 1, 71}, {12, 12, 1}};
    for (uint32_t i = 0; i < 6; ++i) {
        struct pp_shape shape = shape_of(bad[i][0], bad[i][1]);
        assert_int_equal(pp_shape_check(&shape), PP_BAD_SHAPE);
        shape = shape_of(good[i][0], good[i][1]);
        assert_int_equal(pp_shape_check(&shape), PP_OK);
        assert_int_equal(pp_shape_group(&shape), good[i][2]);
    }
}

static void sizes_scales_and_dtypes_out_of_range_are_refused(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {0, 65536, 0xffffffffu};
    static const float scales[] = {0.0f, -1.0f, INFINITY, NAN};
    static const int dtypes[] = {0, -1, 5, 7, 0x7fffffff};
    for (uint32_t i = 0; i < 3; ++i) {
        struct pp_shape shape = shape_of(4, 2);
        shape.layers = sizes[i];
        assert_int_equal(pp_shape_check(&shape), PP_BAD_SHAPE);
        shape = shape_of(4, 2);
        shape.head_dim = sizes[i];
        assert_int_equal(pp_shape_check(&shape), PP_BAD_SHAPE);
    }
    for (uint32_t i = 0; i < 4; ++i) {
        struct pp_shape shape = shape_of(4, 2);
        shape.scale = scales[i];
        assert_int_equal(pp_shape_check(&shape), PP_BAD_SHAPE);
    }
    for (uint32_t i = 0; i < 5; ++i) {
        struct pp_shape shape = shape_of(4, 2);
        shape.kv_dtype = (enum pp_dtype)dtypes[i];
        assert_int_equal(pp_shape_check(&shape), PP_BAD_DTYPE);
        assert_int_equal(pp_dtype_bytes((enum pp_dtype)dtypes[i]), 0);
        assert_non_null(pp_dtype_name((enum pp_dtype)dtypes[i]));
    }
}

static void estimators_parse_and_fill_their_defaults(void **state)
{
    (void)state;
    struct pp_estimator estimator;
    assert_int_equal(pp_estimator_parse("exact", &estimator), PP_OK);
    assert_int_equal(estimator.kind, PP_EXACT);
    assert_int_equal(pp_estimator_parse("lsh", &estimator), PP_OK);
    assert_true(estimator.kind == PP_LSH && estimator.k == 10 && estimator.l == 150 &&
                estimator.t == 2);
    assert_int_equal(pp_estimator_parse("lsh:k=8,l=98,t=3", &estimator), PP_OK);
    assert_true(estimator.k == 8 && estimator.l == 98 && estimator.t == 3);
    assert_int_equal(pp_estimator_parse("lsh:l=75", &estimator), PP_OK);
    assert_true(estimator.k == 10 && estimator.l == 75 && estimator.t == 2);
    assert_int_equal(pp_estimator_parse("sketch", &estimator), PP_OK);
    assert_true(estimator.kind == PP_SKETCH && estimator.bits == 2 &&
                estimator.rows_share == 0.0f && estimator.rows == 0 &&
                estimator.target_error == 0.0f);
    assert_int_equal(pp_estimator_parse("sketch:bits=4,share=.5", &estimator), PP_OK);
    assert_true(estimator.bits == 4 && estimator.rows_share == 0.5f && estimator.k == 0);
    assert_int_equal(pp_estimator_parse("sketch:rows=4294967295,bits=1", &estimator), PP_OK);
    assert_true(estimator.bits == 1 && estimator.rows_share == 0.0f &&
                estimator.rows == 4294967295u);
    assert_int_equal(pp_estimator_parse("sketch:bits=2,error=0.1", &estimator), PP_OK);
    assert_true(estimator.bits == 2 && estimator.target_error == 0.1f &&
                estimator.rows_share == 0.0f && estimator.rows == 0);
    assert_int_equal(pp_estimator_parse("lsh:error=.05", &estimator), PP_OK);
    assert_true(estimator.k == 10 && estimator.target_error == 0.05f);
}

static void estimators_out_of_range_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "lsh:",
                                      "lsh:k",
                                      "lsh:k=",
                                      "lsh:k=0",
                                      "lsh:k=17",
                                      "lsh:error=0",
                                      "sketch:error=1.5",
                                      "sketch:error=-0.1",
                                      "sketch:error=.1,error=.2",
                                      "exact:error=.1",
                                      "lsh:l=513",
                                      "lsh:l=4,t=5",
                                      "lsh:k=-1",
                                      "lsh:k=10,",
                                      "lshx",
                                      "lsh:q=1",
                                      "exactly",
                                      "lsh:k=1e3",
                                      "lsh:k=10 ",
                                      "lsh:k=4294967306",
                                      "lsh:k=10,k=11",
                                      "sketch:share=0.1,share=0.2",
                                      "sketch:bits=3",
                                      "sketch:bits=0",
                                      "sketch:share=0",
                                      "sketch:share=1.5",
                                      "sketch:share=-1",
                                      "sketch:share=nan",
                                      "sketch:share=1e-3",
                                      "sketch:rows=4294967296",
                                      "sketch:rows=99999999999999999999",
                                      "sketch:rows=5,share=.5",
                                      "sketch:k=3",
                                      "lsh:bits=2",
                                      "lsh:share=.5",
                                      "exact:k=1",
                                      "sketch,bits=2",
                                      "lsh,k=4"};
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        struct pp_estimator estimator = {.kind = PP_ESTIMATOR_NONE, .k = 77};
        if (pp_estimator_parse(bad[i], &estimator) != PP_INVALID_ARGUMENT) {
            fail_msg("'%s' was taken", bad[i]);
        }
        assert_int_equal(estimator.k, 77);
    }
    struct pp_estimator unknown = {.kind = (enum pp_estimator_kind)9};
    assert_int_equal(pp_estimator_resolve(&unknown), PP_INVALID_ARGUMENT);
    static const float shares[] = {-0.1f, 1.01f, NAN, INFINITY};
    for (uint32_t i = 0; i < 4; ++i) {
        struct pp_estimator sketch = {.kind = PP_SKETCH, .rows_share = shares[i]};
        assert_int_equal(pp_estimator_resolve(&sketch), PP_INVALID_ARGUMENT);
    }
}

static void values_round_to_half_even_and_come_back(void **state)
{
    (void)state;
    static const float values[] = {1.0f,     1.00390625f, 1.01171875f, -0.0f,
                                   65504.0f, 0x1p-24f,    -3.0f};
    uint16_t halves[7];
    float back[7];
    pp_dtype_from_f32(PP_BF16, values, 7, halves);
    pp_dtype_to_f32(PP_BF16, halves, 7, back);
    assert_true(back[0] == 1.0f && back[1] == 1.0f && back[2] == 1.015625f && signbit(back[3]));
    pp_dtype_from_f32(PP_F16, values, 7, halves);
    pp_dtype_to_f32(PP_F16, halves, 7, back);
    assert_memory_equal(back, values, sizeof(values));
    pp_dtype_from_f32(PP_F32, values, 7, back);
    assert_memory_equal(back, values, sizeof(values));
}

static void values_that_are_not_finite_or_too_large_are_refused(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN, 0x1.02p40f, -0x1p41f, 3e38f};
    static const float good[] = {0.0f, -0.0f, 0x1p40f, -0x1p40f, 1e-45f, 1.0f};
    for (enum pp_dtype dtype = PP_BF16; dtype <= PP_F32; ++dtype) {
        for (uint32_t i = 0; i < 6; ++i) {
            for (uint32_t at = 0; at < 67; at += 33) {
                float values[67] = {0.0f};
                float stored[67];
                values[at] = bad[i];
                pp_dtype_from_f32(dtype, values, 67, stored);
                assert_int_equal(pp_dtype_check_finite(dtype, stored, 67), PP_NON_FINITE);
                values[at] = dtype == PP_F16 && fabsf(good[i]) > 1.0f ? 65504.0f : good[i];
                pp_dtype_from_f32(dtype, values, 67, stored);
                assert_int_equal(pp_dtype_check_finite(dtype, stored, 67), PP_OK);
            }
        }
        assert_int_equal(pp_dtype_check_finite(dtype, bad, 0), PP_OK);
    }
}

static void rows_are_padded_to_cache_lines(void **state)
{
    (void)state;
    assert_int_equal(pp_row_bytes(128, PP_BF16), 512);
    assert_int_equal(pp_row_bytes(1, PP_F16), 64);
    assert_int_equal(pp_row_bytes(256, PP_F32), 2048);
    assert_int_equal(pp_row_bytes(33, PP_F32), 320);
}

static void int8_rows_carry_their_scales_and_are_padded_to_eight(void **state)
{
    (void)state;
    assert_int_equal(pp_vector_bytes(128, PP_I8), 132);
    assert_int_equal(pp_vector_bytes(128, PP_F16), 256);
    assert_int_equal(pp_row_bytes(128, PP_I8), 264);
    assert_int_equal(pp_row_bytes(33, PP_I8), 80);
    assert_int_equal(pp_row_bytes(1, PP_I8), 16);
}

static void int8_is_within_half_a_step_of_its_vectors_largest(void **state)
{
    (void)state;
    float values[3 * 33];
    for (uint32_t i = 0; i < 3 * 33; ++i) {
        values[i] = (float)((int32_t)(i * 7919u % 201u) - 100) * (i < 33 ? 1e-30f : 3.0f);
    }
    memset(values + 66, 0, 33 * sizeof(*values)); /* a vector of zeros stays zero */
    uint8_t stored[3 * 37];
    pp_vectors_from_f32(PP_I8, 33, values, 3, stored);
    for (uint32_t v = 0; v < 3; ++v) {
        float back[33];
        float largest = 0.0f;
        pp_dtype_to_f32(PP_I8, stored + v * 37, 33, back);
        for (uint32_t d = 0; d < 33; ++d) {
            largest = fmaxf(largest, fabsf(values[v * 33 + d]));
        }
        for (uint32_t d = 0; d < 33; ++d) {
            assert_true(fabsf(back[d] - values[v * 33 + d]) <= largest / 127.0f * 0.501f);
        }
    }
}

static void int8_scales_keep_their_values_in_bounds(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, -1.0f, 0x1.01p33f};
    static const float good[] = {0.0f, 0x1p33f, 1e-45f};
    for (uint32_t i = 0; i < 5; ++i) {
        assert_false(pp_scale_within(bad[i]));
    }
    for (uint32_t i = 0; i < 3; ++i) {
        assert_true(pp_scale_within(good[i]));
    }
    static const float values[] = {NAN, INFINITY, -INFINITY, 0x1p41f};
    for (uint32_t i = 0; i < 4; ++i) {
        float vector[5] = {1.0f, 2.0f, values[i], 4.0f, 5.0f};
        uint8_t stored[9];
        float scale;
        pp_dtype_from_f32(PP_I8, vector, 5, stored);
        memcpy(&scale, stored + 5, sizeof(scale));
        assert_false(pp_scale_within(scale));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_counts_must_divide),
        cmocka_unit_test(sizes_scales_and_dtypes_out_of_range_are_refused),
        cmocka_unit_test(estimators_parse_and_fill_their_defaults),
        cmocka_unit_test(estimators_out_of_range_are_refused),
        cmocka_unit_test(values_round_to_half_even_and_come_back),
        cmocka_unit_test(values_that_are_not_finite_or_too_large_are_refused),
        cmocka_unit_test(rows_are_padded_to_cache_lines),
        cmocka_unit_test(int8_rows_carry_their_scales_and_are_padded_to_eight),
        cmocka_unit_test(int8_is_within_half_a_step_of_its_vectors_largest),
        cmocka_unit_test(int8_scales_keep_their_values_in_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
