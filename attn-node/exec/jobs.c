/*
 * The jobs of a token's life on a node: open, append, attend. See exec.h.
 */
#include <math.h>
#include <string.h>

#include "attn-node/exec/exec_internal.h"
#include "attn-node/kv/append.h"

static void open_spec(const struct an_open_args *args, struct an_part_spec *spec_out)
{
    struct an_part_spec spec = {
        .fingerprint_bytes = args->fingerprint_bytes,
        .shape = args->shape,
        .kv_head_begin = args->kv_head_begin,
        .kv_head_count = args->kv_head_count,
        .token_begin = args->token_begin,
        .estimator = args->estimator,
        .hash_seed = args->hash_seed,
        .draw_key = args->draw_key,
    };
    memcpy(spec.sequence_id, args->sequence_id, PP_ID_BYTES);
    memcpy(spec.part_id, args->part_id, PP_ID_BYTES);
    uint32_t bytes = args->fingerprint_bytes;
    memcpy(spec.fingerprint, args->fingerprint,
           bytes < PP_FINGERPRINT_BYTES ? bytes : PP_FINGERPRINT_BYTES);
    *spec_out = spec;
}

static struct an_part_layers open_layers(const struct an_open_args *args)
{
    return (struct an_part_layers){.dense = args->dense_layers,
                                   .dense_count = args->dense_layer_count,
                                   .estimators = args->layer_estimators,
                                   .estimator_count = args->layer_estimator_count};
}

static void open_answer(const struct an_part *part, bool existed, struct an_open_args *args)
{
    args->handle = part->handle;
    args->lease_us = part->lease_us;
    args->held_generation = part->generation;
    args->existed = existed;
    for (uint32_t i = 0; i < part->spec.shape.layers && args->held_tokens != NULL; i++) {
        args->held_tokens[i] = an_layer_held(&part->layers[i]);
    }
}

/* Tells people what an open lacked. `more` is what the part takes besides what it reserves. */
static void explain_memory(const struct an_exec *exec, struct an_job *job,
                           const struct an_part *part, uint64_t more)
{
    const struct an_open_args *args = &job->open;
    uint64_t need = an_part_need(part, args->reserve_tokens);
    need = (need > args->reserve_bytes ? need : args->reserve_bytes) + more;
    uint64_t used = pp_limit_used(&exec->limit), most = exec->limit.bytes_max;
    const double mib = 1 << 20;
    an_job_explain(job,
                   "needs %.1f MiB for %llu tokens, %.1f MiB free of %.0f MiB for parts: raise "
                   "--memory-limit, add nodes, or shorten the prompt",
                   (double)need / mib, (unsigned long long)args->reserve_tokens,
                   (double)(used < most ? most - used : 0) / mib, (double)most / mib);
}

/* Takes the memory that the part will need: for sampling, and what the open reserves. */
static enum pp_status open_memory(struct an_exec *exec, struct an_job *job, struct an_part *part)
{
    const struct an_open_args *args = &job->open;
    uint64_t sampling = 0;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        uint64_t bytes = an_attend_prepare_bytes(exec->attend, part->layers[i].params);
        sampling = bytes > sampling ? bytes : sampling;
    }
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < part->spec.shape.layers && status == PP_OK; i++) {
        status = an_attend_prepare(exec->attend, part->layers[i].params);
    }
    if (status != PP_OK) {
        explain_memory(exec, job, part, sampling);
        return status;
    }
    status = an_part_reserve(part, args->reserve_tokens, args->reserve_bytes);
    if (status != PP_OK) {
        explain_memory(exec, job, part, 0);
    }
    return status;
}

static enum pp_status open_new(struct an_exec *exec, struct an_job *job,
                               const struct an_part_spec *spec, struct an_part **part_out)
{
    struct an_open_args *args = &job->open;
    struct an_part *part;
    struct an_part_layers layers = open_layers(args);
    enum pp_status status = an_part_new(&exec->store, spec, &layers, &part);
    if (status != PP_OK) {
        an_job_explain(job, "no memory for the part itself, %llu of %llu bytes in use",
                       (unsigned long long)pp_limit_used(&exec->limit),
                       (unsigned long long)exec->limit.bytes_max);
        return status;
    }
    part->generation = args->generation;
    part->lease_us = args->lease_us;
    status = open_memory(exec, job, part);
    if (status == PP_OK) {
        status = an_table_add(&exec->table, part, pp_clock_now_us(&exec->config.clock));
    }
    if (status != PP_OK) {
        an_part_destroy(part);
        return status;
    }
    atomic_fetch_add_explicit(&exec->parts_count, 1, memory_order_relaxed);
    *part_out = part;
    return PP_OK;
}

enum pp_status an_exec_open(struct an_exec *exec, struct an_job *job)
{
    struct an_open_args *args = &job->open;
    struct an_part_spec spec;
    open_spec(args, &spec);
    struct an_part_layers layers = open_layers(args);
    PP_TRY(an_part_check(&spec, &layers));
    struct an_part *part = an_table_find_id(&exec->table, args->part_id);
    if (part != NULL) {
        PP_TRY(an_part_matches(part, &spec, &layers));
        PP_TRY(
            an_table_find(&exec->table, part->handle, pp_clock_now_us(&exec->config.clock), &part));
        open_answer(part, true, args);
        return PP_OK;
    }
    const struct an_part *sibling = an_table_find_sequence(&exec->table, args->sequence_id);
    if (sibling != NULL &&
        (sibling->spec.fingerprint_bytes != spec.fingerprint_bytes ||
         memcmp(sibling->spec.fingerprint, spec.fingerprint, spec.fingerprint_bytes) != 0)) {
        an_job_explain(job, "the sequence is held here for another model");
        return PP_MODEL_MISMATCH;
    }
    PP_TRY(open_new(exec, job, &spec, &part));
    open_answer(part, false, args);
    return PP_OK;
}

static struct an_append append_of(const struct an_append_args *args)
{
    return (struct an_append){
        .start = args->start,
        .count = args->count,
        .bulk = args->bulk,
        .checksum_given = args->checksum_given,
        .crc32c = args->crc32c,
        .payload = args->payload,
        .dtype = args->dtype,
        .k = args->k,
        .v = args->v,
        .segment_given = args->segment_given,
        .segment_begin = args->segment_begin,
        .segment_count = args->segment_count,
        .signatures = args->signatures,
        .centre = args->centre,
        .balance = args->balance,
    };
}

static void append_count(struct an_exec *exec, struct an_part *part, uint64_t added)
{
    struct an_exec_stats *stats = &exec->stats;
    if (stats->tokens_appended != NULL) {
        pp_stat_add(stats->tokens_appended, (double)added);
        pp_stat_add(stats->append_duplicates, added == 0 ? 1 : 0);
    }
    an_exec_count_tokens(exec, part);
}

enum pp_status an_exec_append(struct an_exec *exec, struct an_job *job)
{
    struct an_append_args *args = &job->append;
    struct an_part *part;
    PP_TRY(an_exec_find(exec, &args->part, false, &part));
    if (args->layer >= part->spec.shape.layers) {
        an_job_explain(job, "layer %u of %u", args->layer, part->spec.shape.layers);
        return PP_INVALID_ARGUMENT;
    }
    struct an_layer *layer = &part->layers[args->layer];
    struct an_append append = append_of(args);
    const char *why = NULL;
    enum pp_status status = an_append_check(layer->params, &append, &why);
    if (status != PP_OK) {
        an_job_explain(job, "%s", why != NULL ? why : "");
        return status;
    }
    uint64_t held = an_layer_held(layer);
    args->held_tokens = held;
    an_part_reserve_lend(part);
    status = an_append_apply(layer, &append, &args->duplicate);
    an_part_reserve_settle(part);
    if (status != PP_OK) {
        an_job_explain(job, "layer %u holds %llu tokens", args->layer, (unsigned long long)held);
        return status;
    }
    args->held_tokens = an_layer_held(layer);
    append_count(exec, part, args->held_tokens - held);
    return PP_OK;
}

static void attend_count(struct an_exec *exec, const struct an_attend_args *args)
{
    struct an_exec_stats *stats = &exec->stats;
    for (uint32_t i = 0; i < args->item_count && stats->rows_read != NULL; i++) {
        const struct an_attend_item *item = &args->items[i];
        if (item->status != PP_OK) {
            continue;
        }
        pp_stat_add(stats->rows_read, (double)item->rows_read);
        pp_stat_add(stats->rows_held, (double)item->rows_held);
        if (item->used == PP_LSH || item->used == PP_SKETCH) {
            double norm = 0;
            for (uint32_t j = 0; j < item->head_dim; j++) {
                norm += (double)item->o[j] * (double)item->o[j];
            }
            pp_stat_observe(stats->rel_err[item->used],
                            norm > 0 ? sqrt((double)item->var[0] / norm) : 0);
        }
    }
}

/* Keeps what layers with a sample were asked, for tuning. */
static void keep_queries(struct an_exec *exec, const struct an_attend_args *args)
{
    for (uint32_t i = 0; i < args->item_count; i++) {
        const struct an_attend_item *item = &args->items[i];
        struct an_part *part = exec->item_parts[i];
        if (item->status == PP_OK && part->late != NULL) {
            const struct an_layer *layer = &part->layers[args->layer];
            if (!layer->dense && an_params_samples(layer->params)) {
                an_late_put(part->late, args->layer, args->q_dtype, item->q, item->q_rows);
            }
        }
    }
}

enum pp_status an_exec_attend(struct an_exec *exec, struct an_job *job)
{
    struct an_attend_args *args = &job->attend;
    if (args->item_count > PP_ATTEND_ITEMS_MAX) {
        an_job_explain(job, "%u items", args->item_count);
        return PP_INVALID_ARGUMENT;
    }
    uint64_t start_us = pp_clock_now_us(&exec->config.clock);
    if (exec->stats.stage_queue != NULL && start_us >= job->received_us) {
        pp_stat_observe(exec->stats.stage_queue, (double)(start_us - job->received_us) * 1e-6);
    }
    if (args->deadline_us != 0 && start_us >= args->deadline_us) {
        for (uint32_t i = 0; i < args->item_count; i++) {
            args->items[i].status = PP_DEADLINE_EXCEEDED;
        }
        return PP_DEADLINE_EXCEEDED;
    }
    for (uint32_t i = 0; i < args->item_count; i++) {
        struct an_attend_item *item = &args->items[i];
        exec->item_parts[i] = NULL;
        item->status = an_exec_find(exec, &item->part, false, &exec->item_parts[i]);
        if (item->status == PP_OK) {
            item->status =
                an_attend_admit(exec->item_parts[i], args->layer, args->q_dtype, job, item);
        }
    }
    an_attend_run(exec->attend, args, exec->item_parts);
    keep_queries(exec, args);
    if (exec->stats.stage_scan != NULL) {
        uint64_t end_us = pp_clock_now_us(&exec->config.clock);
        pp_stat_observe(exec->stats.stage_scan, (double)(end_us - start_us) * 1e-6);
    }
    attend_count(exec, args);
    for (uint32_t i = 0; i < args->item_count && exec->shadow != NULL; i++) {
        const struct an_attend_item *item = &args->items[i];
        if (item->status == PP_OK) {
            an_shadow_offer(exec->shadow, exec->item_parts[i], args->layer, args->q_dtype, item);
        }
    }
    return PP_OK;
}
