/*
 * What steps on the CUDA device wait for, in the emulated driver: events and their own stream, and
 * nothing else; nodes are asked before what is attended here has run; and what waits and nodes of
 * graphs are for shows when the driver leaves them out. Prints the calls of a step, which are
 * counts: no GPU was at hand.
 */
#include "tests/cuda_emu/both.h"

#include "gpu-worker/engine/engine_state.h"
#include "tests/cuda_emu/emu_driver.h"
#include "tests/unit/engine_fixture.h"

#define PROMPT 90u
#define CHUNK  45u
#define STEPS  12u

static struct tiny tiny_begin(bool graphs)
{
    fake = (struct gw_remote){.ack_every = 1};
    cuda_test_seed(3);
    tiny_device_new = cuda_test_device_new;
    tiny_no_graphs = !graphs;
    return tiny_new(CHUNK, PP_F32);
}

static void tiny_end(struct tiny *tiny)
{
    tiny_free(tiny);
    tiny_device_new = NULL;
    tiny_no_graphs = false;
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

static struct gw_sequence *open_at(struct tiny *tiny, struct gw_remote *remote, uint32_t from)
{
    struct gw_sequence *sequence = open_kept(tiny, remote, 0);
    assert_int_equal(gw_sequence_prefill(sequence, tiny->ids + from, PROMPT, 0, NULL, NULL, NULL),
                     PP_OK);
    return sequence;
}

static void step(struct tiny *tiny, struct gw_sequence *sequence, uint32_t i, float *logits)
{
    assert_int_equal(gw_sequence_step(sequence, tiny->ids[500 + i], logits, NULL), PP_OK);
}

/* The logits of some steps of one sequence over nodes; graphs are captured in the first two. */
static void run_steps(struct tiny *tiny, float *logits)
{
    struct gw_sequence *sequence = open_at(tiny, &fake, 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        step(tiny, sequence, i, logits + (uint64_t)i * VOCAB);
    }
    gw_sequence_close(sequence);
}

static void expect_other_logits(const float *logits)
{
    float *other = malloc((uint64_t)STEPS * VOCAB * sizeof(float));
    assert_non_null(other);
    struct tiny tiny = tiny_begin(true);
    run_steps(&tiny, other);
    assert_memory_not_equal(logits, other, (uint64_t)STEPS * VOCAB * sizeof(float));
    free(other);
    tiny_end(&tiny);
}

static void waits_and_nodes_that_are_left_out_show(void **state)
{
    (void)state;
    const struct emu_machine good = emu_machine;
    float *logits = malloc((uint64_t)STEPS * VOCAB * sizeof(float));
    assert_non_null(logits);
    struct tiny tiny = tiny_begin(true);
    run_steps(&tiny, logits);
    tiny_end(&tiny);
    emu_machine.hasty_host = true; /* queries are sent before they are there */
    expect_other_logits(logits);
    emu_machine = good;
    emu_machine.sets_lost = true; /* positions, rows and lengths of another step */
    expect_other_logits(logits);
    emu_machine = good;
    free(logits);
}

static void a_graph_that_cannot_be_made_ends_the_step_with_an_error(void **state)
{
    (void)state;
    struct tiny tiny = tiny_begin(true);
    struct gw_sequence *sequence = open_at(&tiny, NULL, 0);
    emu_machine.capture_refused = true;
    step(&tiny, sequence, 0, NULL);
    assert_int_equal(gw_sequence_step(sequence, tiny.ids[501], NULL, NULL), PP_INTERNAL);
    emu_machine.capture_refused = false;
    assert_int_equal(gw_sequence_step(sequence, tiny.ids[501], NULL, NULL), PP_FAILED_PRECONDITION);
    gw_sequence_close(sequence);
    sequence = open_at(&tiny, NULL, 0); /* the device is as good as before */
    step(&tiny, sequence, 0, NULL);
    step(&tiny, sequence, 1, NULL);
    gw_sequence_close(sequence);
    tiny_end(&tiny);
}

static uint32_t asked, asked_beside;

static void note_pending(void)
{
    asked++;
    asked_beside += emu_pending() > 0 ? 1 : 0;
}

static void nodes_are_asked_before_what_is_attended_here_has_run(void **state)
{
    (void)state;
    for (uint32_t graphs = 0; graphs < 2; graphs++) {
        float logits[VOCAB];
        struct tiny tiny = tiny_begin(graphs == 1);
        struct gw_sequence *sequence = open_at(&tiny, &fake, 0);
        asked = asked_beside = 0;
        fake.asks = note_pending;
        for (uint32_t i = 0; i < 4; i++) {
            step(&tiny, sequence, i, logits);
        }
        fake.asks = NULL;
        assert_int_equal(asked, 4 * LAYERS);
        assert_int_equal(asked_beside, asked);
        gw_sequence_close(sequence);
        tiny_end(&tiny);
    }
}

static void a_step_waits_for_events_and_its_own_stream_only(void **state)
{
    (void)state;
    for (uint32_t graphs = 0; graphs < 2; graphs++) {
        float logits[VOCAB];
        struct tiny tiny = tiny_begin(graphs == 1);
        struct gw_sequence *sequence = open_at(&tiny, &fake, 0);
        uint64_t left = gw_sequence_left(sequence);
        step(&tiny, sequence, 0, logits);
        step(&tiny, sequence, 1, logits); /* the known rows of operations are captured */
        emu_counts = (struct emu_counts){0};
        for (uint32_t i = 2; i < 2 + STEPS; i++) {
            step(&tiny, sequence, i, logits);
        }
        assert_int_equal(gw_sequence_left(sequence), left);
        assert_int_equal(emu_counts.device_wide, 0);
        assert_int_equal(emu_counts.pageable, 0);
        assert_int_equal(emu_counts.stream_synchronizes, STEPS); /* logits */
        printf(
            "%s graphs, a step of %u layers: %.1f launches, %.1f copies, %.1f graphs, %.1f nodes "
            "set, %.1f waits for events\n",
            graphs == 1 ? "with" : "without", LAYERS, (double)emu_counts.launches / STEPS,
            (double)emu_counts.copies / STEPS, (double)emu_counts.graph_launches / STEPS,
            (double)emu_counts.node_sets / STEPS, (double)emu_counts.event_synchronizes / STEPS);
        assert_true(graphs == 0 ? emu_counts.launches >= 20 * STEPS
                                : emu_counts.launches <= 4 * STEPS);
        assert_int_equal(emu_counts.graph_launches, graphs == 1 ? STEPS * (2 * LAYERS + 1) : 0);
        gw_sequence_close(sequence);
        tiny_end(&tiny);
    }
}

/* Batches that leave are copied too, by the stream of the step: it is waited for, nothing else. */
static void tokens_that_leave_stop_nothing_but_the_steps_stream(void **state)
{
    (void)state;
    struct tiny tiny = tiny_begin(true);
    struct gw_sequence *sequence = open_at(&tiny, &fake, 0);
    uint64_t left = gw_sequence_left(sequence);
    step(&tiny, sequence, 0, NULL);
    step(&tiny, sequence, 1, NULL);
    emu_counts = (struct emu_counts){0};
    for (uint32_t i = 2; gw_sequence_left(sequence) == left; i++) {
        step(&tiny, sequence, i, NULL);
    }
    assert_int_equal(emu_counts.device_wide, 0);
    assert_int_equal(emu_counts.pageable, 0);
    assert_int_equal(emu_counts.stream_synchronizes, LAYERS);
    gw_sequence_close(sequence);
    tiny_end(&tiny);
}

/* Steps whose logits nobody wants are not waited for; a sequence that is closed then is. */
static void memory_of_a_closed_sequence_is_written_by_nobody(void **state)
{
    (void)state;
    struct tiny tiny = tiny_begin(true);
    const struct gw_device_ops *ops = tiny.device->ops;
    for (uint64_t seed = 0; seed < 10; seed++) {
        struct gw_sequence *sequence = open_at(&tiny, NULL, 0);
        uint64_t bytes = sequence->row_capacity * sequence->row_bytes;
        uint8_t *pattern = malloc(bytes);
        void *blocks[2 * LAYERS];
        assert_non_null(pattern);
        memset(pattern, 0x5a, bytes);
        cuda_test_seed(seed);
        step(&tiny, sequence, 0, NULL);
        gw_sequence_close(sequence);
        for (uint32_t i = 0; i < 2 * LAYERS; i++) {
            blocks[i] = both_put(tiny.device, pattern, bytes);
        }
        assert_int_equal(ops->synchronize(tiny.device, tiny.engine->stream), PP_OK);
        for (uint32_t i = 0; i < 2 * LAYERS; i++) {
            uint8_t *found = both_get(tiny.device, blocks[i], bytes);
            assert_memory_equal(found, pattern, bytes);
            free(found);
        }
        free(pattern);
    }
    tiny_end(&tiny);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(waits_and_nodes_that_are_left_out_show, both_setup),
        cmocka_unit_test_setup(a_graph_that_cannot_be_made_ends_the_step_with_an_error, both_setup),
        cmocka_unit_test_setup(nodes_are_asked_before_what_is_attended_here_has_run, both_setup),
        cmocka_unit_test_setup(a_step_waits_for_events_and_its_own_stream_only, both_setup),
        cmocka_unit_test_setup(tokens_that_leave_stop_nothing_but_the_steps_stream, both_setup),
        cmocka_unit_test_setup(memory_of_a_closed_sequence_is_written_by_nobody, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
