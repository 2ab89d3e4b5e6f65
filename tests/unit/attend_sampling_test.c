/*
 * What an attend samples: empty samples answered exactly or by a uniform one, the node's own choice
 * between exact and lsh, and estimators of single layers.
 */
#include "tests/unit/exec_fixture.h"

static const struct shape lsh_shape = {.layers = 3,
                                       .q_heads = 4,
                                       .kv_heads = 2,
                                       .dim = 64,
                                       .dtype = PP_F32,
                                       .estimator = {.kind = PP_LSH, .k = 5, .l = 24, .t = 2}};

static void an_empty_sample_is_answered_exactly_and_says_so(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    struct shape shape = lsh_shape;
    /* One table of 2^16 buckets, and two collisions asked of one table's sixteen bits twice over:
     * hardly any of 1,024 keys is found. */
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 16, .l = 2, .t = 2};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 1034, 8, false), PP_OK);
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 1034, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    assert_int_equal(item.used, PP_LSH);
    assert_int_equal(item.flags, 1);
    assert_int_equal(item.rows_read, 2 * 1034);
    assert_int_equal(item.keys_read[0], 1034);
    assert_true(answer_error(&item, &shape, 8, q) < 1e-4);
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

/* Rows that hardly any lsh sample finds, more than are read exactly for an empty one. */
static void an_empty_sample_of_many_rows_is_answered_by_a_uniform_one(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    enum { HELD = 30000, SEEDS = 24 };
    struct shape shape = {.layers = 1,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .dim = 8,
                          .dtype = PP_F32,
                          .estimator = {.kind = PP_LSH, .k = 16, .l = 2, .t = 2}};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, HELD, 8, true), PP_OK);
    fixture.job.seal = (struct an_seal_args){.part = {handle, 1}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
    float q[2 * 8], exact_o[2 * 8], exact_lse[2];
    make_queries(4, 2 * 8, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, HELD, 1, q, 2, 8, PP_EXACT, &item),
                     PP_OK);
    memcpy(exact_o, item.o, sizeof(exact_o));
    memcpy(exact_lse, item.lse, sizeof(exact_lse));
    double rows = 0, ratio = 0, squares = 0, published = 0, bias = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        item = (struct an_attend_item){.part = {handle, 1},
                                       .held_tokens = HELD,
                                       .q_rows = 1,
                                       .estimator = {.kind = PP_LSH},
                                       .q = (const uint8_t *)q,
                                       .q_bytes = sizeof(q),
                                       .seeds = &seed,
                                       .seed_count = 1};
        fixture.job.attend =
            (struct an_attend_args){.q_dtype = PP_F32, .items = &item, .item_count = 1};
        assert_int_equal(fixture_run(&fixture, AN_JOB_ATTEND), PP_OK);
        assert_int_equal(item.status, PP_OK);
        assert_int_equal(item.used, PP_LSH);
        assert_int_equal(item.flags, AN_ATTEND_EMPTY_SAMPLE | AN_ATTEND_UNIFORM);
        assert_int_equal(item.keys_read[0], item.keys_read[1]); /* the heads share it */
        assert_int_equal(item.rows_read, item.keys_read[0]);
        assert_int_equal(item.rows_sampled, HELD);
        rows += (double)item.keys_read[0] / SEEDS;
        ratio += exp((double)(item.lse[0] - exact_lse[0])) / SEEDS;
        squares += pow((double)(item.lse[0] - exact_lse[0]), 2) / SEEDS;
        published += (double)item.lse_var[0] / SEEDS;
        for (int i = 0; i < 8; i++) {
            bias += (double)(item.o[i] - exact_o[i]) / (SEEDS * 8.0);
        }
    }
    double deviation = sqrt(published / SEEDS); /* of a mean */
    print_message("%.0f rows, e^lse off by %.2e, expected %.2e\n", rows, ratio - 1, deviation);
    assert_true(fabs(rows - 16384) < 4 * sqrt(16384.0 * (1 - 16384.0 / HELD) / SEEDS) + 1);
    assert_true(fabs(ratio - 1) < 4 * deviation);
    assert_true(fabs(bias) < 4 * deviation);
    assert_true(squares > published / 3 && squares < published * 3);
    (void)fixture_close(&fixture, handle);
    fixture_stop(&fixture);
}

/* One q row of one head to a kv head is sampled; many rows together are cheaper read exactly. */
static void a_node_reads_exactly_where_that_is_cheaper_unless_the_estimator_is_named(void **state)
{
    (void)state;
    enum { HELD = 9000, ROWS = 48 };
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    struct shape shape = lsh_shape;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 4, .l = 40, .t = 2};
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, HELD, 8, true), PP_OK);
    fixture.job.seal = (struct an_seal_args){.part = {handle, 1}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
    float *q = malloc(ROWS * 4 * 64 * sizeof(float));
    make_queries(4, ROWS * 4 * 64, q);
    struct an_attend_item item;
    static const enum pp_estimator_kind asked[] = {PP_ESTIMATOR_NONE, PP_LSH, PP_EXACT};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, HELD, ROWS, q, 4, 64, asked[i], &item), PP_OK);
        bool sampled = asked[i] == PP_LSH;
        assert_int_equal(item.used, sampled ? PP_LSH : PP_EXACT);
        assert_int_equal(item.rows_sampled, sampled ? item.rows_held : 0);
        assert_true(sampled || item.rows_read == item.rows_held);
        assert_true(sampled || answer_error(&item, &shape, 8, q) < 1e-4);
    }
    free(q);
    (void)fixture_close(&fixture, handle);
    /* Selective tables: sampling pays, and the tail is read beside it. */
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 10, .l = 30, .t = 2};
    handle = fixture_open(&fixture, &shape, 2);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, HELD, 8, false), PP_OK);
    float one[4 * 64];
    make_queries(4, 4 * 64, one);
    assert_int_equal(
        fixture_attend(&fixture, handle, 1, 0, HELD, 1, one, 4, 64, PP_ESTIMATOR_NONE, &item),
        PP_OK);
    assert_int_equal(item.used, PP_LSH);
    assert_int_equal(item.rows_sampled, 2 * (HELD / 1024 * 1024));
    assert_true(item.rows_read < item.rows_held);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* Rows of three segments, too few to be merged. In the second, the keys of kv head 0 lie along the
 * queries, half of them the other way: its tables find half of it, and reading it whole is cheaper.
 */
static void append_mixed(struct fixture *fixture, uint64_t handle, const struct shape *shape,
                         const float q[64])
{
    enum { SEGMENT = 1024, WIDTH = 2 * 64 };
    float *k = malloc(2 * SEGMENT * WIDTH * sizeof(float));
    struct pp_rng rng = {.seed = 21};
    assert_non_null(k);
    float *v = k + SEGMENT * WIDTH;
    for (uint32_t segment = 0; segment < 3; segment++) {
        for (uint32_t i = 0; i < SEGMENT * WIDTH; i++) {
            bool along = segment == 1 && i % WIDTH < 64;
            float sign = i / WIDTH % 2 == 0 ? 1.0f : -1.0f;
            float noise = (float)pp_rng_normal(&rng);
            k[i] = along ? sign * q[i % WIDTH] + 0.01f * noise : noise;
            v[i] = (float)pp_rng_normal(&rng);
        }
        fixture->job.append =
            append_args(handle, 1, shape, segment * (uint64_t)SEGMENT, SEGMENT, k, v);
        assert_int_equal(fixture_run(fixture, AN_JOB_APPEND), PP_OK);
    }
    free(k);
}

static void a_plan_of_both_kinds_has_the_same_bits_at_1_2_and_5_threads(void **state)
{
    (void)state;
    enum { HELD = 3 * 1024 };
    static const uint32_t threads[] = {1, 2, 5};
    float q[4 * 64], first[4 * 64], first_lse[4];
    struct shape shape = lsh_shape;
    shape.layers = 1;
    shape.estimator = (struct pp_estimator){.kind = PP_LSH, .k = 10, .l = 30, .t = 2};
    make_queries(6, 64, q);
    for (int head = 1; head < 4; head++) {
        memcpy(q + (size_t)head * 64, q, 64 * sizeof(float));
    }
    for (int i = 0; i < 3; i++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        struct an_attend_item item;
        config.threads = threads[i];
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        append_mixed(&fixture, handle, &shape, q);
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, HELD, 1, q, 4, 64, PP_ESTIMATOR_NONE, &item),
            PP_OK);
        assert_int_equal(item.used, PP_LSH);
        assert_int_equal(item.rows_sampled, 5 * 1024); /* of 6 segments of a kv head */
        if (i == 0) {
            memcpy(first, item.o, sizeof(first));
            memcpy(first_lse, item.lse, sizeof(first_lse));
        }
        assert_memory_equal(item.o, first, sizeof(first));
        assert_memory_equal(item.lse, first_lse, sizeof(first_lse));
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

/* Layer `layer` with l tables (0: exact) holds `held` tokens: near exact, a part of the rows read,
 * and signatures of its own length taken. */
static void check_layer(struct fixture *fixture, uint64_t handle, const struct shape *shape,
                        uint32_t layer, uint32_t l, uint32_t held)
{
    static const uint16_t codes[4 * 120];
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    assert_int_equal(fixture_append(fixture, handle, 1, shape, layer, 0, held, 8, false), PP_OK);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(fixture, handle, 1, layer, held, 1, q, 4, 64, PP_EXACT, &item),
                     PP_OK);
    float exact_lse[4];
    memcpy(exact_lse, item.lse, sizeof(exact_lse));
    assert_int_equal(fixture_attend(fixture, handle, 1, layer, held, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    assert_int_equal(item.used, l == 0 ? PP_EXACT : PP_LSH);
    double share = (double)item.rows_read / (double)item.rows_held;
    print_message("layer %u reads %.4f\n", layer, share);
    assert_true(l == 0 ? share == 1 : share > 0 && share < 0.5);
    for (int head = 0; head < 4; head++) {
        double apart = fabs((double)(item.lse[head] - exact_lse[head]));
        assert_true(apart < 8 * sqrt((double)item.lse_var[head]) + 0.01);
    }
    item = (struct an_attend_item){.part = {handle, 1},
                                   .held_tokens = held,
                                   .q_rows = 1,
                                   .estimator = {.kind = PP_LSH, .k = 5, .l = 24, .t = 2},
                                   .q = (const uint8_t *)q,
                                   .q_bytes = sizeof(q),
                                   .signatures = (const uint8_t *)codes,
                                   .signature_bytes = 4ull * l * sizeof(codes[0])};
    fixture->job.attend =
        (struct an_attend_args){.layer = layer, .q_dtype = PP_F32, .items = &item, .item_count = 1};
    assert_int_equal(fixture_run(fixture, AN_JOB_ATTEND), PP_OK);
    assert_int_equal(item.status, l == 0 ? PP_INVALID_ARGUMENT : PP_OK);
}

/* Layers of one part under estimators of their own: each answers near exact, reads about the share
 * that its parameters stand for, and its signatures have its own length. */
static void layers_sample_by_estimators_of_their_own(void **state)
{
    (void)state;
    enum { HELD = 8192 };
    static const struct pp_layer_estimator own[] = {{0, {.kind = PP_LSH, .k = 8, .l = 98, .t = 3}},
                                                    {1, {.kind = PP_LSH, .k = 7, .l = 92, .t = 4}},
                                                    {3, {.kind = PP_LSH, .k = 9, .l = 120, .t = 2}},
                                                    {4, {.kind = PP_LSH, .k = 8, .l = 75, .t = 2}},
                                                    {5, {.kind = PP_EXACT}},
                                                    {6, {.kind = PP_LSH, .k = 8, .l = 75, .t = 2}}};
    static const uint32_t tables[] = {98, 92, 24, 120, 75, 0, 75};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    struct shape shape = lsh_shape;
    shape.layers = 7;
    fixture.job.open = shape_open(&shape, 1);
    fixture.job.open.layer_estimators = own;
    fixture.job.open.layer_estimator_count = 6;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK);
    uint64_t handle = fixture.job.open.handle;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_OK); /* the same, asked again */
    assert_int_equal(fixture.job.open.handle, handle);
    float q[4 * 64];
    make_queries(4, 4 * 64, q);
    for (uint32_t layer = 0; layer < 7; layer++) {
        check_layer(&fixture, handle, &shape, layer, tables[layer], HELD);
    }
    fixture.job.open = shape_open(&shape, 1);
    fixture.job.open.layer_estimators = own;
    fixture.job.open.layer_estimator_count = 5;
    assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_PART_EXISTS);
    fixture.job.fork = (struct an_fork_args){
        .part = {handle, 1}, .held_tokens = 5000, .generation = 1, .part_id = {9}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_FORK), PP_OK);
    uint64_t fork = fixture.job.fork.handle;
    struct an_attend_item item;
    (void)fixture_close(&fixture, handle);
    assert_int_equal(fixture_attend(&fixture, fork, 1, 3, 5000, 1, q, 4, 64, PP_LSH, &item), PP_OK);
    assert_true(item.used == PP_LSH && item.rows_read < item.rows_held);
    (void)fixture_close(&fixture, fork);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

/* One layer under `own` in a part of another estimator, or of `own` where that is NULL. */
static void answer_under(struct fixture *fixture, const struct pp_layer_estimator *own,
                         const struct pp_estimator *parts, float o_out[4 * 64])
{
    struct shape shape = lsh_shape;
    shape.layers = 1;
    shape.estimator = parts != NULL ? *parts : own->estimator;
    fixture->job.open = shape_open(&shape, 1);
    fixture->job.open.layer_estimators = own;
    fixture->job.open.layer_estimator_count = parts != NULL ? 1 : 0;
    assert_int_equal(fixture_run(fixture, AN_JOB_OPEN), PP_OK);
    uint64_t handle = fixture->job.open.handle;
    for (uint32_t at = 0; at < 2048; at += 512) {
        assert_int_equal(fixture_append(fixture, handle, 1, &shape, 0, at, 512, 3, false), PP_OK);
    }
    float q[4 * 64];
    struct an_attend_item item;
    make_queries(5, 4 * 64, q);
    assert_int_equal(
        fixture_attend(fixture, handle, 1, 0, 2048, 1, q, 4, 64, own->estimator.kind, &item),
        PP_OK);
    assert_int_equal(item.used, own->estimator.kind);
    memcpy(o_out, item.o, 4 * 64 * sizeof(float));
    (void)fixture_close(fixture, handle);
}

static void a_layers_estimator_answers_alike_whatever_its_part_has(void **state)
{
    (void)state;
    static const struct pp_estimator all[] = {{.kind = PP_LSH, .k = 6, .l = 30, .t = 2},
                                              {.kind = PP_LSH, .k = 8, .l = 75, .t = 2},
                                              {.kind = PP_SKETCH, .bits = 2, .rows_share = 0.1f},
                                              {.kind = PP_EXACT}};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    for (uint32_t i = 0; i < 4; i++) {
        const struct pp_layer_estimator own = {0, all[i]};
        float expected[4 * 64], o[4 * 64];
        answer_under(&fixture, &own, NULL, expected);
        for (uint32_t j = 0; j < 4; j++) {
            answer_under(&fixture, &own, &all[j], o);
            assert_memory_equal(o, expected, sizeof(o));
        }
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

static void estimators_of_layers_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct pp_layer_estimator bad[] = {{3, {.kind = PP_LSH}},
                                                    {0, {.kind = PP_LSH, .k = 17}}};
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    for (int i = 0; i < 2; i++) {
        fixture.job.open = shape_open(&lsh_shape, 3);
        fixture.job.open.layer_estimators = &bad[i];
        fixture.job.open.layer_estimator_count = 1;
        assert_int_equal(fixture_run(&fixture, AN_JOB_OPEN), PP_INVALID_ARGUMENT);
    }
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_sample_is_answered_exactly_and_says_so),
        cmocka_unit_test(an_empty_sample_of_many_rows_is_answered_by_a_uniform_one),
        cmocka_unit_test(a_node_reads_exactly_where_that_is_cheaper_unless_the_estimator_is_named),
        cmocka_unit_test(a_plan_of_both_kinds_has_the_same_bits_at_1_2_and_5_threads),
        cmocka_unit_test(layers_sample_by_estimators_of_their_own),
        cmocka_unit_test(a_layers_estimator_answers_alike_whatever_its_part_has),
        cmocka_unit_test(estimators_of_layers_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
