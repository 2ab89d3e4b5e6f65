/*
 * Scores of rows of logits against reference rows and the text's own next tokens: perplexity
 * e^(-mean log p(next)), KL(reference || row) in nats, and how often the likeliest token agrees.
 * One thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_EVAL_SCORE_H
#define PIGPEN_GPU_WORKER_API_EVAL_SCORE_H

#include <stdint.h>

#include "common/base/status.h"

struct gw_eval_score {
    uint64_t rows;
    double log_p_sum;
    double kl_sum, kl_max;
    uint64_t top1_same;     /* the likeliest token is the reference's */
    uint64_t next_same;     /* it is the text's own next one */
    double logit_error_max; /* largest |logit - reference| of all rows */
};

/* Adds one row [vocab]; next is the token that followed. PP_NON_FINITE. */
PP_MUST_USE enum pp_status gw_eval_score_add(struct gw_eval_score *score, const float *reference,
                                             const float *logits, uint32_t vocab, uint32_t next);
double gw_eval_score_perplexity(const struct gw_eval_score *score);

#endif
