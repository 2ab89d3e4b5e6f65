/*
 * Attends that are to be within a relative error. The indexed views are sampled with a small budget
 * first; where the error that the answer would publish is too large, the group of heads samples
 * them again with a larger one, or, when that passes its bound, attends them exactly. A larger
 * budget draws by the same random numbers: what was drawn stays drawn, and every row has the u of
 * the last budget. `lsh` has one sample only. See attend_internal.h.
 *
 * Stopping where an estimate of the error is small favours estimates that are too small; and the
 * target is a bound on the error, not on its root mean square. Both are met by a margin: the
 * estimate has to be within target / AN_TARGET_MARGIN (measured: bench/RESULTS.md).
 */
#include <math.h>
#include <string.h>

#include "attn-node/exec/attend_internal.h"
#include "common/attn/partial.h"

/* On real heads V falls as budget^-1.6: the more rows are certain, the less is left to chance. A
 * little more is asked for, as the estimate is one; a budget that would have to be far above its
 * bound is not tried. */
#define GROWTH_EXPONENT 1.25f
#define GROWTH_ADDED    1.15f
#define GROWTH_MIN      1.3f
#define HOPELESS        2.0f

float an_attend_local(const struct an_task *task, uint64_t wire_index, float *o_out)
{
    float local[PP_HEAD_DIM_MAX + 1];
    uint64_t bytes = (task->dim + 1ull) * sizeof(float);
    if (task->item->local == NULL || task->target == 0.0f) {
        memset(o_out, 0, task->dim * sizeof(float));
        return -INFINITY;
    }
    memcpy(local, task->item->local + wire_index * bytes, bytes);
    memcpy(o_out, local, task->dim * sizeof(float));
    return local[task->dim];
}

static float weight(float m, float m_max)
{
    return m == -INFINITY ? 0.0f : expf(m - m_max);
}

/* The error of one lane if it stopped here, merged with what the asker has: sqrt(V) / |o| by
 * the merge law (common/attn/partial.h), which counts the error of lse by how far the asker's o is
 * from this one. INFINITY: no sample. */
static float error_of(const struct an_task *task, const struct an_lane *lane, uint64_t wire_index,
                      float var_factor)
{
    const struct an_accumulator *own = &lane->sum;
    const struct an_accumulator *drawn = &lane->drawn;
    if (drawn->m == -INFINITY) {
        return INFINITY;
    }
    float local[PP_HEAD_DIM_MAX];
    float lse = an_attend_local(task, wire_index, local);
    float m = own->m > drawn->m ? own->m : drawn->m;
    m = lse > m ? lse : m;
    float keep = weight(own->m, m), add = weight(drawn->m, m), other = weight(lse, m);
    float sum = own->sum * keep + drawn->sum * add;
    float inverse = 1.0f / sum;
    float inverse_all = 1.0f / (sum + other);
    float norm = 0.0f, norm_all = 0.0f, apart = 0.0f, o_b1 = 0.0f;
    for (uint32_t i = 0; i < task->dim; i++) {
        float o = (own->o[i] * keep + drawn->o[i] * add) * inverse;
        float all = (o * sum + local[i] * other) * inverse_all;
        norm += o * o;
        norm_all += all * all;
        apart += (o - all) * (o - all);
        o_b1 += o * drawn->b1[i];
    }
    float scale = add * add * inverse * inverse * var_factor;
    float lse_var = drawn->b0 * scale;
    float var = (drawn->b2 - 2.0f * o_b1 + norm * drawn->b0) * scale;
    var *= pp_small_sample(lse_var / var_factor);
    float share = sum * inverse_all;
    float error = share * (sqrtf(var > 0.0f ? var : 0.0f) + sqrtf(apart * lse_var));
    return error <= 0.0f ? 0.0f : norm_all > 0.0f ? error / sqrtf(norm_all) : INFINITY;
}

/* What the group of heads from `lanes` on does next. */
static enum an_lane_next judge_group(struct an_lane *lanes, const struct an_task *task,
                                     uint64_t wire_index, bool last)
{
    bool lsh = task->item->used == PP_LSH;
    float worst = 0.0f;
    for (uint32_t g = 0; g < task->group; g++) {
        float error = error_of(task, &lanes[g], wire_index + g, lsh ? AN_LSH_VAR_FACTOR : 1.0f);
        worst = error > worst ? error : worst;
    }
    float excess = worst * AN_TARGET_MARGIN / task->target;
    if (excess <= 1.0f) {
        return AN_LANE_SETTLED;
    }
    float growth = GROWTH_ADDED * powf(excess, GROWTH_EXPONENT);
    float share = lanes[0].rows_share * (growth > GROWTH_MIN ? growth : GROWTH_MIN);
    bool at_bound = lanes[0].rows_share * GROWTH_MIN > task->share_max;
    if (lsh || last || at_bound || !(share <= HOPELESS * task->share_max)) {
        return AN_LANE_ALL;
    }
    share = share < task->share_max ? share : task->share_max;
    for (uint32_t g = 0; g < task->group; g++) {
        lanes[g].rows_share = share;
    }
    return AN_LANE_AGAIN;
}

static bool judge_unit(struct an_attend *attend, const struct an_unit *unit, bool last)
{
    const struct an_task *task = &attend->tasks[unit->task];
    bool any = false;
    for (uint32_t at = 0; at < unit->lane_count; at += task->group) {
        struct an_lane *lanes = &attend->lanes[unit->lane_begin + at];
        for (uint32_t g = 0; g < task->group && lanes[g].next == AN_LANE_ALL; g++) {
            lanes[g].next = AN_LANE_READ; /* by the walk before; other groups go on */
        }
        if (lanes->next == AN_LANE_SETTLED || lanes->next == AN_LANE_READ) {
            continue;
        }
        uint32_t row = (unit->lane_begin + at - task->lane_begin) / task->group % task->row_count;
        uint64_t wire_index =
            (uint64_t)(task->row_begin + row) * task->q_heads + unit->kv_head * task->group;
        enum an_lane_next next = judge_group(lanes, task, wire_index, last);
        for (uint32_t g = 0; g < task->group; g++) {
            lanes[g].next = next;
            if (next != AN_LANE_SETTLED) {
                an_accumulator_clear(&lanes[g].drawn, task->dim);
                lanes[g].rows_added = 0;
                lanes[g].sampled_m = -INFINITY;
                lanes[g].sampled_sum = 0.0f;
            }
        }
        any = any || next != AN_LANE_SETTLED;
    }
    return any;
}

bool an_attend_judge(struct an_attend *attend, uint32_t stage)
{
    bool any = false;
    for (uint32_t i = 0; i < attend->unit_count; i++) {
        const struct an_unit *unit = &attend->units[i];
        const struct an_task *task = &attend->tasks[unit->task];
        if (!task->failed && task->target > 0.0f && unit->sampled_tokens > 0) {
            any = judge_unit(attend, unit, stage + 1 == AN_TARGET_STAGES) || any;
        }
    }
    return any;
}

void an_attend_settle(struct an_attend *attend)
{
    for (uint32_t i = 0; i < attend->unit_count; i++) {
        const struct an_unit *unit = &attend->units[i];
        const struct an_task *task = &attend->tasks[unit->task];
        for (uint32_t at = 0; at < unit->lane_count && task->target > 0.0f; at++) {
            struct an_lane *lane = &attend->lanes[unit->lane_begin + at];
            an_accumulator_merge(&lane->sum, &lane->drawn, task->dim);
        }
    }
}
