/*
 * Tuning asked of fake nodes: the layer gets what serves every part, busy nodes are asked again,
 * and answers that are wrong or do not come make a part silent, never a proposal, and cost no part.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

#include "tests/unit/remote_fake.h"

#define TOKENS 40u

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
};

static struct world world_new(uint32_t replicas)
{
    static const float rows[TOKENS * 4 * FAKE_DIM];
    struct world world = {.net = fake_net_new()};
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(TOKENS);
    sequence.estimator = (struct pp_estimator){.kind = PP_SKETCH};
    fake_remote_config(world.net, 2, GW_SHARD_TOKENS, &config);
    config.replicas = replicas;
    assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
    assert_int_equal(gw_remote_ready(world.remote, 1000000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world.remote, &sequence, &world.sequence), PP_OK);
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        assert_int_equal(gw_remote_append(world.sequence, layer, 0, TOKENS, rows, rows, false),
                         PP_OK);
    }
    assert_int_equal(gw_remote_flush(world.sequence), PP_OK);
    for (uint32_t i = 0; i < 2; ++i) {
        struct fake_node *node = &world.net->nodes[i];
        node->tune_share = i == 0 ? 0.1f : 0.3f;
        node->tune_estimator =
            (struct pp_estimator){.kind = PP_SKETCH, .bits = 2, .rows_share = node->tune_share};
    }
    return world;
}

static void world_free(struct world *world)
{
    assert_string_equal(gw_remote_error(world->sequence), "");
    gw_remote_sequence_close(world->sequence);
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
}

static struct gw_remote_tuning tune(struct world *world)
{
    struct gw_remote_tuning tuning;
    assert_int_equal(gw_remote_tune(world->sequence, 2, 0.2f, &tuning), PP_OK);
    return tuning;
}

static void the_part_that_needs_most_counts(void **state)
{
    (void)state;
    struct world world = world_new(1);
    struct gw_remote_tuning tuning = tune(&world);
    assert_int_equal(tuning.estimator.kind, PP_SKETCH);
    assert_true(tuning.estimator.rows_share == 0.3f && tuning.rows_share == 0.3f);
    assert_true(tuning.error == 0.15f);
    assert_int_equal(tuning.queries, 8);
    assert_false(tuning.dense);
    assert_int_equal(tuning.silent, 0);
    assert_true(world.net->nodes[0].tune_target == 0.2f);
    world.net->nodes[0].tune_dense = true;
    assert_true(tune(&world).dense);
    world.net->nodes[0].tune_dense = false;
    world.net->nodes[1].tune_estimator.kind = PP_ESTIMATOR_NONE; /* it was not asked */
    tuning = tune(&world);
    assert_true(tuning.estimator.rows_share == 0.1f && tuning.silent == 0);
    world.net->nodes[0].tune_estimator.kind = PP_ESTIMATOR_NONE;
    assert_int_equal(tune(&world).estimator.kind, PP_ESTIMATOR_NONE);
    world_free(&world);
}

static void every_replica_is_asked(void **state)
{
    (void)state;
    struct world world = world_new(2);
    struct gw_remote_tuning tuning = tune(&world);
    assert_true(tuning.estimator.rows_share == 0.3f);
    assert_int_equal(world.net->nodes[0].tunes + world.net->nodes[1].tunes, 4);
    world_free(&world);
}

static void a_busy_node_is_asked_again(void **state)
{
    (void)state;
    struct world world = world_new(1);
    world.net->nodes[1].tune_busy = 5;
    struct gw_remote_tuning tuning = tune(&world);
    assert_true(tuning.estimator.rows_share == 0.3f && tuning.silent == 0);
    assert_int_equal(world.net->nodes[0].tunes, 1);
    assert_int_equal(world.net->nodes[1].tunes, 6);
    world.net->nodes[1].tune_busy = UINT32_MAX; /* for ever: not longer than a call may take */
    tuning = tune(&world);
    assert_true(tuning.estimator.rows_share == 0.1f && tuning.silent == 1);
    world_free(&world);
}

static void wrong_answers_and_none_are_silence_and_cost_no_part(void **state)
{
    (void)state;
    static const enum fake_mode wrong[] = {
        FAKE_SILENT,     FAKE_OTHER_LAYER, FAKE_OTHER_INCARNATION,
        FAKE_OTHER_ROWS, FAKE_TOO_MANY,    FAKE_INFINITE_O};
    struct world world = world_new(1);
    for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
        world.net->nodes[1].tune_mode = wrong[i];
        struct gw_remote_tuning tuning = tune(&world);
        assert_int_equal(tuning.silent, 1);
        assert_true(tuning.estimator.rows_share == 0.1f && tuning.rows_share == 0.1f);
    }
    world.net->nodes[1].tune_mode = FAKE_RIGHT;
    world.net->nodes[1].tune_estimator.bits = 3; /* which no worker could ask for */
    assert_int_equal(tune(&world).silent, 1);
    world.net->nodes[1].tune_estimator.bits = 2;
    assert_int_equal(tune(&world).silent, 0);
    world_free(&world);
}

static void senseless_tunes_are_refused(void **state)
{
    (void)state;
    struct world world = world_new(1);
    struct gw_remote_tuning tuning;
    const float wrong[] = {0.0f, -0.1f, 1.5f, NAN};
    for (uint32_t i = 0; i < 4; ++i) {
        assert_int_equal(gw_remote_tune(world.sequence, 0, wrong[i], &tuning), PP_INVALID_ARGUMENT);
    }
    assert_int_equal(gw_remote_tune(world.sequence, FAKE_LAYERS, 0.1f, &tuning),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(world.net->nodes[0].tunes, 0);
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_part_that_needs_most_counts),
        cmocka_unit_test(every_replica_is_asked),
        cmocka_unit_test(a_busy_node_is_asked_again),
        cmocka_unit_test(wrong_answers_and_none_are_silence_and_cost_no_part),
        cmocka_unit_test(senseless_tunes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
