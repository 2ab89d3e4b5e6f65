/*
 * Admission of items and batches of q rows. See attend.h. A batch is as many rows as fit the memory
 * taken at start; an item may span several.
 */
#include "attn-node/exec/attend.h"

#include "attn-node/exec/attend_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/attn/budget.h"
#include "common/base/assert.h"

enum pp_status an_attend_new(struct pp_limit *limit, struct pp_clock clock, uint32_t threads,
                             const struct pp_numa *numa, const struct pp_places *places,
                             struct an_attend **attend_out)
{
    uint64_t floats = 3ull * AN_LANE_FLOATS + AN_PIECE_FLOATS;
    uint64_t bytes = (sizeof(struct an_attend) + 63u) & ~63ull;
    uint64_t total = bytes + floats * sizeof(float) + AN_LANE_CODES * sizeof(uint16_t);
    PP_TRY(pp_limit_reserve(limit, PP_MEMORY_SCRATCH, total));
    uint8_t *memory = aligned_alloc(64, total);
    if (memory == NULL) {
        pp_limit_release(limit, PP_MEMORY_SCRATCH, total);
        return PP_MEMORY;
    }
    struct an_attend *attend = (struct an_attend *)memory;
    memset(attend, 0, sizeof(*attend));
    attend->limit = limit;
    attend->clock = clock;
    attend->threads = threads;
    attend->numa = numa;
    attend->places = places;
    attend->kernels = an_kernels_get();
    attend->own_bytes = total;
    attend->q = (float *)(memory + bytes);
    attend->q_scaled = attend->q + AN_LANE_FLOATS;
    attend->b1 = attend->q_scaled + AN_LANE_FLOATS;
    attend->piece_floats = attend->b1 + AN_LANE_FLOATS;
    attend->codes = (uint16_t *)(attend->piece_floats + AN_PIECE_FLOATS);
    *attend_out = attend;
    return PP_OK;
}

void an_attend_destroy(struct an_attend *attend)
{
    if (attend == NULL) {
        return;
    }
    an_attend_relax(attend);
    pp_limit_release(attend->limit, PP_MEMORY_SCRATCH, attend->own_bytes);
    free(attend);
}

/* Of each thread; 0 where nothing is sampled. */
static uint64_t query_scratch_need(const struct an_params *params)
{
    uint64_t bytes = an_params_samples(params)
                         ? an_index_query_scratch_bytes(&params->index, PP_SEGMENT_TOKENS_MAX)
                         : 0;
    return (bytes + 63u) & ~63ull;
}

uint64_t an_attend_prepare_bytes(const struct an_attend *attend, const struct an_params *params)
{
    uint64_t bytes = query_scratch_need(params);
    uint64_t bitmap_bytes = (AN_BITMAP_WORDS + AN_SEGMENT_WORDS) * sizeof(uint64_t);
    uint64_t drawn_bytes = 2ull * AN_LANE_FLOATS * sizeof(float);
    return bytes > attend->query_scratch_bytes
               ? bytes * attend->threads + drawn_bytes + ((bitmap_bytes + 63u) & ~63ull)
               : 0;
}

enum pp_status an_attend_prepare(struct an_attend *attend, const struct an_params *params)
{
    uint64_t total = an_attend_prepare_bytes(attend, params);
    if (total == 0) {
        return PP_OK;
    }
    uint64_t bytes = query_scratch_need(params);
    PP_TRY(pp_limit_reserve(attend->limit, PP_MEMORY_SCRATCH, total));
    uint8_t *memory = aligned_alloc(64, total);
    if (memory == NULL) {
        pp_limit_release(attend->limit, PP_MEMORY_SCRATCH, total);
        return PP_MEMORY;
    }
    memset(memory, 0, total);
    an_attend_relax(attend);
    attend->query_scratch = memory;
    attend->query_scratch_bytes = bytes;
    attend->drawn_floats = (float *)(memory + bytes * attend->threads);
    attend->bitmaps = (uint64_t *)(attend->drawn_floats + 2ull * AN_LANE_FLOATS);
    attend->carried = attend->bitmaps + AN_BITMAP_WORDS;
    attend->sampling_bytes = total;
    return PP_OK;
}

void an_attend_relax(struct an_attend *attend)
{
    pp_limit_release(attend->limit, PP_MEMORY_SCRATCH, attend->sampling_bytes);
    free(attend->query_scratch);
    attend->query_scratch = NULL;
    attend->query_scratch_bytes = 0;
    attend->drawn_floats = NULL;
    attend->bitmaps = attend->carried = NULL;
    attend->sampling_bytes = 0;
}

uint64_t an_attend_sampling_bytes(const struct an_attend *attend)
{
    return attend->sampling_bytes;
}

bool an_attend_late(struct an_attend *attend)
{
    if (attend->deadline_us == 0) {
        return false;
    }
    if (atomic_load_explicit(&attend->late, memory_order_relaxed)) {
        return true;
    }
    if (pp_clock_now_us(&attend->clock) < attend->deadline_us) {
        return false;
    }
    atomic_store_explicit(&attend->late, true, memory_order_relaxed);
    return true;
}

static void *arena_take(struct an_job *job, uint64_t bytes)
{
    uint64_t begin = (job->arena_used + 63u) & ~63ull;
    if (job->arena == NULL || begin > job->arena_bytes || bytes > job->arena_bytes - begin) {
        return NULL;
    }
    job->arena_used = begin + bytes;
    return job->arena + begin;
}

static enum pp_status take_outputs(struct an_job *job, struct an_attend_item *item)
{
    uint64_t lanes = (uint64_t)item->q_rows * item->q_heads;
    uint64_t mark = job->arena_used;
    item->o = arena_take(job, lanes * item->head_dim * sizeof(float));
    item->lse = arena_take(job, lanes * sizeof(float));
    item->var = arena_take(job, lanes * sizeof(float));
    item->lse_var = arena_take(job, lanes * sizeof(float));
    item->lse_sampled = arena_take(job, lanes * sizeof(float));
    item->keys_read = arena_take(job, lanes * sizeof(uint32_t));
    if (item->o == NULL || item->lse == NULL || item->var == NULL || item->lse_var == NULL ||
        item->lse_sampled == NULL || item->keys_read == NULL) {
        job->arena_used = mark;
        return PP_RESOURCE_EXHAUSTED;
    }
    return PP_OK;
}

static bool names(const struct pp_estimator *asked, const struct pp_estimator *estimator)
{
    return asked->kind == estimator->kind && (asked->k == 0 || asked->k == estimator->k) &&
           (asked->l == 0 || asked->l == estimator->l) &&
           (asked->t == 0 || asked->t == estimator->t) &&
           (asked->bits == 0 || asked->bits == estimator->bits);
}

/* The estimator asked for: the layer's, exact, or the layer's or the part's named again, which
 * means the layer's. `used` says it until the attend has run. */
static enum pp_status choose_estimator(const struct an_part *part, const struct an_layer *layer,
                                       struct an_attend_item *item)
{
    const struct pp_estimator *own = &layer->params->index.estimator;
    const struct pp_estimator *asked = &item->estimator;
    item->forced = asked->kind != PP_ESTIMATOR_NONE;
    item->used = asked->kind == PP_EXACT ? PP_EXACT : own->kind;
    bool known = !item->forced || asked->kind == PP_EXACT || names(asked, own) ||
                 names(asked, &part->spec.estimator);
    return known ? PP_OK : PP_UNIMPLEMENTED;
}

static enum pp_status check_signatures(const struct an_layer *layer,
                                       const struct an_attend_item *item)
{
    if (item->signatures == NULL) {
        return PP_OK;
    }
    const struct pp_estimator *own = &layer->params->index.estimator;
    uint64_t codes = (uint64_t)item->q_rows * item->q_heads * own->l;
    if (own->kind != PP_LSH || item->signature_bytes != codes * sizeof(uint16_t)) {
        return PP_INVALID_ARGUMENT;
    }
    uint16_t all = 0;
    for (uint64_t i = 0; i < codes; i++) {
        uint16_t code;
        memcpy(&code, item->signatures + i * sizeof(code), sizeof(code));
        all |= code;
    }
    return ((uint32_t)all >> own->k) == 0 ? PP_OK : PP_INVALID_ARGUMENT;
}

enum pp_status an_attend_admit(const struct an_part *part, uint32_t layer, enum pp_dtype q_dtype,
                               struct an_job *job, struct an_attend_item *item)
{
    const struct pp_shape *shape = &part->spec.shape;
    if (layer >= shape->layers || item->q_rows == 0 || item->q_rows > PP_ATTEND_ROWS_MAX ||
        (item->seed_count != 0 && item->seed_count != item->q_rows) ||
        (item->kv_share_count != 0 && item->kv_share_count != part->spec.kv_head_count)) {
        return PP_INVALID_ARGUMENT;
    }
    if (pp_dtype_bytes(q_dtype) < 2) {
        return PP_BAD_DTYPE;
    }
    item->q_heads = part->spec.kv_head_count * pp_shape_group(shape);
    item->head_dim = shape->head_dim;
    uint64_t values = (uint64_t)item->q_rows * item->q_heads * item->head_dim;
    if (item->q == NULL || item->q_bytes != values * pp_dtype_bytes(q_dtype)) {
        return PP_INVALID_ARGUMENT;
    }
    uint64_t lanes = (uint64_t)item->q_rows * item->q_heads;
    if (item->local != NULL && item->local_bytes != lanes * (item->head_dim + 1u) * sizeof(float)) {
        return PP_INVALID_ARGUMENT;
    }
    PP_TRY(choose_estimator(part, &part->layers[layer], item));
    PP_TRY(check_signatures(&part->layers[layer], item));
    if (item->held_tokens > an_layer_held(&part->layers[layer])) {
        return PP_SHORT_PART;
    }
    if (part->layers[layer].dense) {
        item->used = PP_EXACT;
    }
    item->rows_held = item->held_tokens * part->spec.kv_head_count * item->q_rows;
    item->rows_read = 0;
    item->rows_sampled = 0;
    item->flags = 0;
    return take_outputs(job, item);
}

static void add_units(struct an_attend *attend, uint32_t task_index)
{
    const struct an_task *task = &attend->tasks[task_index];
    uint32_t lanes = task->row_count * task->group;
    uint32_t step = AN_EXACT_LANES / task->group * task->group;
    step = step > 0 ? step : task->group;
    for (uint32_t kv = 0; kv < task->part->spec.kv_head_count; kv++) {
        for (uint32_t at = 0; at < lanes; at += step) {
            struct an_unit *unit = &attend->units[attend->unit_count++];
            *unit = (struct an_unit){
                .task = task_index,
                .kv_head = kv,
                .lane_begin = task->lane_begin + kv * lanes + at,
                .lane_count = lanes - at < step ? lanes - at : step,
            };
        }
    }
}

/* Whose budget and target count: the item's, when it names some, or the layer's. */
static const struct pp_estimator *budget_of(const struct an_task *task)
{
    const struct pp_estimator *asked = &task->item->estimator;
    bool named = asked->rows > 0 || asked->rows_share > 0.0f || asked->target_error > 0.0f;
    return named ? asked : &task->layer->params->index.estimator;
}

/* Held tokens of the task's indexed views. */
static uint64_t indexed_tokens(const struct an_task *task)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < task->layer->view_count; i++) {
        struct an_stretch stretch = an_layer_stretch(task->layer, i, task->held);
        tokens += stretch.segment->indexed ? stretch.end - stretch.begin : 0;
    }
    return tokens;
}

/* Fills rows_share, and with a target the share that it may grow to: the budget, if there is one,
 * bounds it. Half of what would be read without a target is a first sample that does for most. */
static void set_budget(struct an_task *task)
{
    const struct pp_estimator *budget = budget_of(task);
    task->indexed = indexed_tokens(task);
    float tokens = (float)task->indexed;
    float share = budget->rows_share;
    if (budget->rows > 0) {
        share = tokens > (float)budget->rows ? (float)budget->rows / tokens : 1.0f;
    }
    float usual = pp_budget_share(task->held);
    task->rows_share = share > 0.0f ? share : usual;
    task->target = task->sampled ? budget->target_error : 0.0f;
    if (task->target > 0.0f) {
        float least = tokens > AN_TARGET_ROWS_MIN ? AN_TARGET_ROWS_MIN / tokens : 1.0f;
        float first = 0.5f * usual > least ? 0.5f * usual : least;
        task->share_max = share > 0.0f ? share : AN_TARGET_SHARE_MAX;
        task->rows_share = first < task->share_max ? first : task->share_max;
    }
}

/* Adds rows of an item to the batch, as many as fit; returns how many. */
static uint32_t add_task(struct an_attend *attend, struct an_attend_item *item,
                         const struct an_part *part, uint32_t layer, uint32_t row_begin)
{
    uint32_t heads = item->q_heads;
    uint32_t tables = item->used == PP_LSH ? part->layers[layer].params->index.estimator.l : 0;
    uint32_t rows = item->q_rows - row_begin;
    uint32_t by_lanes = (AN_LANES_MAX - attend->lane_count) / heads;
    uint32_t by_floats = (AN_LANE_FLOATS - attend->lane_floats) / (heads * item->head_dim);
    rows = rows < by_lanes ? rows : by_lanes;
    rows = rows < by_floats ? rows : by_floats;
    if (tables > 0) {
        uint32_t by_codes = (AN_LANE_CODES - attend->lane_codes) / (heads * tables);
        rows = rows < by_codes ? rows : by_codes;
    }
    if (rows == 0 || attend->task_count == AN_TASKS_MAX) {
        return 0;
    }
    uint32_t index = attend->task_count++;
    struct an_task *task = &attend->tasks[index];
    *task = (struct an_task){
        .item = item,
        .layer = &part->layers[layer],
        .part = part,
        .held = item->held_tokens,
        .row_begin = row_begin,
        .row_count = rows,
        .group = pp_shape_group(&part->spec.shape),
        .q_heads = heads,
        .dim = item->head_dim,
        .lane_begin = attend->lane_count,
        .sampled = item->used != PP_EXACT,
    };
    set_budget(task);
    for (uint32_t i = 0; i < rows * heads; i++) {
        uint32_t lane = attend->lane_count++;
        attend->lane_q[lane] = attend->lane_floats;
        attend->lane_code[lane] = attend->lane_codes;
        attend->lane_floats += item->head_dim;
        attend->lane_codes += tables;
    }
    add_units(attend, index);
    return rows;
}

static void run_batch(struct an_attend *attend, enum pp_dtype q_dtype)
{
    if (attend->task_count > 0) {
        an_attend_load(attend, q_dtype);
        an_attend_waves(attend);
        an_attend_finish(attend);
    }
    attend->task_count = 0;
    attend->unit_count = 0;
    attend->lane_count = 0;
    attend->lane_floats = 0;
    attend->lane_codes = 0;
}

void an_attend_run(struct an_attend *attend, const struct an_attend_args *args,
                   struct an_part *const *parts)
{
    attend->deadline_us = args->deadline_us;
    atomic_store_explicit(&attend->late, false, memory_order_relaxed);
    for (uint32_t i = 0; i < args->item_count; i++) {
        struct an_attend_item *item = &args->items[i];
        uint32_t row = 0;
        while (item->status == PP_OK && row < item->q_rows) {
            uint32_t added = add_task(attend, item, parts[i], args->layer, row);
            row += added;
            if (added == 0) {
                PP_ASSERT(attend->task_count > 0);
                run_batch(attend, args->q_dtype);
            }
        }
    }
    run_batch(attend, args->q_dtype);
    for (uint32_t i = 0; i < args->item_count; i++) {
        struct an_attend_item *item = &args->items[i];
        item->used = item->rows_sampled > 0 ? item->used : PP_EXACT;
    }
}
