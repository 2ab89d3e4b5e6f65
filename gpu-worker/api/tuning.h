/*
 * What tuning at the seal made of a sequence, for people and as JSON. On the walk: above engine,
 * behind a prefill. It refuses to know how it was found out. One thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_TUNING_H
#define PIGPEN_GPU_WORKER_API_TUNING_H

#include <jansson.h>
#include <stdio.h>

#include "gpu-worker/engine/engine.h"

/* A line a layer: share and error as it was opened, what it is attended with, and what that is
 * predicted to do; then the --estimator that says so without tuning, for a later run. Nothing where
 * nothing was tuned. */
void gw_tuning_print(const struct gw_sequence *sequence, float error, FILE *out);
/* "tuning": {error, ms, estimator, layers: [{layer, queries, estimator, proposed, rows_share,
 * error, error_worst, rows_share_now, error_now}]}; nothing where nothing was tuned. */
void gw_tuning_json(json_t *object, const struct gw_sequence *sequence, float error,
                    uint64_t took_us);

#endif
