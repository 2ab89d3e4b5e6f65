/*
 * Teams: every index once, memory ordered by fork and join, masters side by side, threads deaf to
 * signals and asleep soon after.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "common/run/team.h"

#define COUNT 10000u

struct loop {
    uint32_t threads;
    uint32_t visits[COUNT]; /* not atomic: each index belongs to one thread */
    _Atomic uint32_t thread_seen[8];
    _Atomic uint32_t out_of_range;
};

static void visit(void *context, uint64_t index, uint32_t thread)
{
    struct loop *loop = context;
    ++loop->visits[index];
    if (thread >= loop->threads) {
        atomic_fetch_add(&loop->out_of_range, 1);
        return;
    }
    atomic_fetch_add(&loop->thread_seen[thread], 1);
}

static void run_loop(struct loop *loop, uint32_t threads, uint64_t count)
{
    memset(loop, 0, sizeof(*loop));
    loop->threads = threads;
    pp_team_for(threads, count, visit, loop);
    for (uint64_t index = 0; index < COUNT; ++index) {
        assert_int_equal(loop->visits[index], index < count ? 1 : 0);
    }
    assert_int_equal(loop->out_of_range, 0);
}

static void every_index_is_visited_once(void **state)
{
    (void)state;
    static struct loop loop;
    const uint64_t counts[] = {0, 1, 2, 3, 7, 64, COUNT};
    for (uint32_t threads = 1; threads <= 5; ++threads) {
        for (size_t at = 0; at < sizeof(counts) / sizeof(counts[0]); ++at) {
            run_loop(&loop, threads, counts[at]);
        }
    }
}

static void one_thread_runs_inline(void **state)
{
    (void)state;
    static struct loop loop;
    run_loop(&loop, 1, 100);
    assert_int_equal(loop.thread_seen[0], 100);
}

/* Plain memory written before, in and after the loop: what the sanitizer must find in order. */
static void writes_are_seen_across_fork_and_join(void **state)
{
    (void)state;
    static struct loop loop;
    for (int round = 0; round < 200; ++round) {
        run_loop(&loop, 4, 50);
    }
}

static void *run_many(void *argument)
{
    struct loop *loop = argument;
    for (int round = 0; round < 50; ++round) {
        run_loop(loop, 2, 300);
    }
    return NULL;
}

static void masters_have_teams_of_their_own(void **state)
{
    (void)state;
    static struct loop loops[2];
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, run_many, &loops[1]), 0);
    run_many(&loops[0]);
    assert_int_equal(pthread_join(other, NULL), 0);
}

struct meeting {
    _Atomic uint32_t present;
    sigset_t blocked[2];
};

/* Each of the two indices waits for the other, so that both threads take part. */
static void look_at_the_mask(void *context, uint64_t index, uint32_t thread)
{
    (void)index;
    struct meeting *meeting = context;
    pthread_sigmask(SIG_SETMASK, NULL, &meeting->blocked[thread]);
    atomic_fetch_add(&meeting->present, 1);
    while (atomic_load(&meeting->present) < 2) {
        sched_yield();
    }
}

static void all_threads_but_the_master_are_deaf_to_signals(void **state)
{
    (void)state;
    struct meeting meeting = {0};
    pp_team_for(2, 2, look_at_the_mask, &meeting);
    const int signals[] = {SIGINT, SIGTERM, SIGUSR1};
    for (size_t at = 0; at < sizeof(signals) / sizeof(signals[0]); ++at) {
        assert_int_equal(sigismember(&meeting.blocked[0], signals[at]), 0);
        assert_int_equal(sigismember(&meeting.blocked[1], signals[at]), 1);
    }
}

static double process_cpu_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec * 1e-6;
}

static void idle_threads_do_not_spin_long(void **state)
{
    (void)state;
    static struct loop loop;
    struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
    double least_ms = 1e9;
    for (int round = 0; round < 5; ++round) {
        run_loop(&loop, 4, 300);
        double before_ms = process_cpu_ms();
        nanosleep(&pause, NULL); /* the measured time, not a synchronisation */
        double used_ms = process_cpu_ms() - before_ms;
        least_ms = used_ms < least_ms ? used_ms : least_ms;
    }
    print_message("cpu time of an idle team in 100 ms: %.3f ms\n", least_ms);
    assert_true(least_ms < 30.0);
}

/* oneDNN asks for libgomp. Two runtimes would mean two sets of threads on the same cores: whoever
 * asks for libgomp's symbols must get them from the runtime that the teams run on. */
static void one_openmp_runtime_serves_all(void **state)
{
    (void)state;
    static const char *const symbols[][2] = {{"GOMP_parallel", "GOMP_4.0"},
                                             {"GOMP_barrier", "GOMP_1.0"},
                                             {"omp_get_thread_num", "OMP_1.0"}};
    Dl_info ours;
    assert_int_not_equal(dladdr(dlsym(RTLD_DEFAULT, "omp_get_max_threads"), &ours), 0);
    for (size_t index = 0; index < sizeof(symbols) / sizeof(symbols[0]); ++index) {
        Dl_info theirs;
        void *symbol = dlvsym(RTLD_DEFAULT, symbols[index][0], symbols[index][1]);
        assert_non_null(symbol);
        assert_int_not_equal(dladdr(symbol, &theirs), 0);
        assert_string_equal(theirs.dli_fname, ours.dli_fname);
    }
    print_message("OpenMP runtime: %s\n", ours.dli_fname);
}

static void default_team_has_a_thread(void **state)
{
    (void)state;
    assert_true(pp_team_threads_default() >= 1);
}

/* Two places of the first two processors that this process may use; false: it has one. */
static bool two_places(struct pp_places *places, int cpus_out[2])
{
    struct pp_topology topology = {.numa_node_count = 2};
    cpu_set_t mask;
    CPU_ZERO(&mask);
    assert_int_equal(0, sched_getaffinity(0, sizeof(mask), &mask));
    uint32_t found = 0;
    for (int cpu = 0; cpu < (int)PP_CPUS_MAX && cpu < CPU_SETSIZE && found < 2; ++cpu) {
        if (CPU_ISSET(cpu, &mask)) {
            topology.numa_nodes[found].cpu_count = 1;
            topology.numa_nodes[found].cpus[cpu / 64] = 1ull << (cpu % 64);
            cpus_out[found++] = cpu;
        }
    }
    pp_places_init(places, &topology);
    return found == 2;
}

struct placed_loop {
    struct loop loop;
    const int *cpus;
    _Atomic uint32_t elsewhere; /* visits by a thread that is not bound to its place's processor */
};

static uint32_t place_by_thirds(void *context, uint64_t index)
{
    (void)context;
    return index % 3 == 0 ? 0 : 1;
}

static void visit_bound(void *context, uint64_t index, uint32_t thread)
{
    struct placed_loop *placed = context;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    (void)sched_getaffinity(0, sizeof(mask), &mask);
    int home = placed->cpus[2 * thread < placed->loop.threads ? 0 : 1];
    if (CPU_COUNT(&mask) != 1 || !CPU_ISSET(home, &mask)) {
        atomic_fetch_add(&placed->elsewhere, 1);
    }
    visit(&placed->loop, index, thread);
}

static void threads_of_a_placed_loop_run_at_their_places_and_are_free_afterwards(void **state)
{
    (void)state;
    static struct placed_loop placed;
    static struct pp_places places;
    int cpus[2];
    cpu_set_t before, after;
    if (!two_places(&places, cpus)) {
        print_message("one processor: nobody can be bound here\n");
        skip();
    }
    assert_int_equal(0, sched_getaffinity(0, sizeof(before), &before));
    for (uint32_t threads = 2; threads <= 6; threads += 2) {
        memset(&placed, 0, sizeof(placed));
        placed.loop.threads = threads;
        placed.cpus = cpus;
        pp_team_for_placed(&places, threads, COUNT, place_by_thirds, visit_bound, &placed);
        for (uint64_t index = 0; index < COUNT; ++index) {
            assert_int_equal(placed.loop.visits[index], 1);
        }
        assert_int_equal(placed.loop.out_of_range, 0);
        assert_int_equal(placed.elsewhere, 0);
    }
    run_loop(&placed.loop, 6, COUNT);
    assert_int_equal(0, sched_getaffinity(0, sizeof(after), &after));
    assert_true(CPU_EQUAL(&before, &after));
}

static void with_fewer_than_two_places_a_placed_loop_is_a_plain_one(void **state)
{
    (void)state;
    static struct loop loop;
    static struct pp_places places;
    cpu_set_t before, after;
    assert_int_equal(0, sched_getaffinity(0, sizeof(before), &before));
    pp_places_init(&places, NULL);
    memset(&loop, 0, sizeof(loop));
    loop.threads = 3;
    pp_team_for_placed(&places, 3, COUNT, place_by_thirds, visit, &loop);
    for (uint64_t index = 0; index < COUNT; ++index) {
        assert_int_equal(loop.visits[index], 1);
    }
    assert_int_equal(0, sched_getaffinity(0, sizeof(after), &after));
    assert_true(CPU_EQUAL(&before, &after));
}

static void threads_are_dealt_out_by_processors_in_order(void **state)
{
    (void)state;
    static struct pp_places places;
    static struct pp_topology topology = {.numa_node_count = 4};
    const uint32_t cpu_counts[] = {8, 0, 16, 8};
    for (uint32_t i = 0; i < 4; ++i) {
        topology.numa_nodes[i].cpu_count = cpu_counts[i];
    }
    pp_places_init(&places, &topology);
    assert_int_equal(3, places.count);
    const uint32_t teams[] = {1, 2, 3, 4, 7, 32, 64, 1000};
    for (size_t i = 0; i < sizeof(teams) / sizeof(teams[0]); ++i) {
        uint32_t at[3] = {0}, last = 0;
        for (uint32_t thread = 0; thread < teams[i]; ++thread) {
            uint32_t place = pp_places_of(&places, thread, teams[i]);
            assert_true(place >= last && place < 3);
            last = place;
            ++at[place];
        }
        for (uint32_t place = 0; place < 3; ++place) { /* its share, to one */
            double share = (double)teams[i] * places.cpu_count[place] / 32.0;
            assert_true(at[place] > share - 1.01 && at[place] < share + 1.01);
        }
    }
    assert_int_equal(0, pp_places_of(&places, 0, 4));
    assert_int_equal(1, pp_places_of(&places, 1, 4));
    assert_int_equal(1, pp_places_of(&places, 2, 4));
    assert_int_equal(2, pp_places_of(&places, 3, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_is_visited_once),
        cmocka_unit_test(threads_of_a_placed_loop_run_at_their_places_and_are_free_afterwards),
        cmocka_unit_test(with_fewer_than_two_places_a_placed_loop_is_a_plain_one),
        cmocka_unit_test(threads_are_dealt_out_by_processors_in_order),
        cmocka_unit_test(one_thread_runs_inline),
        cmocka_unit_test(writes_are_seen_across_fork_and_join),
        cmocka_unit_test(masters_have_teams_of_their_own),
        cmocka_unit_test(all_threads_but_the_master_are_deaf_to_signals),
        cmocka_unit_test(idle_threads_do_not_spin_long),
        cmocka_unit_test(one_openmp_runtime_serves_all),
        cmocka_unit_test(default_team_has_a_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
