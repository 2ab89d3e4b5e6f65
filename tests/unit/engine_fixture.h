/*
 * The engine over a tiny random model, and a remote of this file that attends exactly what it
 * acknowledged, in f64, and acknowledges as late as it likes. It stands in for gpu-worker/remote:
 * include it in one file of a program.
 */
#ifndef PIGPEN_TESTS_UNIT_ENGINE_FIXTURE_H
#define PIGPEN_TESTS_UNIT_ENGINE_FIXTURE_H

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
#ifndef LAYERS
#define LAYERS 2u
#endif
#define WIDTH      16u /* kv heads x dim */
#define TIMEOUT_US 1500000u

static const struct gguf_build_llama TINY = {LAYERS, 48, 6, 2, 96, VOCAB};

/* The remote of this file. */

struct gw_remote_sequence {
    struct gw_remote_sequence_config config;
    float *k[LAYERS], *v[LAYERS]; /* [TOKENS][WIDTH] */
    uint64_t given[LAYERS], acknowledged[LAYERS];
    uint64_t lacking[LAYERS], lacking_end; /* rows that a lost node took along */
    bool failed;
    struct gw_remote_attend asked;
    bool in_flight;
    enum pp_status refuses; /* its attends, but for PP_OK */
};

struct gw_remote {
    uint64_t ack_every; /* held calls until a layer's rows are acknowledged; 0: at flush only */
    uint64_t held_calls;
    uint64_t flushes, attends, appends, truncates, seals;
    enum pp_status answer;
    bool forget;
    enum pp_estimator_kind asked; /* by the last attend */
    uint64_t balanced;            /* layers that a balance came for */
    float balances[LAYERS][WIDTH];
    uint32_t flags;   /* of answers */
    bool known;       /* the last attend but for comparing told what is attended here */
    float rel_err;    /* that answers are published with, when it is asked for, but in exact ones */
    uint64_t lose_at; /* attends or appends till a node is lost; 0: never */
    uint64_t lost_from, lost_to; /* what it holds */
    uint64_t lose_again;         /* so often, soon after a recovery */
    uint64_t recoveries, reopened;
    uint64_t tunes, silent;
    float tune_error[LAYERS]; /* that the layer was asked for last */
    struct gw_remote_tuning tuning;
    float share_asked;         /* by the last attend */
    float q_asked[LAYERS][48]; /* by a layer's last */
    char *events;              /* the layer of each begin and wait: "b0w0b1w1"; NULL: not kept */
    uint64_t row_us;           /* what a row of an exact attend takes: too many are a node lost */
    uint32_t rows_asked_max;
    /* Where it is set, prefill signs: codes [TOKENS][kv head][l] of segments of so many tokens, and
     * centres [TOKENS][WIDTH] of which those of the segments' first tokens are set. */
    const struct pp_hash *hash;
    uint64_t segment_tokens;
    uint16_t *codes[LAYERS];
    float *centres[LAYERS];
    void (*asks)(void); /* called by each attend's begin; NULL: nothing is */
    float stretch;      /* answers that are not asked for exactly are longer by this share */
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

/* Whether the node is lost now, or was before. */
static bool fake_lost(struct gw_remote_sequence *sequence)
{
    if (fake.lose_at > 0 && --fake.lose_at == 0) {
        sequence->failed = true;
    }
    return sequence->failed;
}

/* Every token once, in order, but for those that were lost: they may come again. */
enum pp_status gw_remote_append(struct gw_remote_sequence *sequence, uint32_t layer, uint64_t start,
                                uint32_t count, const void *k, const void *v, bool bulk)
{
    (void)bulk;
    if (fake_lost(sequence)) {
        return PP_UNAVAILABLE;
    }
    enum pp_dtype dtype = sequence->config.shape.kv_dtype;
    uint32_t dim = sequence->config.shape.head_dim;
    uint64_t row = WIDTH / dim * pp_vector_bytes(dim, dtype);
    assert_true(start <= sequence->lacking[layer]);
    for (uint64_t i = start; i < start + count; i++) {
        if (i != sequence->lacking[layer]) {
            continue;
        }
        uint64_t at = (i - start) * row;
        pp_vectors_to_f32(dtype, dim, (const uint8_t *)k + at, WIDTH / dim,
                          sequence->k[layer] + i * WIDTH);
        pp_vectors_to_f32(dtype, dim, (const uint8_t *)v + at, WIDTH / dim,
                          sequence->v[layer] + i * WIDTH);
        sequence->lacking[layer] = i + 1 == sequence->lacking_end ? sequence->given[layer] : i + 1;
    }
    uint64_t end = sequence->lacking[layer];
    sequence->given[layer] = end > sequence->given[layer] ? end : sequence->given[layer];
    fake.appends++;
    return PP_OK;
}

bool gw_remote_recoverable(const struct gw_remote_sequence *sequence)
{
    return sequence->failed;
}

enum pp_status gw_remote_recover(struct gw_remote_sequence *sequence)
{
    if (!sequence->failed) {
        return fake.answer != PP_OK ? fake.answer : PP_FAILED_PRECONDITION;
    }
    sequence->failed = false;
    sequence->lacking_end = fake.lost_to;
    fake.recoveries++;
    if (fake.lose_again > 0) {
        fake.lose_again--;
        fake.lose_at = 2;
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint64_t end =
            fake.lost_to < sequence->given[layer] ? fake.lost_to : sequence->given[layer];
        for (uint64_t i = fake.lost_from * WIDTH; i < end * WIDTH; i++) {
            sequence->k[layer][i] = sequence->v[layer][i] = NAN;
        }
        if (fake.lost_from < sequence->given[layer]) {
            sequence->lacking[layer] = fake.lost_from;
            sequence->acknowledged[layer] = fake.lost_from;
        }
    }
    return PP_OK;
}

struct gw_lacking gw_remote_lacking(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    uint64_t begin = sequence->lacking[layer], end = sequence->given[layer];
    end = begin < end && sequence->lacking_end < end ? sequence->lacking_end : end;
    return (struct gw_lacking){begin, end};
}

void gw_remote_maintain(struct gw_remote_sequence *sequence)
{
    assert_false(sequence->in_flight || sequence->failed);
}

enum pp_status gw_remote_sequence_reopen(struct gw_remote_sequence **sequence)
{
    struct gw_remote_sequence *fresh = NULL;
    fake.reopened++;
    PP_TRY(gw_remote_sequence_open(&fake, &(*sequence)->config, &fresh));
    gw_remote_sequence_close(*sequence);
    *sequence = fresh;
    return PP_OK;
}

enum pp_status gw_remote_balance(struct gw_remote_sequence *sequence, uint32_t layer,
                                 const float *balance)
{
    assert_int_equal(sequence->given[layer], 0);
    memcpy(fake.balances[layer], balance, sizeof(fake.balances[layer]));
    fake.balanced++;
    return PP_OK;
}

const float *gw_remote_balance_of(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    (void)sequence;
    return fake.balances[layer][0] > 0.0f ? fake.balances[layer] : NULL;
}

enum pp_status gw_remote_read(struct gw_remote_sequence *sequence, uint32_t layer, uint64_t start,
                              uint32_t count, void *k_out, void *v_out)
{
    enum pp_dtype dtype = sequence->config.shape.kv_dtype;
    uint32_t dim = sequence->config.shape.head_dim;
    uint64_t vectors = (uint64_t)count * WIDTH / dim;
    assert_true(start + count <= sequence->given[layer]);
    if (fake_lost(sequence)) {
        return PP_UNAVAILABLE;
    }
    pp_vectors_from_f32(dtype, dim, sequence->k[layer] + start * WIDTH, vectors, k_out);
    pp_vectors_from_f32(dtype, dim, sequence->v[layer] + start * WIDTH, vectors, v_out);
    return fake.answer;
}

const struct pp_estimator *gw_remote_estimator(const struct gw_remote_sequence *sequence,
                                               uint32_t layer)
{
    bool own = sequence->config.range_count > 0 && sequence->config.ranges[0].first == layer;
    return own ? &sequence->config.ranges[0].estimator : &sequence->config.estimator;
}

const struct pp_hash *gw_remote_hash(const struct gw_remote_sequence *sequence, uint32_t layer)
{
    (void)sequence;
    (void)layer;
    return fake.hash;
}

uint64_t gw_remote_segment_end(const struct gw_remote_sequence *sequence, uint64_t begin,
                               uint64_t end)
{
    (void)sequence;
    bool whole = fake.segment_tokens == 0 || end - begin < fake.segment_tokens;
    return whole ? end : begin + fake.segment_tokens;
}

enum pp_status gw_remote_append_signed(struct gw_remote_sequence *sequence, uint32_t layer,
                                       uint64_t start, uint32_t count, const void *k, const void *v,
                                       const struct gw_remote_segment *segment)
{
    const struct pp_shape *shape = &sequence->config.shape;
    uint64_t codes = (uint64_t)shape->kv_heads * sequence->config.estimator.l;
    assert_true(segment->begin <= start && start + count <= segment->begin + segment->count);
    memcpy(fake.codes[layer] + start * codes, segment->codes, count * codes * sizeof(uint16_t));
    memcpy(fake.centres[layer] + segment->begin * WIDTH, segment->centre, WIDTH * sizeof(float));
    return gw_remote_append(sequence, layer, start, count, k, v, true);
}

/* Every layer says the same, after it was silent as often as the test wants. */
enum pp_status gw_remote_tune(struct gw_remote_sequence *sequence, uint32_t layer,
                              float target_error, struct gw_remote_tuning *tuning_out)
{
    assert_false(sequence->in_flight);
    assert_true(layer < LAYERS && target_error > 0.0f && target_error <= 1.0f);
    fake.tunes++;
    fake.tune_error[layer] = target_error;
    *tuning_out = fake.tuning;
    tuning_out->silent = fake.silent > 0 ? 1 : 0;
    fake.silent -= fake.silent > 0 ? 1 : 0;
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
        mine->acknowledged[layer] = mine->lacking[layer];
    }
    return mine->acknowledged[layer];
}

enum pp_status gw_remote_flush(struct gw_remote_sequence *sequence)
{
    fake.flushes++;
    if (sequence->failed) {
        return PP_UNAVAILABLE;
    }
    memcpy(sequence->acknowledged, sequence->lacking, sizeof(sequence->given));
    return PP_OK;
}

enum pp_status gw_remote_seal_begin(struct gw_remote_sequence *sequence)
{
    PP_TRY(gw_remote_flush(sequence));
    fake.seals++;
    return PP_OK;
}

enum pp_status gw_remote_seal(struct gw_remote_sequence *sequence,
                              bool (*progress)(void *context, uint64_t indexed, uint64_t total),
                              void *context)
{
    fake.flushes++;
    fake.seals++;
    memcpy(sequence->acknowledged, sequence->given, sizeof(sequence->given));
    bool go_on = progress == NULL || progress(context, sequence->given[0], sequence->given[0]);
    return go_on ? PP_OK : PP_CANCELLED;
}

enum pp_status gw_remote_truncate(struct gw_remote_sequence *sequence, uint64_t held_tokens)
{
    assert_false(sequence->in_flight);
    fake.truncates++;
    if (fake.answer != PP_OK) {
        return fake.answer;
    }
    for (uint32_t i = 0; i < LAYERS; i++) {
        assert_true(held_tokens <= sequence->given[i]);
        sequence->given[i] = held_tokens;
        sequence->lacking[i] =
            sequence->lacking[i] < held_tokens ? sequence->lacking[i] : held_tokens;
        sequence->acknowledged[i] =
            sequence->acknowledged[i] < held_tokens ? sequence->acknowledged[i] : held_tokens;
    }
    return PP_OK;
}

static void fake_event(char what, uint32_t layer)
{
    if (fake.events != NULL) {
        *fake.events++ = what;
        *fake.events++ = (char)('0' + layer);
    }
}

enum pp_status gw_remote_attend_begin(struct gw_remote_sequence *sequence,
                                      const struct gw_remote_attend *attend)
{
    assert_false(sequence->in_flight);
    assert_true(attend->held_tokens > 0);
    assert_true(attend->held_tokens <= sequence->acknowledged[attend->layer]);
    fake_event('b', attend->layer);
    if (fake.asks != NULL) {
        fake.asks();
    }
    sequence->asked = *attend;
    bool compares = attend->estimator.kind == PP_EXACT && !attend->errors;
    fake.known = compares ? fake.known : attend->local_o != NULL && attend->local_lse != NULL;
    fake.asked = attend->estimator.kind;
    fake.share_asked = attend->estimator.rows_share;
    memcpy(fake.q_asked[attend->layer], attend->q, sizeof(fake.q_asked[0]));
    sequence->in_flight = true;
    return PP_OK;
}

void gw_remote_attends_begin(struct gw_remote_begin *begins, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        begins[i].status = gw_remote_attend_begin(begins[i].sequence, &begins[i].attend);
    }
}

/* at: a row and head. */
static void fake_attend_head(const struct gw_remote_sequence *sequence, uint32_t at,
                             struct gw_remote_answer *answer)
{
    const struct pp_shape *shape = &sequence->config.shape;
    uint32_t dim = shape->head_dim;
    uint32_t kv_head = at % shape->q_heads / (shape->q_heads / shape->kv_heads);
    double top = -INFINITY, sum = 0.0, o[64] = {0};
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < sequence->asked.held_tokens; i++) {
            const float *k = sequence->k[sequence->asked.layer] + i * WIDTH + kv_head * dim;
            const float *v = sequence->v[sequence->asked.layer] + i * WIDTH + kv_head * dim;
            double score = 0.0;
            for (uint32_t j = 0; j < dim; j++) {
                score += (double)sequence->asked.q[at * dim + j] * (double)k[j];
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
        answer->o[at * dim + j] = (float)(o[j] / sum * (1.0 + stretch));
    }
    answer->lse[at] = (float)(top + log(sum));
    if (answer->var != NULL) {
        double length = 0.0;
        for (uint32_t j = 0; j < dim; j++) {
            length += pow((double)answer->o[at * dim + j], 2.0);
        }
        bool none = !sequence->asked.errors || sequence->asked.estimator.kind == PP_EXACT;
        double error = none ? 0.0 : (double)fake.rel_err;
        answer->var[at] = (float)(error * error * length);
        answer->lse_var[at] = (float)(error * error);
    }
}

enum pp_status gw_remote_attend_wait(struct gw_remote_sequence *sequence,
                                     struct gw_remote_answer *answer)
{
    assert_true(sequence->in_flight);
    sequence->in_flight = false;
    fake_event('w', sequence->asked.layer);
    fake.attends++;
    if (fake.answer != PP_OK || sequence->refuses != PP_OK) {
        return fake.answer != PP_OK ? fake.answer : sequence->refuses;
    }
    uint64_t took_us = sequence->asked.q_rows * fake.row_us;
    sequence->failed = sequence->failed || took_us >= TIMEOUT_US;
    fake.rows_asked_max =
        sequence->asked.q_rows > fake.rows_asked_max ? sequence->asked.q_rows : fake.rows_asked_max;
    if (fake_lost(sequence)) {
        return PP_UNAVAILABLE;
    }
    uint32_t heads = sequence->asked.q_rows * sequence->config.shape.q_heads;
    for (uint32_t at = 0; at < heads; at++) {
        fake_attend_head(sequence, at, answer);
    }
    answer->keys_held = sequence->asked.held_tokens * 2;
    answer->keys_read = sequence->asked.held_tokens;
    answer->keys_held_q = sequence->asked.held_tokens * 6;
    answer->keys_read_q = sequence->asked.held_tokens * 2;
    answer->node_us = 3 + took_us;
    answer->network_us = 5;
    answer->estimator_used = sequence->asked.layer == 1;
    answer->flags = fake.flags;
    return PP_OK;
}

uint64_t gw_remote_attend_timeout_us(const struct gw_remote_sequence *sequence)
{
    (void)sequence;
    return TIMEOUT_US;
}

const char *gw_remote_error(const struct gw_remote_sequence *sequence)
{
    (void)sequence;
    return fake.answer == PP_OK ? "" : "node b is gone";
}

uint32_t gw_remote_parts(const struct gw_remote_sequence *sequence)
{
    (void)sequence;
    return 1;
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

/* The device of models from now on; NULL: the host's, on two threads. */
static struct gw_device *(*tiny_device_new)(void);
/* Whether its steps do without graphs. */
static bool tiny_no_graphs;

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
    if (tiny_device_new != NULL) {
        made.device = tiny_device_new();
    } else {
        assert_int_equal(gw_host_device_new(2, &made.device), PP_OK);
    }
    struct gw_engine_config config = {.device = made.device,
                                      .gguf = made.gguf,
                                      .kv_dtype = dtype,
                                      .tokens_max = TOKENS,
                                      .chunk_tokens = chunk_tokens,
                                      .no_graphs = tiny_no_graphs,
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

static inline struct gw_sequence *open_kept(struct tiny *tiny, struct gw_remote *remote,
                                            uint32_t kept)
{
    struct gw_sequence *sequence;
    struct gw_sequence_options options = {.remote = remote,
                                          .estimator = {.kind = PP_EXACT},
                                          .step_seed = 1,
                                          .tokens_expected = TOKENS,
                                          .tokens_kept = kept};
    assert_int_equal(gw_sequence_open(tiny->engine, &options, &sequence), PP_OK);
    return sequence;
}

static inline double largest_difference(const float *a, const float *b, uint32_t count)
{
    double most = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        most = difference > most ? difference : most;
    }
    return most;
}

/* One of a batch, its prompt of so many tokens from ids[index] on. The second and every fourth then
 * are attended with a target and errors; the third is here only. */
static inline struct gw_sequence *open_of_batch(struct tiny *tiny, uint32_t index, uint32_t prompt,
                                                uint32_t steps)
{
    struct gw_sequence *sequence;
    bool estimated = index % 4 == 1;
    struct gw_sequence_options options = {.remote = index == 2 ? NULL : &fake,
                                          .estimator = {.kind = estimated ? PP_SKETCH : PP_EXACT},
                                          .errors = estimated,
                                          .step_seed = index,
                                          .tokens_expected = prompt + steps};
    options.estimator.target_error = estimated ? 0.5f : 0.0f;
    assert_int_equal(gw_sequence_open(tiny->engine, &options, &sequence), PP_OK);
    assert_int_equal(gw_sequence_prefill(sequence, tiny->ids + index, prompt, 0, NULL, NULL, NULL),
                     PP_OK);
    return sequence;
}

#endif
