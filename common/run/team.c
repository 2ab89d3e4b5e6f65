/*
 * Data-parallel loops: exec's pieces, the builder's blocks and the worker's kernels run here. The
 * indices are handed out one by one from a counter; what an index means, the caller knows.
 *
 * Idle threads spin 1 ms at most before they sleep: two regions of one step follow each other
 * within that, while a core that others need (the rpc thread) is free again at once after it.
 */
#include "common/run/team.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/run/cgroup.h"
#include "common/run/team_edges.h"

#define SPIN_MS_MAX 1

/* libomp's own; its omp.h comes with clang, but other compilers' do not declare it. */
extern void kmp_set_blocktime(int milliseconds) __attribute__((weak));

struct job {
    uint64_t count;
    void (*body)(void *context, uint64_t index, uint32_t thread);
    void *context;
    _Atomic uint64_t next;
};

static _Thread_local bool master_ready;
static _Thread_local bool member_ready;

/* The block time is per master thread in libomp. */
static void prepare_master(void)
{
    if (!master_ready && kmp_set_blocktime != NULL) {
        kmp_set_blocktime(SPIN_MS_MAX);
    }
    master_ready = true;
}

/* The threads are the runtime's: they have the signals of whoever was master first. */
static void prepare_member(void)
{
    if (!member_ready) {
        sigset_t all;
        sigfillset(&all);
        (void)pthread_sigmask(SIG_SETMASK, &all, NULL);
    }
    member_ready = true;
}

static void take_part(struct job *job, uint32_t thread)
{
    if (thread != 0) {
        prepare_member();
    }
    pp_team_edge_acquire(job);
    uint64_t index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    while (index < job->count) {
        job->body(job->context, index, thread);
        index = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    }
    pp_team_edge_release(job);
}

void pp_team_for(uint32_t threads, uint64_t count,
                 void (*body)(void *context, uint64_t index, uint32_t thread), void *context)
{
    /* Short loops keep the team's size too: the runtime allocates when it changes. */
    if (threads <= 1 || count <= 1) {
        for (uint64_t index = 0; index < count; ++index) {
            body(context, index, 0);
        }
        return;
    }
    prepare_master();
    struct job job = {.count = count, .body = body, .context = context, .next = 0};
    struct job *shared = &job;
    pp_team_edge_release(shared);
/* The pointer travels by value: a variable shared by reference would be read by the other threads
 * before they can tell the sanitizer that they may. */
#pragma omp parallel num_threads((int)threads) default(none) firstprivate(shared)
    take_part(shared, (uint32_t)omp_get_thread_num());
    pp_team_edge_acquire(shared);
}

uint32_t pp_team_threads_default(void)
{
    uint32_t threads = 1;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof(mask), &mask) == 0 && CPU_COUNT(&mask) > 0) {
        threads = (uint32_t)CPU_COUNT(&mask); /* The kernel keeps the mask within the cpuset. */
    }
    uint32_t quota = pp_cgroup_cpu_quota("");
    return quota > 0 && quota < threads ? quota : threads;
}
