/*
 * What `gpu-worker generate` can be told, and what is wrong with it before anything is opened. One
 * thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_GENERATE_OPTIONS_H
#define PIGPEN_GPU_WORKER_API_GENERATE_OPTIONS_H

#include "gpu-worker/api/prompt.h"
#include "gpu-worker/api/sampling.h"
#include "gpu-worker/api/worker.h"

#define GW_GENERATE_OPTIONS_MAX (GW_WORKER_OPTIONS_MAX + 14u + GW_SAMPLING_OPTIONS)
/* The best of bench/RESULTS.md, Quality: least error and KL for the keys it reads. */
#define GW_GENERATE_ESTIMATOR "sketch"

struct gw_generate_options {
    struct gw_worker_options worker;
    struct gw_prompt_options prompt;
    const char *prompts_path; /* "": one prompt; "-" is stdin */
    uint64_t parallel, micro_batches;
    uint64_t tokens_max; /* of an answer */
    const char *estimator_text;
    struct gw_sampling_options sampling;
    const char *json_path, *save_path, *load_path;
    /* Of these, by the check. */
    struct pp_estimators estimators;
    float tune_error; /* 0: layers are not tuned */
};

/* Writes at most GW_GENERATE_OPTIONS_MAX entries. */
size_t gw_generate_option_table(struct gw_generate_options *options, struct pp_option *table_out);
/* What they alone tell to be wrong: a line on stderr. */
PP_MUST_USE enum pp_status gw_generate_check(struct gw_generate_options *options);

#endif
