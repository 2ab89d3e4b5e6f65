/*
 * Counts of relative errors by layer, head and size. See errors.h.
 */
#include "gpu-worker/engine/errors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

/* Bucket b > 0 ends at FIRST 2^(b/4), the last one has no end: 1e-4 to 6. */
#define BUCKETS 64u
#define FIRST   1e-4
/* What a larger error counts as in the mean: an answer that is near zero has no relative error. */
#define LARGEST 10.0

struct cell {
    double sum;
    uint64_t count;
    uint32_t buckets[BUCKETS];
};

struct gw_errors {
    uint32_t layers, heads;
    struct cell cells[]; /* [layer][head] */
};

enum pp_status gw_errors_new(uint32_t layers, uint32_t heads, struct gw_errors **errors_out)
{
    uint64_t cells = (uint64_t)layers * heads;
    struct gw_errors *errors = calloc(1, sizeof(*errors) + cells * sizeof(struct cell));
    if (errors == NULL) {
        return PP_MEMORY;
    }
    errors->layers = layers;
    errors->heads = heads;
    *errors_out = errors;
    return PP_OK;
}

void gw_errors_destroy(struct gw_errors *errors)
{
    free(errors);
}

void gw_errors_clear(struct gw_errors *errors)
{
    memset(errors->cells, 0, (uint64_t)errors->layers * errors->heads * sizeof(struct cell));
}

static uint32_t bucket_of(double rel_err)
{
    if (!(rel_err > FIRST)) {
        return 0;
    }
    double bucket = ceil(4.0 * log2(rel_err / FIRST));
    return bucket < BUCKETS - 1 ? (uint32_t)bucket : BUCKETS - 1;
}

void gw_errors_add(struct gw_errors *errors, uint32_t layer, uint32_t head, double rel_err)
{
    PP_ASSERT(layer < errors->layers && head < errors->heads);
    struct cell *cell = &errors->cells[(uint64_t)layer * errors->heads + head];
    cell->sum += rel_err < LARGEST ? rel_err : LARGEST;
    cell->count++;
    cell->buckets[bucket_of(rel_err)]++;
}

/* The sum of the cells of a layer and head, or of all of either. */
static struct cell sum_cells(const struct gw_errors *errors, uint32_t layer, uint32_t head)
{
    struct cell sum = {0};
    for (uint32_t i = 0; i < errors->layers; i++) {
        for (uint32_t j = 0; j < errors->heads; j++) {
            if ((layer != GW_ERRORS_ALL && i != layer) || (head != GW_ERRORS_ALL && j != head)) {
                continue;
            }
            const struct cell *cell = &errors->cells[(uint64_t)i * errors->heads + j];
            sum.sum += cell->sum;
            sum.count += cell->count;
            for (uint32_t b = 0; b < BUCKETS; b++) {
                sum.buckets[b] += cell->buckets[b];
            }
        }
    }
    return sum;
}

/* The error that 95 of 100 are at most, on a line of logarithms within its bucket. */
static double percentile_95(const struct cell *cell)
{
    double wanted = 0.95 * (double)cell->count;
    double below = 0.0;
    uint32_t bucket = 0;
    while (bucket + 1 < BUCKETS && below + cell->buckets[bucket] < wanted) {
        below += cell->buckets[bucket++];
    }
    if (bucket == 0) {
        return 0.0;
    }
    double part = (wanted - below) / cell->buckets[bucket];
    return FIRST * exp2((bucket - 1 + part) / 4.0);
}

struct gw_error_summary gw_errors_summary(const struct gw_errors *errors, uint32_t layer,
                                          uint32_t head)
{
    struct cell sum = sum_cells(errors, layer, head);
    if (sum.count == 0) {
        return (struct gw_error_summary){0};
    }
    return (struct gw_error_summary){
        .count = sum.count, .mean = sum.sum / (double)sum.count, .p95 = percentile_95(&sum)};
}

bool gw_errors_worst(const struct gw_errors *errors, uint32_t *layer_out, uint32_t *head_out)
{
    double worst = -1.0;
    for (uint32_t layer = 0; layer < errors->layers; layer++) {
        struct gw_error_summary summary = gw_errors_summary(errors, layer, GW_ERRORS_ALL);
        if (summary.count > 0 && summary.mean > worst) {
            worst = summary.mean;
            *layer_out = layer;
        }
    }
    if (worst < 0.0) {
        return false;
    }
    worst = -1.0;
    for (uint32_t head = 0; head < errors->heads; head++) {
        struct gw_error_summary summary = gw_errors_summary(errors, *layer_out, head);
        if (summary.count > 0 && summary.mean > worst) {
            worst = summary.mean;
            *head_out = head;
        }
    }
    return true;
}

uint32_t gw_errors_layers(const struct gw_errors *errors)
{
    return errors->layers;
}
