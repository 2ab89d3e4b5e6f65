/*
 * The worker's remote side against real nodes on a simulated network, by seed: appends, attends,
 * truncates and reads at random while a profile's faults strike. After every step laws 1 to 3 hold;
 * nobody waits much longer for a lost node than its timeout; when the faults end everything works
 * again, and when the sequences are closed and the leases over, nothing is left on the nodes. A
 * profile whose fault never strikes, or whose effect is never seen, fails.
 *
 * PIGPEN_SIM_SEEDS=N runs N seeds, all profiles together; PIGPEN_SIM_SEED=N one seed of each, of
 * PIGPEN_SIM_PROFILE=NAME alone where that is set, with its log.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "gpu-worker/remote/internal.h"
#include "tests/sim/sim_tale.h"

#define SEEDS_DEFAULT  400u
#define STEPS          40u
#define PROGRESS_EVERY 500u
/* So many seeds meet everything that a profile promises. */
#define SEEDS_TELLING 40u
/* Where everything may go wrong each single thing does so rarely. */
#define SEEDS_TELLING_ALL 200u

struct profile {
    const char *name;
    uint32_t faults;
    double break_rate, duplicate_rate;
    uint32_t replicas_max; /* of a run: 1 or as many */
    uint32_t effects;      /* bits of sim_seen that some seed must show */
};

#define EFFECT(seen) (1u << SIM_SEEN_##seen)
/* What may be seen where nothing goes wrong: nodes that answer at different speeds are no fault. */
#define CALM                                                                                       \
    (EFFECT(ANSWERS) | EFFECT(ROWS_READ) | EFFECT(LATE_ANSWERS) | EFFECT(HEDGES) |                 \
     EFFECT(PARTS_BEHIND))

static const struct profile profiles[] = {
    {"calm", 0, 0, 0, 3, EFFECT(ANSWERS) | EFFECT(ROWS_READ)},
    {"breaks", SIM_FAULT(SIM_LINK_BREAK), 0.01, 0.02, 3,
     EFFECT(BREAKS) | EFFECT(DUPLICATES) | EFFECT(RESENDS) | EFFECT(APPENDS_REPEATED)},
    {"crashes", SIM_NODE_CRASHES, 0, 0, 1, EFFECT(PARTS_LOST) | EFFECT(RECOVERIES)},
    {"partitions",
     SIM_FAULT(SIM_LINK_SLOW) | SIM_FAULT(SIM_PARTITION) | SIM_FAULT(SIM_PARTITION_TO_NODE) |
         SIM_FAULT(SIM_PARTITION_TO_WORKER) | SIM_FAULT(SIM_NODE_PAUSE) | SIM_FAULT(SIM_NODE_SLOW),
     0, 0, 3, EFFECT(LATE_ANSWERS) | EFFECT(HEDGES) | EFFECT(RECOVERIES)},
    {"memory", SIM_FAULT(SIM_MEMORY_FULL), 0, 0, 2, EFFECT(MEMORY_REFUSED)},
    {"clocks",
     SIM_FAULT(SIM_NODE_CLOCK_FORWARD) | SIM_FAULT(SIM_NODE_CLOCK_BACK) |
         SIM_FAULT(SIM_WORKER_CLOCK_FORWARD) | SIM_FAULT(SIM_WORKER_CLOCK_BACK) |
         SIM_FAULT(SIM_WORKER_STALL),
     0, 0, 2, EFFECT(LEASES_ENDED)},
    {"members",
     SIM_FAULT(SIM_NODE_LEAVES) | SIM_FAULT(SIM_NODE_JOINS) | SIM_FAULT(SIM_NODE_MOVES) |
         SIM_FAULT(SIM_NODE_DRAIN),
     0, 0, 2, EFFECT(PARTS_COPIED) | EFFECT(PARTS_LOST)},
    {"worker", SIM_WORKER_CRASHES, 0, 0, 2, EFFECT(LEASES_ENDED)},
    /* A replica that falls behind without being cut off is rare: one of 2,000 seeds. */
    {"storm", SIM_ALL_FAULTS, 0.001, 0.005, 3,
     ((1u << SIM_SEEN_COUNT) - 1) & ~EFFECT(PARTS_BEHIND)},
};
#define PROFILES (sizeof(profiles) / sizeof(profiles[0]))

/* Of jemalloc: worlds come and go by the hundred, their pages may stay. */
const char *malloc_conf = "dirty_decay_ms:-1,muzzy_decay_ms:-1";

struct sim_run *sim_current;

const char *sim_where(void)
{
    static char text[320];
    const struct sim_run *run = sim_current;
    text[0] = '\0';
    if (run != NULL) {
        (void)snprintf(text, sizeof(text),
                       "profile %s, seed %llu, step %u; again: PIGPEN_SIM_PROFILE=%s "
                       "PIGPEN_SIM_SEED=%llu %s",
                       run->profile, (unsigned long long)run->seed, run->step, run->profile,
                       (unsigned long long)run->seed, program_invocation_name);
    }
    return text;
}

void sim_broken(const char *law)
{
    print_error("broken: %s\n%s\n", law, sim_where());
    fail();
}

/* An assertion of the product or a sanitizer ends the process: which seed was it? */
static void tell_seed(void)
{
    (void)fprintf(stderr, "%s\n", sim_where());
}

static void on_abort(int number)
{
    tell_seed();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

/* Of the sanitizers' runtime, where there is one. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* Another worker in place of one that crashed: it knows nothing of the sequences there were. */
static void replace_worker(struct sim_run *run)
{
    if (run->world.worker_crashed) {
        for (uint32_t i = 0; i < SIM_TALES; ++i) {
            sim_tale_close(&run->tales[i]);
        }
        sim_world_replace_worker(&run->world);
    }
}

static void operate(struct sim_run *run, struct sim_tale *tale)
{
    switch (sim_draw(run, 12)) {
    case 0:
    case 1:
    case 2:
    case 3:
        sim_tale_append(run, tale);
        break;
    case 4:
        sim_tale_flush(run, tale);
        break;
    case 5:
        sim_tale_truncate(run, tale);
        break;
    case 6:
        sim_tale_seal(run, tale);
        break;
    case 7:
        sim_tale_read(run, tale);
        break;
    default:
        sim_tale_attend(run, tale, &run->tales[tale == &run->tales[0] ? 1 : 0]);
        break;
    }
}

static void step(struct sim_run *run)
{
    struct sim_tale *tale = &run->tales[sim_draw(run, SIM_TALES)];
    if (sim_draw(run, 5) == 0) {
        sim_faults_draw(&run->faults);
    }
    if (tale->sequence != NULL || sim_tale_open(run, tale)) {
        /* A worker computes between two calls, or does not. */
        for (uint64_t i = sim_draw(run, 5); i > 0; --i) {
            sim_world_wait(&run->world, sim_draw(run, 10000));
            gw_remote_maintain(tale->sequence);
        }
        operate(run, tale);
    }
    for (uint32_t i = 0; i < SIM_TALES; ++i) {
        sim_tale_verify(run, &run->tales[i]);
    }
    replace_worker(run);
}

/* After the faults: what is left of the old sequences may have ended, new ones must work, on all
 * nodes. */
static void check_healed(struct sim_run *run)
{
    struct sim_world *world = &run->world;
    sim_faults_end(&run->faults);
    run->faults_may = false;
    /* Connections to a node that died without a word are noticed by the keepalive only. */
    sim_world_wait(world, PP_SIM_KEEPALIVE_US + 1000000);
    for (uint32_t i = 0; i < SIM_TALES; ++i) {
        sim_tale_close(&run->tales[i]);
    }
    for (uint32_t i = 0; gw_remote_nodes_in_use(world->remote) < world->config.node_count; ++i) {
        SIM_CHECK(i < 60); /* nodes that answer are used again */
        sim_world_wait(world, 1000000 + run->faults.worker_back_us / 30);
    }
    for (uint32_t i = 0; i < SIM_TALES; ++i) {
        struct sim_tale *tale = &run->tales[i];
        SIM_CHECK(sim_tale_open(run, tale));
        sim_tale_append(run, tale);
        sim_tale_flush(run, tale);
        sim_tale_read(run, tale);
        sim_tale_verify(run, tale);
    }
    for (uint32_t i = 0; i < SIM_TALES; ++i) {
        sim_tale_close(&run->tales[i]);
    }
}

/* Whatever was lost on the way is freed by its lease. */
static void check_nothing_left(struct sim_run *run)
{
    struct sim_world *world = &run->world;
    sim_world_wait(world, SIM_LEASE_US + 5000000 + run->faults.nodes_back_us);
    for (uint32_t i = 0; i < world->config.node_count; ++i) {
        struct an_exec_usage usage;
        an_exec_usage(world->nodes[i].exec, &usage);
        SIM_CHECK(usage.parts == 0 && usage.tokens_held == 0);
        SIM_CHECK(usage.kv_bytes == 0 && usage.index_bytes == 0 && usage.tail_bytes == 0);
    }
}

/* What all seeds of a profile have met; equal runs have equal digests. */
struct tally {
    uint64_t digest;
    uint64_t struck[SIM_FAULT_COUNT], seen[SIM_SEEN_COUNT];
};

static void world_of(struct sim_run *run, const struct profile *profile,
                     struct sim_world_config *config)
{
    *config = (struct sim_world_config){
        .net = {.seed = run->seed,
                .delay_us_min = 10,
                .delay_us_max = 10 + sim_draw(run, 5000),
                .break_rate = profile->break_rate,
                .duplicate_rate = profile->duplicate_rate},
        /* Few, most often: then a fault meets everybody. */
        .node_count = 1 + (uint32_t)sim_draw(run, sim_draw(run, 4) == 0 ? SIM_NODES_MAX : 5),
        .shard = (enum gw_shard)sim_draw(run, GW_SHARD_BOTH + 1),
        .replicas = sim_draw(run, 2) == 0 ? 1 : profile->replicas_max,
        .seal_tokens = 16 + (uint32_t)sim_draw(run, 100),
    };
    bool members = (profile->faults & SIM_FAULT(SIM_NODE_JOINS)) != 0;
    config->listed_count =
        members ? 1 + (uint32_t)sim_draw(run, config->node_count) : config->node_count;
}

/* Where nothing goes wrong, nothing is lost, but for replicas that are far away and fell behind. */
static void check_calm(const struct sim_run *run, const struct profile *profile)
{
    const uint64_t *seen = run->world.seen;
    bool calm = profile->faults == 0 && profile->break_rate == 0;
    for (uint32_t i = 0; i < SIM_SEEN_COUNT && calm; ++i) {
        bool follows =
            i == SIM_SEEN_PARTS_LOST || i == SIM_SEEN_PARTS_COPIED || i == SIM_SEEN_LEASES_ENDED;
        uint64_t most = follows ? seen[SIM_SEEN_PARTS_BEHIND] : 0;
        if ((CALM >> i & 1) == 0 && seen[i] > most) {
            print_error("without a fault: %s\n", sim_seen_names[i]);
            sim_broken("nothing is lost without a fault");
        }
    }
}

static void run_seed(uint64_t seed, const struct profile *profile, struct tally *tally)
{
    struct sim_run *run = calloc(1, sizeof(*run));
    struct sim_world_config config;
    sim_current = run;
    run->seed = seed;
    run->profile = profile->name;
    run->rng.seed = seed * 2654435761u + 17;
    run->faults_may = profile->faults != 0 || profile->break_rate > 0;
    world_of(run, profile, &config);
    sim_world_init(&run->world, &config);
    sim_faults_init(&run->faults, &run->world, &run->rng, profile->faults);
    for (uint32_t i = 0; i < SIM_TALES; ++i) {
        sim_tale_init(run, &run->tales[i]);
    }
    for (run->step = 0; run->step < STEPS; ++run->step) {
        step(run);
    }
    check_healed(run);
    check_nothing_left(run);
    for (uint32_t i = 0; i < SIM_TALES; ++i) {
        reference_deinit(&run->tales[i].reference);
    }
    tally->digest ^= pp_rng_at(seed, pp_sim_net_digest(run->world.net));
    sim_world_deinit(&run->world);
    check_calm(run, profile);
    for (uint32_t i = 0; i < SIM_FAULT_COUNT; ++i) {
        tally->struck[i] += run->faults.struck[i];
    }
    for (uint32_t i = 0; i < SIM_SEEN_COUNT; ++i) {
        tally->seen[i] += run->world.seen[i];
    }
    sim_current = NULL;
    free(run);
}

/* What was promised has happened, and all of it is told. */
static void check_tally(const struct profile *profile, const struct tally *tally, uint64_t count)
{
    print_message("%s: %llu seeds", profile->name, (unsigned long long)count);
    for (uint32_t i = 0; i < SIM_SEEN_COUNT; ++i) {
        if (tally->seen[i] > 0) {
            print_message(", %llu %s", (unsigned long long)tally->seen[i], sim_seen_names[i]);
        }
    }
    print_message("\n");
    bool kept = true;
    uint32_t telling = profile->faults == SIM_ALL_FAULTS ? SEEDS_TELLING_ALL : SEEDS_TELLING;
    for (uint32_t i = 0; i < SIM_FAULT_COUNT; ++i) {
        bool promised = (profile->faults & SIM_FAULT(i)) != 0;
        if (promised) {
            print_message("  %6llu %s\n", (unsigned long long)tally->struck[i], sim_fault_names[i]);
        }
        kept = kept && (!promised || tally->struck[i] > 0 || count < telling);
    }
    for (uint32_t i = 0; i < SIM_SEEN_COUNT; ++i) {
        if ((profile->effects >> i & 1) != 0 && tally->seen[i] == 0 && count >= telling) {
            print_error("never seen: %s\n", sim_seen_names[i]);
            kept = false;
        }
    }
    assert_true(kept);
}

static void run_profile(const struct profile *profile)
{
    const char *one = getenv("PIGPEN_SIM_SEED"), *many = getenv("PIGPEN_SIM_SEEDS");
    const char *only = getenv("PIGPEN_SIM_PROFILE");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t all = many != NULL ? strtoull(many, NULL, 10) : SEEDS_DEFAULT;
    uint64_t count = one != NULL ? 1 : (all + PROFILES - 1) / PROFILES;
    struct tally tally = {0};
    if (only != NULL && strcmp(only, profile->name) != 0) {
        print_message("%s: left out, as PIGPEN_SIM_PROFILE=%s\n", profile->name, only);
        return;
    }
    for (uint64_t i = 0; i < count; ++i) {
        run_seed(first + i, profile, &tally);
        if ((i + 1) % PROGRESS_EVERY == 0 && i + 1 < count) {
            print_message("%s: %llu of %llu seeds\n", profile->name, (unsigned long long)(i + 1),
                          (unsigned long long)count);
        }
    }
    check_tally(profile, &tally, count);
}

#define PROFILE_TEST(name, index)                                                                  \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        run_profile(&profiles[index]);                                                             \
    }
PROFILE_TEST(without_faults_every_step_succeeds_and_is_right, 0)
PROFILE_TEST(laws_hold_where_connections_break_and_answers_come_twice, 1)
PROFILE_TEST(laws_hold_where_nodes_crash_at_any_message, 2)
PROFILE_TEST(laws_hold_in_partitions_and_with_slow_nodes, 3)
PROFILE_TEST(laws_hold_where_memory_is_full, 4)
PROFILE_TEST(laws_hold_where_clocks_jump_and_the_worker_stands_still, 5)
PROFILE_TEST(laws_hold_where_nodes_come_and_go_and_drain, 6)
PROFILE_TEST(laws_hold_where_the_worker_crashes_at_any_message, 7)
PROFILE_TEST(laws_hold_where_everything_goes_wrong_at_once, 8)

/* Else a seed that failed could not be looked at. */
static void a_seed_is_the_same_run_again(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5 && getenv("PIGPEN_SIM_SEED") == NULL; ++seed) {
        struct tally first = {0}, again = {0};
        run_seed(seed, &profiles[PROFILES - 1], &first);
        run_seed(seed, &profiles[PROFILES - 1], &again);
        assert_true(first.digest == again.digest);
        assert_memory_equal(first.struck, again.struck, sizeof(first.struck));
        assert_memory_equal(first.seen, again.seen, sizeof(first.seen));
    }
}

int main(void)
{
    (void)signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(tell_seed);
    }
    /* Every fault is logged as an error: only replays want to read them. */
    pp_log_configure(getenv("PIGPEN_SIM_SEED") != NULL ? PP_LOG_DEBUG : PP_LOG_OFF, PP_LOG_TEXT);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seed_is_the_same_run_again),
        cmocka_unit_test(without_faults_every_step_succeeds_and_is_right),
        cmocka_unit_test(laws_hold_where_connections_break_and_answers_come_twice),
        cmocka_unit_test(laws_hold_where_nodes_crash_at_any_message),
        cmocka_unit_test(laws_hold_in_partitions_and_with_slow_nodes),
        cmocka_unit_test(laws_hold_where_memory_is_full),
        cmocka_unit_test(laws_hold_where_clocks_jump_and_the_worker_stands_still),
        cmocka_unit_test(laws_hold_where_nodes_come_and_go_and_drain),
        cmocka_unit_test(laws_hold_where_the_worker_crashes_at_any_message),
        cmocka_unit_test(laws_hold_where_everything_goes_wrong_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
