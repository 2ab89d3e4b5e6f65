/*
 * The next token from logits, on the host: greedy, or temperature, then top-k, then top-p (nucleus:
 * Holtzman et al., arXiv 1904.09751), drawn by a counter-based generator: the same seed, logits and
 * position in the sequence of draws give the same token. Also what quality figures need of logits.
 * Pure but for the sampler's own counter and scratch; one thread a sampler.
 */
#ifndef PIGPEN_GPU_WORKER_OPS_SAMPLE_H
#define PIGPEN_GPU_WORKER_OPS_SAMPLE_H

#include <stdint.h>

#include "common/base/rng.h"
#include "common/base/status.h"

struct gw_candidate {
    float logit;
    uint32_t id;
};

struct gw_sampler {
    double temperature; /* 0: greedy */
    uint32_t top_k;     /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    struct pp_rng rng;
    struct gw_candidate *candidates; /* [vocab] */
    uint32_t vocab;
};

/* PP_INVALID_ARGUMENT unless temperature is finite and >= 0 and 0 < top_p <= 1; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_sampler_init(struct gw_sampler *sampler, uint32_t vocab,
                                           double temperature, uint32_t top_k, double top_p,
                                           uint64_t seed);
void gw_sampler_deinit(struct gw_sampler *sampler);

/* The next token. PP_NON_FINITE when a logit is NaN or all are -inf. */
PP_MUST_USE enum pp_status gw_sampler_next(struct gw_sampler *sampler, const float *logits,
                                           uint32_t *id_out);

/* The largest logit; the lowest id among equals. PP_NON_FINITE as above. */
PP_MUST_USE enum pp_status gw_argmax(const float *logits, uint32_t count, uint32_t *id_out);

/* log sum e^logit in f64: log p(id) = logit - it. */
double gw_log_sum_exp(const float *logits, uint32_t count);

/* KL(p || q) in nats of the softmax of two rows of logits; at least 0. */
double gw_kl(const float *p_logits, const float *q_logits, uint32_t count);

#endif
