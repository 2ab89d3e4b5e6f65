/*
 * Tuning a part: which settings would meet a target error, by the queries it was asked lately. A
 * layer at a time goes to the builder with references to its sealed segments, so that attends,
 * appends and builds go on; between layers exec looks whether the part is still there. See
 * attn-node/index/tune.h for what is computed.
 * On the walk: exec (job) > tune > builder > index (tune) > exec. Threads: the exec thread, but
 * tune_layer on the builder's, which touches only what `struct an_tuning` marks as its own.
 */
#include <stdlib.h>
#include <string.h>

#include "attn-node/exec/exec_internal.h"
#include "attn-node/index/tune.h"
#include "attn-node/kv/late.h"
#include "common/attn/budget.h"
#include "common/base/assert.h"

/* A view as it was when its layer was handed over; its segment is referred to. */
struct taken {
    const struct an_segment *segment;
    uint32_t begin, end;
    bool indexed;
};

struct an_tuning {
    struct an_job *job;
    uint64_t handle;
    uint32_t layer; /* in work or next */
    uint64_t charged, layer_charged;
    bool at_work; /* a layer is with the builder */
    /* The builder's while a layer is at work. */
    _Atomic bool cancelled;
    struct taken *taken; /* [view_count], with `views` in one block of memory */
    struct an_tune_view *views;
    uint32_t view_count;
    const struct an_params *params;
    struct pp_estimator own; /* with its budget as a share */
    uint32_t kv_heads, group, dim, q_rows;
    uint64_t tokens;
    float scale;
    float *late;                /* [AN_LATE_ROWS][q head][dim] */
    float *q, *q_scaled;        /* [AN_LATE_ROWS][group][dim] */
    struct an_tune_head *heads; /* [q head] */
    double *values;             /* [q head] */
    uint8_t *scratch;
    struct an_tune_choice choice;
};

static void *cut(uint8_t **memory, uint64_t bytes)
{
    void *piece = *memory;
    *memory += (bytes + 63u) & ~63ull;
    return piece;
}

/* Memory for a part's layers, but the views. */
static enum pp_status tuning_new(struct an_exec *exec, const struct an_part *part,
                                 struct an_tuning **tuning_out)
{
    uint32_t q_heads = an_part_q_heads(part);
    uint32_t group = pp_shape_group(&part->spec.shape);
    uint64_t row = part->spec.shape.head_dim * sizeof(float);
    uint64_t scratch = 0;
    for (uint32_t i = 0; i < part->spec.shape.layers; i++) {
        const struct an_params *params = part->layers[i].params;
        uint64_t bytes = an_tune_scratch_bytes(&params->index, params->dim, PP_SEGMENT_TOKENS_MAX);
        scratch = an_params_samples(params) && bytes > scratch ? bytes : scratch;
    }
    uint64_t total = sizeof(struct an_tuning) + AN_LATE_ROWS * (q_heads + 2ull * group) * row +
                     q_heads * (sizeof(struct an_tune_head) + sizeof(double)) + scratch + 6 * 64;
    total = (total + 63u) & ~63ull;
    PP_TRY(pp_limit_reserve(&exec->limit, PP_MEMORY_SCRATCH, total));
    uint8_t *memory = aligned_alloc(64, total);
    if (memory == NULL) {
        pp_limit_release(&exec->limit, PP_MEMORY_SCRATCH, total);
        return PP_MEMORY;
    }
    struct an_tuning *tuning = cut(&memory, sizeof(*tuning));
    *tuning = (struct an_tuning){.charged = total,
                                 .handle = part->handle,
                                 .kv_heads = part->spec.kv_head_count,
                                 .group = group,
                                 .dim = part->spec.shape.head_dim,
                                 .scale = part->spec.shape.scale};
    tuning->late = cut(&memory, AN_LATE_ROWS * q_heads * row);
    tuning->q = cut(&memory, AN_LATE_ROWS * group * row);
    tuning->q_scaled = cut(&memory, AN_LATE_ROWS * group * row);
    tuning->heads = cut(&memory, q_heads * sizeof(struct an_tune_head));
    tuning->values = cut(&memory, q_heads * sizeof(double));
    tuning->scratch = memory;
    *tuning_out = tuning;
    return PP_OK;
}

/* The late queries of a kv head's group, plain and scaled. */
static void load_queries(struct an_tuning *tuning, uint32_t kv_head)
{
    uint64_t each = (uint64_t)tuning->group * tuning->dim;
    for (uint32_t row = 0; row < tuning->q_rows; row++) {
        const float *from = tuning->late + (row * tuning->kv_heads + kv_head) * each;
        for (uint64_t i = 0; i < each; i++) {
            tuning->q[row * each + i] = from[i];
            tuning->q_scaled[row * each + i] = from[i] * tuning->scale;
        }
    }
}

static void tune_kv_head(struct an_tuning *tuning, uint32_t kv_head)
{
    for (uint32_t i = 0; i < tuning->view_count; i++) {
        const struct taken *taken = &tuning->taken[i];
        const struct an_segment *segment = taken->segment;
        tuning->views[i] = (struct an_tune_view){
            .rows = an_segment_rows(segment, kv_head),
            .begin = taken->begin,
            .end = taken->end,
            .centre = segment->centre + (uint64_t)kv_head * tuning->dim,
            .index = taken->indexed ? segment->index[kv_head] : NULL,
        };
    }
    load_queries(tuning, kv_head);
    const struct an_tune_input input = {
        .params = &tuning->params->index,
        .views = tuning->views,
        .view_count = tuning->view_count,
        .q = tuning->q,
        .q_scaled = tuning->q_scaled,
        .q_rows = tuning->q_rows,
        .group = tuning->group,
    };
    an_tune_add(&input, tuning->scratch, tuning->heads + (uint64_t)kv_head * tuning->group);
}

/* On the builder's thread. */
static void tune_layer(void *context)
{
    struct an_tuning *tuning = context;
    uint32_t q_heads = tuning->kv_heads * tuning->group;
    memset(tuning->heads, 0, q_heads * sizeof(*tuning->heads));
    for (uint32_t head = 0; head < tuning->kv_heads; head++) {
        if (atomic_load_explicit(&tuning->cancelled, memory_order_relaxed)) {
            return;
        }
        tune_kv_head(tuning, head);
    }
    an_tune_choose(&tuning->own, tuning->heads, q_heads, tuning->tokens,
                   tuning->job->tune.target_error, tuning->values, &tuning->choice);
}

static struct pp_estimator own_estimator(const struct an_layer *layer)
{
    struct pp_estimator own = layer->params->index.estimator;
    uint64_t tokens = layer->sealed_tokens;
    if (own.rows > 0) {
        own.rows_share = own.rows < tokens ? (float)own.rows / (float)tokens : 1.0f;
    } else if (own.rows_share == 0.0f) {
        own.rows_share = pp_budget_share(an_layer_held(layer));
    }
    return own;
}

/* Takes references to the layer's segments. PP_MEMORY. */
static enum pp_status take_views(struct an_exec *exec, const struct an_layer *layer)
{
    struct an_tuning *tuning = exec->tuning;
    uint64_t bytes = layer->view_count * (sizeof(struct an_tune_view) + sizeof(struct taken));
    PP_TRY(pp_limit_reserve(&exec->limit, PP_MEMORY_SCRATCH, bytes));
    tuning->views = malloc(bytes);
    if (tuning->views == NULL) {
        pp_limit_release(&exec->limit, PP_MEMORY_SCRATCH, bytes);
        return PP_MEMORY;
    }
    tuning->layer_charged = bytes;
    tuning->taken = (struct taken *)(tuning->views + layer->view_count);
    tuning->view_count = layer->view_count;
    for (uint32_t i = 0; i < layer->view_count; i++) {
        const struct an_view *view = &layer->views[i];
        an_segment_acquire(view->segment);
        tuning->taken[i] = (struct taken){.segment = view->segment,
                                          .begin = view->begin,
                                          .end = view->begin + view->count,
                                          .indexed = view->segment->indexed};
    }
    return PP_OK;
}

static void give_views(struct an_exec *exec)
{
    struct an_tuning *tuning = exec->tuning;
    for (uint32_t i = 0; i < tuning->view_count; i++) {
        struct an_segment *segment;
        memcpy(&segment, &tuning->taken[i].segment, sizeof(segment));
        an_segment_release(segment);
    }
    free(tuning->views);
    pp_limit_release(&exec->limit, PP_MEMORY_SCRATCH, tuning->layer_charged);
    tuning->views = NULL;
    tuning->view_count = 0;
    tuning->layer_charged = 0;
}

/* Without an index all rows are read whatever the settings are, and no setting is a bad one. */
static bool has_index(const struct an_layer *layer)
{
    bool any = false;
    for (uint32_t i = 0; i < layer->view_count; i++) {
        any = any || layer->views[i].segment->indexed;
    }
    return any;
}

/* Hands the next layer that has something to say to the builder; at_work false: none was left. */
static enum pp_status next_layer(struct an_exec *exec)
{
    struct an_tuning *tuning = exec->tuning;
    struct an_tune_args *args = &tuning->job->tune;
    struct an_part *part;
    PP_TRY(an_exec_find(exec, &args->part, true, &part));
    for (; tuning->layer < args->layer_begin + args->layer_count; tuning->layer++) {
        const struct an_layer *layer = &part->layers[tuning->layer];
        args->layers[tuning->layer] = (struct an_tune_layer){.tokens = layer->sealed_tokens};
        tuning->q_rows =
            part->late != NULL ? an_late_get(part->late, tuning->layer, tuning->late) : 0;
        if (!has_index(layer) || tuning->q_rows == 0 || layer->dense ||
            !an_params_samples(layer->params)) {
            continue;
        }
        PP_TRY(take_views(exec, layer));
        tuning->params = layer->params;
        tuning->own = own_estimator(layer);
        tuning->tokens = layer->sealed_tokens;
        tuning->at_work = true;
        an_builder_task_start(exec->builder, tune_layer, tuning);
        return PP_OK;
    }
    return PP_OK;
}

static void note_layer(const struct an_tuning *tuning, struct an_tune_layer *layer)
{
    const struct an_tune_choice *choice = &tuning->choice;
    layer->estimator = choice->estimator;
    layer->dense = choice->dense;
    layer->queries = tuning->q_rows;
    layer->rows_share = choice->rows_share;
    layer->error = choice->error;
    layer->error_worst = choice->error_worst;
    layer->rows_share_now = choice->rows_share_now;
    layer->error_now = choice->error_now;
}

enum pp_status an_exec_tune(struct an_exec *exec, struct an_job *job)
{
    struct an_tune_args *args = &job->tune;
    struct an_part *part;
    if (!(args->target_error > 0.0f && args->target_error <= 1.0f)) {
        an_job_explain(job, "the target error must be above 0, at most 1");
        return PP_INVALID_ARGUMENT;
    }
    PP_TRY(an_exec_find(exec, &args->part, true, &part));
    uint32_t layers = part->spec.shape.layers;
    if (args->layer_begin >= layers || args->layer_count > layers - args->layer_begin) {
        an_job_explain(job, "the part has %u layers", layers);
        return PP_INVALID_ARGUMENT;
    }
    if (exec->tuning != NULL) {
        an_job_explain(job, "another part is being tuned");
        return PP_QUEUE;
    }
    PP_TRY(tuning_new(exec, part, &exec->tuning));
    exec->tuning->job = job;
    exec->tuning->layer = args->layer_begin;
    args->layer_count = args->layer_count > 0 ? args->layer_count : layers - args->layer_begin;
    enum pp_status status = next_layer(exec);
    if (status != PP_OK) {
        (void)an_exec_tune_end(exec);
    }
    return status;
}

struct an_job *an_exec_tune_end(struct an_exec *exec)
{
    struct an_tuning *tuning = exec->tuning;
    if (tuning == NULL) {
        return NULL;
    }
    give_views(exec);
    struct an_job *job = tuning->job;
    exec->tuning = NULL;
    pp_limit_release(&exec->limit, PP_MEMORY_SCRATCH, tuning->charged);
    free(tuning);
    return job;
}

struct an_job *an_exec_tune_pump(struct an_exec *exec)
{
    struct an_tuning *tuning = exec->tuning;
    if (tuning == NULL) {
        return NULL;
    }
    if (tuning->at_work) {
        if (!an_builder_task_take(exec->builder)) {
            return NULL;
        }
        tuning->at_work = false;
        give_views(exec);
        note_layer(tuning, &tuning->job->tune.layers[tuning->layer++]);
        tuning->job->status = next_layer(exec);
    }
    return tuning->at_work ? NULL : an_exec_tune_end(exec);
}

void an_exec_tune_cancel(struct an_exec *exec)
{
    if (exec->tuning != NULL) {
        atomic_store_explicit(&exec->tuning->cancelled, true, memory_order_relaxed);
    }
}
