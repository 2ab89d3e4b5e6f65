/*
 * What each job does to the table of parts. See exec.h for the contract of every job. Big ones have
 * files of their own.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "attn-node/exec/exec_internal.h"
#include "attn-node/kv/read.h"
#include "common/base/crc32c.h"

void an_job_explain(struct an_job *job, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(job->detail, sizeof(job->detail), format, arguments);
    va_end(arguments);
}

enum pp_status an_exec_find(struct an_exec *exec, const struct an_part_ref *ref, bool any,
                            struct an_part **part_out)
{
    struct an_part *part;
    PP_TRY(an_table_find(&exec->table, ref->handle, pp_clock_now_us(&exec->config.clock), &part));
    if (ref->generation != part->generation && !(any && ref->generation == 0)) {
        return PP_STALE_GENERATION;
    }
    *part_out = part;
    return PP_OK;
}

void an_exec_count_tokens(struct an_exec *exec, struct an_part *part)
{
    uint64_t longest = 0;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        uint64_t held = an_layer_held(&part->layers[i]);
        longest = held > longest ? held : longest;
    }
    /* Unsigned wrap-around makes a shorter part a subtraction. */
    atomic_fetch_add_explicit(&exec->tokens_held, longest - part->longest, memory_order_relaxed);
    part->longest = longest;
}

uint64_t an_exec_drop_part(struct an_exec *exec, struct an_part *part)
{
    uint64_t before = pp_limit_used(&exec->limit);
    atomic_fetch_sub_explicit(&exec->tokens_held, part->longest, memory_order_relaxed);
    atomic_fetch_sub_explicit(&exec->parts_count, 1, memory_order_relaxed);
    an_part_destroy(part);
    (void)an_builder_pump(exec->builder);
    return before - pp_limit_used(&exec->limit);
}

void an_exec_expire(struct an_exec *exec)
{
    uint64_t now_us = pp_clock_now_us(&exec->config.clock);
    struct an_part *part;
    while ((part = an_table_expire(&exec->table, now_us)) != NULL) {
        (void)an_exec_drop_part(exec, part);
        if (exec->stats.parts_expired != NULL) {
            pp_stat_add(exec->stats.parts_expired, 1);
        }
    }
}

static enum pp_status job_seal(struct an_exec *exec, struct an_job *job)
{
    struct an_seal_args *args = &job->seal;
    struct an_part *part;
    PP_TRY(an_exec_find(exec, &args->part, false, &part));
    for (uint32_t i = 0; i < args->layer_count; i++) {
        if (args->layers[i] >= part->spec.shape.layers) {
            an_job_explain(job, "layer %u of %u", args->layers[i], part->spec.shape.layers);
            return PP_INVALID_ARGUMENT;
        }
    }
    return an_part_seal(part, args->layers, args->layer_count, &args->segments);
}

static enum pp_status job_fork(struct an_exec *exec, struct an_job *job)
{
    struct an_fork_args *args = &job->fork;
    struct an_part *from;
    PP_TRY(an_exec_find(exec, &args->part, false, &from));
    struct an_part *part = an_table_find_id(&exec->table, args->part_id);
    if (part != NULL) {
        bool same = part->forked && part->fork_source == from->handle &&
                    part->fork_held_tokens == args->held_tokens &&
                    part->fork_generation == args->generation &&
                    memcmp(part->spec.sequence_id, args->sequence_id, PP_ID_BYTES) == 0;
        if (!same) {
            return PP_PART_EXISTS;
        }
        return an_table_find(&exec->table, args->handle = part->handle,
                             pp_clock_now_us(&exec->config.clock), &part);
    }
    PP_TRY(an_part_fork(from, args->sequence_id, args->part_id, args->held_tokens, args->generation,
                        &part));
    enum pp_status status = an_table_add(&exec->table, part, pp_clock_now_us(&exec->config.clock));
    if (status != PP_OK) {
        an_part_destroy(part);
        return status;
    }
    atomic_fetch_add_explicit(&exec->parts_count, 1, memory_order_relaxed);
    an_exec_count_tokens(exec, part);
    args->handle = part->handle;
    return PP_OK;
}

static enum pp_status job_truncate(struct an_exec *exec, struct an_job *job)
{
    struct an_truncate_args *args = &job->truncate;
    struct an_part *part;
    PP_TRY(an_table_find(&exec->table, args->part.handle, pp_clock_now_us(&exec->config.clock),
                         &part));
    PP_TRY(an_part_truncate(part, args->part.generation, args->new_generation, args->held_tokens));
    an_exec_count_tokens(exec, part);
    return PP_OK;
}

static enum pp_status job_read(struct an_exec *exec, struct an_job *job)
{
    struct an_read_args *args = &job->read;
    struct an_part *part;
    PP_TRY(an_exec_find(exec, &args->part, false, &part));
    if (args->layer >= part->spec.shape.layers || args->count == 0) {
        an_job_explain(job, "layer %u, %u rows", args->layer, args->count);
        return PP_INVALID_ARGUMENT;
    }
    const struct an_layer *layer = &part->layers[args->layer];
    uint64_t held = an_layer_held(layer);
    if (args->start > held || args->count > held - args->start) {
        an_job_explain(job, "layer %u holds %llu tokens", args->layer, (unsigned long long)held);
        return PP_OUT_OF_RANGE;
    }
    uint64_t bytes = an_read_bytes(part->params, args->count);
    if (args->out != NULL && bytes > args->out_capacity) {
        return PP_INVALID_ARGUMENT;
    }
    if (args->out != NULL) {
        an_read_rows(layer, args->start, args->count, args->out);
        args->crc32c = pp_crc32c(0, args->out, bytes);
    }
    args->out_bytes = bytes;
    return PP_OK;
}

static enum pp_status job_renew(struct an_exec *exec, struct an_job *job)
{
    struct an_renew_args *args = &job->renew;
    uint64_t now_us = pp_clock_now_us(&exec->config.clock);
    args->unknown_count = 0;
    for (uint32_t i = 0; i < args->handle_count; i++) {
        struct an_part *part;
        if (an_table_find(&exec->table, args->handles[i], now_us, &part) != PP_OK) {
            args->unknown[args->unknown_count++] = args->handles[i];
        }
    }
    return PP_OK;
}

static enum pp_status job_close(struct an_exec *exec, struct an_job *job)
{
    struct an_part *part;
    PP_TRY(an_exec_find(exec, &job->close.part, true, &part));
    an_table_remove(&exec->table, part);
    job->close.freed_bytes = an_exec_drop_part(exec, part);
    return PP_OK;
}

static void fill_info(const struct an_part *part, uint64_t now_us, struct an_part_info *info)
{
    *info = (struct an_part_info){
        .handle = part->handle,
        .generation = part->generation,
        .kv_head_begin = part->spec.kv_head_begin,
        .kv_head_count = part->spec.kv_head_count,
        .token_begin = part->spec.token_begin,
        .bytes = an_part_bytes(part),
        .lease_left_us = part->lease_end_us > now_us ? part->lease_end_us - now_us : 0,
        .estimator = part->spec.estimator.kind,
        .layer_count = part->spec.shape.layers,
    };
    memcpy(info->sequence_id, part->spec.sequence_id, PP_ID_BYTES);
    memcpy(info->part_id, part->spec.part_id, PP_ID_BYTES);
}

static enum pp_status job_get(struct an_exec *exec, struct an_job *job)
{
    struct an_get_args *args = &job->get;
    struct an_part *part;
    PP_TRY(an_exec_find(exec, &args->part, true, &part));
    fill_info(part, pp_clock_now_us(&exec->config.clock), &args->info);
    for (uint32_t i = 0; i < part->spec.shape.layers && args->layers != NULL; i++) {
        const struct an_layer *layer = &part->layers[i];
        struct an_layer_info *info = &args->layers[i];
        *info = (struct an_layer_info){
            .held_tokens = an_layer_held(layer),
            .sealed_tokens = layer->sealed_tokens,
            .segments = layer->view_count,
        };
        for (uint32_t j = 0; j < layer->view_count; j++) {
            const struct an_segment *segment = layer->views[j].segment;
            bool settled = segment->indexed || segment->index_charge == 0;
            info->indexed_tokens += segment->indexed ? layer->views[j].count : 0;
            info->settled_tokens += settled ? layer->views[j].count : 0;
        }
    }
    return PP_OK;
}

/* Keeps the `capacity` least handles above after_handle, ascending. */
static enum pp_status job_list(struct an_exec *exec, struct an_job *job)
{
    struct an_list_args *args = &job->list;
    uint64_t now_us = pp_clock_now_us(&exec->config.clock);
    args->count = 0;
    args->more = false;
    args->parts_total = exec->table.count;
    for (struct an_part *part = exec->table.oldest; part != NULL; part = part->lease_newer) {
        if (part->handle <= args->after_handle) {
            continue;
        }
        uint32_t at = args->count;
        while (at > 0 && args->parts[at - 1].handle > part->handle) {
            at--;
        }
        if (at == args->capacity) {
            args->more = true;
            continue;
        }
        uint32_t moved = args->count - at;
        if (args->count == args->capacity) {
            args->more = true;
            moved--;
        } else {
            args->count++;
        }
        memmove(&args->parts[at + 1], &args->parts[at], moved * sizeof(*args->parts));
        fill_info(part, now_us, &args->parts[at]);
    }
    return PP_OK;
}

/* Parts in use are evicted only by force; in use means that their lease still runs. */
static enum pp_status job_evict(struct an_exec *exec, struct an_job *job)
{
    struct an_evict_args *args = &job->evict;
    uint64_t now_us = pp_clock_now_us(&exec->config.clock);
    args->evicted = 0;
    args->freed_bytes = 0;
    for (uint32_t i = 0; i < args->handle_count; i++) {
        struct an_part *part = exec->table.oldest;
        while (part != NULL && part->handle != args->handles[i]) {
            part = part->lease_newer;
        }
        if (part == NULL || (!args->force && part->lease_end_us > now_us)) {
            continue;
        }
        an_table_evict(&exec->table, part);
        args->freed_bytes += an_exec_drop_part(exec, part);
        args->evicted++;
        if (exec->stats.parts_evicted != NULL) {
            pp_stat_add(exec->stats.parts_evicted, 1);
        }
    }
    return PP_OK;
}

static enum pp_status run_job(struct an_exec *exec, struct an_job *job)
{
    switch (job->kind) {
    case AN_JOB_OPEN:
        return an_exec_open(exec, job);
    case AN_JOB_APPEND:
        return an_exec_append(exec, job);
    case AN_JOB_ATTEND:
        return an_exec_attend(exec, job);
    case AN_JOB_SEAL:
        return job_seal(exec, job);
    case AN_JOB_FORK:
        return job_fork(exec, job);
    case AN_JOB_TRUNCATE:
        return job_truncate(exec, job);
    case AN_JOB_READ:
        return job_read(exec, job);
    case AN_JOB_RENEW:
        return job_renew(exec, job);
    case AN_JOB_CLOSE:
        return job_close(exec, job);
    case AN_JOB_GET:
        return job_get(exec, job);
    case AN_JOB_LIST:
        return job_list(exec, job);
    case AN_JOB_EVICT:
        return job_evict(exec, job);
    case AN_JOB_SELF_TEST:
        return an_exec_self_test(exec, &job->self_test);
    case AN_JOB_TUNE:
        return an_exec_tune(exec, job);
    }
    return PP_INTERNAL;
}

void an_exec_dispatch(struct an_exec *exec, struct an_job *job)
{
    job->detail[0] = '\0';
    an_exec_expire(exec); /* a lease ends when it says, however long the queue was */
    job->status = run_job(exec, job);
}
