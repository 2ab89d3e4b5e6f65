/*
 * Threads: polled until stopped, named, deaf to signals, ended by a kick.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "common/run/ring.h"
#include "common/run/thread.h"

struct watch {
    struct pp_ring *ring;
    char name[32];
    sigset_t blocked;
    int nice_level;
    _Atomic uint64_t polls;
};

static void look(void *context)
{
    struct watch *watch = context;
    if (atomic_load(&watch->polls) == 0) {
        pthread_getname_np(pthread_self(), watch->name, sizeof(watch->name));
        pthread_sigmask(SIG_SETMASK, NULL, &watch->blocked);
        watch->nice_level = getpriority(PRIO_PROCESS, 0);
    }
    atomic_fetch_add(&watch->polls, 1);
    pp_ring_wait(watch->ring, 0, 600u * 1000000u);
}

static void kick(void *context)
{
    pp_ring_wake(((struct watch *)context)->ring);
}

/* The lowest priority there is: below it a level stays where it is. */
#define NICE_MAX 19

static void a_thread_polls_until_it_is_kicked_out(void **state)
{
    (void)state;
    struct watch watch = {0};
    struct pp_thread *thread;
    assert_int_equal(pp_ring_new(4, &watch.ring), PP_OK);
    assert_int_equal(pp_thread_start("pp-builder-and-more", look, &watch, 5, &thread), PP_OK);
    while (atomic_load(&watch.polls) == 0) {
        sched_yield();
    }
    /* The poll would wait for minutes: the kick must end it, wherever it stands. */
    pp_thread_stop(thread, kick, &watch);
    assert_string_equal(watch.name, "pp-builder-and-");
    assert_int_equal(sigismember(&watch.blocked, SIGTERM), 1);
    assert_int_equal(sigismember(&watch.blocked, SIGUSR1), 1);
    int level = getpriority(PRIO_PROCESS, 0) + 5;
    assert_int_equal(watch.nice_level, level < NICE_MAX ? level : NICE_MAX);
    pp_ring_destroy(watch.ring);
}

static void starting_leaves_the_own_signals_alone(void **state)
{
    (void)state;
    sigset_t before;
    sigset_t after;
    struct watch watch = {0};
    struct pp_thread *thread;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(pp_ring_new(4, &watch.ring), PP_OK);
    for (int round = 0; round < 50; ++round) {
        assert_int_equal(pp_thread_start("t", look, &watch, 0, &thread), PP_OK);
        pp_thread_stop(thread, kick, &watch); /* perhaps before the first poll */
    }
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
    pp_ring_destroy(watch.ring);
    pp_thread_stop(NULL, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_polls_until_it_is_kicked_out),
        cmocka_unit_test(starting_leaves_the_own_signals_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
