/*
 * The builder thread and its rings. See builder.h. Each ring holds as many segments as may be with
 * the thread at once, so that a push never fails; the rest waits in the store's list.
 */
#include "attn-node/exec/builder.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "attn-node/kv/merge.h"
#include "common/base/assert.h"
#include "common/run/ring.h"
#include "common/run/thread.h"

#define IN_WORK_MAX 64u
#define WAIT_US     100000u
#define NICE_LEVEL  10

struct an_builder {
    struct an_builder_config config;
    struct pp_ring *requests, *results;
    struct pp_thread *thread;
    uint32_t in_work; /* with the thread; exec's count */
    void (*task)(void *context);
    void *task_context;
    _Atomic int task_state; /* enum task_state: exec's until WAITING, the thread's until DONE */
};

enum task_state { TASK_NONE, TASK_WAITING, TASK_DONE };

static bool task_is(struct an_builder *builder, enum task_state state)
{
    return atomic_load_explicit(&builder->task_state, memory_order_acquire) == (int)state;
}

static void task_set(struct an_builder *builder, enum task_state state)
{
    atomic_store_explicit(&builder->task_state, (int)state, memory_order_release);
}

static void build(struct an_builder *builder, struct an_segment *segment)
{
    uint64_t start_us = pp_clock_now_us(&builder->config.clock);
    an_segment_build(segment);
    segment->build.took_us = pp_clock_now_us(&builder->config.clock) - start_us;
}

static void run_task(struct an_builder *builder)
{
    if (task_is(builder, TASK_WAITING)) {
        builder->task(builder->task_context);
        task_set(builder, TASK_DONE);
        builder->config.wake(builder->config.wake_context);
    }
}

static void builder_poll(void *context)
{
    struct an_builder *builder = context;
    if (!task_is(builder, TASK_WAITING)) {
        pp_ring_wait(builder->requests, 0, WAIT_US);
    }
    struct an_segment *segment = pp_ring_pop(builder->requests);
    if (segment == NULL) {
        run_task(builder);
        return;
    }
    build(builder, segment);
    bool pushed = pp_ring_push(builder->results, segment);
    PP_ASSERT(pushed);
    builder->config.wake(builder->config.wake_context);
}

enum pp_status an_builder_new(const struct an_builder_config *config,
                              struct an_builder **builder_out)
{
    struct an_builder *builder = calloc(1, sizeof(*builder));
    if (builder == NULL) {
        return PP_MEMORY;
    }
    builder->config = *config;
    enum pp_status status = PP_OK;
    if (!config->sync) {
        status = pp_ring_new(IN_WORK_MAX, &builder->requests);
        if (status == PP_OK) {
            status = pp_ring_new(IN_WORK_MAX, &builder->results);
        }
        if (status == PP_OK) {
            status =
                pp_thread_start("builder", builder_poll, builder, NICE_LEVEL, &builder->thread);
        }
    }
    if (status != PP_OK) {
        pp_ring_destroy(builder->results);
        pp_ring_destroy(builder->requests);
        free(builder);
        return status;
    }
    *builder_out = builder;
    return PP_OK;
}

/* Gives a segment that was built, or was not, back to whoever wants it. */
static bool hand_back(struct an_segment *segment)
{
    return segment->merge != NULL ? an_merge_publish(segment) : an_segment_publish(segment);
}

static uint32_t publish(struct an_builder *builder, struct an_segment *segment)
{
    bool merged = segment->merge != NULL;
    if (builder->config.build_seconds != NULL && segment->build.status == PP_OK) {
        pp_stat_observe(builder->config.build_seconds, (double)segment->build.took_us * 1e-6);
    }
    bool published = hand_back(segment);
    if (merged && published && builder->config.merges != NULL) {
        pp_stat_add(builder->config.merges, 1);
    }
    return published ? 1 : 0;
}

static uint32_t take_results(struct an_builder *builder)
{
    uint32_t published = 0;
    struct an_segment *segment;
    while (builder->in_work > 0 && (segment = pp_ring_pop(builder->results)) != NULL) {
        builder->in_work--;
        published += publish(builder, segment);
    }
    return published;
}

/* A segment that only its build still refers to needs no index. */
static bool drop_unwanted(struct an_segment *segment)
{
    if (segment->references > 1) {
        return false;
    }
    segment->build.status = PP_CANCELLED;
    (void)hand_back(segment);
    return true;
}

static void run_waiting(struct an_builder *builder)
{
    struct an_segment *segment;
    while ((segment = an_store_build_pop(builder->config.store)) != NULL) {
        if (!drop_unwanted(segment)) {
            build(builder, segment);
            (void)publish(builder, segment);
        }
    }
}

void an_builder_build_now(struct an_builder *builder, struct an_segment *segment)
{
    if (an_store_build_remove(builder->config.store, segment)) {
        build(builder, segment);
        (void)publish(builder, segment);
    }
}

uint32_t an_builder_pump(struct an_builder *builder)
{
    if (builder->config.sync) {
        run_waiting(builder);
        return 0;
    }
    uint32_t published = take_results(builder);
    struct an_segment *segment;
    while (builder->in_work < IN_WORK_MAX &&
           (segment = an_store_build_pop(builder->config.store)) != NULL) {
        if (!drop_unwanted(segment)) {
            builder->in_work++;
            bool pushed = pp_ring_push(builder->requests, segment);
            PP_ASSERT(pushed);
        }
    }
    return published;
}

void an_builder_task_start(struct an_builder *builder, void (*run)(void *context), void *context)
{
    PP_ASSERT(task_is(builder, TASK_NONE));
    builder->task = run;
    builder->task_context = context;
    if (builder->config.sync) {
        run(context);
        task_set(builder, TASK_DONE);
        return;
    }
    task_set(builder, TASK_WAITING);
    pp_ring_wake(builder->requests);
}

bool an_builder_task_take(struct an_builder *builder)
{
    if (!task_is(builder, TASK_DONE)) {
        return false;
    }
    task_set(builder, TASK_NONE);
    return true;
}

bool an_builder_busy(const struct an_builder *builder)
{
    return builder->in_work > 0 || builder->config.store->build_first != NULL;
}

static void kick(void *context)
{
    struct an_builder *builder = context;
    pp_ring_wake(builder->requests);
}

void an_builder_destroy(struct an_builder *builder)
{
    if (builder == NULL) {
        return;
    }
    if (builder->thread != NULL) {
        pp_thread_stop(builder->thread, kick, builder);
        (void)take_results(builder);
        struct an_segment *segment;
        while ((segment = pp_ring_pop(builder->requests)) != NULL) {
            builder->in_work--;
            segment->build.status = PP_CANCELLED;
            (void)hand_back(segment);
        }
        PP_ASSERT(builder->in_work == 0);
    }
    struct an_segment *segment;
    while ((segment = an_store_build_pop(builder->config.store)) != NULL) {
        segment->build.status = PP_CANCELLED;
        (void)hand_back(segment);
    }
    pp_ring_destroy(builder->results);
    pp_ring_destroy(builder->requests);
    free(builder);
}
