/*
 * A part with the sketch estimator through exec: the budget's rows are read, the answer is as near
 * the exact one as it says, the same bits come at 1, 2 and 5 threads, layers keep to bits and
 * budgets of their own, and nothing stays charged.
 */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_keep_to_bits_and_budgets_of_their_own),
        cmocka_unit_test(a_sketch_part_answers_alike_at_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
