/*
 * A sequence that goes back to a mark, and one that starts with rows from elsewhere: both go on as
 * if nothing else had ever been.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/engine_fixture.h"

#define STEPS_MAX 600u

static void run_steps(struct tiny *tiny, struct gw_sequence *sequence, uint32_t count,
                      float *logits_out)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = gw_sequence_length(sequence);
        assert_int_equal(
            gw_sequence_step(sequence, tiny->ids[at], logits_out + (uint64_t)i * VOCAB, NULL),
            PP_OK);
    }
}

/* Prefills `whole` tokens, goes back to `prompt`, takes `steps` steps twice: each time what a
 * sequence gives that was prefilled with `prompt` tokens only. */
static void compare_with_fresh(struct gw_remote *remote, uint32_t whole, uint32_t prompt,
                               uint32_t steps)
{
    static float expected[STEPS_MAX * VOCAB], logits[STEPS_MAX * VOCAB];
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *fresh = open_kept(&tiny, remote, 0);
    struct gw_sequence *back = open_kept(&tiny, remote, whole - prompt);
    assert_int_equal(gw_sequence_prefill(fresh, tiny.ids, prompt, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_prefill(back, tiny.ids, whole, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_mark(back, prompt), PP_OK);
    run_steps(&tiny, fresh, steps, expected);
    for (uint32_t round = 0; round < 3; round++) {
        assert_int_equal(gw_sequence_rewind(back), PP_OK);
        assert_int_equal(gw_sequence_length(back), prompt);
        run_steps(&tiny, back, steps, logits);
        assert_int_equal(gw_sequence_left(back), gw_sequence_left(fresh));
        double worst = largest_difference(logits, expected, steps * VOCAB);
        printf("%u of %u tokens, %u steps, round %u: %.2e\n", prompt, whole, steps, round, worst);
        assert_true(worst < 1e-3);
        /* Somewhere else in between: other tokens, other rows. */
        assert_int_equal(gw_sequence_step(back, VOCAB - 1, NULL, NULL), PP_OK);
    }
    gw_sequence_close(back);
    gw_sequence_close(fresh);
    tiny_free(&tiny);
}

static void a_rewound_sequence_goes_on_as_a_fresh_one(void **state)
{
    (void)state;
    compare_with_fresh(NULL, 200, 150, 60);
    fake = (struct gw_remote){.ack_every = 1};
    compare_with_fresh(&fake, 300, 236, 64);
    assert_true(fake.truncates > 0);
    fake = (struct gw_remote){.ack_every = 7};
    compare_with_fresh(&fake, 700, 300, 500); /* batches leave and are dropped */
    fake = (struct gw_remote){0};
    compare_with_fresh(&fake, 100, 3, 90); /* a mark within the sink; nothing has left */
}

static void a_mark_wants_tokens_that_are_still_here(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence = open_kept(&tiny, &fake, 10);
    assert_int_equal(gw_sequence_rewind(sequence), PP_FAILED_PRECONDITION);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 300, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_left(sequence), 300 - 4 - 64 - 10);
    assert_int_equal(gw_sequence_mark(sequence, 301), PP_OUT_OF_RANGE);
    assert_int_equal(gw_sequence_mark(sequence, 300 - 64 - 10 - 1), PP_OUT_OF_RANGE);
    assert_int_equal(gw_sequence_mark(sequence, 300 - 64 - 10), PP_OK);
    assert_int_equal(gw_sequence_mark(sequence, 290), PP_OK); /* the last mark counts */
    assert_int_equal(gw_sequence_rewind(sequence), PP_OK);
    assert_int_equal(gw_sequence_length(sequence), 290);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void a_node_lost_while_going_back_ends_the_sequence(void **state)
{
    (void)state;
    static float logits[70 * VOCAB];
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence = open_kept(&tiny, &fake, 0);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 200, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_mark(sequence, 200), PP_OK);
    run_steps(&tiny, sequence, 70, logits);
    fake.answer = PP_UNAVAILABLE;
    assert_int_equal(gw_sequence_rewind(sequence), PP_UNAVAILABLE);
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_FAILED_PRECONDITION);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

static void attends_ask_for_the_estimator_in_use(void **state)
{
    (void)state;
    static const struct pp_estimator exact = {.kind = PP_EXACT}, own = {.kind = PP_ESTIMATOR_NONE};
    fake = (struct gw_remote){.ack_every = 1};
    struct tiny tiny = tiny_new(128, PP_BF16);
    struct gw_sequence *sequence = open_kept(&tiny, &fake, 0);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 200, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_OK);
    assert_int_equal(fake.asked, PP_ESTIMATOR_NONE);
    gw_sequence_use(sequence, &exact, false);
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_OK);
    assert_int_equal(fake.asked, PP_EXACT);
    gw_sequence_use(sequence, &own, false);
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_OK);
    assert_int_equal(fake.asked, PP_ESTIMATOR_NONE);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
}

/* Rows of normal draws, the same for every asker. */
struct rows {
    float k[LAYERS][TOKENS * WIDTH], v[LAYERS][TOKENS * WIDTH];
    uint64_t next[LAYERS];
    enum pp_dtype dtype;
    uint32_t refused_layer;
};

static enum pp_status give_rows(void *context, uint32_t layer, uint64_t start, uint32_t count,
                                void *k_out, void *v_out)
{
    struct rows *rows = context;
    assert_int_equal(start, rows->next[layer]);
    if (layer == rows->refused_layer) {
        return PP_IO;
    }
    rows->next[layer] = start + count;
    uint64_t values = (uint64_t)count * WIDTH;
    pp_dtype_from_f32(rows->dtype, rows->k[layer] + start * WIDTH, values, k_out);
    pp_dtype_from_f32(rows->dtype, rows->v[layer] + start * WIDTH, values, v_out);
    return PP_OK;
}

static struct rows *rows_new(void)
{
    struct rows *rows = calloc(1, sizeof(*rows));
    struct pp_rng rng = {.seed = SEED + 1};
    assert_non_null(rows);
    rows->dtype = PP_F32;
    rows->refused_layer = LAYERS;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t i = 0; i < TOKENS * WIDTH; i++) {
            rows->k[layer][i] = (float)pp_rng_normal(&rng);
            rows->v[layer][i] = (float)pp_rng_normal(&rng);
        }
    }
    return rows;
}

static enum pp_status fill(struct gw_sequence *sequence, uint64_t count, struct rows *rows)
{
    const struct gw_fill from = {.count = count, .rows = give_rows, .context = rows};
    return gw_sequence_fill(sequence, &from);
}

static void filled_rows_are_attended_here_and_there_alike(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 4, 60, 68, 69, 1000};
    static float logits[3 * VOCAB], expected[3 * VOCAB];
    struct rows *rows = rows_new();
    struct tiny tiny = tiny_new(128, PP_F32);
    for (uint32_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        fake = (struct gw_remote){.ack_every = 1};
        struct gw_sequence *here = open_kept(&tiny, NULL, 0), *there = open_kept(&tiny, &fake, 0);
        assert_int_equal(fill(here, counts[i], rows), PP_OK);
        memset(rows->next, 0, sizeof(rows->next));
        assert_int_equal(fill(there, counts[i], rows), PP_OK);
        memset(rows->next, 0, sizeof(rows->next));
        assert_int_equal(gw_sequence_left(there), counts[i] > 68 ? counts[i] - 68 : 0);
        run_steps(&tiny, here, 3, expected);
        run_steps(&tiny, there, 3, logits);
        assert_true(largest_difference(logits, expected, 3 * VOCAB) < 1e-3);
        gw_sequence_close(there);
        gw_sequence_close(here);
    }
    tiny_free(&tiny);
    free(rows);
}

static void balances_go_to_the_layers_of_a_sketch_only(void **state)
{
    (void)state;
    static const struct pp_estimator_range second = {1, 1, {.kind = PP_SKETCH, .bits = 2}};
    static float balances[LAYERS * WIDTH];
    struct rows *rows = rows_new();
    struct tiny tiny = tiny_new(128, PP_F32);
    for (uint32_t i = 0; i < LAYERS * WIDTH; i++) {
        balances[i] = (float)(1 + i);
    }
    fake = (struct gw_remote){.ack_every = 1};
    const struct gw_sequence_options options = {.remote = &fake,
                                                .estimator = {.kind = PP_LSH},
                                                .ranges = &second,
                                                .range_count = 1,
                                                .balance = true,
                                                .tokens_expected = TOKENS};
    struct gw_sequence *sequence = NULL;
    assert_int_equal(gw_sequence_open(tiny.engine, &options, &sequence), PP_OK);
    const struct gw_fill from = {
        .count = 200, .rows = give_rows, .context = rows, .balances = balances};
    assert_int_equal(gw_sequence_fill(sequence, &from), PP_OK);
    assert_int_equal(fake.balanced, 1);
    assert_true(fake.balances[0][0] == 0.0f && fake.balances[1][0] == (float)(1 + WIDTH));
    gw_sequence_close(sequence);
    tiny_free(&tiny);
    free(rows);
}

static void check_rows_read(struct gw_sequence *sequence, const struct rows *rows, uint64_t start,
                            uint32_t count)
{
    static float k[TOKENS * WIDTH], v[TOKENS * WIDTH];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(gw_sequence_read(sequence, layer, start, count, k, v), PP_OK);
        assert_memory_equal(k, rows->k[layer] + start * WIDTH, count * WIDTH * sizeof(float));
        assert_memory_equal(v, rows->v[layer] + start * WIDTH, count * WIDTH * sizeof(float));
    }
}

static void rows_are_read_from_here_and_from_the_nodes(void **state)
{
    (void)state;
    static float row[WIDTH];
    struct rows *rows = rows_new();
    struct tiny tiny = tiny_new(128, PP_F32);
    for (uint32_t remote = 0; remote < 2; remote++) {
        fake = (struct gw_remote){.ack_every = 1};
        struct gw_sequence *sequence = open_kept(&tiny, remote == 1 ? &fake : NULL, 0);
        memset(rows->next, 0, sizeof(rows->next));
        assert_int_equal(fill(sequence, 1000, rows), PP_OK);
        check_rows_read(sequence, rows, 0, 1000);
        check_rows_read(sequence, rows, 0, 4);
        check_rows_read(sequence, rows, 3, 2);
        check_rows_read(sequence, rows, 4, 932);
        check_rows_read(sequence, rows, 935, 2);
        check_rows_read(sequence, rows, 936, 64);
        assert_int_equal(gw_sequence_read(sequence, 0, 1000, 1, row, row), PP_OUT_OF_RANGE);
        assert_int_equal(gw_sequence_read(sequence, 0, 999, 2, row, row), PP_OUT_OF_RANGE);
        assert_int_equal(gw_sequence_read(sequence, LAYERS, 0, 1, row, row), PP_OUT_OF_RANGE);
        gw_sequence_close(sequence);
    }
    tiny_free(&tiny);
    free(rows);
}

static void a_fill_that_fails_or_comes_late_is_refused(void **state)
{
    (void)state;
    struct rows *rows = rows_new();
    struct tiny tiny = tiny_new(128, PP_F32);
    fake = (struct gw_remote){.ack_every = 1};
    struct gw_sequence *sequence = open_kept(&tiny, &fake, 0);
    assert_int_equal(fill(sequence, 0, rows), PP_OUT_OF_RANGE);
    assert_int_equal(fill(sequence, TOKENS + 1, rows), PP_OUT_OF_RANGE);
    rows->refused_layer = 1;
    assert_int_equal(fill(sequence, 100, rows), PP_IO);
    assert_int_equal(gw_sequence_step(sequence, 1, NULL, NULL), PP_FAILED_PRECONDITION);
    gw_sequence_close(sequence);
    sequence = open_kept(&tiny, &fake, 0);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, 5, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(fill(sequence, 5, rows), PP_FAILED_PRECONDITION);
    gw_sequence_close(sequence);
    tiny_free(&tiny);
    free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rewound_sequence_goes_on_as_a_fresh_one),
        cmocka_unit_test(a_mark_wants_tokens_that_are_still_here),
        cmocka_unit_test(a_node_lost_while_going_back_ends_the_sequence),
        cmocka_unit_test(attends_ask_for_the_estimator_in_use),
        cmocka_unit_test(filled_rows_are_attended_here_and_there_alike),
        cmocka_unit_test(balances_go_to_the_layers_of_a_sketch_only),
        cmocka_unit_test(rows_are_read_from_here_and_from_the_nodes),
        cmocka_unit_test(a_fill_that_fails_or_comes_late_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
