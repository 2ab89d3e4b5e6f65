/*
 * Rows whose offsets do not fit 32 bits: K/V of 64 kv heads of dim 256, 64 KiB from token to token,
 * on a mapping of which only the pages in use are there. A needle of its own lies beside each of
 * the 1, 2, 4 and 8 GiB marks, among others at tokens 131,071 to 131,073; every operation of every
 * instruction set finds it, and not its neighbour's. Then an index whose rows lie as far away.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "attn-node/index/index.h"
#include "common/base/half.h"

#define DIM     256u
#define ROW     (2ull * 64 * DIM * sizeof(uint16_t)) /* [K|V] of every kv head */
#define TOKENS  131075u
#define NEEDLES 12u

static const char *const isas[] = {"scalar", "avx2", "avx512", "avx512bf16"};
/* 64 KiB x 16,384 = 1 GiB: marks of K and V at 1, 2, 4 and 8 GiB. */
static const uint32_t needles[NEEDLES] = {0,     16383, 16384, 32767,  32768,  32769,
                                          65535, 65536, 65537, 131071, 131072, 131073};

/* Rows of the first kv head, all zero but for the needles. */
struct far {
    uint8_t *memory;
    uint64_t bytes;
    struct an_rows rows;
};

static void far_init(struct far *far)
{
    far->bytes = TOKENS * ROW;
    far->memory = mmap(NULL, far->bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(far->memory != MAP_FAILED);
    /* A page a row and no more. */
    (void)madvise(far->memory, far->bytes, MADV_NOHUGEPAGE);
    far->rows = (struct an_rows){.base = far->memory,
                                 .row_bytes = ROW,
                                 .v_offset = DIM * sizeof(uint16_t),
                                 .dim = DIM,
                                 .dtype = PP_BF16};
    for (uint32_t i = 0; i < NEEDLES; i++) {
        uint16_t *row = (uint16_t *)(void *)(far->memory + needles[i] * ROW);
        row[i] = pp_bf16_from_f32(8.0f);
        row[DIM + i] = pp_bf16_from_f32((float)(i + 1));
    }
}

static void far_deinit(struct far *far)
{
    assert_int_equal(munmap(far->memory, far->bytes), 0);
}

/* A query that needle i wins over all others by 40. */
static void query_for(uint32_t i, float *q)
{
    memset(q, 0, DIM * sizeof(*q));
    q[i] = 5.0f;
}

static void expect_needle(const struct an_accumulator *accumulator, uint32_t i)
{
    for (uint32_t d = 0; d < DIM; d++) {
        float wanted = d == i ? (float)(i + 1) : 0.0f;
        float off = accumulator->o[d] / accumulator->sum - wanted;
        assert_true(off < 1e-3f && off > -1e-3f);
    }
}

static void needles_beyond_4_gib_win_exact_attention(void **state)
{
    (void)state;
    struct far far;
    far_init(&far);
    for (size_t n = 0; n < sizeof(isas) / sizeof(isas[0]); n++) {
        const struct an_kernels *kernels = an_kernels_named(isas[n]);
        if (kernels == NULL) {
            print_message("%s: not on this machine\n", isas[n]);
            continue;
        }
        for (uint32_t i = 0; i < NEEDLES; i++) {
            float q[DIM], o[DIM], b1[DIM];
            uint32_t begin = needles[i] < 500 ? 0 : needles[i] - 500;
            uint32_t end = needles[i] + 500 < TOKENS ? needles[i] + 500 : TOKENS;
            struct an_accumulator accumulator = {.o = o, .b1 = b1};
            query_for(i, q);
            an_accumulator_clear(&accumulator, DIM);
            kernels->attend_exact(&far.rows, begin, end, q, 1, &accumulator);
            assert_int_equal(accumulator.keys_read, end - begin);
            expect_needle(&accumulator, i);
            /* Up to the needle and from behind it, it is not there. */
            an_accumulator_clear(&accumulator, DIM);
            kernels->attend_exact(&far.rows, begin, needles[i], q, 1, &accumulator);
            kernels->attend_exact(&far.rows, needles[i] + 1, end, q, 1, &accumulator);
            assert_true(accumulator.m == 0.0f);
        }
    }
    far_deinit(&far);
}

/* Ids are 16 bits wide: here row 65,471 alone lies just below 4 GiB, and rows twice as wide put it
 * at 8. */
static void rows_beyond_4_gib_are_gathered(void **state)
{
    (void)state;
    struct far far;
    far_init(&far);
    far.rows.row_bytes = 2 * ROW;
    static const uint16_t ids[] = {8192, 16383, 16384, 32768, 65471};
    enum { COUNT = sizeof(ids) / sizeof(ids[0]) };
    for (uint32_t i = 0; i < COUNT; i++) {
        uint16_t *row = (uint16_t *)(void *)(far.memory + ids[i] * 2 * ROW);
        memset(row, 0, 2 * DIM * sizeof(*row));
        row[i] = pp_bf16_from_f32(8.0f);
        row[DIM + i] = pp_bf16_from_f32((float)(i + 1));
    }
    for (size_t n = 0; n < sizeof(isas) / sizeof(isas[0]); n++) {
        const struct an_kernels *kernels = an_kernels_named(isas[n]);
        for (uint32_t i = 0; kernels != NULL && i < COUNT; i++) {
            float q[DIM], o[DIM], b1[DIM], scores[COUNT];
            struct an_accumulator accumulator = {.o = o, .b1 = b1};
            query_for(i, q);
            kernels->score_gather(&far.rows, ids, COUNT, 0, q, scores);
            for (uint32_t j = 0; j < COUNT; j++) {
                assert_true(scores[j] == (i == j ? 40.0f : 0.0f));
            }
            an_accumulator_clear(&accumulator, DIM);
            kernels->attend_gather(&far.rows, ids, scores, NULL, COUNT, &accumulator);
            expect_needle(&accumulator, i);
        }
    }
    far_deinit(&far);
}

/* Keys of a full segment; the last lies at 8 GiB, and there the needle. */
static void an_index_finds_its_rows_beyond_4_gib(void **state)
{
    (void)state;
    enum { LAST = 65471, COUNT = 65472 };
    static const float centre[DIM];
    struct far far;
    struct an_sketch_signs signs;
    struct an_index_params params = {
        .estimator = {.kind = PP_SKETCH, .bits = 1, .rows_share = 0.01f}, .signs = &signs};
    far_init(&far);
    far.rows.row_bytes = 2 * ROW;
    an_sketch_signs_init(&signs, 7);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint16_t *row = (uint16_t *)(void *)(far.memory + i * 2 * ROW);
        memset(row, 0, 2 * DIM * sizeof(*row));
        row[i % 2] = pp_bf16_from_f32(1.0f);
    }
    uint16_t *last = (uint16_t *)(void *)(far.memory + LAST * 2 * ROW);
    memset(last, 0, 2 * DIM * sizeof(*last));
    last[7] = pp_bf16_from_f32(8.0f);
    last[DIM] = pp_bf16_from_f32(3.0f);
    assert_int_equal(pp_estimator_resolve(&params.estimator), PP_OK);
    void *memory = aligned_alloc(64, (an_index_bytes(&params, DIM, COUNT) + 63) & ~63ull);
    void *scratch =
        aligned_alloc(64, (an_index_scratch_bytes(&params, DIM, COUNT, 2) + 63) & ~63ull);
    struct an_index *index;
    assert_true(memory != NULL && scratch != NULL);
    assert_int_equal(
        an_index_build(&params, &far.rows, COUNT, centre, NULL, 0, 2, memory, scratch, &index),
        PP_OK);
    free(scratch);
    scratch = aligned_alloc(64, (an_index_query_scratch_bytes(&params, COUNT) + 63) & ~63ull);
    assert_non_null(scratch);
    float q[DIM], o[DIM], b1[DIM];
    query_for(7, q);
    struct an_accumulator accumulator = {.o = o, .b1 = b1};
    const struct an_index_query query = {
        .heads = 1, .q = q, .q_scaled = q, .draw = {.seed = 3}, .rows_share = 0.01f};
    an_accumulator_clear(&accumulator, DIM);
    an_index_attend(index, &params, &far.rows, 0, COUNT, &query, scratch, &accumulator);
    assert_true(accumulator.keys_read > 0 && accumulator.keys_read < COUNT / 10);
    assert_true(accumulator.o[0] / accumulator.sum > 2.999f);
    free(scratch);
    free(memory);
    far_deinit(&far);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needles_beyond_4_gib_win_exact_attention),
        cmocka_unit_test(rows_beyond_4_gib_are_gathered),
        cmocka_unit_test(an_index_finds_its_rows_beyond_4_gib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
