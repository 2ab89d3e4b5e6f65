/*
 * Every variant of the attend kernels against the scalar one on odd sizes: dims, groups, lengths
 * and dtypes, with and without errors. Buffers hold exactly the rows, so that a sanitizer sees a
 * read past them.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/kernels/kernels.h"
#include "common/base/limits.h"
#include "common/base/rng.h"

#define HEADS_MAX 16u

static const char *const variants[] = {"avx2", "avx512"};
#define VARIANT_COUNT (sizeof(variants) / sizeof(variants[0]))

struct bed {
    struct an_rows rows;
    uint8_t *memory;
    uint32_t count;
    float q[HEADS_MAX * PP_HEAD_DIM_MAX];
};

/* Rows without padding when `tight`: the last ends where the memory does. */
static void bed_init(struct bed *bed, uint32_t dim, enum pp_dtype dtype, uint32_t count, bool tight,
                     float q_scale, uint64_t seed)
{
    struct pp_rng rng = {.seed = seed};
    uint32_t half = (uint32_t)pp_vector_bytes(dim, dtype);
    uint64_t row_bytes = tight ? 2ull * half : pp_row_bytes(dim, dtype);
    bed->count = count;
    bed->memory = malloc(count * row_bytes + (count == 0));
    assert_non_null(bed->memory);
    bed->rows = (struct an_rows){
        .base = bed->memory, .row_bytes = row_bytes, .v_offset = half, .dim = dim, .dtype = dtype};
    for (uint32_t i = 0; i < count; ++i) {
        float values[2 * PP_HEAD_DIM_MAX];
        for (uint32_t d = 0; d < 2 * dim; ++d) {
            values[d] = (float)(pp_rng_uniform(&rng) * 4.0 - 2.0);
        }
        pp_dtype_from_f32(dtype, values, dim, bed->memory + i * row_bytes);
        pp_dtype_from_f32(dtype, values + dim, dim, bed->memory + i * row_bytes + half);
    }
    for (uint32_t i = 0; i < HEADS_MAX * dim; ++i) {
        bed->q[i] = q_scale * (float)pp_rng_normal(&rng) / sqrtf((float)dim);
    }
}

struct sums {
    struct an_accumulator accumulators[HEADS_MAX];
    float o[HEADS_MAX * PP_HEAD_DIM_MAX];
    float b1[HEADS_MAX * PP_HEAD_DIM_MAX];
};

static void sums_init(struct sums *sums, uint32_t dim, bool errors)
{
    for (uint32_t h = 0; h < HEADS_MAX; ++h) {
        sums->accumulators[h].o = sums->o + h * dim;
        sums->accumulators[h].b1 = errors ? sums->b1 + h * dim : NULL;
        an_accumulator_clear(&sums->accumulators[h], dim);
    }
}

static bool close_to(double left, double right, double bound)
{
    return left == right || fabs(left - right) <= bound;
}

/* Equal up to rounding: o, b1 and b2 normalised by their own sums, all of the unit of |v| <= 2. */
static void expect_close(const struct sums *got, const struct sums *want, uint32_t heads,
                         uint32_t dim, double bound, const char *what)
{
    for (uint32_t h = 0; h < heads; ++h) {
        const struct an_accumulator *g = &got->accumulators[h];
        const struct an_accumulator *w = &want->accumulators[h];
        bool good = g->keys_read == w->keys_read && isfinite(g->sum) == isfinite(w->sum);
        good = good && (w->sum == 0.0f) == (g->sum == 0.0f);
        if (w->sum > 0.0f) {
            double lse_g = (double)g->m + log((double)g->sum);
            double lse_w = (double)w->m + log((double)w->sum);
            good = good && close_to(lse_g, lse_w, bound + 1e-6 * fabs(lse_w));
            for (uint32_t d = 0; d < dim; ++d) {
                good =
                    good && close_to((double)(g->o[d] / g->sum), (double)(w->o[d] / w->sum), bound);
            }
        }
        for (uint32_t d = 0; w->b1 != NULL && w->b0 > 0.0f && d < dim; ++d) {
            good = good && close_to((double)(g->b1[d] / g->b0), (double)(w->b1[d] / w->b0), bound);
        }
        if (w->b1 != NULL && w->b0 > 0.0f) {
            double shift = 2.0 * (double)(g->m - w->m);
            good = good && close_to(log((double)g->b0) + shift, log((double)w->b0), 4.0 * bound);
            good = good && close_to((double)(g->b2 / g->b0), (double)(w->b2 / w->b0), dim * bound);
        }
        if (!good) {
            fail_msg("%s head %u: m %g sum %g o0 %g b0 %g b2 %g, not m %g sum %g o0 %g b0 %g b2 %g",
                     what, h, (double)g->m, (double)g->sum, (double)g->o[0], (double)g->b0,
                     (double)g->b2, (double)w->m, (double)w->sum, (double)w->o[0], (double)w->b0,
                     (double)w->b2);
        }
    }
}

static void check_exact(struct bed *bed, uint32_t heads, double bound)
{
    static struct sums want;
    static struct sums got;
    uint32_t dim = bed->rows.dim;
    const struct an_kernels *scalar = an_kernels_named("scalar");
    sums_init(&want, dim, false);
    scalar->attend_exact(&bed->rows, 0, bed->count, bed->q, heads, want.accumulators);
    for (uint32_t i = 0; i < VARIANT_COUNT; ++i) {
        const struct an_kernels *kernels = an_kernels_named(variants[i]);
        if (kernels == NULL) {
            continue;
        }
        char what[128];
        snprintf(what, sizeof(what), "%s %s dim %u heads %u rows %u", kernels->isa,
                 pp_dtype_name(bed->rows.dtype), dim, heads, bed->count);
        sums_init(&got, dim, false);
        kernels->attend_exact(&bed->rows, 0, bed->count, bed->q, heads, got.accumulators);
        expect_close(&got, &want, heads, dim, bound, what);
        /* In two calls, cut where no block ends. */
        uint32_t cut = bed->count * 3 / 7;
        sums_init(&got, dim, false);
        kernels->attend_exact(&bed->rows, 0, cut, bed->q, heads, got.accumulators);
        kernels->attend_exact(&bed->rows, cut, bed->count, bed->q, heads, got.accumulators);
        expect_close(&got, &want, heads, dim, bound, what);
    }
}

static void exact_equals_scalar_on_odd_dims_groups_and_lengths(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 5, 33, 64, 80, 96, 127, 128, 255, 256};
    static const uint32_t groups[] = {1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    static const uint32_t lengths[] = {0, 1, 15, 16, 17, 100};
    for (enum pp_dtype dtype = PP_BF16; dtype <= PP_I8; ++dtype) {
        for (uint32_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
            for (uint32_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); ++n) {
                struct bed bed;
                bed_init(&bed, dims[d], dtype, lengths[n], n % 2 == 0, 2.0f, d * 100 + n);
                for (uint32_t g = 0; g < sizeof(groups) / sizeof(groups[0]); ++g) {
                    check_exact(&bed, groups[g], 2e-5);
                }
                free(bed.memory);
            }
        }
    }
}

static void exact_equals_scalar_on_long_runs(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {
        {4095, 128, 4}, {4096, 128, 8}, {4097, 80, 5},  {4095, 256, 7},
        {4096, 96, 3},  {4097, 64, 1},  {65471, 33, 3}, {65471, 96, 7},
        {65472, 5, 1},  {65472, 64, 2}, {65472, 80, 4}, {65473, 64, 5},
    };
    for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); ++s) {
        for (enum pp_dtype dtype = PP_BF16; dtype <= PP_I8; ++dtype) {
            struct bed bed;
            bed_init(&bed, shapes[s][1], dtype, shapes[s][0], true, 1.0f, s);
            check_exact(&bed, shapes[s][2], 2e-4);
            free(bed.memory);
        }
    }
}

static void scores_far_apart_stay_finite(void **state)
{
    (void)state;
    static const float scales[] = {100.0f, 1000.0f, 10000.0f, 0x1p80f, 0.0f, 1e-30f};
    for (uint32_t i = 0; i < sizeof(scales) / sizeof(scales[0]); ++i) {
        struct bed bed;
        bed_init(&bed, 64, PP_BF16, 333, true, scales[i], i);
        /* One row far above, one far below, in the middle and at the ends. */
        for (uint32_t at = 0; at < 333; at += 166) {
            float key[64];
            for (uint32_t d = 0; d < 64; ++d) {
                key[d] = bed.q[d] > 0.0f ? 2.0f : -2.0f;
                key[d] = at == 166 ? -key[d] : key[d];
            }
            pp_dtype_from_f32(PP_BF16, key, 64, bed.memory + at * bed.rows.row_bytes);
        }
        check_exact(&bed, 4, scales[i] > 1e6f ? 1e-2 : 2e-5 + 1e-6 * (double)scales[i]);
        free(bed.memory);
    }
}

static void run_gather(const struct an_kernels *kernels, const struct bed *bed, const uint16_t *ids,
                       const float *log_u, uint32_t count, struct sums *sums)
{
    float *scores = malloc(count * sizeof(*scores) + 1);
    kernels->score_gather(&bed->rows, ids, count, 0, bed->q, scores);
    kernels->attend_gather(&bed->rows, ids, scores, log_u, count, &sums->accumulators[0]);
    free(scores);
}

static void check_gather(struct bed *bed, const uint16_t *ids, const float *log_u, uint32_t count,
                         bool errors, double bound)
{
    static struct sums want;
    static struct sums got;
    uint32_t dim = bed->rows.dim;
    sums_init(&want, dim, errors);
    run_gather(an_kernels_named("scalar"), bed, ids, log_u, count, &want);
    for (uint32_t i = 0; i < VARIANT_COUNT; ++i) {
        const struct an_kernels *kernels = an_kernels_named(variants[i]);
        if (kernels == NULL) {
            continue;
        }
        char what[128];
        snprintf(what, sizeof(what), "%s gather %s dim %u ids %u u %d errors %d", kernels->isa,
                 pp_dtype_name(bed->rows.dtype), dim, count, log_u != NULL, errors);
        sums_init(&got, dim, errors);
        run_gather(kernels, bed, ids, log_u, count, &got);
        expect_close(&got, &want, 1, dim, bound, what);
    }
}

static void gather_equals_scalar_with_and_without_errors(void **state)
{
    (void)state;
    static const uint32_t dims[] = {1, 5, 33, 64, 80, 96, 128, 255, 256};
    static const uint32_t counts[] = {0, 1, 15, 16, 17, 333};
    for (enum pp_dtype dtype = PP_BF16; dtype <= PP_I8; ++dtype) {
        for (uint32_t d = 0; d < sizeof(dims) / sizeof(dims[0]); ++d) {
            struct bed bed;
            bed_init(&bed, dims[d], dtype, 500, true, 3.0f, d);
            for (uint32_t c = 0; c < sizeof(counts) / sizeof(counts[0]); ++c) {
                uint16_t *ids = malloc(counts[c] * sizeof(*ids) + 1);
                float *log_u = malloc(counts[c] * sizeof(*log_u) + 1);
                for (uint32_t i = 0; i < counts[c]; ++i) {
                    ids[i] = (uint16_t)(i + 1 == counts[c] ? 499 : i * 3 / 2);
                    log_u[i] = i % 5 == 0 ? 0.0f : -(float)(i % 7);
                }
                for (uint32_t form = 0; form < 4; ++form) {
                    check_gather(&bed, ids, form & 1 ? log_u : NULL, counts[c], (form & 2) != 0,
                                 2e-5);
                }
                free(ids);
                free(log_u);
            }
            free(bed.memory);
        }
    }
}

/* The last ids a segment can have, and as many as it can have. */
static void gather_equals_scalar_on_long_lists(void **state)
{
    (void)state;
    static const uint32_t counts[] = {4095, 4096, 4097, 65471, 65472};
    static const uint32_t dims[] = {64, 80, 96, 128, 256};
    uint16_t *ids = malloc(PP_SEGMENT_TOKENS_MAX * sizeof(*ids));
    float *log_u = malloc(PP_SEGMENT_TOKENS_MAX * sizeof(*log_u));
    assert_true(ids != NULL && log_u != NULL);
    for (uint32_t n = 0; n < sizeof(counts) / sizeof(counts[0]); ++n) {
        struct bed bed;
        bed_init(&bed, dims[n], PP_BF16, PP_SEGMENT_TOKENS_MAX, true, 1.0f, n);
        for (uint32_t i = 0; i < counts[n]; ++i) {
            ids[i] = (uint16_t)(PP_SEGMENT_TOKENS_MAX - counts[n] + i);
            log_u[i] = -(float)(i % 7);
        }
        check_gather(&bed, ids, log_u, counts[n], true, 2e-4);
        check_gather(&bed, ids, NULL, counts[n], false, 2e-4);
        free(bed.memory);
    }
    free(ids);
    free(log_u);
}

static void exact_rows_shrink_the_errors_already_summed(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed, 40, PP_F16, 200, true, 3.0f, 5);
    uint16_t ids[20];
    float log_u[20];
    for (uint32_t i = 0; i < 20; ++i) {
        ids[i] = (uint16_t)(9 * i);
        log_u[i] = -1.5f;
    }
    static struct sums want;
    static struct sums got;
    sums_init(&want, 40, true);
    run_gather(an_kernels_named("scalar"), &bed, ids, log_u, 20, &want);
    an_kernels_named("scalar")->attend_exact(&bed.rows, 0, 200, bed.q, 1, want.accumulators);
    for (uint32_t i = 0; i < VARIANT_COUNT; ++i) {
        const struct an_kernels *kernels = an_kernels_named(variants[i]);
        if (kernels != NULL) {
            sums_init(&got, 40, true);
            run_gather(kernels, &bed, ids, log_u, 20, &got);
            kernels->attend_exact(&bed.rows, 0, 200, bed.q, 1, got.accumulators);
            expect_close(&got, &want, 1, 40, 2e-5, kernels->isa);
        }
    }
    free(bed.memory);
}

static void merged_accumulators_equal_one_over_all(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed, 33, PP_BF16, 300, true, 3.0f, 6);
    uint16_t ids[300];
    float log_u[300];
    for (uint32_t i = 0; i < 300; ++i) {
        ids[i] = (uint16_t)i;
        log_u[i] = -0.01f * (float)i;
    }
    static struct sums want;
    static struct sums got;
    static struct sums part;
    const struct an_kernels *kernels = an_kernels_get();
    sums_init(&want, 33, true);
    run_gather(kernels, &bed, ids, log_u, 300, &want);
    sums_init(&got, 33, true);
    for (uint32_t at = 0; at < 300; at += 75) {
        sums_init(&part, 33, true); /* the first merge goes into an empty one */
        run_gather(kernels, &bed, ids + at, log_u + at, 75, &part);
        an_accumulator_merge(&got.accumulators[0], &part.accumulators[0], 33);
        sums_init(&part, 33, true);
        an_accumulator_merge(&got.accumulators[0], &part.accumulators[0], 33);
    }
    expect_close(&got, &want, 1, 33, 2e-5, "merge");
    free(bed.memory);
}

static void the_best_table_is_known_by_its_name(void **state)
{
    (void)state;
    assert_non_null(an_kernels_named("scalar"));
    assert_null(an_kernels_named("mmx"));
    assert_ptr_equal(an_kernels_named(an_kernels_get()->isa), an_kernels_get());
    for (uint32_t i = 0; i < VARIANT_COUNT; ++i) {
        if (an_kernels_named(variants[i]) == NULL) {
            print_message("%s: not on this machine, not checked\n", variants[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_table_is_known_by_its_name),
        cmocka_unit_test(exact_equals_scalar_on_odd_dims_groups_and_lengths),
        cmocka_unit_test(exact_equals_scalar_on_long_runs),
        cmocka_unit_test(scores_far_apart_stay_finite),
        cmocka_unit_test(gather_equals_scalar_with_and_without_errors),
        cmocka_unit_test(gather_equals_scalar_on_long_lists),
        cmocka_unit_test(exact_rows_shrink_the_errors_already_summed),
        cmocka_unit_test(merged_accumulators_equal_one_over_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
