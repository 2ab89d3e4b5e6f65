/*
 * The engine over a tiny random model: prefill in any chunks, decode against prefill, and the laws
 * of hand-over against a remote that acknowledges as late as it likes.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "gpu-worker/engine/engine_state.h"
#include "tests/unit/engine_fixture.h"

static struct gw_sequence *open_sequence(struct tiny *tiny, struct gw_remote *remote)
{
    return open_kept(tiny, remote, 0);
}

static void last_logits(struct tiny *tiny, uint32_t count, float *logits_out)
{
    struct gw_sequence *sequence = open_sequence(tiny, NULL);
    assert_int_equal(gw_sequence_prefill(sequence, tiny->ids, count, 1, logits_out, NULL, NULL),
                     PP_OK);
    assert_int_equal(gw_sequence_length(sequence), count);
    gw_sequence_close(sequence);
}

static void prefill_in_any_chunks_gives_the_same_last_logits(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {2048, 512, 100, 1};
    float logits[4][VOCAB], other[VOCAB];
    for (uint32_t i = 0; i < 4; i++) {
        struct tiny tiny = tiny_new(chunks[i], PP_F32);
        tiny.ids[10] = VOCAB - 1; /* the sentinel: nowhere else in the text */
        last_logits(&tiny, 2048, logits[i]);
        tiny.ids[10] = 0;
        if (i == 0) {
            last_logits(&tiny, 2048, other);
        }
        tiny_free(&tiny);
    }
    double seen = largest_difference(logits[0], other, VOCAB);
    for (uint32_t i = 1; i < 4; i++) {
        double difference = largest_difference(logits[0], logits[i], VOCAB);
        printf("chunk %u: %.2e, the sentinel moves logits by %.2e\n", chunks[i], difference, seen);
        assert_true(difference < 1e-3);
        assert_true(difference < seen / 5.0);
    }
}

static void stepping_gives_what_prefill_gives(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(64, PP_F32);
    static float all[40 * VOCAB];
    float logits[VOCAB];
    struct gw_sequence *whole = open_sequence(&tiny, NULL), *steps = open_sequence(&tiny, NULL);
    assert_int_equal(gw_sequence_prefill(whole, tiny.ids, 40, 40, all, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_prefill(steps, tiny.ids, 7, 1, logits, NULL, NULL), PP_OK);
    assert_true(largest_difference(logits, all + 6 * VOCAB, VOCAB) < 1e-4);
    for (uint32_t i = 7; i < 30; i++) {
        assert_int_equal(gw_sequence_step(steps, tiny.ids[i], logits, NULL), PP_OK);
        assert_true(largest_difference(logits, all + i * VOCAB, VOCAB) < 1e-4);
    }
    /* A second prefill goes on behind what is there. */
    assert_int_equal(gw_sequence_prefill(steps, tiny.ids + 30, 10, 1, logits, NULL, NULL), PP_OK);
    assert_true(largest_difference(logits, all + 39 * VOCAB, VOCAB) < 1e-4);
    gw_sequence_close(whole);
    gw_sequence_close(steps);
    tiny_free(&tiny);
}

/* Prefill of `prompt` tokens, then steps up to `count`, here and over the fake remote: equal. */
static void compare_with_local(enum pp_dtype dtype, uint32_t prompt, uint32_t count)
{
    struct tiny tiny = tiny_new(128, dtype);
    struct gw_sequence *local = open_sequence(&tiny, NULL), *over = open_sequence(&tiny, &fake);
    float expected[VOCAB], logits[VOCAB];
    double worst = 0.0;
    assert_int_equal(gw_sequence_prefill(local, tiny.ids, prompt, 1, expected, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_prefill(over, tiny.ids, prompt, 1, logits, NULL, NULL), PP_OK);
    assert_true(largest_difference(logits, expected, VOCAB) == 0.0);
    for (uint32_t i = prompt; i < count; i++) {
        struct gw_step_stats stats;
        assert_int_equal(gw_sequence_step(local, tiny.ids[i], expected, NULL), PP_OK);
        assert_int_equal(gw_sequence_step(over, tiny.ids[i], logits, &stats), PP_OK);
        double difference = largest_difference(logits, expected, VOCAB);
        worst = difference > worst ? difference : worst;
        /* Every token of every layer was attended once: here or there. */
        uint64_t there = stats.keys_held / 2; /* summed over layers; the fake reports 2 heads */
        assert_int_equal(stats.keys_local / 2 + there, (uint64_t)(i + 1) * LAYERS);
        assert_true(gw_sequence_left(over) + PP_SINK_TOKENS + PP_RECENT_TOKENS <= i + 1 ||
                    gw_sequence_left(over) == 0);
    }
    printf("prompt %u, %u tokens: %.2e\n", prompt, count, worst);
    assert_true(worst < 1e-3);
    gw_sequence_close(local);
    gw_sequence_close(over);
    tiny_free(&tiny);
}

static void tokens_are_counted_once_whenever_they_are_acknowledged(void **state)
{
    (void)state;
    static const uint64_t ack_every[] = {1, 7, 301, 0};
    static const uint32_t prompts[] = {300, 1, 68, 69};
    for (uint32_t i = 0; i < 4; i++) {
        fake = (struct gw_remote){.ack_every = ack_every[i]};
        compare_with_local(i == 1 ? PP_I8 : PP_F32, prompts[i], prompts[i] + 1000);
        assert_true(fake.appends >= 2 * (1000 / GW_LEAVE_TOKENS - 2));
        assert_true(fake.attends > 0);
    }
}

static void acknowledgements_that_never_come_are_waited_for_when_rows_are_full(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 0};
    compare_with_local(PP_F32, 100, 1500);
    /* 1,400 tokens, 512 of them may wait at a time. */
    assert_true(fake.flushes >= 2 && fake.flushes <= 6);
}

static void short_sequences_never_ask_the_nodes(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    compare_with_local(PP_BF16, 3, 100);
    assert_int_equal(fake.attends, 0);
    assert_int_equal(fake.appends, 0);
}

static uint64_t balanced_layers(struct tiny *tiny, enum pp_estimator_kind kind, bool balance,
                                uint32_t tokens)
{
    struct gw_sequence *sequence;
    float logits[VOCAB];
    struct gw_sequence_options options = {.remote = &fake,
                                          .estimator = {.kind = kind},
                                          .balance = balance,
                                          .tokens_expected = TOKENS};
    fake = (struct gw_remote){.ack_every = 1};
    assert_int_equal(gw_sequence_open(tiny->engine, &options, &sequence), PP_OK);
    assert_int_equal(gw_sequence_prefill(sequence, tiny->ids, tokens, 1, logits, NULL, NULL),
                     PP_OK);
    gw_sequence_close(sequence);
    return fake.balanced;
}

/* Removes a folder with its one file. */
static void empty_folder(const char *path)
{
    DIR *folder = opendir(path);
    assert_non_null(folder);
    struct dirent *entry;
    uint32_t files = 0;
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] != '.') {
            files++;
            assert_int_equal(unlinkat(dirfd(folder), entry->d_name, 0), 0);
        }
    }
    closedir(folder);
    assert_int_equal(files, 1);
    assert_int_equal(rmdir(path), 0);
}

static void a_long_prompt_is_measured_where_a_sketch_wants_it(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_BF16);
    assert_int_equal(balanced_layers(&tiny, PP_SKETCH, true, GW_BALANCE_TOKENS - 1), 0);
    assert_int_equal(balanced_layers(&tiny, PP_SKETCH, false, GW_BALANCE_TOKENS), 0);
    assert_int_equal(balanced_layers(&tiny, PP_LSH, true, GW_BALANCE_TOKENS), 0);
    assert_int_equal(balanced_layers(&tiny, PP_SKETCH, true, GW_BALANCE_TOKENS), LAYERS);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        double log_sum = 0.0;
        double apart = 0.0;
        for (uint32_t i = 0; i < WIDTH; i++) {
            log_sum += log((double)fake.balances[layer][i]);
            apart += fabs(log((double)fake.balances[layer][i]));
        }
        assert_true(fabs(log_sum) < 1e-4 && apart > 0.1);
    }
    tiny_free(&tiny);
}

static void balances_are_kept_for_later_starts_and_short_prompts(void **state)
{
    (void)state;
    static float measured[LAYERS][WIDTH];
    char folder[] = "/tmp/pigpen-balances-XXXXXX", inside[64];
    assert_non_null(mkdtemp(folder));
    snprintf(inside, sizeof(inside), "%s/kept", folder);
    for (uint32_t start = 0; start < 2; start++) {
        struct tiny tiny = tiny_new(128, PP_BF16);
        assert_int_equal(gw_engine_keep_balances(tiny.engine, inside), PP_OK);
        bool kept = start == 1;
        assert_int_equal(balanced_layers(&tiny, PP_SKETCH, true, 100), kept ? LAYERS : 0);
        assert_int_equal(balanced_layers(&tiny, PP_LSH, true, GW_BALANCE_TOKENS), 0);
        assert_int_equal(balanced_layers(&tiny, PP_SKETCH, true, GW_BALANCE_TOKENS), LAYERS);
        if (!kept) {
            memcpy(measured, fake.balances, sizeof(measured));
        }
        assert_memory_equal(fake.balances, measured, sizeof(measured));
        assert_int_equal(balanced_layers(&tiny, PP_SKETCH, true, 100), LAYERS);
        assert_memory_equal(fake.balances, measured, sizeof(measured));
        assert_int_equal(balanced_layers(&tiny, PP_SKETCH, false, GW_BALANCE_TOKENS), 0);
        tiny_free(&tiny);
    }
    empty_folder(inside);
    assert_int_equal(rmdir(folder), 0);
}

static void a_balance_is_the_fourth_root_of_the_ratio_of_moments(void **state)
{
    (void)state;
    enum { ROWS = 300, DIM = 8 };
    struct tiny tiny = tiny_new(128, PP_F32);
    struct gw_balance balance = {0};
    struct pp_rng rng = {.seed = 5};
    static float k[ROWS * WIDTH];
    assert_int_equal(gw_balance_init(&tiny.engine->heads, &balance), PP_OK);
    for (uint32_t i = 0; i < ROWS * WIDTH; i++) {
        k[i] = (float)pp_rng_normal(&rng) * (float)(1 + i % DIM) + 3.0f;
    }
    for (uint32_t i = 0; i < WIDTH; i++) {
        balance.q_squares[i] = i < DIM ? 1.0 + i : 0.0; /* nobody asks the second head */
    }
    assert_int_equal(gw_balance_measure(tiny.engine, &balance, k, ROWS), PP_OK);
    double expected[DIM];
    double mean = 0.0;
    double k_mean = 0.0;
    for (uint32_t d = 0; d < DIM; d++) {
        k_mean += balance.k_squares[d] / DIM;
    }
    for (uint32_t d = 0; d < DIM; d++) {
        /* About (1 + d)^2 ROWS around a mean of 3. */
        double about = (1.0 + d) * (1.0 + d) * ROWS;
        assert_true(balance.k_squares[d] > 0.7 * about && balance.k_squares[d] < 1.3 * about);
        expected[d] = pow((balance.k_squares[d] + 0.01 * k_mean) / (1.0 + d + 0.01 * 4.5), 0.25);
        mean += log(expected[d]) / DIM;
    }
    for (uint32_t d = 0; d < DIM; d++) {
        assert_true(fabs((double)balance.values[d] * exp(mean) / expected[d] - 1.0) < 1e-6);
        assert_true(balance.values[DIM + d] == 1.0f);
    }
    gw_balance_deinit(&balance);
    tiny_free(&tiny);
}

static void a_lost_node_ends_the_sequence_with_its_error(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence = open_sequence(&tiny, &fake);
    float logits[VOCAB];
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 200, 1, logits, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_step(sequence, 1, logits, NULL), PP_OK);
    assert_string_equal(gw_sequence_error(sequence), "");
    fake.answer = PP_UNAVAILABLE;
    assert_int_equal(gw_sequence_step(sequence, 1, logits, NULL), PP_UNAVAILABLE);
    assert_string_equal(gw_sequence_error(sequence), "node b is gone");
    fake.answer = PP_OK;
    assert_int_equal(gw_sequence_step(sequence, 1, logits, NULL), PP_FAILED_PRECONDITION);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void nodes_that_forget_what_they_acknowledged_are_found_out(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence = open_sequence(&tiny, &fake);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 200, 0, NULL, NULL, NULL), PP_OK);
    fake.forget = true;
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_SHORT_PART);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void a_step_accounts_for_time_and_keys(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence = open_sequence(&tiny, &fake);
    struct gw_step_stats step, sum = {0};
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 168, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_left(sequence), 100);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(gw_sequence_step(sequence, 1, NULL, &step), PP_OK);
        gw_step_stats_add(&sum, &step);
        assert_int_equal(step.keys_local, LAYERS * 2 * (69 + i));
    }
    assert_int_equal(sum.steps, 3);
    assert_int_equal(sum.attends, 3 * LAYERS);
    assert_int_equal(sum.attends_estimated, 3);
    assert_int_equal(sum.keys_held, 3 * LAYERS * 200);
    assert_int_equal(sum.keys_read, 3 * LAYERS * 100);
    assert_int_equal(sum.keys_held_q, 3 * LAYERS * 600);
    assert_int_equal(sum.keys_read_q, 3 * LAYERS * 200);
    assert_int_equal(sum.node_us, 3 * LAYERS * 3);
    assert_int_equal(sum.network_us, 3 * LAYERS * 5);
    assert_int_equal(sum.total_us, sum.device_us + sum.wait_us);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void a_step_says_how_far_the_nodes_were_from_exact(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1, .stretch = 0.25f};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence_options options = {
        .remote = &fake, .tokens_expected = 300, .compare_exact = true};
    struct gw_sequence *compared;
    struct gw_sequence *plain = open_sequence(&tiny, &fake);
    float logits[VOCAB], expected[VOCAB];
    struct gw_step_stats step;
    assert_int_equal(gw_sequence_open(tiny.engine, &options, &compared), PP_OK);
    assert_int_equal(gw_sequence_prefill(plain, tiny.ids, 168, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_prefill(compared, tiny.ids, 168, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_step(plain, 1, expected, &step), PP_OK);
    assert_int_equal(step.errors, 0);
    assert_int_equal(gw_sequence_step(compared, 1, logits, &step), PP_OK);
    /* The fake used the estimator in layer 1 only; comparing changes no answer and no account. */
    assert_int_equal(step.errors, 6);
    assert_int_equal(step.errors_targeted + step.errors_within, 0); /* none was asked */
    assert_true(fabs(step.error_sum / 6.0 - 0.25) < 1e-5);
    assert_int_equal(step.attends, LAYERS);
    assert_int_equal(step.keys_held, LAYERS * 200);
    assert_memory_equal(logits, expected, sizeof(logits));
    gw_sequence_close(compared);
    gw_sequence_close(plain);
    tiny_free(&tiny);
}

static void a_step_counts_the_errors_of_its_merged_answers(void **state)
{
    (void)state;
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 8), PP_OK);
    gw_engine_stats_init(&stats, &tiny.engine->stats);
    for (uint32_t covers = 0; covers < 2; covers++) {
        fake = (struct gw_remote){.ack_every = 1,
                                  .rel_err = 0.1f,
                                  .flags = GW_ANSWER_TARGET_MISSED,
                                  .stretch = covers == 1 ? 0.02f : 20.0f};
        struct gw_sequence_options options = {
            .remote = &fake,
            .estimator = {.kind = PP_SKETCH, .bits = 2, .target_error = 0.05f},
            .tokens_expected = 300,
            .errors = true,
            .compare_exact = true};
        struct gw_sequence *sequence;
        struct gw_step_stats step;
        assert_int_equal(gw_sequence_open(tiny.engine, &options, &sequence), PP_OK);
        assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 168, 0, NULL, NULL, NULL), PP_OK);
        assert_int_equal(gw_sequence_step(sequence, 1, NULL, &step), PP_OK);
        const struct gw_errors *errors = gw_sequence_errors(sequence);
        struct gw_error_summary all = gw_errors_summary(errors, GW_ERRORS_ALL, GW_ERRORS_ALL);
        assert_int_equal(all.count, LAYERS * 6);
        /* What was attended here has none, and the answer is less wrong for it. */
        assert_true(all.mean > 0.01 && (covers == 0 || all.mean < 0.2));
        const struct gw_engine_stats *series = &tiny.engine->stats;
        assert_int_equal(pp_stat_value(series->missed), LAYERS * (covers + 1));
        assert_int_equal(pp_stat_value(series->empty), 0);
        assert_true(pp_stat_value(series->rel_err) > 0.0);
        assert_int_equal(pp_stat_value(series->keys_held), 2 * 100 * LAYERS * (2 * covers + 1));
        assert_true(2.0 * pp_stat_value(series->keys_read) == pp_stat_value(series->keys_held));
        assert_int_equal(step.attends_missed, LAYERS);
        assert_true(fake.known); /* a target is for the merged answer: what is here was told */
        assert_int_equal(step.errors, LAYERS * 6); /* flagged ones are compared too */
        assert_int_equal(step.errors_estimated, LAYERS * 6);
        assert_int_equal(step.errors_covered, covers == 1 ? LAYERS * 6 : 0);
        assert_int_equal(step.errors_targeted, LAYERS * 6);
        assert_int_equal(step.errors_within, covers == 1 ? LAYERS * 6 : 0);
        static const struct pp_estimator exact = {.kind = PP_EXACT};
        fake.flags = 0;
        gw_sequence_use(sequence, &exact, false);
        assert_int_equal(gw_errors_summary(errors, GW_ERRORS_ALL, GW_ERRORS_ALL).count, 0);
        assert_int_equal(gw_sequence_step(sequence, 1, NULL, &step), PP_OK);
        assert_false(fake.known);
        all = gw_errors_summary(errors, GW_ERRORS_ALL, GW_ERRORS_ALL);
        assert_true(all.count == LAYERS * 6 && all.mean == 0.0);
        gw_sequence_close(sequence);
    }
    pp_stats_deinit(&stats);
    tiny_free(&tiny);
}

static void what_makes_no_sense_is_refused_and_leaves_the_sequence_alone(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence;
    float logits[VOCAB];
    struct gw_sequence_options options = {.tokens_expected = TOKENS + 1};
    assert_int_equal(gw_sequence_open(tiny.engine, &options, &sequence), PP_OUT_OF_RANGE);
    options.tokens_expected = 0;
    assert_int_equal(gw_sequence_open(tiny.engine, &options, &sequence), PP_OUT_OF_RANGE);
    options.tokens_expected = 10;
    assert_int_equal(gw_sequence_open(tiny.engine, &options, &sequence), PP_OK);
    const uint32_t bad[2] = {1, VOCAB};
    assert_int_equal(gw_sequence_prefill(sequence, bad, 2, 1, logits, NULL, NULL),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 0, 0, NULL, NULL, NULL),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 3, 4, logits, NULL, NULL),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 11, 1, logits, NULL, NULL),
                     PP_OUT_OF_RANGE);
    assert_int_equal(gw_sequence_step(sequence, VOCAB, logits, NULL), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 9, 1, logits, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_step(sequence, 1, logits, NULL), PP_OK);
    assert_int_equal(gw_sequence_step(sequence, 1, logits, NULL), PP_OUT_OF_RANGE);
    gw_sequence_close(sequence);
    sequence = open_sequence(&tiny, &fake);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 9, 1, logits, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 9, 1, logits, NULL, NULL),
                     PP_FAILED_PRECONDITION);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_in_any_chunks_gives_the_same_last_logits),
        cmocka_unit_test(stepping_gives_what_prefill_gives),
        cmocka_unit_test(tokens_are_counted_once_whenever_they_are_acknowledged),
        cmocka_unit_test(acknowledgements_that_never_come_are_waited_for_when_rows_are_full),
        cmocka_unit_test(short_sequences_never_ask_the_nodes),
        cmocka_unit_test(a_long_prompt_is_measured_where_a_sketch_wants_it),
        cmocka_unit_test(balances_are_kept_for_later_starts_and_short_prompts),
        cmocka_unit_test(a_balance_is_the_fourth_root_of_the_ratio_of_moments),
        cmocka_unit_test(a_lost_node_ends_the_sequence_with_its_error),
        cmocka_unit_test(nodes_that_forget_what_they_acknowledged_are_found_out),
        cmocka_unit_test(a_step_accounts_for_time_and_keys),
        cmocka_unit_test(a_step_counts_the_errors_of_its_merged_answers),
        cmocka_unit_test(a_step_says_how_far_the_nodes_were_from_exact),
        cmocka_unit_test(what_makes_no_sense_is_refused_and_leaves_the_sequence_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
