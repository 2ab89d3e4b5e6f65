/*
 * Start and end of exec, its rings and its thread's body. See exec.h. What a job does is in
 * dispatch.c and the files it calls.
 */
#include "attn-node/exec/exec.h"

#include <stdlib.h>
#include <string.h>

#include "attn-node/exec/exec_internal.h"
#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/run/team.h"

#define SPIN_US         20u
#define THREAD_WAIT_US  100000u
#define JOBS_A_POLL     64u
#define ATTENDS_IN_TURN 16u
#define SPARE_SHARE     8u  /* of the limit is kept at most */
#define MERGES_MAX      16u /* at once: each holds the memory of its index */

static void wake_from_builder(void *context)
{
    struct an_exec *exec = context;
    pp_ring_wake(exec->jobs);
}

static void stats_memory_init(struct an_exec_stats *own, struct pp_stats *stats)
{
    static const char *const kinds[PP_MEMORY_RPC] = {
        "kind=\"kv\"", "kind=\"index\"", "kind=\"tail\"", "kind=\"scratch\"", "kind=\"spare\""};
    for (int kind = 0; kind < PP_MEMORY_RPC; kind++) {
        own->used[kind] =
            pp_stats_gauge(stats, "pigpen_node_memory_used_bytes", kinds[kind],
                           "Bytes in use or reserved, by kind; spare: freed, and kept "
                           "for the next rows.");
    }
    own->limit_bytes = pp_stats_gauge(stats, "pigpen_node_memory_limit_bytes", "",
                                      "Bytes that K/V, indexes, tails and scratch may use.");
    own->usage_ratio =
        pp_stats_gauge(stats, "pigpen_node_memory_usage_ratio", "", "Used bytes over the limit.");
    own->parts = pp_stats_gauge(stats, "pigpen_node_parts", "", "Parts held.");
    own->tokens_held =
        pp_stats_gauge(stats, "pigpen_node_tokens_held", "",
                       "Tokens held: of each part those of its longest layer, summed.");
}

static void stats_init(struct an_exec_stats *own, struct pp_stats *stats)
{
    stats_memory_init(own, stats);
    own->tokens_appended = pp_stats_counter(stats, "pigpen_node_tokens_appended_total", "",
                                            "Rows appended, of one layer each.");
    own->append_duplicates = pp_stats_counter(stats, "pigpen_node_append_duplicates_total", "",
                                              "Appends that were held already.");
    own->parts_expired = pp_stats_counter(stats, "pigpen_node_parts_lost_total",
                                          "reason=\"expired\"", "Parts freed unasked.");
    own->parts_evicted = pp_stats_counter(stats, "pigpen_node_parts_lost_total",
                                          "reason=\"evicted\"", "Parts freed unasked.");
    own->rows_read =
        pp_stats_counter(stats, "pigpen_node_attend_rows_read_total", "",
                         "K/V rows that attends read, each once for all heads that share it; "
                         "over the rows held: the share of keys that is read.");
    own->rows_held =
        pp_stats_counter(stats, "pigpen_node_attend_rows_held_total", "",
                         "K/V rows that attends were about: held tokens times kv heads and "
                         "query rows.");
    own->stage_queue =
        pp_stats_histogram(stats, "pigpen_node_attend_stage_seconds", "stage=\"queue\"",
                           "Time of an attend, by stage.", 50e-6, 2, 16);
    own->stage_scan =
        pp_stats_histogram(stats, "pigpen_node_attend_stage_seconds", "stage=\"scan\"",
                           "Time of an attend, by stage.", 50e-6, 2, 16);
    static const char *const labels[] = {NULL, NULL, "estimator=\"lsh\"", "estimator=\"sketch\""};
    for (uint32_t kind = PP_LSH; kind <= PP_SKETCH; kind++) {
        own->rel_err[kind] = pp_stats_histogram(stats, "pigpen_node_attend_rel_err", labels[kind],
                                                "Relative error that the node publishes with "
                                                "sampled answers (the first head's): of its "
                                                "own part, before a worker merges it with others.",
                                                1e-3, 2, 12);
    }
    own->build_seconds = pp_stats_histogram(stats, "pigpen_node_index_build_seconds", "",
                                            "Time to index a segment.", 1e-3, 2, 16);
    own->merges = pp_stats_counter(stats, "pigpen_node_index_merges_total", "",
                                   "Runs of neighbouring segments that became one.");
}

static enum pp_status arenas_new(struct an_store *store, const struct an_exec_config *config)
{
    PP_TRY(pp_arena_new(-1, config->hugepages, &store->arena));
    pp_numa_init(&store->numa, config->topology);
    for (uint32_t i = 0; i < store->numa.node_count && store->numa.node_count > 1; i++) {
        PP_TRY(pp_arena_new(store->numa.nodes[i], config->hugepages, &store->placed[i]));
    }
    return PP_OK;
}

static enum pp_status exec_parts_new(struct an_exec *exec)
{
    const struct an_exec_config *config = &exec->config;
    PP_TRY(arenas_new(&exec->store, config));
    PP_TRY(an_table_init(&exec->table, config->lease_us));
    pp_places_init(&exec->places, config->topology);
    PP_TRY(an_attend_new(&exec->limit, config->clock, config->threads, &exec->store.numa,
                         &exec->places, &exec->attend));
    if (config->shadow_every > 0) {
        PP_TRY(an_shadow_new(&exec->limit, config->shadow_every, config->stats, &exec->shadow));
    }
    PP_TRY(pp_ring_new(config->queue_depth, &exec->attends));
    PP_TRY(pp_ring_new(config->queue_depth, &exec->jobs));
    PP_TRY(pp_ring_new(config->queue_depth, &exec->done));
    const struct an_builder_config builder = {
        .store = &exec->store,
        .clock = config->clock,
        .sync = config->build_sync,
        .build_seconds = exec->stats.build_seconds,
        .merges = exec->stats.merges,
        .wake = wake_from_builder,
        .wake_context = exec,
    };
    return an_builder_new(&builder, &exec->builder);
}

enum pp_status an_exec_new(const struct an_exec_config *config, struct an_exec **exec_out)
{
    if (config->seal_tokens == 0 || config->queue_depth == 0) {
        return PP_INVALID_ARGUMENT;
    }
    struct an_exec *exec = calloc(1, sizeof(*exec));
    if (exec == NULL) {
        return PP_MEMORY;
    }
    exec->config = *config;
    if (exec->config.threads == 0) {
        exec->config.threads = pp_team_threads_default();
    }
    pp_limit_init(&exec->limit, config->memory_limit_bytes);
    exec->store.limit = &exec->limit;
    an_spares_init(&exec->store, config->memory_limit_bytes / SPARE_SHARE);
    exec->store.hugepages = config->hugepages;
    exec->store.seal_tokens = config->seal_tokens;
    exec->store.merges_max = config->keep_segments ? 0
                             : config->build_sync  ? UINT32_MAX
                                                   : MERGES_MAX;
    exec->store.index_tokens_min = config->index_tokens_min > 0 ? config->index_tokens_min : 1;
    if (config->stats != NULL) {
        stats_init(&exec->stats, config->stats);
    }
    enum pp_status status = exec_parts_new(exec);
    exec->config.topology = NULL; /* the caller's, for now only */
    if (status != PP_OK) {
        an_exec_destroy(exec);
        return status;
    }
    *exec_out = exec;
    return PP_OK;
}

static void finish(struct an_exec *exec, struct an_job *job)
{
    bool pushed = pp_ring_push(exec->done, job);
    PP_ASSERT(pushed); /* no more jobs are in flight than the ring holds */
    if (exec->config.wake != NULL) {
        exec->config.wake(exec->config.wake_context);
    }
}

/* A step of a model waits for an attend; an append is waited for only by who sent megabytes. So
 * attends go first, but not for ever. */
static struct an_job *next_job(struct an_exec *exec)
{
    struct an_job *job = NULL;
    if (exec->attends_in_turn < ATTENDS_IN_TURN || pp_ring_count(exec->jobs) == 0) {
        job = pp_ring_pop(exec->attends);
    }
    if (job != NULL) {
        exec->attends_in_turn++;
        return job;
    }
    exec->attends_in_turn = 0;
    job = pp_ring_pop(exec->jobs);
    return job != NULL ? job : pp_ring_pop(exec->attends);
}

void an_exec_destroy(struct an_exec *exec)
{
    if (exec == NULL) {
        return;
    }
    an_exec_stop(exec);
    struct an_job *job;
    while (exec->done != NULL && (job = next_job(exec)) != NULL) {
        job->status = PP_CANCELLED;
        finish(exec, job);
    }
    an_exec_tune_cancel(exec);
    an_table_deinit(&exec->table);
    an_builder_destroy(exec->builder);
    an_shadow_destroy(exec->shadow);
    if ((job = an_exec_tune_end(exec)) != NULL) {
        job->status = PP_CANCELLED;
        finish(exec, job);
    }
    an_attend_destroy(exec->attend);
    pp_ring_destroy(exec->done);
    pp_ring_destroy(exec->jobs);
    pp_ring_destroy(exec->attends);
    if (exec->store.arena != NULL) {
        an_spares_deinit(&exec->store);
        PP_ASSERT(pp_limit_used(&exec->limit) == 0);
        for (uint32_t i = 0; i < exec->store.numa.node_count; i++) {
            pp_arena_destroy(exec->store.placed[i]);
        }
        pp_arena_destroy(exec->store.arena);
    }
    free(exec);
}

enum pp_status an_exec_submit(struct an_exec *exec, struct an_job *job)
{
    if (atomic_load_explicit(&exec->in_flight, memory_order_relaxed) >= exec->config.queue_depth) {
        return PP_QUEUE;
    }
    atomic_fetch_add_explicit(&exec->in_flight, 1, memory_order_relaxed);
    bool attend = job->kind == AN_JOB_ATTEND;
    bool pushed = pp_ring_push(attend ? exec->attends : exec->jobs, job);
    PP_ASSERT(pushed);
    if (attend) {
        pp_ring_wake(exec->jobs); /* there exec waits */
    }
    return PP_OK;
}

struct an_job *an_exec_take_done(struct an_exec *exec)
{
    struct an_job *job = pp_ring_pop(exec->done);
    if (job != NULL) {
        atomic_fetch_sub_explicit(&exec->in_flight, 1, memory_order_relaxed);
    }
    return job;
}

static void publish_stats(struct an_exec *exec)
{
    struct an_exec_stats *stats = &exec->stats;
    if (stats->limit_bytes == NULL) {
        return;
    }
    struct an_exec_usage usage;
    an_exec_usage(exec, &usage);
    double used = (double)pp_limit_used(&exec->limit);
    double limit = (double)usage.memory_limit_bytes;
    pp_stat_set(stats->limit_bytes, limit);
    pp_stat_set(stats->usage_ratio, limit > 0 ? used / limit : 0);
    pp_stat_set(stats->used[PP_MEMORY_KV], (double)usage.kv_bytes);
    pp_stat_set(stats->used[PP_MEMORY_INDEX], (double)usage.index_bytes);
    pp_stat_set(stats->used[PP_MEMORY_TAIL], (double)usage.tail_bytes);
    pp_stat_set(stats->used[PP_MEMORY_SCRATCH], (double)usage.scratch_bytes);
    pp_stat_set(stats->used[PP_MEMORY_SPARE], (double)usage.spare_bytes);
    pp_stat_set(stats->parts, (double)usage.parts);
    pp_stat_set(stats->tokens_held, (double)usage.tokens_held);
}

uint32_t an_exec_poll(struct an_exec *exec, uint64_t wait_us)
{
    (void)an_builder_pump(exec->builder);
    if (wait_us > 0 && !an_shadow_running(exec->shadow)) {
        pp_ring_wait(exec->jobs, SPIN_US, wait_us);
    }
    uint32_t count = 0;
    struct an_job *job;
    while (count < JOBS_A_POLL && (job = next_job(exec)) != NULL) {
        an_exec_dispatch(exec, job);
        (void)an_builder_pump(exec->builder);
        if (job->kind != AN_JOB_TUNE || job->status != PP_OK) {
            finish(exec, job);
        }
        count++;
    }
    if (count == 0) {
        an_shadow_slice(exec->shadow, &exec->table);
    }
    job = an_exec_tune_pump(exec);
    if (job != NULL) {
        finish(exec, job);
    }
    an_exec_expire(exec);
    an_spares_decay(&exec->store, pp_clock_now_us(&exec->config.clock));
    (void)an_builder_pump(exec->builder);
    if (exec->store.sampling_params == 0) {
        an_attend_relax(exec->attend);
    }
    publish_stats(exec);
    return count;
}

static void exec_thread(void *context)
{
    (void)an_exec_poll(context, THREAD_WAIT_US);
}

enum pp_status an_exec_start(struct an_exec *exec)
{
    PP_ASSERT(exec->thread == NULL);
    return pp_thread_start("exec", exec_thread, exec, 0, &exec->thread);
}

void an_exec_stop(struct an_exec *exec)
{
    if (exec->thread != NULL) {
        pp_thread_stop(exec->thread, wake_from_builder, exec);
        exec->thread = NULL;
    }
}

void an_exec_usage(const struct an_exec *exec, struct an_exec_usage *usage_out)
{
    const _Atomic uint64_t *kinds = exec->limit.used_by_kind;
    *usage_out = (struct an_exec_usage){
        .memory_limit_bytes = exec->limit.bytes_max,
        .kv_bytes = atomic_load_explicit(&kinds[PP_MEMORY_KV], memory_order_relaxed),
        .index_bytes = atomic_load_explicit(&kinds[PP_MEMORY_INDEX], memory_order_relaxed),
        .tail_bytes = atomic_load_explicit(&kinds[PP_MEMORY_TAIL], memory_order_relaxed),
        .scratch_bytes = atomic_load_explicit(&kinds[PP_MEMORY_SCRATCH], memory_order_relaxed),
        .spare_bytes = atomic_load_explicit(&kinds[PP_MEMORY_SPARE], memory_order_relaxed),
        .parts = atomic_load_explicit(&exec->parts_count, memory_order_relaxed),
        .tokens_held = atomic_load_explicit(&exec->tokens_held, memory_order_relaxed),
    };
}
