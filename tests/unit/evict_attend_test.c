/*
 * Parts that are evicted, and others opened on the memory they leave, while attends over them are
 * on their way: an answer is the part's own constant or an error, never another's. On the threads
 * that a node has; for the sanitizers above all.
 */
#include <stdio.h>

#include "tests/unit/exec_fixture.h"

#define PARTS   6u
#define ATTENDS 8u
#define TOKENS  3000u
#define ROUNDS  30u
#define WIDTH   32u /* kv heads x dim */

static const struct shape constant = {1,  2,      2,
                                      16, PP_F32, {.kind = PP_LSH, .k = 6, .l = 20, .t = 2}};

struct world {
    struct fixture fixture;
    float rows[TOKENS * WIDTH];
    float q[WIDTH];
    struct an_job attends[ATTENDS], evict, append;
    struct an_attend_item items[ATTENDS];
    uint8_t *arenas[ATTENDS];
    uint64_t handles[PARTS];
    uint32_t values[PARTS]; /* the constant of every row of a part */
    uint32_t value_of[ATTENDS];
    uint32_t right, gone;
    bool evicted; /* this round's eviction has come back */
};

static void nothing(void *context)
{
    (void)context;
}

static void check_attend(struct world *world, uint32_t index)
{
    const struct an_job *job = &world->attends[index];
    const struct an_attend_item *item = &world->items[index];
    enum pp_status status = job->status != PP_OK ? job->status : item->status;
    if (status != PP_OK) {
        assert_true(status == PP_PART_NOT_FOUND || status == PP_PART_EXPIRED);
        world->gone++;
        return;
    }
    for (uint32_t i = 0; i < WIDTH; i++) {
        if (fabsf(item->o[i] - (float)world->value_of[index]) > 1e-3f) {
            fail_msg("%g where every value is %u", (double)item->o[i], world->value_of[index]);
        }
    }
    world->right++;
}

static void came_back(struct world *world, const struct an_job *job)
{
    for (uint32_t i = 0; i < ATTENDS; i++) {
        if (job == &world->attends[i]) {
            check_attend(world, i);
        }
    }
}

/* Until this job is done; attends may come back before it. */
static void take_back(struct world *world, const struct an_job *wanted)
{
    const struct an_job *job = NULL;
    while (job != wanted) {
        job = an_exec_take_done(world->fixture.exec);
        if (job != NULL) {
            came_back(world, job);
        } else {
            __builtin_ia32_pause();
        }
    }
}

static void run_job(struct world *world, struct an_job *job)
{
    assert_int_equal(an_exec_submit(world->fixture.exec, job), PP_OK);
    take_back(world, job);
    assert_int_equal(job->status, PP_OK);
}

/* A part full of one value, that nobody had before. */
static void open_filled(struct world *world, uint32_t part, uint32_t value)
{
    struct an_job *job = &world->append;
    *job = (struct an_job){.kind = AN_JOB_OPEN, .open = shape_open(&constant, (uint8_t)value)};
    run_job(world, job);
    world->handles[part] = job->open.handle;
    world->values[part] = value;
    for (uint32_t i = 0; i < TOKENS * WIDTH; i++) {
        world->rows[i] = (float)value;
    }
    *job = (struct an_job){.kind = AN_JOB_APPEND,
                           .append = append_args(world->handles[part], 1, &constant, 0, TOKENS,
                                                 world->rows, world->rows)};
    run_job(world, job);
}

static void submit_attend(struct world *world, uint32_t index, uint32_t part)
{
    struct an_job *job = &world->attends[index];
    world->value_of[index] = world->values[part];
    world->items[index] =
        (struct an_attend_item){.part = {world->handles[part], 1},
                                .held_tokens = TOKENS,
                                .q_rows = 1,
                                .estimator = {.kind = index % 2 == 0 ? PP_EXACT : PP_LSH},
                                .q = (const uint8_t *)world->q,
                                .q_bytes = sizeof(world->q)};
    *job = (struct an_job){
        .kind = AN_JOB_ATTEND,
        .arena = world->arenas[index],
        .arena_bytes = FIXTURE_ARENA_BYTES,
        .attend = {.q_dtype = PP_F32, .items = &world->items[index], .item_count = 1}};
    assert_int_equal(an_exec_submit(world->fixture.exec, job), PP_OK);
}

/* Takes back what is done until `count` attends have been answered, and the eviction. */
static void drain(struct world *world, uint32_t count)
{
    while (!world->evicted || world->right + world->gone < count) {
        const struct an_job *job = an_exec_take_done(world->fixture.exec);
        world->evicted = world->evicted || job == &world->evict;
        if (job != NULL) {
            came_back(world, job);
        }
    }
}

/* Attends around an eviction, in the queue at once; one behind it; then another part takes the
 * place. */
static void one_round(struct world *world, uint32_t round)
{
    uint32_t victim = round % PARTS, answered = world->right + world->gone;
    world->evicted = false;
    world->evict = (struct an_job){
        .kind = AN_JOB_EVICT,
        .evict = {.handles = &world->handles[victim], .handle_count = 1, .force = true}};
    for (uint32_t i = 0; i + 1 < ATTENDS; i++) {
        if (i == ATTENDS / 2) {
            assert_int_equal(an_exec_submit(world->fixture.exec, &world->evict), PP_OK);
        }
        submit_attend(world, i, i % 2 == 0 ? victim : (victim + i) % PARTS);
    }
    drain(world, answered + ATTENDS - 1);
    assert_int_equal(world->evict.evict.evicted, 1);
    uint32_t gone = world->gone;
    submit_attend(world, ATTENDS - 1, victim);
    drain(world, answered + ATTENDS);
    assert_int_equal(world->gone, gone + 1);
    open_filled(world, victim, PARTS + 1 + round);
}

static void an_attend_beside_an_eviction_is_right_or_an_error(void **state)
{
    (void)state;
    struct world *world = calloc(1, sizeof(*world));
    assert_non_null(world);
    struct an_exec_config config = fixture_config(&world->fixture);
    config.memory_limit_bytes = 64ull << 20;
    config.threads = 2;
    config.build_sync = false; /* the builder works on what is evicted too */
    config.seal_tokens = config.index_tokens_min = 256;
    config.queue_depth = 64;
    config.wake = nothing;
    world->fixture.now_us = 1;
    fixture_start(&world->fixture, &config);
    for (uint32_t i = 0; i < ATTENDS; i++) {
        world->arenas[i] = aligned_alloc(64, FIXTURE_ARENA_BYTES);
        assert_non_null(world->arenas[i]);
    }
    for (uint32_t i = 0; i < WIDTH; i++) {
        world->q[i] = (float)i - 7.5f;
    }
    assert_int_equal(an_exec_start(world->fixture.exec), PP_OK);
    for (uint32_t part = 0; part < PARTS; part++) {
        open_filled(world, part, part + 1);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        one_round(world, round);
    }
    an_exec_stop(world->fixture.exec);
    printf("%u answers right, %u of parts that were gone\n", world->right, world->gone);
    assert_true(world->right > ROUNDS);
    assert_true(world->gone > 0);
    for (uint32_t i = 0; i < ATTENDS; i++) {
        free(world->arenas[i]);
    }
    fixture_stop(&world->fixture);
    free(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_attend_beside_an_eviction_is_right_or_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
