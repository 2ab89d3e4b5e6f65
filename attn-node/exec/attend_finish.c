/*
 * From running sums to answers. See attend_internal.h. With D = sum a, B0 = sum b, B1 = sum b v,
 * B2 = sum b |v|^2 of the error sums (b = (1 - u) a^2): lse_var = B0 / D^2 and var = (B2 - 2 o.B1 +
 * |o|^2 B0) / D^2 / (1 - lse_var)^2 (pp_small_sample), both published x 2.56 for lsh, whose
 * estimate of its own error is low by 1.6.
 */
#include <math.h>
#include <string.h>

#include "attn-node/exec/attend_internal.h"
#include "attn-node/index/uniform.h"
#include "common/attn/partial.h"

struct answer {
    float lse, var, lse_var;
};

/* Normalises o in place. False when something is not finite (law 7). */
static bool finish_lane(struct an_lane *lane, uint32_t dim, float var_factor,
                        struct answer *answer_out)
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
        float lse_var = sum->b0 * inverse * inverse;
        answer_out->var = var > 0.0f ? var_factor * var * pp_small_sample(lse_var) : 0.0f;
        answer_out->lse_var = var_factor * lse_var;
    }
    return finite && isfinite(answer_out->lse) && isfinite(answer_out->var) &&
           isfinite(answer_out->lse_var);
}

/* One q row of a unit's kv head: its lanes' answers, and the distinct rows that its group read. */
static void finish_group(struct an_attend *attend, const struct an_unit *unit, uint32_t lane_index)
{
    const struct an_task *task = &attend->tasks[unit->task];
    struct an_attend_item *item = task->item;
    uint32_t row = (lane_index - task->lane_begin) / task->group % task->row_count;
    uint64_t at = (uint64_t)(task->row_begin + row) * task->q_heads + unit->kv_head * task->group;
    uint64_t drawn = 0;   /* of the sampled tokens, by their index */
    uint64_t uniform = 0; /* and by uniform samples: the same rows for every head */
    bool fall_back = false;
    bool long_views = unit->sampled_tokens > AN_UNIFORM_ROWS;
    enum an_lane_next next = attend->lanes[lane_index].next;
    bool all = next == AN_LANE_ALL || next == AN_LANE_READ;
    for (uint32_t g = 0; g < task->group; g++) {
        struct an_lane *lane = &attend->lanes[lane_index + g];
        struct answer answer;
        float factor = lane->fall_back || item->used != PP_LSH ? 1.0f : AN_LSH_VAR_FACTOR;
        if (!finish_lane(lane, task->dim, factor, &answer)) {
            item->status = PP_NON_FINITE;
        }
        item->lse[at + g] = answer.lse;
        item->var[at + g] = answer.var;
        item->lse_var[at + g] = answer.lse_var;
        item->lse_sampled[at + g] = lane->sampled_m + logf(lane->sampled_sum);
        item->keys_read[at + g] = lane->sum.keys_read;
        drawn += lane->rows_added;
        uniform = lane->fall_back ? lane->sampled_rows : uniform;
        fall_back = fall_back || lane->fall_back;
    }
    if (fall_back) {
        item->flags |= AN_ATTEND_EMPTY_SAMPLE | (long_views ? AN_ATTEND_UNIFORM : 0u);
        drawn = long_views ? drawn + uniform : unit->sampled_tokens;
    }
    if (all && unit->sampled_tokens > 0) {
        item->flags |= AN_ATTEND_TARGET_MISSED;
        item->rows_read += task->held;
        return;
    }
    item->rows_sampled += unit->sampled_tokens;
    item->rows_read += task->held - unit->sampled_tokens + drawn;
}

void an_attend_finish(struct an_attend *attend)
{
    bool late = an_attend_late(attend);
    for (uint32_t i = 0; i < attend->unit_count; i++) {
        const struct an_unit *unit = &attend->units[i];
        const struct an_task *task = &attend->tasks[unit->task];
        if (task->failed) {
            continue;
        }
        if (late) {
            task->item->status = PP_DEADLINE_EXCEEDED;
            continue;
        }
        for (uint32_t lane = 0; lane < unit->lane_count; lane += task->group) {
            finish_group(attend, unit, unit->lane_begin + lane);
        }
    }
}
