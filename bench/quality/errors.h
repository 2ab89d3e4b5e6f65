/*
 * How far an estimator's answers are from the exact ones, over the queries of an exact run: the
 * same queries for all estimators. One thread, with a team of its own.
 */
#ifndef PIGPEN_BENCH_QUALITY_ERRORS_H
#define PIGPEN_BENCH_QUALITY_ERRORS_H

#include "bench/quality/estimator.h"

struct quality_errors {
    double *means;    /* [layer][q head]: mean |o' - o| / |o| */
    double mean;      /* of all */
    double covered;   /* share of answers with |o' - o| <= 2 sqrt(published squared error) */
    double published; /* rms of |o' - o| / |o| over the rms published; 0: nothing is published */
    double rows_share, rows_share_q_head;
    double sampled_share; /* rows_share of the attends in which no sample was empty */
    double bytes;         /* read, a held token and kv head */
};

/* PP_MEMORY. Free it whatever comes back. */
PP_MUST_USE enum pp_status quality_errors_measure(const struct quality_estimator *estimator,
                                                  struct quality_errors *errors_out);
void quality_errors_free(struct quality_errors *errors);

/* Opens an estimator that reads `share` of the rows a kv head: seeks its knob where that is not the
 * share itself, over a few of the steps. Close it whatever comes back. */
PP_MUST_USE enum pp_status quality_open_for_share(const struct quality_spec *spec,
                                                  const struct quality_held *held, double share,
                                                  uint32_t threads,
                                                  struct quality_estimator *estimator_out);

#endif
