/*
 * What an index of other settings would read and how far it would be off, from some late queries
 * and the rows themselves, without building it. A row of weight w = e^s / D drawn with probability
 * u adds u to the rows read and w^2 (1 - u) / u |v - o|^2 to the squared error of o; u is a
 * function of the row's cosine to the query (lsh) or of its share g of the proposal (sketch). So
 * two passes over the rows, exact sums and then histograms of w^2 |v - o|^2 / |o|^2 over what u is
 * a function of, answer for all settings. Formulas: ARCHITECTURE.md, estimators.
 * On the walk: exec's tune > index > kernels. Threads: the builder; pure over its arguments.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_TUNE_H
#define PIGPEN_ATTN_NODE_INDEX_TUNE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/index/index.h"

#define AN_TUNE_BINS   512u
#define AN_TUNE_SHARES 16u /* row budgets of a sketch that are tried */

/* Rows of one kv head: those of a view of a segment. */
struct an_tune_view {
    struct an_rows rows;
    uint32_t begin, end;
    const float *centre;          /* [dim] */
    const struct an_index *index; /* NULL: not there yet, its rows are read exactly */
};

/* One kv head of a layer, and queries of its group. */
struct an_tune_input {
    const struct an_index_params *params;
    const struct an_tune_view *views;
    uint32_t view_count;
    const float *q, *q_scaled; /* [q_rows][group][dim], scaled: times the softmax's scale */
    uint32_t q_rows, group;
};

/* What the rows said of one query head, summed over its queries. */
struct an_tune_head {
    double rows[AN_TUNE_BINS];          /* lsh: rows by cosine */
    double error[AN_TUNE_BINS];         /* lsh: w^2 |v - o|^2 / |o|^2 by cosine */
    double certain;                     /* rows that are read whatever the settings */
    double share_error[AN_TUNE_SHARES]; /* sketch: squared error relative to |o| by budget */
    uint32_t queries;
};

/* Scratch of an add over views of at most `tokens` rows, 64-byte aligned. */
uint64_t an_tune_scratch_bytes(const struct an_index_params *params, uint32_t dim, uint32_t tokens);

/* Adds what a kv head's rows say to its heads [group], which begin zeroed. At least one row. */
void an_tune_add(const struct an_tune_input *input, void *scratch, struct an_tune_head *heads);

/* The row budgets of share_error, ascending, the last is 1/2. */
float an_tune_share(uint32_t index);

/* Expected share of `tokens` rows that a query head reads by lsh, and its error relative to |o|,
 * with 1.2 for the correlation of its draws. */
void an_tune_lsh(const struct an_tune_head *head, uint64_t tokens, uint32_t k, uint32_t l,
                 uint32_t t, double *rows_share_out, double *error_out);
/* The error of a sketch at a budget, between the budgets tried by the power law of its neighbours.
 */
double an_tune_sketch(const struct an_tune_head *head, float rows_share);

/* What one layer should have: the median head meets target / 1.3. lsh: of K 6 to 11 and T 2 to 5
 * with the least L that does, the smallest index among those that read at most a quarter more rows
 * than the best. dense: no setting meets the target by reading less than half the rows. */
struct an_tune_choice {
    struct pp_estimator estimator; /* the layer's with (k, l, t) or rows_share replaced */
    bool dense;
    float rows_share, error;         /* predicted of it; of dense the best that was found */
    float rows_share_now, error_now; /* and of the layer's own settings */
    float error_worst;               /* of the head that is worst off under it */
};
/* heads [count], all of a layer; own: the layer's estimator with its budget. scratch [count]. */
void an_tune_choose(const struct pp_estimator *own, const struct an_tune_head *heads,
                    uint32_t count, uint64_t tokens, float target, double *scratch,
                    struct an_tune_choice *choice_out);

#endif
