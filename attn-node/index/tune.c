/*
 * The two passes over rows. See tune.h; what is chosen by their sums is in tune_choose.c. Scores
 * and distances come from the kernels, block by block, so that rows are in a cache for every head.
 */
#include "attn-node/index/tune.h"

#include <math.h>
#include <string.h>

#include "attn-node/index/sketch.h"
#include "common/base/limits.h"

#define HEADS_MAX  16u
#define BLOCK_ROWS 1024u
#define BIN_UNITS  16 /* of a log g in 1/128 octave: an eighth of an octave a bin */

static const float shares[AN_TUNE_SHARES] = {0.0025f, 0.005f, 0.0075f, 0.01f, 0.015f, 0.02f,
                                             0.03f,   0.04f,  0.06f,   0.08f, 0.12f,  0.16f,
                                             0.2f,    0.25f,  0.35f,   0.5f};

/* A query head: its exact answer over all views, then its sums of them. */
struct lane {
    float o[PP_HEAD_DIM_MAX];
    float lse, norm_square, q_norm;
    double error[AN_TUNE_BINS];
};

struct scratch {
    struct lane lanes[HEADS_MAX];
    double rows[AN_TUNE_BINS]; /* of all views */
    double g[AN_TUNE_BINS];    /* sketch: of a bin's rows */
    double distances[BLOCK_ROWS], centred[BLOCK_ROWS];
    float scores[BLOCK_ROWS];
    uint16_t ids[BLOCK_ROWS];
    uint16_t bins[BLOCK_ROWS]; /* AN_TUNE_BINS: read for certain */
};

static uint64_t own_bytes(void)
{
    return (sizeof(struct scratch) + 63u) & ~63ull;
}

uint64_t an_tune_scratch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens)
{
    (void)dim;
    bool sketch = params->estimator.kind == PP_SKETCH;
    return own_bytes() + (sketch ? an_index_query_scratch_bytes(params, tokens) : 0);
}

float an_tune_share(uint32_t index)
{
    return shares[index];
}

/* One query row's heads [first, first + count) and their exact answers. */
struct turn {
    const struct an_tune_input *input;
    const struct an_kernels *kernels;
    struct scratch *scratch;
    void *index_scratch;
    const float *q, *q_scaled; /* [count][dim] */
    uint32_t count, dim;
    struct an_tune_head *heads;
};

static void attend_exactly(const struct turn *turn)
{
    struct an_accumulator sums[HEADS_MAX];
    for (uint32_t h = 0; h < turn->count; ++h) {
        sums[h] = (struct an_accumulator){.o = turn->scratch->lanes[h].o};
        an_accumulator_clear(&sums[h], turn->dim);
    }
    for (uint32_t i = 0; i < turn->input->view_count; ++i) {
        const struct an_tune_view *view = &turn->input->views[i];
        turn->kernels->attend_exact(&view->rows, view->begin, view->end, turn->q_scaled,
                                    turn->count, sums);
    }
    for (uint32_t h = 0; h < turn->count; ++h) {
        struct lane *lane = &turn->scratch->lanes[h];
        double norm = 0.0;
        double q_norm = 0.0;
        for (uint32_t d = 0; d < turn->dim; ++d) {
            lane->o[d] /= sums[h].sum;
            norm += (double)lane->o[d] * (double)lane->o[d];
            float q = turn->q_scaled[(uint64_t)h * turn->dim + d];
            q_norm += (double)q * (double)q;
        }
        lane->lse = sums[h].m + logf(sums[h].sum);
        lane->norm_square = (float)norm;
        lane->q_norm = (float)sqrt(q_norm);
    }
}

static float dot(const float *a, const float *b, uint32_t dim)
{
    float sum = 0.0f;
    for (uint32_t d = 0; d < dim; ++d) {
        sum += a[d] * b[d];
    }
    return sum;
}

/* The bins of a block's rows by their cosine to a head's query; scores are there. */
static void bins_by_cosine(const struct turn *turn, const struct an_tune_view *view, uint32_t count,
                           uint32_t h)
{
    struct scratch *scratch = turn->scratch;
    float of_centre = dot(turn->q_scaled + (uint64_t)h * turn->dim, view->centre, turn->dim);
    float q_norm = scratch->lanes[h].q_norm;
    for (uint32_t i = 0; i < count; ++i) {
        double size = (double)q_norm * sqrt(scratch->centred[i]);
        double cosine = size > 0.0 ? (double)(scratch->scores[i] - of_centre) / size : 0.0;
        int32_t bin = (int32_t)((cosine + 1.0) * (AN_TUNE_BINS / 2.0));
        bin = bin < 0 ? 0 : bin >= (int32_t)AN_TUNE_BINS ? (int32_t)AN_TUNE_BINS - 1 : bin;
        scratch->bins[i] = (uint16_t)bin;
    }
}

static void bins_by_log(const int16_t *logs, uint32_t count, uint16_t *bins)
{
    for (uint32_t i = 0; i < count; ++i) {
        int32_t bin = logs[i] < 0 ? -logs[i] / BIN_UNITS : 0;
        bin = bin >= (int32_t)AN_TUNE_BINS ? (int32_t)AN_TUNE_BINS - 1 : bin;
        bins[i] = logs[i] == AN_SKETCH_NONE ? (uint16_t)AN_TUNE_BINS : (uint16_t)bin;
    }
}

/* Adds a block's w^2 |v - o|^2 / |o|^2 of one head to its bins. */
static void add_errors(const struct turn *turn, const struct an_tune_view *view, uint32_t begin,
                       uint32_t count, uint32_t h)
{
    struct scratch *scratch = turn->scratch;
    struct lane *lane = &scratch->lanes[h];
    struct an_rows values = view->rows;
    values.base += values.v_offset;
    turn->kernels->square_distances(&values, begin, begin + count, lane->o, scratch->distances);
    double inverse = lane->norm_square > 0.0f ? 1.0 / (double)lane->norm_square : 0.0;
    for (uint32_t i = 0; i < count; ++i) {
        double weight = exp((double)(scratch->scores[i] - lane->lse));
        if (scratch->bins[i] < AN_TUNE_BINS) {
            lane->error[scratch->bins[i]] += weight * weight * scratch->distances[i] * inverse;
        }
    }
}

static void score_block(const struct turn *turn, const struct an_tune_view *view, uint32_t begin,
                        uint32_t count, uint32_t h)
{
    for (uint32_t i = 0; i < count; ++i) {
        turn->scratch->ids[i] = (uint16_t)(begin + i);
    }
    turn->kernels->score_gather(&view->rows, turn->scratch->ids, count, 0,
                                turn->q_scaled + (uint64_t)h * turn->dim, turn->scratch->scores);
}

static void add_lsh_view(const struct turn *turn, const struct an_tune_view *view)
{
    struct scratch *scratch = turn->scratch;
    for (uint32_t begin = view->begin; begin < view->end; begin += BLOCK_ROWS) {
        uint32_t count = view->end - begin < BLOCK_ROWS ? view->end - begin : BLOCK_ROWS;
        turn->kernels->square_distances(&view->rows, begin, begin + count, view->centre,
                                        scratch->centred);
        for (uint32_t h = 0; h < turn->count; ++h) {
            score_block(turn, view, begin, count, h);
            bins_by_cosine(turn, view, count, h);
            for (uint32_t i = 0; i < count; ++i) {
                turn->heads[h].rows[scratch->bins[i]] += 1.0;
            }
            add_errors(turn, view, begin, count, h);
        }
    }
}

static double bounded(double u)
{
    return u < 1.0 ? u : 1.0;
}

/* C at which the rows of the bins are `budget` in expectation. */
static double find_c(const struct scratch *scratch, double budget)
{
    double low = -1.0;
    double high = AN_TUNE_BINS * BIN_UNITS / 128.0 + 1.0;
    for (uint32_t i = 0; i < 24; ++i) {
        double middle = (low + high) / 2.0;
        double c = exp2(middle);
        double sum = 0.0;
        for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
            sum += scratch->rows[b] * bounded(c * scratch->g[b]);
        }
        low = sum < budget ? middle : low;
        high = sum < budget ? high : middle;
    }
    return exp2(high);
}

/* Adds every budget's error, from the bins of all views. */
static void add_shares(const struct turn *turn, uint64_t rows, double certain)
{
    struct scratch *scratch = turn->scratch;
    for (uint32_t s = 0; s < AN_TUNE_SHARES; ++s) {
        double budget = (double)shares[s] * (double)rows - certain;
        double c = find_c(scratch, budget > 1.0 ? budget : 1.0);
        for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
            double u = bounded(c * scratch->g[b]);
            for (uint32_t h = 0; h < turn->count && u < 1.0; ++h) {
                turn->heads[h].share_error[s] += scratch->lanes[h].error[b] * (1.0 - u) / u;
            }
        }
    }
}

static struct an_index_view index_view(const struct an_tune_view *view)
{
    return (struct an_index_view){
        .index = view->index, .rows = view->rows, .begin = view->begin, .end = view->end};
}

/* A view's rows into bins by log g; returns how many are read for certain. */
static double add_sketch_view(const struct turn *turn, const struct an_tune_view *view,
                              const struct an_index_query *query,
                              const struct an_index_mass *masses, uint64_t rows)
{
    struct scratch *scratch = turn->scratch;
    struct an_index_view own = index_view(view);
    const int16_t *logs =
        an_sketch_logs(turn->input->params, &own, query, masses, rows, turn->index_scratch);
    double certain = 0.0;
    for (uint32_t begin = view->begin; begin < view->end; begin += BLOCK_ROWS) {
        uint32_t count = view->end - begin < BLOCK_ROWS ? view->end - begin : BLOCK_ROWS;
        bins_by_log(logs + (begin - view->begin), count, scratch->bins);
        for (uint32_t i = 0; i < count; ++i) {
            bool drawn = scratch->bins[i] < AN_TUNE_BINS;
            scratch->rows[drawn ? scratch->bins[i] : 0] += drawn ? 1.0 : 0.0;
            certain += drawn ? 0.0 : 1.0;
        }
        for (uint32_t h = 0; h < turn->count; ++h) {
            score_block(turn, view, begin, count, h);
            add_errors(turn, view, begin, count, h);
        }
    }
    return certain;
}

/* All views that have an index are one sample. */
static void add_sketch(const struct turn *turn)
{
    struct an_index_query query = {
        .heads = turn->count, .q = turn->q, .q_scaled = turn->q_scaled, .rows_share = 1.0f};
    struct an_index_mass masses[HEADS_MAX];
    uint64_t rows = 0;
    double certain = 0.0;
    for (uint32_t h = 0; h < turn->count; ++h) {
        masses[h] = (struct an_index_mass){.log = -INFINITY};
    }
    for (uint32_t i = 0; i < turn->input->view_count; ++i) {
        const struct an_tune_view *view = &turn->input->views[i];
        if (view->index != NULL) {
            struct an_index_view own = index_view(view);
            an_sketch_masses(turn->input->params, &own, &query, turn->index_scratch);
            for (uint32_t h = 0; h < turn->count; ++h) {
                an_sketch_add_mass(&masses[h], &own.masses[h]);
            }
            rows += view->end - view->begin;
        }
    }
    memset(turn->scratch->rows, 0, sizeof(turn->scratch->rows));
    for (uint32_t i = 0; i < turn->input->view_count; ++i) {
        const struct an_tune_view *view = &turn->input->views[i];
        if (view->index != NULL) {
            certain += add_sketch_view(turn, view, &query, masses, rows);
        }
    }
    if (rows > 0) {
        add_shares(turn, rows, certain);
    }
}

static void add_turn(const struct turn *turn)
{
    bool sketch = turn->input->params->estimator.kind == PP_SKETCH;
    attend_exactly(turn);
    for (uint32_t h = 0; h < turn->count; ++h) {
        memset(turn->scratch->lanes[h].error, 0, sizeof(turn->scratch->lanes[h].error));
        ++turn->heads[h].queries;
    }
    for (uint32_t i = 0; i < turn->input->view_count; ++i) {
        const struct an_tune_view *view = &turn->input->views[i];
        if (view->index == NULL) {
            for (uint32_t h = 0; h < turn->count; ++h) {
                turn->heads[h].certain += view->end - view->begin;
            }
        } else if (!sketch) {
            add_lsh_view(turn, view);
        }
    }
    if (sketch) {
        add_sketch(turn);
    } else {
        for (uint32_t h = 0; h < turn->count; ++h) {
            for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
                turn->heads[h].error[b] += turn->scratch->lanes[h].error[b];
            }
        }
    }
}

void an_tune_add(const struct an_tune_input *input, void *scratch, struct an_tune_head *heads)
{
    uint32_t dim = input->views[0].rows.dim;
    struct scratch *own = scratch;
    for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
        own->g[b] = exp2(-(b + 0.5) * BIN_UNITS / 128.0);
    }
    for (uint32_t row = 0; row < input->q_rows; ++row) {
        for (uint32_t first = 0; first < input->group; first += HEADS_MAX) {
            uint64_t at = ((uint64_t)row * input->group + first) * dim;
            uint32_t left = input->group - first;
            struct turn turn = {
                .input = input,
                .kernels = an_kernels_get(),
                .scratch = scratch,
                .index_scratch = (uint8_t *)scratch + own_bytes(),
                .q = input->q + at,
                .q_scaled = input->q_scaled + at,
                .count = left < HEADS_MAX ? left : HEADS_MAX,
                .dim = dim,
                .heads = heads + first,
            };
            add_turn(&turn);
        }
    }
}
