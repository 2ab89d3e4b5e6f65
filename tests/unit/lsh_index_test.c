/*
 * The lsh index against brute force over the signatures: which rows are chosen for any T, what a
 * cut view sees, rows without a direction, norms that f16 cannot hold, and full segments.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/index/index.h"
#include "common/base/limits.h"
#include "common/base/rng.h"

#define DIM 40u
#define K   6u
#define L   30u
/* Of the team that builds. */
#define THREADS 3u

struct bed {
    struct an_rows rows;
    float *values; /* [token][2 DIM] f32 */
    uint32_t tokens;
    float centre[DIM];
    struct pp_hash *hash;
    struct pp_log_u_table table;
    struct an_index_params params;
    void *memory, *build, *scratch;
    struct an_index *index;
    float q[DIM], q_scaled[DIM];
    uint16_t codes[L];
    uint16_t *ids;
    float *log_u;
};

static void *padded_alloc(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~63ull);
    assert_non_null(memory);
    return memory;
}

/* Normal rows around 1; the caller changes them, then builds. */
static void bed_init(struct bed *bed, uint32_t tokens, uint32_t t)
{
    struct pp_rng rng = {.seed = tokens + t};
    *bed = (struct bed){.tokens = tokens};
    bed->values = malloc(tokens * 2ull * DIM * sizeof(float));
    assert_non_null(bed->values);
    for (uint32_t i = 0; i < tokens * 2 * DIM; ++i) {
        bed->values[i] = (float)pp_rng_normal(&rng) + 1.0f;
    }
    bed->rows = (struct an_rows){.base = (const uint8_t *)bed->values,
                                 .row_bytes = 2 * DIM * sizeof(float),
                                 .v_offset = DIM * sizeof(float),
                                 .dim = DIM,
                                 .dtype = PP_F32};
    assert_int_equal(pp_hash_new(8, DIM, K, L, &bed->hash), PP_OK);
    pp_log_u_table_init(&bed->table, K, L, t);
    bed->params = (struct an_index_params){
        .estimator = {.kind = PP_LSH, .k = K, .l = L, .t = t},
        .hash = bed->hash,
        .log_u_table = &bed->table,
    };
    bed->memory = padded_alloc(an_index_bytes(&bed->params, DIM, tokens));
    bed->build = padded_alloc(an_index_scratch_bytes(&bed->params, DIM, tokens, THREADS));
    bed->scratch = padded_alloc(an_index_query_scratch_bytes(&bed->params, tokens));
    bed->ids = malloc(tokens * sizeof(*bed->ids));
    bed->log_u = malloc(tokens * sizeof(*bed->log_u));
    for (uint32_t d = 0; d < DIM; ++d) {
        bed->q[d] = (float)pp_rng_normal(&rng);
    }
}

static void bed_build(struct bed *bed, bool own_centre)
{
    for (uint32_t d = 0; d < DIM && !own_centre; ++d) {
        double sum = 0.0;
        for (uint32_t i = 0; i < bed->tokens; ++i) {
            sum += (double)bed->values[i * 2 * DIM + d];
        }
        bed->centre[d] = (float)(sum / bed->tokens);
    }
    assert_int_equal(an_index_build(&bed->params, &bed->rows, bed->tokens, bed->centre, NULL, 0,
                                    THREADS, bed->memory, bed->build, &bed->index),
                     PP_OK);
}

static uint32_t bed_sample(struct bed *bed, uint32_t begin, uint32_t end)
{
    for (uint32_t d = 0; d < DIM; ++d) {
        bed->q_scaled[d] = bed->q[d] * 0.25f;
    }
    pp_hash_query(bed->hash, bed->q, bed->codes);
    struct an_index_query query = {
        .heads = 1, .q = bed->q, .q_scaled = bed->q_scaled, .codes = bed->codes};
    return an_index_sample(bed->index, &bed->params, &bed->rows, begin, end, &query, bed->scratch,
                           bed->ids, bed->log_u);
}

static uint32_t bed_attend(struct bed *bed, uint32_t begin, uint32_t end,
                           struct an_accumulator *accumulator)
{
    uint32_t sampled = bed_sample(bed, begin, end);
    static uint64_t rows_read[(PP_SEGMENT_TOKENS_MAX + 63) / 64];
    memset(rows_read, 0, sizeof(rows_read));
    struct an_index_query query = {.heads = 1,
                                   .q = bed->q,
                                   .q_scaled = bed->q_scaled,
                                   .codes = bed->codes,
                                   .rows_read = rows_read};
    an_accumulator_clear(accumulator, DIM);
    an_index_attend(bed->index, &bed->params, &bed->rows, begin, end, &query, bed->scratch,
                    accumulator);
    assert_int_equal(accumulator->keys_read, sampled);
    for (uint32_t i = 0; i < sampled; ++i) {
        rows_read[bed->ids[i] / 64] ^= 1ull << (bed->ids[i] % 64);
    }
    for (size_t word = 0; word < sizeof(rows_read) / sizeof(rows_read[0]); ++word) {
        assert_int_equal(rows_read[word], 0);
    }
    return sampled;
}

static void bed_deinit(struct bed *bed)
{
    free(bed->values);
    free(bed->memory);
    free(bed->build);
    free(bed->scratch);
    free(bed->ids);
    free(bed->log_u);
    pp_hash_destroy(bed->hash);
}

static void set_key(struct bed *bed, uint32_t token, float value)
{
    for (uint32_t d = 0; d < DIM; ++d) {
        bed->values[token * 2 * DIM + d] = value;
    }
}

/* Counts collisions of every row's signature with the query's. */
static void count_collisions(const struct bed *bed, uint32_t *collisions)
{
    uint64_t stride = (bed->tokens + 31ull) & ~31ull;
    uint16_t *codes = padded_alloc(stride * L * sizeof(*codes));
    pp_hash_keys(bed->hash, bed->rows.base, bed->rows.row_bytes, PP_F32, bed->centre, bed->tokens,
                 codes, stride);
    for (uint32_t i = 0; i < bed->tokens; ++i) {
        collisions[i] = 0;
        for (uint32_t t = 0; t < L; ++t) {
            collisions[i] += codes[t * stride + i] == bed->codes[t];
        }
    }
    free(codes);
}

static double true_log_u(const struct bed *bed, uint32_t id)
{
    double dot = 0.0;
    double q_square = 0.0;
    double x_square = 0.0;
    for (uint32_t d = 0; d < DIM; ++d) {
        double x = (double)bed->values[id * 2 * DIM + d] - (double)bed->centre[d];
        dot += (double)bed->q[d] * x;
        q_square += (double)bed->q[d] * (double)bed->q[d];
        x_square += x * x;
    }
    return pp_log_u(dot / sqrt(q_square * x_square), K, L, bed->params.estimator.t);
}

static void the_sample_is_the_rows_that_collide_t_times(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1,  15,   16,   17,   63,   64,
                                       65, 1000, 4095, 4096, 4097, PP_SEGMENT_TOKENS_MAX};
    static uint32_t collisions[PP_SEGMENT_TOKENS_MAX];
    for (uint32_t t = 1; t <= 5; ++t) {
        for (uint32_t n = 0; n < (t == 2 ? 12 : 11); ++n) {
            struct bed bed;
            bed_init(&bed, lengths[n], t);
            bed_build(&bed, false);
            uint32_t found = bed_sample(&bed, 0, bed.tokens);
            count_collisions(&bed, collisions);
            bool one = lengths[n] == 1; /* the only row is the centre: certain */
            uint32_t at = 0;
            for (uint32_t i = 0; i < bed.tokens; ++i) {
                if (collisions[i] >= t || one) {
                    assert_true(at < found);
                    assert_int_equal(bed.ids[at], i);
                    double expected = one ? 0.0 : true_log_u(&bed, i);
                    assert_true(fabs((double)bed.log_u[at] - expected) <= 1e-2);
                    ++at;
                }
            }
            assert_int_equal(at, found);
            bed_deinit(&bed);
        }
    }
}

static void a_cut_view_sees_the_rows_of_its_range_only(void **state)
{
    (void)state;
    static const uint32_t cuts[][2] = {{0, 0},     {0, 1},      {1, 64},   {63, 65},    {64, 128},
                                       {100, 333}, {999, 1000}, {5, 1000}, {1000, 1000}};
    struct bed bed;
    bed_init(&bed, 1000, 2);
    set_key(&bed, 64, 1.0f);
    bed_build(&bed, false);
    memcpy(bed.values + 64 * 2 * DIM, bed.centre, sizeof(bed.centre)); /* a certain row */
    bed_build(&bed, true);
    uint16_t whole[1000];
    uint32_t count = bed_sample(&bed, 0, 1000);
    memcpy(whole, bed.ids, count * sizeof(*whole));
    for (uint32_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); ++c) {
        uint32_t found = bed_sample(&bed, cuts[c][0], cuts[c][1]);
        uint32_t at = 0;
        for (uint32_t i = 0; i < count; ++i) {
            if (whole[i] >= cuts[c][0] && whole[i] < cuts[c][1]) {
                assert_int_equal(bed.ids[at++], whole[i]);
            }
        }
        assert_int_equal(at, found);
        float o[DIM];
        float b1[DIM];
        struct an_accumulator accumulator = {.o = o, .b1 = b1};
        assert_int_equal(bed_attend(&bed, cuts[c][0], cuts[c][1], &accumulator), found);
    }
    bed_deinit(&bed);
}

static void rows_at_the_centre_are_certain_up_to_64_and_then_all_is_exact(void **state)
{
    (void)state;
    for (uint32_t central = 64; central <= 65; ++central) {
        struct bed bed;
        bed_init(&bed, 500, 2);
        bed_build(&bed, false);
        for (uint32_t i = 0; i < central; ++i) {
            memcpy(bed.values + 7 * i * 2 * DIM, bed.centre, sizeof(bed.centre));
        }
        bed_build(&bed, true);
        uint32_t found = bed_sample(&bed, 0, 500);
        uint32_t certain = 0;
        for (uint32_t i = 0; i < found; ++i) {
            certain += bed.log_u[i] == 0.0f;
        }
        if (central == 64) {
            assert_int_equal(certain, 64);
            assert_true(found < 500);
        } else {
            assert_int_equal(found, 500);
            assert_int_equal(certain, 500);
        }
        bed_deinit(&bed);
    }
}

static void full_segments_of_one_key_do_not_wrap(void **state)
{
    (void)state;
    for (uint32_t own = 0; own < 2; ++own) {
        struct bed bed;
        bed_init(&bed, PP_SEGMENT_TOKENS_MAX, 2);
        for (uint32_t i = 0; i < PP_SEGMENT_TOKENS_MAX; ++i) {
            set_key(&bed, i, 0.5f);
        }
        for (uint32_t d = 0; d < DIM; ++d) {
            bed.q[d] = 0.75f; /* parallel to the keys when the centre is zero */
        }
        bed_build(&bed, own == 1);
        float o[DIM];
        struct an_accumulator accumulator = {.o = o};
        assert_int_equal(bed_attend(&bed, 0, PP_SEGMENT_TOKENS_MAX, &accumulator),
                         PP_SEGMENT_TOKENS_MAX);
        assert_true(fabsf(accumulator.sum / PP_SEGMENT_TOKENS_MAX - 1.0f) < 1e-3f);
        assert_int_equal(bed_sample(&bed, 1, PP_SEGMENT_TOKENS_MAX), PP_SEGMENT_TOKENS_MAX - 1);
        assert_int_equal(bed.ids[PP_SEGMENT_TOKENS_MAX - 2], PP_SEGMENT_TOKENS_MAX - 1);
        assert_true(bed.log_u[0] <= 0.0f && bed.log_u[0] > -1e-3f);
        bed_deinit(&bed);
    }
}

static void strange_keys_leave_no_nan_and_other_rows_alone(void **state)
{
    (void)state;
    static const float strange[] = {0.0f, -0.0f, 1e-20f, 1e4f, 0x1p40f, -0x1p40f};
    struct bed plain;
    struct bed bed;
    bed_init(&plain, 1000, 2);
    bed_init(&bed, 1000, 2);
    bed_build(&plain, false);
    memcpy(bed.centre, plain.centre, sizeof(bed.centre));
    for (uint32_t i = 0; i < 6; ++i) {
        set_key(&bed, 100 * i + 50, strange[i]);
    }
    bed_build(&bed, true);
    for (uint32_t zero = 0; zero < 2; ++zero) {
        if (zero == 1) {
            memset(plain.q, 0, sizeof(plain.q));
            memset(bed.q, 0, sizeof(bed.q));
        }
        uint32_t expected = bed_sample(&plain, 0, 1000);
        uint32_t found = bed_sample(&bed, 0, 1000);
        uint32_t other = 0;
        for (uint32_t i = 0; i < found; ++i) {
            assert_true(isfinite(bed.log_u[i]) && bed.log_u[i] <= 0.0f);
            if (bed.ids[i] % 100 == 50 && bed.ids[i] < 600) {
                continue;
            }
            while (other < expected && plain.ids[other] % 100 == 50 && plain.ids[other] < 600) {
                ++other;
            }
            assert_int_equal(bed.ids[i], plain.ids[other]);
            assert_true(bed.log_u[i] == plain.log_u[other++]);
        }
        float o[DIM];
        float b1[DIM];
        struct an_accumulator accumulator = {.o = o, .b1 = b1};
        bed_attend(&bed, 0, 1000, &accumulator);
        assert_true(isfinite(accumulator.m) && isfinite(accumulator.sum));
        assert_true(isfinite(accumulator.b0) && isfinite(accumulator.b2));
        for (uint32_t d = 0; d < DIM; ++d) {
            assert_true(isfinite(o[d]) && isfinite(b1[d]));
        }
    }
    bed_deinit(&plain);
    bed_deinit(&bed);
}

static void norms_that_f16_rounds_or_cannot_hold_give_the_right_u(void **state)
{
    (void)state;
    static const float scales[] = {1e-6f, 1e-3f, 1.0f, 1.0004f, 1e3f, 1e6f, 0x1p39f};
    for (uint32_t s = 0; s < sizeof(scales) / sizeof(scales[0]); ++s) {
        struct bed bed;
        bed_init(&bed, 200, 2);
        for (uint32_t i = 0; i < 200; ++i) {
            for (uint32_t d = 0; d < DIM; ++d) {
                float *value = &bed.values[i * 2 * DIM + d];
                /* The first is parallel to the query: a norm rounded down makes its cosine > 1. */
                *value = scales[s] * (i == 0 ? bed.q[d] : i == 1 ? -bed.q[d] : *value);
            }
        }
        bed_build(&bed, true); /* around zero */
        uint32_t found = bed_sample(&bed, 0, 200);
        assert_true(found > 0);
        assert_int_equal(bed.ids[0], 0);
        for (uint32_t i = 0; i < found; ++i) {
            assert_true(fabs((double)bed.log_u[i] - true_log_u(&bed, bed.ids[i])) < 1e-2);
        }
        bed_deinit(&bed);
    }
}

static void heads_attended_together_equal_each_alone(void **state)
{
    (void)state;
    enum { HEADS = 3 };
    struct bed bed;
    bed_init(&bed, 2000, 2);
    memcpy(bed.values + 77 * 2 * DIM, bed.centre, sizeof(bed.centre)); /* a certain row */
    bed_build(&bed, true);
    float q[HEADS * DIM], q_scaled[HEADS * DIM], o[2 * HEADS * DIM], b1[2 * HEADS * DIM];
    uint16_t codes[HEADS * L];
    uint64_t rows_read[2][32] = {{0}};
    struct pp_rng rng = {.seed = 5};
    struct an_accumulator sums[2 * HEADS];
    for (uint32_t i = 0; i < HEADS * DIM; ++i) {
        q[i] = (float)pp_rng_normal(&rng);
        q_scaled[i] = 0.25f * q[i];
    }
    pp_hash_queries(bed.hash, q, HEADS, codes);
    for (uint32_t i = 0; i < 2 * HEADS; ++i) {
        sums[i] = (struct an_accumulator){.o = o + i * DIM, .b1 = b1 + i * DIM};
        an_accumulator_clear(&sums[i], DIM);
    }
    struct an_index_query query = {
        .heads = HEADS, .q = q, .q_scaled = q_scaled, .codes = codes, .rows_read = rows_read[0]};
    an_index_attend(bed.index, &bed.params, &bed.rows, 3, 1999, &query, bed.scratch, sums);
    for (uint32_t i = 0; i < HEADS; ++i) {
        query = (struct an_index_query){.heads = 1,
                                        .q = q + i * DIM,
                                        .q_scaled = q_scaled + i * DIM,
                                        .codes = codes + i * L,
                                        .rows_read = rows_read[1]};
        an_index_attend(bed.index, &bed.params, &bed.rows, 3, 1999, &query, bed.scratch,
                        &sums[HEADS + i]);
        assert_true(sums[i].keys_read > 1 && sums[i].keys_read < 1996);
        assert_int_equal(sums[i].keys_read, sums[HEADS + i].keys_read);
        assert_true(sums[i].m == sums[HEADS + i].m && sums[i].sum == sums[HEADS + i].sum);
        assert_memory_equal(sums[i].o, sums[HEADS + i].o, DIM * sizeof(float));
        assert_memory_equal(sums[i].b1, sums[HEADS + i].b1, DIM * sizeof(float));
    }
    assert_memory_equal(rows_read[0], rows_read[1], sizeof(rows_read[0]));
    bed_deinit(&bed);
}

static void codes_from_outside_give_the_same_index_or_are_refused(void **state)
{
    (void)state;
    struct bed bed;
    bed_init(&bed, 300, 2);
    bed_build(&bed, false);
    uint32_t found = bed_sample(&bed, 0, 300);
    uint16_t expected[300];
    memcpy(expected, bed.ids, sizeof(expected));
    uint16_t *codes = padded_alloc(320 * L * sizeof(*codes));
    pp_hash_keys(bed.hash, bed.rows.base, bed.rows.row_bytes, PP_F32, bed.centre, 300, codes, 320);
    assert_int_equal(an_index_build(&bed.params, &bed.rows, 300, bed.centre, codes, 320, THREADS,
                                    bed.memory, bed.build, &bed.index),
                     PP_OK);
    assert_int_equal(bed_sample(&bed, 0, 300), found);
    assert_memory_equal(bed.ids, expected, found * sizeof(*expected));
    codes[320 * (L - 1) + 299] = 1u << K;
    assert_int_equal(an_index_build(&bed.params, &bed.rows, 300, bed.centre, codes, 320, THREADS,
                                    bed.memory, bed.build, &bed.index),
                     PP_INVALID_ARGUMENT);
    free(codes);
    bed_deinit(&bed);
}

static void the_index_takes_no_more_than_it_says_a_token(void **state)
{
    (void)state;
    struct an_index_params params = {.estimator = {.kind = PP_LSH, .k = 10, .l = 150, .t = 2}};
    uint64_t bytes = an_index_bytes(&params, 128, PP_SEGMENT_TOKENS_MAX) +
                     an_index_bytes(&params, 128, 98304 - PP_SEGMENT_TOKENS_MAX);
    assert_true(bytes <= 310ull * 98304);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sample_is_the_rows_that_collide_t_times),
        cmocka_unit_test(a_cut_view_sees_the_rows_of_its_range_only),
        cmocka_unit_test(rows_at_the_centre_are_certain_up_to_64_and_then_all_is_exact),
        cmocka_unit_test(full_segments_of_one_key_do_not_wrap),
        cmocka_unit_test(strange_keys_leave_no_nan_and_other_rows_alone),
        cmocka_unit_test(norms_that_f16_rounds_or_cannot_hold_give_the_right_u),
        cmocka_unit_test(heads_attended_together_equal_each_alone),
        cmocka_unit_test(codes_from_outside_give_the_same_index_or_are_refused),
        cmocka_unit_test(the_index_takes_no_more_than_it_says_a_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
