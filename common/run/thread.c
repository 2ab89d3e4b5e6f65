/*
 * Threads around poll functions: exec, rpc, builder and the worker's own. Which data such a thread
 * owns, its starter knows.
 */
#include "common/run/thread.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"

#define NAME_BYTES 16 /* with the end mark: the kernel keeps no more */

struct pp_thread {
    pthread_t id;
    char name[NAME_BYTES];
    void (*poll)(void *context);
    void *context;
    int nice_level;
    _Atomic bool stopping;
};

static void *run(void *argument)
{
    struct pp_thread *thread = argument;
    pthread_setname_np(pthread_self(), thread->name);
    /* Below the process's own level, whatever that is; past the lowest it stays the lowest. */
    if (thread->nice_level != 0 &&
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid),
                    getpriority(PRIO_PROCESS, 0) + thread->nice_level) != 0) {
        PP_LOG_WARNF("thread", "priority not changed", "name=%s nice=%d", thread->name,
                     thread->nice_level);
    }
    while (!atomic_load_explicit(&thread->stopping, memory_order_acquire)) {
        thread->poll(thread->context);
    }
    return NULL;
}

enum pp_status pp_thread_start(const char *name, void (*poll)(void *context), void *context,
                               int nice_level, struct pp_thread **thread_out)
{
    struct pp_thread *thread = malloc(sizeof(*thread));
    if (thread == NULL) {
        return PP_MEMORY;
    }
    *thread = (struct pp_thread){.poll = poll, .context = context, .nice_level = nice_level};
    snprintf(thread->name, sizeof(thread->name), "%s", name);

    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread->id, NULL, run, thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        PP_LOG_ERRORF("thread", "cannot start", "name=%s errno=%d", thread->name, failed);
        free(thread);
        return PP_RESOURCE_EXHAUSTED;
    }
    *thread_out = thread;
    return PP_OK;
}

void pp_thread_stop(struct pp_thread *thread, void (*kick)(void *context), void *context)
{
    if (thread == NULL) {
        return;
    }
    atomic_store_explicit(&thread->stopping, true, memory_order_release);
    if (kick != NULL) {
        kick(context);
    }
    pthread_join(thread->id, NULL);
    free(thread);
}
