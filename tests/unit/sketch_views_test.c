/*
 * Several views as one sample of sketches: segments have of the budget what their rows weigh, the
 * estimate has no bias and its error is published, and cuts of one segment change nothing.
 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_share_a_budget_by_weight_and_without_bias),
        cmocka_unit_test(cuts_of_a_segment_are_sampled_as_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
