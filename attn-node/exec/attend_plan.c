/*
 * The plan of a batch: its pieces in order, and for each unit and view whether rows are read one by
 * one or sampled. A view is sampled where the item's estimator is forced or sampling is expected to
 * be cheaper for the unit's lanes (an_index_pays); the choice depends on the request and the data
 * alone. Nothing is kept but the cursor: the same plan can be walked again. See attend_internal.h.
 */
#include "attn-node/exec/attend_internal.h"
#include "attn-node/index/uniform.h"

static void next_stretch(struct an_cursor *cursor)
{
    cursor->stretch++;
    cursor->lane = 0;
    cursor->row_set = false;
    cursor->chosen = false;
}

static void next_unit(struct an_cursor *cursor)
{
    cursor->unit++;
    cursor->stretch = 0;
    cursor->lane = 0;
    cursor->row_set = false;
    cursor->chosen = false;
}

/* The next block of rows for lanes [cursor lane, + lane_count); false when the stretch is done. */
static bool next_block(struct an_cursor *cursor, const struct an_stretch *stretch,
                       struct an_piece *piece)
{
    if (!cursor->row_set) {
        cursor->row = stretch->begin;
        cursor->row_set = true;
    }
    if (cursor->row >= stretch->end) {
        return false;
    }
    uint32_t border = (cursor->row / AN_BLOCK_TOKENS + 1) * AN_BLOCK_TOKENS;
    piece->begin = cursor->row;
    piece->end = border < stretch->end ? border : stretch->end;
    cursor->row = piece->end;
    return true;
}

/* Blocks of the stretch for all lanes of the unit, AN_EXACT_LANES at a time. */
static bool next_exact(struct an_cursor *cursor, const struct an_unit *unit,
                       const struct an_stretch *stretch, struct an_piece *piece)
{
    piece->kind = AN_PIECE_EXACT;
    for (; cursor->lane < unit->lane_count; cursor->lane += AN_EXACT_LANES) {
        uint32_t left = unit->lane_count - cursor->lane;
        piece->lane_begin = unit->lane_begin + cursor->lane;
        piece->lane_count = left < AN_EXACT_LANES ? left : AN_EXACT_LANES;
        if (next_block(cursor, stretch, piece)) {
            return true;
        }
        cursor->row_set = false;
    }
    return false;
}

/* The whole stretch for as many heads of a q row as the index samples together. */
static bool next_sampled(const struct an_task *task, struct an_cursor *cursor,
                         const struct an_unit *unit, const struct an_stretch *stretch,
                         struct an_piece *piece)
{
    uint32_t left = task->group - cursor->lane % task->group; /* of the q row */
    uint32_t step = an_index_heads_at_once(&stretch->segment->params->index, task->group);
    piece->kind = AN_PIECE_SAMPLED;
    piece->begin = stretch->begin;
    piece->end = stretch->end;
    piece->lane_begin = unit->lane_begin + cursor->lane;
    piece->lane_count = step < left ? step : left;
    cursor->lane += piece->lane_count;
    return piece->lane_begin < unit->lane_begin + unit->lane_count;
}

/* Blocks of a sampled stretch for each lane whose sample was empty. */
static bool next_fall_back(const struct an_attend *attend, struct an_cursor *cursor,
                           const struct an_unit *unit, const struct an_stretch *stretch,
                           struct an_piece *piece)
{
    bool all = unit->sampled_tokens <= AN_UNIFORM_ROWS;
    piece->kind = all ? AN_PIECE_EXACT : AN_PIECE_UNIFORM;
    piece->lane_count = 1;
    while (cursor->lane < unit->lane_count) {
        piece->lane_begin = unit->lane_begin + cursor->lane;
        if (attend->lanes[piece->lane_begin].fall_back && next_block(cursor, stretch, piece)) {
            return true;
        }
        cursor->lane++;
        cursor->row_set = false;
    }
    return false;
}

/* A sampled stretch for the groups whose sample missed their target: by a larger sample, or in
 * blocks for the lanes of a group. */
static bool next_again(const struct an_attend *attend, struct an_cursor *cursor,
                       const struct an_unit *unit, const struct an_stretch *stretch,
                       struct an_piece *piece)
{
    const struct an_task *task = &attend->tasks[unit->task];
    while (cursor->lane < unit->lane_count) {
        uint32_t left = task->group - cursor->lane % task->group;
        enum an_lane_next next = attend->lanes[unit->lane_begin + cursor->lane].next;
        if (next == AN_LANE_AGAIN) {
            return next_sampled(task, cursor, unit, stretch, piece);
        }
        piece->kind = AN_PIECE_EXACT;
        piece->lane_begin = unit->lane_begin + cursor->lane;
        piece->lane_count = left < AN_EXACT_LANES ? left : AN_EXACT_LANES;
        if (next == AN_LANE_ALL && next_block(cursor, stretch, piece)) {
            return true;
        }
        cursor->row_set = false;
        cursor->lane += piece->lane_count;
    }
    return false;
}

/* Whether the unit's lanes sample the stretch. */
static bool samples(const struct an_attend *attend, const struct an_unit *unit,
                    const struct an_stretch *stretch, const struct an_rows *rows)
{
    const struct an_task *task = &attend->tasks[unit->task];
    const struct an_segment *segment = stretch->segment;
    if (!task->sampled || segment == NULL || !segment->indexed) {
        return false;
    }
    /* A target takes on average so many times its first sample, most of it in a second one. */
    float expected = task->rows_share * (task->target > 0.0f ? AN_TARGET_GROWTH : 1.0f);
    struct an_index_lanes lanes = {.group = task->group,
                                   .count = unit->lane_count,
                                   .codes = attend->codes + attend->lane_code[unit->lane_begin],
                                   .rows_share = expected < 1.0f ? expected : 1.0f};
    return task->item->forced ||
           an_index_pays(segment->index[unit->kv_head], &segment->params->index, rows,
                         stretch->begin, stretch->end, &lanes, NULL);
}

/* Fills `piece` from the stretch under the cursor; false when nothing of it is left. */
static bool piece_of_stretch(struct an_attend *attend, struct an_cursor *cursor,
                             struct an_unit *unit, const struct an_stretch *stretch,
                             struct an_piece *piece)
{
    if (!cursor->chosen) {
        cursor->chosen = true;
        cursor->sampled = samples(attend, unit, stretch, &piece->rows);
        if (cursor->sampled && cursor->walk == AN_WALK_FIRST) {
            unit->sampled_tokens += stretch->end - stretch->begin;
        }
    }
    piece->drawn = cursor->sampled;
    if (cursor->walk == AN_WALK_FALL_BACK) {
        return cursor->sampled && next_fall_back(attend, cursor, unit, stretch, piece);
    }
    if (cursor->walk == AN_WALK_AGAIN) {
        return cursor->sampled && next_again(attend, cursor, unit, stretch, piece);
    }
    if (cursor->sampled) {
        return next_sampled(&attend->tasks[unit->task], cursor, unit, stretch, piece);
    }
    return next_exact(cursor, unit, stretch, piece);
}

bool an_plan_next(struct an_attend *attend, struct an_cursor *cursor, struct an_piece *piece)
{
    for (; cursor->unit < attend->unit_count; next_unit(cursor)) {
        struct an_unit *unit = &attend->units[cursor->unit];
        const struct an_task *task = &attend->tasks[unit->task];
        uint32_t stretches = task->failed ? 0 : an_layer_stretch_count(task->layer);
        for (; cursor->stretch < stretches; next_stretch(cursor)) {
            struct an_stretch stretch = an_layer_stretch(task->layer, cursor->stretch, task->held);
            if (stretch.begin == stretch.end) {
                break;
            }
            piece->rows =
                an_extent_rows(stretch.extent, task->part->params, unit->kv_head, stretch.base);
            if (piece_of_stretch(attend, cursor, unit, &stretch, piece)) {
                piece->unit = cursor->unit;
                piece->segment = stretch.segment;
                piece->held_first = stretch.held_begin - stretch.begin;
                return true;
            }
        }
    }
    return false;
}
