/*
 * A sample of sketches from its views to their sums, step by step. The steps are functions over
 * runs; what lies between two of them (weights added up, C found, runs merged) goes over the runs
 * in order, by whichever thread ended the step. On the walk: sketch.c, and for samples that a team
 * makes together split.c > sketch_sample > sketch_run, sketch_search. See sketch_sample.h.
 */
#include "attn-node/index/sketch_sample.h"

#include "common/base/assert.h"

#define HEADS_MAX     AN_INDEX_HEADS_MAX
#define QUERIES_BYTES (HEADS_MAX * sizeof(struct an_sketch_query))
#define LANES_BYTES   (16ull * PP_HEAD_DIM_MAX * sizeof(float))

static uint64_t scores_count(uint32_t tokens)
{
    return HEADS_MAX * (an_sketch_pad(tokens) + 2 * AN_SKETCH_BLOCK);
}

uint64_t an_sketch_rows_at_once(uint32_t heads, uint32_t tokens)
{
    return scores_count(tokens) / heads;
}

/* A view has one run, and another for every AN_SKETCH_RUN_ROWS rows behind its first ones; only
 * those have sums of their own. */
uint64_t an_sketch_query_scratch_bytes(uint32_t tokens)
{
    uint64_t more = scores_count(tokens) / AN_SKETCH_RUN_ROWS; /* of one head, or heads of them */
    uint64_t sum_bytes = 2ull * PP_HEAD_DIM_MAX * sizeof(float) + sizeof(struct an_accumulator);
    return an_sketch_own_bytes() + an_sketch_pad(sizeof(struct an_sketch_sample)) + QUERIES_BYTES +
           LANES_BYTES + an_sketch_pad((AN_INDEX_VIEWS_MAX + more) * sizeof(struct an_sketch_run)) +
           an_sketch_pad(more * sum_bytes) + 2 * 64 /* to align them */ +
           scores_count(tokens) * sizeof(int16_t);
}

/* In whole blocks. */
uint32_t an_sketch_view_rows(uint32_t begin, uint32_t end)
{
    return begin < end ? (uint32_t)an_sketch_pad(end) - an_sketch_first_row(begin) : 0;
}

/* Appends the view's runs; returns the rows behind them. */
static uint64_t cut_view(struct an_sketch_sample *sample, const struct an_index_view *view,
                         uint64_t before)
{
    const struct an_sketch *sketch = an_sketch_of(view);
    uint32_t border = an_sketch_first_row(view->begin) + AN_SKETCH_RUN_ROWS;
    for (uint32_t at = view->begin; at < view->end; border += AN_SKETCH_RUN_ROWS) {
        struct an_sketch_run *run = &sample->runs[sample->run_count++];
        run->view = view;
        run->begin = at;
        run->end = at = border < view->end ? border : view->end;
        run->before = before;
        run->accumulators = view->accumulators;
        before += an_sketch_run_rows(run);
    }
    sample->rows += view->begin < view->end ? view->end - view->begin : 0;
    for (uint32_t i = 0; i < sketch->certain_count; ++i) {
        sample->certain += sketch->certain[i] >= view->begin && sketch->certain[i] < view->end;
    }
    return before;
}

/* Whether the run is a further one of its view. */
static bool goes_on(const struct an_sketch_run *run)
{
    return run->begin > run->view->begin;
}

/* Sums for further runs; returns the memory behind them. */
static uint8_t *place_sums(struct an_sketch_sample *sample, uint8_t *memory)
{
    uint32_t heads = sample->query.heads;
    uint32_t count = 0;
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        count += goes_on(&sample->runs[i]) ? heads : 0;
    }
    struct an_accumulator *next = (struct an_accumulator *)(void *)memory;
    float *floats = (float *)(void *)(memory + an_sketch_pad(count * sizeof(*next)));
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        struct an_sketch_run *run = &sample->runs[i];
        if (!goes_on(run)) {
            continue;
        }
        uint32_t dim = run->view->rows.dim;
        run->accumulators = next;
        for (uint32_t h = 0; h < heads; ++h, ++next, floats += 2ull * dim) {
            next->o = floats;
            next->b1 = floats + dim;
        }
    }
    return (uint8_t *)floats;
}

static void begin_step(struct an_sketch_sample *sample, enum an_sketch_step step)
{
    sample->step = sample->run_count > 0 ? step : AN_SKETCH_DONE;
    sample->units = step == AN_SKETCH_TABLES ? sample->query.heads : sample->run_count;
    atomic_store_explicit(&sample->left, sample->units, memory_order_relaxed);
}

struct an_sketch_sample *an_sketch_begin(const struct an_index_params *params,
                                         struct an_index_view *views,
                                         const struct an_index_query *query, void *scratch)
{
    PP_ASSERT(query->heads >= 1 && query->heads <= HEADS_MAX);
    uint8_t *memory = (uint8_t *)scratch + an_sketch_own_bytes();
    struct an_sketch_sample *sample = (struct an_sketch_sample *)(void *)memory;
    *sample = (struct an_sketch_sample){.params = params,
                                        .kernels = an_sketch_kernels_get(),
                                        .query = *query,
                                        .views = views,
                                        .balanced = an_sketch_of(views)};
    memory += an_sketch_pad(sizeof(*sample));
    sample->queries = (struct an_sketch_query *)(void *)memory;
    sample->lanes = (float *)(void *)(memory + QUERIES_BYTES);
    sample->runs = (struct an_sketch_run *)(void *)(memory + QUERIES_BYTES + LANES_BYTES);
    uint64_t before = 0;
    uint32_t view_count = 0;
    for (const struct an_index_view *view = views; view != NULL; view = view->next) {
        ++view_count;
        before = cut_view(sample, view, before);
        PP_ASSERT(view_count <= AN_INDEX_VIEWS_MAX);
    }
    memory = (uint8_t *)sample->runs + an_sketch_pad(sample->run_count * sizeof(*sample->runs));
    memory = (uint8_t *)scratch +
             an_sketch_pad((uint64_t)(place_sums(sample, memory) - (uint8_t *)scratch));
    sample->scores = (int16_t *)(void *)memory;
    an_sketch_rotate(sample, sample->balanced, sample->lanes);
    begin_step(sample, AN_SKETCH_TABLES);
    return sample;
}

/* C, the next try of it, or neither where every row is read for certain. */
static void go_on_searching(struct an_sketch_sample *sample)
{
    bool found = sample->certain >= sample->rows || an_sketch_search_next(sample);
    begin_step(sample, found ? AN_SKETCH_DRAW : AN_SKETCH_SUM);
}

static void merge_runs(const struct an_sketch_sample *sample)
{
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        const struct an_sketch_run *run = &sample->runs[i];
        for (uint32_t h = 0; h < sample->query.heads && goes_on(run); ++h) {
            an_accumulator_merge(&run->view->accumulators[h], &run->accumulators[h],
                                 run->view->rows.dim);
        }
    }
}

static void close_step(struct an_sketch_sample *sample)
{
    switch (sample->step) {
    case AN_SKETCH_TABLES:
        begin_step(sample, AN_SKETCH_SCAN);
        break;
    case AN_SKETCH_SCAN:
        an_sketch_weigh(sample);
        an_sketch_search_begin(sample);
        begin_step(sample, AN_SKETCH_COMBINE);
        break;
    case AN_SKETCH_COMBINE:
    case AN_SKETCH_SUM:
        go_on_searching(sample);
        break;
    case AN_SKETCH_DRAW:
        merge_runs(sample);
        sample->step = AN_SKETCH_DONE;
        break;
    case AN_SKETCH_DONE:
        break;
    }
}

void an_sketch_do(struct an_sketch_sample *sample, uint32_t unit, void *own)
{
    struct an_sketch_run *run = &sample->runs[unit];
    switch (sample->step) {
    case AN_SKETCH_TABLES:
        an_sketch_make_tables(&sample->balanced->shape, sample->lanes, unit, sample->queries);
        break;
    case AN_SKETCH_SCAN:
        an_sketch_scan_run(sample, run, own);
        break;
    case AN_SKETCH_COMBINE:
        an_sketch_combine_rows(sample, run, 0, an_sketch_run_rows(run),
                               an_sketch_run_scores(sample, run));
        an_sketch_sum_run(sample, run);
        break;
    case AN_SKETCH_SUM:
        an_sketch_sum_run(sample, run);
        break;
    case AN_SKETCH_DRAW:
        an_sketch_attend_run(sample, run, own);
        break;
    case AN_SKETCH_DONE:
        break;
    }
    if (atomic_fetch_sub_explicit(&sample->left, 1, memory_order_acq_rel) == 1) {
        close_step(sample);
    }
}

void an_sketch_do_until(struct an_sketch_sample *sample, enum an_sketch_step until, void *own)
{
    while (sample->step < until) {
        uint32_t units = sample->units;
        for (uint32_t i = 0; i < units; ++i) {
            an_sketch_do(sample, i, own);
        }
    }
}
