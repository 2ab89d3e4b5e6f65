/*
 * Several views as one sample of sketches: segments have of the budget what their rows weigh, the
 * estimate has no bias and its error is published, and cuts of one segment change nothing.
 */
#include "attn-node/index/split.h"
#include "tests/unit/sketch_bed.h"

/* Two segments, of which the second is worth e^3 times the first to both heads. */
static void make_pair(struct bed beds[2])
{
    for (uint32_t i = 0; i < 2; ++i) {
        bed_init(&beds[i], 64, 2, 2, 2000, 1.5f);
        for (uint32_t row = 0; row < beds[i].tokens && i == 1; ++row) {
            for (uint32_t h = 0; h < 2; ++h) {
                const float *q = beds[i].q + h * 64;
                double square = 0.0;
                for (uint32_t d = 0; d < 64; ++d) {
                    square += (double)q[d] * (double)q[d];
                }
                for (uint32_t d = 0; d < 64; ++d) {
                    row_of(&beds[i], row)[d] += 3.0f * q[d] / (float)square;
                }
            }
            row_of(&beds[i], row)[64] += 1.0f;
        }
        bed_build(&beds[i]);
    }
}

/* Attends both as one sample, the seconds' sums behind the firsts'. */
static void attend_pair(struct bed beds[2], float share, uint64_t seed, struct sums sums[2])
{
    struct an_index_view views[2];
    for (uint32_t i = 0; i < 2; ++i) {
        sums_clear(&sums[i], 64);
        views[i] = (struct an_index_view){.index = beds[i].index,
                                          .rows = beds[i].rows,
                                          .end = beds[i].tokens,
                                          .first = i * 2000ull,
                                          .accumulators = sums[i].heads,
                                          .next = i == 0 ? &views[1] : NULL};
    }
    struct an_index_query query = query_of(&beds[0], share, seed);
    void *scratch = padded_alloc(an_index_query_scratch_bytes(&beds[0].params, 4000));
    an_index_attend_views(&beds[0].params, views, &query, scratch);
    free(scratch);
}

static void segments_share_a_budget_by_weight_and_without_bias(void **state)
{
    (void)state;
    enum { SEEDS = 400 };
    static struct bed beds[2];
    static struct sums sums[2], exact[2];
    double rows[2] = {0.0};
    double mean[2] = {0.0}, square[2] = {0.0}, within = 0.0;
    make_pair(beds);
    for (uint32_t i = 0; i < 2; ++i) {
        attend_exactly(&beds[i], 0, 2000, &exact[i]);
    }
    for (uint32_t h = 0; h < 2; ++h) {
        an_accumulator_merge(&exact[0].heads[h], &exact[1].heads[h], 64);
    }
    for (uint32_t seed = 0; seed < SEEDS; ++seed) {
        attend_pair(beds, 0.05f, seed, sums);
        for (uint32_t i = 0; i < 2; ++i) {
            rows[i] += sums[i].heads[0].keys_read / (double)SEEDS;
        }
        for (uint32_t h = 0; h < 2; ++h) {
            struct an_accumulator *sum = &sums[0].heads[h];
            an_accumulator_merge(sum, &sums[1].heads[h], 64);
            double value = exp((double)(sum->m - exact[0].heads[h].m)) * (double)sum->sum;
            mean[h] += value / SEEDS;
            square[h] += value * value / SEEDS;
            within += distance(sum, &exact[0].heads[h], 64) <= 2.0 * published(sum, 64);
        }
    }
    printf("%.1f and %.1f of 200 rows, %.3f covered\n", rows[0], rows[1], within / SEEDS / 2);
    assert_true(fabs(rows[0] + rows[1] - 200.0) < 0.015 * 200.0 + 3.0 * sqrt(200.0 / SEEDS));
    assert_true(rows[1] > 4.0 * rows[0] && rows[0] > 3.0);
    assert_true(within >= 0.95 * 2 * SEEDS);
    for (uint32_t h = 0; h < 2; ++h) {
        double spread = sqrt((square[h] - mean[h] * mean[h]) / SEEDS);
        assert_true(fabs(mean[h] - (double)exact[0].heads[h].sum) < 4.0 * spread);
    }
    bed_deinit(&beds[0]);
    bed_deinit(&beds[1]);
}

/* Views of one segment have its centre: where it is cut does not matter to what is drawn. */
static void cuts_of_a_segment_are_sampled_as_the_whole(void **state)
{
    (void)state;
    static const uint32_t cuts[] = {0, 64, 700, 701, 1999, 3000};
    enum { VIEWS = sizeof(cuts) / sizeof(cuts[0]) - 1, WORDS = (3000 + 63) / 64 };
    struct bed bed;
    static struct sums whole, parts;
    uint64_t bits[WORDS];
    bed_init(&bed, 80, 2, 4, 3000, 1.0f);
    bed_build(&bed);
    attend(&bed, 0, 3000, 0.1f, 5, &whole);
    memcpy(bits, bed.bits, sizeof(bits));
    memset(bed.bits, 0, sizeof(bits));
    sums_clear(&parts, 80);
    struct an_index_view views[VIEWS];
    for (uint32_t i = 0; i < VIEWS; ++i) {
        views[i] = (struct an_index_view){.index = bed.index,
                                          .rows = bed.rows,
                                          .begin = cuts[i],
                                          .end = cuts[i + 1],
                                          .first = 12345,
                                          .rows_read = bed.bits,
                                          .accumulators = parts.heads,
                                          .next = i + 1 < VIEWS ? &views[i + 1] : NULL};
    }
    struct an_index_query query = query_of(&bed, 0.1f, 5);
    an_index_attend_views(&bed.params, views, &query, bed.scratch);
    uint32_t differing = 0;
    for (uint32_t i = 0; i < WORDS; ++i) {
        differing += (uint32_t)__builtin_popcountll(bits[i] ^ bed.bits[i]);
    }
    assert_true(differing <= 6); /* of 300: logs are rounded to 1/128 octave */
    bed_deinit(&bed);
}

enum { LONG_ROWS = 40000, LONG_SEEDS = 3 };

/* What samples of one long view and a short one of the same segment came to. */
struct outcome {
    struct sums sums[LONG_SEEDS][2];
    uint64_t bits[LONG_SEEDS][2][(LONG_ROWS + 63) / 64];
};

static void lay_views(const struct bed *bed, struct outcome *outcome,
                      struct an_index_view views[LONG_SEEDS][2])
{
    static const uint32_t cuts[] = {70, 35000, LONG_ROWS};
    memset(outcome, 0, sizeof(*outcome));
    for (uint32_t seed = 0; seed < LONG_SEEDS; ++seed) {
        for (uint32_t i = 0; i < 2; ++i) {
            sums_clear(&outcome->sums[seed][i], bed->dim);
            views[seed][i] = (struct an_index_view){.index = bed->index,
                                                    .rows = bed->rows,
                                                    .begin = cuts[i],
                                                    .end = cuts[i + 1],
                                                    .rows_read = outcome->bits[seed][i],
                                                    .accumulators = outcome->sums[seed][i].heads,
                                                    .next = i == 0 ? &views[seed][1] : NULL};
        }
    }
}

/* Sums and rows read; the accumulators' pointers differ. */
static void expect_equal(const struct outcome *a, const struct outcome *b)
{
    assert_memory_equal(a->bits, b->bits, sizeof(a->bits));
    for (uint32_t i = 0; i < LONG_SEEDS * 2; ++i) {
        const struct sums *left = &a->sums[i / 2][i % 2];
        const struct sums *right = &b->sums[i / 2][i % 2];
        assert_memory_equal(left->o, right->o, sizeof(left->o));
        assert_memory_equal(left->b1, right->b1, sizeof(left->b1));
        for (uint32_t h = 0; h < 4; ++h) {
            const struct an_accumulator *sum = &left->heads[h];
            size_t bytes = offsetof(struct an_accumulator, keys_read) + sizeof(sum->keys_read) -
                           offsetof(struct an_accumulator, m);
            assert_memory_equal(&sum->m, &right->heads[h].m, bytes);
            assert_true(sum->keys_read > 0);
        }
    }
}

static void samples_made_by_a_team_are_those_of_one_thread_to_the_bit(void **state)
{
    (void)state;
    static const uint32_t threads[] = {3, 5};
    static struct outcome alone, together;
    struct an_index_view views[LONG_SEEDS][2];
    struct bed bed;
    bed_init(&bed, 48, 2, 4, LONG_ROWS, 1.0f);
    bed_build(&bed);
    lay_views(&bed, &alone, views);
    for (uint32_t seed = 0; seed < LONG_SEEDS; ++seed) {
        struct an_index_query query = query_of(&bed, 0.02f, seed);
        an_index_attend_views(&bed.params, views[seed], &query, bed.scratch);
    }
    uint64_t bytes = (an_index_query_scratch_bytes(&bed.params, LONG_ROWS) + 63) & ~63ull;
    void *scratch = padded_alloc(5 * bytes);
    for (uint32_t t = 0; t < 2; ++t) {
        struct an_split_sample samples[LONG_SEEDS];
        lay_views(&bed, &together, views);
        for (uint32_t seed = 0; seed < LONG_SEEDS; ++seed) {
            samples[seed] = (struct an_split_sample){
                .params = &bed.params, .views = views[seed], .query = query_of(&bed, 0.02f, seed)};
        }
        an_split_attend(threads[t], samples, LONG_SEEDS, scratch, bytes);
        expect_equal(&together, &alone);
    }
    free(scratch);
    bed_deinit(&bed);
}

static void samples_are_split_where_threads_would_be_idle(void **state)
{
    (void)state;
    const struct {
        struct an_split_load load;
        bool split;
    } cases[] = {
        {{.count = 1, .rows = 98304, .longest = 98304, .threads = 2}, true},
        {{.count = 1, .rows = 98304, .longest = 98304, .threads = 1}, false},
        {{.count = 1, .rows = 8192, .longest = 8192, .threads = 2}, false},
        {{.count = 8, .rows = 8 * 98304, .longest = 98304, .threads = 2}, false},
        {{.count = 8, .rows = 8 * 98304, .longest = 98304, .threads = 64}, true},
        {{.count = 3, .rows = 3 * 98304, .longest = 98304, .threads = 2}, true},
        {{.count = 9, .rows = 98304 + 8 * 512, .longest = 98304, .threads = 2}, true},
        {{.threads = 2}, false},
    };
    for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        assert_int_equal(an_split_rows(&cases[i].load) <= cases[i].load.longest, cases[i].split);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_share_a_budget_by_weight_and_without_bias),
        cmocka_unit_test(samples_made_by_a_team_are_those_of_one_thread_to_the_bit),
        cmocka_unit_test(samples_are_split_where_threads_would_be_idle),
        cmocka_unit_test(cuts_of_a_segment_are_sampled_as_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
