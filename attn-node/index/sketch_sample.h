/*
 * A sample of sketches in the making, private to this folder: its views are cut into runs of rows,
 * and each step is done run by run (the first head by head), by one thread or by many, with the
 * same bits. sketch_sample.c has the steps, sketch_run.c what is done with a run, sketch_search.c
 * the search for C; the mathematics stands in sketch.c. Threads: a step's runs on any threads; the
 * last of them to end closes the step. All lies in the scratch that it was begun with.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_SKETCH_SAMPLE_H
#define PIGPEN_ATTN_NODE_INDEX_SKETCH_SAMPLE_H

#include <stdatomic.h>

#include "attn-node/index/sketch.h"

/* Rows of a run, from a view's first block on: a share of the work that pays for a hand-over. */
#define AN_SKETCH_RUN_ROWS 16384u

struct an_sketch_run {
    const struct an_index_view *view;
    uint32_t begin, end;                 /* rows of the segment */
    uint64_t before;                     /* rows of the runs before it, in whole blocks */
    float weights[AN_INDEX_HEADS_MAX];   /* sum of 2^(score / 128) of each head */
    float sums[3];                       /* of u, for the shifts that are tried */
    struct an_accumulator *accumulators; /* [heads]: a view's first run has the view's */
};

/* C as a shift of log g, in 1/128 octave: tried at `middle` and a step to either side. */
struct an_sketch_search {
    float budget;
    int32_t middle, step;
    int16_t shifts[3];
};

enum an_sketch_step {
    AN_SKETCH_TABLES,  /* of the queries, head by head instead of run by run */
    AN_SKETCH_SCAN,    /* scores and weights; then what all rows weigh */
    AN_SKETCH_COMBINE, /* log g in the place of scores, and sum u; then C or what is tried next */
    AN_SKETCH_SUM,     /* sum u; then as before */
    AN_SKETCH_DRAW,    /* draw and attend; then the runs of a view are merged in order */
    AN_SKETCH_DONE,
};

struct an_sketch_sample {
    const struct an_index_params *params;
    const struct an_sketch_kernels *kernels;
    struct an_index_query query;
    struct an_index_view *views;
    const struct an_sketch *balanced; /* that the queries' tables were made for */
    float *lanes;                     /* the rotated queries, [padded][16] */
    struct an_sketch_query *queries;  /* [heads] */
    struct an_sketch_run *runs;
    uint32_t run_count;
    int16_t *scores; /* a run's: [head][row] in whole blocks; log g where the first head's were */
    uint64_t rows, certain;
    struct an_index_mass masses[AN_INDEX_HEADS_MAX]; /* of all rows */
    struct an_sketch_search search;
    int16_t shift; /* C */
    enum an_sketch_step step;
    uint32_t units;        /* of the step: runs, or heads */
    _Atomic uint32_t left; /* of them have not ended */
};

/* Lays a sample over its views into the scratch, and rotates its queries. */
struct an_sketch_sample *an_sketch_begin(const struct an_index_params *params,
                                         struct an_index_view *views,
                                         const struct an_index_query *query, void *scratch);
/* One unit of the step; own: the calling thread's scratch, which may be the sample's. */
void an_sketch_do(struct an_sketch_sample *sample, uint32_t unit, void *own);
/* All units of all steps before `until`, by the calling thread. */
void an_sketch_do_until(struct an_sketch_sample *sample, enum an_sketch_step until, void *own);

/* The working memory of a thread: the begin of every scratch, of this many bytes. */
uint64_t an_sketch_own_bytes(void);
/* The sample's queries for the segment's balance, into lanes [padded][16], and the tables of one
 * head. */
void an_sketch_rotate(const struct an_sketch_sample *sample, const struct an_sketch *sketch,
                      float *lanes);
void an_sketch_make_tables(const struct an_sketch_shape *shape, const float *lanes, uint32_t head,
                           struct an_sketch_query *queries);
void an_sketch_scan_run(struct an_sketch_sample *sample, struct an_sketch_run *run, void *own);
/* Sets each view's masses, from the weights of its runs, and the sample's. */
void an_sketch_weigh(struct an_sketch_sample *sample);
/* log g of `count` rows from the run's row `from` on, both of whole blocks, into `into`, which may
 * be where their scores are or lie in front of all scores; AN_SKETCH_NONE where a row is read for
 * certain. */
void an_sketch_combine_rows(const struct an_sketch_sample *sample, const struct an_sketch_run *run,
                            uint32_t from, uint32_t count, int16_t *into);
void an_sketch_sum_run(const struct an_sketch_sample *sample, struct an_sketch_run *run);
/* The run's sample: the drawn ascending, then those read for certain; thresholds beside, both in
 * `own`. Returns their number. */
uint32_t an_sketch_draw_run(const struct an_sketch_sample *sample, const struct an_sketch_run *run,
                            void *own, const uint16_t **ids_out, const uint16_t **thresholds_out);
void an_sketch_attend_run(const struct an_sketch_sample *sample, const struct an_sketch_run *run,
                          void *own);

/* First shifts to try, from some of the rows. */
void an_sketch_search_begin(struct an_sketch_sample *sample);
/* From the runs' sums: true when C is found, else the next shifts to try. */
bool an_sketch_search_next(struct an_sketch_sample *sample);

/* Rows of a run, in whole blocks. */
static inline uint32_t an_sketch_run_rows(const struct an_sketch_run *run)
{
    return an_sketch_view_rows(run->begin, run->end);
}

/* Where a run's scores begin, and its log g. */
static inline int16_t *an_sketch_run_scores(const struct an_sketch_sample *sample,
                                            const struct an_sketch_run *run)
{
    return sample->scores + run->before * sample->query.heads;
}

static inline const struct an_sketch *an_sketch_of(const struct an_index_view *view)
{
    return (const struct an_sketch *)view->index;
}

static inline uint64_t an_sketch_pad(uint64_t bytes)
{
    return (bytes + 63) & ~63ull;
}

/* The row that the block of row `begin` begins with. */
static inline uint32_t an_sketch_first_row(uint32_t begin)
{
    return begin / AN_SKETCH_BLOCK * AN_SKETCH_BLOCK;
}

#endif
