/*
 * The next token from logits on a device: the penalties of tokens that were seen, then the
 * likeliest one, or temperature, then top-k, top-p (nucleus: Holtzman et al., arXiv 1904.09751) and
 * min-p (Nguyen et al., arXiv 2407.01082), drawn by a counter-based generator: the same seed,
 * logits and position in the sequence of draws give the same token on every device, of which only
 * its id comes back. Also what quality figures need of logits on the host. One thread a sampler.
 */
#ifndef PIGPEN_GPU_WORKER_OPS_SAMPLE_H
#define PIGPEN_GPU_WORKER_OPS_SAMPLE_H

#include <stdint.h>

#include "common/base/rng.h"
#include "common/base/status.h"
#include "gpu-worker/device/device.h"

struct gw_sampling {
    double temperature; /* 0: the likeliest */
    uint32_t top_k;     /* that many likeliest ones only; 0: all */
    double top_p;       /* in (0, 1]: the likeliest ones that have it together; 1: all */
    double min_p;       /* in [0, 1]: those with this share of the likeliest's probability */
    /* Logits of tokens in the prompt or drawn are divided by repetition (> 0), those below zero
     * multiplied; those drawn lose presence and, each time, frequency. 1, 0, 0: none of it. */
    double repetition, presence, frequency;
    uint64_t seed;
};

/* What changes nothing: the likeliest token each time. */
#define GW_SAMPLING_GREEDY ((struct gw_sampling){.top_p = 1.0, .repetition = 1.0})

struct gw_sampler {
    struct gw_device *device; /* borrowed */
    struct gw_draw draw;      /* seen: its own, on the device */
    struct pp_rng rng;
};

/* Of ids [0, vocab); logits behind are never drawn. PP_INVALID_ARGUMENT when a number is out of its
 * range; PP_MEMORY. The device outlives it. */
PP_MUST_USE enum pp_status gw_sampler_init(struct gw_sampler *sampler, struct gw_device *device,
                                           uint32_t vocab, const struct gw_sampling *sampling);
/* Accepts a zeroed one. */
void gw_sampler_deinit(struct gw_sampler *sampler);

/* The prompt's tokens, once, before the first draw: only penalties ask for it. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_sampler_prompt(struct gw_sampler *sampler, const uint32_t *ids,
                                             uint64_t count);

/* A draw of a batch: of logits [vocab at least] of the device. */
struct gw_pick {
    struct gw_sampler *sampler;
    const float *logits;
    uint32_t id; /* the token; GW_DRAW_NONE: a logit is NaN or infinite, or all are -inf */
};
#define GW_PICKS_MAX 16u
/* The next token of each pick, of logits computed on that stream. The samplers are different ones
 * of one device; 1 <= count <= GW_PICKS_MAX. Errors are the device's. */
PP_MUST_USE enum pp_status gw_samplers_next(struct gw_pick *picks, uint32_t count,
                                            struct gw_stream *stream);
/* The same of one; PP_NON_FINITE when there is none. */
PP_MUST_USE enum pp_status gw_sampler_next(struct gw_sampler *sampler, struct gw_stream *stream,
                                           const float *logits, uint32_t *id_out);

/* The largest logit in host memory; the lowest id among equals. PP_NON_FINITE as above. */
PP_MUST_USE enum pp_status gw_argmax(const float *logits, uint32_t count, uint32_t *id_out);

/* log sum e^logit in f64: log p(id) = logit - it. */
double gw_log_sum_exp(const float *logits, uint32_t count);

/* KL(p || q) in nats of the softmax of two rows of logits; at least 0. */
double gw_kl(const float *p_logits, const float *q_logits, uint32_t count);

#endif
