/*
 * Attends over fake nodes: merges by hand-computed values, and every kind of wrong answer ends its
 * sequence with node and cause, never with a wrong number, while other sequences go on.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>

#include "tests/unit/remote_fake.h"

#define HEADS 8u

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence, *other;
    float o[2 * HEADS * FAKE_DIM], lse[2 * HEADS], q[2 * HEADS * FAKE_DIM];
};

static void fill(struct gw_remote_sequence *sequence, uint32_t tokens)
{
    float *rows = calloc((size_t)tokens * 4 * FAKE_DIM, sizeof(float));
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        assert_int_equal(gw_remote_append(sequence, layer, 0, tokens, rows, rows, false), PP_OK);
    }
    assert_int_equal(gw_remote_flush(sequence), PP_OK);
    free(rows);
}

static struct world *world_new_as(uint32_t nodes, enum gw_shard shard,
                                  struct pp_estimator estimator, bool nodes_plan)
{
    struct world *world = calloc(1, sizeof(*world));
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(40);
    sequence.estimator = estimator;
    sequence.nodes_plan = nodes_plan;
    world->net = fake_net_new();
    fake_remote_config(world->net, nodes, shard, &config);
    assert_int_equal(gw_remote_new(&config, &world->remote), PP_OK);
    assert_int_equal(gw_remote_ready(world->remote, 1000000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->sequence), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->other), PP_OK);
    fill(world->sequence, 40);
    fill(world->other, 40);
    return world;
}

static struct world *world_new(uint32_t nodes, enum gw_shard shard, struct pp_estimator estimator)
{
    return world_new_as(nodes, shard, estimator, false);
}

static void world_free(struct world *world)
{
    gw_remote_sequence_close(world->sequence);
    gw_remote_sequence_close(world->other);
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
    free(world);
}

static const struct pp_estimator exact = {.kind = PP_EXACT};

static enum pp_status attend(struct world *world, struct gw_remote_sequence *sequence,
                             uint64_t held_tokens, uint32_t q_rows, struct gw_remote_answer *answer)
{
    struct gw_remote_attend request = {
        .errors = true, .layer = 2, .held_tokens = held_tokens, .q_rows = q_rows, .q = world->q};
    *answer = (struct gw_remote_answer){.o = world->o, .lse = world->lse};
    for (uint32_t i = 0; i < 2 * HEADS; ++i) {
        world->lse[i] = NAN;
    }
    enum pp_status status = gw_remote_attend_begin(sequence, &request);
    return status == PP_OK ? gw_remote_attend_wait(sequence, answer) : status;
}

static void expect_all(const struct world *world, uint32_t q_rows, float o, float lse)
{
    for (uint32_t i = 0; i < q_rows * HEADS; ++i) {
        assert_true(fabsf(world->lse[i] - lse) < 1e-5f || world->lse[i] == lse);
        for (uint32_t d = 0; d < FAKE_DIM; ++d) {
            assert_true(fabsf(world->o[i * FAKE_DIM + d] - o) < 1e-5f);
        }
    }
}

static void token_shards_merge_by_their_sums(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    struct gw_remote_answer answer;
    /* 20 tokens of constant 1 and 10 of constant 2. */
    assert_int_equal(attend(world, world->sequence, 30, 2, &answer), PP_OK);
    expect_all(world, 2, 40.0f / 30.0f, logf(30));
    assert_int_equal(answer.keys_held, 30 * 4 * 2);
    assert_int_equal(answer.keys_held_q, 30 * 8 * 2);
    /* 16 q rows and heads: 1, 2, ... 16 keys on one node, twice that on the other. */
    assert_int_equal(answer.keys_read_q, 136 + 2 * 136);
    assert_int_equal(answer.node_us, 40);
    assert_true(answer.estimator_used);
    assert_true(answer.network_us > 0);
    world_free(world);
}

static void only_parts_that_hold_asked_tokens_are_asked(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    struct gw_remote_answer answer;
    world->net->nodes[1].attend_mode = FAKE_SILENT;
    assert_int_equal(attend(world, world->sequence, 20, 1, &answer), PP_OK);
    expect_all(world, 1, 1, logf(20));
    world_free(world);
}

static void nothing_held_gives_the_empty_partial(void **state)
{
    (void)state;
    for (int shard = 0; shard < 2; ++shard) {
        struct world *world = world_new(2, (enum gw_shard)shard, exact);
        struct gw_remote_answer answer;
        assert_int_equal(attend(world, world->sequence, 0, 1, &answer), PP_OK);
        expect_all(world, 1, 0, -INFINITY);
        assert_int_equal(answer.keys_held, 0);
        world_free(world);
    }
}

static void kv_head_shards_stand_side_by_side(void **state)
{
    (void)state;
    struct world *world = world_new(3, GW_SHARD_KV_HEADS, exact);
    struct gw_remote_answer answer;
    assert_int_equal(attend(world, world->sequence, 33, 2, &answer), PP_OK);
    /* kv heads 0 | 1 | 2 3 on nodes a, b, c; two q heads each. */
    static const float right[HEADS] = {1, 1, 2, 2, 3, 3, 3, 3};
    for (uint32_t i = 0; i < 2 * HEADS; ++i) {
        assert_true(world->o[i * FAKE_DIM] == right[i % HEADS]);
        assert_true(fabsf(world->lse[i] - logf(33)) < 1e-5f);
    }
    assert_int_equal(answer.keys_held, 33 * 4 * 2);
    assert_int_equal(answer.keys_held_q, 33 * 8 * 2);
    assert_int_equal(answer.keys_read_q, 1 * 10 + 2 * 10 + 3 * 36); /* 4, 4 and 8 of them */
    world_free(world);
}

static void more_than_is_acknowledged_cannot_be_asked(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    struct gw_remote_answer answer;
    assert_int_equal(attend(world, world->sequence, 41, 1, &answer), PP_SHORT_PART);
    world->q[3] = NAN;
    assert_int_equal(attend(world, world->sequence, 40, 1, &answer), PP_NON_FINITE);
    world->q[3] = 0;
    assert_int_equal(attend(world, world->sequence, 40, 1, &answer), PP_OK);
    assert_string_equal(gw_remote_error(world->sequence), "");
    world_free(world);
}

static void signatures_travel_for_lsh_only_and_its_name_unless_nodes_plan(void **state)
{
    (void)state;
    for (int nodes_plan = 0; nodes_plan < 2; nodes_plan++) {
        struct pp_estimator lsh = {.kind = PP_LSH};
        struct world *world = world_new_as(1, GW_SHARD_TOKENS, lsh, nodes_plan == 1);
        struct gw_remote_attend request = {.errors = true,
                                           .layer = 0,
                                           .held_tokens = 40,
                                           .q_rows = 1,
                                           .q = world->q,
                                           .estimator = exact};
        struct gw_remote_answer answer = {.o = world->o, .lse = world->lse};
        assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_OK);
        assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_OK);
        assert_false(world->net->nodes[0].saw_signatures);
        assert_true(answer.estimator_used);
        assert_int_equal(attend(world, world->sequence, 40, 2, &answer), PP_OK);
        assert_true(world->net->nodes[0].saw_signatures);
        /* The fake uses what an item names, and else answers exactly. */
        assert_true(answer.estimator_used == (nodes_plan == 0));
        world_free(world);
    }
}

static void layers_are_opened_asked_and_signed_by_their_own_estimators(void **state)
{
    (void)state;
    static const struct pp_estimator_range ranges[] = {
        {0, 0, {.kind = PP_EXACT}},
        {1, 1, {.kind = PP_LSH, .k = 8, .l = 200, .t = 3}},
        {3, 3, {.kind = PP_LSH, .t = 4}},
    };
    static const uint32_t tables[FAKE_LAYERS] = {0, 200, 40, 150}, hits[FAKE_LAYERS] = {0, 3, 1, 4};
    struct world *world = calloc(1, sizeof(*world));
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(40);
    sequence.estimator = (struct pp_estimator){.kind = PP_LSH, .l = 40, .t = 1};
    sequence.ranges = ranges;
    sequence.range_count = 3;
    world->net = fake_net_new();
    fake_remote_config(world->net, 2, GW_SHARD_TOKENS, &config);
    assert_int_equal(gw_remote_new(&config, &world->remote), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->sequence), PP_OK);
    fill(world->sequence, 40);
    const struct fake_node *node = &world->net->nodes[1];
    assert_int_equal(node->parts[0].own_count, 3);
    assert_int_equal(node->parts[0].own[0].estimator.kind, PP_EXACT);
    assert_int_equal(node->parts[0].own[1].layer, 1);
    assert_int_equal(node->parts[0].own[2].layer, 3);
    assert_int_equal(node->parts[0].own[2].estimator.l, 150);
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        struct gw_remote_attend request = {
            .layer = layer, .held_tokens = 40, .q_rows = 2, .q = world->q};
        struct gw_remote_answer answer = {.o = world->o, .lse = world->lse};
        assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_OK);
        assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_OK);
        assert_int_equal(node->signature_bytes, 2 * HEADS * tables[layer] * sizeof(uint16_t));
        assert_int_equal(node->asked.kind, layer == 0 ? PP_EXACT : PP_LSH);
        assert_int_equal(node->asked.l, tables[layer]);
        assert_int_equal(node->asked.t, hits[layer]);
        assert_true(answer.estimator_used == (layer != 0));
        assert_int_equal(gw_remote_estimator(world->sequence, layer)->l, tables[layer]);
        assert_true((gw_remote_hash(world->sequence, layer) == NULL) == (layer == 0));
    }
    world_free(world);
}

static void layers_out_of_range_are_refused_at_open(void **state)
{
    (void)state;
    static const struct pp_estimator_range bad[] = {
        {3, FAKE_LAYERS, {.kind = PP_EXACT}},
        {2, 1, {.kind = PP_EXACT}},
        {0, 1, {.kind = PP_LSH, .k = 17}},
        {0, 1, {.kind = PP_ESTIMATOR_NONE}},
    };
    struct world *world = world_new(1, GW_SHARD_TOKENS, exact);
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        struct gw_remote_sequence_config config = fake_sequence_config(40);
        struct gw_remote_sequence *sequence = NULL;
        config.ranges = &bad[i];
        config.range_count = 1;
        assert_int_equal(gw_remote_sequence_open(world->remote, &config, &sequence),
                         PP_INVALID_ARGUMENT);
        assert_null(sequence);
    }
    world_free(world);
}

static void a_second_attend_before_the_first_ended_is_refused(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    struct gw_remote_attend request = {
        .errors = true, .held_tokens = 40, .q_rows = 1, .q = world->q};
    struct gw_remote_answer answer = {.o = world->o, .lse = world->lse};
    assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_FAILED_PRECONDITION);
    assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_OK);
    assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_FAILED_PRECONDITION);
    assert_int_equal(gw_remote_attend_begin(world->other, &request), PP_OK);
    assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_OK);
    assert_int_equal(gw_remote_attend_wait(world->other, &answer), PP_OK);
    world_free(world);
}

struct wrong {
    enum fake_mode mode;
    enum pp_status status;
    const char *cause;
};

static const struct wrong wrongs[] = {
    {FAKE_OTHER_ID, PP_DEADLINE_EXCEEDED, "no answer within 1500 ms"},
    {FAKE_OTHER_INCARNATION, PP_INCARNATION_CHANGED, "restarted"},
    {FAKE_OTHER_LAYER, PP_INTERNAL, "another layer"},
    {FAKE_SHORT_VECTOR, PP_INTERNAL, "output vector"},
    {FAKE_LONG_OFFSET, PP_INTERNAL, "output vector"},
    {FAKE_NO_LSE, PP_INTERNAL, "log-sum-exps"},
    {FAKE_NAN_LSE, PP_INTERNAL, "not finite"},
    {FAKE_EMPTY_LSE, PP_INTERNAL, "not finite"},
    {FAKE_INFINITE_O, PP_INTERNAL, "not finite"},
    {FAKE_NEGATIVE_VAR, PP_INTERNAL, "negative"},
    {FAKE_OTHER_ROWS, PP_INTERNAL, "q rows"},
    {FAKE_FEWER_TOKENS, PP_INTERNAL, "another number of tokens"},
    {FAKE_TWO_RESULTS, PP_INTERNAL, "not one result"},
    {FAKE_ITEM_INTERNAL, PP_INTERNAL, "as the test wants"},
    {FAKE_WHOLE_INTERNAL, PP_INTERNAL, "as the test wants"},
    {FAKE_SILENT, PP_DEADLINE_EXCEEDED, "no answer within 1500 ms"},
    {FAKE_BREAK, PP_UNAVAILABLE, "connection reset"},
    {FAKE_GARBAGE, PP_INTERNAL, "no AttendResponse"},
};

static void every_wrong_answer_ends_its_sequence_and_no_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(wrongs[0]); ++i) {
        struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
        struct gw_remote_answer answer;
        world->net->nodes[1].attend_mode = wrongs[i].mode;
        uint64_t begun_us = world->net->now_us;
        assert_int_equal(attend(world, world->sequence, 40, 1, &answer), wrongs[i].status);
        assert_true(world->net->now_us - begun_us < 2000000);
        const char *error = gw_remote_error(world->sequence);
        if (strstr(error, "node b") == NULL || strstr(error, wrongs[i].cause) == NULL) {
            fail_msg("mode %d: %s", wrongs[i].mode, error);
        }
        assert_true(isnan(world->lse[0])); /* nothing was written */
        world->net->nodes[1].attend_mode = FAKE_RIGHT;
        assert_int_equal(attend(world, world->sequence, 40, 1, &answer), wrongs[i].status);
        assert_int_equal(attend(world, world->other, 40, 1, &answer), PP_OK);
        expect_all(world, 1, 1.5f, logf(40));
        world_free(world);
    }
}

static void late_answers_are_dropped(void **state)
{
    (void)state;
    struct world *world = world_new(1, GW_SHARD_TOKENS, exact);
    struct gw_remote_answer answer;
    struct gw_remote_attend request = {
        .errors = true, .held_tokens = 40, .q_rows = 1, .q = world->q};
    assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_OK);
    /* The answer lies in the net; the clock passes the deadline before it is delivered. */
    world->net->now_us += 1600000;
    answer = (struct gw_remote_answer){.o = world->o, .lse = world->lse};
    assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_DEADLINE_EXCEEDED);
    world->net->nodes[0].constant = 9;
    assert_int_equal(attend(world, world->other, 40, 1, &answer), PP_OK);
    expect_all(world, 1, 9, logf(40));
    world_free(world);
}

static void the_last_probe_before_giving_up_is_as_patient_as_the_first(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    world->net->nodes[1].down = true;
    world->net->patience_min_us = UINT64_MAX;
    assert_int_equal(gw_remote_ready(world->remote, 530000, NULL, NULL), PP_UNAVAILABLE);
    assert_true(world->net->patience_min_us >= 500000);
    assert_true(world->net->patience_min_us != UINT64_MAX);
    world_free(world);
}

static bool count_waiting(void *context, uint64_t waited_us)
{
    uint64_t *calls = context;
    (void)waited_us;
    *calls += 1;
    return *calls < 3;
}

static void a_wait_for_nodes_tells_which_are_missing_and_can_be_ended(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    uint64_t calls = 0;
    assert_null(gw_remote_missing(world->remote, 0));
    world->net->nodes[1].down = true;
    assert_int_equal(gw_remote_ready(world->remote, 30000000, count_waiting, &calls), PP_CANCELLED);
    assert_int_equal(calls, 3);
    assert_null(gw_remote_missing(world->remote, 0));
    const char *cause = gw_remote_missing(world->remote, 1);
    assert_non_null(cause);
    assert_non_null(strstr(cause, "UNAVAILABLE"));
    world->net->nodes[1].down = false;
    assert_int_equal(gw_remote_ready(world->remote, 500000, count_waiting, &calls), PP_OK);
    assert_null(gw_remote_missing(world->remote, 1));
    world_free(world);
}

static void two_addresses_of_one_node_are_refused(void **state)
{
    (void)state;
    struct world *world = world_new(3, GW_SHARD_TOKENS, exact);
    world->net->nodes[2].incarnation = world->net->nodes[0].incarnation;
    assert_int_equal(gw_remote_ready(world->remote, 30000000, NULL, NULL), PP_INVALID_ARGUMENT);
    assert_null(gw_remote_missing(world->remote, 0));
    assert_null(gw_remote_missing(world->remote, 1));
    assert_string_equal(gw_remote_missing(world->remote, 2), "it is the same node as a (0)");
    world->net->nodes[2].incarnation = 99;
    assert_int_equal(gw_remote_ready(world->remote, 500000, NULL, NULL), PP_OK);
    world_free(world);
}

static void a_sequence_is_opened_on_the_nodes_that_are_there(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    struct gw_remote_sequence_config config = fake_sequence_config(40);
    struct gw_remote_sequence *third = NULL;
    struct gw_remote_answer answer;
    world->net->nodes[1].down = true;
    assert_int_equal(gw_remote_ready(world->remote, 500000, NULL, NULL), PP_UNAVAILABLE);
    assert_int_equal(gw_remote_sequence_open(world->remote, &config, &third), PP_OK);
    assert_int_equal(world->net->nodes[0].closes, 1); /* the part of the first plan */
    fill(third, 40);
    assert_int_equal(attend(world, third, 40, 1, &answer), PP_OK);
    expect_all(world, 1, 1, logf(40));
    gw_remote_sequence_close(third);
    world->net->nodes[0].down = true;
    assert_int_equal(gw_remote_sequence_open(world->remote, &config, &third), PP_UNAVAILABLE);
    world->net->nodes[0].down = world->net->nodes[1].down = false;
    assert_int_equal(gw_remote_ready(world->remote, 500000, NULL, NULL), PP_OK);
    world_free(world);
}

static void open_names_the_tokens_that_each_part_will_hold(void **state)
{
    (void)state;
    struct world *world = world_new(3, GW_SHARD_TOKENS, exact);
    struct gw_remote_sequence_config config = fake_sequence_config(40);
    static const uint64_t tokens[] = {14, 14, 12};
    for (uint32_t i = 0; i < 3; ++i) {
        assert_int_equal(world->net->nodes[i].parts[0].reserve_tokens, tokens[i]);
    }
    struct gw_remote_sequence *third = NULL;
    world->net->nodes[2].reserve_tokens_max = 11;
    assert_int_equal(gw_remote_sequence_open(world->remote, &config, &third), PP_MEMORY);
    assert_null(third);
    assert_int_equal(world->net->nodes[0].closes + world->net->nodes[1].closes, 2);
    world_free(world);
}

static void a_restarted_node_ends_old_sequences_and_serves_new_ones(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, exact);
    struct gw_remote_sequence_config config = fake_sequence_config(40);
    struct gw_remote_sequence *third = NULL;
    struct gw_remote_answer answer;
    struct fake_node *node = &world->net->nodes[0];
    node->incarnation = 99;
    node->part_count = 0;
    memset(node->parts, 0, sizeof(node->parts));
    assert_int_not_equal(attend(world, world->sequence, 40, 1, &answer), PP_OK);
    assert_non_null(strstr(gw_remote_error(world->sequence), "node a"));
    node->attend_mode = FAKE_RIGHT;
    assert_int_equal(gw_remote_ready(world->remote, 500000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &config, &third), PP_OK);
    fill(third, 40);
    assert_int_equal(attend(world, third, 40, 1, &answer), PP_OK);
    expect_all(world, 1, 1.5f, logf(40));
    gw_remote_sequence_close(third);
    world_free(world);
}

static void a_remote_with_its_own_thread_answers_the_same(void **state)
{
    (void)state;
    struct world world = {.net = fake_net_new()};
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(400);
    struct gw_remote_answer answer;
    fake_remote_config(world.net, 2, GW_SHARD_TOKENS, &config);
    config.outbox_bytes_max = 1 << 16;
    /* The virtual clock runs away while the thread has nothing to do. */
    config.attend_timeout_us = config.call_timeout_us = UINT64_MAX / 4;
    assert_int_equal(gw_remote_new(&config, &world.remote), PP_OK);
    assert_int_equal(gw_remote_start(world.remote), PP_OK);
    assert_int_equal(gw_remote_start(world.remote), PP_FAILED_PRECONDITION);
    assert_int_equal(gw_remote_sequence_open(world.remote, &sequence, &world.sequence), PP_OK);
    fill(world.sequence, 400);
    for (uint32_t i = 0; i < 500; ++i) {
        assert_int_equal(attend(&world, world.sequence, 201 + i % 200, 2, &answer), PP_OK);
        float tokens = (float)(201 + i % 200);
        expect_all(&world, 2, (200 + 2 * (tokens - 200)) / tokens, logf(tokens));
    }
    assert_int_equal(gw_remote_truncate(world.sequence, 100), PP_OK);
    assert_int_equal(attend(&world, world.sequence, 100, 1, &answer), PP_OK);
    gw_remote_sequence_close(world.sequence);
    gw_remote_stop(world.remote);
    gw_remote_destroy(world.remote);
    assert_int_equal(world.net->calls_open, 0);
    free(world.net);
}

static void seal_waits_for_the_indexes(void **state)
{
    (void)state;
    struct world *world = world_new(2, GW_SHARD_TOKENS, (struct pp_estimator){.kind = PP_LSH});
    assert_int_equal(gw_remote_seal(world->sequence, NULL, NULL), PP_OK);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(token_shards_merge_by_their_sums),
        cmocka_unit_test(only_parts_that_hold_asked_tokens_are_asked),
        cmocka_unit_test(nothing_held_gives_the_empty_partial),
        cmocka_unit_test(kv_head_shards_stand_side_by_side),
        cmocka_unit_test(more_than_is_acknowledged_cannot_be_asked),
        cmocka_unit_test(signatures_travel_for_lsh_only_and_its_name_unless_nodes_plan),
        cmocka_unit_test(layers_are_opened_asked_and_signed_by_their_own_estimators),
        cmocka_unit_test(layers_out_of_range_are_refused_at_open),
        cmocka_unit_test(a_second_attend_before_the_first_ended_is_refused),
        cmocka_unit_test(every_wrong_answer_ends_its_sequence_and_no_other),
        cmocka_unit_test(late_answers_are_dropped),
        cmocka_unit_test(the_last_probe_before_giving_up_is_as_patient_as_the_first),
        cmocka_unit_test(two_addresses_of_one_node_are_refused),
        cmocka_unit_test(a_sequence_is_opened_on_the_nodes_that_are_there),
        cmocka_unit_test(open_names_the_tokens_that_each_part_will_hold),
        cmocka_unit_test(a_wait_for_nodes_tells_which_are_missing_and_can_be_ended),
        cmocka_unit_test(a_restarted_node_ends_old_sequences_and_serves_new_ones),
        cmocka_unit_test(a_remote_with_its_own_thread_answers_the_same),
        cmocka_unit_test(seal_waits_for_the_indexes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
