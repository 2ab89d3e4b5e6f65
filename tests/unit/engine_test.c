/*
 * The engine over a tiny random model: prefill in any chunks, decode against prefill, and the laws
 * of hand-over against a remote of this file that attends exactly what it acknowledged, in f64, and
 * acknowledges as late as it likes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "gpu-worker/engine/engine.h"
#include "tests/unit/gguf_build.h"

#define SEED   4104u
#define VOCAB  100u
#define TOKENS 2100u
#define LAYERS 2u
#define WIDTH  16u /* kv heads x dim */

static const struct gguf_build_llama TINY = {LAYERS, 48, 6, 2, 96, VOCAB};

/* The remote of this file. */

struct gw_remote_sequence {
    struct gw_remote_sequence_config config;
    float *k[LAYERS], *v[LAYERS]; /* [TOKENS][WIDTH] */
    uint64_t given[LAYERS], acknowledged[LAYERS];
    struct gw_remote_attend asked;
    float q[6 * 8];
    bool in_flight;
};

struct gw_remote {
    uint64_t ack_every; /* held calls until a layer's rows are acknowledged; 0: at flush only */
    uint64_t held_calls;
    uint64_t flushes, attends, appends;
    enum pp_status answer;
    bool forget;
    float stretch; /* answers that are not asked for exactly are longer by this share */
};

static struct gw_remote fake;

enum pp_status gw_remote_sequence_open(struct gw_remote *remote,
                                       const struct gw_remote_sequence_config *config,
                                       struct gw_remote_sequence **sequence_out)
{
    assert_ptr_equal(remote, &fake);
    struct gw_remote_sequence *sequence = calloc(1, sizeof(*sequence));
    sequence->config = *config;
    for (uint32_t i = 0; i < LAYERS; i++) {
        sequence->k[i] = malloc(TOKENS * WIDTH * sizeof(float));
        sequence->v[i] = malloc(TOKENS * WIDTH * sizeof(float));
    }
    *sequence_out = sequence;
    return PP_OK;
}

void gw_remote_sequence_close(struct gw_remote_sequence *sequence)
{
    assert_false(sequence->in_flight);
    for (uint32_t i = 0; i < LAYERS; i++) {
        free(sequence->k[i]);
        free(sequence->v[i]);
    }
    free(sequence);
}

enum pp_status gw_remote_append(struct gw_remote_sequence *sequence, uint32_t layer, uint64_t start,
                                uint32_t count, const void *k, const void *v, bool bulk)
{
    (void)bulk;
    assert_int_equal(start, sequence->given[layer]); /* every token once, in order */
    enum pp_dtype dtype = sequence->config.shape.kv_dtype;
    pp_dtype_to_f32(dtype, k, (uint64_t)count * WIDTH, sequence->k[layer] + start * WIDTH);
    pp_dtype_to_f32(dtype, v, (uint64_t)count * WIDTH, sequence->v[layer] + start * WIDTH);
    sequence->given[layer] += count;
    fake.appends++;
    return PP_OK;
}

uint64_t gw_remote_held(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    struct gw_remote_sequence *mine = (struct gw_remote_sequence *)(uintptr_t)sequence;
    fake.held_calls++;
    if (fake.forget) {
        return 0;
    }
    if (fake.ack_every != 0 && fake.held_calls % fake.ack_every == 0) {
        mine->acknowledged[layer] = mine->given[layer];
    }
    return mine->acknowledged[layer];
}

enum pp_status gw_remote_flush(struct gw_remote_sequence *sequence)
{
    fake.flushes++;
    memcpy(sequence->acknowledged, sequence->given, sizeof(sequence->given));
    return PP_OK;
}

enum pp_status gw_remote_seal(struct gw_remote_sequence *sequence,
                              void (*progress)(void *context, uint64_t indexed, uint64_t total),
                              void *context)
{
    progress(context, sequence->given[0], sequence->given[0]);
    return PP_OK;
}

enum pp_status gw_remote_attend_begin(struct gw_remote_sequence *sequence,
                                      const struct gw_remote_attend *attend)
{
    assert_false(sequence->in_flight);
    assert_true(attend->held_tokens > 0);
    assert_true(attend->held_tokens <= sequence->acknowledged[attend->layer]);
    sequence->asked = *attend;
    sequence->in_flight = true;
    return PP_OK;
}

static void fake_attend_head(const struct gw_remote_sequence *sequence, uint32_t head,
                             struct gw_remote_answer *answer)
{
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t dim = shape->head_dim, kv_head = head / (shape->q_heads / shape->kv_heads);
    double top = -INFINITY, sum = 0.0, o[64] = {0};
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < sequence->asked.held_tokens; i++) {
            const float *k = sequence->k[sequence->asked.layer] + i * WIDTH + kv_head * dim;
            const float *v = sequence->v[sequence->asked.layer] + i * WIDTH + kv_head * dim;
            double score = 0.0;
            for (uint32_t j = 0; j < dim; j++) {
                score += (double)sequence->asked.q[head * dim + j] * (double)k[j];
            }
            score *= (double)shape->scale;
            top = pass == 0 && score > top ? score : top;
            double weight = pass == 0 ? 0.0 : exp(score - top);
            sum += weight;
            for (uint32_t j = 0; j < dim; j++) {
                o[j] += weight * (double)v[j];
            }
        }
    }
    double stretch = sequence->asked.estimator.kind == PP_EXACT ? 0.0 : (double)fake.stretch;
    for (uint32_t j = 0; j < dim; j++) {
        answer->o[head * dim + j] = (float)(o[j] / sum * (1.0 + stretch));
    }
    answer->lse[head] = (float)(top + log(sum));
}

enum pp_status gw_remote_attend_wait(struct gw_remote_sequence *sequence,
                                     struct gw_remote_answer *answer)
{
    assert_true(sequence->in_flight);
    sequence->in_flight = false;
    fake.attends++;
    if (fake.answer != PP_OK) {
        return fake.answer;
    }
    for (uint32_t head = 0; head < sequence->config.shape.q_heads; head++) {
        fake_attend_head(sequence, head, answer);
    }
    answer->keys_held = sequence->asked.held_tokens * 2;
    answer->keys_read = sequence->asked.held_tokens;
    answer->node_us = 3;
    answer->network_us = 5;
    answer->estimator_used = sequence->asked.layer == 1;
    return PP_OK;
}

const char *gw_remote_error(const struct gw_remote_sequence *sequence)
{
    (void)sequence;
    return fake.answer == PP_OK ? "" : "node b is gone";
}

void gw_remote_tokens_held(struct gw_remote_sequence *sequence, uint64_t *tokens_out)
{
    tokens_out[0] = sequence->acknowledged[0];
}

/* The model. */

struct tiny {
    struct gguf_build build;
    struct gw_gguf *gguf;
    struct gw_device *device;
    struct gw_engine *engine;
    uint32_t ids[TOKENS];
};

static struct tiny tiny_new(uint32_t chunk_tokens, enum pp_dtype dtype)
{
    struct tiny made = {0};
    char error[256];
    struct pp_rng rng = {.seed = SEED};
    gguf_build_begin(&made.build);
    gguf_build_llama_keys(&made.build, &TINY);
    uint64_t bytes = gguf_build_llama_tensors(&made.build, &TINY, NULL);
    gguf_build_data(&made.build, bytes);
    uint8_t *data = made.build.data + made.build.bytes - bytes;
    for (uint64_t i = 0; i < bytes; i += sizeof(float)) {
        float value = (float)pp_rng_normal(&rng) * 0.4f;
        memcpy(data + i, &value, sizeof(value));
    }
    assert_int_equal(
        gw_gguf_parse(made.build.data, made.build.bytes, error, sizeof(error), &made.gguf), PP_OK);
    assert_int_equal(gw_host_device_new(2, &made.device), PP_OK);
    struct gw_engine_config config = {.device = made.device,
                                      .gguf = made.gguf,
                                      .kv_dtype = dtype,
                                      .tokens_max = TOKENS,
                                      .chunk_tokens = chunk_tokens,
                                      .clock = pp_clock_system()};
    assert_int_equal(gw_engine_new(&config, error, sizeof(error), &made.engine), PP_OK);
    for (uint32_t i = 0; i < TOKENS; i++) {
        made.ids[i] = (uint32_t)(pp_rng_u64(&rng) % (VOCAB - 1));
    }
    return made;
}

static void tiny_free(struct tiny *tiny)
{
    gw_engine_destroy(tiny->engine);
    tiny->device->ops->destroy(tiny->device);
    gw_gguf_close(tiny->gguf);
    gguf_build_free(&tiny->build);
}

static struct gw_sequence *open_sequence(struct tiny *tiny, struct gw_remote *remote)
{
    struct gw_sequence *sequence;
    struct gw_sequence_options options = {.remote = remote,
                                          .estimator = {.kind = PP_EXACT},
                                          .step_seed = 1,
                                          .tokens_expected = TOKENS};
    assert_int_equal(gw_sequence_open(tiny->engine, &options, &sequence), PP_OK);
    return sequence;
}

static double largest_difference(const float *a, const float *b, uint32_t count)
{
    double most = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        most = difference > most ? difference : most;
    }
    return most;
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
        compare_with_local(PP_F32, prompts[i], prompts[i] + 1000);
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
    assert_true(fabs(step.error_sum / 6.0 - 0.25) < 1e-5);
    assert_int_equal(step.attends, LAYERS);
    assert_int_equal(step.keys_held, LAYERS * 200);
    assert_memory_equal(logits, expected, sizeof(logits));
    gw_sequence_close(compared);
    gw_sequence_close(plain);
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
        cmocka_unit_test(a_lost_node_ends_the_sequence_with_its_error),
        cmocka_unit_test(nodes_that_forget_what_they_acknowledged_are_found_out),
        cmocka_unit_test(a_step_accounts_for_time_and_keys),
        cmocka_unit_test(a_step_says_how_far_the_nodes_were_from_exact),
        cmocka_unit_test(what_makes_no_sense_is_refused_and_leaves_the_sequence_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
