/*
 * The check in the making: a copy of one q row and kv head's queries and answer, and the running
 * sums over the held tokens read so far. See shadow.h.
 */
#include "attn-node/exec/shadow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct an_shadow {
    struct pp_limit *limit;
    uint64_t every, until_next; /* q rows */
    uint64_t checks;            /* begun: the next one takes another kv head */
    bool running;
    struct an_part_ref part;
    uint32_t layer, kv_head, heads, dim;
    uint64_t held, at; /* held tokens asked for, and how many were read */
    enum pp_estimator_kind used;
    struct an_accumulator sums[AN_SHADOW_HEADS], block[AN_SHADOW_HEADS];
    float var[AN_SHADOW_HEADS];
    float q[AN_SHADOW_HEADS * PP_HEAD_DIM_MAX]; /* [heads][dim], times scale */
    float answer[AN_SHADOW_HEADS * PP_HEAD_DIM_MAX];
    float o[2 * AN_SHADOW_HEADS * PP_HEAD_DIM_MAX]; /* of sums, of block */
    struct {
        struct pp_stat *done, *dropped, *ratio[PP_SKETCH + 1], *over[PP_SKETCH + 1];
    } stats; /* NULL without a registry */
};

static void shadow_stats_init(struct an_shadow *shadow, struct pp_stats *stats)
{
    static const char *const labels[] = {NULL, NULL, "estimator=\"lsh\"", "estimator=\"sketch\""};
    static const char name[] = "pigpen_node_shadow_checks_total";
    static const char help[] = "Sampled answers that were attended exactly once more when the node "
                               "was idle, or were to (--shadow-every).";
    shadow->stats.done = pp_stats_counter(stats, name, "result=\"done\"", help);
    shadow->stats.dropped = pp_stats_counter(stats, name, "result=\"dropped\"", help);
    for (uint32_t kind = PP_LSH; kind <= PP_SKETCH; kind++) {
        shadow->stats.ratio[kind] = pp_stats_histogram(
            stats, "pigpen_node_shadow_error_ratio", labels[kind],
            "True error of a checked head's answer over the published one: about 1 or less where "
            "published errors are honest, seldom above 2.",
            0.125, M_SQRT2, 14);
    }
    for (uint32_t kind = PP_LSH; kind <= PP_SKETCH; kind++) {
        shadow->stats.over[kind] =
            pp_stats_counter(stats, "pigpen_node_shadow_over_twice_total", labels[kind],
                             "Checked heads whose true error was more than twice the published; of "
                             "those checked (the ratio's count) below 5 of 100 for sketch, 7 for "
                             "lsh.");
    }
}

enum pp_status an_shadow_new(struct pp_limit *limit, uint64_t every, struct pp_stats *stats,
                             struct an_shadow **shadow_out)
{
    PP_TRY(pp_limit_reserve(limit, PP_MEMORY_SCRATCH, sizeof(struct an_shadow)));
    struct an_shadow *shadow = calloc(1, sizeof(*shadow));
    if (shadow == NULL) {
        pp_limit_release(limit, PP_MEMORY_SCRATCH, sizeof(*shadow));
        return PP_MEMORY;
    }
    shadow->limit = limit;
    shadow->every = shadow->until_next = every;
    if (stats != NULL) {
        shadow_stats_init(shadow, stats);
    }
    *shadow_out = shadow;
    return PP_OK;
}

void an_shadow_destroy(struct an_shadow *shadow)
{
    if (shadow == NULL) {
        return;
    }
    pp_limit_release(shadow->limit, PP_MEMORY_SCRATCH, sizeof(*shadow));
    free(shadow);
}

static void count(struct pp_stat *stat)
{
    if (stat != NULL) {
        pp_stat_add(stat, 1);
    }
}

/* Copies q row `row` of the item, of the kv head whose turn it is. */
static void begin(struct an_shadow *shadow, const struct an_part *part, enum pp_dtype q_dtype,
                  const struct an_attend_item *item, uint32_t row)
{
    uint32_t group = pp_shape_group(&part->spec.shape);
    uint32_t dim = item->head_dim;
    shadow->kv_head = (uint32_t)(shadow->checks++ % part->spec.kv_head_count);
    shadow->heads = group < AN_SHADOW_HEADS ? group : AN_SHADOW_HEADS;
    shadow->dim = dim;
    shadow->part = item->part;
    shadow->held = item->held_tokens;
    shadow->at = 0;
    shadow->used = item->used;
    uint64_t first = (uint64_t)row * item->q_heads + shadow->kv_head * group;
    memcpy(shadow->answer, item->o + first * dim, shadow->heads * dim * sizeof(float));
    memcpy(shadow->var, item->var + first, shadow->heads * sizeof(float));
    uint64_t bytes = (uint64_t)dim * pp_dtype_bytes(q_dtype);
    for (uint32_t head = 0; head < shadow->heads; head++) {
        float aligned[PP_HEAD_DIM_MAX];
        float *q = shadow->q + head * dim;
        memcpy(aligned, item->q + (first + head) * bytes, bytes);
        pp_dtype_to_f32(q_dtype, aligned, dim, q);
        for (uint32_t i = 0; i < dim; i++) {
            q[i] *= part->spec.shape.scale;
        }
        float *o = shadow->o + 2ull * head * dim;
        shadow->sums[head] = (struct an_accumulator){.o = o};
        shadow->block[head] = (struct an_accumulator){.o = o + dim};
        an_accumulator_clear(&shadow->sums[head], dim);
    }
    shadow->running = true;
}

void an_shadow_offer(struct an_shadow *shadow, const struct an_part *part, uint32_t layer,
                     enum pp_dtype q_dtype, const struct an_attend_item *item)
{
    if (item->rows_sampled == 0) {
        return;
    }
    if (shadow->until_next > item->q_rows) {
        shadow->until_next -= item->q_rows;
        return;
    }
    uint32_t row = (uint32_t)shadow->until_next - 1;
    shadow->until_next = shadow->every;
    if (shadow->running) {
        count(shadow->stats.dropped);
        return;
    }
    shadow->layer = layer;
    begin(shadow, part, q_dtype, item, row);
}

bool an_shadow_running(const struct an_shadow *shadow)
{
    return shadow != NULL && shadow->running;
}

/* One head: |o' - o| over sqrt(var). A head that read all has no error to check. */
static void judge_head(struct an_shadow *shadow, uint32_t head)
{
    const struct an_accumulator *sum = &shadow->sums[head];
    const float *answer = shadow->answer + head * shadow->dim;
    double square = 0.0;
    for (uint32_t i = 0; i < shadow->dim; i++) {
        double difference = (double)answer[i] - (double)(sum->o[i] / sum->sum);
        square += difference * difference;
    }
    if (!(shadow->var[head] > 0.0f) || shadow->stats.ratio[shadow->used] == NULL) {
        return;
    }
    double ratio = sqrt(square / (double)shadow->var[head]);
    pp_stat_observe(shadow->stats.ratio[shadow->used], ratio);
    if (ratio > 2.0) {
        pp_stat_add(shadow->stats.over[shadow->used], 1);
    }
}

static void read_block(struct an_shadow *shadow, const struct an_part *part,
                       const struct an_layer *layer)
{
    uint32_t index = an_layer_find(layer, shadow->at);
    struct an_stretch stretch = an_layer_stretch(layer, index, shadow->held);
    uint32_t first = stretch.begin + (uint32_t)(shadow->at - stretch.held_begin);
    uint32_t left = stretch.end - first;
    uint32_t rows = left < AN_SHADOW_ROWS ? left : AN_SHADOW_ROWS;
    struct an_rows view =
        an_extent_rows(stretch.extent, part->params, shadow->kv_head, stretch.base);
    for (uint32_t head = 0; head < shadow->heads; head++) {
        an_accumulator_clear(&shadow->block[head], shadow->dim);
    }
    an_kernels_get()->attend_exact(&view, first, first + rows, shadow->q, shadow->heads,
                                   shadow->block);
    for (uint32_t head = 0; head < shadow->heads; head++) {
        an_accumulator_merge(&shadow->sums[head], &shadow->block[head], shadow->dim);
    }
    shadow->at += rows;
}

void an_shadow_slice(struct an_shadow *shadow, const struct an_table *table)
{
    if (!an_shadow_running(shadow)) {
        return;
    }
    const struct an_part *part = an_table_peek(table, shadow->part.handle);
    const struct an_layer *layer = part != NULL ? &part->layers[shadow->layer] : NULL;
    if (part == NULL || part->generation != shadow->part.generation ||
        an_layer_held(layer) < shadow->held) {
        shadow->running = false;
        count(shadow->stats.dropped);
        return;
    }
    read_block(shadow, part, layer);
    if (shadow->at < shadow->held) {
        return;
    }
    shadow->running = false;
    count(shadow->stats.done);
    for (uint32_t head = 0; head < shadow->heads; head++) {
        judge_head(shadow, head);
    }
}
