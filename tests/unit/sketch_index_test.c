/*
 * The sketch index: budgets met, estimates without bias and with honest errors over many seeds,
 * draws that replicas share and shards do not, views that cut a segment, and rows that codes do not
 * describe.
 */
#include "tests/unit/sketch_bed.h"

static uint32_t count_bits(const struct bed *bed)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < (bed->tokens + 63) / 64; ++i) {
        count += (uint32_t)__builtin_popcountll(bed->bits[i]);
    }
    return count;
}

static void the_rows_read_are_the_budget_in_the_mean(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 4, 7, 8};
    static const uint32_t dims[] = {64, 80, 96, 128, 256};
    static const float shares[] = {0.01f, 0.04f, 0.3f};
    for (uint32_t i = 0; i < 15; ++i) {
        struct bed bed;
        static struct sums sums;
        bed_init(&bed, dims[i % 5], 1u << i % 3, groups[i / 3], 5000 + i, 2.0f);
        bed_build(&bed);
        double total = 0.0;
        for (uint32_t seed = 0; seed < 40; ++seed) {
            attend(&bed, 0, bed.tokens, shares[i % 3], seed, &sums);
            assert_int_equal(sums.heads[0].keys_read, count_bits(&bed));
            total += sums.heads[0].keys_read;
        }
        double wanted = (double)shares[i % 3] * bed.tokens;
        double off = fabs(total / 40.0 - wanted);
        if (off > 0.015 * wanted + 3.0 * sqrt(wanted / 40.0)) {
            fail_msg("dim %u group %u: %.1f rows for %.1f", bed.dim, bed.group, total / 40.0,
                     wanted);
        }
        bed_deinit(&bed);
    }
}

/* Mean of D' and of sum a v over seeds against the exact ones, in standard errors of the mean. */
static void check_bias(uint32_t dim, uint32_t bits, uint32_t group, uint32_t begin, uint32_t end)
{
    enum { SEEDS = 400 };
    struct bed bed;
    static struct sums exact;
    static struct sums sums;
    bed_init(&bed, dim, bits, group, 3000, 2.0f);
    bed_build(&bed);
    attend_exactly(&bed, begin, end, &exact);
    for (uint32_t h = 0; h < group; ++h) {
        double sum[2] = {0.0};
        double square[2] = {0.0};
        double within = 0.0;
        for (uint32_t seed = 0; seed < SEEDS; ++seed) {
            attend(&bed, begin, end, 0.05f, seed, &sums);
            double weight = exp((double)(sums.heads[h].m - exact.heads[h].m));
            double values[2] = {weight * (double)sums.heads[h].sum,
                                weight * (double)sums.heads[h].o[dim / 2]};
            for (uint32_t j = 0; j < 2; ++j) {
                sum[j] += values[j];
                square[j] += values[j] * values[j];
            }
            double error = distance(&sums.heads[h], &exact.heads[h], dim);
            within += error <= 2.0 * published(&sums.heads[h], dim);
        }
        double truth[2] = {(double)exact.heads[h].sum, (double)exact.heads[h].o[dim / 2]};
        for (uint32_t j = 0; j < 2; ++j) {
            double mean = sum[j] / SEEDS;
            double spread = sqrt((square[j] / SEEDS - mean * mean) / SEEDS);
            if (fabs(mean - truth[j]) > 4.0 * spread + 1e-3 * fabs(truth[0])) {
                fail_msg("dim %u bits %u head %u: mean %.4f for %.4f, standard error %.4f", dim,
                         bits, h, mean, truth[j], spread);
            }
        }
        if (within < 0.95 * SEEDS) {
            fail_msg("dim %u bits %u head %u: %.3f within twice the published", dim, bits, h,
                     within / SEEDS);
        }
    }
    bed_deinit(&bed);
}

static void estimates_have_no_bias_and_their_errors_are_published(void **state)
{
    (void)state;
    check_bias(64, 2, 4, 0, 3000);
    check_bias(128, 1, 1, 0, 3000);
    check_bias(96, 4, 3, 0, 3000);
    check_bias(80, 2, 1, 37, 2901);
    check_bias(256, 2, 2, 0, 3000);
}

static void every_row_is_drawn_as_often_as_its_u_says_and_alone(void **state)
{
    (void)state;
    enum { SEEDS = 2000, ROWS = 600 };
    struct bed bed;
    bed_init(&bed, 64, 2, 2, ROWS, 1.5f);
    bed_build(&bed);
    static uint32_t drawn[ROWS];
    static double u[ROWS];
    static bool in[ROWS];
    memset(drawn, 0, sizeof(drawn));
    double together = 0.0;
    double expected = 0.0;
    for (uint32_t seed = 0; seed < SEEDS; ++seed) {
        uint16_t ids[ROWS];
        float log_u[ROWS];
        struct an_index_query query = query_of(&bed, 0.1f, seed);
        uint32_t count = an_index_sample(bed.index, &bed.params, &bed.rows, 0, ROWS, &query,
                                         bed.scratch, ids, log_u);
        memset(in, 0, sizeof(in));
        for (uint32_t i = 0; i < count; ++i) {
            assert_true(i == 0 || ids[i] > ids[i - 1]);
            ++drawn[ids[i]];
            in[ids[i]] = true;
            u[ids[i]] = exp((double)log_u[i]);
        }
        for (uint32_t i = 1; i < ROWS; ++i) {
            together += in[i] && in[i - 1];
        }
    }
    double chi = 0.0;
    uint32_t free_rows = 0;
    for (uint32_t i = 0; i < ROWS; ++i) {
        if (u[i] < 1.0 && u[i] > 0.0) {
            double off = drawn[i] - SEEDS * u[i];
            chi += off * off / (SEEDS * u[i] * (1.0 - u[i]));
            ++free_rows;
        } else if (u[i] == 1.0) {
            assert_int_equal(drawn[i], SEEDS);
        }
        expected += i > 0 ? SEEDS * u[i] * u[i - 1] : 0.0;
    }
    assert_true(free_rows > ROWS / 2);
    assert_true(fabs(chi - free_rows) < 5.0 * sqrt(2.0 * free_rows));
    assert_true(fabs(together - expected) < 5.0 * sqrt(expected));
    bed_deinit(&bed);
}

static void replicas_draw_alike_and_other_seeds_otherwise(void **state)
{
    (void)state;
    struct bed beds[2];
    static struct sums sums[3];
    for (uint32_t i = 0; i < 2; ++i) {
        bed_init(&beds[i], 64, 2, 4, 4000, 1.0f);
        bed_build(&beds[i]);
        attend(&beds[i], 0, 4000, 0.1f, 5, &sums[i]);
    }
    assert_memory_equal(beds[0].bits, beds[1].bits, 4000 / 8);
    assert_memory_equal(sums[0].o, sums[1].o, sizeof(sums[0].o));
    attend(&beds[1], 0, 4000, 0.1f, 6, &sums[2]);
    uint32_t same = 0;
    for (uint32_t i = 0; i < (4000 + 63) / 64; ++i) {
        same += (uint32_t)__builtin_popcountll(beds[0].bits[i] & beds[1].bits[i]);
    }
    printf("%u of 400 rows drawn by both seeds\n", same);
    assert_true(same < 200);
    bed_deinit(&beds[0]);
    bed_deinit(&beds[1]);
}

static void a_larger_budget_keeps_what_a_smaller_one_drew(void **state)
{
    (void)state;
    enum { ROWS = 4000, WORDS = (ROWS + 63) / 64 };
    struct bed bed;
    static struct sums sums;
    uint64_t before[WORDS] = {0};
    bed_init(&bed, 64, 2, 4, ROWS, 1.0f);
    bed_build(&bed);
    for (float share = 0.01f; share < 0.5f; share *= 1.7f) {
        uint32_t rows = 0, lost = 0;
        attend(&bed, 0, ROWS, share, 5, &sums);
        for (uint32_t i = 0; i < WORDS; ++i) {
            rows += (uint32_t)__builtin_popcountll(bed.bits[i]);
            lost += (uint32_t)__builtin_popcountll(before[i] & ~bed.bits[i]);
            before[i] = bed.bits[i];
        }
        assert_true(rows > 0);
        assert_int_equal(lost, 0);
    }
    bed_deinit(&bed);
}

static void views_that_cut_a_segment_read_nothing_else(void **state)
{
    (void)state;
    static const uint32_t cuts[][2] = {{0, 1},     {63, 64},    {64, 65},     {1, 2000},
                                       {700, 701}, {999, 1999}, {1984, 2000}, {5, 5}};
    struct bed bed;
    static struct sums sums;
    bed_init(&bed, 64, 2, 3, 2000, 1.0f);
    bed_build(&bed);
    for (uint32_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); ++i) {
        attend(&bed, cuts[i][0], cuts[i][1], 0.5f, i, &sums);
        uint32_t seen = 0;
        for (uint32_t row = cuts[i][0]; row < cuts[i][1]; ++row) {
            seen += bed.bits[row / 64] >> (row % 64) & 1;
        }
        assert_int_equal(seen, count_bits(&bed));
        assert_int_equal(seen, sums.heads[2].keys_read);
        attend(&bed, cuts[i][0], cuts[i][1], 1.0f, i, &sums);
        assert_int_equal(count_bits(&bed), cuts[i][1] - cuts[i][0]);
        if (cuts[i][1] > cuts[i][0]) {
            static struct sums exact;
            attend_exactly(&bed, cuts[i][0], cuts[i][1], &exact);
            assert_true(distance(&sums.heads[1], &exact.heads[1], 64) < 1e-4);
        }
    }
    bed_deinit(&bed);
}

/* A key along the query of one head among random ones: read, whatever the seed. */
static void a_needle_of_any_head_is_always_read(void **state)
{
    (void)state;
    for (uint32_t bits = 1; bits <= 4; bits *= 2) {
        struct bed bed;
        static struct sums sums;
        bed_init(&bed, 128, bits, 4, 20000, 1.0f);
        for (uint32_t d = 0; d < 128; ++d) {
            row_of(&bed, 17771)[d] = 20.0f * bed.q[3 * 128 + d] * sqrtf(128.0f) / 11.3f;
        }
        bed_build(&bed);
        for (uint32_t seed = 0; seed < 20; ++seed) {
            attend(&bed, 0, bed.tokens, 0.02f, seed, &sums);
            assert_true(bed.bits[17771 / 64] >> (17771 % 64) & 1);
        }
        bed_deinit(&bed);
    }
}

static bool all_finite(const struct sums *sums, uint32_t heads, uint32_t dim)
{
    for (uint32_t h = 0; h < heads; ++h) {
        bool ok = isfinite(sums->heads[h].sum) && isfinite(sums->heads[h].m) &&
                  isfinite(sums->heads[h].b0) && isfinite(sums->heads[h].b2);
        for (uint32_t d = 0; d < dim; ++d) {
            ok = ok && isfinite(sums->o[h][d]) && isfinite(sums->b1[h][d]);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

static void rows_without_a_direction_harm_nobody(void **state)
{
    (void)state;
    static const float sizes[] = {0.0f, 1e-20f, 1e4f, 1e8f};
    static const uint32_t counts[] = {1, 60, 300, 2000};
    for (uint32_t i = 0; i < 16; ++i) {
        struct bed bed;
        static struct sums sums;
        static struct sums exact;
        bed_init(&bed, 64, 2, 2, 2000, 1e-4f);
        for (uint32_t row = 0; row < counts[i / 4]; ++row) {
            for (uint32_t d = 0; d < 64; ++d) {
                row_of(&bed, row * 2000 / counts[i / 4])[d] =
                    sizes[i % 4] * (i % 4 < 2 ? 1.0f : (float)pp_rng_at(row, d) * 0x1p-64f);
            }
        }
        bed_build(&bed);
        attend(&bed, 0, 2000, 0.2f, i, &sums);
        assert_true(all_finite(&sums, 2, 64));
        if (sums.heads[0].keys_read < 300 || sums.heads[0].keys_read > 500) {
            fail_msg("%u keys of %g: %u rows read", counts[i / 4], (double)sizes[i % 4],
                     sums.heads[0].keys_read);
        }
        attend_exactly(&bed, 0, 2000, &exact);
        double mean = 0.0;
        for (uint32_t seed = 0; seed < 100; ++seed) {
            attend(&bed, 0, 2000, 0.2f, seed, &sums);
            mean += (double)sums.heads[0].sum * exp((double)(sums.heads[0].m - exact.heads[0].m)) /
                    100.0;
        }
        if (fabs(mean / (double)exact.heads[0].sum - 1.0) > 0.1) {
            fail_msg("%u keys of %g: %.3f of the sum", counts[i / 4], (double)sizes[i % 4],
                     mean / (double)exact.heads[0].sum);
        }
        bed_deinit(&bed);
    }
}

static void identical_keys_and_zero_or_huge_queries_are_answered(void **state)
{
    (void)state;
    static const float scales[] = {0.0f, 1e-30f, 1.0f, 1e6f, 1e18f};
    for (uint32_t i = 0; i < 10; ++i) {
        struct bed bed;
        static struct sums sums;
        bed_init(&bed, 128, 2, 3, 3000, 1.0f);
        for (uint32_t row = 1; row < bed.tokens && i < 5; ++row) {
            memcpy(row_of(&bed, row), row_of(&bed, 0), 128 * sizeof(float));
        }
        for (uint32_t j = 0; j < 3 * 128; ++j) {
            bed.q[j] *= scales[i % 5];
        }
        bed_build(&bed);
        attend(&bed, 0, 3000, 0.1f, i, &sums);
        assert_true(all_finite(&sums, 3, 128));
        assert_true(sums.heads[0].keys_read > 200 && sums.heads[0].keys_read < 500);
        bed_deinit(&bed);
    }
}

static void a_balance_undoes_a_scale_between_keys_and_queries(void **state)
{
    (void)state;
    struct bed beds[2];
    float balance[64];
    double error[2] = {0.0};
    for (uint32_t i = 0; i < 2; ++i) {
        static struct sums sums;
        static struct sums exact;
        bed_init(&beds[i], 64, 2, 1, 4000, 3.0f);
        for (uint32_t d = 0; d < 64; ++d) {
            float scale = d % 16 == 0 ? 30.0f : 1.0f;
            for (uint32_t row = 0; row < 4000; ++row) {
                row_of(&beds[i], row)[d] *= scale;
            }
            beds[i].q[d] /= scale;
            balance[d] = sqrtf(scale * scale);
        }
        beds[i].params.balance = i == 1 ? balance : NULL;
        bed_build(&beds[i]);
        attend_exactly(&beds[i], 0, 4000, &exact);
        for (uint32_t seed = 0; seed < 100; ++seed) {
            attend(&beds[i], 0, 4000, 0.03f, seed, &sums);
            error[i] += distance(&sums.heads[0], &exact.heads[0], 64) / 100.0;
        }
        bed_deinit(&beds[i]);
    }
    printf("error %.4f without, %.4f with balance\n", error[0], error[1]);
    assert_true(error[1] < 0.6 * error[0]);
}

static void the_index_takes_at_most_36_bytes_a_token(void **state)
{
    (void)state;
    struct an_index_params params = {.estimator = {.kind = PP_SKETCH, .bits = 2}};
    uint64_t bytes = an_index_bytes(&params, 128, PP_SEGMENT_TOKENS_MAX) +
                     an_index_bytes(&params, 128, 98304 - PP_SEGMENT_TOKENS_MAX);
    printf("%.2f bytes a token and kv head\n", (double)bytes / 98304);
    assert_true(bytes <= 36ull * 98304);
}

static void a_full_segment_is_sampled_to_its_last_row(void **state)
{
    (void)state;
    struct bed bed;
    static struct sums sums;
    bed_init(&bed, 16, 2, 1, PP_SEGMENT_TOKENS_MAX, 1.0f);
    for (uint32_t d = 0; d < 16; ++d) {
        row_of(&bed, PP_SEGMENT_TOKENS_MAX - 1)[d] = 40.0f * bed.q[d];
    }
    bed_build(&bed);
    attend(&bed, 0, PP_SEGMENT_TOKENS_MAX, 0.01f, 1, &sums);
    uint32_t last = PP_SEGMENT_TOKENS_MAX - 1;
    assert_true(bed.bits[last / 64] >> (last % 64) & 1);
    attend(&bed, 0, PP_SEGMENT_TOKENS_MAX, 1.0f, 1, &sums);
    assert_int_equal(sums.heads[0].keys_read, PP_SEGMENT_TOKENS_MAX);
    bed_deinit(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rows_read_are_the_budget_in_the_mean),
        cmocka_unit_test(estimates_have_no_bias_and_their_errors_are_published),
        cmocka_unit_test(every_row_is_drawn_as_often_as_its_u_says_and_alone),
        cmocka_unit_test(replicas_draw_alike_and_other_seeds_otherwise),
        cmocka_unit_test(a_larger_budget_keeps_what_a_smaller_one_drew),
        cmocka_unit_test(views_that_cut_a_segment_read_nothing_else),
        cmocka_unit_test(a_needle_of_any_head_is_always_read),
        cmocka_unit_test(rows_without_a_direction_harm_nobody),
        cmocka_unit_test(identical_keys_and_zero_or_huge_queries_are_answered),
        cmocka_unit_test(a_balance_undoes_a_scale_between_keys_and_queries),
        cmocka_unit_test(the_index_takes_at_most_36_bytes_a_token),
        cmocka_unit_test(a_full_segment_is_sampled_to_its_last_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
