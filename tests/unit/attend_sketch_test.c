/*
 * A part with the sketch estimator through exec: the budget's rows are read, the answer is as near
 * the exact one as it says, the same bits come at 1, 2 and 5 threads, layers keep to bits and
 * budgets of their own, and nothing stays charged.
 */
#include <stdio.h>

#include "tests/unit/exec_fixture.h"

#define TOKENS 6000u

static const struct shape sketch_shape = {
    .layers = 1,
    .q_heads = 6,
    .kv_heads = 2,
    .dim = 80,
    .dtype = PP_BF16,
    .estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.1f}};

struct outcome {
    float o[6 * 80];
    uint32_t keys_read[6];
    float var[6];
};

static void run_with(uint32_t threads, enum pp_estimator_kind asked, struct outcome *outcome)
{
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    struct an_attend_item item;
    float q[6 * 80];
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < 6 * 80; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    config.threads = threads;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
    for (uint32_t at = 0; at < TOKENS; at += 500) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &sketch_shape, 0, at, 500, 3, false),
                         PP_OK);
    }
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, TOKENS, 1, q, 6, 80, asked, &item),
                     PP_OK);
    assert_int_equal(item.used, asked);
    memcpy(outcome->o, item.o, sizeof(outcome->o));
    memcpy(outcome->keys_read, item.keys_read, sizeof(outcome->keys_read));
    memcpy(outcome->var, item.var, sizeof(outcome->var));
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void a_sketch_part_answers_alike_at_any_number_of_threads(void **state)
{
    (void)state;
    static struct outcome exact;
    static struct outcome sampled[3];
    static const uint32_t threads[] = {1, 2, 5};
    run_with(1, PP_EXACT, &exact);
    for (uint32_t i = 0; i < 3; i++) {
        run_with(threads[i], PP_SKETCH, &sampled[i]);
        assert_memory_equal(&sampled[i], &sampled[0], sizeof(sampled[0]));
    }
    double off = 0.0;
    double published = 0.0;
    for (uint32_t i = 0; i < 6 * 80; i++) {
        double difference = (double)(sampled[0].o[i] - exact.o[i]);
        off += difference * difference;
        published += (double)sampled[0].var[i / 80] / 80.0;
    }
    assert_int_equal(exact.keys_read[0], TOKENS);
    assert_true(sampled[0].keys_read[0] > 600 && sampled[0].keys_read[0] < 2000);
    assert_int_equal(sampled[0].keys_read[0], sampled[0].keys_read[2]);
    assert_true(off > 0.0 && off < 4.0 * published);
}

/* One long kv head, whose sample the threads make together. */
static void one_long_head_is_answered_alike_at_any_number_of_threads(void **state)
{
    (void)state;
    enum { HELD = 24000, BATCH = 1000, VALUES = 4 * 32 };
    static const uint32_t threads[] = {1, 2, 5};
    static const struct shape shape = {
        .layers = 1,
        .q_heads = 4,
        .kv_heads = 1,
        .dim = 32,
        .dtype = PP_BF16,
        .estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.02f}};
    float q[VALUES], o[3][VALUES], var[3][4];
    uint32_t keys_read[3];
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < VALUES; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    for (uint32_t t = 0; t < 3; t++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        struct an_attend_item item;
        config.threads = threads[t];
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        for (uint32_t at = 0; at < HELD; at += BATCH) {
            assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, at, BATCH, 3, false),
                             PP_OK);
        }
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, HELD, 1, q, 4, 32, PP_SKETCH, &item), PP_OK);
        memcpy(o[t], item.o, sizeof(o[t]));
        memcpy(var[t], item.var, sizeof(var[t]));
        keys_read[t] = item.keys_read[0];
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
        assert_true(keys_read[t] > HELD / 100 && keys_read[t] < HELD / 10);
        assert_int_equal(keys_read[t], keys_read[0]);
        assert_memory_equal(o[t], o[0], sizeof(o[0]));
        assert_memory_equal(var[t], var[0], sizeof(var[0]));
    }
}

/* Opens the part with `own` for its layers 1 and 2. */
static enum pp_status open_layers(struct fixture *fixture, const struct pp_layer_estimator own[2])
{
    struct shape shape = sketch_shape;
    shape.layers = 3;
    fixture->job.open = shape_open(&shape, 1);
    fixture->job.open.layer_estimators = own;
    fixture->job.open.layer_estimator_count = 2;
    return fixture_run(fixture, AN_JOB_OPEN);
}

static void layers_keep_to_bits_and_budgets_of_their_own(void **state)
{
    (void)state;
    enum { HELD = 5120 }; /* whole segments */
    const struct pp_layer_estimator own[2] = {
        {1, {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.25f}},
        {2, {.kind = PP_SKETCH, .bits = 4, .rows_share = 0.1f}}};
    const float shares[3] = {0.1f, 0.25f, 0.1f};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    float q[6 * 80];
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < 6 * 80; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    fixture_start(&fixture, &config);
    assert_int_equal(open_layers(&fixture, own), PP_OK);
    uint64_t handle = fixture.job.open.handle;
    for (uint32_t layer = 0; layer < 3; layer++) {
        for (uint32_t at = 0; at < HELD; at += 512) {
            assert_int_equal(
                fixture_append(&fixture, handle, 1, &sketch_shape, layer, at, 512, 3, false),
                PP_OK);
        }
        struct an_attend_item item;
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, layer, HELD, 1, q, 6, 80, PP_SKETCH, &item), PP_OK);
        float share = (float)item.keys_read[0] / HELD;
        assert_true(share > 0.8f * shares[layer] && share < 1.2f * shares[layer]);
    }
    assert_int_equal(open_layers(&fixture, own), PP_OK); /* the same, asked again */
    assert_int_equal(fixture.job.open.handle, handle);
    struct pp_layer_estimator other[2] = {own[0], own[1]};
    other[1].estimator.bits = 2;
    assert_int_equal(open_layers(&fixture, other), PP_PART_EXISTS);
    other[1] = own[1];
    other[0].estimator.rows_share = 0.1f;
    assert_int_equal(open_layers(&fixture, other), PP_PART_EXISTS);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* Rows whose every 16th dimension of K is 30 times as large as the others. */
static void scaled_rows(uint64_t begin, uint32_t count, uint8_t *k, uint8_t *v)
{
    static float rows[512 * 160];
    assert_true(count <= 512);
    make_rows(&sketch_shape, 3, begin, count, rows);
    for (uint32_t i = 0; i < count * 160; i += 16) {
        rows[i] *= 30.0f;
    }
    pp_vectors_from_f32(PP_BF16, 80, rows, count * 2ull, k);
    make_vectors(&sketch_shape, 4, begin, count, v);
}

static enum pp_status append_scaled(struct fixture *fixture, uint64_t handle, uint64_t begin,
                                    const float *balance, uint64_t balance_bytes)
{
    static uint8_t k[512 * 320];
    static uint8_t v[512 * 320];
    scaled_rows(begin, 512, k, v);
    fixture->job.append = append_args(handle, 1, &sketch_shape, begin, 512, k, v);
    if (balance != NULL) {
        fixture->job.append.balance = pp_span_of(balance, balance_bytes);
    }
    return fixture_run(fixture, AN_JOB_APPEND);
}

/* Mean published variance over the heads of what the part answers. */
static double variance_of(struct fixture *fixture, uint64_t handle, uint64_t held)
{
    float q[6 * 80];
    double sum = 0.0;
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < 6 * 80; i++) {
        q[i] = (float)pp_rng_normal(&rng) * (i % 16 == 0 ? 0.1f : 3.0f);
    }
    struct an_attend_item item;
    assert_int_equal(fixture_attend(fixture, handle, 1, 0, held, 1, q, 6, 80, PP_SKETCH, &item),
                     PP_OK);
    assert_int_equal(item.used, PP_SKETCH);
    for (uint32_t h = 0; h < 6; h++) {
        sum += (double)item.var[h] / 6.0;
    }
    return sum;
}

static void a_balance_serves_a_layer_its_merges_and_forks_and_never_changes(void **state)
{
    (void)state;
    enum { HELD = 8192, BALANCE_BYTES = 160 * sizeof(float) };
    float balance[160];
    double variances[2];
    double of_fork = 0.0;
    for (uint32_t i = 0; i < 160; i++) {
        balance[i] = i % 16 == 0 ? 30.0f : 1.0f;
    }
    for (uint32_t with = 0; with < 2; with++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
        for (uint32_t at = 0; at < HELD; at += 512) {
            bool first = with == 1 && at == 0;
            assert_int_equal(
                append_scaled(&fixture, handle, at, first ? balance : NULL, BALANCE_BYTES), PP_OK);
        }
        variances[with] = variance_of(&fixture, handle, HELD);
        if (with == 1) {
            float other[160];
            memcpy(other, balance, sizeof(other));
            assert_int_equal(append_scaled(&fixture, handle, HELD, other, BALANCE_BYTES), PP_OK);
            other[159] = 2.0f;
            assert_int_equal(append_scaled(&fixture, handle, HELD + 512, other, BALANCE_BYTES),
                             PP_APPEND_CONFLICT);
            assert_int_equal(append_scaled(&fixture, handle, HELD + 512, NULL, 0), PP_OK);
            fixture.job.fork = (struct an_fork_args){
                .part = {handle, 1}, .held_tokens = 5000, .generation = 1, .part_id = {9}};
            assert_int_equal(fixture_run(&fixture, AN_JOB_FORK), PP_OK);
            uint64_t fork = fixture.job.fork.handle;
            (void)fixture_close(&fixture, handle);
            of_fork = variance_of(&fixture, fork, 4096);
            handle = fork;
        }
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
    printf("variance %.3g without, %.3g with balance, %.3g of a fork's 4,096 rows\n", variances[0],
           variances[1], of_fork);
    assert_true(variances[1] < 0.5 * variances[0]);
    assert_true(of_fork < variances[0]);
}

static void a_balance_that_is_none_is_refused(void **state)
{
    (void)state;
    static const float bad[] = {0.0f, -1.0f, NAN, INFINITY, 0x1p17f, 0x1p-17f};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    float balance[160];
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
    for (uint32_t i = 0; i < 160; i++) {
        balance[i] = 1.0f;
    }
    for (uint32_t i = 0; i < 6; i++) {
        balance[77] = bad[i];
        assert_int_equal(append_scaled(&fixture, handle, 0, balance, sizeof(balance)),
                         PP_INVALID_ARGUMENT);
    }
    balance[77] = 1.0f;
    assert_int_equal(append_scaled(&fixture, handle, 0, balance, sizeof(balance) - 4),
                     PP_INVALID_ARGUMENT);
    struct shape exact = sketch_shape;
    exact.estimator = (struct pp_estimator){.kind = PP_EXACT};
    uint64_t other = fixture_open(&fixture, &exact, 2);
    assert_int_equal(append_scaled(&fixture, other, 0, balance, sizeof(balance)),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(append_scaled(&fixture, handle, 0, balance, sizeof(balance)), PP_OK);
    (void)fixture_close(&fixture, handle);
    (void)fixture_close(&fixture, other);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* More than a wave holds: a sample that does not fit begins the next one, whole. */
static void a_q_row_among_many_is_answered_as_if_alone(void **state)
{
    (void)state;
    enum { ROWS = 40, LANES = 6 * 80 };
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    struct an_attend_item item;
    static float q[ROWS * LANES], o[ROWS * LANES];
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < ROWS * LANES; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    config.threads = 2;
    config.seal_tokens = config.index_tokens_min = 64;
    config.keep_segments = true;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
    for (uint32_t at = 0; at < TOKENS; at += 500) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &sketch_shape, 0, at, 500, 3, false),
                         PP_OK);
    }
    assert_int_equal(
        fixture_attend(&fixture, handle, 1, 0, TOKENS, ROWS, q, 6, 80, PP_SKETCH, &item), PP_OK);
    assert_true(item.rows_sampled > 0);
    memcpy(o, item.o, sizeof(o));
    for (uint32_t row = 0; row < ROWS; row++) {
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, TOKENS, 1, q + row * LANES, 6, 80,
                                        PP_SKETCH, &item),
                         PP_OK);
        assert_memory_equal(item.o, o + row * LANES, LANES * sizeof(float));
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void kv_heads_read_the_shares_that_a_request_names(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    static const float shares[] = {0.3f, 0.02f, 0.5f};
    float q[6 * 80];
    struct pp_rng rng = {.seed = 12};
    for (uint32_t i = 0; i < 6 * 80; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &sketch_shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &sketch_shape, 0, 0, 5 * 1024, 3, false),
                     PP_OK);
    struct an_attend_item item = {.part = {handle, 1},
                                  .held_tokens = 5 * 1024,
                                  .q_rows = 1,
                                  .estimator = {.kind = PP_SKETCH},
                                  .q = (const uint8_t *)q,
                                  .q_bytes = sizeof(q),
                                  .kv_shares = shares,
                                  .kv_share_count = 3};
    fixture.job.attend =
        (struct an_attend_args){.q_dtype = PP_F32, .items = &item, .item_count = 1};
    assert_int_equal(fixture_run(&fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(item.status, PP_INVALID_ARGUMENT); /* the part has two kv heads */
    item.kv_share_count = 2;
    item.status = PP_OK;
    assert_int_equal(fixture_run(&fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(item.status, PP_OK);
    assert_int_equal(item.rows_sampled, 2 * 5 * 1024);
    for (uint32_t head = 0; head < 6; head++) {
        double wanted = (double)shares[head / 3] * 5 * 1024;
        assert_true(fabs(item.keys_read[head] - wanted) < 5.0 * sqrt(wanted));
        assert_true(item.lse_sampled[head] == item.lse[head]);
    }
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kv_heads_read_the_shares_that_a_request_names),
        cmocka_unit_test(a_q_row_among_many_is_answered_as_if_alone),
        cmocka_unit_test(a_balance_serves_a_layer_its_merges_and_forks_and_never_changes),
        cmocka_unit_test(a_balance_that_is_none_is_refused),
        cmocka_unit_test(one_long_head_is_answered_alike_at_any_number_of_threads),
        cmocka_unit_test(layers_keep_to_bits_and_budgets_of_their_own),
        cmocka_unit_test(a_sketch_part_answers_alike_at_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
