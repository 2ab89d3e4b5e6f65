/*
 * A sequence whose node was lost goes on as if it had not been: whatever was lost, whenever, its
 * rows come back from what is still here and from the tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine_fixture.h"

#define PROMPT 500u
#define STEPS  200u

static float expected[(STEPS + 1) * VOCAB], logits[(STEPS + 1) * VOCAB];

static enum pp_status run(struct tiny *tiny, struct gw_sequence *sequence, float *logits_out)
{
    PP_TRY(gw_sequence_prefill(sequence, tiny->ids, PROMPT, 1, logits_out, NULL, NULL));
    for (uint32_t i = 0; i < STEPS; i++) {
        PP_TRY(
            gw_sequence_step(sequence, tiny->ids[PROMPT + i], logits_out + (i + 1) * VOCAB, NULL));
    }
    return PP_OK;
}

static void expect_from_the_worker_alone(struct tiny *tiny)
{
    struct gw_sequence *alone = open_kept(tiny, NULL, 0);
    assert_int_equal(run(tiny, alone, expected), PP_OK);
    gw_sequence_close(alone);
}

/* One run over the fake, as it was set up; how far its logits are from the undisturbed ones. */
static double lose_and_compare(struct tiny *tiny, struct gw_recoveries *recoveries)
{
    struct gw_sequence *sequence = open_kept(tiny, &fake, 0);
    assert_int_equal(run(tiny, sequence, logits), PP_OK);
    gw_sequence_recoveries(sequence, recoveries);
    gw_sequence_close(sequence);
    return largest_difference(logits, expected, (STEPS + 1) * VOCAB);
}

static void a_lost_span_is_computed_again_behind_what_others_hold(void **state)
{
    (void)state;
    static const uint64_t spans[][2] = {{0, 150},          {0, UINT64_MAX}, {150, 300},
                                        {300, UINT64_MAX}, {431, 432},      {450, UINT64_MAX}};
    struct tiny tiny = tiny_new(64, PP_F32);
    expect_from_the_worker_alone(&tiny);
    for (size_t i = 0; i < sizeof(spans) / sizeof(spans[0]); i++) {
        for (uint64_t at = 2; at < 2 * STEPS; at += 97) {
            struct gw_recoveries recoveries;
            /* Prefill appends twice; then the attends of the steps count. */
            fake = (struct gw_remote){.ack_every = 5,
                                      .lose_at = 2 + at,
                                      .lost_from = spans[i][0],
                                      .lost_to = spans[i][1]};
            double worst = lose_and_compare(&tiny, &recoveries);
            printf("lost from %llu at call %llu: %.2e, %llu tokens computed again\n",
                   (unsigned long long)spans[i][0], (unsigned long long)at, worst,
                   (unsigned long long)recoveries.tokens_recomputed);
            assert_true(worst < 1e-3);
            assert_int_equal(recoveries.count, 1);
            assert_true(spans[i][0] > 440 || recoveries.tokens_recomputed > 0);
            /* The prompt is sealed, and again what was computed again in its place. */
            assert_int_equal(fake.seals, recoveries.tokens_recomputed > 0 ? 2 : 1);
        }
    }
    tiny_free(&tiny);
}

/* Chunks of all sizes: some are recovered beside the next one, some alone. */
static void what_is_computed_again_does_not_depend_on_chunks(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 64, 100, 130, 512};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        struct tiny tiny = tiny_new(chunks[i], PP_F32);
        struct gw_recoveries recoveries;
        expect_from_the_worker_alone(&tiny);
        fake = (struct gw_remote){
            .ack_every = 5, .lose_at = 50, .lost_from = 120, .lost_to = UINT64_MAX};
        assert_true(lose_and_compare(&tiny, &recoveries) < 1e-3);
        assert_int_equal(recoveries.count, 1);
        assert_int_equal(recoveries.tokens_recomputed, PROMPT - 64 - 4 - 120);
        tiny_free(&tiny);
    }
}

static void a_recovery_asks_for_as_many_rows_as_nodes_answer_in_time(void **state)
{
    (void)state;
    /* A step's own row is in time, 64 of them would not be. */
    static const struct {
        uint64_t row_us;
        uint32_t rows;
    } cases[] = {{TIMEOUT_US / 10, 1}, {TIMEOUT_US / 40, 4}, {TIMEOUT_US / 80, 9}, {10, 64}};
    struct tiny tiny = tiny_new(128, PP_F32);
    expect_from_the_worker_alone(&tiny);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gw_recoveries recoveries;
        fake = (struct gw_remote){.ack_every = 5,
                                  .lose_at = 50,
                                  .lost_from = 100,
                                  .lost_to = UINT64_MAX,
                                  .row_us = cases[i].row_us};
        assert_true(lose_and_compare(&tiny, &recoveries) < 1e-3);
        printf("%llu us a row: at most %u rows at once\n", (unsigned long long)cases[i].row_us,
               fake.rows_asked_max);
        assert_int_equal(fake.recoveries, 1);
        assert_true(fake.rows_asked_max <= cases[i].rows);
        assert_true(fake.rows_asked_max * 2 >= cases[i].rows);
    }
    tiny_free(&tiny);
}

static void a_node_lost_in_prefill_makes_it_start_again(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    expect_from_the_worker_alone(&tiny);
    for (uint64_t at = 1; at <= LAYERS; at++) {
        struct gw_recoveries recoveries;
        fake = (struct gw_remote){.ack_every = 1, .lose_at = at};
        assert_true(lose_and_compare(&tiny, &recoveries) < 1e-3);
        assert_int_equal(fake.reopened, 1);
        assert_int_equal(recoveries.count, 1);
    }
    tiny_free(&tiny);
}

static void nodes_lost_while_recovering_are_recovered_from_too(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    expect_from_the_worker_alone(&tiny);
    for (uint64_t from = 0; from < 300; from += 70) {
        struct gw_recoveries recoveries;
        fake = (struct gw_remote){
            .ack_every = 1, .lose_at = 150, .lose_again = 3, .lost_from = from, .lost_to = 350};
        assert_true(lose_and_compare(&tiny, &recoveries) < 1e-3);
        assert_int_equal(fake.recoveries, 4);
        assert_int_equal(recoveries.count, 1);
    }
    tiny_free(&tiny);
}

static void read_all(struct gw_sequence *sequence, float *k_out, float *v_out)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint64_t at = (uint64_t)layer * PROMPT * WIDTH;
        assert_int_equal(gw_sequence_read(sequence, layer, 0, PROMPT, k_out + at, v_out + at),
                         PP_OK);
    }
}

static void rows_of_a_node_lost_while_they_are_read_are_read_all_the_same(void **state)
{
    (void)state;
    static float k[2][LAYERS * PROMPT * WIDTH], v[2][LAYERS * PROMPT * WIDTH];
    struct tiny tiny = tiny_new(64, PP_F32);
    for (uint64_t at = 1; at <= LAYERS; at++) {
        fake = (struct gw_remote){.ack_every = 1, .lost_from = 100, .lost_to = 250};
        struct gw_sequence *sequence = open_kept(&tiny, &fake, 0);
        assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, PROMPT, 0, NULL, NULL, NULL),
                         PP_OK);
        read_all(sequence, k[0], v[0]);
        fake.lose_at = at;
        read_all(sequence, k[1], v[1]);
        assert_int_equal(fake.recoveries, 1);
        assert_true(largest_difference(k[0], k[1], LAYERS * PROMPT * WIDTH) < 1e-4);
        assert_true(largest_difference(v[0], v[1], LAYERS * PROMPT * WIDTH) < 1e-4);
        fake.lose_at = 1; /* and every time after that */
        fake.lose_again = 100;
        assert_int_equal(gw_sequence_read(sequence, 0, 0, PROMPT, k[1], v[1]), PP_UNAVAILABLE);
        gw_sequence_close(sequence);
    }
    tiny_free(&tiny);
}

static void a_failure_that_is_no_lost_node_ends_the_sequence(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    fake = (struct gw_remote){.ack_every = 1};
    struct gw_sequence *sequence = open_kept(&tiny, &fake, 0);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, PROMPT, 0, NULL, NULL, NULL), PP_OK);
    fake.answer = PP_NON_FINITE;
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_NON_FINITE);
    assert_int_equal(fake.recoveries, 0);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_span_is_computed_again_behind_what_others_hold),
        cmocka_unit_test(what_is_computed_again_does_not_depend_on_chunks),
        cmocka_unit_test(a_recovery_asks_for_as_many_rows_as_nodes_answer_in_time),
        cmocka_unit_test(a_node_lost_in_prefill_makes_it_start_again),
        cmocka_unit_test(nodes_lost_while_recovering_are_recovered_from_too),
        cmocka_unit_test(rows_of_a_node_lost_while_they_are_read_are_read_all_the_same),
        cmocka_unit_test(a_failure_that_is_no_lost_node_ends_the_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
