/*
 * Budgets of parts over fake nodes: the first attend of a layer names none, later ones name shares
 * by what the parts' sampled rows weighed, all nodes that hold a part are asked with the same, and
 * where nothing is known nothing is divided.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/remote/internal.h"
#include "tests/unit/remote_fake.h"

#define TOKENS 30u
#define HEADS  8u
#define PARTS  3u

/* What the nodes were asked since the last look, by part. */
struct seen {
    uint32_t asks[PARTS], counts[PARTS];
    float shares[PARTS][4];
    bool wants_sampled, differ;
};

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
    struct seen seen;
    float o[HEADS * FAKE_DIM], lse[HEADS], q[HEADS * FAKE_DIM];
};

static void see(void *context, const struct fake_part *part,
                const Pigpen__V1__AttendRequest *request, uint32_t at)
{
    struct seen *seen = context;
    const Pigpen__V1__AttendItem *item = request->items[at];
    uint32_t index = (uint32_t)(part->token_begin / (TOKENS / PARTS));
    uint64_t bytes = item->n_kv_head_shares * sizeof(float);
    assert_true(index < PARTS && item->n_kv_head_shares <= 4);
    if (seen->asks[index] > 0) {
        seen->differ = seen->differ || seen->counts[index] != item->n_kv_head_shares ||
                       (bytes > 0 && memcmp(seen->shares[index], item->kv_head_shares, bytes) != 0);
    }
    seen->asks[index]++;
    seen->counts[index] = (uint32_t)item->n_kv_head_shares;
    if (bytes > 0) {
        memcpy(seen->shares[index], item->kv_head_shares, bytes);
    }
    seen->wants_sampled = request->want_sampled;
}

/* Three parts of 10 tokens; node i's sampled rows weigh e^logs[i] times those of others. */
static struct world *world_new(struct pp_estimator estimator, uint32_t replicas,
                               const float logs[PARTS])
{
    struct world *world = calloc(1, sizeof(*world));
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(TOKENS);
    float *rows = calloc(TOKENS * 4 * FAKE_DIM, sizeof(float));
    sequence.estimator = estimator;
    world->net = fake_net_new();
    fake_remote_config(world->net, FAKE_NODES, GW_SHARD_TOKENS, &config);
    config.replicas = replicas;
    for (uint32_t i = 0; i < PARTS; ++i) {
        world->net->nodes[i].samples = logs[i] > -INFINITY;
        world->net->nodes[i].sampled_log = logs[i];
    }
    assert_int_equal(gw_remote_new(&config, &world->remote), PP_OK);
    assert_int_equal(gw_remote_ready(world->remote, 1000000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->sequence), PP_OK);
    for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
        assert_int_equal(gw_remote_append(world->sequence, layer, 0, TOKENS, rows, rows, false),
                         PP_OK);
    }
    assert_int_equal(gw_remote_flush(world->sequence), PP_OK);
    free(rows);
    world->net->saw_attend = see;
    world->net->saw_context = &world->seen;
    return world;
}

static void world_free(struct world *world)
{
    gw_remote_sequence_close(world->sequence);
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
    free(world);
}

static void attend(struct world *world, uint32_t layer)
{
    struct gw_remote_attend request = {
        .layer = layer, .held_tokens = TOKENS, .q_rows = 1, .q = world->q};
    struct gw_remote_answer answer = {.o = world->o, .lse = world->lse};
    memset(&world->seen, 0, sizeof(world->seen));
    assert_int_equal(gw_remote_attend_begin(world->sequence, &request), PP_OK);
    assert_int_equal(gw_remote_attend_wait(world->sequence, &answer), PP_OK);
    assert_false(world->seen.differ);
}

/* The shares of every kv head, and that they are the same in all of them. */
static void expect_shares(const struct world *world, const double shares[PARTS])
{
    for (uint32_t i = 0; i < PARTS; ++i) {
        assert_int_equal(world->seen.counts[i], 4);
        for (uint32_t head = 0; head < 4; ++head) {
            assert_true(fabs((double)world->seen.shares[i][head] - shares[i]) < 1e-5);
        }
    }
}

static void expect_none(const struct world *world)
{
    for (uint32_t i = 0; i < PARTS; ++i) {
        assert_int_equal(world->seen.counts[i], 0);
    }
}

static const struct pp_estimator sketch = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.1f};

static void the_second_attend_of_a_layer_reads_parts_by_their_weight(void **state)
{
    (void)state;
    /* Of all that is merged the parts weigh 1/3 (never more), 1/6 and 1/30. */
    const float logs[PARTS] = {0.0f, logf(0.5f), logf(0.1f)};
    const double all = 1.0 + 0.5 + 0.1;
    const double shares[PARTS] = {0.1 * (0.25 + 0.75 * 3.0 / all), 0.1 * (0.25 + 0.75 * 1.5 / all),
                                  0.1 * (0.25 + 0.75 * 0.3 / all)};
    struct world *world = world_new(sketch, 1, logs);
    attend(world, 2);
    assert_true(world->seen.wants_sampled);
    expect_none(world);
    attend(world, 2);
    expect_shares(world, shares);
    attend(world, 1); /* of which nothing is known yet */
    expect_none(world);
    attend(world, 2);
    expect_shares(world, shares);
    world_free(world);
}

static void a_number_of_rows_is_divided_alike(void **state)
{
    (void)state;
    const float logs[PARTS] = {0.0f, 0.0f, 0.0f};
    const double shares[PARTS] = {0.2, 0.2, 0.2};
    const struct pp_estimator rows = {.kind = PP_SKETCH, .bits = 2, .rows = 6};
    struct world *world = world_new(rows, 1, logs);
    attend(world, 0);
    attend(world, 0);
    expect_shares(world, shares);
    world_free(world);
}

static void a_part_that_samples_nothing_leaves_its_budget_alone(void **state)
{
    (void)state;
    const float logs[PARTS] = {0.0f, 0.0f, -INFINITY};
    const double shares[PARTS] = {0.1, 0.1, 0.1};
    struct world *world = world_new(sketch, 1, logs);
    attend(world, 0);
    attend(world, 0);
    expect_shares(world, shares);
    world_free(world);
}

static void nodes_that_do_not_say_what_was_sampled_keep_the_budget(void **state)
{
    (void)state;
    const float logs[PARTS] = {-INFINITY, -INFINITY, -INFINITY};
    struct world *world = world_new(sketch, 1, logs);
    attend(world, 0);
    attend(world, 0);
    expect_none(world);
    world_free(world);
}

static void targets_and_other_estimators_name_no_shares(void **state)
{
    (void)state;
    const float logs[PARTS] = {0.0f, 1.0f, 2.0f};
    const struct pp_estimator others[] = {
        {.kind = PP_SKETCH, .bits = 2, .target_error = 0.1f},
        {.kind = PP_LSH, .k = 6, .l = 8, .t = 2},
        {.kind = PP_EXACT},
    };
    for (uint32_t i = 0; i < sizeof(others) / sizeof(others[0]); ++i) {
        struct world *world = world_new(others[i], 1, logs);
        attend(world, 0);
        attend(world, 0);
        assert_false(world->seen.wants_sampled);
        expect_none(world);
        world_free(world);
    }
}

static void another_node_of_a_part_is_asked_with_the_same_shares(void **state)
{
    (void)state;
    const float logs[PARTS] = {0.0f, -1.0f, -2.0f};
    struct world *world = world_new(sketch, 2, logs);
    attend(world, 0);
    world->net->nodes[0].attend_mode = FAKE_SILENT;
    attend(world, 0); /* see: a part's asks do not differ */
    uint32_t again = 0;
    for (uint32_t i = 0; i < PARTS; ++i) {
        assert_int_equal(world->seen.counts[i], 4);
        again += world->seen.asks[i] > 1 ? 1 : 0;
    }
    assert_true(again > 0);
    assert_true(world->seen.shares[0][0] > world->seen.shares[1][0]);
    world_free(world);
}

static void a_sequence_that_goes_back_begins_with_nothing_known(void **state)
{
    (void)state;
    const float logs[PARTS] = {0.0f, -1.0f, -2.0f};
    struct world *world = world_new(sketch, 1, logs);
    attend(world, 0);
    attend(world, 0);
    assert_int_equal(world->seen.counts[0], 4);
    assert_int_equal(gw_remote_truncate(world->sequence, TOKENS), PP_OK);
    attend(world, 0);
    expect_none(world);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_attend_of_a_layer_reads_parts_by_their_weight),
        cmocka_unit_test(a_number_of_rows_is_divided_alike),
        cmocka_unit_test(a_part_that_samples_nothing_leaves_its_budget_alone),
        cmocka_unit_test(nodes_that_do_not_say_what_was_sampled_keep_the_budget),
        cmocka_unit_test(targets_and_other_estimators_name_no_shares),
        cmocka_unit_test(another_node_of_a_part_is_asked_with_the_same_shares),
        cmocka_unit_test(a_sequence_that_goes_back_begins_with_nothing_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
