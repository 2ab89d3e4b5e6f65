/*
 * The law of bits: the golden file (written from the law's text by data/make_hash_golden.py), the
 * same bits on every instruction set, batch and thread, and a slow form of the law by matrix
 * products on other sizes.
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

#include "common/attn/hash.h"
#include "common/attn/hash_lanes.h"
#include "common/base/rng.h"
#include "common/run/cpu.h"
#include "common/run/team.h"

#define GOLDEN_SEED 20240917u
#define GOLDEN_DIM  100u
#define GOLDEN_KEYS 64u
#define GOLDEN_K    10u
#define GOLDEN_L    150u

static _Alignas(64) uint16_t golden_codes[GOLDEN_L * GOLDEN_KEYS];

static float golden_value(uint64_t counter)
{
    return (float)((int64_t)(pp_rng_at(GOLDEN_SEED + 1, counter) >> 48) - 32768) / 4096.0f;
}

static void golden_rows(float *centre, float *rows)
{
    for (uint32_t d = 0; d < GOLDEN_DIM; ++d) {
        centre[d] = golden_value(d);
        for (uint32_t i = 0; i < GOLDEN_KEYS; ++i) {
            float value = golden_value(1000ull * (i + 1) + d);
            value = i == 0 ? centre[d] : i == 1 ? centre[d] + (d == 7 ? 1.0f : 0.0f) : value;
            rows[i * GOLDEN_DIM + d] = value;
        }
    }
}

static void read_golden(uint16_t *codes)
{
    char line[8 * GOLDEN_L];
    FILE *file = fopen(PP_SOURCE_DIR "/tests/unit/data/hash_golden.txt", "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    for (uint32_t i = 0; i < GOLDEN_KEYS; ++i) {
        assert_non_null(fgets(line, sizeof(line), file));
        assert_int_equal(strlen(line), 4 * GOLDEN_L + 1);
        for (uint32_t t = 0; t < GOLDEN_L; ++t) {
            char digits[5] = {line[4 * t], line[4 * t + 1], line[4 * t + 2], line[4 * t + 3]};
            codes[t * GOLDEN_KEYS + i] = (uint16_t)strtoul(digits, NULL, 16);
        }
    }
    fclose(file);
}

static void signatures_equal_the_golden_file(void **state)
{
    (void)state;
    float centre[GOLDEN_DIM];
    static float rows[GOLDEN_KEYS * GOLDEN_DIM];
    static _Alignas(64) uint16_t codes[GOLDEN_L * GOLDEN_KEYS];
    golden_rows(centre, rows);
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(GOLDEN_SEED, GOLDEN_DIM, GOLDEN_K, GOLDEN_L, &hash), PP_OK);
    pp_hash_keys(hash, rows, GOLDEN_DIM * sizeof(float), PP_F32, centre, GOLDEN_KEYS, codes,
                 GOLDEN_KEYS);
    assert_memory_equal(codes, golden_codes, sizeof(codes));
    pp_hash_destroy(hash);
}

struct one_key {
    struct pp_hash *hash;
    const float *centre, *rows;
    uint16_t (*codes)[GOLDEN_L];
};

static void hash_one(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    const struct one_key *work = context;
    float x[GOLDEN_DIM];
    for (uint32_t d = 0; d < GOLDEN_DIM; ++d) {
        x[d] = work->rows[index * GOLDEN_DIM + d] - work->centre[d];
    }
    pp_hash_query(work->hash, x, work->codes[index]);
}

static void a_query_hashes_as_a_key_with_centre_zero_on_any_thread(void **state)
{
    (void)state;
    float centre[GOLDEN_DIM];
    static float rows[GOLDEN_KEYS * GOLDEN_DIM];
    static uint16_t codes[GOLDEN_KEYS][GOLDEN_L];
    golden_rows(centre, rows);
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(GOLDEN_SEED, GOLDEN_DIM, GOLDEN_K, GOLDEN_L, &hash), PP_OK);
    struct one_key work = {.hash = hash, .centre = centre, .rows = rows, .codes = codes};
    for (uint32_t threads = 1; threads <= 16; threads *= 4) {
        memset(codes, 0xff, sizeof(codes));
        pp_team_for(threads, GOLDEN_KEYS, hash_one, &work);
        for (uint32_t i = 0; i < GOLDEN_KEYS; ++i) {
            for (uint32_t t = 0; t < GOLDEN_L; ++t) {
                assert_int_equal(codes[i][t], golden_codes[t * GOLDEN_KEYS + i]);
            }
        }
    }
    pp_hash_destroy(hash);
}

/* H by its definition: entry (i, j) is -1 to the number of common bits of i and j. */
static void slow_transform(const struct pp_hash *hash, uint32_t sign, int64_t *x)
{
    int64_t y[PP_HASH_SIZE_MAX] = {0};
    for (uint32_t i = 0; i < hash->size; ++i) {
        for (uint32_t j = 0; j < hash->size; ++j) {
            bool negative = (pp_rng_at(hash->seed, sign * 256ull + j) & 1u) != 0;
            negative ^= (__builtin_popcount(i & j) & 1) != 0;
            y[i] += negative ? -x[j] : x[j];
        }
    }
    memcpy(x, y, hash->size * sizeof(*x));
}

static void slow_signature(const struct pp_hash *hash, const float *vector, uint16_t *codes)
{
    double largest = 0.0;
    int64_t x[PP_HASH_SIZE_MAX] = {0};
    for (uint32_t d = 0; d < hash->dim; ++d) {
        largest = fmax(largest, fabs((double)vector[d]));
    }
    int e = largest > 0.0 ? 200 : 0;
    while (largest > 0.0 && ldexp(largest, e) > 32767.0) {
        --e;
    }
    for (uint32_t d = 0; d < hash->dim; ++d) {
        x[d] = (int64_t)rint(ldexp((double)vector[d], e));
    }
    for (uint32_t i = 0; i < 3; ++i) {
        slow_transform(hash, i, x);
    }
    int64_t total = 0;
    for (uint32_t d = 0; d < hash->size; ++d) {
        total += llabs(x[d]);
    }
    uint32_t g = 0;
    while (total >> g > 32767 - (int64_t)hash->size) {
        ++g;
    }
    for (uint32_t d = 0; d < hash->size && g > 0; ++d) {
        x[d] = (x[d] + (1ll << (g - 1))) >> g;
    }
    uint32_t blocks = (hash->k * hash->l + hash->size - 1) / hash->size;
    int64_t(*y)[PP_HASH_SIZE_MAX] = malloc(blocks * sizeof(*y));
    uint32_t *used = calloc(blocks, sizeof(*used));
    for (uint32_t r = 0; r < blocks; ++r) {
        memcpy(y[r], x, sizeof(x));
        slow_transform(hash, 3 + r, y[r]);
    }
    for (uint32_t t = 0; t < hash->l; ++t) {
        codes[t] = 0;
        for (uint32_t j = 0; j < hash->k; ++j) {
            uint32_t r = (t + j) % blocks;
            for (uint32_t s = 0, least = 0; used[r] == hash->size && s < blocks; ++s) {
                least = used[s] < used[least] ? s : least;
                r = s + 1 == blocks ? least : r;
            }
            codes[t] |= (uint16_t)((y[r][used[r]++] > 0) << j);
        }
    }
    free(used);
    free(y);
}

static const struct pp_hash_kernels *kernels_of(enum pp_isa isa)
{
    return isa == PP_ISA_SCALAR ? &pp_hash_scalar
           : isa == PP_ISA_AVX2 ? &pp_hash_avx2
                                : &pp_hash_avx512;
}

/* Lane 0 zero, 1 one-hot, 2 tiny, 3 huge, 4 subnormal, 5 all equal, 6 at the limit of rounding. */
static float lane_value(uint32_t lane, uint32_t d, struct pp_rng *rng)
{
    float normal = (float)pp_rng_normal(rng);
    switch (lane) {
    case 0:
        return 0.0f;
    case 1:
        return d == 3 ? -2.5f : 0.0f;
    case 2:
        return normal * 0x1p-60f;
    case 3:
        return normal * 0x1p38f;
    case 4:
        return normal * 0x1p-140f;
    case 5:
        return 32767.5f;
    case 6:
        return d % 2 == 0 ? 32767.0f : -0.5f;
    default:
        return normal;
    }
}

static void every_instruction_set_gives_the_bits_of_the_law(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{64, 10, 150}, {128, 10, 150}, {256, 10, 150},
                                         {80, 9, 120},  {96, 8, 75},    {1, 1, 1},
                                         {5, 16, 3},    {33, 7, 92},    {129, 16, 512}};
    struct pp_rng rng = {.seed = 7};
    static _Alignas(64) float x[PP_HASH_SIZE_MAX * PP_HASH_LANES];
    static _Alignas(64) uint16_t codes[PP_LSH_L_MAX * PP_HASH_LANES];
    for (uint32_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); ++s) {
        struct pp_hash *hash;
        assert_int_equal(pp_hash_new(s, shapes[s][0], shapes[s][1], shapes[s][2], &hash), PP_OK);
        memset(x, 0, sizeof(x));
        for (uint32_t d = 0; d < hash->dim; ++d) {
            PP_HASH_FOR_LANES
            {
                x[d * PP_HASH_LANES + lane] = lane_value(lane, d, &rng);
            }
        }
        for (enum pp_isa isa = PP_ISA_SCALAR; isa <= pp_isa_best() && isa <= PP_ISA_AVX512; ++isa) {
            memset(codes, 0xff, sizeof(codes));
            kernels_of(isa)->lanes(hash, x, codes, PP_HASH_LANES);
            for (uint32_t lane = 0; lane < PP_HASH_LANES; lane += lane < 8 ? 1 : 11) {
                float vector[PP_HEAD_DIM_MAX];
                uint16_t expected[PP_LSH_L_MAX];
                for (uint32_t d = 0; d < hash->dim; ++d) {
                    vector[d] = x[d * PP_HASH_LANES + lane];
                }
                slow_signature(hash, vector, expected);
                for (uint32_t t = 0; t < hash->l; ++t) {
                    if (codes[t * PP_HASH_LANES + lane] != expected[t]) {
                        fail_msg("%s dim %u lane %u table %u: %04x, law %04x", pp_isa_name(isa),
                                 hash->dim, lane, t, codes[t * PP_HASH_LANES + lane], expected[t]);
                    }
                }
            }
        }
        pp_hash_destroy(hash);
    }
}

static void halves_hash_as_their_f32_values_at_any_count(void **state)
{
    (void)state;
    enum { DIM = 33, COUNT = 70, STRIDE = 96, L = 40 };
    static float wide[COUNT * DIM];
    static uint16_t half[COUNT * DIM];
    static _Alignas(64) uint16_t codes[L * STRIDE];
    static _Alignas(64) uint16_t expected[L * STRIDE];
    float centre[DIM];
    struct pp_rng rng = {.seed = 11};
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(5, DIM, 8, L, &hash), PP_OK);
    for (uint32_t d = 0; d < DIM; ++d) {
        centre[d] = (float)pp_rng_normal(&rng);
    }
    for (enum pp_dtype dtype = PP_BF16; dtype <= PP_F16; ++dtype) {
        for (uint32_t i = 0; i < COUNT * DIM; ++i) {
            wide[i] = (float)pp_rng_normal(&rng);
        }
        pp_dtype_from_f32(dtype, wide, COUNT * DIM, half);
        pp_dtype_to_f32(dtype, half, COUNT * DIM, wide);
        pp_hash_keys(hash, wide, DIM * sizeof(float), PP_F32, centre, COUNT, expected, STRIDE);
        for (uint32_t count = 1; count <= COUNT; count += count < 31 ? 15 : 1) {
            pp_hash_keys(hash, half, DIM * sizeof(*half), dtype, centre, count, codes, STRIDE);
            for (uint32_t t = 0; t < L; ++t) {
                assert_memory_equal(codes + t * STRIDE, expected + t * STRIDE, count * 2);
            }
        }
    }
    pp_hash_destroy(hash);
}

static void int8_hashes_as_its_f32_values_on_every_instruction_set(void **state)
{
    (void)state;
    enum { DIM = 77, COUNT = 32, BYTES = 88, L = 40 };
    static uint8_t stored[COUNT * BYTES];
    static _Alignas(64) float x[2][PP_HASH_SIZE_MAX * PP_HASH_LANES];
    float wide[COUNT * DIM];
    float centre[DIM];
    struct pp_rng rng = {.seed = 13};
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(5, DIM, 8, L, &hash), PP_OK);
    for (uint32_t d = 0; d < DIM; ++d) {
        centre[d] = (float)pp_rng_normal(&rng);
    }
    for (uint32_t i = 0; i < COUNT; ++i) {
        for (uint32_t d = 0; d < DIM; ++d) {
            wide[i * DIM + d] = (float)pp_rng_normal(&rng);
        }
        pp_dtype_from_f32(PP_I8, wide + i * DIM, DIM, stored + i * BYTES);
        pp_dtype_to_f32(PP_I8, stored + i * BYTES, DIM, wide + i * DIM);
    }
    kernels_of(PP_ISA_SCALAR)->fill(hash, wide, DIM * sizeof(float), PP_F32, centre, COUNT, x[0]);
    for (enum pp_isa isa = PP_ISA_SCALAR; isa <= pp_isa_best() && isa <= PP_ISA_AVX512; ++isa) {
        kernels_of(isa)->fill(hash, stored, BYTES, PP_I8, centre, COUNT, x[1]);
        assert_memory_equal(x[0], x[1], sizeof(float) * hash->size * PP_HASH_LANES);
    }
    pp_hash_destroy(hash);
}

static void parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    static const uint32_t bad[][3] = {{0, 10, 150},   {257, 10, 150}, {128, 0, 150},
                                      {128, 17, 150}, {128, 10, 0},   {128, 10, 513}};
    struct pp_hash *hash = NULL;
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        assert_int_equal(pp_hash_new(1, bad[i][0], bad[i][1], bad[i][2], &hash),
                         PP_INVALID_ARGUMENT);
        assert_null(hash);
    }
}

int main(void)
{
    read_golden(golden_codes);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signatures_equal_the_golden_file),
        cmocka_unit_test(a_query_hashes_as_a_key_with_centre_zero_on_any_thread),
        cmocka_unit_test(every_instruction_set_gives_the_bits_of_the_law),
        cmocka_unit_test(halves_hash_as_their_f32_values_at_any_count),
        cmocka_unit_test(int8_hashes_as_its_f32_values_on_every_instruction_set),
        cmocka_unit_test(parameters_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
