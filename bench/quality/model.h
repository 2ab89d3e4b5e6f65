/*
 * A model whose attention over the held tokens of a prompt is answered by an estimator in place of
 * a node: the worker's device is taken as it is, but for its attends. In a prefill they measure
 * what sketches are balanced with; in a decode step the tokens behind the sink and before the
 * recent ones, which a node would hold, are answered by the estimator, and merged with the others
 * as always. One a process; one thread, with a team of its own.
 */
#ifndef PIGPEN_BENCH_QUALITY_MODEL_H
#define PIGPEN_BENCH_QUALITY_MODEL_H

#include "bench/quality/estimator.h"
#include "bench/quality/held.h"
#include "gpu-worker/api/eval_text.h"
#include "gpu-worker/api/worker.h"

/* Puts itself before the attends of the worker's device, until the worker is closed. */
void quality_model_init(struct gw_worker *worker, uint32_t threads);

/* Prefills the text on a new sequence that stays on the worker, fills `held` with the tokens that
 * nodes would hold at its first measured one, and records the exact run over them, whose scores
 * are run_out. Close the sequence and free held whatever comes back. PP_OUT_OF_RANGE: nothing
 * would leave. */
PP_MUST_USE enum pp_status quality_model_record(struct gw_eval_text *text,
                                                struct gw_progress *progress,
                                                struct gw_sequence **sequence_out,
                                                struct quality_held *held,
                                                struct gw_eval_run *run_out);

/* Decodes the measured tokens with the estimator's answers in one layer, or, with
 * QUALITY_ALL_LAYERS, in all; other layers are exact. */
#define QUALITY_ALL_LAYERS UINT32_MAX
PP_MUST_USE enum pp_status quality_model_run(struct gw_eval_text *text,
                                             struct gw_sequence *sequence,
                                             const struct quality_estimator *estimator,
                                             uint32_t layer, struct gw_progress *progress,
                                             struct gw_eval_run *run_out);

/* The draws' seed of a step, layer and kv head. */
uint64_t quality_draw_seed(const struct quality_held *held, uint32_t step, uint32_t layer,
                           uint32_t kv_head);

#endif
