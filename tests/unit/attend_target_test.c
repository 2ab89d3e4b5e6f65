/*
 * Attends to a target error through exec: what is published keeps to it, true errors do in 95 of
 * 100 answers, what the bound does not allow is read whole and flagged, what the asker has itself
 * counts, and the same bits come at 1, 2 and 5 threads.
 */
#include <math.h>
#include <stdio.h>

#include "tests/unit/exec_fixture.h"

#define HELD   8192u
#define HEADS  6u
#define DIM    64u
#define TARGET 0.1f

static const struct shape sketch_shape = {.layers = 1,
                                          .q_heads = HEADS,
                                          .kv_heads = 2,
                                          .dim = DIM,
                                          .dtype = PP_BF16,
                                          .estimator = {.kind = PP_SKETCH, .bits = 2}};

struct bed {
    struct fixture fixture;
    uint64_t handle;
    float q[4 * HEADS * DIM];
};

static void bed_start(struct bed *bed, uint32_t threads, const struct shape *shape)
{
    bed->fixture = (struct fixture){.now_us = 1};
    struct an_exec_config config = fixture_config(&bed->fixture);
    config.threads = threads;
    fixture_start(&bed->fixture, &config);
    bed->handle = fixture_open(&bed->fixture, shape, 1);
    for (uint32_t at = 0; at < HELD; at += 512) {
        assert_int_equal(fixture_append(&bed->fixture, bed->handle, 1, shape, 0, at, 512, 3, false),
                         PP_OK);
    }
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < 4 * HEADS * DIM; i++) {
        bed->q[i] = 4.0f * (float)pp_rng_normal(&rng);
    }
}

static void bed_stop(struct bed *bed)
{
    (void)fixture_close(&bed->fixture, bed->handle);
    fixture_expect_empty(&bed->fixture);
    fixture_stop(&bed->fixture);
}

/* local [q row][q head][dim + 1] or NULL. */
static enum pp_status bed_attend(struct bed *bed, const struct pp_estimator *estimator,
                                 uint32_t q_rows, uint64_t seed, const float *local,
                                 struct an_attend_item *item)
{
    uint64_t seeds[4] = {seed, seed + 1, seed + 2, seed + 3};
    *item = (struct an_attend_item){
        .part = {bed->handle, 1},
        .held_tokens = HELD,
        .q_rows = q_rows,
        .estimator = *estimator,
        .q = (const uint8_t *)bed->q,
        .q_bytes = (uint64_t)q_rows * HEADS * DIM * sizeof(float),
        .seeds = seeds,
        .seed_count = q_rows,
        .local = (const uint8_t *)local,
        .local_bytes = (uint64_t)q_rows * HEADS * (DIM + 1) * sizeof(float),
    };
    bed->fixture.job.received_us = bed->fixture.now_us;
    bed->fixture.job.attend =
        (struct an_attend_args){.q_dtype = PP_F32, .items = item, .item_count = 1};
    enum pp_status status = fixture_run(&bed->fixture, AN_JOB_ATTEND);
    return status != PP_OK ? status : item->status;
}

static const struct pp_estimator within = {
    .kind = PP_SKETCH, .bits = 2, .target_error = TARGET, .rows_share = 0.6f};

static double length(const float *values)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < DIM; i++) {
        sum += (double)values[i] * (double)values[i];
    }
    return sqrt(sum);
}

static double apart(const float *left, const float *right)
{
    float difference[DIM];
    for (uint32_t i = 0; i < DIM; i++) {
        difference[i] = left[i] - right[i];
    }
    return length(difference);
}

struct record {
    double near, covered, keys; /* shares of answers within TARGET and twice what is published */
    double published_max;
};

/* Answers of 100 seeds beside the exact ones. */
static struct record record_of(struct bed *bed, const struct pp_estimator *estimator)
{
    enum { SEEDS = 100 };
    static float exact[4 * HEADS * DIM];
    const struct pp_estimator all = {.kind = PP_EXACT};
    struct record record = {0};
    struct an_attend_item item;
    assert_int_equal(bed_attend(bed, &all, 4, 0, NULL, &item), PP_OK);
    memcpy(exact, item.o, sizeof(exact));
    const double one = 1.0 / (SEEDS * 4.0 * HEADS);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        assert_int_equal(bed_attend(bed, estimator, 4, 10 * seed, NULL, &item), PP_OK);
        assert_int_equal(item.used, PP_SKETCH);
        for (uint32_t at = 0; at < 4 * HEADS; at++) {
            double off = apart(item.o + at * DIM, exact + at * DIM) / length(exact + at * DIM);
            double published = sqrt((double)item.var[at]) / length(item.o + at * DIM);
            bool all_read = published == 0.0 && off < 1e-5;
            record.near += off <= (double)TARGET ? one : 0.0;
            record.covered += off <= 2.0 * published || all_read ? one : 0.0;
            record.keys += one * (double)item.keys_read[at] / HELD;
            record.published_max =
                published > record.published_max ? published : record.published_max;
        }
    }
    printf("%.4f of answers within %.2f, %.4f within twice what is published, %.4f of keys read\n",
           record.near, (double)TARGET, record.covered, record.keys);
    return record;
}

static void answers_keep_to_the_target_and_stopping_keeps_errors_true(void **state)
{
    (void)state;
    static struct bed bed;
    struct pp_estimator fixed = {.kind = PP_SKETCH};
    bed_start(&bed, 1, &sketch_shape);
    struct record stopped = record_of(&bed, &within);
    fixed.rows_share = (float)stopped.keys;
    struct record of_fixed = record_of(&bed, &fixed);
    assert_true(stopped.near >= 0.95 && stopped.keys < 0.4);
    assert_true(stopped.published_max <= (double)TARGET);
    assert_true(stopped.covered > 0.93 && stopped.covered > of_fixed.covered - 0.02);
    bed_stop(&bed);
}

static void a_looser_target_reads_fewer_keys(void **state)
{
    (void)state;
    static struct bed bed;
    uint64_t before = UINT64_MAX;
    bed_start(&bed, 1, &sketch_shape);
    for (float target = 0.05f; target < 1.0f; target *= 2.0f) {
        struct pp_estimator estimator = within;
        struct an_attend_item item;
        estimator.target_error = target;
        assert_int_equal(bed_attend(&bed, &estimator, 4, 7, NULL, &item), PP_OK);
        assert_true(item.rows_read < before);
        before = item.rows_read;
    }
    bed_stop(&bed);
}

static void what_misses_the_target_within_its_budget_is_read_whole(void **state)
{
    (void)state;
    static struct bed bed;
    const struct pp_estimator budgets[] = {
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.0001f, .rows_share = 0.1f},
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.0001f, .rows = 100},
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.0001f},
    };
    const struct pp_estimator all = {.kind = PP_EXACT};
    static float exact[HEADS * DIM];
    struct an_attend_item item;
    bed_start(&bed, 2, &sketch_shape);
    assert_int_equal(bed_attend(&bed, &all, 1, 0, NULL, &item), PP_OK);
    memcpy(exact, item.o, sizeof(exact));
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(bed_attend(&bed, &budgets[i], 1, 3, NULL, &item), PP_OK);
        assert_true((item.flags & AN_ATTEND_TARGET_MISSED) != 0);
        assert_true((item.flags & AN_ATTEND_EMPTY_SAMPLE) == 0);
        assert_int_equal(item.used, PP_EXACT);
        assert_int_equal(item.rows_read, 2 * HELD);
        assert_int_equal(item.rows_sampled, 0);
        for (uint32_t head = 0; head < HEADS; head++) {
            assert_int_equal(item.keys_read[head], HELD);
            assert_true(item.var[head] == 0.0f && item.lse_var[head] == 0.0f);
            assert_true(apart(item.o + head * DIM, exact + head * DIM) <
                        1e-5 * length(exact + head * DIM));
        }
    }
    bed_stop(&bed);
}

/* Rows of ever more peaked softmax miss the target one after the other, or not at all. */
static void rows_that_are_read_whole_are_read_once_while_others_go_on(void **state)
{
    (void)state;
    static struct bed bed;
    static const float heats[] = {0.1f, 0.5f, 0.75f, 1.0f};
    static const float targets[] = {0.02f, 0.05f, 0.1f, 0.2f};
    const struct pp_estimator all = {.kind = PP_EXACT};
    static float lse[4 * HEADS];
    struct an_attend_item item;
    uint32_t whole = 0;
    bed_start(&bed, 2, &sketch_shape);
    for (uint32_t i = 0; i < 4 * HEADS * DIM; i++) {
        bed.q[i] *= heats[i / (HEADS * DIM)];
    }
    assert_int_equal(bed_attend(&bed, &all, 4, 0, NULL, &item), PP_OK);
    memcpy(lse, item.lse, sizeof(lse));
    for (uint32_t i = 0; i < 16; i++) {
        struct pp_estimator estimator = within;
        estimator.target_error = targets[i % 4];
        assert_int_equal(bed_attend(&bed, &estimator, 4, i, NULL, &item), PP_OK);
        for (uint32_t at = 0; at < 4 * HEADS; at++) {
            assert_true(item.keys_read[at] <= HELD);
            assert_true(item.var[at] > 0.0f || fabsf(item.lse[at] - lse[at]) < 1e-4f);
            whole += item.keys_read[at] == HELD;
        }
    }
    assert_in_range(whole, 4 * HEADS, 12 * 4 * HEADS);
    bed_stop(&bed);
}

static void the_same_bits_come_at_any_number_of_threads(void **state)
{
    (void)state;
    static const uint32_t threads[] = {1, 2, 5};
    static float o[4 * HEADS * DIM], var[4 * HEADS];
    for (uint32_t i = 0; i < 3; i++) {
        static struct bed bed;
        struct an_attend_item item;
        bed_start(&bed, threads[i], &sketch_shape);
        assert_int_equal(bed_attend(&bed, &within, 4, 5, NULL, &item), PP_OK);
        if (i == 0) {
            memcpy(o, item.o, sizeof(o));
            memcpy(var, item.var, sizeof(var));
        }
        assert_memory_equal(item.o, o, sizeof(o));
        assert_memory_equal(item.var, var, sizeof(var));
        bed_stop(&bed);
    }
}

static void what_the_asker_has_itself_counts(void **state)
{
    (void)state;
    static struct bed bed;
    static float local[HEADS * (DIM + 1)];
    struct an_attend_item alone, beside;
    bed_start(&bed, 1, &sketch_shape);
    assert_int_equal(bed_attend(&bed, &within, 1, 9, NULL, &alone), PP_OK);
    uint64_t rows_alone = alone.rows_read;
    for (uint32_t head = 0; head < HEADS; head++) {
        for (uint32_t i = 0; i < DIM; i++) {
            local[head * (DIM + 1) + i] = 1.0f;
        }
        local[head * (DIM + 1) + DIM] = alone.lse[head] + 5.0f;
    }
    assert_int_equal(bed_attend(&bed, &within, 1, 9, local, &beside), PP_OK);
    printf("%llu rows alone, %llu beside 150 times their weight\n", (unsigned long long)rows_alone,
           (unsigned long long)beside.rows_read);
    assert_true(2 * beside.rows_read < rows_alone);
    for (uint32_t head = 0; head < HEADS; head++) {
        local[head * (DIM + 1) + DIM] = -INFINITY; /* nothing */
    }
    assert_int_equal(bed_attend(&bed, &within, 1, 9, local, &beside), PP_OK);
    assert_int_equal(beside.rows_read, rows_alone);
    local[3] = NAN;
    assert_int_equal(bed_attend(&bed, &within, 1, 9, local, &beside), PP_NON_FINITE);
    local[3] = 0.0f;
    local[DIM] = INFINITY;
    assert_int_equal(bed_attend(&bed, &within, 1, 9, local, &beside), PP_NON_FINITE);
    bed.fixture.job.attend.items[0].local_bytes -= 4;
    beside.status = PP_OK;
    assert_int_equal(fixture_run(&bed.fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(beside.status, PP_INVALID_ARGUMENT);
    bed_stop(&bed);
}

static void a_target_of_the_part_is_used_where_a_request_names_none(void **state)
{
    (void)state;
    static struct bed bed;
    struct shape shape = sketch_shape;
    const struct pp_estimator open = {.kind = PP_SKETCH};
    const struct pp_estimator fixed = {.kind = PP_SKETCH, .rows_share = 0.05f};
    struct an_attend_item item;
    shape.estimator = within;
    bed_start(&bed, 1, &shape);
    assert_int_equal(bed_attend(&bed, &within, 1, 9, NULL, &item), PP_OK);
    uint64_t rows = item.rows_read;
    assert_int_equal(bed_attend(&bed, &open, 1, 9, NULL, &item), PP_OK);
    assert_int_equal(item.rows_read, rows);
    assert_int_equal(bed_attend(&bed, &fixed, 1, 9, NULL, &item), PP_OK);
    assert_true(item.rows_read < 2 * HELD / 10);
    bed_stop(&bed);
}

static void a_budget_counts_where_the_node_plans_too(void **state)
{
    (void)state;
    static struct bed bed;
    struct an_attend_item item;
    bed_start(&bed, 1, &sketch_shape);
    const struct pp_estimator few = {.rows_share = 0.02f}, many = {.rows_share = 0.06f};
    assert_int_equal(bed_attend(&bed, &few, 1, 9, NULL, &item), PP_OK);
    assert_int_equal(item.used, PP_SKETCH); /* planned: it pays */
    uint64_t rows = item.rows_read;
    assert_true(rows < 2 * HELD * 3 / 100);
    assert_int_equal(bed_attend(&bed, &many, 1, 9, NULL, &item), PP_OK);
    assert_int_equal(item.used, PP_SKETCH);
    assert_true(item.rows_read > 2 * rows && item.rows_read < 4 * rows);
    bed_stop(&bed);
}

static void lsh_that_misses_the_target_is_read_whole(void **state)
{
    (void)state;
    static struct bed bed;
    struct shape shape = sketch_shape;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 5, .l = 100, .t = 2};
    bed_start(&bed, 2, &shape);
    const float targets[] = {0.001f, 1.0f};
    for (uint32_t i = 0; i < 2; i++) {
        struct pp_estimator estimator = {.kind = PP_LSH, .target_error = targets[i]};
        struct an_attend_item item;
        assert_int_equal(bed_attend(&bed, &estimator, 1, 9, NULL, &item), PP_OK);
        assert_int_equal((item.flags & AN_ATTEND_TARGET_MISSED) != 0, i == 0);
        assert_int_equal(item.used, i == 0 ? PP_EXACT : PP_LSH);
        assert_int_equal(item.rows_read == 2 * HELD, i == 0);
    }
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_counts_where_the_node_plans_too),
        cmocka_unit_test(a_looser_target_reads_fewer_keys),
        cmocka_unit_test(a_target_of_the_part_is_used_where_a_request_names_none),
        cmocka_unit_test(answers_keep_to_the_target_and_stopping_keeps_errors_true),
        cmocka_unit_test(lsh_that_misses_the_target_is_read_whole),
        cmocka_unit_test(rows_that_are_read_whole_are_read_once_while_others_go_on),
        cmocka_unit_test(the_same_bits_come_at_any_number_of_threads),
        cmocka_unit_test(what_misses_the_target_within_its_budget_is_read_whole),
        cmocka_unit_test(what_the_asker_has_itself_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
