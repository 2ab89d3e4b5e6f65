/*
 * Every variant of an index build's kernels against the scalar one, to the bit, on odd sizes, and
 * the scalar ones against what they should mean. Buffers hold exactly the rows and ids, so that a
 * sanitizer sees an access past them.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/kernels/kernels.h"
#include "common/base/limits.h"
#include "common/base/rng.h"

static const char *const variants[] = {"avx2", "avx512"};
#define VARIANT_COUNT (sizeof(variants) / sizeof(variants[0]))

static const uint32_t dims[] = {1, 5, 16, 33, 64, 80, 127, 128, 255, 256};
static const uint32_t lengths[] = {0, 1, 23, 24, 25, 100};

/* Rows without padding: the last ends where the memory does. */
static struct an_rows make_rows(uint32_t dim, enum pp_dtype dtype, uint32_t count, uint64_t seed)
{
    struct pp_rng rng = {.seed = seed};
    uint32_t half = (uint32_t)pp_vector_bytes(dim, dtype);
    uint8_t *memory = malloc(2ull * half * count + (count == 0));
    assert_non_null(memory);
    for (uint32_t i = 0; i < count; ++i) {
        float values[2 * PP_HEAD_DIM_MAX];
        for (uint32_t d = 0; d < 2 * dim; ++d) {
            values[d] = (float)(pp_rng_normal(&rng) * exp2(pp_rng_uniform(&rng) * 12.0 - 6.0));
        }
        pp_vectors_from_f32(dtype, dim, values, 2, memory + i * 2ull * half);
    }
    return (struct an_rows){
        .base = memory, .row_bytes = 2ull * half, .v_offset = half, .dim = dim, .dtype = dtype};
}

static void check_rows(const struct an_kernels *kernels, const struct an_rows *rows, uint32_t count)
{
    const struct an_kernels *scalar = an_kernels_named("scalar");
    double want[PP_HEAD_DIM_MAX];
    double got[PP_HEAD_DIM_MAX];
    float centre[PP_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < rows->dim; ++d) {
        want[d] = got[d] = 0.25 * d;
        centre[d] = 0.5f - 0.01f * (float)d;
    }
    uint32_t begin = count / 3;
    scalar->sum_keys(rows, begin, count, want);
    kernels->sum_keys(rows, begin, count, got);
    assert_memory_equal(got, want, rows->dim * sizeof(*want));
    double *squares = malloc((2ull * count + 1) * sizeof(*squares));
    assert_non_null(squares);
    scalar->square_distances(rows, begin, count, centre, squares);
    kernels->square_distances(rows, begin, count, centre, squares + count);
    assert_memory_equal(squares, squares + count, (count - begin) * sizeof(*squares));
    free(squares);
}

static void key_sums_and_distances_have_the_scalar_bits(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < VARIANT_COUNT; ++v) {
        const struct an_kernels *kernels = an_kernels_named(variants[v]);
        if (kernels == NULL) {
            print_message("%s: not on this machine, not checked\n", variants[v]);
            continue;
        }
        for (enum pp_dtype dtype = PP_BF16; dtype <= PP_I8; ++dtype) {
            for (uint32_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
                for (uint32_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); ++n) {
                    struct an_rows rows = make_rows(dims[d], dtype, lengths[n], 100 * d + n);
                    check_rows(kernels, &rows, lengths[n]);
                    free((void *)(uintptr_t)rows.base);
                }
            }
        }
    }
}

static void scalar_sums_and_distances_are_what_they_say(void **state)
{
    (void)state;
    struct an_rows rows = make_rows(80, PP_F32, 50, 3);
    const float *values = (const float *)(const void *)rows.base;
    const struct an_kernels *scalar = an_kernels_named("scalar");
    double sums[80] = {0.0};
    double squares[50];
    float centre[80];
    for (uint32_t d = 0; d < 80; ++d) {
        centre[d] = (float)d * 0.125f;
    }
    scalar->sum_keys(&rows, 0, 50, sums);
    scalar->square_distances(&rows, 0, 50, centre, squares);
    for (uint32_t d = 0; d < 80; ++d) {
        double sum = 0.0;
        for (uint32_t i = 0; i < 50; ++i) {
            sum += (double)values[i * 160 + d];
        }
        assert_true(sums[d] == sum);
    }
    for (uint32_t i = 0; i < 50; ++i) {
        double square = 0.0;
        for (uint32_t d = 0; d < 80; ++d) {
            square += pow((double)(values[i * 160 + d] - centre[d]), 2.0);
        }
        assert_true(fabs(squares[i] - square) <= 1e-12 * square);
    }
    free((void *)(uintptr_t)rows.base);
}

/* Ids in order of code and of id within one; offsets where a code's ids start. */
static void check_sort(const struct an_kernels *kernels, uint32_t count, uint32_t k, uint32_t shift,
                       uint16_t *codes)
{
    uint64_t scratch_bytes = (an_sort_scratch_bytes(count, k) + 63) & ~63ull;
    void *scratch = aligned_alloc(64, scratch_bytes);
    uint16_t *offsets = malloc(sizeof(*offsets) << k);
    uint16_t *memory = malloc((count + shift) * sizeof(*memory) + 1);
    uint8_t *seen = calloc(count + 1u, 1);
    assert_true(scratch != NULL && offsets != NULL && memory != NULL && seen != NULL);
    uint16_t *ids = memory + shift;
    kernels->sort_codes(codes, count, k, scratch, offsets, ids);
    for (uint32_t i = 0; i < count; ++i) {
        assert_true(ids[i] < count && seen[ids[i]] == 0);
        seen[ids[i]] = 1;
        uint32_t code = codes[ids[i]];
        uint32_t before = i > 0 ? codes[ids[i - 1]] : code + 1u;
        assert_true(i == 0 || before < code || (before == code && ids[i - 1] < ids[i]));
        uint32_t end = code + 1 < (1u << k) ? offsets[code + 1] : count;
        assert_true(offsets[code] <= i && i < end);
    }
    free(seen);
    free(memory);
    free(offsets);
    free(scratch);
}

static void ids_are_sorted_by_code_wherever_they_go(void **state)
{
    (void)state;
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    static const uint32_t counts[] = {0, 1, 31, 32, 33, 100, 1024, 3001, PP_SEGMENT_TOKENS_MAX};
    static uint16_t codes[PP_SEGMENT_TOKENS_MAX];
    struct pp_rng rng = {.seed = 12};
    for (uint32_t v = 0; v < 3; ++v) {
        const struct an_kernels *kernels = an_kernels_named(names[v]);
        for (uint32_t n = 0; kernels != NULL && n < sizeof(counts) / sizeof(counts[0]); ++n) {
            for (uint32_t k = 1; k <= PP_LSH_K_MAX; k += 5) {
                for (uint32_t i = 0; i < counts[n]; ++i) {
                    codes[i] = (uint16_t)(pp_rng_u64(&rng) & ((1u << k) - 1));
                }
                check_sort(kernels, counts[n], k, (n + k) % 40, codes);
            }
            memset(codes, 0, sizeof(codes)); /* all in one bucket */
            check_sort(kernels, counts[n], 4, 0, codes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_sums_and_distances_are_what_they_say),
        cmocka_unit_test(key_sums_and_distances_have_the_scalar_bits),
        cmocka_unit_test(ids_are_sorted_by_code_wherever_they_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
