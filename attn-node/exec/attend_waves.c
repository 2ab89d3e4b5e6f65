/*
 * Pieces of a batch, in waves: as many as the memory for their sums holds are computed by the team
 * (attend_lots.c), then merged into their lanes in index order; the next wave goes on where the
 * last one ended. The order of merging is therefore the order of the plan (attend_plan.c), whatever
 * the number of threads. See attend_internal.h.
 */
#include <math.h>
#include <string.h>

#include "attn-node/exec/attend_internal.h"
#include "common/base/assert.h"
#include "common/run/team.h"

/* A bitmap for a sampled piece. */
static void place_bitmap(struct an_attend *attend, const struct an_task *task,
                         struct an_piece *piece)
{
    piece->view.rows_read = attend->bitmaps + attend->bitmap_words_used;
    attend->bitmap_words_used += piece->bitmap_words;
    piece->rows_before = NULL;
    if ((piece->lane_begin - task->lane_begin) % task->group != 0) {
        uint32_t count = attend->piece_count;
        piece->rows_before = count > 0 ? attend->pieces[count - 1].view.rows_read : attend->carried;
    }
}

/* Memory for a piece's sums and bitmap; false when the wave is full. Less than a wave holds is
 * enough for any piece. */
static bool place_piece(struct an_attend *attend, struct an_piece *piece)
{
    const struct an_task *task = &attend->tasks[attend->units[piece->unit].task];
    piece->bitmap_words = piece->kind == AN_PIECE_SAMPLED ? (piece->view.end + 63u) / 64u : 0;
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
    piece->view.accumulators = &attend->accumulators[attend->accumulator_count];
    for (uint32_t i = 0; i < piece->lane_count; i++) {
        float *memory = attend->piece_floats + attend->piece_floats_used;
        struct an_accumulator *sum = &attend->accumulators[attend->accumulator_count++];
        sum->o = memory;
        sum->b1 = task->sampled ? memory + task->dim : NULL;
        attend->piece_floats_used += floats_each;
    }
    return true;
}

/* Adds the rows of the group's heads before this one to the piece's bitmap; returns how many rows
 * are its own. */
static uint64_t merge_bitmap(const struct an_piece *piece)
{
    uint64_t added = 0;
    for (uint32_t i = 0; i < piece->bitmap_words; i++) {
        uint64_t before = piece->rows_before != NULL ? piece->rows_before[i] : 0;
        added += (uint64_t)__builtin_popcountll(piece->view.rows_read[i] & ~before);
        piece->view.rows_read[i] |= before;
    }
    return added;
}

/* Adds a piece's weight to what the lane's sampled views weigh. */
static void add_sampled(struct an_lane *lane, const struct an_accumulator *sum)
{
    if (sum->m == -INFINITY) {
        return;
    }
    float m = sum->m > lane->sampled_m ? sum->m : lane->sampled_m;
    lane->sampled_sum = lane->sampled_sum * expf(lane->sampled_m - m) + sum->sum * expf(sum->m - m);
    lane->sampled_m = m;
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
            const struct an_accumulator *sum = &piece->view.accumulators[j];
            bool apart = piece->drawn && task->target > 0.0f;
            an_accumulator_merge(apart ? &lane->drawn : &lane->sum, sum, task->dim);
            if (piece->drawn) {
                add_sampled(lane, sum);
            }
            lane->sampled_rows += piece->kind != AN_PIECE_EXACT ? sum->keys_read : 0;
        }
        attend->lanes[piece->lane_begin].rows_added += merge_bitmap(piece);
    }
}

uint32_t an_attend_place_of_unit(void *context, uint64_t index)
{
    const struct an_attend *attend = context;
    return pp_numa_place(attend->numa, attend->units[index].kv_head);
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
        bytes += (piece->view.end - piece->view.begin) * piece->view.rows.row_bytes;
    }
    uint64_t merge_bytes = attend->piece_floats_used * sizeof(float);
    an_lots_run(attend, threads_for(attend, bytes));
    pp_team_for_placed(attend->places, threads_for(attend, merge_bytes), attend->unit_count,
                       an_attend_place_of_unit, merge_unit, attend);
    const struct an_piece *last = &attend->pieces[attend->piece_count - 1];
    if (last->kind == AN_PIECE_SAMPLED) {
        memcpy(attend->carried, last->view.rows_read, last->bitmap_words * sizeof(uint64_t));
    }
    attend->piece_count = 0;
    attend->lot_count = 0;
    attend->accumulator_count = 0;
    attend->piece_floats_used = 0;
    attend->bitmap_words_used = 0;
}

/* Whether the piece goes on with the sample of the wave's last one. */
static bool goes_on(const struct an_attend *attend, const struct an_piece *piece)
{
    if (attend->piece_count == 0 || piece->kind != AN_PIECE_SAMPLED) {
        return false;
    }
    const struct an_piece *last = &attend->pieces[attend->piece_count - 1];
    return last->kind == piece->kind && last->unit == piece->unit && last->turn == piece->turn;
}

/* How full a wave was before a sample, and where the plan was. */
struct mark {
    struct an_cursor cursor;
    uint32_t pieces, lots, accumulators, floats, bitmap_words;
};

static struct mark mark_here(const struct an_attend *attend, const struct an_cursor *cursor)
{
    return (struct mark){.cursor = *cursor,
                         .pieces = attend->piece_count,
                         .lots = attend->lot_count,
                         .accumulators = attend->accumulator_count,
                         .floats = attend->piece_floats_used,
                         .bitmap_words = attend->bitmap_words_used};
}

static void go_back(struct an_attend *attend, const struct mark *mark)
{
    attend->piece_count = mark->pieces;
    attend->lot_count = mark->lots;
    attend->accumulator_count = mark->accumulators;
    attend->piece_floats_used = mark->floats;
    attend->bitmap_words_used = mark->bitmap_words;
}

/* A sample that does not fit into what is left of a wave begins the next one; where it is more than
 * a wave it is two samples. */
static void run_plan(struct an_attend *attend, enum an_walk walk)
{
    struct an_cursor cursor = {.walk = walk};
    struct mark mark = mark_here(attend, &cursor);
    struct an_piece piece = {0};
    for (;;) {
        struct an_cursor before = cursor;
        if (an_attend_late(attend) || !an_plan_next(attend, &cursor, &piece)) {
            break;
        }
        if (!goes_on(attend, &piece)) {
            mark = mark_here(attend, &before);
        }
        if (attend->piece_count < AN_PIECES_MAX && place_piece(attend, &piece)) {
            an_lots_add(attend, &piece, goes_on(attend, &piece));
            continue;
        }
        cursor = before;
        if (mark.pieces > 0) {
            go_back(attend, &mark);
            cursor = mark.cursor;
        }
        PP_ASSERT(attend->piece_count > 0);
        run_wave(attend);
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
