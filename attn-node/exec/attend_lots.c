/*
 * The lots of a wave: what one thread does at a time, a block of rows or a sample of all views of a
 * q row's heads; and long samples, where they are too few for the team, all threads together
 * (attn-node/index/split.h). See attend_internal.h. It refuses to know the plan.
 */
#include <string.h>

#include "attn-node/exec/attend_internal.h"
#include "attn-node/index/uniform.h"
#include "common/base/rng.h"
#include "common/run/team.h"

/* The lot of the same heads that the piece's rows still fit into; NULL: it is one of its own. */
static struct an_lot *find_lot(struct an_attend *attend, const struct an_piece *piece,
                               uint64_t rows)
{
    uint64_t most = an_index_rows_at_once(&piece->segment->params->index, piece->lane_count,
                                          PP_SEGMENT_TOKENS_MAX);
    for (uint32_t i = attend->lot_count; i > 0; i--) {
        struct an_lot *lot = &attend->lots[i - 1];
        const struct an_piece *other = &attend->pieces[lot->piece];
        if (other->turn != piece->turn || other->unit != piece->unit ||
            other->lane_begin == piece->lane_begin) {
            bool room = lot->rows + rows <= most && lot->views < AN_INDEX_VIEWS_MAX;
            return other->lane_begin == piece->lane_begin && room ? lot : NULL;
        }
    }
    return NULL;
}

void an_lots_add(struct an_attend *attend, const struct an_piece *piece, bool goes_on)
{
    uint32_t index = attend->piece_count;
    uint64_t rows = an_index_view_rows(piece->view.begin, piece->view.end);
    struct an_lot *lot = goes_on ? find_lot(attend, piece, rows) : NULL;
    attend->pieces[index] = *piece;
    attend->pieces[index].view.next = NULL;
    attend->piece_count++;
    if (lot == NULL) {
        attend->lots[attend->lot_count++] =
            (struct an_lot){.piece = index, .last = index, .rows = rows, .views = 1};
        return;
    }
    attend->pieces[lot->last].view.next = &attend->pieces[index].view;
    lot->last = index;
    lot->rows += rows;
    lot->views++;
}

/* The random numbers of a piece's q row and kv head. */
static struct an_index_draw draw_of(const struct an_attend *attend, const struct an_piece *piece)
{
    const struct an_unit *unit = &attend->units[piece->unit];
    const struct an_task *task = &attend->tasks[unit->task];
    uint32_t lane = piece->lane_begin - task->lane_begin;
    uint32_t row = task->row_begin + lane / task->group % task->row_count;
    const struct an_part_spec *spec = &task->part->spec;
    uint64_t key[2] = {spec->draw_key, 0};
    if (spec->draw_key == 0) {
        memcpy(key, spec->part_id, sizeof(key));
    }
    uint64_t seed = task->item->seed_count > 0 ? task->item->seeds[row] : 0;
    seed = pp_rng_at(pp_rng_at(seed, key[0]), key[1]);
    uint64_t layer = (uint64_t)(task->layer - task->part->layers);
    uint64_t head = spec->kv_head_begin + unit->kv_head;
    return (struct an_index_draw){.seed = pp_rng_at(seed, layer << 32 | head),
                                  .first = piece->view.first};
}

static struct an_index_query query_of(const struct an_attend *attend, const struct an_piece *first)
{
    uint32_t q_at = attend->lane_q[first->lane_begin];
    return (struct an_index_query){
        .heads = first->lane_count,
        .q = attend->q + q_at,
        .q_scaled = attend->q_scaled + q_at,
        .codes = attend->codes + attend->lane_code[first->lane_begin],
        .draw = draw_of(attend, first),
        .rows_share = attend->lanes[first->lane_begin].rows_share,
    };
}

/* Its sums, and the rows that it has read. */
static void clear_lot(struct an_attend *attend, const struct an_piece *first)
{
    uint32_t dim = attend->tasks[attend->units[first->unit].task].dim;
    for (const struct an_index_view *view = &first->view; view != NULL; view = view->next) {
        for (uint32_t i = 0; i < first->lane_count; i++) {
            an_accumulator_clear(&view->accumulators[i], dim);
        }
        if (first->kind == AN_PIECE_SAMPLED) {
            memset(view->rows_read, 0, (view->end + 63u) / 64u * sizeof(uint64_t));
        }
    }
}

static void run_lot(void *context, uint64_t index, uint32_t thread)
{
    struct an_attend *attend = context;
    const struct an_lot *lot = &attend->lots[index];
    struct an_piece *piece = &attend->pieces[lot->piece];
    const struct an_unit *unit = &attend->units[piece->unit];
    struct an_accumulator *sums = piece->view.accumulators;
    const float *q_scaled = attend->q_scaled + attend->lane_q[piece->lane_begin];
    clear_lot(attend, piece);
    if (lot->together || an_attend_late(attend)) {
        return;
    }
    struct an_index_query query;
    struct an_index_draw draw;
    switch (piece->kind) {
    case AN_PIECE_EXACT:
        attend->kernels->attend_exact(&piece->view.rows, piece->view.begin, piece->view.end,
                                      q_scaled, piece->lane_count, sums);
        break;
    case AN_PIECE_SAMPLED:
        query = query_of(attend, piece);
        an_index_attend_views(&piece->segment->params->index, &piece->view, &query,
                              attend->query_scratch + thread * attend->query_scratch_bytes);
        break;
    case AN_PIECE_UNIFORM:
        draw = draw_of(attend, piece);
        an_uniform_attend(&piece->view.rows, piece->view.begin, piece->view.end,
                          unit->sampled_tokens, &draw, q_scaled, piece->lane_count, sums);
        break;
    }
}

static bool by_sketch(const struct an_piece *piece)
{
    return piece->kind == AN_PIECE_SAMPLED &&
           piece->segment->params->index.estimator.kind == PP_SKETCH;
}

/* Which samples the team makes together: a function of the wave, not of who is quick. */
static void choose_together(struct an_attend *attend, uint32_t threads)
{
    struct an_split_load load = {.threads = threads};
    for (uint32_t i = 0; i < attend->lot_count; i++) {
        const struct an_lot *lot = &attend->lots[i];
        if (by_sketch(&attend->pieces[lot->piece])) {
            load.count++;
            load.rows += lot->rows;
            load.longest = lot->rows > load.longest ? lot->rows : load.longest;
        }
    }
    uint64_t rows = an_split_rows(&load);
    for (uint32_t i = 0; i < attend->lot_count; i++) {
        struct an_lot *lot = &attend->lots[i];
        lot->together = by_sketch(&attend->pieces[lot->piece]) && lot->rows >= rows;
    }
}

/* Those samples, as many at a time as there is scratch for. */
static void run_together(struct an_attend *attend, uint32_t threads)
{
    uint32_t count = 0;
    uint32_t most = threads < AN_TOGETHER_MAX ? threads : AN_TOGETHER_MAX;
    for (uint32_t i = 0; i < attend->lot_count && !an_attend_late(attend); i++) {
        struct an_piece *piece = &attend->pieces[attend->lots[i].piece];
        if (attend->lots[i].together) {
            attend->together[count++] =
                (struct an_split_sample){.params = &piece->segment->params->index,
                                         .views = &piece->view,
                                         .query = query_of(attend, piece)};
        }
        if (count == most || (count > 0 && i + 1 == attend->lot_count)) {
            an_split_attend(threads, attend->together, count, attend->query_scratch,
                            attend->query_scratch_bytes);
            count = 0;
        }
    }
}

static uint32_t place_of_lot(void *context, uint64_t index)
{
    const struct an_attend *attend = context;
    return an_attend_place_of_unit(context, attend->pieces[attend->lots[index].piece].unit);
}

void an_lots_run(struct an_attend *attend, uint32_t threads)
{
    choose_together(attend, threads);
    pp_team_for_placed(attend->places, threads, attend->lot_count, place_of_lot, run_lot, attend);
    run_together(attend, threads);
}
