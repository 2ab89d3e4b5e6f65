/*
 * The search for C of a sample of sketches, as a shift of log g: at which sum u over all rows is
 * the budget within half a per cent. Some of the rows say about where it lies; then all rows' sums
 * at three shifts hold it between two of them, or say where to look next. See sketch_sample.h.
 */
#include <math.h>

#include "attn-node/index/sketch_sample.h"

/* Rows that C is searched on first, and the first step of the exact sums, in 1/128 octave. */
#define SEARCH_ROWS   4096u
#define SEARCH_BLOCKS (SEARCH_ROWS / AN_SKETCH_BLOCK)
#define SEARCH_STEP   32
#define STEP_MAX      512
#define SHIFT_MAX     (1 << 12) /* log u + 32 octaves is more than the least log g */

/* log g of blocks spread over all rows; returns how many blocks, and how many there are. */
static uint32_t some_logs(const struct an_sketch_sample *sample, int16_t *logs,
                          uint32_t *blocks_out)
{
    const struct an_sketch_run *run = sample->runs;
    const struct an_sketch_run *last = run + sample->run_count - 1;
    uint32_t blocks = (uint32_t)((last->before + an_sketch_run_rows(last)) / AN_SKETCH_BLOCK);
    uint32_t taken = blocks < SEARCH_BLOCKS ? blocks : SEARCH_BLOCKS;
    for (uint32_t i = 0; i < taken; ++i) {
        uint64_t row = (uint64_t)i * blocks / taken * AN_SKETCH_BLOCK;
        while (row >= run->before + an_sketch_run_rows(run)) {
            ++run;
        }
        an_sketch_combine_rows(sample, run, (uint32_t)(row - run->before), AN_SKETCH_BLOCK,
                               logs + i * AN_SKETCH_BLOCK);
    }
    *blocks_out = blocks;
    return taken;
}

/* The least shift of those tried at which some of the rows reach their share of the budget. */
static int32_t search_roughly(const struct an_sketch_sample *sample)
{
    int16_t logs[SEARCH_ROWS];
    uint32_t blocks;
    uint32_t taken = some_logs(sample, logs, &blocks);
    float wanted = sample->search.budget * (float)taken / (float)blocks;
    int32_t low = 0;
    int32_t high = SHIFT_MAX;
    while (high - low > 4) {
        int32_t step = (high - low) / 4;
        int16_t shifts[3] = {(int16_t)(low + step), (int16_t)(low + 2 * step),
                             (int16_t)(low + 3 * step)};
        float sums[3] = {0.0f};
        sample->kernels->sum_u(logs, taken * AN_SKETCH_BLOCK, shifts, sums);
        int32_t below = (sums[0] < wanted) + (sums[1] < wanted) + (sums[2] < wanted);
        low += below * step;
        high = below < 3 ? low + step : high;
    }
    return low;
}

static void set_shifts(struct an_sketch_search *search)
{
    search->shifts[0] = (int16_t)(search->middle - search->step);
    search->shifts[1] = (int16_t)search->middle;
    search->shifts[2] = (int16_t)(search->middle + search->step);
}

void an_sketch_search_begin(struct an_sketch_sample *sample)
{
    struct an_sketch_search *search = &sample->search;
    float budget = sample->query.rows_share * (float)sample->rows - (float)sample->certain;
    search->budget = budget > 1.0f ? budget : 1.0f;
    search->middle = search_roughly(sample);
    search->step = SEARCH_STEP;
    set_shifts(search);
}

bool an_sketch_search_next(struct an_sketch_sample *sample)
{
    struct an_sketch_search *search = &sample->search;
    double sums[3] = {0.0};
    double budget = (double)search->budget;
    for (uint32_t i = 0; i < sample->run_count; ++i) {
        for (uint32_t j = 0; j < 3; ++j) {
            sums[j] += (double)sample->runs[i].sums[j];
        }
    }
    bool above = sums[0] > budget && search->middle > -1024;
    bool below = !above && sums[2] < budget && search->middle < 1 << 13;
    if (above || below) {
        search->middle += above ? -search->step : search->step;
        search->step *= search->step < STEP_MAX ? 2 : 1;
        set_shifts(search);
        return false;
    }
    uint32_t left = sums[1] < budget;
    double rise = sums[left + 1] - sums[left];
    double part = rise > 0.0 ? (budget - sums[left]) / rise : 0.5;
    part = part < 0.0 ? 0.0 : part > 1.0 ? 1.0 : part;
    sample->shift = (int16_t)(search->shifts[left] + (int32_t)lrint(part * search->step));
    return true;
}
