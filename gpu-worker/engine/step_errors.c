/*
 * What a step learns of the errors of its answers: the estimate of the merged answer, counted by
 * layer and head, and, where it is asked for, how far the nodes' answer is from the exact one. On
 * the walk: engine/step, behind the answer. It refuses to know how nodes estimate.
 */
#include <math.h>

#include "common/attn/partial.h"
#include "gpu-worker/engine/engine_state.h"

static double length_of(const float *values, uint32_t dim)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < dim; i++) {
        sum += (double)values[i] * (double)values[i];
    }
    return sqrt(sum);
}

static double distance(const float *left, const float *right, uint32_t dim)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < dim; i++) {
        double difference = (double)left[i] - (double)right[i];
        sum += difference * difference;
    }
    return sqrt(sum);
}

/* error / length, which is 0 where both are. */
static double relative(double error, double length)
{
    return error > 0.0 ? error / length : 0.0;
}

void gw_engine_stats_init(struct pp_stats *stats, struct gw_engine_stats *own)
{
    static const char name[] = "pigpen_worker_attends_flagged_total";
    static const char help[] =
        "Attends that were answered otherwise than by the sample asked for: it was empty and all "
        "was "
        "read, or a uniform sample instead, or all was read to meet the target error.";
    if (stats == NULL) {
        return;
    }
    own->rel_err = pp_stats_histogram(
        stats, "pigpen_worker_rel_err", "",
        "Relative error that nodes' estimates give answers merged with what the worker attends, of "
        "each layer and head: what a step's attention may be off by.",
        1e-3, 2, 12);
    own->keys_read = pp_stats_counter(stats, "pigpen_worker_keys_read_total", "",
                                      "Keys that nodes read for steps, each once for all heads "
                                      "that share it; over the keys held: "
                                      "the share that is read.");
    own->keys_held = pp_stats_counter(stats, "pigpen_worker_keys_held_total", "",
                                      "Keys that nodes held of what steps asked them.");
    own->empty = pp_stats_counter(stats, name, "flag=\"empty_sample\"", help);
    own->uniform = pp_stats_counter(stats, name, "flag=\"uniform\"", help);
    own->missed = pp_stats_counter(stats, name, "flag=\"target_missed\"", help);
}

static void count_flag(struct pp_stat *stat, bool set, uint64_t *count)
{
    *count += set ? 1 : 0;
    if (set && stat != NULL) {
        pp_stat_add(stat, 1);
    }
}

void gw_step_count_answer(const struct gw_engine *engine, const struct gw_remote_answer *answer,
                          struct gw_step_stats *stats)
{
    const struct gw_engine_stats *own = &engine->stats;
    uint32_t flags = answer->flags;
    stats->keys_read += answer->keys_read;
    stats->keys_held += answer->keys_held;
    stats->keys_read_q += answer->keys_read_q;
    stats->keys_held_q += answer->keys_held_q;
    if (own->keys_read != NULL) {
        pp_stat_add(own->keys_read, answer->keys_read);
        pp_stat_add(own->keys_held, answer->keys_held);
    }
    count_flag(own->empty, (flags & GW_ANSWER_EMPTY_SAMPLE) != 0, &stats->attends_empty);
    count_flag(own->uniform, (flags & GW_ANSWER_UNIFORM) != 0, &stats->attends_uniform);
    count_flag(own->missed, (flags & GW_ANSWER_TARGET_MISSED) != 0, &stats->attends_missed);
}

enum pp_status gw_step_take_local(struct gw_engine *engine, uint32_t begin, uint32_t count)
{
    const struct gw_device_ops *ops = engine->device->ops;
    struct gw_row_host host = gw_row_host(engine, begin);
    uint64_t heads = (uint64_t)begin * engine->heads.q_heads;
    uint64_t lse_bytes = sizeof(float) * count * engine->heads.q_heads;
    PP_TRY(ops->pinned_out(engine->device, engine->stream, host.local_o,
                           engine->o + heads * engine->heads.head_dim,
                           lse_bytes * engine->heads.head_dim));
    PP_TRY(ops->pinned_out(engine->device, engine->stream, host.local_lse, engine->lse + heads,
                           lse_bytes));
    PP_TRY(gw_engine_mark(engine));
    return gw_engine_wait(engine);
}

/* A head of what was attended here merged with another partial; o into o_out [dim]. */
static struct pp_partial merge_local(const struct gw_row_host *host, uint32_t head, uint32_t dim,
                                     const struct pp_partial *other, float *o_out)
{
    const struct pp_partial partials[2] = {
        {.o = host->local_o + (uint64_t)head * dim, .lse = host->local_lse[head]}, *other};
    struct pp_partial merged = {.o = o_out};
    pp_partial_merge(partials, 2, dim, &merged);
    return merged;
}

/* said: nodes were asked for errors. */
static struct pp_partial answer_of(const struct gw_row_host *host, uint32_t head, uint32_t dim,
                                   bool said)
{
    return (struct pp_partial){.o = host->answer_o + (uint64_t)head * dim,
                               .lse = host->answer_lse[head],
                               .var = said ? host->answer_var[head] : 0.0f,
                               .lse_var = said ? host->answer_lse_var[head] : 0.0f};
}

void gw_step_add_published(const struct gw_engine *engine, double *nodes_out, double *merged_out)
{
    uint32_t dim = engine->heads.head_dim;
    struct gw_row_host host = gw_row_host(engine, 0);
    for (uint32_t head = 0; head < engine->heads.q_heads; head++) {
        float o[PP_HEAD_DIM_MAX];
        struct pp_partial answer = answer_of(&host, head, dim, true);
        struct pp_partial merged = merge_local(&host, head, dim, &answer, o);
        *nodes_out += relative(sqrt((double)answer.var), length_of(answer.o, dim));
        *merged_out += relative(sqrt((double)merged.var), length_of(o, dim));
    }
}

void gw_step_count_errors(struct gw_sequence *sequence, uint32_t row, uint32_t layer)
{
    const struct gw_engine *engine = sequence->engine;
    uint32_t dim = engine->heads.head_dim;
    struct gw_row_host host = gw_row_host(engine, row);
    for (uint32_t head = 0; head < engine->heads.q_heads; head++) {
        float o[PP_HEAD_DIM_MAX];
        struct pp_partial answer = answer_of(&host, head, dim, true);
        struct pp_partial merged = merge_local(&host, head, dim, &answer, o);
        double length = length_of(o, dim);
        double error = relative(sqrt((double)merged.var), length);
        gw_errors_add(sequence->errors, layer, head, error);
        if (engine->stats.rel_err != NULL) {
            pp_stat_observe(engine->stats.rel_err, error);
        }
    }
}

/* One head of the nodes' answer beside the exact one: by itself, and merged with what was attended
 * here. */
static void compare_head(const struct gw_sequence *sequence, const struct gw_row_host *host,
                         uint32_t layer, uint32_t head, struct gw_step_stats *stats)
{
    uint32_t dim = sequence->engine->heads.head_dim;
    float o[PP_HEAD_DIM_MAX], exact_o[PP_HEAD_DIM_MAX];
    struct pp_partial answer = answer_of(host, head, dim, sequence->errors != NULL);
    struct pp_partial exact = {.o = sequence->exact_o + (uint64_t)head * dim,
                               .lse = sequence->exact_lse[head]};
    stats->error_sum += relative(distance(answer.o, exact.o, dim), length_of(exact.o, dim));
    struct pp_partial merged = merge_local(host, head, dim, &answer, o);
    (void)merge_local(host, head, dim, &exact, exact_o);
    double error = relative(distance(o, exact_o, dim), length_of(exact_o, dim));
    double published = relative(sqrt((double)merged.var), length_of(o, dim));
    stats->errors += 1;
    stats->merged_error_sum += error;
    double target = gw_sequence_target(sequence, layer);
    stats->errors_targeted += target > 0.0 ? 1 : 0;
    stats->errors_within += target > 0.0 && error <= target ? 1 : 0;
    if (published > 0.0) {
        stats->errors_estimated += 1;
        stats->published_sum += published;
        stats->errors_covered += error <= 2.0 * published ? 1 : 0;
    }
}

enum pp_status gw_step_compare(struct gw_sequence *sequence, uint32_t row, uint32_t layer,
                               uint64_t held, struct gw_step_stats *stats)
{
    const struct gw_engine *engine = sequence->engine;
    struct gw_row_host host = gw_row_host(engine, row);
    struct gw_remote_answer exact = {.o = sequence->exact_o, .lse = sequence->exact_lse};
    struct gw_remote_attend attend = {.layer = layer,
                                      .held_tokens = held,
                                      .q_rows = 1,
                                      .q = host.sent_q,
                                      .estimator = {.kind = PP_EXACT}};
    PP_TRY(gw_remote_attend_begin(sequence->remote, &attend));
    PP_TRY(gw_remote_attend_wait(sequence->remote, &exact));
    for (uint32_t head = 0; head < engine->heads.q_heads; head++) {
        compare_head(sequence, &host, layer, head, stats);
    }
    return PP_OK;
}
