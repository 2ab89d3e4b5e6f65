/*
 * Sampling from logits. It refuses to know what the ids mean.
 */
#include "gpu-worker/ops/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Candidates whose probability is below e^-40 of the best one's are never drawn: their sum over any
 * vocabulary is below the resolution of the draw. */
#define SAMPLE_LOG_RATIO_MAX 40.0

enum pp_status gw_sampler_init(struct gw_sampler *sampler, uint32_t vocab, double temperature,
                               uint32_t top_k, double top_p, uint64_t seed)
{
    if (!(temperature >= 0.0) || isinf(temperature) || !(top_p > 0.0 && top_p <= 1.0) ||
        vocab == 0) {
        return PP_INVALID_ARGUMENT;
    }
    struct gw_candidate *candidates = malloc((uint64_t)vocab * sizeof(*candidates));
    if (candidates == NULL) {
        return PP_MEMORY;
    }
    *sampler = (struct gw_sampler){.temperature = temperature,
                                   .top_k = top_k,
                                   .top_p = top_p,
                                   .rng = {.seed = seed},
                                   .candidates = candidates,
                                   .vocab = vocab};
    return PP_OK;
}

void gw_sampler_deinit(struct gw_sampler *sampler)
{
    free(sampler->candidates);
    memset(sampler, 0, sizeof(*sampler));
}

enum pp_status gw_argmax(const float *logits, uint32_t count, uint32_t *id_out)
{
    uint32_t best = 0;
    bool nan = false;
    for (uint32_t i = 0; i < count; i++) {
        nan = nan || isnan(logits[i]);
        best = logits[i] > logits[best] ? i : best;
    }
    if (nan || count == 0 || isinf(logits[best])) {
        return PP_NON_FINITE;
    }
    *id_out = best;
    return PP_OK;
}

static int sample_order(const void *left, const void *right)
{
    const struct gw_candidate *a = left, *b = right;
    if (a->logit != b->logit) {
        return a->logit > b->logit ? -1 : 1;
    }
    return a->id < b->id ? -1 : a->id > b->id;
}

enum pp_status gw_sampler_next(struct gw_sampler *sampler, const float *logits, uint32_t *id_out)
{
    uint32_t best;
    PP_TRY(gw_argmax(logits, sampler->vocab, &best));
    if (sampler->temperature == 0.0 || sampler->top_k == 1) {
        *id_out = best;
        return PP_OK;
    }
    double top = (double)logits[best];
    struct gw_candidate *candidates = sampler->candidates;
    uint32_t count = 0;
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        if (((double)logits[i] - top) / sampler->temperature > -SAMPLE_LOG_RATIO_MAX) {
            candidates[count++] = (struct gw_candidate){logits[i], i};
        }
    }
    if (count == 0) { /* a temperature so low that even 0 / temperature is no number */
        *id_out = best;
        return PP_OK;
    }
    qsort(candidates, count, sizeof(*candidates), sample_order);
    if (sampler->top_k > 0 && count > sampler->top_k) {
        count = sampler->top_k;
    }
    double total = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        total += exp(((double)candidates[i].logit - top) / sampler->temperature);
    }
    double kept = 0.0;
    uint32_t kept_count = 0;
    while (kept_count < count && (kept_count == 0 || kept < sampler->top_p * total)) {
        kept += exp(((double)candidates[kept_count].logit - top) / sampler->temperature);
        kept_count++;
    }
    double draw = pp_rng_uniform(&sampler->rng) * kept;
    uint32_t at = 0;
    for (double sum = 0.0; at < kept_count; at++) {
        sum += exp(((double)candidates[at].logit - top) / sampler->temperature);
        if (draw < sum) {
            break;
        }
    }
    *id_out = candidates[at < kept_count ? at : kept_count - 1].id;
    return PP_OK;
}

double gw_log_sum_exp(const float *logits, uint32_t count)
{
    double top = -INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        top = (double)logits[i] > top ? (double)logits[i] : top;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        sum += exp((double)logits[i] - top);
    }
    return top + log(sum);
}

double gw_kl(const float *p_logits, const float *q_logits, uint32_t count)
{
    double p_sum = gw_log_sum_exp(p_logits, count);
    double q_sum = gw_log_sum_exp(q_logits, count);
    double kl = 0.0;
    for (uint32_t i = 0; i < count; i++) {
        double p_log = (double)p_logits[i] - p_sum;
        kl += exp(p_log) * (p_log - ((double)q_logits[i] - q_sum));
    }
    return kl > 0.0 ? kl : 0.0;
}
