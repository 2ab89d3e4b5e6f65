/*
 * What the sums of a tune say of settings, and which settings a layer should have. See tune.h.
 */
#include <math.h>
#include <stdlib.h>

#include "attn-node/index/tune.h"
#include "common/base/limits.h"

#define MARGIN          1.3 /* a choice aims below its target by this */
#define LSH_CORRELATION 1.2 /* lsh's draws of a query are not independent */
#define K_MIN           6u
#define K_MAX           11u
#define T_MIN           2u
#define T_MAX           5u
#define L_MAX           512u
#define ROWS_SLACK      1.25 /* rows for a smaller index */
#define DENSE_SHARE     0.5  /* reading so much is not worth an index */

/* P(at least t of l tables collide), each with probability x: the upper sum where it is small, so
 * that nothing cancels. pp_log_u is the law; this is the same within 1e-9 and far cheaper. */
static double probability(double x, uint32_t l, uint32_t t)
{
    double odds = x / (1.0 - x);
    bool above = l * x < 1.0;
    double term = pow(1.0 - x, l);
    double sum = 0.0;
    for (uint32_t j = 0; j < t; ++j) {
        sum += term;
        term *= (l - j) * odds / (j + 1);
    }
    if (!above) {
        return 1.0 - sum;
    }
    sum = 0.0;
    for (uint32_t j = t; j <= l && term > 1e-12 * sum; ++j) {
        sum += term;
        term *= (l - j) * odds / (j + 1);
    }
    return sum;
}

/* u of every bin, at the middle of its cosines. */
static void fill_u(uint32_t k, uint32_t l, uint32_t t, double *u_out)
{
    for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
        double cosine = (b + 0.5) * (2.0 / AN_TUNE_BINS) - 1.0;
        u_out[b] = probability(pow(1.0 - acos(cosine) * M_1_PI, k), l, t);
    }
}

static double lsh_rows(const struct an_tune_head *head, uint64_t tokens, const double *u)
{
    double rows = head->certain;
    for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
        rows += head->rows[b] * u[b];
    }
    return rows / head->queries / (double)tokens;
}

static double lsh_error(const struct an_tune_head *head, const double *u)
{
    double square = 0.0;
    for (uint32_t b = 0; b < AN_TUNE_BINS; ++b) {
        square += head->error[b] > 0.0 ? head->error[b] * (1.0 - u[b]) / u[b] : 0.0;
    }
    return LSH_CORRELATION * sqrt(square / head->queries);
}

void an_tune_lsh(const struct an_tune_head *head, uint64_t tokens, uint32_t k, uint32_t l,
                 uint32_t t, double *rows_share_out, double *error_out)
{
    double u[AN_TUNE_BINS];
    fill_u(k, l, t, u);
    *rows_share_out = lsh_rows(head, tokens, u);
    *error_out = lsh_error(head, u);
}

double an_tune_sketch(const struct an_tune_head *head, float rows_share)
{
    uint32_t above = 1;
    while (above + 1 < AN_TUNE_SHARES && an_tune_share(above) < rows_share) {
        ++above;
    }
    double low = head->share_error[above - 1] / head->queries;
    double high = head->share_error[above] / head->queries;
    if (!(low > 0.0 && high > 0.0) || rows_share >= 1.0f) {
        return rows_share >= 1.0f ? 0.0 : sqrt(high);
    }
    double from = log((double)an_tune_share(above - 1));
    double part = (log((double)rows_share) - from) / (log((double)an_tune_share(above)) - from);
    return sqrt(exp(log(low) + part * (log(high) - log(low))));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Sorts the values. */
static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

/* All heads of a layer under some settings. */
struct outcome {
    double rows_share, error, worst;
};

struct layer {
    const struct an_tune_head *heads;
    uint32_t count;
    uint64_t tokens;
    double *values; /* [count] */
};

static struct outcome lsh_outcome(const struct layer *layer, uint32_t k, uint32_t l, uint32_t t)
{
    double u[AN_TUNE_BINS];
    struct outcome outcome = {0};
    fill_u(k, l, t, u);
    for (uint32_t h = 0; h < layer->count; ++h) {
        outcome.rows_share += lsh_rows(&layer->heads[h], layer->tokens, u) / layer->count;
        layer->values[h] = lsh_error(&layer->heads[h], u);
    }
    outcome.error = median(layer->values, layer->count);
    outcome.worst = layer->values[layer->count - 1];
    return outcome;
}

static struct outcome sketch_outcome(const struct layer *layer, float share)
{
    struct outcome outcome = {.rows_share = (double)share};
    for (uint32_t h = 0; h < layer->count; ++h) {
        layer->values[h] = an_tune_sketch(&layer->heads[h], share);
    }
    outcome.error = median(layer->values, layer->count);
    outcome.worst = layer->values[layer->count - 1];
    return outcome;
}

static void note(const struct outcome *outcome, struct an_tune_choice *choice)
{
    choice->rows_share = (float)outcome->rows_share;
    choice->error = (float)outcome->error;
    choice->error_worst = (float)outcome->worst;
}

/* Bytes a token. */
static double index_bytes(const struct layer *layer, uint32_t k, uint32_t l)
{
    double segment = layer->tokens < PP_SEGMENT_TOKENS_MAX ? (double)layer->tokens
                                                           : (double)PP_SEGMENT_TOKENS_MAX;
    return 2.0 * l + 2.0 + 2.0 * l * (double)(1u << k) / segment;
}

/* The least number of tables that meets the target; L_MAX + 1: none. */
static uint32_t least_tables(const struct layer *layer, uint32_t k, uint32_t t, double target)
{
    uint32_t low = t;
    uint32_t high = L_MAX + 1;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        bool met = lsh_outcome(layer, k, middle, t).error <= target;
        high = met ? middle : high;
        low = met ? low : middle + 1;
    }
    return low;
}

static void choose_lsh(const struct layer *layer, double target, struct an_tune_choice *choice)
{
    struct outcome found[(K_MAX - K_MIN + 1) * (T_MAX - T_MIN + 1)];
    uint32_t tables[(K_MAX - K_MIN + 1) * (T_MAX - T_MIN + 1)];
    double least_rows = DENSE_SHARE;
    uint32_t count = 0;
    for (uint32_t k = K_MIN; k <= K_MAX; ++k) {
        for (uint32_t t = T_MIN; t <= T_MAX; ++t, ++count) {
            tables[count] = least_tables(layer, k, t, target);
            found[count] = lsh_outcome(layer, k, tables[count] < L_MAX ? tables[count] : L_MAX, t);
            if (tables[count] <= L_MAX && found[count].rows_share < least_rows) {
                least_rows = found[count].rows_share;
            }
        }
    }
    double least_bytes = INFINITY;
    for (uint32_t i = 0; i < count; ++i) {
        uint32_t k = K_MIN + i / (T_MAX - T_MIN + 1);
        double bytes = index_bytes(layer, k, tables[i]);
        double bound =
            ROWS_SLACK * least_rows < DENSE_SHARE ? ROWS_SLACK * least_rows : DENSE_SHARE;
        if (tables[i] <= L_MAX && found[i].rows_share <= bound && bytes < least_bytes) {
            least_bytes = bytes;
            choice->estimator.k = k;
            choice->estimator.l = tables[i];
            choice->estimator.t = T_MIN + i % (T_MAX - T_MIN + 1);
            note(&found[i], choice);
        }
    }
    choice->dense = least_bytes == INFINITY;
}

static void choose_sketch(const struct layer *layer, double target, struct an_tune_choice *choice)
{
    float low = an_tune_share(0);
    float high = an_tune_share(AN_TUNE_SHARES - 1);
    struct outcome outcome = sketch_outcome(layer, high);
    choice->dense = outcome.error > target;
    for (uint32_t i = 0; i < 16 && !choice->dense; ++i) {
        float middle = sqrtf(low * high);
        bool met = sketch_outcome(layer, middle).error <= target;
        high = met ? middle : high;
        low = met ? low : middle;
    }
    outcome = sketch_outcome(layer, high);
    choice->estimator.rows = 0;
    choice->estimator.rows_share = high;
    note(&outcome, choice);
}

void an_tune_choose(const struct pp_estimator *own, const struct an_tune_head *heads,
                    uint32_t count, uint64_t tokens, float target, double *scratch,
                    struct an_tune_choice *choice_out)
{
    struct layer layer = {.heads = heads, .count = count, .tokens = tokens, .values = scratch};
    double aim = (double)target / MARGIN;
    *choice_out = (struct an_tune_choice){.estimator = *own};
    struct outcome now = own->kind == PP_LSH ? lsh_outcome(&layer, own->k, own->l, own->t)
                                             : sketch_outcome(&layer, own->rows_share);
    note(&now, choice_out);
    choice_out->rows_share_now = (float)now.rows_share;
    choice_out->error_now = (float)now.error;
    if (own->kind == PP_LSH) {
        choose_lsh(&layer, aim, choice_out);
    } else {
        choose_sketch(&layer, aim, choice_out);
    }
}
