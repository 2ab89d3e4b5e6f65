/*
 * Sampling from logits: what people ask for to the numbers of the law that devices draw by, and
 * scores. It refuses to know what the ids mean.
 */
#include "gpu-worker/ops/sample.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/device/draw.h"

#define LOG2_E 1.4426950408889634

static bool sampling_valid(const struct gw_sampling *sampling)
{
    bool draws = sampling->temperature >= 0.0 && isfinite(sampling->temperature);
    bool cuts = sampling->top_p > 0.0 && sampling->top_p <= 1.0 && sampling->min_p >= 0.0 &&
                sampling->min_p <= 1.0;
    bool penalties = sampling->repetition > 0.0 && isfinite(sampling->repetition) &&
                     isfinite(sampling->presence) && isfinite(sampling->frequency);
    return draws && cuts && penalties;
}

static bool sampling_penalises(const struct gw_sampling *sampling)
{
    return sampling->repetition != 1.0 || sampling->presence != 0.0 || sampling->frequency != 0.0;
}

/* What the law of draw.h makes of it. */
static struct gw_draw sampling_draw(const struct gw_sampling *sampling, uint32_t vocab)
{
    bool greedy = sampling->temperature == 0.0;
    double scale = greedy ? 0.0 : LOG2_E / sampling->temperature;
    bool all = sampling->top_p == 1.0;
    return (struct gw_draw){.count = vocab,
                            .top_k = sampling->top_k,
                            .top_p = all ? 0 : (uint64_t)ldexp(sampling->top_p, 64),
                            .weight_min = (uint64_t)ldexp(sampling->min_p, GW_DRAW_WEIGHT_BITS),
                            .scale = ldexp(scale, GW_DRAW_RANK_BITS),
                            .repetition = (float)sampling->repetition,
                            .presence = (float)sampling->presence,
                            .frequency = (float)sampling->frequency};
}

/* Which ids were seen, onto the device. ids: [count], below the vocabulary or ignored. */
static enum pp_status sampler_mark(struct gw_sampler *sampler, const uint32_t *ids, uint64_t count)
{
    const struct gw_device_ops *ops = sampler->device->ops;
    uint32_t *seen = calloc(sampler->draw.count, sizeof(*seen));
    if (seen == NULL) {
        return PP_MEMORY;
    }
    for (uint64_t i = 0; i < count; i++) {
        if (ids[i] < sampler->draw.count) {
            seen[ids[i]] = GW_SEEN_IN_PROMPT;
        }
    }
    enum pp_status status = ops->copy_in(sampler->device, NULL, sampler->draw.seen, seen,
                                         (uint64_t)sampler->draw.count * sizeof(*seen));
    free(seen);
    return status;
}

enum pp_status gw_sampler_init(struct gw_sampler *sampler, struct gw_device *device, uint32_t vocab,
                               const struct gw_sampling *sampling)
{
    if (!sampling_valid(sampling) || vocab == 0) {
        return PP_INVALID_ARGUMENT;
    }
    struct gw_sampler made = {
        .device = device, .draw = sampling_draw(sampling, vocab), .rng = {.seed = sampling->seed}};
    if (sampling_penalises(sampling)) {
        void *seen;
        PP_TRY(device->ops->alloc(device, (uint64_t)vocab * sizeof(uint32_t), &seen));
        made.draw.seen = seen;
        enum pp_status status = sampler_mark(&made, NULL, 0);
        if (status != PP_OK) {
            device->ops->free(device, seen);
            return status;
        }
    }
    *sampler = made;
    return PP_OK;
}

void gw_sampler_deinit(struct gw_sampler *sampler)
{
    if (sampler->draw.seen != NULL) {
        sampler->device->ops->free(sampler->device, sampler->draw.seen);
    }
    memset(sampler, 0, sizeof(*sampler));
}

enum pp_status gw_sampler_prompt(struct gw_sampler *sampler, const uint32_t *ids, uint64_t count)
{
    return sampler->draw.seen != NULL ? sampler_mark(sampler, ids, count) : PP_OK;
}

enum pp_status gw_samplers_next(struct gw_pick *picks, uint32_t count, struct gw_stream *stream)
{
    struct gw_draw draws[GW_PICKS_MAX];
    uint32_t ids[GW_PICKS_MAX];
    struct gw_device *device = picks[0].sampler->device;
    PP_ASSERT(count > 0 && count <= GW_PICKS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        draws[i] = picks[i].sampler->draw;
        draws[i].logits = picks[i].logits;
        draws[i].random = pp_rng_u64(&picks[i].sampler->rng);
    }
    PP_TRY(device->ops->draw(device, stream, draws, count, ids));
    for (uint32_t i = 0; i < count; i++) {
        picks[i].id = ids[i];
    }
    return PP_OK;
}

enum pp_status gw_sampler_next(struct gw_sampler *sampler, struct gw_stream *stream,
                               const float *logits, uint32_t *id_out)
{
    struct gw_pick pick = {.sampler = sampler, .logits = logits};
    PP_TRY(gw_samplers_next(&pick, 1, stream));
    if (pick.id == GW_DRAW_NONE) {
        return PP_NON_FINITE;
    }
    *id_out = pick.id;
    return PP_OK;
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
