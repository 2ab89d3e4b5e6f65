/*
 * 131,074 tokens of dim 256 in one layer: three extents and segments, with a needle of its own at
 * each border and at the marks of 2 and 4 GiB that 64 kv heads have. Every needle is read back,
 * wins exact attention and is found by a sketch, for every kv head. PIGPEN_LONG=1 holds all 64 kv
 * heads, 8 GiB of K/V, where there is memory and no sanitizer multiplies it; else one.
 */
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/exec_fixture.h"

#define DIM     256u
#define TOKENS  131074u
#define STEP    4096u
#define NEEDLES 8u

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) ||                           \
    __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* 32 KiB of K a token at 64 kv heads: 65,536 of them are 2 GiB, 131,072 are 4 GiB. */
static const uint32_t needles[NEEDLES] = {0, 32767, 65471, 65472, 65536, 131071, 131072, 131073};

static uint32_t kv_heads_wanted(void)
{
    const char *text = getenv("PIGPEN_LONG");
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    bool all = text != NULL && strcmp(text, "1") == 0 && !SANITIZED && memory >= 16ull << 30;
    print_message("%s\n", all ? "64 kv heads"
                              : "1 kv head; 64 with PIGPEN_LONG=1, 16 GiB and no sanitizer");
    return all ? 64 : 1;
}

/* Small keys and values for every token alike; a needle has 8 in a dimension of its own. */
static void fill(struct fixture *fixture, uint64_t handle, const struct shape *shape)
{
    uint64_t width = (uint64_t)shape->kv_heads * DIM;
    uint16_t *rows = malloc(STEP * width * sizeof(*rows)), *k = malloc(STEP * width * sizeof(*k));
    uint16_t *v = calloc(STEP * width, sizeof(*v));
    assert_true(rows != NULL && k != NULL && v != NULL);
    make_vectors(shape, 3, 0, STEP, rows);
    for (uint32_t at = 0; at < TOKENS; at += STEP) {
        uint32_t count = TOKENS - at < STEP ? TOKENS - at : STEP;
        memcpy(k, rows, STEP * width * sizeof(*k));
        memset(v, 0, STEP * width * sizeof(*v));
        for (uint32_t i = 0; i < NEEDLES * shape->kv_heads; i++) {
            uint32_t needle = needles[i % NEEDLES], head = i / NEEDLES;
            if (needle >= at && needle < at + count) {
                uint64_t row = (needle - at) * width + (uint64_t)head * DIM;
                memset(k + row, 0, DIM * sizeof(*k));
                k[row + i % NEEDLES] = pp_bf16_from_f32(32.0f);
                v[row] = pp_bf16_from_f32((float)(i % NEEDLES + 1));
                v[row + 1] = pp_bf16_from_f32((float)(head + 1));
            }
        }
        fixture->job.append = append_args(handle, 1, shape, at, count, k, v);
        fixture->job.append.bulk = true;
        assert_int_equal(fixture_run(fixture, AN_JOB_APPEND), PP_OK);
    }
    fixture->job.seal = (struct an_seal_args){.part = {handle, 1}};
    assert_int_equal(fixture_run(fixture, AN_JOB_SEAL), PP_OK);
    free(rows);
    free(k);
    free(v);
}

/* A q row a needle. */
static void expect_winners(struct fixture *fixture, uint64_t handle, const struct shape *shape,
                           enum pp_estimator_kind kind)
{
    uint64_t width = (uint64_t)shape->kv_heads * DIM;
    float *q = calloc(NEEDLES * width, sizeof(*q));
    struct an_attend_item item;
    assert_non_null(q);
    for (uint32_t i = 0; i < NEEDLES; i++) {
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            q[i * width + head * DIM + i] = 32.0f;
        }
    }
    assert_int_equal(fixture_attend(fixture, handle, 1, 0, TOKENS, NEEDLES, q, shape->kv_heads, DIM,
                                    kind, &item),
                     PP_OK);
    assert_int_equal(item.used, kind);
    for (uint32_t i = 0; i < NEEDLES; i++) {
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            const float *o = item.o + i * width + head * DIM;
            assert_true(fabsf(o[0] - (float)(i + 1)) < 1e-2f);
            assert_true(fabsf(o[1] - (float)(head + 1)) < 1e-2f);
            assert_true(kind == PP_EXACT || item.keys_read[i * shape->kv_heads + head] < 10000);
        }
    }
    free(q);
}

static void expect_rows(struct fixture *fixture, uint64_t handle, const struct shape *shape)
{
    uint64_t width = (uint64_t)shape->kv_heads * DIM;
    uint16_t *row = malloc(2 * width * sizeof(*row));
    assert_non_null(row);
    for (uint32_t i = 0; i < NEEDLES; i++) {
        fixture->job.read = (struct an_read_args){.part = {handle, 1},
                                                  .start = needles[i],
                                                  .count = 1,
                                                  .out = (uint8_t *)row,
                                                  .out_capacity = 2 * width * sizeof(*row)};
        assert_int_equal(fixture_run(fixture, AN_JOB_READ), PP_OK);
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            assert_int_equal(row[head * DIM + i], pp_bf16_from_f32(32.0f));
            assert_int_equal(row[width + head * DIM], pp_bf16_from_f32((float)(i + 1)));
            assert_int_equal(row[width + head * DIM + 1], pp_bf16_from_f32((float)(head + 1)));
        }
    }
    free(row);
}

static void needles_win_wherever_their_bytes_lie(void **state)
{
    (void)state;
    uint32_t heads = kv_heads_wanted();
    const struct shape shape = {1,   heads,   heads,
                                DIM, PP_BF16, {.kind = PP_SKETCH, .bits = 1, .rows = 1000}};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.memory_limit_bytes = heads * (256ull << 20);
    config.threads = 2;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    fill(&fixture, handle, &shape);
    assert_int_equal(fixture_layers(&fixture, handle)[0].indexed_tokens, TOKENS - TOKENS % 65472);
    expect_rows(&fixture, handle, &shape);
    expect_winners(&fixture, handle, &shape, PP_EXACT);
    expect_winners(&fixture, handle, &shape, PP_SKETCH);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needles_win_wherever_their_bytes_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
