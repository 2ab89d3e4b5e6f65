/*
 * Steps of several sequences at once: each gets what it gets alone, whatever becomes of the others,
 * in one micro-batch or in two.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpu-worker/engine/engine_state.h"
#include "tests/unit/engine_fixture.h"

#define FOUR  4u
#define STEPS 66u

/* Where the text of each begins: no two say the same. */
static const uint32_t prompts[GW_BATCH_MAX] = {300, 68, 1,  420, 150, 77, 500, 69,
                                               90,  70, 12, 333, 81,  64, 128, 254};

static float alone[GW_BATCH_MAX][STEPS + 1][VOCAB], together[GW_BATCH_MAX][STEPS + 1][VOCAB];

static struct gw_sequence *open_one(struct tiny *tiny, uint32_t index)
{
    return open_of_batch(tiny, index, prompts[index], STEPS);
}

static uint32_t token_of(const struct tiny *tiny, uint32_t index, uint32_t step)
{
    return tiny->ids[index + prompts[index] + step];
}

static double errors_mean(const struct gw_sequence *sequence)
{
    const struct gw_errors *errors = gw_sequence_errors(sequence);
    return errors == NULL ? 0.0 : gw_errors_summary(errors, GW_ERRORS_ALL, GW_ERRORS_ALL).mean;
}

static void run_alone(struct tiny *tiny, uint32_t count, double *errors_out)
{
    for (uint32_t index = 0; index < count; index++) {
        struct gw_sequence *sequence = open_one(tiny, index);
        for (uint32_t i = 0; i < STEPS; i++) {
            assert_int_equal(
                gw_sequence_step(sequence, token_of(tiny, index, i), alone[index][i], NULL), PP_OK);
        }
        errors_out[index] = errors_mean(sequence);
        gw_sequence_close(sequence);
    }
}

static void step_all(struct tiny *tiny, struct gw_sequence **sequences, uint32_t count, uint32_t i,
                     struct gw_step *steps_out)
{
    for (uint32_t index = 0; index < count; index++) {
        steps_out[index] = (struct gw_step){.sequence = sequences[index],
                                            .id = token_of(tiny, index, i),
                                            .logits_out = together[index][i]};
    }
    assert_int_equal(gw_engine_step(tiny->engine, steps_out, count), PP_OK);
}

static void run_together(struct tiny *tiny, uint32_t count, double *errors_out)
{
    struct gw_sequence *sequences[GW_BATCH_MAX];
    struct gw_step steps[GW_BATCH_MAX];
    for (uint32_t index = 0; index < count; index++) {
        sequences[index] = open_one(tiny, index);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        step_all(tiny, sequences, count, i, steps);
        for (uint32_t index = 0; index < count; index++) {
            uint64_t there = steps[index].stats.keys_held / 2; /* the fake reports 2 heads */
            assert_int_equal(steps[index].status, PP_OK);
            assert_int_equal(steps[index].stats.keys_local / 2 + there,
                             (uint64_t)(prompts[index] + i + 1) * LAYERS);
        }
    }
    for (uint32_t index = 0; index < count; index++) {
        errors_out[index] = errors_mean(sequences[index]);
        assert_int_equal(gw_sequence_length(sequences[index]), prompts[index] + STEPS);
        gw_sequence_close(sequences[index]);
    }
}

/* How far the logits of a batch are from those of its sequences alone. */
static double compare(enum pp_dtype dtype, uint32_t count, uint32_t micro_batches)
{
    struct tiny tiny = tiny_new(64, dtype);
    double errors_alone[GW_BATCH_MAX], errors_together[GW_BATCH_MAX], worst = 0.0;
    fake = (struct gw_remote){.ack_every = 1, .rel_err = 0.25f};
    run_alone(&tiny, count, errors_alone);
    gw_engine_micro_batches(tiny.engine, micro_batches);
    run_together(&tiny, count, errors_together);
    assert_true(errors_alone[1] > 0.0);
    for (uint32_t index = 0; index < count; index++) {
        double difference = largest_difference(together[index][0], alone[index][0], STEPS * VOCAB);
        worst = difference > worst ? difference : worst;
        assert_true(fabs(errors_alone[index] - errors_together[index]) <
                    1e-4 * errors_alone[index] + 1e-12);
    }
    tiny_free(&tiny);
    return worst;
}

static void each_of_a_few_gets_bit_for_bit_what_it_gets_alone(void **state)
{
    (void)state;
    for (uint32_t micro_batches = 1; micro_batches <= 2; micro_batches++) {
        assert_true(compare(PP_F32, 2, micro_batches) == 0.0);
        assert_true(compare(PP_F32, 6, micro_batches) == 0.0);
        assert_true(compare(PP_I8, FOUR, micro_batches) == 0.0);
    }
}

static void each_of_many_gets_the_sums_of_the_same_products(void **state)
{
    (void)state;
    double worst = compare(PP_F32, GW_BATCH_MAX, 1);
    printf("%u at once: %.2e\n", GW_BATCH_MAX, worst);
    assert_true(worst < 1e-4);
    worst = compare(PP_F32, GW_BATCH_MAX, 2);
    printf("in two micro-batches: %.2e\n", worst);
    assert_true(worst < 1e-4);
}

static void two_micro_batches_take_turns(void **state)
{
    (void)state;
    static const char *const expected[] = {"b0b0w0w0b1b1w1w1", "b0b0w0b1w0b1w1w1"};
    for (uint32_t micro_batches = 1; micro_batches <= 2; micro_batches++) {
        struct tiny tiny = tiny_new(64, PP_F32);
        fake = (struct gw_remote){.ack_every = 1};
        struct gw_sequence *sequences[2] = {open_one(&tiny, 0), open_one(&tiny, 3)};
        struct gw_step steps[2] = {{.sequence = sequences[0], .id = 1},
                                   {.sequence = sequences[1], .id = 2}};
        char events[32] = "";
        gw_engine_micro_batches(tiny.engine, micro_batches);
        fake.events = events;
        assert_int_equal(gw_engine_step(tiny.engine, steps, 2), PP_OK);
        assert_string_equal(events, expected[micro_batches - 1]);
        gw_sequence_close(sequences[0]);
        gw_sequence_close(sequences[1]);
        tiny_free(&tiny);
    }
}

/* One of four loses a node at some call: the others get what they get alone, bit for bit. */
static void lose_one(struct tiny *tiny, uint64_t at, uint64_t lost_from)
{
    struct gw_sequence *sequences[FOUR];
    struct gw_step steps[FOUR];
    uint32_t recovered = 0;
    fake = (struct gw_remote){.ack_every = 1};
    for (uint32_t index = 0; index < FOUR; index++) {
        sequences[index] = open_one(tiny, index);
    }
    fake.lose_at = at;
    fake.lost_from = lost_from;
    fake.lost_to = UINT64_MAX;
    for (uint32_t i = 0; i < STEPS; i++) {
        step_all(tiny, sequences, FOUR, i, steps);
    }
    assert_int_equal(fake.recoveries, 1);
    for (uint32_t index = 0; index < FOUR; index++) {
        struct gw_recoveries recoveries;
        gw_sequence_recoveries(sequences[index], &recoveries);
        recovered += (uint32_t)recoveries.count;
        double difference = largest_difference(together[index][0], alone[index][0], STEPS * VOCAB);
        assert_true(difference <= (recoveries.count > 0 ? 1e-3 : 0.0));
        assert_int_equal(steps[index].status, PP_OK);
        assert_int_equal(gw_sequence_length(sequences[index]), prompts[index] + STEPS);
        gw_sequence_close(sequences[index]);
    }
    assert_int_equal(recovered, 1);
}

static void a_lost_node_is_recovered_from_and_the_others_go_on(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    double errors[FOUR];
    fake = (struct gw_remote){.ack_every = 1};
    run_alone(&tiny, FOUR, errors);
    for (uint32_t micro_batches = 1; micro_batches <= 2; micro_batches++) {
        gw_engine_micro_batches(tiny.engine, micro_batches);
        for (uint64_t at = 1; at < 8; at++) { /* every call of a step, and the next one's first */
            lose_one(&tiny, at, at * 7);
        }
        lose_one(&tiny, 100, 0);
    }
    tiny_free(&tiny);
}

static void what_ends_one_is_not_the_end_of_the_others(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    struct gw_sequence *sequences[FOUR];
    struct gw_step steps[FOUR];
    double errors[FOUR];
    fake = (struct gw_remote){.ack_every = 1};
    run_alone(&tiny, FOUR, errors);
    for (uint32_t index = 0; index < FOUR; index++) {
        sequences[index] = open_one(&tiny, index);
    }
    for (uint32_t i = 0; i < STEPS; i++) {
        sequences[0]->remote->refuses = i == 30 ? PP_NON_FINITE : PP_OK;
        step_all(&tiny, sequences, FOUR, i, steps);
        enum pp_status ended = i > 30 ? PP_FAILED_PRECONDITION : PP_NON_FINITE;
        assert_int_equal(steps[0].status, i < 30 ? PP_OK : ended);
        for (uint32_t index = i < 30 ? 0 : 1; index < FOUR; index++) {
            assert_int_equal(steps[index].status, PP_OK);
            assert_memory_equal(together[index][i], alone[index][i], sizeof(alone[index][i]));
        }
    }
    assert_int_equal(gw_sequence_length(sequences[0]), prompts[0] + 30);
    /* All have as many tokens as they said: none takes another, and a bad id is its own fault. */
    step_all(&tiny, sequences, FOUR, 0, steps);
    for (uint32_t index = 1; index < FOUR; index++) {
        assert_int_equal(steps[index].status, PP_OUT_OF_RANGE);
        gw_sequence_close(sequences[index]);
    }
    struct gw_sequence *fresh[2] = {open_one(&tiny, 0), open_one(&tiny, 1)};
    struct gw_step two[2] = {{.sequence = fresh[0], .id = VOCAB}, {.sequence = fresh[1], .id = 1}};
    assert_int_equal(gw_engine_step(tiny.engine, two, 2), PP_OK);
    assert_int_equal(two[0].status, PP_INVALID_ARGUMENT);
    assert_int_equal(two[1].status, PP_OK);
    assert_int_equal(gw_sequence_length(fresh[0]), prompts[0]);
    assert_int_equal(gw_sequence_step(fresh[0], 1, NULL, NULL), PP_OK);
    gw_sequence_close(fresh[0]);
    gw_sequence_close(fresh[1]);
    gw_sequence_close(sequences[0]);
    tiny_free(&tiny);
}

static void batches_that_make_no_sense_are_refused_and_run_nothing(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32), other = tiny_new(64, PP_F32);
    fake = (struct gw_remote){.ack_every = 1};
    struct gw_sequence *one = open_one(&tiny, 0), *foreign = open_kept(&other, NULL, 0);
    struct gw_step steps[GW_BATCH_MAX + 1] = {{.sequence = one, .id = 1},
                                              {.sequence = one, .id = 2}};
    assert_int_equal(gw_engine_step(tiny.engine, steps, 0), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_engine_step(tiny.engine, steps, GW_BATCH_MAX + 1), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_engine_step(tiny.engine, steps, 2), PP_INVALID_ARGUMENT);
    steps[1].sequence = foreign;
    assert_int_equal(gw_engine_step(tiny.engine, steps, 2), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sequence_length(one), prompts[0]);
    assert_int_equal(gw_sequence_length(foreign), 0);
    gw_sequence_close(one);
    gw_sequence_close(foreign);
    tiny_free(&tiny);
    tiny_free(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_of_a_few_gets_bit_for_bit_what_it_gets_alone),
        cmocka_unit_test(each_of_many_gets_the_sums_of_the_same_products),
        cmocka_unit_test(two_micro_batches_take_turns),
        cmocka_unit_test(a_lost_node_is_recovered_from_and_the_others_go_on),
        cmocka_unit_test(what_ends_one_is_not_the_end_of_the_others),
        cmocka_unit_test(batches_that_make_no_sense_are_refused_and_run_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
