/*
 * A sampled attend over the views of one kv head by sketches, all heads of a group at once. Proxy
 * scores z of every row; g = the larger of max over heads of softmax(z) and e/n, over the rows of
 * all views; u = min(1, C g), C such that sum u is the budget; independent draws; every drawn row
 * is read once, and all heads use it with its u. The estimate is unbiased whatever the proxy says,
 * because the u divided by is the u drawn with. On the walk: exec > index > kernels.
 *
 * Passes: all views are scanned, which gives scores relative to each view's centre and, with the
 * centre's own score, the log of what a view weighs for each head; their sum normalises, and the
 * heads' scores become log g, one int16 a row, in the memory of the scores that they were made of;
 * C is searched on all views' log g, which lie behind each other; then each view is drawn from.
 */
#include "attn-node/index/sketch.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"

#define HEADS_MAX AN_INDEX_HEADS_MAX
/* The share of the budget's unit that is uniform over rows: e of the header. */
#define UNIFORM 0.03
/* Rows that C is searched on before the exact passes, and the first step of those, 1/128 octave. */
#define SEARCH_ROWS 4096u
#define SEARCH_STEP 32
#define OCTAVE      128.0

struct layout {
    uint64_t lanes, ids, thresholds, scores, end; /* the queries come first */
    uint64_t scores_count;                        /* int16 of all heads */
};

static uint64_t pad64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* tokens: of the longest segment. Scores come last: views may have more than its together. */
static struct layout lay_out(uint32_t tokens)
{
    uint64_t rows = pad64(tokens) + 2 * AN_SKETCH_BLOCK;
    struct layout layout = {.scores_count = HEADS_MAX * rows};
    uint64_t drawn_bytes = pad64(2 * (rows + AN_SKETCH_BLOCK + AN_SKETCH_CERTAIN_MAX));
    layout.lanes = HEADS_MAX * sizeof(struct an_sketch_query);
    layout.ids = layout.lanes + 16ull * PP_HEAD_DIM_MAX * sizeof(float);
    layout.thresholds = layout.ids + drawn_bytes;
    layout.scores = layout.thresholds + drawn_bytes;
    layout.end = layout.scores + layout.scores_count * sizeof(int16_t);
    return layout;
}

uint64_t an_sketch_query_scratch_bytes(uint32_t tokens)
{
    return lay_out(tokens).end;
}

uint32_t an_sketch_heads_at_once(uint32_t group)
{
    return group < HEADS_MAX ? group : HEADS_MAX;
}

uint64_t an_sketch_rows_at_once(uint32_t heads, uint32_t tokens)
{
    return lay_out(tokens).scores_count / heads;
}

static uint32_t first_row(uint32_t begin)
{
    return begin / AN_SKETCH_BLOCK * AN_SKETCH_BLOCK;
}

/* In whole blocks. */
uint32_t an_sketch_view_rows(uint32_t begin, uint32_t end)
{
    return begin < end ? (uint32_t)pad64(end) - first_row(begin) : 0;
}

static uint32_t view_rows(const struct an_index_view *view)
{
    return an_sketch_view_rows(view->begin, view->end);
}

static const struct an_sketch *sketch_of(const struct an_index_view *view)
{
    return (const struct an_sketch *)view->index;
}

/* A draw in the making. */
struct draw {
    const struct an_index_params *params;
    const struct an_index_query *query;
    const struct an_sketch_kernels *kernels;
    struct layout layout;
    uint8_t *scratch;
    struct an_sketch_query *queries;  /* [heads] */
    const struct an_sketch *balanced; /* that the queries' tables were made for */
    int16_t *logs; /* log g in 1/128 octave, of the views one behind the other in whole blocks */
    uint32_t count;
};

/* The share of the residual that the codes' scores are trusted with. */
static float beta_of(uint32_t bits)
{
    return bits == 1 ? 0.7f : bits == 2 ? 0.9f : 1.0f;
}

static bool same_balance(const struct an_sketch *a, const struct an_sketch *b)
{
    if (a == NULL || a->balance == NULL || b->balance == NULL) {
        return a != NULL && a->balance == b->balance;
    }
    return memcmp(a->balance, b->balance, a->shape.dim * sizeof(float)) == 0;
}

/* Rotates the heads' balanced queries in lanes and makes their look-up tables. */
static void make_tables(struct draw *draw, const struct an_sketch *sketch)
{
    const struct an_sketch_shape *shape = &sketch->shape;
    float *lanes = (float *)(void *)(draw->scratch + draw->layout.lanes);
    memset(lanes, 0, 16ull * shape->padded * sizeof(float));
    for (uint32_t h = 0; h < draw->query->heads; ++h) {
        const float *q = draw->query->q_scaled + (uint64_t)h * shape->dim;
        for (uint32_t d = 0; d < shape->dim; ++d) {
            float balance = sketch->balance != NULL ? sketch->balance[d] : 1.0f;
            lanes[d * 16 + h] = q[d] * balance;
        }
    }
    draw->kernels->rotate(draw->params->signs, shape->padded, lanes);
    for (uint32_t h = 0; h < draw->query->heads; ++h) {
        float r[PP_HEAD_DIM_MAX];
        for (uint32_t d = 0; d < shape->padded; ++d) {
            r[d] = lanes[d * 16 + h];
        }
        an_sketch_tables_make(shape, r, &draw->queries[h]);
    }
}

/* Tables are made once for all views that have the same balance, as those of a layer do. */
static void prepare_queries(struct draw *draw, const struct an_sketch *sketch)
{
    if (!same_balance(draw->balanced, sketch)) {
        make_tables(draw, sketch);
        draw->balanced = sketch;
    }
    for (uint32_t h = 0; h < draw->query->heads; ++h) {
        an_sketch_query_scale(&draw->queries[h], beta_of(sketch->shape.bits) * sketch->factor_max);
    }
}

static double centre_score(const struct an_sketch *sketch, const float *q_scaled)
{
    double sum = 0.0;
    for (uint32_t d = 0; d < sketch->shape.dim; ++d) {
        sum += (double)q_scaled[d] * (double)sketch->centre[d];
    }
    return sum;
}

/* Scores of every row of a view and head, [heads][rows] into scores, and the view's masses. */
static void scan_view(struct draw *draw, struct an_index_view *view, int16_t *scores)
{
    const struct an_sketch *sketch = sketch_of(view);
    struct an_sketch_scores of_heads[HEADS_MAX];
    prepare_queries(draw, sketch);
    for (uint32_t h = 0; h < draw->query->heads; ++h) {
        of_heads[h].scores = scores + (uint64_t)h * view_rows(view);
    }
    draw->kernels->scan(&sketch->shape, sketch->stream, view->begin, view->end, draw->queries,
                        draw->query->heads, of_heads);
    for (uint32_t h = 0; h < draw->query->heads; ++h) {
        const float *q = draw->query->q_scaled + (uint64_t)h * sketch->shape.dim;
        view->masses[h] =
            (struct an_index_mass){.centre = OCTAVE * M_LOG2E * centre_score(sketch, q),
                                   .log = OCTAVE * log2((double)of_heads[h].sum)};
    }
}

void an_sketch_add_mass(struct an_index_mass *sum, const struct an_index_mass *mass)
{
    struct an_index_mass large = *mass;
    struct an_index_mass small = *sum;
    if (small.log > -INFINITY && small.centre - large.centre + small.log > large.log) {
        large = *sum;
        small = *mass;
    }
    double below =
        small.log > -INFINITY ? small.centre - large.centre + small.log - large.log : -INFINITY;
    *sum = (struct an_index_mass){.centre = large.centre,
                                  .log = large.log + OCTAVE * log2(1.0 + exp2(below / OCTAVE))};
}

static int16_t to_shift(double shift)
{
    return (int16_t)lrint(shift < -INT16_MAX ? -INT16_MAX : shift > INT16_MAX ? INT16_MAX : shift);
}

/* log g of a view's rows into `into`, from scores that begin there or behind; those that are read
 * for certain are taken out. Returns how many these are. */
static uint32_t combine_view(const struct draw *draw, const struct an_index_view *view,
                             const int16_t *scores, const struct an_index_mass *masses,
                             uint64_t rows, int16_t *into)
{
    const struct an_sketch *sketch = sketch_of(view);
    const int16_t *of_heads[HEADS_MAX];
    int16_t shifts[HEADS_MAX];
    for (uint32_t h = 0; h < draw->query->heads; ++h) {
        of_heads[h] = scores + (uint64_t)h * view_rows(view);
        shifts[h] = to_shift(view->masses[h].centre - masses[h].centre - masses[h].log +
                             OCTAVE * log2(1.0 - UNIFORM));
    }
    draw->kernels->combine(of_heads, shifts, draw->query->heads,
                           to_shift(OCTAVE * log2(UNIFORM / (double)rows)), view_rows(view), into);
    uint32_t certain = 0;
    for (uint32_t i = 0; i < sketch->certain_count; ++i) {
        uint32_t row = sketch->certain[i];
        if (row >= view->begin && row < view->end) {
            into[row - first_row(view->begin)] = AN_SKETCH_NONE;
            ++certain;
        }
    }
    return certain;
}

/* The least shift of those tried at which the rows sampled from `logs` reach the budget. */
static int32_t search_roughly(const struct draw *draw, float budget)
{
    int16_t some[SEARCH_ROWS];
    uint32_t blocks = draw->count / AN_SKETCH_BLOCK;
    uint32_t taken =
        blocks < SEARCH_ROWS / AN_SKETCH_BLOCK ? blocks : SEARCH_ROWS / AN_SKETCH_BLOCK;
    for (uint32_t i = 0; i < taken; ++i) {
        const int16_t *from = draw->logs + (uint64_t)i * blocks / taken * AN_SKETCH_BLOCK;
        memcpy(some + i * AN_SKETCH_BLOCK, from, AN_SKETCH_BLOCK * sizeof(*some));
    }
    float wanted = budget * (float)taken / (float)blocks;
    int32_t low = 0;
    int32_t high = 1 << 12; /* log u + 32 octaves is more than the least log g */
    while (high - low > 4) {
        int32_t step = (high - low) / 4;
        int16_t shifts[3] = {(int16_t)(low + step), (int16_t)(low + 2 * step),
                             (int16_t)(low + 3 * step)};
        float sums[3] = {0.0f};
        draw->kernels->sum_u(some, taken * AN_SKETCH_BLOCK, shifts, sums);
        int32_t below = (sums[0] < wanted) + (sums[1] < wanted) + (sums[2] < wanted);
        low += below * step;
        high = below < 3 ? low + step : high;
    }
    return low;
}

/* C as a shift of log g: sum u over all rows is the budget within half a per cent. */
static int16_t find_shift(const struct draw *draw, float budget)
{
    int32_t middle = search_roughly(draw, budget);
    for (int32_t step = SEARCH_STEP;; step = step < 512 ? 2 * step : step) {
        int16_t shifts[3] = {(int16_t)(middle - step), (int16_t)middle, (int16_t)(middle + step)};
        float sums[3] = {0.0f};
        draw->kernels->sum_u(draw->logs, draw->count, shifts, sums);
        if (sums[0] > budget && middle > -1024) {
            middle -= step;
        } else if (sums[2] < budget && middle < 1 << 13) {
            middle += step;
        } else {
            uint32_t left = sums[1] < budget;
            float rise = sums[left + 1] - sums[left];
            float part = rise > 0.0f ? (budget - sums[left]) / rise : 0.5f;
            part = part < 0.0f ? 0.0f : part > 1.0f ? 1.0f : part;
            return (int16_t)(shifts[left] + (int32_t)lrintf(part * (float)step));
        }
    }
}

static struct draw begin_draw(const struct an_index_params *params,
                              const struct an_index_query *query, uint32_t tokens, void *scratch)
{
    PP_ASSERT(query->heads >= 1 && query->heads <= HEADS_MAX);
    struct draw draw = {.params = params,
                        .query = query,
                        .kernels = an_sketch_kernels_get(),
                        .layout = lay_out(tokens),
                        .scratch = scratch};
    draw.queries = (struct an_sketch_query *)(void *)draw.scratch;
    draw.logs = (int16_t *)(void *)(draw.scratch + draw.layout.scores);
    return draw;
}

static void add_masses(const struct an_index_view *view, uint32_t heads, struct an_index_mass *sums)
{
    for (uint32_t h = 0; h < heads; ++h) {
        an_sketch_add_mass(&sums[h], &view->masses[h]);
    }
}

/* Everything but the draw: log g of all rows, and the shift of the budget. */
static int16_t prepare_draw(struct draw *draw, struct an_index_view *views)
{
    uint32_t heads = draw->query->heads;
    struct an_index_mass masses[HEADS_MAX];
    uint64_t rows = 0;
    uint32_t certain = 0;
    for (uint32_t h = 0; h < heads; ++h) {
        masses[h] = (struct an_index_mass){.log = -INFINITY};
    }
    for (struct an_index_view *view = views; view != NULL; view = view->next) {
        if (view_rows(view) > 0) {
            scan_view(draw, view, draw->logs + (uint64_t)heads * draw->count);
            add_masses(view, heads, masses);
            rows += view->end - view->begin;
            draw->count += view_rows(view);
        }
    }
    uint32_t at = 0;
    for (const struct an_index_view *view = views; view != NULL; view = view->next) {
        if (view_rows(view) > 0) {
            certain += combine_view(draw, view, draw->logs + (uint64_t)heads * at, masses, rows,
                                    draw->logs + at);
            at += view_rows(view);
        }
    }
    float budget = draw->query->rows_share * (float)rows - (float)certain;
    return certain < rows ? find_shift(draw, budget > 1.0f ? budget : 1.0f) : 0;
}

/* The sample of one view, whose log g begin at `logs`: ids, the drawn ascending, then those read
 * for certain; thresholds beside. Returns their number. */
static uint32_t draw_view(const struct draw *draw, const struct an_index_view *view,
                          const int16_t *logs, int16_t shift, uint16_t *ids, uint16_t *thresholds)
{
    const struct an_sketch *sketch = sketch_of(view);
    uint32_t first = first_row(view->begin);
    uint32_t drawn = draw->kernels->draw(logs, view_rows(view), shift, draw->query->draw.seed,
                                         (uint32_t)(view->first + first), first, ids, thresholds);
    for (uint32_t i = 0; i < sketch->certain_count; ++i) {
        if (sketch->certain[i] >= view->begin && sketch->certain[i] < view->end) {
            ids[drawn] = sketch->certain[i];
            thresholds[drawn++] = 0;
        }
    }
    return drawn;
}

static uint32_t longest_of(const struct an_index_view *views)
{
    uint32_t tokens = 0;
    for (const struct an_index_view *view = views; view != NULL; view = view->next) {
        uint32_t own = sketch_of(view)->tokens;
        tokens = own > tokens ? own : tokens;
    }
    return tokens;
}

void an_sketch_masses(const struct an_index_params *params, struct an_index_view *view,
                      const struct an_index_query *query, void *scratch)
{
    struct draw draw = begin_draw(params, query, sketch_of(view)->tokens, scratch);
    scan_view(&draw, view, draw.logs);
}

const int16_t *an_sketch_logs(const struct an_index_params *params, struct an_index_view *view,
                              const struct an_index_query *query,
                              const struct an_index_mass *masses, uint64_t rows, void *scratch)
{
    struct draw draw = begin_draw(params, query, sketch_of(view)->tokens, scratch);
    scan_view(&draw, view, draw.logs);
    (void)combine_view(&draw, view, draw.logs, masses, rows, draw.logs);
    return draw.logs + (view->begin - first_row(view->begin));
}

static void attend_view(const struct draw *draw, const struct an_index_view *view,
                        const int16_t *logs, int16_t shift)
{
    uint16_t *ids = (uint16_t *)(void *)(draw->scratch + draw->layout.ids);
    uint16_t *thresholds = (uint16_t *)(void *)(draw->scratch + draw->layout.thresholds);
    uint32_t drawn = draw_view(draw, view, logs, shift, ids, thresholds);
    for (uint32_t i = 0; i < drawn && view->rows_read != NULL; ++i) {
        view->rows_read[ids[i] / 64] |= 1ull << (ids[i] % 64);
    }
    draw->kernels->attend(&view->rows, ids, thresholds, drawn, draw->query->q_scaled,
                          draw->query->heads, view->accumulators);
}

void an_sketch_attend(const struct an_index_params *params, struct an_index_view *views,
                      const struct an_index_query *query, void *scratch)
{
    struct draw draw = begin_draw(params, query, longest_of(views), scratch);
    int16_t shift = prepare_draw(&draw, views);
    const int16_t *logs = draw.logs;
    for (const struct an_index_view *view = views; view != NULL; view = view->next) {
        if (view_rows(view) > 0) {
            attend_view(&draw, view, logs, shift);
            logs += view_rows(view);
        }
    }
}

uint32_t an_sketch_sample(const struct an_sketch *sketch, const struct an_index_params *params,
                          uint32_t begin, uint32_t end, const struct an_index_query *query,
                          void *scratch, uint16_t *ids_out, float *log_u_out)
{
    struct an_index_view view = {.index = (const struct an_index *)sketch,
                                 .begin = begin,
                                 .end = end,
                                 .first = query->draw.first};
    struct draw draw = begin_draw(params, query, sketch->tokens, scratch);
    uint16_t *ids = (uint16_t *)(void *)(draw.scratch + draw.layout.ids);
    uint16_t *thresholds = (uint16_t *)(void *)(draw.scratch + draw.layout.thresholds);
    int16_t shift = prepare_draw(&draw, &view);
    uint32_t drawn = begin < end ? draw_view(&draw, &view, draw.logs, shift, ids, thresholds) : 0;
    for (uint32_t i = 0; i < drawn; ++i) {
        float log_u = thresholds[i] == 0 ? 0.0f : (float)log((double)thresholds[i] / 65536.0);
        uint32_t at = i;
        for (; at > 0 && ids_out[at - 1] > ids[i]; --at) {
            ids_out[at] = ids_out[at - 1];
            log_u_out[at] = log_u_out[at - 1];
        }
        ids_out[at] = ids[i];
        log_u_out[at] = log_u;
    }
    return drawn;
}
