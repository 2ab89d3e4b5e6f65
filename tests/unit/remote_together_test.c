/*
 * Attends of several sequences at once: one message a node, an item each, and whatever is wrong
 * with one item or one answer is told to those that it belongs to.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <setjmp.h>

#include <cmocka.h>

#include "tests/unit/remote_fake.h"

#define HEADS     8u
#define SEQUENCES 3u
#define TOKENS    40u

struct world {
    struct fake_net *net;
    struct gw_remote *remote;
    struct gw_remote_sequence *sequences[SEQUENCES];
    struct gw_remote_begin begins[SEQUENCES];
    float o[SEQUENCES][HEADS * FAKE_DIM], lse[SEQUENCES][HEADS], q[HEADS * FAKE_DIM];
};

static struct world *world_new(uint32_t nodes)
{
    static const float rows[TOKENS * 4 * FAKE_DIM];
    struct world *world = calloc(1, sizeof(*world));
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence = fake_sequence_config(TOKENS);
    sequence.estimator = (struct pp_estimator){.kind = PP_EXACT};
    world->net = fake_net_new();
    fake_remote_config(world->net, nodes, GW_SHARD_TOKENS, &config);
    assert_int_equal(gw_remote_new(&config, &world->remote), PP_OK);
    assert_int_equal(gw_remote_ready(world->remote, 1000000, NULL, NULL), PP_OK);
    for (uint32_t i = 0; i < SEQUENCES; ++i) {
        assert_int_equal(gw_remote_sequence_open(world->remote, &sequence, &world->sequences[i]),
                         PP_OK);
        for (uint32_t layer = 0; layer < FAKE_LAYERS; ++layer) {
            assert_int_equal(
                gw_remote_append(world->sequences[i], layer, 0, TOKENS, rows, rows, false), PP_OK);
        }
        assert_int_equal(gw_remote_flush(world->sequences[i]), PP_OK);
        /* 40, 30 and 20 tokens; with two nodes the last one's all lie on the first. */
        world->begins[i] = (struct gw_remote_begin){.sequence = world->sequences[i],
                                                    .attend = {.layer = 2,
                                                               .held_tokens = TOKENS - 10 * i,
                                                               .q_rows = 1,
                                                               .q = world->q,
                                                               .errors = true}};
    }
    return world;
}

static void world_free(struct world *world)
{
    for (uint32_t i = 0; i < SEQUENCES; ++i) {
        gw_remote_sequence_close(world->sequences[i]);
    }
    gw_remote_destroy(world->remote);
    assert_int_equal(world->net->calls_open, 0);
    free(world->net);
    free(world);
}

/* Begins all, then waits for those that did. */
static void attend(struct world *world, enum pp_status *statuses_out)
{
    gw_remote_attends_begin(world->begins, SEQUENCES);
    for (uint32_t i = 0; i < SEQUENCES; ++i) {
        struct gw_remote_answer answer = {.o = world->o[i], .lse = world->lse[i]};
        statuses_out[i] = world->begins[i].status;
        if (statuses_out[i] == PP_OK) {
            statuses_out[i] = gw_remote_attend_wait(world->sequences[i], &answer);
        }
    }
}

/* Of two nodes: 20 tokens of constant 1, the others of constant 2. Of one: of constant 1 all. */
static void expect_answer(const struct world *world, uint32_t i)
{
    uint64_t tokens = world->begins[i].attend.held_tokens;
    bool two = gw_remote_node_count(world->remote) == 2;
    double far = two ? (double)tokens - 20.0 : 0.0;
    double o = ((double)tokens + far) / (double)tokens;
    for (uint32_t head = 0; head < HEADS; ++head) {
        assert_true(fabs((double)world->lse[i][head] - log((double)tokens)) < 1e-5);
        assert_true(fabs((double)world->o[i][head * FAKE_DIM] - o) < 1e-5);
    }
}

static void expect_all(struct world *world)
{
    enum pp_status statuses[SEQUENCES];
    attend(world, statuses);
    for (uint32_t i = 0; i < SEQUENCES; ++i) {
        assert_int_equal(statuses[i], PP_OK);
        expect_answer(world, i);
    }
}

static void several_sequences_are_asked_in_one_message_a_node(void **state)
{
    (void)state;
    struct world *world = world_new(2);
    for (uint32_t round = 1; round <= 5; ++round) { /* more than there are request buffers */
        expect_all(world);
        assert_int_equal(world->net->nodes[0].attends, round);
        assert_int_equal(world->net->nodes[1].attends, round);
    }
    world_free(world);
}

static void what_a_message_says_of_all_is_the_same_for_all(void **state)
{
    (void)state;
    struct world *world = world_new(1);
    world->begins[1].attend.layer = 1;
    expect_all(world);
    assert_int_equal(world->net->nodes[0].attends, 2);
    world->begins[1].attend.layer = 2;
    world->begins[2].attend.errors = false;
    expect_all(world);
    assert_int_equal(world->net->nodes[0].attends, 4);
    world->begins[2].attend.errors = true;
    world->begins[2].attend.layer = 0;
    world->begins[1].attend.layer = 1;
    expect_all(world);
    assert_int_equal(world->net->nodes[0].attends, 7);
    world_free(world);
}

static void one_that_cannot_begin_is_left_out(void **state)
{
    (void)state;
    struct world *world = world_new(2);
    enum pp_status statuses[SEQUENCES];
    world->begins[1].attend.held_tokens = TOKENS + 1;
    attend(world, statuses);
    assert_int_equal(statuses[1], PP_SHORT_PART);
    for (uint32_t i = 0; i < SEQUENCES; i += 2) {
        assert_int_equal(statuses[i], PP_OK);
        expect_answer(world, i);
    }
    world_free(world);
}

static void an_item_that_is_refused_is_its_own_sequences_failure(void **state)
{
    (void)state;
    struct world *world = world_new(1);
    enum pp_status statuses[SEQUENCES];
    world->net->nodes[0].attend_mode = FAKE_ITEM_INTERNAL;
    world->net->nodes[0].right_items = 2;
    attend(world, statuses);
    assert_int_equal(statuses[0], PP_OK);
    assert_int_equal(statuses[1], PP_OK);
    assert_int_equal(statuses[2], PP_INTERNAL);
    expect_answer(world, 0);
    expect_answer(world, 1);
    world_free(world);
}

static void an_answer_that_is_wrong_ends_all_that_it_is_of(void **state)
{
    (void)state;
    static const enum fake_mode modes[] = {
        FAKE_OTHER_INCARNATION, FAKE_OTHER_LAYER,    FAKE_SHORT_VECTOR, FAKE_NO_LSE,
        FAKE_TWO_RESULTS,       FAKE_WHOLE_INTERNAL, FAKE_SILENT,       FAKE_BREAK,
        FAKE_OTHER_ID,          FAKE_FEWER_TOKENS,   FAKE_LONG_OFFSET,  FAKE_GARBAGE};
    for (size_t mode = 0; mode < sizeof(modes) / sizeof(modes[0]); ++mode) {
        struct world *world = world_new(1);
        enum pp_status statuses[SEQUENCES];
        world->net->nodes[0].attend_mode = modes[mode];
        attend(world, statuses);
        for (uint32_t i = 0; i < SEQUENCES; ++i) {
            printf("mode %d, sequence %u: %s\n", (int)modes[mode], i,
                   gw_remote_error(world->sequences[i]));
            assert_int_not_equal(statuses[i], PP_OK);
            assert_true(gw_remote_error(world->sequences[i])[0] != '\0');
        }
        world_free(world);
    }
}

static void a_stream_that_breaks_has_each_asked_again_by_itself(void **state)
{
    (void)state;
    struct world *world = world_new(1);
    world->net->nodes[0].attend_mode = FAKE_BREAK_ONCE;
    expect_all(world);
    assert_int_equal(world->net->nodes[0].attends, 1 + SEQUENCES);
    expect_all(world);
    assert_int_equal(world->net->nodes[0].attends, 2 + SEQUENCES);
    world_free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_sequences_are_asked_in_one_message_a_node),
        cmocka_unit_test(what_a_message_says_of_all_is_the_same_for_all),
        cmocka_unit_test(one_that_cannot_begin_is_left_out),
        cmocka_unit_test(an_item_that_is_refused_is_its_own_sequences_failure),
        cmocka_unit_test(an_answer_that_is_wrong_ends_all_that_it_is_of),
        cmocka_unit_test(a_stream_that_breaks_has_each_asked_again_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
