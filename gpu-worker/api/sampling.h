/*
 * The options by which people say how tokens are drawn (gpu-worker/ops/sample.h), for the programs
 * that answer.
 */
#ifndef PIGPEN_GPU_WORKER_API_SAMPLING_H
#define PIGPEN_GPU_WORKER_API_SAMPLING_H

#include "common/base/options.h"
#include "gpu-worker/api/worker.h"
#include "gpu-worker/ops/sample.h"

#define GW_SAMPLING_OPTIONS 8u

struct gw_sampling_options {
    struct gw_sampling sampling;
    uint64_t top_k; /* becomes sampling's */
};

/* Fills table_out [GW_SAMPLING_OPTIONS]; returns how many. */
size_t gw_sampling_option_table(struct gw_sampling_options *options, struct pp_option *table_out);

/* The sampler of an open worker's model, which has seen the prompt. Ids past the tokenizer's have
 * no text: they are never drawn. Deinit it in any case. PP_INVALID_ARGUMENT, PP_MEMORY. */
PP_MUST_USE enum pp_status gw_sampling_open(const struct gw_sampling_options *options,
                                            const struct gw_worker *worker, const uint32_t *ids,
                                            size_t count, struct gw_sampler *sampler);

#endif
