/*
 * A text that estimators are measured on: its ids, the exact reference of its last tokens, and one
 * estimator's run over them. On the walk: above engine; for `eval` and the quality bench. It
 * refuses to know which estimator runs. One thread; errors of people go to `errors` as one line.
 */
#ifndef PIGPEN_GPU_WORKER_API_EVAL_TEXT_H
#define PIGPEN_GPU_WORKER_API_EVAL_TEXT_H

#include <stdint.h>
#include <stdio.h>

#include "gpu-worker/api/eval_score.h"
#include "gpu-worker/api/progress.h"
#include "gpu-worker/api/worker.h"

struct gw_eval_text {
    uint32_t *ids;     /* [id_count] */
    uint64_t id_count; /* tokens used of the text: at most the engine's tokens_max */
    uint64_t tokens;   /* measured: the last of them, but the very last is only predicted */
    uint32_t vocab;
    float *reference; /* [tokens][vocab] */
    float *logits;    /* [vocab] */
};

/* One estimator's run. */
struct gw_eval_run {
    struct gw_eval_score score;
    struct gw_step_stats steps;
    uint64_t prefill_us;
};

/* Reads and encodes the file at path and takes memory; the reference is filled below. Free it
 * whatever comes back. PP_IO; PP_OUT_OF_RANGE: too short to measure `tokens`; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_eval_text_read(struct gw_worker *worker, const char *path,
                                             uint64_t tokens, FILE *errors,
                                             struct gw_eval_text *text_out);
void gw_eval_text_free(struct gw_eval_text *text);

/* The logits of the measured tokens from one exact pass without nodes. progress NULL: none shown.
 */
PP_MUST_USE enum pp_status gw_eval_text_reference(struct gw_worker *worker,
                                                  struct gw_eval_text *text,
                                                  struct gw_progress *progress);

/* Prefills a new sequence with what comes before the measured tokens, decodes those fed with the
 * text, and scores each step against the reference. */
PP_MUST_USE enum pp_status gw_eval_text_run(struct gw_worker *worker, struct gw_eval_text *text,
                                            struct gw_sequence *sequence,
                                            struct gw_progress *progress,
                                            struct gw_eval_run *run_out);

#endif
