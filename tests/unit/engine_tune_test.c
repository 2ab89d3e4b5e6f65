/*
 * A sequence tuned behind its prefill: nodes are asked the prompt's own last queries, and for as
 * much error as the merge leaves of it; layers are then attended with what they propose, also when
 * a node is lost or silent meanwhile, and as before where somebody says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine_fixture.h"

#define PROMPT 300u
#define ERROR  0.05f

static const struct gw_remote_tuning proposes = {
    .estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.25f},
    .queries = 8,
    .rows_share = 0.25f,
    .error = 0.04f,
    .error_worst = 0.06f,
    .rows_share_now = 0.08f,
    .error_now = 0.09f};

static struct gw_sequence *open_prefilled(struct tiny *tiny, struct pp_estimator estimator,
                                          uint32_t kept, uint32_t tokens)
{
    struct gw_sequence_options options = {.remote = &fake,
                                          .estimator = estimator,
                                          .tokens_expected = TOKENS,
                                          .tokens_kept = kept,
                                          .tune = true};
    struct gw_sequence *sequence;
    assert_int_equal(gw_sequence_open(tiny->engine, &options, &sequence), PP_OK);
    assert_int_equal(gw_sequence_prefill(sequence, tiny->ids, tokens, 0, NULL, NULL, NULL), PP_OK);
    return sequence;
}

static const struct pp_estimator sketch = {.kind = PP_SKETCH, .bits = 2};
static const struct pp_estimator own = {.kind = PP_ESTIMATOR_NONE};

static void step(struct tiny *tiny, struct gw_sequence *sequence, struct gw_step_stats *stats)
{
    uint32_t id = tiny->ids[gw_sequence_length(sequence)];
    assert_int_equal(gw_sequence_step(sequence, id, NULL, stats), PP_OK);
}

static void layers_are_attended_with_what_is_proposed(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_BF16);
    fake = (struct gw_remote){.ack_every = 1, .rel_err = 0.1f, .tuning = proposes};
    struct gw_sequence *sequence = open_prefilled(&tiny, sketch, 0, PROMPT);
    struct gw_step_stats stats;
    assert_null(gw_sequence_tuning(sequence, 0));
    assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
    assert_int_equal(fake.tunes, LAYERS);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct gw_tuning *tuning = gw_sequence_tuning(sequence, layer);
        /* What the merge leaves of the nodes' error is what they are asked for more of. */
        double left = (double)(tuning->error / proposes.error);
        assert_true(left > 0.0 && fabs(left - 1.0) > 1e-3);
        assert_true(fabs((double)fake.tune_error[layer] * left / (double)ERROR - 1.0) < 1e-5);
        assert_int_equal(tuning->used.kind, PP_SKETCH);
        assert_true(tuning->used.rows_share == 0.25f && tuning->queries == 8);
    }
    step(&tiny, sequence, &stats);
    assert_int_equal(fake.asked, PP_SKETCH);
    assert_true(fake.share_asked == 0.25f);
    gw_sequence_use(sequence, &own, false);
    step(&tiny, sequence, &stats);
    assert_int_equal(fake.asked, PP_ESTIMATOR_NONE);
    struct pp_estimator named = {.kind = PP_SKETCH, .rows_share = 0.5f};
    gw_sequence_use(sequence, &named, true);
    step(&tiny, sequence, &stats);
    assert_true(fake.share_asked == 0.5f);
    gw_sequence_use(sequence, &own, true);
    step(&tiny, sequence, &stats);
    assert_true(fake.share_asked == 0.25f);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void dense_layers_are_attended_exactly_and_count_as_none_that_samples(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_BF16);
    fake = (struct gw_remote){.ack_every = 1, .rel_err = 0.1f, .tuning = proposes};
    fake.tuning.dense = true;
    struct gw_sequence *sequence = open_prefilled(&tiny, sketch, 0, PROMPT);
    struct gw_step_stats stats;
    assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
    step(&tiny, sequence, &stats);
    assert_int_equal(fake.asked, PP_EXACT);
    assert_int_equal(stats.attends, LAYERS);
    assert_int_equal(stats.attends_estimated, 0);
    gw_sequence_use(sequence, &own, false);
    step(&tiny, sequence, &stats);
    assert_int_equal(stats.attends_estimated, 1); /* the fake's layer 1 */
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void lsh_stays_as_it_was_opened_or_is_attended_exactly(void **state)
{
    (void)state;
    static const struct pp_estimator lsh = {.kind = PP_LSH, .k = 10, .l = 150, .t = 2};
    struct tiny tiny = tiny_new(128, PP_BF16);
    for (uint32_t i = 0; i < 2; i++) {
        fake = (struct gw_remote){.ack_every = 1, .tuning = proposes};
        fake.tuning.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 8, .l = 98, .t = 3};
        fake.tuning.error_now = i == 0 ? 0.03f : 0.045f; /* within ERROR / 1.3, or not */
        struct gw_sequence *sequence = open_prefilled(&tiny, lsh, 0, PROMPT);
        assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
        const struct gw_tuning *tuning = gw_sequence_tuning(sequence, 1);
        assert_int_equal(tuning->used.kind, i == 0 ? PP_ESTIMATOR_NONE : PP_EXACT);
        assert_int_equal(tuning->proposed.l, 98);
        step(&tiny, sequence, NULL);
        assert_int_equal(fake.asked, i == 0 ? PP_ESTIMATOR_NONE : PP_EXACT);
        gw_sequence_close(sequence);
    }
    tiny_free(&tiny);
}

/* The last of the late queries is that of the prompt's last token, or of the one in front of those
 * that are kept; whatever chunks the prefill has. */
static void nodes_are_asked_the_prompts_own_queries(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {7, 128, 512};
    for (uint32_t i = 0; i < 3; i++) {
        struct tiny tiny = tiny_new(chunks[i], PP_F32);
        for (uint32_t kept = 0; kept < 50; kept += 49) {
            float q[LAYERS][48];
            fake = (struct gw_remote){.ack_every = 1, .tuning = proposes};
            struct gw_sequence *sequence = open_prefilled(&tiny, sketch, kept, PROMPT + kept);
            assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
            assert_int_equal(fake.attends, LAYERS * 8);
            memcpy(q, fake.q_asked, sizeof(q));
            gw_sequence_close(sequence);
            sequence = open_prefilled(&tiny, sketch, 0, PROMPT - 1);
            step(&tiny, sequence, NULL);
            assert_true(largest_difference(q[0], fake.q_asked[0], LAYERS * 48) < 1e-3);
            gw_sequence_close(sequence);
        }
        tiny_free(&tiny);
    }
}

static void layers_that_nodes_are_silent_of_are_asked_again_or_stay(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_BF16);
    static const uint64_t silent[] = {1, LAYERS + 1, 1000};
    for (uint32_t i = 0; i < 3; i++) {
        fake = (struct gw_remote){.ack_every = 1, .tuning = proposes, .silent = silent[i]};
        struct gw_sequence *sequence = open_prefilled(&tiny, sketch, 0, PROMPT);
        assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
        assert_int_equal(fake.tunes, i < 2 ? LAYERS + silent[i] : 3 * LAYERS);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            const struct gw_tuning *tuning = gw_sequence_tuning(sequence, layer);
            assert_int_equal(tuning->used.kind, i < 2 ? PP_SKETCH : PP_ESTIMATOR_NONE);
        }
        step(&tiny, sequence, NULL);
        gw_sequence_close(sequence);
    }
    tiny_free(&tiny);
}

static void a_node_lost_while_tuning_is_recovered_from(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_F32);
    for (uint64_t at = 1; at <= LAYERS * 8; at += 5) {
        struct gw_recoveries recoveries;
        fake = (struct gw_remote){.ack_every = 1, .tuning = proposes};
        struct gw_sequence *sequence = open_prefilled(&tiny, sketch, 0, PROMPT);
        fake.lose_at = at;
        fake.lost_from = 50;
        fake.lost_to = UINT64_MAX;
        assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
        gw_sequence_recoveries(sequence, &recoveries);
        assert_int_equal(recoveries.count, 1);
        assert_int_equal(gw_sequence_tuning(sequence, 0)->used.kind, PP_SKETCH);
        assert_int_equal(gw_sequence_tuning(sequence, 1)->used.kind, PP_SKETCH);
        step(&tiny, sequence, NULL);
        assert_true(fake.share_asked == 0.25f);
        gw_sequence_close(sequence);
    }
    tiny_free(&tiny);
}

static bool stop_at_once(void *context, enum gw_phase phase, uint64_t done, uint64_t total)
{
    (void)context;
    assert_int_equal(phase, GW_PHASE_TUNE);
    assert_true(done == 1 && total == LAYERS);
    return false;
}

static void nothing_to_tune_is_no_error_and_senseless_errors_are(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_BF16);
    fake = (struct gw_remote){.ack_every = 1, .tuning = proposes};
    struct gw_sequence *sequence = open_prefilled(&tiny, sketch, 0, 60); /* nothing leaves */
    assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
    assert_int_equal(fake.tunes, 0);
    assert_null(gw_sequence_tuning(sequence, 0));
    const float wrong[] = {0.0f, -1.0f, 1.5f, NAN};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(gw_sequence_tune(sequence, wrong[i], NULL, NULL), PP_INVALID_ARGUMENT);
    }
    gw_sequence_close(sequence);
    sequence = open_prefilled(&tiny, sketch, 0, PROMPT);
    assert_int_equal(gw_sequence_tune(sequence, ERROR, stop_at_once, NULL), PP_CANCELLED);
    gw_sequence_close(sequence);
    sequence = open_kept(&tiny, &fake, 0); /* exact */
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, PROMPT, 0, NULL, NULL, NULL), PP_OK);
    fake.tunes = 0;
    assert_int_equal(gw_sequence_tune(sequence, ERROR, NULL, NULL), PP_OK);
    assert_int_equal(fake.tunes, 0);
    step(&tiny, sequence, NULL);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_attended_with_what_is_proposed),
        cmocka_unit_test(dense_layers_are_attended_exactly_and_count_as_none_that_samples),
        cmocka_unit_test(lsh_stays_as_it_was_opened_or_is_attended_exactly),
        cmocka_unit_test(nodes_are_asked_the_prompts_own_queries),
        cmocka_unit_test(layers_that_nodes_are_silent_of_are_asked_again_or_stay),
        cmocka_unit_test(a_node_lost_while_tuning_is_recovered_from),
        cmocka_unit_test(nothing_to_tune_is_no_error_and_senseless_errors_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
