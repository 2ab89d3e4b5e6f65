/*
 * The plan of a batch: its pieces in order, and for each unit and view whether rows are read one by
 * one or sampled. A unit's views that are read come first, for all its lanes, then, q row by q row,
 * those that are sampled, so that what makes one sample lies together. A view is sampled where the
 * item's estimator is forced or sampling is expected to be cheaper for the unit's lanes
 * (an_index_pays); the choice depends on the request and the data alone. Nothing is kept but the
 * cursor: the same plan can be walked again. See attend_internal.h.
 */
#include "attn-node/exec/attend_internal.h"
#include "attn-node/index/uniform.h"

static void next_stretch(struct an_cursor *cursor)
{
    cursor->stretch++;
    cursor->lane = cursor->lane_begin;
    cursor->row_set = false;
    cursor->chosen = false;
}

/* The lanes that turn `turn` of a unit is about: all of them, then one q row's after the other. */
static void set_turn(struct an_cursor *cursor, const struct an_task *task, uint32_t lane_count,
                     uint32_t turn)
{
    cursor->turn = turn;
    cursor->lane_begin = turn == 0 ? 0 : (turn - 1) * task->group;
    cursor->lane_end = turn == 0 ? lane_count : turn * task->group;
    cursor->stretch = 0;
    cursor->lane = cursor->lane_begin;
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
    piece->view.begin = cursor->row;
    piece->view.end = border < stretch->end ? border : stretch->end;
    cursor->row = piece->view.end;
    return true;
}

/* Blocks of the stretch for all lanes of the turn, AN_EXACT_LANES at a time. */
static bool next_exact(struct an_cursor *cursor, const struct an_unit *unit,
                       const struct an_stretch *stretch, struct an_piece *piece)
{
    piece->kind = AN_PIECE_EXACT;
    for (; cursor->lane < cursor->lane_end; cursor->lane += AN_EXACT_LANES) {
        uint32_t left = cursor->lane_end - cursor->lane;
        piece->lane_begin = unit->lane_begin + cursor->lane;
        piece->lane_count = left < AN_EXACT_LANES ? left : AN_EXACT_LANES;
        if (next_block(cursor, stretch, piece)) {
            return true;
        }
        cursor->row_set = false;
    }
    return false;
}

/* The whole stretch for as many heads of the q row as the index samples together. */
static bool next_sampled(const struct an_task *task, struct an_cursor *cursor,
                         const struct an_unit *unit, const struct an_stretch *stretch,
                         struct an_piece *piece)
{
    uint32_t left = cursor->lane_end - cursor->lane;
    uint32_t step = an_index_heads_at_once(&stretch->segment->params->index, task->group);
    piece->kind = AN_PIECE_SAMPLED;
    piece->view.index = stretch->segment->index[unit->kv_head];
    piece->view.begin = stretch->begin;
    piece->view.end = stretch->end;
    piece->lane_begin = unit->lane_begin + cursor->lane;
    piece->lane_count = step < left ? step : left;
    cursor->lane += piece->lane_count;
    return piece->lane_count > 0;
}

/* Blocks of a sampled stretch for each lane whose sample was empty. */
static bool next_fall_back(const struct an_attend *attend, struct an_cursor *cursor,
                           const struct an_unit *unit, const struct an_stretch *stretch,
                           struct an_piece *piece)
{
    bool all = unit->sampled_tokens <= AN_UNIFORM_ROWS;
    piece->kind = all ? AN_PIECE_EXACT : AN_PIECE_UNIFORM;
    piece->lane_count = 1;
    while (cursor->lane < cursor->lane_end) {
        piece->lane_begin = unit->lane_begin + cursor->lane;
        if (attend->lanes[piece->lane_begin].fall_back && next_block(cursor, stretch, piece)) {
            return true;
        }
        cursor->lane++;
        cursor->row_set = false;
    }
    return false;
}

/* A sampled stretch for a group whose sample missed its target: by a larger sample, or in blocks.
 */
static bool next_again(const struct an_attend *attend, struct an_cursor *cursor,
                       const struct an_unit *unit, const struct an_stretch *stretch,
                       struct an_piece *piece)
{
    while (cursor->lane < cursor->lane_end) {
        uint32_t left = cursor->lane_end - cursor->lane;
        enum an_lane_next next = attend->lanes[unit->lane_begin + cursor->lane].next;
        if (next == AN_LANE_AGAIN) {
            return next_sampled(&attend->tasks[unit->task], cursor, unit, stretch, piece);
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
    float expected =
        an_task_share(task, unit->kv_head) * (task->target > 0.0f ? AN_TARGET_GROWTH : 1.0f);
    struct an_index_lanes lanes = {.group = task->group,
                                   .count = unit->lane_count,
                                   .codes = attend->codes + attend->lane_code[unit->lane_begin],
                                   .rows_share = expected < 1.0f ? expected : 1.0f,
                                   .sample_rows = task->indexed};
    return task->item->forced ||
           an_index_pays(segment->index[unit->kv_head], &segment->params->index, rows,
                         stretch->begin, stretch->end, &lanes, NULL);
}

/* Fills `piece` from the stretch under the cursor; false when nothing of it is left. */
static bool piece_of_stretch(const struct an_attend *attend, struct an_cursor *cursor,
                             const struct an_unit *unit, const struct an_stretch *stretch,
                             struct an_piece *piece)
{
    if (!cursor->chosen) {
        cursor->chosen = true;
        cursor->sampled = samples(attend, unit, stretch, &piece->view.rows);
    }
    if (cursor->sampled != (cursor->turn > 0)) {
        return false;
    }
    piece->drawn = cursor->sampled;
    switch (cursor->sampled ? cursor->walk : AN_WALK_FIRST) {
    case AN_WALK_FALL_BACK:
        return next_fall_back(attend, cursor, unit, stretch, piece);
    case AN_WALK_AGAIN:
        return next_again(attend, cursor, unit, stretch, piece);
    case AN_WALK_FIRST:
        break;
    }
    return cursor->sampled ? next_sampled(&attend->tasks[unit->task], cursor, unit, stretch, piece)
                           : next_exact(cursor, unit, stretch, piece);
}

static struct an_rows rows_of(const struct an_task *task, const struct an_unit *unit,
                              const struct an_stretch *stretch)
{
    return an_extent_rows(stretch->extent, task->part->params, unit->kv_head, stretch->base);
}

static bool next_of_turn(const struct an_attend *attend, struct an_cursor *cursor,
                         const struct an_unit *unit, struct an_piece *piece)
{
    const struct an_task *task = &attend->tasks[unit->task];
    uint32_t stretches = an_layer_stretch_count(task->layer);
    for (; cursor->stretch < stretches; next_stretch(cursor)) {
        struct an_stretch stretch = an_layer_stretch(task->layer, cursor->stretch, task->held);
        if (stretch.begin == stretch.end) {
            break;
        }
        piece->view.rows = rows_of(task, unit, &stretch);
        if (piece_of_stretch(attend, cursor, unit, &stretch, piece)) {
            piece->unit = cursor->unit;
            piece->turn = cursor->turn;
            piece->segment = stretch.segment;
            piece->view.first = stretch.held_begin - stretch.begin;
            return true;
        }
    }
    return false;
}

static uint64_t count_sampled(const struct an_attend *attend, const struct an_unit *unit)
{
    const struct an_task *task = &attend->tasks[unit->task];
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < an_layer_stretch_count(task->layer); i++) {
        struct an_stretch stretch = an_layer_stretch(task->layer, i, task->held);
        struct an_rows rows = rows_of(task, unit, &stretch);
        if (stretch.begin < stretch.end && samples(attend, unit, &stretch, &rows)) {
            tokens += stretch.end - stretch.begin;
        }
    }
    return tokens;
}

bool an_plan_next(struct an_attend *attend, struct an_cursor *cursor, struct an_piece *piece)
{
    for (; cursor->unit < attend->unit_count; cursor->unit++) {
        struct an_unit *unit = &attend->units[cursor->unit];
        const struct an_task *task = &attend->tasks[unit->task];
        uint32_t turns = task->failed ? 0 : unit->lane_count / task->group + 1;
        if (!cursor->begun) {
            cursor->begun = true;
            set_turn(cursor, task, unit->lane_count, cursor->walk == AN_WALK_FIRST ? 0 : 1);
        }
        while (cursor->turn < turns && (cursor->turn == 0 || unit->sampled_tokens > 0)) {
            if (next_of_turn(attend, cursor, unit, piece)) {
                return true;
            }
            if (cursor->turn == 0) {
                unit->sampled_tokens = count_sampled(attend, unit);
            }
            set_turn(cursor, task, unit->lane_count, cursor->turn + 1);
        }
        cursor->begun = false;
    }
    return false;
}
