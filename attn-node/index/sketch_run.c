/*
 * What a sample of sketches does with one run of rows: scores by codes, log g, sum u, the draw and
 * the attend. Everything is a function of the run and of what the steps before have settled, so
 * that it does not matter which thread does it. See sketch_sample.h.
 */
#include <math.h>
#include <string.h>

#include "attn-node/index/sketch_sample.h"

#define HEADS_MAX AN_INDEX_HEADS_MAX
/* The share of the budget's unit that is uniform over rows: e of sketch.c. */
#define UNIFORM 0.03
#define OCTAVE  128.0

/* A thread's working memory. */
struct own {
    struct an_sketch_query queries[HEADS_MAX]; /* for a segment of another balance */
    float lanes[16 * PP_HEAD_DIM_MAX] __attribute__((aligned(64)));
    uint16_t ids[AN_SKETCH_RUN_ROWS + AN_SKETCH_BLOCK + AN_SKETCH_CERTAIN_MAX];
    uint16_t thresholds[AN_SKETCH_RUN_ROWS + AN_SKETCH_BLOCK + AN_SKETCH_CERTAIN_MAX];
};

uint64_t an_sketch_own_bytes(void)
{
    return an_sketch_pad(sizeof(struct own));
}

/* The share of the residual that the codes' scores are trusted with. */
static float beta_of(uint32_t bits)
{
    return bits == 1 ? 0.7f : bits == 2 ? 0.9f : 1.0f;
}

void an_sketch_rotate(const struct an_sketch_sample *sample, const struct an_sketch *sketch,
                      float *lanes)
{
    const struct an_sketch_shape *shape = &sketch->shape;
    memset(lanes, 0, 16ull * shape->padded * sizeof(float));
    for (uint32_t h = 0; h < sample->query.heads; ++h) {
        const float *q = sample->query.q_scaled + (uint64_t)h * shape->dim;
        for (uint32_t d = 0; d < shape->dim; ++d) {
            float balance = sketch->balance != NULL ? sketch->balance[d] : 1.0f;
            lanes[d * 16 + h] = q[d] * balance;
        }
    }
    sample->kernels->rotate(sample->params->signs, shape->padded, lanes);
}

void an_sketch_make_tables(const struct an_sketch_shape *shape, const float *lanes, uint32_t head,
                           struct an_sketch_query *queries)
{
    float r[PP_HEAD_DIM_MAX];
    for (uint32_t d = 0; d < shape->padded; ++d) {
        r[d] = lanes[d * 16 + head];
    }
    an_sketch_tables_make(shape, r, &queries[head]);
}

static bool same_balance(const struct an_sketch *a, const struct an_sketch *b)
{
    if (a->balance == NULL || b->balance == NULL) {
        return a->balance == b->balance;
    }
    return a == b || memcmp(a->balance, b->balance, a->shape.dim * sizeof(float)) == 0;
}

/* The sample's tables, or where a layer got its balance late, some of the thread's own. */
static const struct an_sketch_query *queries_for(const struct an_sketch_sample *sample,
                                                 const struct an_sketch *sketch, struct own *own)
{
    if (same_balance(sample->balanced, sketch)) {
        return sample->queries;
    }
    an_sketch_rotate(sample, sketch, own->lanes);
    for (uint32_t h = 0; h < sample->query.heads; ++h) {
        an_sketch_make_tables(&sketch->shape, own->lanes, h, own->queries);
    }
    return own->queries;
}

void an_sketch_scan_run(struct an_sketch_sample *sample, struct an_sketch_run *run, void *own)
{
    const struct an_sketch *sketch = an_sketch_of(run->view);
    const struct an_sketch_query *queries = queries_for(sample, sketch, own);
    int16_t *scores = an_sketch_run_scores(sample, run);
    struct an_sketch_scores of_heads[HEADS_MAX];
    uint32_t heads = sample->query.heads;
    float unit = beta_of(sketch->shape.bits) * sketch->factor_max;
    for (uint32_t h = 0; h < heads; ++h) {
        of_heads[h].scores = scores + (uint64_t)h * an_sketch_run_rows(run);
        of_heads[h].scale = an_sketch_scale_of(&queries[h], unit);
    }
    sample->kernels->scan(&sketch->shape, sketch->stream, run->begin, run->end, queries, heads,
                          of_heads);
    for (uint32_t h = 0; h < heads; ++h) {
        run->weights[h] = of_heads[h].sum;
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

static void weigh_view(struct an_sketch_sample *sample, struct an_index_view *view,
                       const double *weights)
{
    const struct an_sketch *sketch = an_sketch_of(view);
    for (uint32_t h = 0; h < sample->query.heads; ++h) {
        const float *q = sample->query.q_scaled + (uint64_t)h * sketch->shape.dim;
        view->masses[h] = (struct an_index_mass){
            .centre = OCTAVE * M_LOG2E * centre_score(sketch, q), .log = OCTAVE * log2(weights[h])};
        an_sketch_add_mass(&sample->masses[h], &view->masses[h]);
    }
}

void an_sketch_weigh(struct an_sketch_sample *sample)
{
    for (uint32_t h = 0; h < sample->query.heads; ++h) {
        sample->masses[h] = (struct an_index_mass){.log = -INFINITY};
    }
    const struct an_sketch_run *run = sample->runs;
    const struct an_sketch_run *end = run + sample->run_count;
    for (struct an_index_view *view = sample->views; view != NULL; view = view->next) {
        double weights[HEADS_MAX] = {0.0};
        bool any = run < end && run->view == view;
        for (; run < end && run->view == view; ++run) {
            for (uint32_t h = 0; h < sample->query.heads; ++h) {
                weights[h] += (double)run->weights[h];
            }
        }
        if (any) {
            weigh_view(sample, view, weights);
        }
    }
}

static int16_t to_shift(double shift)
{
    return (int16_t)lrint(shift < -INT16_MAX ? -INT16_MAX : shift > INT16_MAX ? INT16_MAX : shift);
}

void an_sketch_combine_rows(const struct an_sketch_sample *sample, const struct an_sketch_run *run,
                            uint32_t from, uint32_t count, int16_t *into)
{
    const struct an_sketch *sketch = an_sketch_of(run->view);
    const int16_t *scores = an_sketch_run_scores(sample, run) + from;
    const int16_t *of_heads[HEADS_MAX];
    int16_t shifts[HEADS_MAX];
    for (uint32_t h = 0; h < sample->query.heads; ++h) {
        of_heads[h] = scores + (uint64_t)h * an_sketch_run_rows(run);
        shifts[h] = to_shift(run->view->masses[h].centre - sample->masses[h].centre -
                             sample->masses[h].log + OCTAVE * log2(1.0 - UNIFORM));
    }
    int16_t floor = to_shift(OCTAVE * log2(UNIFORM / (double)sample->rows));
    sample->kernels->combine(of_heads, shifts, sample->query.heads, floor, count, into);
    uint32_t first = an_sketch_first_row(run->begin) + from;
    for (uint32_t i = 0; i < sketch->certain_count; ++i) {
        uint32_t row = sketch->certain[i];
        if (row >= first && row - first < count) {
            into[row - first] = AN_SKETCH_NONE;
        }
    }
}

void an_sketch_sum_run(const struct an_sketch_sample *sample, struct an_sketch_run *run)
{
    memset(run->sums, 0, sizeof(run->sums));
    sample->kernels->sum_u(an_sketch_run_scores(sample, run), an_sketch_run_rows(run),
                           sample->search.shifts, run->sums);
}

uint32_t an_sketch_draw_run(const struct an_sketch_sample *sample, const struct an_sketch_run *run,
                            void *own, const uint16_t **ids_out, const uint16_t **thresholds_out)
{
    const struct an_sketch *sketch = an_sketch_of(run->view);
    uint16_t *ids = ((struct own *)own)->ids;
    uint16_t *thresholds = ((struct own *)own)->thresholds;
    uint32_t first = an_sketch_first_row(run->begin);
    uint32_t drawn = sample->kernels->draw(
        an_sketch_run_scores(sample, run), an_sketch_run_rows(run), sample->shift,
        sample->query.draw.seed, (uint32_t)(run->view->first + first), first, ids, thresholds);
    for (uint32_t i = 0; i < sketch->certain_count; ++i) {
        if (sketch->certain[i] >= run->begin && sketch->certain[i] < run->end) {
            ids[drawn] = sketch->certain[i];
            thresholds[drawn++] = 0;
        }
    }
    *ids_out = ids;
    *thresholds_out = thresholds;
    return drawn;
}

void an_sketch_attend_run(const struct an_sketch_sample *sample, const struct an_sketch_run *run,
                          void *own)
{
    const struct an_index_view *view = run->view;
    const uint16_t *ids;
    const uint16_t *thresholds;
    uint32_t heads = sample->query.heads;
    for (uint32_t h = 0; h < heads && run->accumulators != view->accumulators; ++h) {
        an_accumulator_clear(&run->accumulators[h], view->rows.dim);
    }
    uint32_t drawn = an_sketch_draw_run(sample, run, own, &ids, &thresholds);
    for (uint32_t i = 0; i < drawn && view->rows_read != NULL; ++i) {
        view->rows_read[ids[i] / 64] |= 1ull << (ids[i] % 64);
    }
    sample->kernels->attend(&view->rows, ids, thresholds, drawn, sample->query.q_scaled, heads,
                            run->accumulators);
}
