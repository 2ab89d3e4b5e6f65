/*
 * The engine over the CUDA device and a remote that stands in for the nodes: rows that leave the
 * device, and answers that are merged on it, give the logits of the host device; and steps give the
 * same bits with graphs as without, whatever sequences come and go.
 */
#include "tests/cuda_emu/both.h"

#include "gpu-worker/device/cuda/internal.h"
#include "gpu-worker/engine/engine_state.h"
#include "tests/unit/engine_draw.h"

#define PROMPT 150u
#define STEPS  150u
#define TURNS  12u
#define BATCH  3u

/* Logits of the prompt's last token and of every step. The first device is the host. */
static float *run(bool cuda, struct gw_remote *remote, enum pp_dtype dtype)
{
    tiny_device_new = cuda ? cuda_test_device_new : NULL;
    struct tiny tiny = tiny_new(64, dtype);
    struct gw_sequence *sequence = open_kept(&tiny, remote, 0);
    float *logits = malloc((STEPS + 1) * VOCAB * sizeof(float));
    assert_non_null(logits);
    assert_int_equal(gw_sequence_prefill(sequence, tiny.ids, PROMPT, 1, logits, NULL, NULL), PP_OK);
    for (uint32_t i = 0; i < STEPS; i++) {
        assert_int_equal(
            gw_sequence_step(sequence, tiny.ids[PROMPT + i], logits + (i + 1ull) * VOCAB, NULL),
            PP_OK);
    }
    gw_sequence_close(sequence);
    tiny_free(&tiny);
    tiny_device_new = NULL;
    return logits;
}

static void a_sequence_over_nodes_gives_the_hosts_logits(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 7};
    float *host = run(false, &fake, PP_F32), *cuda = run(true, &fake, PP_F32);
    double worst = largest_difference(host, cuda, (STEPS + 1) * VOCAB);
    printf("at most %.2e apart\n", worst);
    assert_true(fake.appends > 4);
    assert_true(worst < 1e-3);
    free(host);
    free(cuda);
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

/* What was handed over is what was computed: the K/V of a local run, bit for bit. */
static void rows_that_leave_are_those_of_a_local_sequence(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    tiny_device_new = cuda_test_device_new;
    struct tiny tiny = tiny_new(64, PP_F16);
    struct gw_sequence *local = open_kept(&tiny, NULL, 0), *over = open_kept(&tiny, &fake, 0);
    uint64_t bytes = PROMPT * over->row_bytes;
    uint8_t *rows[4];
    for (uint32_t i = 0; i < 4; i++) {
        rows[i] = malloc(bytes);
        assert_non_null(rows[i]);
    }
    assert_int_equal(gw_sequence_prefill(local, tiny.ids, PROMPT, 0, NULL, NULL, NULL), PP_OK);
    assert_int_equal(gw_sequence_prefill(over, tiny.ids, PROMPT, 0, NULL, NULL, NULL), PP_OK);
    assert_true(gw_sequence_left(over) > 0);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(gw_sequence_read(local, layer, 0, PROMPT, rows[0], rows[1]), PP_OK);
        assert_int_equal(gw_sequence_read(over, layer, 0, PROMPT, rows[2], rows[3]), PP_OK);
        assert_memory_equal(rows[0], rows[2], bytes);
        assert_memory_equal(rows[1], rows[3], bytes);
    }
    for (uint32_t i = 0; i < 4; i++) {
        free(rows[i]);
    }
    gw_sequence_close(local);
    gw_sequence_close(over);
    tiny_free(&tiny);
    tiny_device_new = NULL;
}

#define BATCH       3u
#define BATCH_STEPS 40u

/* Logits of every step of three sequences: at once, or each alone. */
static float *run_batch(bool cuda, bool at_once)
{
    static const uint32_t prompts[BATCH] = {150, 1, 100};
    tiny_device_new = cuda ? cuda_test_device_new : NULL;
    struct tiny tiny = tiny_new(64, PP_F32);
    struct gw_step steps[BATCH] = {{0}};
    float *logits = malloc((size_t)BATCH * BATCH_STEPS * VOCAB * sizeof(float));
    assert_non_null(logits);
    for (uint32_t i = 0; i < BATCH; i++) {
        steps[i].sequence = open_kept(&tiny, i == 1 ? NULL : &fake, 0);
        assert_int_equal(
            gw_sequence_prefill(steps[i].sequence, tiny.ids + i, prompts[i], 0, NULL, NULL, NULL),
            PP_OK);
    }
    for (uint32_t step = 0; step < BATCH_STEPS; step++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            steps[i].id = tiny.ids[i + prompts[i] + step];
            steps[i].logits_out = logits + ((size_t)i * BATCH_STEPS + step) * VOCAB;
        }
        for (uint32_t i = 0; i < BATCH; i += at_once ? BATCH : 1) {
            assert_int_equal(gw_engine_step(tiny.engine, steps + i, at_once ? BATCH : 1), PP_OK);
        }
        for (uint32_t i = 0; i < BATCH; i++) {
            assert_int_equal(steps[i].status, PP_OK);
        }
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        gw_sequence_close(steps[i].sequence);
    }
    tiny_free(&tiny);
    tiny_device_new = NULL;
    return logits;
}

static void several_sequences_at_once_give_the_hosts_logits(void **state)
{
    (void)state;
    fake = (struct gw_remote){.ack_every = 1};
    float *host = run_batch(false, false), *cuda = run_batch(true, true);
    double worst = largest_difference(host, cuda, BATCH * BATCH_STEPS * VOCAB);
    printf("at most %.2e apart\n", worst);
    assert_true(fake.attends > 0);
    assert_true(worst < 1e-3);
    free(host);
    free(cuda);
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

static void tokens_are_drawn_of_the_logits_of_the_device(void **state)
{
    (void)state;
    engine_draw_compare(cuda_test_device_new);
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

static struct gw_sequence *open_at(struct tiny *tiny, struct gw_remote *remote, uint32_t from)
{
    struct gw_sequence *sequence = open_kept(tiny, remote, 0);
    assert_int_equal(gw_sequence_prefill(sequence, tiny->ids + from, 90, 0, NULL, NULL, NULL),
                     PP_OK);
    return sequence;
}

static void step(struct tiny *tiny, struct gw_sequence *sequence, uint32_t i, float *logits)
{
    assert_int_equal(gw_sequence_step(sequence, tiny->ids[500 + i], logits, NULL), PP_OK);
}

/* Sequences by themselves in turns, one that is closed and another in its memory, one without
 * nodes, and all of them together. Logits [4 * TURNS + BATCH * TURNS][VOCAB]. */
#define RUN_ROWS ((4 + BATCH) * TURNS)
static void run_everything(struct tiny *tiny, float *logits)
{
    struct gw_sequence *each[BATCH];
    for (uint32_t i = 0; i < BATCH; i++) {
        each[i] = open_at(tiny, i == 2 ? NULL : &fake, 100 * i);
    }
    for (uint32_t i = 0; i < 2 * TURNS; i++, logits += VOCAB) {
        step(tiny, each[i % 3], i, logits);
    }
    gw_sequence_close(each[0]);
    each[0] = open_at(tiny, &fake, 400);
    for (uint32_t i = 0; i < 2 * TURNS; i++, logits += VOCAB) {
        step(tiny, each[i % 2], i, logits);
    }
    for (uint32_t i = 0; i < TURNS; i++, logits += (uint64_t)BATCH * VOCAB) {
        struct gw_step steps[BATCH];
        for (uint32_t j = 0; j < BATCH; j++) {
            steps[j] = (struct gw_step){.sequence = each[j],
                                        .id = tiny->ids[700 + i + j],
                                        .logits_out = logits + (uint64_t)j * VOCAB};
        }
        assert_int_equal(gw_engine_step(tiny->engine, steps, i < TURNS / 2 ? BATCH : BATCH - 1),
                         PP_OK);
        for (uint32_t j = 0; j < (i < TURNS / 2 ? BATCH : BATCH - 1); j++) {
            assert_int_equal(steps[j].status, PP_OK);
        }
    }
    for (uint32_t i = 0; i < BATCH; i++) {
        gw_sequence_close(each[i]);
    }
}

static void steps_with_graphs_give_the_bits_of_steps_without(void **state)
{
    (void)state;
    float *logits[2];
    for (uint32_t graphs = 0; graphs < 2; graphs++) {
        fake = (struct gw_remote){.ack_every = 1};
        tiny_device_new = cuda_test_device_new;
        tiny_no_graphs = graphs == 0;
        struct tiny tiny = tiny_new(45, PP_F32);
        const struct gw_cuda_graph_counts *counts = &gw_cuda_device(tiny.device)->graph_counts;
        logits[graphs] = calloc((uint64_t)RUN_ROWS * VOCAB, sizeof(float));
        assert_non_null(logits[graphs]);
        run_everything(&tiny, logits[graphs]);
        assert_int_equal(counts->launched > 100, graphs);
        assert_int_equal(counts->updated > counts->launched, graphs);
        tiny_free(&tiny);
    }
    assert_memory_equal(logits[0], logits[1], (uint64_t)RUN_ROWS * VOCAB * sizeof(float));
    free(logits[0]);
    free(logits[1]);
    tiny_device_new = NULL;
    tiny_no_graphs = false;
    assert_int_equal(cuda_test_bytes_taken(), 0);
}

int main(void)
{
    both_begin();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_sequence_over_nodes_gives_the_hosts_logits, both_setup),
        cmocka_unit_test_setup(several_sequences_at_once_give_the_hosts_logits, both_setup),
        cmocka_unit_test_setup(tokens_are_drawn_of_the_logits_of_the_device, both_setup),
        cmocka_unit_test_setup(rows_that_leave_are_those_of_a_local_sequence, both_setup),
        cmocka_unit_test_setup(steps_with_graphs_give_the_bits_of_steps_without, both_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
