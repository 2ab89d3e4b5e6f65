/*
 * How many rows an lsh attend says it read, against a count by hand: the rows of every segment are
 * hashed here, and a row is read once by a q row of a kv head when any head of the group collides
 * with it in at least t tables. Groups of any size, cut views, and batches of several waves.
 */
#include "tests/unit/exec_fixture.h"

#include "common/attn/hash.h"

#define SALT    8u
#define SEGMENT 1024u

struct bed {
    struct fixture fixture;
    struct shape shape;
    uint64_t handle;
    struct pp_hash *hash;
    float *rows;           /* [token][kv head][dim] keys of all segments */
    uint16_t *codes;       /* [segment][kv head][l][SEGMENT] of the keys */
    uint16_t *query_codes; /* [q row][q head][l] */
    float *q;
};

static void *take(uint64_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~63ull);
    assert_non_null(memory);
    return memory;
}

/* Mean key of a segment and kv head, summed in index order. */
static void centre_of(const struct bed *bed, uint32_t segment, uint32_t kv, float *centre_out)
{
    uint64_t width = (uint64_t)bed->shape.kv_heads * bed->shape.dim;
    for (uint32_t d = 0; d < bed->shape.dim; d++) {
        double sum = 0;
        for (uint64_t i = 0; i < SEGMENT; i++) {
            uint64_t token = segment * (uint64_t)SEGMENT + i;
            sum += (double)bed->rows[token * width + kv * bed->shape.dim + d];
        }
        centre_out[d] = (float)(sum / SEGMENT);
    }
}

static uint16_t *codes_of(const struct bed *bed, uint32_t segment, uint32_t kv)
{
    return bed->codes +
           (segment * (uint64_t)bed->shape.kv_heads + kv) * bed->shape.estimator.l * SEGMENT;
}

/* A part of `segments` sealed segments and a tail of 10 rows, and q_rows queries. */
static void bed_start(struct bed *bed, const struct shape *shape, uint32_t segments,
                      uint32_t q_rows)
{
    *bed = (struct bed){.fixture = {.now_us = 1}, .shape = *shape};
    struct an_exec_config config = fixture_config(&bed->fixture);
    config.threads = 3;
    config.keep_segments = true;
    fixture_start(&bed->fixture, &config);
    bed->handle = fixture_open(&bed->fixture, shape, 1);
    uint32_t l = shape->estimator.l;
    uint64_t tokens = (uint64_t)segments * SEGMENT;
    assert_int_equal(fixture_append(&bed->fixture, bed->handle, 1, shape, 0, 0,
                                    (uint32_t)tokens + 10, SALT, false),
                     PP_OK);
    assert_int_equal(pp_hash_new(7, shape->dim, shape->estimator.k, l, &bed->hash), PP_OK);
    uint64_t width = (uint64_t)shape->kv_heads * shape->dim;
    bed->rows = take(tokens * width * sizeof(float));
    make_rows(shape, SALT, 0, (uint32_t)tokens, bed->rows);
    bed->codes = take(tokens * shape->kv_heads * l * sizeof(uint16_t));
    for (uint32_t segment = 0; segment < segments; segment++) {
        for (uint32_t kv = 0; kv < shape->kv_heads; kv++) {
            float centre[256];
            centre_of(bed, segment, kv, centre);
            pp_hash_keys(bed->hash, bed->rows + segment * SEGMENT * width + kv * shape->dim,
                         width * sizeof(float), PP_F32, centre, SEGMENT, codes_of(bed, segment, kv),
                         SEGMENT);
        }
    }
    uint32_t lanes = q_rows * shape->q_heads;
    bed->q = take((uint64_t)lanes * shape->dim * sizeof(float));
    struct pp_rng rng = {.seed = 3};
    for (uint32_t i = 0; i < lanes * shape->dim; i++) {
        bed->q[i] = (float)pp_rng_normal(&rng);
    }
    bed->query_codes = take((uint64_t)lanes * l * sizeof(uint16_t));
    pp_hash_queries(bed->hash, bed->q, lanes, bed->query_codes);
}

static void bed_stop(struct bed *bed)
{
    (void)fixture_close(&bed->fixture, bed->handle);
    fixture_expect_empty(&bed->fixture);
    fixture_stop(&bed->fixture);
    pp_hash_destroy(bed->hash);
    free(bed->rows);
    free(bed->codes);
    free(bed->query_codes);
    free(bed->q);
}

/* Whether lane `lane` ([q row][q head]) reads row i of a segment. */
static bool collides(const struct bed *bed, const uint16_t *codes, uint32_t i, uint32_t lane)
{
    uint32_t l = bed->shape.estimator.l;
    uint32_t seen = 0;
    for (uint32_t table = 0; table < l; table++) {
        seen += codes[table * SEGMENT + i] == bed->query_codes[lane * (uint64_t)l + table];
    }
    return seen >= bed->shape.estimator.t;
}

/* Attends the prefix `held` of `handle` and compares with the count by hand, over q rows, kv heads
 * and the prefix; `held` ends in a sealed segment, or takes the whole tail. Returns the rows read
 * by a sum over heads that would count shared rows again. */
static uint64_t check_rows_read(struct bed *bed, uint64_t handle, uint64_t held, uint64_t tail,
                                uint32_t q_rows)
{
    const struct shape *shape = &bed->shape;
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&bed->fixture, handle, 1, 0, held, q_rows, bed->q,
                                    shape->q_heads, shape->dim, PP_LSH, &item),
                     PP_OK);
    assert_int_equal(item.used, PP_LSH);
    assert_int_equal(item.flags, 0);
    uint32_t group = shape->q_heads / shape->kv_heads;
    uint64_t distinct = 0, reads = 0;
    for (uint32_t row = 0; row < q_rows; row++) {
        for (uint32_t kv = 0; kv < shape->kv_heads; kv++) {
            for (uint64_t token = 0; token < held - tail; token++) {
                const uint16_t *codes = codes_of(bed, (uint32_t)(token / SEGMENT), kv);
                uint32_t times = 0;
                for (uint32_t g = 0; g < group; g++) {
                    times += collides(bed, codes, (uint32_t)(token % SEGMENT),
                                      row * shape->q_heads + kv * group + g);
                }
                distinct += times > 0;
                reads += times;
            }
            distinct += tail;
            reads += tail * group;
        }
    }
    uint64_t keys_read = 0;
    for (uint32_t lane = 0; lane < q_rows * shape->q_heads; lane++) {
        keys_read += item.keys_read[lane];
    }
    assert_int_equal(keys_read, reads);
    assert_int_equal(item.rows_read, distinct);
    assert_int_equal(item.rows_held, held * shape->kv_heads * q_rows);
    return reads;
}

static void rows_read_are_the_distinct_rows_of_every_kv_head_and_q_row(void **state)
{
    (void)state;
    static const uint32_t groups[] = {1, 3, 6};
    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
        struct shape shape = {.layers = 1,
                              .q_heads = 2 * groups[i],
                              .kv_heads = 2,
                              .dim = 64,
                              .dtype = PP_F32,
                              .estimator = {.kind = PP_LSH, .k = 5, .l = 24, .t = 2}};
        for (uint32_t t = 1; t <= 3; t++) {
            shape.estimator.t = t;
            struct bed bed;
            bed_start(&bed, &shape, 3, 2);
            uint64_t held = 3 * SEGMENT + 10;
            (void)check_rows_read(&bed, bed.handle, held, 10, 2);
            (void)check_rows_read(&bed, bed.handle, 2 * SEGMENT + 333, 0, 1);
            bed_stop(&bed);
        }
    }
}

static void a_fork_that_cuts_a_segment_counts_the_rows_it_sees(void **state)
{
    (void)state;
    struct shape shape = {.layers = 1,
                          .q_heads = 4,
                          .kv_heads = 1,
                          .dim = 64,
                          .dtype = PP_F32,
                          .estimator = {.kind = PP_LSH, .k = 5, .l = 24, .t = 2}};
    struct bed bed;
    bed_start(&bed, &shape, 2, 1);
    struct an_fork_args *fork = &bed.fixture.job.fork;
    *fork = (struct an_fork_args){
        .part = {bed.handle, 1}, .held_tokens = SEGMENT + 77, .generation = 1};
    memset(fork->sequence_id, 9, PP_ID_BYTES);
    memset(fork->part_id, 9, PP_ID_BYTES);
    assert_int_equal(fixture_run(&bed.fixture, AN_JOB_FORK), PP_OK);
    uint64_t handle = fork->handle;
    (void)check_rows_read(&bed, handle, SEGMENT + 77, 0, 1);
    (void)fixture_close(&bed.fixture, handle);
    bed_stop(&bed);
}

/* 13 segments and 64 rows of 10 heads are 8,320 pieces of one head: a wave ends inside a group. */
static void groups_parted_by_the_end_of_a_wave_are_counted_once(void **state)
{
    (void)state;
    struct shape shape = {.layers = 1,
                          .q_heads = 10,
                          .kv_heads = 2,
                          .dim = 16,
                          .dtype = PP_F32,
                          .estimator = {.kind = PP_LSH, .k = 4, .l = 8, .t = 2}};
    struct bed bed;
    bed_start(&bed, &shape, 13, 64);
    uint64_t held = 13 * SEGMENT + 10;
    uint64_t reads = check_rows_read(&bed, bed.handle, held, 10, 64);
    print_message("%llu rows by the heads of 640 lanes\n", (unsigned long long)reads);
    bed_stop(&bed);
}

static void a_group_of_70_heads_counts_shared_rows_once(void **state)
{
    (void)state;
    struct shape shape = {.layers = 1,
                          .q_heads = 70,
                          .kv_heads = 1,
                          .dim = 64,
                          .dtype = PP_F32,
                          .estimator = {.kind = PP_LSH, .k = 5, .l = 16, .t = 2}};
    struct bed bed;
    bed_start(&bed, &shape, 2, 3);
    uint64_t held = 2 * SEGMENT + 10;
    (void)check_rows_read(&bed, bed.handle, held, 10, 3);
    struct an_attend_item item;
    assert_int_equal(
        fixture_attend(&bed.fixture, bed.handle, 1, 0, held, 3, bed.q, 70, 64, PP_EXACT, &item),
        PP_OK);
    assert_int_equal(item.rows_read, 3 * held);
    assert_true(answer_error(&item, &shape, SALT, bed.q) < 1e-4);
    bed_stop(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_read_are_the_distinct_rows_of_every_kv_head_and_q_row),
        cmocka_unit_test(a_fork_that_cuts_a_segment_counts_the_rows_it_sees),
        cmocka_unit_test(groups_parted_by_the_end_of_a_wave_are_counted_once),
        cmocka_unit_test(a_group_of_70_heads_counts_shared_rows_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
