/*
 * The emulator finds what it is there to find: a barrier that is missing, threads that wait for
 * others that never come, lanes that wait apart, copies that were not waited for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda_emu/emu_cases.h"

#define THREADS 64u
#define SEEDS   20u

static void run(enum emu_case which, const struct emu_case_args *args, uint64_t seed)
{
    const struct emu_launch launch = {.kernel = &emu_cases[which],
                                      .args = args,
                                      .grid = {1, 1, 1},
                                      .threads = THREADS,
                                      .shared_bytes = THREADS * 16};
    emu_seed(seed);
    emu_run(&launch);
}

/* How many of the seeds give the sum of 1 to 64. */
static uint32_t right_sums(enum emu_case which)
{
    uint32_t right = 0;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        uint32_t sum = 0;
        const struct emu_case_args args = {.out = &sum};
        run(which, &args, seed);
        right += sum == THREADS * (THREADS + 1) / 2 ? 1 : 0;
    }
    return right;
}

static void a_missing_barrier_shows_and_one_that_is_there_does_not(void **state)
{
    (void)state;
    assert_int_equal(right_sums(WITH_BARRIER), SEEDS);
    assert_int_equal(right_sums(WITHOUT_BARRIER), 0);
}

static void warps_exchange_and_vote(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        uint32_t out[THREADS];
        const struct emu_case_args args = {.out = out};
        run(WARP_SUM, &args, seed);
        for (uint32_t i = 0; i < THREADS; i++) { /* lanes 0-31, then 32-63 of which one is 40 */
            assert_int_equal(out[i], i < 32 ? 0xaaaaaaaau : 31u * 32u / 2u + 32u * 32u);
        }
    }
}

static void copies_are_there_when_they_were_waited_for_only(void **state)
{
    (void)state;
    _Alignas(16) static const uint32_t in[4] = {1, 2, 3, 4};
    uint32_t out[THREADS];
    for (uint32_t waits = 0; waits < 2; waits++) {
        const struct emu_case_args args = {.in = in, .out = out, .waits = waits == 1};
        run(COPY_CASE, &args, 7);
        for (uint32_t i = 0; i < THREADS; i++) {
            assert_int_equal(out[i], waits == 1 ? 2 : 0xffffffffu); /* what shared memory held */
        }
    }
}

/* The kernel ends the process: run in one of its own, whose words are not shown. */
static void aborts(enum emu_case which)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct emu_case_args args = {0};
        int nowhere = open("/dev/null", O_WRONLY);
        (void)dup2(nowhere, STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        run(which, &args, 3);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

static void threads_that_wait_for_ever_abort(void **state)
{
    (void)state;
    aborts(HALF_A_BARRIER);
}

static void lanes_that_wait_at_different_places_abort(void **state)
{
    (void)state;
    aborts(LANES_APART);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_barrier_shows_and_one_that_is_there_does_not),
        cmocka_unit_test(warps_exchange_and_vote),
        cmocka_unit_test(copies_are_there_when_they_were_waited_for_only),
        cmocka_unit_test(threads_that_wait_for_ever_abort),
        cmocka_unit_test(lanes_that_wait_at_different_places_abort),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
