/*
 * What the files of exec share. See exec.h. Everything below `table` is touched by the exec thread
 * only, except the counters that say so.
 */
#ifndef PIGPEN_ATTN_NODE_EXEC_EXEC_INTERNAL_H
#define PIGPEN_ATTN_NODE_EXEC_EXEC_INTERNAL_H

#include <stdatomic.h>

#include "attn-node/exec/attend.h"
#include "attn-node/exec/builder.h"
#include "attn-node/exec/exec.h"
#include "attn-node/exec/shadow.h"
#include "attn-node/kv/table.h"
#include "common/run/ring.h"
#include "common/run/thread.h"

/* NULL members when the config has no stats. */
struct an_exec_stats {
    struct pp_stat *tokens_appended, *append_duplicates;
    struct pp_stat *parts_expired, *parts_evicted;
    struct pp_stat *rows_read, *rows_held;
    struct pp_stat *stage_queue, *stage_scan;
    struct pp_stat *rel_err[PP_SKETCH + 1]; /* of the estimators that have one */
    struct pp_stat *build_seconds, *merges;
    struct pp_stat *limit_bytes, *usage_ratio, *parts, *tokens_held;
    struct pp_stat *used[PP_MEMORY_RPC]; /* the kinds before rpc, which is the service's */
};

struct an_exec {
    struct an_exec_config config;
    struct pp_limit limit;
    struct an_store store;
    struct pp_places places; /* of the store's NUMA nodes */
    struct an_table table;
    struct an_attend *attend;
    struct an_builder *builder;
    struct an_shadow *shadow; /* NULL: off */
    struct an_tuning *tuning; /* the tune that goes on; NULL: none */
    struct an_exec_stats stats;
    struct pp_ring *attends; /* they go before what waits in jobs */
    struct pp_ring *jobs, *done;
    uint32_t attends_in_turn;   /* since the last one of jobs */
    _Atomic uint32_t in_flight; /* submitted, not taken back */
    struct pp_thread *thread;
    struct an_part *item_parts[PP_ATTEND_ITEMS_MAX];
    _Atomic uint64_t parts_count, tokens_held; /* for an_exec_usage, from any thread */
};

/* Runs one job; sets its status and detail. */
void an_exec_dispatch(struct an_exec *exec, struct an_job *job);

/* Destroys a part that was taken out of the table and counts it off. Returns the bytes that came
 * free at once (a build in progress gives its bytes back when it ends). */
uint64_t an_exec_drop_part(struct an_exec *exec, struct an_part *part);

/* Frees the parts whose lease has ended. */
void an_exec_expire(struct an_exec *exec);

/* Brings the count of held tokens up to date after a part's layers changed. */
void an_exec_count_tokens(struct an_exec *exec, struct an_part *part);

/* Text for people beside a status. */
__attribute__((format(printf, 2, 3))) void an_job_explain(struct an_job *job, const char *format,
                                                          ...);

/* Jobs of more than a few lines. */
PP_MUST_USE enum pp_status an_exec_open(struct an_exec *exec, struct an_job *job);
PP_MUST_USE enum pp_status an_exec_append(struct an_exec *exec, struct an_job *job);
PP_MUST_USE enum pp_status an_exec_attend(struct an_exec *exec, struct an_job *job);
/* Begins a tune. PP_OK: the job is not done yet (an_exec_tune_pump). */
PP_MUST_USE enum pp_status an_exec_tune(struct an_exec *exec, struct an_job *job);
/* Goes on with it when the builder has done a layer; returns the job when it is done, or NULL. */
struct an_job *an_exec_tune_pump(struct an_exec *exec);
/* Makes the builder leave it soon; and, when the builder is gone, ends it: its job, or NULL. */
void an_exec_tune_cancel(struct an_exec *exec);
struct an_job *an_exec_tune_end(struct an_exec *exec);

PP_MUST_USE enum pp_status an_exec_self_test(struct an_exec *exec, struct an_self_test_args *test);

/* Finds a part of a request and checks its generation (any: 0 is accepted as no generation). */
PP_MUST_USE enum pp_status an_exec_find(struct an_exec *exec, const struct an_part_ref *ref,
                                        bool any, struct an_part **part_out);

#endif
