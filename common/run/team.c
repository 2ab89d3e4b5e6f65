/*
 * Data-parallel loops: exec's pieces, the builder's blocks and the worker's kernels run here. The
 * indices are handed out one by one from a counter a place, which passes over those of other
 * places; what an index means, the caller knows.
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
    const struct pp_places *places; /* NULL: one place, nobody is bound */
    uint32_t (*place_of)(void *context, uint64_t index);
    uint32_t threads, place_count;
    _Atomic uint64_t next[PP_NUMA_NODES_MAX];
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

static void take_from(struct job *job, uint32_t place, uint32_t thread)
{
    for (;;) {
        uint64_t index = atomic_fetch_add_explicit(&job->next[place], 1, memory_order_relaxed);
        if (index >= job->count) {
            return;
        }
        if (job->places == NULL || job->place_of(job->context, index) == place) {
            job->body(job->context, index, thread);
        }
    }
}

static void take_part(struct job *job, uint32_t thread)
{
    if (thread != 0) {
        prepare_member();
    }
    pp_team_edge_acquire(job);
    uint32_t home = job->places != NULL ? pp_places_of(job->places, thread, job->threads) : 0;
    pp_places_bind(job->places, home);
    for (uint32_t turn = 0; turn < job->place_count; ++turn) {
        take_from(job, (home + turn) % job->place_count, thread);
    }
    pp_team_edge_release(job);
}

static void run(struct job *shared)
{
    /* Short loops keep the team's size too: the runtime allocates when it changes. */
    if (shared->threads <= 1 || shared->count <= 1) {
        for (uint64_t index = 0; index < shared->count; ++index) {
            shared->body(shared->context, index, 0);
        }
        return;
    }
    prepare_master();
    pp_team_edge_release(shared);
/* The pointer travels by value: a variable shared by reference would be read by the other threads
 * before they can tell the sanitizer that they may. */
#pragma omp parallel num_threads((int)shared->threads) default(none) firstprivate(shared)
    take_part(shared, (uint32_t)omp_get_thread_num());
    pp_team_edge_acquire(shared);
}

void pp_team_for(uint32_t threads, uint64_t count,
                 void (*body)(void *context, uint64_t index, uint32_t thread), void *context)
{
    struct job job;
    job.count = count;
    job.body = body;
    job.context = context;
    job.places = NULL;
    job.place_of = NULL;
    job.threads = threads;
    job.place_count = 1;
    atomic_init(&job.next[0], 0);
    run(&job);
}

void pp_team_for_placed(const struct pp_places *places, uint32_t threads, uint64_t count,
                        uint32_t (*place_of)(void *context, uint64_t index),
                        void (*body)(void *context, uint64_t index, uint32_t thread), void *context)
{
    if (places->count < 2) {
        pp_team_for(threads, count, body, context);
        return;
    }
    struct job job = {.count = count,
                      .body = body,
                      .context = context,
                      .places = places,
                      .place_of = place_of,
                      .threads = threads,
                      .place_count = places->count};
    run(&job);
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
