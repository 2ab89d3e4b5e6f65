/*
 * From running sums to answers. See attend_internal.h. With D = sum a, B0 = sum b, B1 = sum b v,
 * B2 = sum b |v|^2 of the error sums (b = (1 - u) a^2): var = (B2 - 2 o.B1 + |o|^2 B0) / D^2 and
 * lse_var = B0 / D^2, both published x 2.56 for lsh, whose estimate of its own error is low by 1.6.
 */
#include <math.h>
#include <string.h>

#include "attn-node/exec/attend_internal.h"

#define LSH_VAR_FACTOR 2.56f

struct answer {
    float lse, var, lse_var;
};

/* Normalises o in place. False when something is not finite (law 7). */
static bool finish_lane(struct an_lane *lane, uint32_t dim, struct answer *answer_out)
{
    struct an_accumulator *sum = &lane->sum;
    *answer_out = (struct answer){.lse = -INFINITY};
    if (sum->sum == 0.0f && sum->keys_read == 0) {
        memset(sum->o, 0, dim * sizeof(float));
        return true;
    }
    float inverse = 1.0f / sum->sum;
    bool finite = true;
    float o_norm = 0.0f, o_b1 = 0.0f;
    for (uint32_t i = 0; i < dim; i++) {
        float value = sum->o[i] * inverse;
        sum->o[i] = value;
        finite = finite && isfinite(value);
        o_norm += value * value;
        o_b1 += sum->b1 != NULL ? value * sum->b1[i] : 0.0f;
    }
    answer_out->lse = sum->m + logf(sum->sum);
    if (sum->b1 != NULL) {
        float var = (sum->b2 - 2.0f * o_b1 + o_norm * sum->b0) * inverse * inverse;
        answer_out->var = var > 0.0f ? LSH_VAR_FACTOR * var : 0.0f;
        answer_out->lse_var = LSH_VAR_FACTOR * sum->b0 * inverse * inverse;
    }
    return finite && isfinite(answer_out->lse) && isfinite(answer_out->var) &&
           isfinite(answer_out->lse_var);
}

/* Held tokens of the task's prefix that were sampled, not read one by one. */
static uint64_t sampled_tokens(const struct an_task *task)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < task->layer->view_count && task->sampled; i++) {
        struct an_stretch stretch = an_layer_stretch(task->layer, i, task->held);
        if (stretch.segment->indexed) {
            tokens += stretch.end - stretch.begin;
        }
    }
    return tokens;
}

/* One q row of one kv head: its lanes' answers, and the distinct rows that its group read. */
static void finish_group(struct an_attend *attend, struct an_task *task, uint32_t kv, uint32_t row,
                         uint64_t sampled)
{
    struct an_attend_item *item = task->item;
    uint32_t lane_index = task->lane_begin + (kv * task->row_count + row) * task->group;
    uint64_t drawn = 0; /* of the sampled tokens */
    bool fall_back = false;
    for (uint32_t g = 0; g < task->group; g++) {
        struct an_lane *lane = &attend->lanes[lane_index + g];
        uint64_t at = (uint64_t)(task->row_begin + row) * task->q_heads + kv * task->group + g;
        struct answer answer;
        if (!finish_lane(lane, task->dim, &answer)) {
            item->status = PP_NON_FINITE;
        }
        item->lse[at] = answer.lse;
        item->var[at] = answer.var;
        item->lse_var[at] = answer.lse_var;
        item->keys_read[at] = lane->sum.keys_read;
        drawn += lane->rows_added;
        fall_back = fall_back || lane->fall_back;
    }
    item->flags |= fall_back ? 1u : 0u;
    item->rows_read += task->held - sampled + (fall_back ? sampled : drawn);
}

void an_attend_finish(struct an_attend *attend)
{
    for (uint32_t i = 0; i < attend->task_count; i++) {
        struct an_task *task = &attend->tasks[i];
        if (task->failed) {
            continue;
        }
        if (an_attend_late(attend)) {
            task->item->status = PP_DEADLINE_EXCEEDED;
            continue;
        }
        uint64_t sampled = sampled_tokens(task);
        for (uint32_t kv = 0; kv < task->part->spec.kv_head_count; kv++) {
            for (uint32_t row = 0; row < task->row_count; row++) {
                finish_group(attend, task, kv, row, sampled);
            }
        }
    }
}
