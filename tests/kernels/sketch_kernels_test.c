/*
 * Every variant of the sketch kernels against the scalar one: integers bit for bit, on odd lengths,
 * cut ends, all code widths, dims and groups; codes and sums of floats within rounding.
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

#include "attn-node/kernels/sketch.h"
#include "common/base/rng.h"

#define HEADS_MAX  9u
#define SCAN_HEADS 17u /* more than kernels make tables for at once */
#define BLOCKS     9u
#define ROWS       (BLOCKS * AN_SKETCH_BLOCK)

static const char *const variants[] = {"avx2", "avx512", "avx512bf16"};
static const uint32_t all_bits[] = {1, 2, 4};
static const uint32_t dims[] = {1, 64, 80, 96, 128, 200, 256};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Calls check for every variant of this machine. */
static void each_variant(void (*check)(const struct an_sketch_kernels *kernels))
{
    for (uint32_t i = 0; i < COUNT(variants); ++i) {
        const struct an_sketch_kernels *kernels = an_sketch_kernels_named(variants[i]);
        if (kernels == NULL) {
            printf("%s: not on this machine\n", variants[i]);
            continue;
        }
        check(kernels);
    }
}

static void *aligned(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~63ull);
    assert_non_null(memory);
    return memory;
}

static void fill_random(void *out, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes; ++i) {
        ((uint8_t *)out)[i] = (uint8_t)pp_rng_at(seed, i);
    }
}

static void make_query(const struct an_sketch_shape *shape, float size, uint64_t seed,
                       struct an_sketch_query *query)
{
    struct pp_rng rng = {.seed = seed};
    float r[PP_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < shape->padded; ++i) {
        r[i] = size * (float)pp_rng_normal(&rng);
    }
    an_sketch_tables_make(shape, r, query);
}

static void check_scan(const struct an_sketch_kernels *kernels, const struct an_sketch_shape *shape,
                       uint32_t heads, uint32_t begin, uint32_t end, float unit)
{
    const struct an_sketch_kernels *scalar = an_sketch_kernels_named("scalar");
    uint8_t *stream = aligned((uint64_t)BLOCKS * shape->block_bytes);
    struct an_sketch_query *queries = aligned(heads * sizeof(*queries));
    int16_t *memory = aligned(2ull * heads * ROWS * sizeof(*memory));
    struct an_sketch_scores scores[2][SCAN_HEADS];
    fill_random(stream, (uint64_t)BLOCKS * shape->block_bytes, 5 + begin);
    for (uint32_t block = 0; block < BLOCKS; ++block) {
        uint8_t *factors = stream + (uint64_t)block * shape->block_bytes + 64ull * shape->planes;
        for (uint32_t i = 0; i < 64; ++i) {
            factors[2 * i + 1] &= 0x7f;
        }
    }
    for (uint32_t h = 0; h < heads; ++h) {
        make_query(shape, 1.0f + (float)h, 77 + h, &queries[h]);
        scores[0][h].scale = scores[1][h].scale = an_sketch_scale_of(&queries[h], unit);
        scores[0][h].scores = memory + (uint64_t)h * ROWS;
        scores[1][h].scores = memory + (uint64_t)(heads + h) * ROWS;
    }
    scalar->scan(shape, stream, begin, end, queries, heads, scores[0]);
    kernels->scan(shape, stream, begin, end, queries, heads, scores[1]);
    uint32_t count = (end + 63) / 64 * 64 - begin / 64 * 64;
    for (uint32_t h = 0; h < heads; ++h) {
        assert_memory_equal(scores[0][h].scores, scores[1][h].scores, count * sizeof(int16_t));
        assert_true(scores[0][h].sum >= 0.0f && isfinite(scores[0][h].sum));
        assert_true(fabsf(scores[0][h].sum - scores[1][h].sum) <= 1e-4f * scores[0][h].sum);
    }
    free(stream);
    free(queries);
    free(memory);
}

static void check_scans(const struct an_sketch_kernels *kernels)
{
    static const uint32_t groups[] = {1, 2, 3, 4, 7, 8, SCAN_HEADS};
    static const uint32_t cuts[][2] = {{0, ROWS}, {0, 64},   {1, 2},          {63, 65},
                                       {5, 500},  {64, 130}, {130, ROWS - 1}, {70, 71}};
    for (uint32_t b = 0; b < COUNT(all_bits); ++b) {
        for (uint32_t d = 0; d < COUNT(dims); ++d) {
            struct an_sketch_shape shape = an_sketch_shape_of(dims[d], all_bits[b]);
            for (uint32_t g = 0; g < COUNT(groups); ++g) {
                const uint32_t *cut = cuts[(b + d + g) % COUNT(cuts)];
                check_scan(kernels, &shape, groups[g], cut[0], cut[1], 0.05f);
            }
            check_scan(kernels, &shape, 4, 3, ROWS - 3, 1e-6f);
            check_scan(kernels, &shape, 4, 3, ROWS - 3, 3.0f);
            check_scan(kernels, &shape, 4, 3, ROWS - 3, 1e12f);
        }
    }
}

static void scans_of_all_variants_are_equal_bit_for_bit(void **state)
{
    (void)state;
    each_variant(check_scans);
}

static void check_selection(const struct an_sketch_kernels *kernels)
{
    const struct an_sketch_kernels *scalar = an_sketch_kernels_named("scalar");
    static int16_t scores[3][ROWS];
    static int16_t logs[2][ROWS];
    static uint16_t ids[2][ROWS + 32];
    static uint16_t thresholds[2][ROWS + 32];
    const int16_t *pointers[3] = {scores[0], scores[1], scores[2]};
    fill_random(scores, sizeof(scores), 9);
    for (uint32_t i = 0; i < ROWS; i += 7) {
        scores[0][i] = AN_SKETCH_NONE;
    }
    for (uint32_t i = 0; i < 3 * ROWS; ++i) {
        scores[i / ROWS][i % ROWS] /= i / ROWS == 0 && i % 7 == 0 ? 1 : 1 + (int16_t)(i % 16);
    }
    int16_t shifts[3] = {-300, 20, -32000};
    for (uint32_t heads = 1; heads <= 3; ++heads) {
        scalar->combine(pointers, shifts, heads, -3000, ROWS, logs[0]);
        kernels->combine(pointers, shifts, heads, -3000, ROWS, logs[1]);
        assert_memory_equal(logs[0], logs[1], sizeof(logs[0]));
        float sums[2][3] = {{0}};
        scalar->sum_u(logs[0], ROWS, shifts, sums[0]);
        kernels->sum_u(logs[1], ROWS, shifts, sums[1]);
        for (uint32_t j = 0; j < 3; ++j) {
            assert_true(fabsf(sums[0][j] - sums[1][j]) <= 1e-4f * sums[0][j]);
        }
        for (uint32_t held = 0; held < 3; ++held) {
            uint32_t counts[2];
            uint64_t key = pp_rng_at(4, held);
            counts[0] = scalar->draw(logs[0], ROWS, -100, key, held * 0x7fffffffu, 64, ids[0],
                                     thresholds[0]);
            counts[1] = kernels->draw(logs[1], ROWS, -100, key, held * 0x7fffffffu, 64, ids[1],
                                      thresholds[1]);
            assert_int_equal(counts[0], counts[1]);
            assert_true(counts[0] > 10 && counts[0] < ROWS);
            assert_memory_equal(ids[0], ids[1], counts[0] * sizeof(ids[0][0]));
            assert_memory_equal(thresholds[0], thresholds[1], counts[0] * sizeof(ids[0][0]));
        }
    }
}

static void selections_of_all_variants_are_equal_bit_for_bit(void **state)
{
    (void)state;
    each_variant(check_selection);
}

struct bed {
    struct an_rows rows;
    uint8_t *memory;
    float centre[PP_HEAD_DIM_MAX], balance[PP_HEAD_DIM_MAX];
    struct an_sketch_signs signs;
    struct an_sketch_encoder encoder;
};

static void bed_init(struct bed *bed, uint32_t dim, uint32_t bits, enum pp_dtype dtype,
                     uint32_t count)
{
    struct pp_rng rng = {.seed = dim * 8 + bits};
    uint32_t half = (uint32_t)pp_vector_bytes(dim, dtype);
    bed->memory = malloc(2ull * half * count);
    assert_non_null(bed->memory);
    bed->rows = (struct an_rows){.base = bed->memory,
                                 .row_bytes = 2ull * half,
                                 .v_offset = half,
                                 .dim = dim,
                                 .dtype = dtype};
    for (uint32_t i = 0; i < count; ++i) {
        float values[2 * PP_HEAD_DIM_MAX];
        for (uint32_t d = 0; d < 2 * dim; ++d) {
            values[d] = (float)pp_rng_normal(&rng) + 0.25f;
        }
        pp_vectors_from_f32(dtype, dim, values, 2, bed->memory + 2ull * half * i);
    }
    for (uint32_t d = 0; d < dim; ++d) {
        bed->centre[d] = 0.25f;
        bed->balance[d] = 0.5f + (float)pp_rng_uniform(&rng);
    }
    an_sketch_signs_init(&bed->signs, 42);
    bed->encoder = (struct an_sketch_encoder){.shape = an_sketch_shape_of(dim, bits),
                                              .signs = &bed->signs,
                                              .centre = bed->centre,
                                              .balance_inverse = bed->balance};
}

static void check_encoding(const struct an_sketch_kernels *kernels)
{
    const struct an_sketch_kernels *scalar = an_sketch_kernels_named("scalar");
    for (uint32_t i = 0; i < COUNT(all_bits) * COUNT(dims); ++i) {
        struct bed bed;
        uint32_t count = i % 3 == 0 ? 64 : 1 + i * 3 % 64;
        bed_init(&bed, dims[i % COUNT(dims)], all_bits[i / COUNT(dims)], PP_BF16 + i % 4, count);
        bed.encoder.balance_inverse = i % 2 == 0 ? bed.balance : NULL;
        const struct an_sketch_shape *shape = &bed.encoder.shape;
        uint8_t *blocks[2] = {aligned(shape->block_bytes), aligned(shape->block_bytes)};
        float factors[2][64];
        scalar->encode(&bed.encoder, &bed.rows, 0, count, blocks[0], factors[0]);
        kernels->encode(&bed.encoder, &bed.rows, 0, count, blocks[1], factors[1]);
        uint32_t other = 0;
        for (uint32_t at = 0; at < shape->planes * 64; ++at) {
            uint32_t lane = at % 64;
            bool used = (lane % 2 == 0 ? lane / 2 : 32 + lane / 2) < count;
            other += used && blocks[0][at] != blocks[1][at];
        }
        assert_true(other <= shape->planes * 64 / 1000);
        for (uint32_t key = 0; key < 64; ++key) {
            assert_true(key < count || factors[1][key] == 0.0f);
            assert_true(isnan(factors[0][key]) == isnan(factors[1][key]));
            if (!isnan(factors[0][key])) {
                assert_true(fabsf(factors[0][key] - factors[1][key]) <= 1e-3f * factors[0][key]);
            }
        }
        free(blocks[0]);
        free(blocks[1]);
        free(bed.memory);
    }
}

static void codes_of_all_variants_agree(void **state)
{
    (void)state;
    each_variant(check_encoding);
}

struct sums {
    struct an_accumulator heads[HEADS_MAX];
    float o[HEADS_MAX][PP_HEAD_DIM_MAX], b1[HEADS_MAX][PP_HEAD_DIM_MAX];
};

static void sums_init(struct sums *sums, uint32_t dim)
{
    for (uint32_t h = 0; h < HEADS_MAX; ++h) {
        sums->heads[h] = (struct an_accumulator){.o = sums->o[h], .b1 = sums->b1[h]};
        an_accumulator_clear(&sums->heads[h], dim);
    }
}

static bool near(float a, float b, float size)
{
    return fabsf(a - b) <= 2e-5f * size;
}

static void check_attend(const struct an_sketch_kernels *kernels)
{
    const struct an_sketch_kernels *scalar = an_sketch_kernels_named("scalar");
    static struct sums sums[2];
    for (uint32_t i = 0; i < COUNT(dims) * HEADS_MAX; ++i) {
        struct bed bed;
        uint32_t dim = dims[i % COUNT(dims)];
        uint32_t heads = 1 + i % HEADS_MAX;
        uint32_t count = i * 37 % 600;
        bed_init(&bed, dim, 2, PP_BF16 + i % 4, 64);
        uint16_t ids[600];
        uint16_t thresholds[600];
        float q[HEADS_MAX * PP_HEAD_DIM_MAX];
        for (uint32_t j = 0; j < count; ++j) {
            ids[j] = (uint16_t)(pp_rng_at(1, j) % 64);
            thresholds[j] = j % 3 == 0 ? 0 : (uint16_t)pp_rng_at(2, j);
            thresholds[j] += j % 3 != 0 && thresholds[j] == 0;
        }
        for (uint32_t j = 0; j < heads * dim; ++j) {
            q[j] = (float)(pp_rng_at(3, j) % 1000) * 2e-3f - 1.0f;
        }
        sums_init(&sums[0], dim);
        sums_init(&sums[1], dim);
        scalar->attend(&bed.rows, ids, thresholds, count, q, heads, sums[0].heads);
        kernels->attend(&bed.rows, ids, thresholds, count, q, heads, sums[1].heads);
        for (uint32_t h = 0; h < heads; ++h) {
            struct an_accumulator *a = &sums[0].heads[h];
            struct an_accumulator *b = &sums[1].heads[h];
            assert_int_equal(a->keys_read, b->keys_read);
            assert_true(count == 0 || near(a->m, b->m, 10.0f));
            assert_true(near(a->sum, b->sum, 10.0f * a->sum));
            assert_true(near(a->b0, b->b0, 10.0f * a->b0));
            assert_true(near(a->b2, b->b2, 10.0f * a->b2));
            for (uint32_t d = 0; d < dim; ++d) {
                assert_true(near(a->o[d], b->o[d], 10.0f * a->sum));
                assert_true(near(a->b1[d], b->b1[d], 10.0f * a->b0 + 1e-3f));
            }
        }
        free(bed.memory);
    }
}

static void attends_of_all_variants_agree(void **state)
{
    (void)state;
    each_variant(check_attend);
}

/* The score read off the codes against the key's own. A quantiser that leaves D of the variance of
 * a Gaussian, scaled back by the factor, leaves D / (1 - D) of the score's. */
static void scores_follow_the_keys(void **state)
{
    (void)state;
    const struct an_sketch_kernels *kernels = an_sketch_kernels_get();
    static const double unexplained[] = {0.57, 0.135, 0.0116};
    for (uint32_t i = 0; i < COUNT(all_bits); ++i) {
        struct bed bed;
        bed_init(&bed, 96, all_bits[i], PP_F32, 64);
        const struct an_sketch_shape *shape = &bed.encoder.shape;
        uint8_t *block = aligned(shape->block_bytes);
        float factors[64];
        kernels->encode(&bed.encoder, &bed.rows, 0, 64, block, factors);
        float largest = 0.0f;
        for (uint32_t key = 0; key < 64; ++key) {
            largest = factors[key] > largest ? factors[key] : largest;
        }
        for (uint32_t key = 0; key < 64; ++key) {
            uint16_t factor = (uint16_t)rintf(factors[key] / largest * 32767.0f);
            memcpy(block + shape->planes * 64 + 2 * key, &factor, sizeof(factor));
        }
        double error = 0.0;
        double spread = 0.0;
        for (uint32_t trial = 0; trial < 30; ++trial) {
            struct pp_rng rng = {.seed = 100 + trial};
            _Alignas(64) float r[PP_HEAD_DIM_MAX * 16] = {0.0f};
            float q[PP_HEAD_DIM_MAX];
            for (uint32_t d = 0; d < 96; ++d) {
                q[d] = (float)pp_rng_normal(&rng);
                r[d * 16] = q[d] / bed.balance[d];
            }
            kernels->rotate(&bed.signs, shape->padded, r);
            float lane[PP_HEAD_DIM_MAX];
            for (uint32_t d = 0; d < shape->padded; ++d) {
                lane[d] = r[d * 16];
            }
            static struct an_sketch_query query;
            int16_t t[64];
            struct an_sketch_scores scores = {.scores = t};
            an_sketch_tables_make(shape, lane, &query);
            scores.scale = an_sketch_scale_of(&query, 0.1f * largest);
            kernels->scan(shape, block, 0, 64, &query, 1, &scores);
            for (uint32_t key = 0; key < 64; ++key) {
                double truth = 0.0;
                const float *k =
                    (const float *)(const void *)(bed.memory + key * bed.rows.row_bytes);
                for (uint32_t d = 0; d < 96; ++d) {
                    truth += 0.1 * (double)q[d] * (double)(k[d] - bed.centre[d]);
                }
                double read = t[key] / (128.0 * 1.44269504);
                error += (read - truth) * (read - truth);
                spread += truth * truth;
            }
        }
        printf("%u bits: %.3f of the variance unexplained\n", all_bits[i], error / spread);
        assert_true(error / spread < unexplained[i] * 1.3);
        free(block);
        free(bed.memory);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scans_of_all_variants_are_equal_bit_for_bit),
        cmocka_unit_test(selections_of_all_variants_are_equal_bit_for_bit),
        cmocka_unit_test(codes_of_all_variants_agree),
        cmocka_unit_test(attends_of_all_variants_agree),
        cmocka_unit_test(scores_follow_the_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
