/*
 * Pieces of a batch, in waves: as many as the memory for their sums holds are computed by the team,
 * then merged into their lanes in index order; the next wave goes on where the last one ended. The
 * order of merging is therefore the order of the plan (attend_plan.c), whatever the number of
 * threads. See attend_internal.h.
 */
#include <string.h>

#include "attn-node/exec/attend_internal.h"
#include "attn-node/index/uniform.h"
#include "common/base/assert.h"
#include "common/base/rng.h"
#include "common/run/team.h"

/* A bitmap for a sampled piece. */
static void place_bitmap(struct an_attend *attend, const struct an_task *task,
                         struct an_piece *piece)
{
    piece->rows_read = attend->bitmaps + attend->bitmap_words_used;
    attend->bitmap_words_used += piece->bitmap_words;
    piece->rows_before = NULL;
    if ((piece->lane_begin - task->lane_begin) % task->group != 0) {
        uint32_t count = attend->piece_count;
        piece->rows_before = count > 0 ? attend->pieces[count - 1].rows_read : attend->carried;
    }
}

/* Memory for a piece's sums and bitmap; false when the wave is full. */
static bool place_piece(struct an_attend *attend, struct an_piece *piece)
{
    const struct an_task *task = &attend->tasks[attend->units[piece->unit].task];
    piece->bitmap_words = piece->kind == AN_PIECE_SAMPLED ? (piece->end + 63u) / 64u : 0;
    uint32_t floats_each = task->dim * (task->sampled ? 2u : 1u);
    uint32_t floats = floats_each * piece->lane_count;
    if (floats > AN_PIECE_FLOATS - attend->piece_floats_used ||
        piece->lane_count > AN_PIECE_LANES_MAX - attend->accumulator_count ||
        piece->bitmap_words > AN_BITMAP_WORDS - attend->bitmap_words_used) {
        return false;
    }
    if (piece->kind == AN_PIECE_SAMPLED) {
        place_bitmap(attend, task, piece);
    }
    piece->accumulator_begin = attend->accumulator_count;
    for (uint32_t i = 0; i < piece->lane_count; i++) {
        float *memory = attend->piece_floats + attend->piece_floats_used;
        struct an_accumulator *sum = &attend->accumulators[attend->accumulator_count++];
        sum->o = memory;
        sum->b1 = task->sampled ? memory + task->dim : NULL;
        attend->piece_floats_used += floats_each;
    }
    return true;
}

/* The random numbers of a piece's q row and kv head. */
static struct an_index_draw draw_of(const struct an_attend *attend, const struct an_piece *piece)
{
    const struct an_unit *unit = &attend->units[piece->unit];
    const struct an_task *task = &attend->tasks[unit->task];
    uint32_t lane = piece->lane_begin - task->lane_begin;
    uint32_t row = task->row_begin + lane / task->group % task->row_count;
    uint64_t id[2];
    memcpy(id, task->part->spec.part_id, sizeof(id));
    uint64_t seed = task->item->seed_count > 0 ? task->item->seeds[row] : 0;
    seed = pp_rng_at(pp_rng_at(seed, id[0]), id[1]);
    uint64_t layer = (uint64_t)(task->layer - task->part->layers);
    uint64_t head = task->part->spec.kv_head_begin + unit->kv_head;
    return (struct an_index_draw){.seed = pp_rng_at(seed, layer << 32 | head),
                                  .first = piece->held_first};
}

static void sample_piece(struct an_attend *attend, struct an_piece *piece, uint32_t thread,
                         struct an_accumulator *sums)
{
    uint32_t kv_head = attend->units[piece->unit].kv_head;
    uint32_t q_at = attend->lane_q[piece->lane_begin];
    struct an_index_query query = {
        .heads = piece->lane_count,
        .q = attend->q + q_at,
        .q_scaled = attend->q_scaled + q_at,
        .codes = attend->codes + attend->lane_code[piece->lane_begin],
        .draw = draw_of(attend, piece),
        .rows_share = attend->lanes[piece->lane_begin].rows_share,
        .rows_read = piece->rows_read,
    };
    memset(piece->rows_read, 0, piece->bitmap_words * sizeof(uint64_t));
    an_index_attend(piece->segment->index[kv_head], &piece->segment->params->index, &piece->rows,
                    piece->begin, piece->end, &query,
                    attend->query_scratch + thread * attend->query_scratch_bytes, sums);
}

static void run_piece(void *context, uint64_t index, uint32_t thread)
{
    struct an_attend *attend = context;
    struct an_piece *piece = &attend->pieces[index];
    const struct an_unit *unit = &attend->units[piece->unit];
    struct an_accumulator *sums = &attend->accumulators[piece->accumulator_begin];
    const float *q_scaled = attend->q_scaled + attend->lane_q[piece->lane_begin];
    for (uint32_t i = 0; i < piece->lane_count; i++) {
        an_accumulator_clear(&sums[i], attend->tasks[unit->task].dim);
    }
    if (an_attend_late(attend)) {
        return;
    }
    struct an_index_draw draw;
    switch (piece->kind) {
    case AN_PIECE_EXACT:
        attend->kernels->attend_exact(&piece->rows, piece->begin, piece->end, q_scaled,
                                      piece->lane_count, sums);
        break;
    case AN_PIECE_SAMPLED:
        sample_piece(attend, piece, thread, sums);
        break;
    case AN_PIECE_UNIFORM:
        draw = draw_of(attend, piece);
        an_uniform_attend(&piece->rows, piece->begin, piece->end, unit->sampled_tokens, &draw,
                          q_scaled, piece->lane_count, sums);
        break;
    }
}

/* Adds the rows of the group's heads before this one to the piece's bitmap; returns how many rows
 * are its own. */
static uint64_t merge_bitmap(const struct an_piece *piece)
{
    uint64_t added = 0;
    for (uint32_t i = 0; i < piece->bitmap_words; i++) {
        uint64_t before = piece->rows_before != NULL ? piece->rows_before[i] : 0;
        added += (uint64_t)__builtin_popcountll(piece->rows_read[i] & ~before);
        piece->rows_read[i] |= before;
    }
    return added;
}

/* Merges the wave's pieces of one unit into its lanes, in order. */
static void merge_unit(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    struct an_attend *attend = context;
    const struct an_unit *unit = &attend->units[index];
    const struct an_task *task = &attend->tasks[unit->task];
    for (uint32_t i = unit->piece_begin; i < unit->piece_end; i++) {
        const struct an_piece *piece = &attend->pieces[i];
        for (uint32_t j = 0; j < piece->lane_count; j++) {
            struct an_lane *lane = &attend->lanes[piece->lane_begin + j];
            const struct an_accumulator *sum = &attend->accumulators[piece->accumulator_begin + j];
            bool apart = piece->drawn && task->target > 0.0f;
            an_accumulator_merge(apart ? &lane->drawn : &lane->sum, sum, task->dim);
            lane->sampled_rows += piece->kind != AN_PIECE_EXACT ? sum->keys_read : 0;
        }
        attend->lanes[piece->lane_begin].rows_added += merge_bitmap(piece);
    }
}

/* The team only where its start costs less than what it saves. */
static uint32_t threads_for(const struct an_attend *attend, uint64_t bytes)
{
    return bytes < AN_ALONE_BYTES ? 1 : attend->threads;
}

static void run_wave(struct an_attend *attend)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < attend->unit_count; i++) {
        attend->units[i].piece_begin = 0;
        attend->units[i].piece_end = 0;
    }
    for (uint32_t i = 0; i < attend->piece_count; i++) {
        struct an_unit *unit = &attend->units[attend->pieces[i].unit];
        if (unit->piece_end == 0) {
            unit->piece_begin = i;
        }
        unit->piece_end = i + 1;
        const struct an_piece *piece = &attend->pieces[i];
        bytes += (piece->end - piece->begin) * piece->rows.row_bytes;
    }
    uint64_t merge_bytes = attend->piece_floats_used * sizeof(float);
    pp_team_for(threads_for(attend, bytes), attend->piece_count, run_piece, attend);
    pp_team_for(threads_for(attend, merge_bytes), attend->unit_count, merge_unit, attend);
    const struct an_piece *last = &attend->pieces[attend->piece_count - 1];
    if (last->kind == AN_PIECE_SAMPLED) {
        memcpy(attend->carried, last->rows_read, last->bitmap_words * sizeof(uint64_t));
    }
    attend->piece_count = 0;
    attend->accumulator_count = 0;
    attend->piece_floats_used = 0;
    attend->bitmap_words_used = 0;
}

static void run_plan(struct an_attend *attend, enum an_walk walk)
{
    struct an_cursor cursor = {.walk = walk};
    struct an_piece piece = {0};
    while (!an_attend_late(attend) && an_plan_next(attend, &cursor, &piece)) {
        if (attend->piece_count == AN_PIECES_MAX || !place_piece(attend, &piece)) {
            run_wave(attend);
            bool placed = place_piece(attend, &piece);
            PP_ASSERT(placed);
        }
        attend->pieces[attend->piece_count++] = piece;
    }
    if (attend->piece_count > 0) {
        run_wave(attend);
    }
}

void an_attend_waves(struct an_attend *attend)
{
    run_plan(attend, AN_WALK_FIRST);
    for (uint32_t stage = 0; stage < AN_TARGET_STAGES && !an_attend_late(attend); stage++) {
        if (!an_attend_judge(attend, stage)) {
            break;
        }
        run_plan(attend, AN_WALK_AGAIN);
    }
    an_attend_settle(attend);
    bool any = false;
    for (uint32_t i = 0; i < attend->unit_count; i++) {
        struct an_unit *unit = &attend->units[i];
        bool sampled = unit->sampled_tokens > 0 && attend->tasks[unit->task].target == 0.0f;
        for (uint32_t j = 0; j < unit->lane_count && sampled; j++) {
            struct an_lane *lane = &attend->lanes[unit->lane_begin + j];
            lane->fall_back = lane->sampled_rows == 0;
            any = any || lane->fall_back;
        }
    }
    if (any) {
        run_plan(attend, AN_WALK_FALL_BACK);
    }
}
