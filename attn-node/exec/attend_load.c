/*
 * Queries of a batch: from the wire's layout [q row][q head][dim] into lanes, checked, scaled and
 * hashed. See attend_internal.h. Payloads are unaligned: a head at a time goes through aligned
 * memory.
 */
#include <math.h>
#include <string.h>

#include "attn-node/exec/attend_internal.h"
#include "common/run/team.h"

/* q of one row and head into a lane; false when a value is not finite or too large. */
static bool load_lane(struct an_attend *attend, const struct an_task *task, enum pp_dtype dtype,
                      uint64_t wire_index, uint32_t lane)
{
    uint64_t bytes = (uint64_t)task->dim * pp_dtype_bytes(dtype);
    float aligned[PP_HEAD_DIM_MAX];
    memcpy(aligned, task->item->q + wire_index * bytes, bytes);
    float *q = attend->q + attend->lane_q[lane];
    float *q_scaled = attend->q_scaled + attend->lane_q[lane];
    pp_dtype_to_f32(dtype, aligned, task->dim, q);
    bool finite = true;
    for (uint32_t i = 0; i < task->dim; i++) {
        finite = finite && fabsf(q[i]) <= PP_MAGNITUDE_MAX;
        q_scaled[i] = q[i] * task->part->spec.shape.scale;
    }
    float local[PP_HEAD_DIM_MAX + 1];
    float lse = an_attend_local(task, wire_index, local);
    for (uint32_t i = 0; i < task->dim && task->target > 0.0f; i++) {
        finite = finite && fabsf(local[i]) <= PP_MAGNITUDE_MAX;
    }
    return finite && (lse == -INFINITY || isfinite(lse));
}

static void start_lane(struct an_attend *attend, const struct an_task *task, uint32_t kv_head,
                       uint64_t wire_index, uint32_t lane)
{
    struct an_lane *state = &attend->lanes[lane];
    *state = (struct an_lane){0};
    state->sum.o = task->item->o + wire_index * task->dim;
    state->sum.b1 = task->sampled ? attend->b1 + attend->lane_q[lane] : NULL;
    an_accumulator_clear(&state->sum, task->dim);
    state->sampled_m = -INFINITY;
    state->rows_share = an_task_share(task, kv_head);
    if (task->target > 0.0f) {
        state->drawn.o = attend->drawn_floats + attend->lane_q[lane];
        state->drawn.b1 = state->drawn.o + AN_LANE_FLOATS;
        an_accumulator_clear(&state->drawn, task->dim);
    }
    if (task->sampled && task->item->signatures != NULL) {
        uint64_t bytes = task->layer->params->index.estimator.l * sizeof(uint16_t);
        memcpy(attend->codes + attend->lane_code[lane], task->item->signatures + wire_index * bytes,
               bytes);
    }
}

static void load_task(struct an_attend *attend, struct an_task *task, enum pp_dtype q_dtype)
{
    uint32_t lane = task->lane_begin;
    for (uint32_t kv = 0; kv < task->part->spec.kv_head_count; kv++) {
        for (uint32_t row = 0; row < task->row_count; row++) {
            for (uint32_t g = 0; g < task->group; g++, lane++) {
                uint64_t wire_index =
                    (uint64_t)(task->row_begin + row) * task->q_heads + kv * task->group + g;
                start_lane(attend, task, kv, wire_index, lane);
                if (!load_lane(attend, task, q_dtype, wire_index, lane)) {
                    task->failed = true;
                }
            }
        }
    }
    if (task->failed) {
        task->item->status = PP_NON_FINITE;
    }
}

static bool wants_hash(const struct an_task *task)
{
    return task->sampled && !task->failed && task->layer->params->hash != NULL &&
           task->item->signatures == NULL;
}

static void hash_unit(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    struct an_attend *attend = context;
    const struct an_unit *unit = &attend->units[index];
    const struct an_task *task = &attend->tasks[unit->task];
    if (!wants_hash(task)) {
        return;
    }
    for (uint32_t i = 0; i < unit->lane_count; i++) {
        uint32_t lane = unit->lane_begin + i;
        pp_hash_query(task->layer->params->hash, attend->q + attend->lane_q[lane],
                      attend->codes + attend->lane_code[lane]);
    }
}

void an_attend_load(struct an_attend *attend, enum pp_dtype q_dtype)
{
    bool hash = false;
    for (uint32_t i = 0; i < attend->task_count; i++) {
        struct an_task *task = &attend->tasks[i];
        load_task(attend, task, q_dtype);
        hash = hash || wants_hash(task);
    }
    if (hash) {
        pp_team_for_placed(attend->places, attend->threads, attend->unit_count,
                           an_attend_place_of_unit, hash_unit, attend);
    }
}
