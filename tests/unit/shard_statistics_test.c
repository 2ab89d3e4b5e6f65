/*
 * Two nodes against one over many seeds: merged estimates have the mean that one node's have, their
 * variances add, replicas of a part draw alike and shards independently. Seeds are fixed, so that
 * the bounds are met or missed every time; a sanitizer's build takes fewer.
 */
#include <stdio.h>

#include "common/attn/partial.h"
#include "tests/unit/exec_fixture.h"

#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SEEDS     40u
#define LSH_SEEDS 12u
#else
#define SEEDS     200u
#define LSH_SEEDS 60u
#endif

#define TOKENS 4096u /* in two shards of half, all of them sealed */
#define HEADS  4u
#define DIM    32u
#define VALUES (HEADS * DIM)
#define SALT   3u

static const struct shape sketch_shape = {
    .layers = 1,
    .q_heads = HEADS,
    .kv_heads = 2,
    .dim = DIM,
    .dtype = PP_BF16,
    .estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.25f}};

/* One node with one part: tokens [begin, begin + count) of the sequence. */
struct node {
    struct fixture fixture;
    uint64_t handle;
    uint32_t count;
};

struct answer {
    float o[VALUES], lse[HEADS], var[HEADS], lse_var[HEADS];
    uint32_t keys_read[HEADS];
};

static void node_start(struct node *node, const struct shape *shape, uint8_t part_id,
                       uint64_t hash_seed, uint32_t begin, uint32_t count)
{
    static uint8_t k[1024 * 2 * DIM * 2];
    static uint8_t v[sizeof(k)];
    *node = (struct node){.fixture.now_us = 1, .count = count};
    struct an_exec_config config = fixture_config(&node->fixture);
    fixture_start(&node->fixture, &config);
    node->fixture.job.open = shape_open(shape, part_id);
    node->fixture.job.open.hash_seed = hash_seed;
    assert_int_equal(fixture_run(&node->fixture, AN_JOB_OPEN), PP_OK);
    node->handle = node->fixture.job.open.handle;
    for (uint32_t at = 0; at < count; at += 1024) {
        make_vectors(shape, SALT, begin + at, 1024, k);
        make_vectors(shape, SALT + 1, begin + at, 1024, v);
        node->fixture.job.append = append_args(node->handle, 1, shape, at, 1024, k, v);
        assert_int_equal(fixture_run(&node->fixture, AN_JOB_APPEND), PP_OK);
    }
}

static void node_stop(struct node *node)
{
    (void)fixture_close(&node->fixture, node->handle);
    fixture_expect_empty(&node->fixture);
    fixture_stop(&node->fixture);
}

static void ask(struct node *node, const float *q, uint64_t seed, enum pp_estimator_kind kind,
                struct answer *answer)
{
    struct an_attend_item item = {
        .part = {node->handle, 1},
        .held_tokens = node->count,
        .q_rows = 1,
        .estimator = {.kind = kind},
        .q = (const uint8_t *)q,
        .q_bytes = VALUES * sizeof(float),
        .seeds = &seed,
        .seed_count = 1,
    };
    struct fixture *fixture = &node->fixture;
    fixture->job.received_us = fixture->now_us;
    fixture->job.attend =
        (struct an_attend_args){.q_dtype = PP_F32, .items = &item, .item_count = 1};
    assert_int_equal(fixture_run(fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(item.status, PP_OK);
    assert_int_equal(item.used, kind);
    memcpy(answer->o, item.o, sizeof(answer->o));
    memcpy(answer->lse, item.lse, sizeof(answer->lse));
    memcpy(answer->var, item.var, sizeof(answer->var));
    memcpy(answer->lse_var, item.lse_var, sizeof(answer->lse_var));
    memcpy(answer->keys_read, item.keys_read, sizeof(answer->keys_read));
}

/* What the worker makes of two nodes' answers. */
static void merge(const struct answer answers[2], struct answer *out)
{
    for (uint32_t h = 0; h < HEADS; ++h) {
        struct pp_partial parts[2];
        for (uint32_t i = 0; i < 2; ++i) {
            float *o;
            const float *from = answers[i].o + h * DIM;
            memcpy(&o, &from, sizeof(o));
            parts[i] = (struct pp_partial){.o = o,
                                           .lse = answers[i].lse[h],
                                           .var = answers[i].var[h],
                                           .lse_var = answers[i].lse_var[h],
                                           .keys_read = answers[i].keys_read[h]};
        }
        struct pp_partial merged = {.o = out->o + h * DIM};
        pp_partial_merge(parts, 2, DIM, &merged);
        out->lse[h] = merged.lse;
        out->var[h] = merged.var;
        out->lse_var[h] = merged.lse_var;
        out->keys_read[h] = merged.keys_read;
    }
}

static void make_query(float *q)
{
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < VALUES; ++i) {
        q[i] = 1.5f * (float)pp_rng_normal(&rng);
    }
}

/* First two moments over the seeds, of several series of vectors. */
struct moments {
    double sum[VALUES], square[VALUES];
    uint32_t count;
};

static void moments_add(struct moments *moments, const double *values)
{
    for (uint32_t i = 0; i < VALUES; ++i) {
        moments->sum[i] += values[i];
        moments->square[i] += values[i] * values[i];
    }
    ++moments->count;
}

static double mean_of(const struct moments *moments, uint32_t i)
{
    return moments->sum[i] / moments->count;
}

static double variance_of(const struct moments *moments, uint32_t i)
{
    double mean = mean_of(moments, i);
    return (moments->square[i] / moments->count - mean * mean) * moments->count /
           (moments->count - 1);
}

static double variance_sum(const struct moments *moments)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < VALUES; ++i) {
        sum += variance_of(moments, i);
    }
    return sum;
}

static void moments_add_answer(struct moments *moments, const struct answer *answer)
{
    double values[VALUES];
    for (uint32_t i = 0; i < VALUES; ++i) {
        values[i] = (double)answer->o[i];
    }
    moments_add(moments, values);
}

/* Mean over the values of (difference of the means)^2 in units of its own variance: about 1. */
static double means_apart(const struct moments *a, const struct moments *b)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < VALUES; ++i) {
        double difference = mean_of(a, i) - mean_of(b, i);
        double variance = variance_of(a, i) / a->count + variance_of(b, i) / b->count;
        sum += difference * difference / variance;
    }
    return sum / VALUES;
}

/* The same of a mean and the exact answer. */
static double mean_off(const struct moments *a, const struct answer *exact)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < VALUES; ++i) {
        double difference = mean_of(a, i) - (double)exact->o[i];
        sum += difference * difference * a->count / variance_of(a, i);
    }
    return sum / VALUES;
}

struct series {
    struct moments one, two;      /* o of one node, and merged of two */
    struct moments shard[2], sum; /* sum of weights times v, of e^lse of all rows */
    double published_one, published_two;
    double read_one, read_two;
};

static void add_seed(struct series *series, const struct answer *exact, const struct answer *one,
                     const struct answer shards[2])
{
    struct answer two;
    double numerators[2][VALUES];
    double both[VALUES];
    merge(shards, &two);
    for (uint32_t i = 0; i < VALUES; ++i) {
        for (uint32_t s = 0; s < 2; ++s) {
            double weight = exp((double)(shards[s].lse[i / DIM] - exact->lse[i / DIM]));
            numerators[s][i] = weight * (double)shards[s].o[i];
        }
        both[i] = numerators[0][i] + numerators[1][i];
    }
    moments_add_answer(&series->one, one);
    moments_add_answer(&series->two, &two);
    moments_add(&series->shard[0], numerators[0]);
    moments_add(&series->shard[1], numerators[1]);
    moments_add(&series->sum, both);
    for (uint32_t h = 0; h < HEADS; ++h) {
        series->published_one += (double)one->var[h];
        series->published_two += (double)two.var[h];
        series->read_one += one->keys_read[h];
        series->read_two += two.keys_read[h];
    }
}

static void two_nodes_estimate_what_one_does_and_their_variances_add(void **state)
{
    (void)state;
    static struct node one;
    static struct node shards[2];
    static struct series series;
    static struct answer exact;
    float q[VALUES];
    make_query(q);
    node_start(&one, &sketch_shape, 1, 7, 0, TOKENS);
    node_start(&shards[0], &sketch_shape, 2, 7, 0, TOKENS / 2);
    node_start(&shards[1], &sketch_shape, 3, 7, TOKENS / 2, TOKENS / 2);
    ask(&one, q, 0, PP_EXACT, &exact);
    for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
        struct answer whole;
        struct answer parts[2];
        ask(&one, q, seed, PP_SKETCH, &whole);
        ask(&shards[0], q, seed, PP_SKETCH, &parts[0]);
        ask(&shards[1], q, seed, PP_SKETCH, &parts[1]);
        add_seed(&series, &exact, &whole, parts);
    }
    double apart = means_apart(&series.one, &series.two);
    double off_one = mean_off(&series.one, &exact);
    double off_two = mean_off(&series.two, &exact);
    double added = variance_sum(&series.sum) /
                   (variance_sum(&series.shard[0]) + variance_sum(&series.shard[1]));
    double published_one = series.published_one / SEEDS / variance_sum(&series.one);
    double published_two = series.published_two / SEEDS / variance_sum(&series.two);
    printf("%u seeds: means apart %.2f, off the exact one %.2f and %.2f (1: what chance makes); "
           "variance of the sum %.3f of the shards'; published over true variance %.2f of one, "
           "%.2f of two; rows read %.0f and %.0f\n",
           SEEDS, apart, off_one, off_two, added, published_one, published_two,
           series.read_one / SEEDS / HEADS, series.read_two / SEEDS / HEADS);
    assert_true(apart < 1.6 && off_one < 1.6 && off_two < 1.6);
    assert_true(added > 0.8 && added < 1.2);
    assert_true(published_one > 0.8 && published_one < 1.4);
    assert_true(published_two > 0.8 && published_two < 2.5); /* law 2's bound is above */
    assert_true(fabs(series.read_two / series.read_one - 1.0) < 0.05);
    node_stop(&one);
    node_stop(&shards[0]);
    node_stop(&shards[1]);
}

static void replicas_draw_alike_and_other_parts_and_seeds_otherwise(void **state)
{
    (void)state;
    static struct node nodes[3];
    static const uint8_t part_ids[3] = {5, 5, 6};
    static struct answer answers[3];
    static struct answer again;
    float q[VALUES];
    make_query(q);
    for (uint32_t i = 0; i < 3; ++i) {
        node_start(&nodes[i], &sketch_shape, part_ids[i], 7, 0, TOKENS / 2);
    }
    for (uint64_t seed = 1; seed <= 5; ++seed) {
        for (uint32_t i = 0; i < 3; ++i) {
            ask(&nodes[i], q, seed, PP_SKETCH, &answers[i]);
        }
        assert_memory_equal(&answers[0], &answers[1], sizeof(answers[0]));
        assert_memory_not_equal(&answers[0], &answers[2], sizeof(answers[0]));
        ask(&nodes[0], q, seed + 1, PP_SKETCH, &again);
        assert_memory_not_equal(&answers[0], &again, sizeof(again));
        ask(&nodes[0], q, seed, PP_SKETCH, &again);
        assert_memory_equal(&answers[0], &again, sizeof(again));
    }
    for (uint32_t i = 0; i < 3; ++i) {
        node_stop(&nodes[i]);
    }
}

/* An lsh part draws once, at open: its seeds are those of the hash. */
static void two_nodes_with_lsh_estimate_what_one_does(void **state)
{
    (void)state;
    static struct series series;
    static struct answer exact;
    struct shape shape = sketch_shape;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 5, .l = 24, .t = 2};
    float q[VALUES];
    make_query(q);
    for (uint64_t seed = 1; seed <= LSH_SEEDS; ++seed) {
        static struct node nodes[3];
        struct answer whole;
        struct answer parts[2];
        node_start(&nodes[0], &shape, 1, seed, 0, TOKENS);
        node_start(&nodes[1], &shape, 2, 1000 + seed, 0, TOKENS / 2);
        node_start(&nodes[2], &shape, 3, 1000 + seed, TOKENS / 2, TOKENS / 2);
        ask(&nodes[0], q, 0, PP_EXACT, &exact);
        ask(&nodes[0], q, 0, PP_LSH, &whole);
        ask(&nodes[1], q, 0, PP_LSH, &parts[0]);
        ask(&nodes[2], q, 0, PP_LSH, &parts[1]);
        add_seed(&series, &exact, &whole, parts);
        for (uint32_t i = 0; i < 3; ++i) {
            node_stop(&nodes[i]);
        }
    }
    double apart = means_apart(&series.one, &series.two);
    double off = mean_off(&series.two, &exact);
    double read = series.read_two / series.read_one;
    printf("lsh, %u hash seeds: means apart %.2f, off the exact one %.2f; rows read %.0f and "
           "%.0f\n",
           LSH_SEEDS, apart, off, series.read_one / LSH_SEEDS / HEADS,
           series.read_two / LSH_SEEDS / HEADS);
    assert_true(apart < 1.6 && off < 2.0);
    assert_true(fabs(read - 1.0) < 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_nodes_estimate_what_one_does_and_their_variances_add),
        cmocka_unit_test(replicas_draw_alike_and_other_parts_and_seeds_otherwise),
        cmocka_unit_test(two_nodes_with_lsh_estimate_what_one_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
