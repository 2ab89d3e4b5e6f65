/*
 * Random histories of parts: appends, seals, forks, truncates and closes in any order, against a
 * shadow that remembers what each held token was made of, and a plain f64 attention over it.
 */
#include "tests/unit/exec_fixture.h"

#define SHADOWS    6
#define MAX_TOKENS 700u

/* A part as it should be: for every held token the salt that its rows were made with. */
struct shadow {
    uint64_t handle, generation;
    uint32_t held[2];
    uint16_t salts[2][MAX_TOKENS];
};

struct world {
    struct fixture fixture;
    struct shape shape;
    struct pp_rng rng;
    struct shadow shadows[SHADOWS];
    uint32_t count;
    uint8_t next_id;
};

static uint32_t draw(struct world *world, uint32_t below)
{
    return (uint32_t)(pp_rng_u64(&world->rng) % below);
}

static void shadow_rows(const struct world *world, const struct shadow *shadow, uint32_t layer,
                        uint32_t begin, uint32_t count, float *k, float *v)
{
    uint32_t width = world->shape.kv_heads * world->shape.dim;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t salt = shadow->salts[layer][begin + i];
        make_rows(&world->shape, 2 * salt, begin + i, 1, k + i * width);
        make_rows(&world->shape, 2 * salt + 1, begin + i, 1, v + i * width);
    }
}

static void do_append(struct world *world, struct shadow *shadow)
{
    uint32_t layer = draw(world, 2);
    uint32_t back = draw(world, 4) == 0 ? draw(world, 20) : 0;
    uint32_t start = shadow->held[layer] > back ? shadow->held[layer] - back : 0;
    uint32_t count = 1 + draw(world, 120);
    if (start + count > MAX_TOKENS) {
        return;
    }
    uint16_t salt = (uint16_t)(1 + draw(world, 60000));
    for (uint32_t i = shadow->held[layer]; i < start + count; i++) {
        shadow->salts[layer][i] = salt;
    }
    static float k[120 * 64], v[120 * 64];
    shadow_rows(world, shadow, layer, start, count, k, v);
    struct fixture *fixture = &world->fixture;
    fixture->job.append =
        append_args(shadow->handle, shadow->generation, &world->shape, start, count, k, v);
    fixture->job.append.layer = layer;
    fixture->job.append.bulk = draw(world, 3) == 0;
    if (draw(world, 4) == 0) {
        fixture->job.append.segment_given = true;
        fixture->job.append.segment_begin = start;
        fixture->job.append.segment_count = count + draw(world, 3);
    }
    assert_int_equal(fixture_run(fixture, AN_JOB_APPEND), PP_OK);
    if (start + count > shadow->held[layer]) {
        shadow->held[layer] = start + count;
    }
    assert_int_equal(fixture->job.append.held_tokens, shadow->held[layer]);
}

static void do_seal(struct world *world, struct shadow *shadow)
{
    uint32_t layer = draw(world, 2);
    world->fixture.job.seal = (struct an_seal_args){
        .part = {shadow->handle, shadow->generation}, .layers = &layer, .layer_count = 1};
    assert_int_equal(fixture_run(&world->fixture, AN_JOB_SEAL), PP_OK);
}

static void do_fork(struct world *world, const struct shadow *shadow)
{
    uint32_t least = shadow->held[0] < shadow->held[1] ? shadow->held[0] : shadow->held[1];
    if (world->count == SHADOWS) {
        return;
    }
    struct shadow *child = &world->shadows[world->count];
    *child = *shadow;
    child->held[0] = child->held[1] = draw(world, least + 1);
    child->generation = 1 + draw(world, 5);
    struct an_fork_args args = {.part = {shadow->handle, shadow->generation},
                                .held_tokens = child->held[0],
                                .generation = child->generation};
    memset(args.sequence_id, world->next_id, PP_ID_BYTES);
    memset(args.part_id, world->next_id++, PP_ID_BYTES);
    world->fixture.job.fork = args;
    assert_int_equal(fixture_run(&world->fixture, AN_JOB_FORK), PP_OK);
    child->handle = world->fixture.job.fork.handle;
    world->count++;
}

static void do_truncate(struct world *world, struct shadow *shadow)
{
    uint32_t most = shadow->held[0] > shadow->held[1] ? shadow->held[0] : shadow->held[1];
    uint32_t to = draw(world, most + 1);
    world->fixture.job.truncate =
        (struct an_truncate_args){.part = {shadow->handle, shadow->generation},
                                  .new_generation = shadow->generation + 3,
                                  .held_tokens = to};
    assert_int_equal(fixture_run(&world->fixture, AN_JOB_TRUNCATE), PP_OK);
    shadow->generation += 3;
    for (int layer = 0; layer < 2; layer++) {
        shadow->held[layer] = shadow->held[layer] < to ? shadow->held[layer] : to;
    }
}

static void do_close(struct world *world, struct shadow *shadow)
{
    (void)fixture_close(&world->fixture, shadow->handle);
    *shadow = world->shadows[--world->count];
}

static double shadow_error(const struct world *world, const struct shadow *shadow, uint32_t layer,
                           const struct an_attend_item *item, const float *q)
{
    static float k[MAX_TOKENS * 64], v[MAX_TOKENS * 64];
    const struct shape *shape = &world->shape;
    uint32_t held = (uint32_t)item->held_tokens;
    shadow_rows(world, shadow, layer, 0, held, k, v);
    double worst = 0;
    for (uint32_t lane = 0; lane < item->q_rows * shape->q_heads; lane++) {
        double o[256];
        uint32_t kv = lane % shape->q_heads / (shape->q_heads / shape->kv_heads);
        double lse = an_self_test_reference(q + lane * shape->dim, k + kv * shape->dim,
                                            v + kv * shape->dim, shape->kv_heads * shape->dim, held,
                                            shape->dim, 1.0 / sqrt((double)shape->dim), o);
        double error = held == 0 ? (item->lse[lane] == -INFINITY ? 0 : 1)
                                 : fabs(lse - (double)item->lse[lane]);
        worst = error > worst || isnan(error) ? error : worst;
        for (uint32_t i = 0; i < shape->dim; i++) {
            error = fabs(o[i] - (double)item->o[lane * shape->dim + i]);
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    return worst;
}

static void do_attend(struct world *world, struct shadow *shadow)
{
    uint32_t layer = draw(world, 2);
    uint32_t rows = 1 + draw(world, 3);
    float q[3 * 4 * 16];
    make_queries(pp_rng_u64(&world->rng), rows * world->shape.q_heads * world->shape.dim, q);
    struct an_attend_item item;
    assert_int_equal(fixture_attend(&world->fixture, shadow->handle, shadow->generation, layer,
                                    draw(world, shadow->held[layer] + 1), rows, q,
                                    world->shape.q_heads, world->shape.dim, PP_EXACT, &item),
                     PP_OK);
    assert_true(shadow_error(world, shadow, layer, &item, q) < 1e-4);
}

static void random_histories_give_exact_attention_over_the_asked_prefix(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct world *world = calloc(1, sizeof(*world));
        assert_non_null(world);
        world->rng.seed = seed;
        print_message("seed %llu\n", (unsigned long long)seed);
        world->shape = (struct shape){.layers = 2,
                                      .q_heads = 4,
                                      .kv_heads = 2,
                                      .dim = 16,
                                      .dtype = PP_F32,
                                      .estimator = {.kind = PP_LSH, .k = 4, .l = 8, .t = 2}};
        world->fixture.now_us = 1;
        struct an_exec_config config = fixture_config(&world->fixture);
        config.seal_tokens = 32 + draw(world, 100);
        config.index_tokens_min = 40;
        config.threads = 1 + (uint32_t)(seed % 3);
        config.build_sync = seed % 2 == 0;
        fixture_start(&world->fixture, &config);
        world->next_id = 1;
        for (uint32_t step = 0; step < 300; step++) {
            if (world->count == 0) {
                struct shadow *first = &world->shadows[world->count++];
                *first = (struct shadow){.generation = 1};
                first->handle = fixture_open(&world->fixture, &world->shape, world->next_id++);
            }
            struct shadow *shadow = &world->shadows[draw(world, world->count)];
            uint32_t what = draw(world, 100);
            if (what < 45) {
                do_append(world, shadow);
            } else if (what < 75) {
                do_attend(world, shadow);
            } else if (what < 83) {
                do_seal(world, shadow);
            } else if (what < 91) {
                do_fork(world, shadow);
            } else if (what < 98) {
                do_truncate(world, shadow);
            } else {
                do_close(world, shadow);
            }
        }
        while (world->count > 0) {
            do_attend(world, &world->shadows[0]);
            do_close(world, &world->shadows[0]);
        }
        while (world->fixture.job.kind == AN_JOB_CLOSE) {
            struct an_exec_usage usage;
            (void)an_exec_poll(world->fixture.exec, 1000);
            an_exec_usage(world->fixture.exec, &usage);
            if (usage.index_bytes == 0) {
                break; /* builds that were under way have come back */
            }
        }
        fixture_expect_empty(&world->fixture);
        fixture_stop(&world->fixture);
        free(world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_histories_give_exact_attention_over_the_asked_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
