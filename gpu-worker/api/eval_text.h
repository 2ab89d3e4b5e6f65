/*
 * A text that estimators are measured on: its ids, the exact reference of its last tokens, and
 * runs of estimators over them. One prefill gives the reference, for a prefill is exact and
 * computed by the worker alone, and leaves the sequence marked before the measured tokens, where
 * every run begins. On the walk: above engine; for `eval` and the quality bench. It refuses to know
 * which estimator runs. One thread; errors of people go to `errors` as one line. When interrupted
 * all end with PP_CANCELLED.
 */
#ifndef PIGPEN_GPU_WORKER_API_EVAL_TEXT_H
#define PIGPEN_GPU_WORKER_API_EVAL_TEXT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "gpu-worker/api/eval_score.h"
#include "gpu-worker/api/progress.h"
#include "gpu-worker/api/worker.h"

struct gw_eval_text {
    struct gw_worker *worker; /* borrowed */
    uint32_t *ids;            /* [id_count] */
    uint64_t id_count;        /* tokens used of the text: at most the engine's tokens_max */
    uint64_t tokens;          /* measured: the last of them, but the very last is only predicted */
    uint32_t vocab;
    float *reference; /* [tokens][vocab] */
    bool has_reference;
    float *logits; /* [vocab] */
    FILE *decoded; /* borrowed; each step's logits go there as they come. NULL: nowhere */
};

/* One estimator's run. */
struct gw_eval_run {
    struct gw_eval_score score;
    struct gw_step_stats steps;
};

/* Encodes what was read of the file at path and takes memory; the reference is filled below. Free
 * it whatever comes back. PP_OUT_OF_RANGE: too short to measure `tokens`; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_eval_text_init(struct gw_worker *worker, const char *path,
                                             const char *bytes, size_t byte_count, uint64_t tokens,
                                             FILE *errors, struct gw_eval_text *text_out);
void gw_eval_text_free(struct gw_eval_text *text);

/* Prefills a new sequence, opened with tokens_kept = text->tokens; the first of a text fills the
 * reference. progress NULL: none shown. */
PP_MUST_USE enum pp_status gw_eval_text_prefill(struct gw_eval_text *text,
                                                struct gw_sequence *sequence,
                                                struct gw_progress *progress);

/* Behind the prefill: gw_sequence_tune, by queries in front of the measured tokens. */
PP_MUST_USE enum pp_status gw_eval_text_tune(float error, struct gw_sequence *sequence,
                                             struct gw_progress *progress);

/* Goes back to before the measured tokens, decodes them fed with the text, and scores each step
 * against the reference. PP_IO: `decoded` takes no more. */
PP_MUST_USE enum pp_status gw_eval_text_run(struct gw_eval_text *text, struct gw_sequence *sequence,
                                            struct gw_progress *progress,
                                            struct gw_eval_run *run_out);

#endif
