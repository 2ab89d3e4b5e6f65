/*
 * `gpu-worker eval`: the quality of estimators on a text, against exact attention. The last
 * --tokens positions of the first --context tokens are measured: the reference is the prefill's own
 * exact pass, which no node takes part in; then each estimator decodes them step by step over the
 * nodes, fed with the text. Estimators that share an index, and exact, share one prefill.
 */
#ifndef PIGPEN_GPU_WORKER_API_EVAL_H
#define PIGPEN_GPU_WORKER_API_EVAL_H

#include <stdint.h>

#include "common/attn/estimators.h"
#include "common/base/status.h"

/* argv[0] is skipped. Returns the exit code (program.h). */
int gw_eval_main(int argc, char **argv);

#define GW_EVAL_ESTIMATORS_MAX 16u

struct gw_eval_estimator {
    char text[160];
    struct pp_estimators estimators;
};

/* "exact,lsh:k=10,l=150,lsh:k=8,l=75": a comma before k=, l= or t= belongs to the estimator.
 * PP_INVALID_ARGUMENT: error_out says why. */
PP_MUST_USE enum pp_status gw_eval_estimators_parse(const char *text,
                                                    struct gw_eval_estimator *estimators_out,
                                                    uint32_t *count_out, char *error_out,
                                                    size_t error_bytes);

#endif
