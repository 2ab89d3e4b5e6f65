/*
 * What the lsh estimate rests on: rows are chosen as often as the closed form says, for keys of
 * several kinds, and the estimated denominator is right on average. Random by nature, so every
 * bound carries three standard errors, measured across seeds.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/index/index.h"
#include "common/base/rng.h"

#define DIM   128u
#define K     10u
#define L     150u
#define T     2u
#define SEEDS 400u
#define PAIRS 64u

enum kind { GAUSSIAN, RANK_SIX, AXIS_ALIGNED, KIND_COUNT };
static const char *const kind_names[] = {"Gaussian", "rank 6", "axis-aligned"};

struct moments {
    double sum, squares;
    uint32_t count;
};

static void moments_add(struct moments *moments, double value)
{
    moments->sum += value;
    moments->squares += value * value;
    ++moments->count;
}

static double moments_mean(const struct moments *moments)
{
    return moments->sum / moments->count;
}

static double moments_error(const struct moments *moments)
{
    double mean = moments_mean(moments);
    double var = moments->squares / moments->count - mean * mean;
    return sqrt(fmax(var, 0.0) / moments->count);
}

static double normalise(double *x)
{
    double square = 0.0;
    for (uint32_t d = 0; d < DIM; ++d) {
        square += x[d] * x[d];
    }
    for (uint32_t d = 0; d < DIM; ++d) {
        x[d] /= sqrt(square);
    }
    return sqrt(square);
}

static void draw(enum kind kind, struct pp_rng *rng, double (*basis)[DIM], uint32_t axis, double *x)
{
    memset(x, 0, DIM * sizeof(*x));
    for (uint32_t d = 0; kind == GAUSSIAN && d < DIM; ++d) {
        x[d] = pp_rng_normal(rng);
    }
    for (uint32_t b = 0; kind == RANK_SIX && b < 6; ++b) {
        double weight = pp_rng_normal(rng);
        for (uint32_t d = 0; d < DIM; ++d) {
            x[d] += weight * basis[b][d];
        }
    }
    if (kind == AXIS_ALIGNED) {
        x[axis] = 1.0;
    }
    normalise(x);
}

/* A query and a key with exactly this cosine between them. */
static void make_pair(enum kind kind, double cosine, struct pp_rng *rng, double (*basis)[DIM],
                      float *q, float *k)
{
    double a[DIM];
    double b[DIM];
    uint32_t axis = (uint32_t)(pp_rng_uniform(rng) * DIM);
    uint32_t other = (axis + 1 + (uint32_t)(pp_rng_uniform(rng) * (DIM - 1))) % DIM;
    draw(kind, rng, basis, axis, a);
    draw(kind, rng, basis, other, b);
    double dot = 0.0;
    for (uint32_t d = 0; d < DIM; ++d) {
        dot += a[d] * b[d];
    }
    for (uint32_t d = 0; d < DIM; ++d) {
        b[d] -= dot * a[d];
    }
    normalise(b);
    for (uint32_t d = 0; d < DIM; ++d) {
        q[d] = (float)a[d];
        k[d] = (float)(cosine * a[d] + sqrt(1.0 - cosine * cosine) * b[d]);
    }
}

/* The share of pairs that collide in at least T of L tables, one value a seed. */
static struct moments hit_rate(enum kind kind, double cosine)
{
    static float q[PAIRS * DIM];
    static float k[PAIRS * DIM];
    static uint16_t q_codes[PAIRS * L];
    static _Alignas(64) uint16_t k_codes[PAIRS * L];
    static const float centre[DIM];
    struct pp_rng rng = {.seed = 1000 + (uint64_t)kind * 100 + (uint64_t)(cosine * 50)};
    double basis[6][DIM];
    for (uint32_t b = 0; b < 6; ++b) {
        draw(GAUSSIAN, &rng, NULL, 0, basis[b]);
    }
    for (uint32_t i = 0; i < PAIRS; ++i) {
        make_pair(kind, cosine, &rng, basis, q + i * DIM, k + i * DIM);
    }
    struct moments moments = {0};
    for (uint32_t seed = 0; seed < SEEDS; ++seed) {
        struct pp_hash *hash;
        assert_int_equal(pp_hash_new(pp_rng_u64(&rng), DIM, K, L, &hash), PP_OK);
        pp_hash_queries(hash, q, PAIRS, q_codes);
        pp_hash_keys(hash, k, DIM * sizeof(float), PP_F32, centre, PAIRS, k_codes, PAIRS);
        uint32_t hits = 0;
        for (uint32_t i = 0; i < PAIRS; ++i) {
            uint32_t tables = 0;
            for (uint32_t t = 0; t < L; ++t) {
                tables += q_codes[i * L + t] == k_codes[t * PAIRS + i];
            }
            hits += tables >= T;
        }
        moments_add(&moments, (double)hits / PAIRS);
        pp_hash_destroy(hash);
    }
    return moments;
}

static void rows_are_chosen_as_often_as_the_closed_form_says(void **state)
{
    (void)state;
    for (enum kind kind = GAUSSIAN; kind < KIND_COUNT; ++kind) {
        for (uint32_t tenth = 2; tenth <= 8; ++tenth) {
            double u = exp(pp_log_u(tenth / 10.0, K, L, T));
            struct moments moments = hit_rate(kind, tenth / 10.0);
            double ratio = moments_mean(&moments) / u;
            double error = moments_error(&moments) / u;
            double bound = (tenth == 2 ? 0.04 : 0.02) + 3.0 * error;
            print_message("%s, cosine .%u: hit rate / closed form %.4f +- %.4f\n", kind_names[kind],
                          tenth, ratio, error);
            if (fabs(ratio - 1.0) > bound) {
                fail_msg("off by more than %.4f", bound);
            }
        }
    }
}

enum { TOKENS = 2048, QUERIES = 20 };

struct field {
    struct an_rows rows;
    uint16_t memory[TOKENS * 2 * DIM];
    float centre[DIM];
    float q[QUERIES * DIM];
    float q_scaled[QUERIES * DIM];
    uint16_t codes[QUERIES * L];
};

static void field_init(struct field *field, struct pp_rng *rng)
{
    field->rows = (struct an_rows){.base = (const uint8_t *)field->memory,
                                   .row_bytes = pp_row_bytes(DIM, PP_BF16),
                                   .v_offset = DIM * 2,
                                   .dim = DIM,
                                   .dtype = PP_BF16};
    double sums[DIM] = {0.0};
    for (uint32_t i = 0; i < TOKENS; ++i) {
        float values[2 * DIM];
        for (uint32_t d = 0; d < 2 * DIM; ++d) {
            values[d] = (float)pp_rng_normal(rng) + (d < DIM ? 2.0f * (float)(d % 3) : 0.0f);
        }
        pp_dtype_from_f32(PP_BF16, values, 2 * DIM, field->memory + i * 2 * DIM);
        for (uint32_t d = 0; d < DIM; ++d) {
            float stored;
            pp_dtype_to_f32(PP_BF16, field->memory + i * 2 * DIM + d, 1, &stored);
            sums[d] += (double)stored;
        }
    }
    for (uint32_t d = 0; d < DIM; ++d) {
        field->centre[d] = (float)(sums[d] / TOKENS);
    }
    for (uint32_t i = 0; i < QUERIES * DIM; ++i) {
        field->q[i] = 1.5f * (float)pp_rng_normal(rng);
        field->q_scaled[i] = field->q[i] / sqrtf((float)DIM);
    }
}

/* e^lse of one query by the sample, over the same by every row; an empty sample counts as 0. */
static double denominator_ratio(const struct field *field, const struct an_index *index,
                                const struct an_index_params *params, void *scratch, uint32_t i,
                                double lse)
{
    float o[DIM];
    struct an_accumulator accumulator = {.o = o};
    struct an_index_query query = {.heads = 1,
                                   .q = field->q + i * DIM,
                                   .q_scaled = field->q_scaled + i * DIM,
                                   .codes = field->codes + i * L};
    an_accumulator_clear(&accumulator, DIM);
    an_index_attend(index, params, &field->rows, 0, TOKENS, &query, scratch, &accumulator);
    return accumulator.keys_read == 0 ? 0.0
                                      : exp((double)accumulator.m - lse) * (double)accumulator.sum;
}

static void the_estimated_denominator_is_right_on_average(void **state)
{
    (void)state;
    struct pp_rng rng = {.seed = 99};
    static struct field field;
    static struct pp_log_u_table table;
    field_init(&field, &rng);
    pp_log_u_table_init(&table, K, L, T);
    struct an_index_params params = {.estimator = {.kind = PP_LSH, .k = K, .l = L, .t = T},
                                     .log_u_table = &table};
    double lse[QUERIES];
    for (uint32_t i = 0; i < QUERIES; ++i) {
        float o[DIM];
        struct an_accumulator exact = {.o = o};
        an_accumulator_clear(&exact, DIM);
        an_kernels_get()->attend_exact(&field.rows, 0, TOKENS, field.q_scaled + i * DIM, 1, &exact);
        lse[i] = (double)exact.m + log((double)exact.sum);
    }
    void *memory = aligned_alloc(64, (an_index_bytes(&params, DIM, TOKENS) + 63) & ~63ull);
    void *build =
        aligned_alloc(64, (an_index_scratch_bytes(&params, DIM, TOKENS, 1) + 63) & ~63ull);
    void *scratch =
        aligned_alloc(64, (an_index_query_scratch_bytes(&params, TOKENS) + 63) & ~63ull);
    struct moments moments = {0};
    for (uint32_t seed = 0; seed < SEEDS; ++seed) {
        struct pp_hash *hash;
        struct an_index *index;
        assert_int_equal(pp_hash_new(pp_rng_u64(&rng), DIM, K, L, &hash), PP_OK);
        params.hash = hash;
        assert_int_equal(an_index_build(&params, &field.rows, TOKENS, field.centre, NULL, 0, 1,
                                        memory, build, &index),
                         PP_OK);
        pp_hash_queries(hash, field.q, QUERIES, field.codes);
        double mean = 0.0;
        for (uint32_t i = 0; i < QUERIES; ++i) {
            mean += denominator_ratio(&field, index, &params, scratch, i, lse[i]) / QUERIES;
        }
        moments_add(&moments, mean);
        pp_hash_destroy(hash);
    }
    free(memory);
    free(build);
    free(scratch);
    double mean = moments_mean(&moments);
    double error = moments_error(&moments);
    print_message("mean D'/D %.4f +- %.4f over %u queries x %u seeds\n", mean, error, QUERIES,
                  SEEDS);
    assert_true(fabs(mean - 1.0) <= 0.03 + 3.0 * error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_chosen_as_often_as_the_closed_form_says),
        cmocka_unit_test(the_estimated_denominator_is_right_on_average),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
