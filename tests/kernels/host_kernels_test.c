/*
 * The host device's inner loops of every instruction set that this machine has against the scalar
 * reference, on sizes that fill vectors and sizes that do not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/half.h"
#include "common/base/rng.h"
#include "gpu-worker/device/host_kernels.h"

#define SEED 20261129u

static const enum gw_weight_type all_types[] = {GW_WEIGHT_F32,  GW_WEIGHT_F16,  GW_WEIGHT_BF16,
                                                GW_WEIGHT_Q4_0, GW_WEIGHT_Q4_1, GW_WEIGHT_Q8_0};
#define TYPE_COUNT (sizeof(all_types) / sizeof(all_types[0]))

static const struct gw_host_kernels *scalar, *tested;

static void the_table_is_the_best_that_the_instruction_set_allows(void **state)
{
    (void)state;
    assert_ptr_equal(gw_host_kernels_get(PP_ISA_SCALAR), &gw_host_kernels_scalar);
    assert_ptr_equal(gw_host_kernels_get(PP_ISA_AVX2), &gw_host_kernels_avx2);
    assert_ptr_equal(gw_host_kernels_get(PP_ISA_AVX512), &gw_host_kernels_avx512);
    assert_ptr_equal(gw_host_kernels_get(PP_ISA_AVX512BF16), &gw_host_kernels_avx512);
}

static void fill(struct pp_rng *rng, float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)pp_rng_normal(rng);
    }
}

static void put_half(uint8_t *to, float value)
{
    uint16_t half = pp_f16_from_f32(value);
    memcpy(to, &half, sizeof(half));
}

/* Random bytes are no good halves: scales are set, the rest is random. */
static void fill_row(struct pp_rng *rng, enum gw_weight_type type, uint32_t count, uint8_t *row)
{
    uint64_t bytes = gw_matrix_row_bytes(type, count);
    for (uint64_t i = 0; i < bytes; i++) {
        row[i] = (uint8_t)pp_rng_u64(rng);
    }
    if (type == GW_WEIGHT_F32 || type == GW_WEIGHT_F16 || type == GW_WEIGHT_BF16) {
        for (uint32_t i = 0; i < count; i++) {
            float value = (float)pp_rng_normal(rng);
            uint16_t half =
                type == GW_WEIGHT_F16 ? pp_f16_from_f32(value) : pp_bf16_from_f32(value);
            if (type == GW_WEIGHT_F32) {
                memcpy(row + 4ull * i, &value, sizeof(value));
            } else {
                memcpy(row + 2ull * i, &half, sizeof(half));
            }
        }
        return;
    }
    uint64_t block_bytes = gw_matrix_row_bytes(type, 32);
    for (uint64_t i = 0; i < bytes; i += block_bytes) {
        put_half(row + i, (float)pp_rng_normal(rng) * 0.1f);
        if (type == GW_WEIGHT_Q4_1) {
            put_half(row + i + 2, (float)pp_rng_normal(rng));
        }
    }
}

static uint32_t row_sizes(enum gw_weight_type type, uint32_t *sizes_out)
{
    static const uint32_t blocks[] = {32, 64, 96, 576, 1536};
    static const uint32_t odd[] = {1, 15, 16, 17, 31, 33, 576};
    bool plain = type == GW_WEIGHT_F32 || type == GW_WEIGHT_F16 || type == GW_WEIGHT_BF16;
    memcpy(sizes_out, plain ? odd : blocks, plain ? sizeof(odd) : sizeof(blocks));
    return plain ? 7 : 5;
}

static void weights_of_every_type_dequantize_alike(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = SEED};
    uint8_t row[4 * 1536];
    float expected[1536], found[1536];
    for (uint32_t i = 0; i < TYPE_COUNT; i++) {
        uint32_t sizes[8];
        uint32_t size_count = row_sizes(all_types[i], sizes);
        for (uint32_t j = 0; j < size_count; j++) {
            fill_row(&rng, all_types[i], sizes[j], row);
            scalar->dequantize(all_types[i], row, sizes[j], expected);
            tested->dequantize(all_types[i], row, sizes[j], found);
            for (uint32_t at = 0; at < sizes[j]; at++) {
                assert_true(fabsf(expected[at] - found[at]) <= 1e-6f * (1.0f + fabsf(found[at])));
            }
        }
    }
}

static void dot_products_agree_with_the_dequantized_row(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = SEED + 1};
    uint8_t row[4 * 1536];
    float x[1536], sums[48];
    for (uint32_t i = 0; i < TYPE_COUNT; i++) {
        uint32_t sizes[8];
        uint32_t size_count = row_sizes(all_types[i], sizes);
        for (uint32_t j = 0; j < size_count; j++) {
            uint32_t count = sizes[j];
            fill_row(&rng, all_types[i], count, row);
            fill(&rng, x, count);
            for (uint32_t at = 0; at + 32 <= count; at += 32) {
                sums[at / 32] = 0.0f;
                for (uint32_t k = 0; k < 32; k++) {
                    sums[at / 32] += x[at + k];
                }
            }
            float expected = scalar->dot(all_types[i], row, count, x, sums);
            float found = tested->dot(all_types[i], row, count, x, sums);
            assert_true(fabsf(expected - found) < 2e-5f * sqrtf((float)count) * 10.0f);
        }
    }
}

static void dot_products_of_several_rows_are_those_of_each(void **state)
{
    (void)state;
    enum { ROWS = 7, STRIDE = 1600 };
    static uint8_t row[4 * 1536];
    static float x[ROWS * STRIDE], sums[ROWS * 50];
    struct pp_rng rng = {.seed = SEED + 9};
    for (uint32_t i = 0; i < TYPE_COUNT && tested->dots != NULL; i++) {
        uint32_t sizes[8];
        uint32_t size_count = row_sizes(all_types[i], sizes);
        for (uint32_t j = 0; j < size_count * ROWS; j++) {
            uint32_t count = sizes[j / ROWS], rows = 1 + j % ROWS;
            float found[ROWS];
            fill_row(&rng, all_types[i], count, row);
            fill(&rng, x, ROWS * STRIDE);
            fill(&rng, sums, ROWS * 50);
            tested->dots(all_types[i], row, count, x, STRIDE, sums, 50, rows, found);
            for (uint32_t at = 0; at < rows; at++) {
                float expected = tested->dot(all_types[i], row, count, x + (size_t)at * STRIDE,
                                             sums + (size_t)at * 50);
                assert_memory_equal(&expected, &found[at], sizeof(expected));
            }
        }
    }
}

static void products_of_odd_shapes_agree(void **state)
{
    (void)state;
    static const uint32_t row_counts[] = {1, 5, 6, 7, 13, 192};
    static const uint32_t column_counts[] = {16, 48, 64, 80, 128, 256};
    static const uint32_t depths[] = {1, 7, 64, 80};
    struct pp_rng rng = {.seed = SEED + 2};
    float *a = malloc(192 * 80 * sizeof(float)), *b = malloc(80 * 256 * sizeof(float));
    float *expected = malloc(192 * 256 * sizeof(float)), *found = malloc(192 * 256 * sizeof(float));
    fill(&rng, a, 192 * 80);
    fill(&rng, b, 80 * 256);
    for (uint32_t i = 0; i < 6 * 6 * 4 * 2; i++) {
        uint32_t rows = row_counts[i % 6], columns = column_counts[i / 6 % 6];
        uint32_t depth = depths[i / 36 % 4];
        int add = (int)(i / 144);
        fill(&rng, expected, (uint64_t)rows * columns);
        memcpy(found, expected, (uint64_t)rows * columns * sizeof(float));
        scalar->multiply(rows, columns, depth, a, 80, b, 256, add, expected, columns);
        tested->multiply(rows, columns, depth, a, 80, b, 256, add, found, columns);
        for (uint32_t at = 0; at < rows * columns; at++) {
            assert_true(fabsf(expected[at] - found[at]) < 1e-4f);
        }
    }
    free(a);
    free(b);
    free(expected);
    free(found);
}

static void running_softmax_agrees_for_every_number_of_visible_keys(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = SEED + 3};
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    for (uint32_t visible = 0; visible <= GW_HOST_KEY_BLOCK; visible++) {
        float expected[GW_HOST_KEY_BLOCK], found[GW_HOST_KEY_BLOCK];
        fill(&rng, expected, GW_HOST_KEY_BLOCK);
        for (uint32_t i = 0; i < GW_HOST_KEY_BLOCK; i++) {
            expected[i] = expected[i] * 30.0f + (float)visible;
        }
        memcpy(found, expected, sizeof(found));
        float factor = scalar->softmax(expected, visible, &max[0], &sum[0]);
        float found_factor = tested->softmax(found, visible, &max[1], &sum[1]);
        assert_true(max[0] == max[1]);
        assert_true(fabsf(sum[0] - sum[1]) <= 1e-5f * sum[0]);
        assert_true(fabsf(factor - found_factor) <= 1e-6f);
        for (uint32_t i = 0; i < GW_HOST_KEY_BLOCK; i++) {
            assert_true(fabsf(expected[i] - found[i]) <= 1e-6f);
        }
    }
}

static void softmax_survives_scores_far_apart(void **state)
{
    (void)state;
    const struct gw_host_kernels *both[] = {scalar, tested};
    for (uint32_t i = 0; i < 2; i++) {
        float scores[GW_HOST_KEY_BLOCK] = {10000.0f, -10000.0f, 9900.0f, 1000.0f};
        float max = -INFINITY, sum = 0.0f;
        both[i]->softmax(scores, 4, &max, &sum);
        assert_true(max == 10000.0f && sum == 1.0f && scores[0] == 1.0f && scores[1] == 0.0f);
        float later[GW_HOST_KEY_BLOCK] = {20000.0f};
        float factor = both[i]->softmax(later, 1, &max, &sum);
        assert_true(factor == 0.0f && max == 20000.0f && sum == 1.0f);
    }
}

static void swiglu_agrees_and_never_overflows(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 15, 16, 17, 1000};
    struct pp_rng rng = {.seed = SEED + 4};
    float gate[1000], up[1000], expected[1000], found[1000];
    for (uint32_t i = 0; i < 5; i++) {
        fill(&rng, gate, counts[i]);
        fill(&rng, up, counts[i]);
        for (uint32_t j = 0; j < counts[i]; j++) {
            gate[j] *= 20.0f;
        }
        gate[0] = i % 2 == 0 ? 1e4f : -1e4f;
        scalar->swiglu(gate, up, counts[i], expected);
        tested->swiglu(gate, up, counts[i], found);
        for (uint32_t j = 0; j < counts[i]; j++) {
            assert_true(isfinite(found[j]));
            assert_true(fabsf(expected[j] - found[j]) <= 2e-6f * (1.0f + fabsf(expected[j])));
        }
    }
}

static void scores_norms_scales_and_widening_agree(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 15, 16, 17, 64, 80, 96, 128, 256};
    struct pp_rng rng = {.seed = SEED + 5};
    static float q[256], keys[64 * 256], expected[256], found[256];
    static uint16_t halves[256];
    fill(&rng, q, 256);
    fill(&rng, keys, 64 * 256);
    for (uint32_t i = 0; i < 9; i++) {
        uint32_t dim = dims[i];
        scalar->scores(q, dim, keys, 256, 63, expected);
        tested->scores(q, dim, keys, 256, 63, found);
        for (uint32_t j = 0; j < 63; j++) {
            assert_true(fabsf(expected[j] - found[j]) < 1e-4f);
        }
        float square = scalar->square_sum(q, dim);
        assert_true(fabsf(square - tested->square_sum(q, dim)) <= 1e-5f * square);
        memcpy(expected, keys, sizeof(expected));
        memcpy(found, keys, sizeof(found));
        scalar->scale(expected, dim, 0.3f);
        tested->scale(found, dim, 0.3f);
        assert_memory_equal(expected, found, sizeof(found));
        for (enum pp_dtype dtype = PP_BF16; dtype <= PP_F16; dtype++) {
            pp_dtype_from_f32(dtype, keys, 256, halves);
            scalar->widen(dtype, halves, dim, expected);
            tested->widen(dtype, halves, dim, found);
            assert_memory_equal(expected, found, dim * sizeof(float));
        }
        pp_dtype_from_f32(PP_I8, keys, dim, halves);
        scalar->widen(PP_I8, halves, dim, expected);
        tested->widen(PP_I8, halves, dim, found);
        assert_memory_equal(expected, found, dim * sizeof(float));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_the_best_that_the_instruction_set_allows),
        cmocka_unit_test(weights_of_every_type_dequantize_alike),
        cmocka_unit_test(dot_products_agree_with_the_dequantized_row),
        cmocka_unit_test(dot_products_of_several_rows_are_those_of_each),
        cmocka_unit_test(products_of_odd_shapes_agree),
        cmocka_unit_test(running_softmax_agrees_for_every_number_of_visible_keys),
        cmocka_unit_test(softmax_survives_scores_far_apart),
        cmocka_unit_test(swiglu_agrees_and_never_overflows),
        cmocka_unit_test(scores_norms_scales_and_widening_agree),
    };
    int failed = 0;
    scalar = gw_host_kernels_get(PP_ISA_SCALAR);
    for (enum pp_isa isa = PP_ISA_SCALAR; isa <= pp_isa_get() && isa <= PP_ISA_AVX512; isa++) {
        tested = gw_host_kernels_get(isa);
        printf("seed %u, %s against scalar\n", SEED, pp_isa_name(isa));
        failed += cmocka_run_group_tests_name(pp_isa_name(isa), tests, NULL, NULL);
    }
    return failed;
}
