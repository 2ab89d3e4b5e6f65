/*
 * A node's exec under a fake clock for tests: jobs are submitted, polled and taken back on one
 * thread, and a plain f64 attention serves as the reference. Header-only: each test is one program.
 */
#ifndef PIGPEN_TESTS_UNIT_EXEC_FIXTURE_H
#define PIGPEN_TESTS_UNIT_EXEC_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attn-node/exec/exec.h"
#include "attn-node/exec/self_test.h"
#include "common/base/half.h"
#include "common/base/rng.h"

#define FIXTURE_ARENA_BYTES (8u << 20)

struct fixture {
    struct an_exec *exec;
    uint64_t now_us;
    struct an_job job;
    uint8_t *arena;
    struct an_exec_usage empty; /* usage before the first part */
    struct an_layer_info layers[PP_LAYERS_MAX];
};

static inline uint64_t fixture_now_us(void *context)
{
    const struct fixture *fixture = context;
    return __atomic_load_n(&fixture->now_us, __ATOMIC_RELAXED);
}

static inline struct an_exec_config fixture_config(struct fixture *fixture)
{
    return (struct an_exec_config){
        .clock = {fixture_now_us, fixture},
        .memory_limit_bytes = 512ull << 20,
        .threads = 1,
        .seal_tokens = 1024,
        .index_tokens_min = 1024,
        .lease_us = 600000000,
        .build_sync = true,
        .queue_depth = 16,
    };
}

static inline void fixture_start(struct fixture *fixture, const struct an_exec_config *config)
{
    fixture->arena = aligned_alloc(64, FIXTURE_ARENA_BYTES);
    assert_non_null(fixture->arena);
    assert_int_equal(an_exec_new(config, &fixture->exec), PP_OK);
    an_exec_usage(fixture->exec, &fixture->empty);
}

static inline void fixture_stop(struct fixture *fixture)
{
    an_exec_destroy(fixture->exec);
    free(fixture->arena);
}

/* Runs the job that is in fixture->job. */
static inline enum pp_status fixture_run(struct fixture *fixture, enum an_job_kind kind)
{
    struct an_job *job = &fixture->job;
    job->kind = kind;
    job->arena = fixture->arena;
    job->arena_bytes = FIXTURE_ARENA_BYTES;
    job->arena_used = 0;
    assert_int_equal(an_exec_submit(fixture->exec, job), PP_OK);
    while (an_exec_take_done(fixture->exec) == NULL) {
        (void)an_exec_poll(fixture->exec, 0);
    }
    return job->status;
}

static inline void fixture_expect_empty(struct fixture *fixture)
{
    (void)an_exec_poll(fixture->exec, 0);
    struct an_exec_usage usage;
    an_exec_usage(fixture->exec, &usage);
    assert_int_equal(usage.parts, 0);
    assert_int_equal(usage.tokens_held, 0);
    assert_int_equal(usage.kv_bytes, 0);
    assert_int_equal(usage.index_bytes, 0);
    assert_int_equal(usage.tail_bytes, 0);
    assert_int_equal(usage.scratch_bytes, fixture->empty.scratch_bytes);
}

/* Until the builder has left as well. */
static inline void fixture_wait_empty(struct fixture *fixture)
{
    struct an_exec_usage usage;
    do {
        (void)an_exec_poll(fixture->exec, 1000);
        an_exec_usage(fixture->exec, &usage);
    } while (usage.index_bytes != 0);
    fixture_expect_empty(fixture);
}

/* What a part's layers are like now, of any generation: fixture->layers. */
static inline const struct an_layer_info *fixture_layers(struct fixture *fixture, uint64_t handle)
{
    fixture->job.get = (struct an_get_args){.part = {handle, 0}, .layers = fixture->layers};
    assert_int_equal(fixture_run(fixture, AN_JOB_GET), PP_OK);
    return fixture->layers;
}

struct shape {
    uint32_t layers, q_heads, kv_heads, dim;
    enum pp_dtype dtype;
    struct pp_estimator estimator;
};

static inline struct an_open_args shape_open(const struct shape *shape, uint8_t id)
{
    struct an_open_args open = {
        .fingerprint_bytes = 4,
        .shape = {.layers = shape->layers,
                  .q_heads = shape->q_heads,
                  .kv_heads = shape->kv_heads,
                  .head_dim = shape->dim,
                  .scale = 1.0f / sqrtf((float)shape->dim),
                  .kv_dtype = shape->dtype},
        .kv_head_count = shape->kv_heads,
        .estimator = shape->estimator,
        .hash_seed = 7,
        .generation = 1,
    };
    memset(open.sequence_id, id, PP_ID_BYTES);
    memset(open.part_id, id, PP_ID_BYTES);
    return open;
}

static inline uint64_t fixture_open(struct fixture *fixture, const struct shape *shape, uint8_t id)
{
    fixture->job.open = shape_open(shape, id);
    assert_int_equal(fixture_run(fixture, AN_JOB_OPEN), PP_OK);
    return fixture->job.open.handle;
}

/* Rows [begin, begin + count) of made-up f32 K or V, [token][kv head][dim]: a function of salt and
 * held index only. */
static inline void make_rows(const struct shape *shape, uint64_t salt, uint64_t begin,
                             uint32_t count, float *out)
{
    uint64_t width = (uint64_t)shape->kv_heads * shape->dim;
    for (uint64_t i = 0; i < count * width; i++) {
        uint64_t bits = pp_rng_at(salt, begin * width + i);
        out[i] = (float)(int16_t)(bits & 0xffff) * 0x1p-14f;
    }
}

static inline void make_queries(uint64_t salt, uint32_t count, float *q)
{
    struct pp_rng rng = {.seed = salt};
    for (uint32_t i = 0; i < count; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
}

static inline struct an_append_args append_args(uint64_t handle, uint64_t generation,
                                                const struct shape *shape, uint64_t start,
                                                uint32_t count, const void *k, const void *v)
{
    uint64_t bytes = (uint64_t)count * shape->kv_heads * pp_vector_bytes(shape->dim, shape->dtype);
    return (struct an_append_args){
        .part = {handle, generation},
        .start = start,
        .count = count,
        .k = pp_span_of(k, bytes),
        .v = pp_span_of(v, bytes),
    };
}

/* make_rows in the shape's dtype; out takes count * kv_heads vectors. */
static inline void make_vectors(const struct shape *shape, uint64_t salt, uint64_t begin,
                                uint32_t count, void *out)
{
    uint64_t values = (uint64_t)count * shape->kv_heads * shape->dim;
    float *rows = malloc(values * sizeof(*rows) + 1);
    assert_non_null(rows);
    make_rows(shape, salt, begin, count, rows);
    pp_vectors_from_f32(shape->dtype, shape->dim, rows, values / shape->dim, out);
    free(rows);
}

/* Appends made-up rows in the shape's dtype: K with salt, V with salt + 1. */
static inline enum pp_status fixture_append(struct fixture *fixture, uint64_t handle,
                                            uint64_t generation, const struct shape *shape,
                                            uint32_t layer, uint64_t start, uint32_t count,
                                            uint64_t salt, bool bulk)
{
    uint64_t bytes = (uint64_t)count * shape->kv_heads * pp_vector_bytes(shape->dim, shape->dtype);
    uint8_t *k = malloc(2 * bytes);
    assert_non_null(k);
    make_vectors(shape, salt, start, count, k);
    make_vectors(shape, salt + 1, start, count, k + bytes);
    fixture->job.append = append_args(handle, generation, shape, start, count, k, k + bytes);
    fixture->job.append.layer = layer;
    fixture->job.append.bulk = bulk;
    enum pp_status status = fixture_run(fixture, AN_JOB_APPEND);
    free(k);
    return status;
}

/* Attends with one item; the outputs stay in the arena until the next job. */
static inline enum pp_status fixture_attend(struct fixture *fixture, uint64_t handle,
                                            uint64_t generation, uint32_t layer, uint64_t held,
                                            uint32_t q_rows, const float *q, uint32_t q_heads,
                                            uint32_t dim, enum pp_estimator_kind kind,
                                            struct an_attend_item *item)
{
    *item = (struct an_attend_item){
        .part = {handle, generation},
        .held_tokens = held,
        .q_rows = q_rows,
        .estimator = {.kind = kind},
        .q = (const uint8_t *)q,
        .q_bytes = (uint64_t)q_rows * q_heads * dim * sizeof(float),
    };
    fixture->job.received_us = fixture->now_us;
    fixture->job.attend =
        (struct an_attend_args){.layer = layer, .q_dtype = PP_F32, .items = item, .item_count = 1};
    enum pp_status status = fixture_run(fixture, AN_JOB_ATTEND);
    return status != PP_OK ? status : item->status;
}

/* make_rows as the shape's dtype holds them. */
static inline void make_rounded(const struct shape *shape, uint64_t salt, uint32_t count,
                                float *out)
{
    uint64_t vectors = (uint64_t)count * shape->kv_heads;
    void *stored = malloc(vectors * pp_vector_bytes(shape->dim, shape->dtype) + 1);
    assert_non_null(stored);
    make_vectors(shape, salt, 0, count, stored);
    pp_vectors_to_f32(shape->dtype, shape->dim, stored, vectors, out);
    free(stored);
}

/* The largest error of an answer against the f64 reference over made-up rows of this salt. */
static inline double answer_error(const struct an_attend_item *item, const struct shape *shape,
                                  uint64_t salt, const float *q)
{
    uint64_t width = (uint64_t)shape->kv_heads * shape->dim;
    uint32_t held = (uint32_t)item->held_tokens;
    float *k = malloc((2 * held * width + 1) * sizeof(float));
    assert_non_null(k);
    float *v = k + held * width;
    make_rounded(shape, salt, held, k);
    make_rounded(shape, salt + 1, held, v);
    double worst = 0;
    for (uint32_t lane = 0; lane < item->q_rows * shape->q_heads; lane++) {
        double o[256];
        uint32_t kv = lane % shape->q_heads / (shape->q_heads / shape->kv_heads);
        double lse = an_self_test_reference(q + (uint64_t)lane * shape->dim, k + kv * shape->dim,
                                            v + kv * shape->dim, width, held, shape->dim,
                                            1.0 / sqrt((double)shape->dim), o);
        for (uint32_t i = 0; i < shape->dim; i++) {
            double error = fabs(o[i] - (double)item->o[(uint64_t)lane * shape->dim + i]);
            worst = error > worst || isnan(error) ? error : worst;
        }
        double error = held == 0 ? (item->lse[lane] == -INFINITY ? 0 : 1)
                                 : fabs(lse - (double)item->lse[lane]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    free(k);
    return worst;
}

static inline uint64_t fixture_close(struct fixture *fixture, uint64_t handle)
{
    fixture->job.close = (struct an_close_args){.part = {handle, 0}};
    assert_int_equal(fixture_run(fixture, AN_JOB_CLOSE), PP_OK);
    return fixture->job.close.freed_bytes;
}

#endif
