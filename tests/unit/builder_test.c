/*
 * Index builds on their own thread: attends never wait for them, what nobody wants any more is
 * dropped, what a fork still wants is published; and segments whose border, centre and signatures
 * the worker made.
 */
#include <stdio.h>

#include "tests/unit/exec_fixture.h"

static const struct shape shape = {.layers = 2,
                                   .q_heads = 4,
                                   .kv_heads = 2,
                                   .dim = 64,
                                   .dtype = PP_F32,
                                   .estimator = {.kind = PP_LSH, .k = 6, .l = 40, .t = 2}};

/* Polls until layer 0 has that many indexed tokens: every poll waits for the builder's wake. */
static void wait_indexed(struct fixture *fixture, uint64_t handle, uint64_t tokens)
{
    while (fixture_layers(fixture, handle)->indexed_tokens < tokens) {
        (void)an_exec_poll(fixture->exec, 100000);
    }
}

static void attends_go_on_while_indexes_are_built_and_use_them_when_they_are_there(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    config.threads = 2;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    float q[256];
    make_queries(5, 256, q);
    struct an_attend_item item;
    for (uint32_t at = 0; at < 8192; at += 512) {
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, at, 512, 3, false), PP_OK);
        assert_int_equal(
            fixture_attend(&fixture, handle, 1, 0, at + 512, 1, q, 4, 64, PP_LSH, &item), PP_OK);
        assert_true(answer_error(&item, &shape, 3, q) < 0.5);
    }
    wait_indexed(&fixture, handle, 8192);
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 8192, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    for (int head = 0; head < 4; head++) {
        assert_true(item.keys_read[head] > 0 && item.keys_read[head] < 8192);
    }
    (void)fixture_close(&fixture, handle);
    fixture_wait_empty(&fixture);
    fixture_stop(&fixture);
}

static unsigned threads_of_this_process(void)
{
    char line[128];
    unsigned threads = 0;
    FILE *file = fopen("/proc/self/status", "re");
    assert_non_null(file);
    while (threads == 0 && fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "Threads: %u", &threads);
    }
    fclose(file);
    return threads;
}

/* A team of the builder's own would compete with the attends'. */
static void the_builder_builds_alone(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    unsigned before = threads_of_this_process();
    assert_true(before >= 2);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 4096, 3, false), PP_OK);
    wait_indexed(&fixture, handle, 4096);
    /* A joined thread of another test may be counted until it is gone: fewer is no fault. */
    assert_true(threads_of_this_process() <= before);
    (void)fixture_close(&fixture, handle);
    fixture_wait_empty(&fixture);
    fixture_stop(&fixture);
}

static void background_and_inline_builds_answer_alike(void **state)
{
    (void)state;
    float q[256], first[256];
    make_queries(5, 256, q);
    for (int sync = 0; sync < 2; sync++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        config.build_sync = sync == 1;
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 4096, 3, false), PP_OK);
        wait_indexed(&fixture, handle, 4096);
        while (fixture_layers(&fixture, handle)->segments > 1) { /* until they are merged */
            (void)an_exec_poll(fixture.exec, 100000);
        }
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 4096, 1, q, 4, 64, PP_LSH, &item),
                         PP_OK);
        assert_int_equal(item.used, PP_LSH);
        if (sync == 0) {
            memcpy(first, item.o, sizeof(first));
        } else {
            assert_memory_equal(first, item.o, sizeof(first));
        }
        (void)fixture_close(&fixture, handle);
        fixture_wait_empty(&fixture);
        fixture_stop(&fixture);
    }
}

static void parts_closed_and_cut_under_a_build_leave_nothing_behind(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    fixture_start(&fixture, &config);
    for (uint8_t round = 1; round <= 12; round++) {
        uint64_t handle = fixture_open(&fixture, &shape, round);
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 3000, round, false),
                         PP_OK);
        if (round % 3 == 0) {
            fixture.job.truncate = (struct an_truncate_args){
                .part = {handle, 1}, .new_generation = 2, .held_tokens = 1500};
            assert_int_equal(fixture_run(&fixture, AN_JOB_TRUNCATE), PP_OK);
            wait_indexed(&fixture, handle, 1500);
        }
        (void)fixture_close(&fixture, handle);
    }
    fixture_wait_empty(&fixture);
    fixture_stop(&fixture);
}

static void a_build_is_published_while_a_fork_refers_to_its_segment(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    fixture_start(&fixture, &config);
    uint64_t parent = fixture_open(&fixture, &shape, 1);
    for (uint32_t layer = 0; layer < 2; layer++) {
        assert_int_equal(fixture_append(&fixture, parent, 1, &shape, layer, 0, 3000, 3, false),
                         PP_OK);
    }
    fixture.job.fork =
        (struct an_fork_args){.part = {parent, 1}, .held_tokens = 2500, .generation = 1};
    fixture.job.fork.part_id[0] = 9;
    assert_int_equal(fixture_run(&fixture, AN_JOB_FORK), PP_OK);
    uint64_t child = fixture.job.fork.handle;
    (void)fixture_close(&fixture, parent);
    wait_indexed(&fixture, child, 2048);
    (void)fixture_close(&fixture, child);
    fixture_wait_empty(&fixture);
    fixture_stop(&fixture);
}

static void destroy_with_builds_under_way_frees_everything(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    config.build_sync = false;
    config.seal_tokens = 64;
    config.index_tokens_min = 64;
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 20000, 3, false), PP_OK);
    fixture_stop(&fixture);
}

enum spoil { RIGHT, LOSE, ZERO };

/* Rows of a worker's segment with its centre and signatures, cut into messages of `step` rows;
 * LOSE: the signatures of the second message are left out; ZERO: all of them are 0. */
static void append_segment(struct fixture *fixture, uint64_t handle, uint32_t begin, uint32_t count,
                           uint32_t step, const float *centre, enum spoil spoil)
{
    const struct pp_estimator *estimator = &shape.estimator;
    struct pp_hash *hash;
    assert_int_equal(pp_hash_new(7, 64, estimator->k, estimator->l, &hash), PP_OK);
    float *k = malloc(count * 128 * sizeof(float)), *v = malloc(count * 128 * sizeof(float));
    uint64_t stride = (count + 31u) & ~31ull;
    uint16_t *codes = aligned_alloc(64, 40 * stride * sizeof(uint16_t));
    uint16_t *wire = malloc(count * 2 * 40 * sizeof(uint16_t));
    assert_true(k != NULL && v != NULL && codes != NULL && wire != NULL);
    make_rows(&shape, 3, begin, count, k);
    make_rows(&shape, 4, begin, count, v);
    for (uint32_t head = 0; head < 2; head++) {
        pp_hash_keys(hash, k + head * 64, 512, PP_F32, centre + head * 64, count, codes, stride);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t table = 0; table < 40; table++) {
                wire[(i * 2 + head) * 40 + table] = spoil == ZERO ? 0 : codes[table * stride + i];
            }
        }
    }
    for (uint32_t at = 0; at < count; at += step) {
        uint32_t rows = count - at < step ? count - at : step;
        fixture->job.append =
            append_args(handle, 1, &shape, begin + at, rows, k + at * 128, v + at * 128);
        struct an_append_args *args = &fixture->job.append;
        args->segment_given = true;
        args->segment_begin = begin;
        args->segment_count = count;
        args->centre = pp_span_of(centre, 512);
        if (spoil != LOSE || at != step) {
            args->signatures = pp_span_of(wire + at * 80, rows * 160ull);
        }
        assert_int_equal(fixture_run(fixture, AN_JOB_APPEND), PP_OK);
    }
    free(wire);
    free(codes);
    free(v);
    free(k);
    pp_hash_destroy(hash);
}

static void signatures_of_the_worker_and_of_the_node_give_the_same_answers(void **state)
{
    (void)state;
    float q[256], first[256], centre[128];
    make_queries(5, 256, q);
    struct pp_rng rng = {.seed = 11};
    for (int i = 0; i < 128; i++) {
        centre[i] = (float)pp_rng_normal(&rng) * 0.05f;
    }
    for (int spoil = 0; spoil < 3; spoil++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        /* 100 rows before: the border is the worker's, not a multiple of anything. */
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 100, 3, true), PP_OK);
        append_segment(&fixture, handle, 100, 2500, 700, centre, (enum spoil)spoil);
        const struct an_layer_info *layer = fixture_layers(&fixture, handle);
        assert_int_equal(layer->segments, 2);
        assert_int_equal(layer->sealed_tokens, 2600);
        assert_int_equal(layer->indexed_tokens, 2500);
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 2600, 1, q, 4, 64, PP_LSH, &item),
                         PP_OK);
        if (spoil == RIGHT) {
            assert_true(item.keys_read[0] > 100 && item.keys_read[0] < 2600);
            memcpy(first, item.o, sizeof(first));
        } else if (spoil == LOSE) {
            assert_memory_equal(first, item.o, sizeof(first));
        } else { /* what came is what is used: all rows lie in one bucket */
            assert_memory_not_equal(first, item.o, sizeof(first));
        }
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

static void a_worker_segment_cut_short_by_seal_is_hashed_by_the_node(void **state)
{
    (void)state;
    struct fixture fixture = {.now_us = 1};
    struct an_exec_config config = fixture_config(&fixture);
    fixture_start(&fixture, &config);
    uint64_t handle = fixture_open(&fixture, &shape, 1);
    float centre[128] = {0};
    append_segment(&fixture, handle, 0, 1500, 1500, centre, RIGHT);
    /* The next one is announced with 3,000 rows, and sealed after 1,200. */
    float *k = malloc(1200 * 128 * sizeof(float)), *v = malloc(1200 * 128 * sizeof(float));
    assert_true(k != NULL && v != NULL);
    make_rows(&shape, 3, 1500, 1200, k);
    make_rows(&shape, 4, 1500, 1200, v);
    fixture.job.append = append_args(handle, 1, &shape, 1500, 1200, k, v);
    fixture.job.append.segment_given = true;
    fixture.job.append.segment_begin = 1500;
    fixture.job.append.segment_count = 3000;
    assert_int_equal(fixture_run(&fixture, AN_JOB_APPEND), PP_OK);
    free(k);
    free(v);
    fixture.job.seal = (struct an_seal_args){.part = {handle, 1}};
    assert_int_equal(fixture_run(&fixture, AN_JOB_SEAL), PP_OK);
    assert_int_equal(fixture.job.seal.segments, 1);
    assert_int_equal(fixture_layers(&fixture, handle)->indexed_tokens, 2700);
    float q[256];
    make_queries(5, 256, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 2700, 1, q, 4, 64, PP_LSH, &item),
                     PP_OK);
    assert_true(answer_error(&item, &shape, 3, q) < 0.5);
    (void)fixture_close(&fixture, handle);
    fixture_expect_empty(&fixture);
    fixture_stop(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attends_go_on_while_indexes_are_built_and_use_them_when_they_are_there),
        cmocka_unit_test(the_builder_builds_alone),
        cmocka_unit_test(background_and_inline_builds_answer_alike),
        cmocka_unit_test(parts_closed_and_cut_under_a_build_leave_nothing_behind),
        cmocka_unit_test(a_build_is_published_while_a_fork_refers_to_its_segment),
        cmocka_unit_test(destroy_with_builds_under_way_frees_everything),
        cmocka_unit_test(signatures_of_the_worker_and_of_the_node_give_the_same_answers),
        cmocka_unit_test(a_worker_segment_cut_short_by_seal_is_hashed_by_the_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
