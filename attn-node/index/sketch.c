/*
 * A sampled attend over one segment and kv head by sketches, all heads of a group at once. Proxy
 * scores z of every row; g = the larger of max over heads of softmax(z) and e/n; u = min(1, C g), C
 * such that sum u is the budget; independent draws; every drawn row is read once, and all heads use
 * it with its u. The estimate is unbiased whatever the proxy says, because the u divided by is the
 * u drawn with. On the walk: exec > index > kernels.
 */
#include "attn-node/index/sketch.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"

#define HEADS_MAX 16u
/* The share of the budget's unit that is uniform over rows: e of the header. */
#define UNIFORM 0.03
/* Rows that C is searched on before the exact passes, and the first step of those, 1/128 octave. */
#define SEARCH_ROWS 4096u
#define SEARCH_STEP 32

struct layout {
    uint64_t queries, lanes, scores, ids, thresholds, end;
    uint64_t scores_each; /* int16 of one head */
};

static uint64_t pad64(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* tokens: of the rows scanned at most. */
static struct layout lay_out(uint32_t tokens)
{
    struct layout layout = {.scores_each = pad64(tokens) + 2 * AN_SKETCH_BLOCK};
    uint64_t drawn_bytes =
        pad64(2 * (layout.scores_each + AN_SKETCH_BLOCK + AN_SKETCH_CERTAIN_MAX));
    layout.lanes = HEADS_MAX * sizeof(struct an_sketch_query);
    layout.scores = layout.lanes + 16ull * PP_HEAD_DIM_MAX * sizeof(float);
    layout.ids = layout.scores + HEADS_MAX * layout.scores_each * sizeof(int16_t);
    layout.thresholds = layout.ids + drawn_bytes;
    layout.end = layout.thresholds + drawn_bytes;
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

/* A draw in the making: rows [first, first + count) in whole blocks, of which [begin, end) count.
 */
struct draw {
    const struct an_sketch *sketch;
    const struct an_index_params *params;
    const struct an_index_query *query;
    const struct an_sketch_kernels *kernels;
    struct layout layout;
    uint8_t *scratch;
    uint32_t begin, end, first, count;
    int16_t *logs; /* [count]: log g in 1/128 octave */
    uint16_t *ids, *thresholds;
    uint32_t drawn;
};

/* The share of the residual that the codes' scores are trusted with. */
static float beta_of(uint32_t bits)
{
    return bits == 1 ? 0.7f : bits == 2 ? 0.9f : 1.0f;
}

/* Rotates the heads' balanced queries in lanes and makes their look-up tables. */
static struct an_sketch_query *prepare_queries(const struct draw *draw)
{
    const struct an_sketch *sketch = draw->sketch;
    const struct an_sketch_shape *shape = &sketch->shape;
    struct an_sketch_query *queries = (struct an_sketch_query *)(void *)draw->scratch;
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
        an_sketch_tables_make(shape, r, &queries[h]);
        an_sketch_query_scale(&queries[h], beta_of(shape->bits) * sketch->factor_max);
    }
    return queries;
}

/* Scores of every row and head, then log g. */
static void score(struct draw *draw)
{
    uint32_t heads = draw->query->heads;
    const struct an_sketch_query *queries = prepare_queries(draw);
    struct an_sketch_scores scores[HEADS_MAX];
    const int16_t *pointers[HEADS_MAX];
    int16_t shifts[HEADS_MAX];
    int16_t *memory = (int16_t *)(void *)(draw->scratch + draw->layout.scores);
    for (uint32_t h = 0; h < heads; ++h) {
        scores[h].scores = memory + h * draw->layout.scores_each;
        pointers[h] = scores[h].scores;
    }
    draw->kernels->scan(&draw->sketch->shape, draw->sketch->stream, draw->begin, draw->end, queries,
                        heads, scores);
    for (uint32_t h = 0; h < heads; ++h) {
        shifts[h] = (int16_t)lrintf(-128.0f * log2f(scores[h].sum / (float)(1.0 - UNIFORM)));
    }
    double uniform = UNIFORM / (double)(draw->end - draw->begin);
    draw->kernels->combine(pointers, shifts, heads, (int16_t)lrint(128.0 * log2(uniform)),
                           draw->count, memory);
    draw->logs = memory;
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

/* Takes the rows that are read for certain out of the draw; ids into certain_out. */
static uint32_t take_certain(const struct draw *draw, uint16_t *certain_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < draw->sketch->certain_count; ++i) {
        uint32_t row = draw->sketch->certain[i];
        if (row >= draw->begin && row < draw->end) {
            certain_out[count++] = (uint16_t)row;
            draw->logs[row - draw->first] = AN_SKETCH_NONE;
        }
    }
    return count;
}

/* Everything but the draw: log g of all rows but those in certain_out. */
static struct draw begin_draw(const struct an_sketch *sketch, const struct an_index_params *params,
                              uint32_t begin, uint32_t end, const struct an_index_query *query,
                              void *scratch, uint16_t *certain_out, uint32_t *certain_count_out)
{
    PP_ASSERT(query->heads >= 1 && query->heads <= HEADS_MAX);
    struct draw draw = {.sketch = sketch,
                        .params = params,
                        .query = query,
                        .kernels = an_sketch_kernels_get(),
                        .layout = lay_out(sketch->tokens),
                        .scratch = scratch,
                        .begin = begin,
                        .end = end};
    draw.first = begin / AN_SKETCH_BLOCK * AN_SKETCH_BLOCK;
    draw.count = (end + AN_SKETCH_BLOCK - 1) / AN_SKETCH_BLOCK * AN_SKETCH_BLOCK - draw.first;
    draw.ids = (uint16_t *)(void *)(draw.scratch + draw.layout.ids);
    draw.thresholds = (uint16_t *)(void *)(draw.scratch + draw.layout.thresholds);
    score(&draw);
    *certain_count_out = take_certain(&draw, certain_out);
    return draw;
}

/* The whole sample: ids, the drawn ascending, then those read for certain; thresholds beside. */
static struct draw draw_rows(const struct an_sketch *sketch, const struct an_index_params *params,
                             uint32_t begin, uint32_t end, const struct an_index_query *query,
                             void *scratch)
{
    uint16_t certain[AN_SKETCH_CERTAIN_MAX];
    uint32_t certain_count;
    struct draw draw =
        begin_draw(sketch, params, begin, end, query, scratch, certain, &certain_count);
    float budget = query->rows_share * (float)(end - begin) - (float)certain_count;
    uint32_t held = (uint32_t)(query->draw.first + draw.first);
    if (certain_count < end - begin) {
        draw.drawn = draw.kernels->draw(
            draw.logs, draw.count, find_shift(&draw, budget > 1.0f ? budget : 1.0f),
            query->draw.seed, held, draw.first, draw.ids, draw.thresholds);
    }
    for (uint32_t i = 0; i < certain_count; ++i) {
        draw.ids[draw.drawn] = certain[i];
        draw.thresholds[draw.drawn++] = 0;
    }
    return draw;
}

const int16_t *an_sketch_logs(const struct an_sketch *sketch, const struct an_index_params *params,
                              uint32_t begin, uint32_t end, const struct an_index_query *query,
                              void *scratch)
{
    uint16_t certain[AN_SKETCH_CERTAIN_MAX];
    uint32_t certain_count;
    struct draw draw =
        begin_draw(sketch, params, begin, end, query, scratch, certain, &certain_count);
    return draw.logs + (begin - draw.first);
}

void an_sketch_attend(const struct an_sketch *sketch, const struct an_index_params *params,
                      const struct an_rows *rows, uint32_t begin, uint32_t end,
                      const struct an_index_query *query, void *scratch,
                      struct an_accumulator *accumulators)
{
    if (begin >= end) {
        return;
    }
    struct draw draw = draw_rows(sketch, params, begin, end, query, scratch);
    for (uint32_t i = 0; i < draw.drawn && query->rows_read != NULL; ++i) {
        query->rows_read[draw.ids[i] / 64] |= 1ull << (draw.ids[i] % 64);
    }
    draw.kernels->attend(rows, draw.ids, draw.thresholds, draw.drawn, query->q_scaled, query->heads,
                         accumulators);
}

uint32_t an_sketch_sample(const struct an_sketch *sketch, const struct an_index_params *params,
                          uint32_t begin, uint32_t end, const struct an_index_query *query,
                          void *scratch, uint16_t *ids_out, float *log_u_out)
{
    if (begin >= end) {
        return 0;
    }
    struct draw draw = draw_rows(sketch, params, begin, end, query, scratch);
    for (uint32_t i = 0; i < draw.drawn; ++i) {
        float log_u =
            draw.thresholds[i] == 0 ? 0.0f : (float)log((double)draw.thresholds[i] / 65536.0);
        uint32_t at = i;
        for (; at > 0 && ids_out[at - 1] > draw.ids[i]; --at) {
            ids_out[at] = ids_out[at - 1];
            log_u_out[at] = log_u_out[at - 1];
        }
        ids_out[at] = draw.ids[i];
        log_u_out[at] = log_u;
    }
    return draw.drawn;
}
