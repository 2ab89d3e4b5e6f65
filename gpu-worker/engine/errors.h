/*
 * Relative errors that answers were published with, by layer and query head: how many, their mean,
 * and their 95th percentile by buckets a quarter of an octave wide. On the walk: engine/step adds,
 * api reads. It refuses to know how an error was estimated. Threads: the engine's.
 */
#ifndef PIGPEN_GPU_WORKER_ENGINE_ERRORS_H
#define PIGPEN_GPU_WORKER_ENGINE_ERRORS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

/* All layers, or all heads. */
#define GW_ERRORS_ALL UINT32_MAX

struct gw_errors;

struct gw_error_summary {
    uint64_t count;
    double mean, p95; /* 0 where count is 0 */
};

/* PP_MEMORY. */
PP_MUST_USE enum pp_status gw_errors_new(uint32_t layers, uint32_t heads,
                                         struct gw_errors **errors_out);
void gw_errors_destroy(struct gw_errors *errors);
/* Forgets all. */
void gw_errors_clear(struct gw_errors *errors);

/* One answer; rel_err >= 0, infinite where the answer is zero. Allocates nothing. */
void gw_errors_add(struct gw_errors *errors, uint32_t layer, uint32_t head, double rel_err);

/* Of one layer and head, or of all of either. */
struct gw_error_summary gw_errors_summary(const struct gw_errors *errors, uint32_t layer,
                                          uint32_t head);

/* The layer whose mean is the largest, and the head of it whose mean is; false when nothing was
 * added. */
bool gw_errors_worst(const struct gw_errors *errors, uint32_t *layer_out, uint32_t *head_out);

uint32_t gw_errors_layers(const struct gw_errors *errors);

#endif
