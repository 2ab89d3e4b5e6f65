/*
 * What a run measured, as one JSON object a line appended to a file. Names are an interface
 * (deploy/quickstart and the tests read them). One thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_STATISTICS_H
#define PIGPEN_GPU_WORKER_API_STATISTICS_H

#include <jansson.h>
#include <stdio.h>

#include "gpu-worker/api/worker.h"

/* read / held, 0 where nothing is held. */
double gw_statistics_share(uint64_t read, uint64_t held);
/* ms_per_token, device_ms, of that device_wait_ms (for a GPU's queries and partials), node_ms,
 * network_ms, wait_ms, rows_share (distinct, a kv head), rows_share_q_head, keys_*,
 * estimator_used. */
void gw_statistics_steps(json_t *object, const struct gw_step_stats *steps);
/* prefill_pieces, prefill_pieces_beside, prefill_copy_wait_ms of the engine so far. */
void gw_statistics_overlap(json_t *object, const struct gw_engine *engine);
/* "errors": {mean, p95, layer_mean: [], layer_p95: [], worst_layer, worst_head, worst_mean,
 * empty_samples, uniform_samples, target_missed} of what nodes estimate of their merged answers;
 * and what a comparison with exact answers gave: error_mean (merged),
 * error_nodes_mean, error_published_mean, coverage, and where a target was asked within_target.
 * errors NULL, or without a count: nothing. */
void gw_statistics_errors(json_t *object, const struct gw_errors *errors,
                          const struct gw_step_stats *steps);
/* The same for people, a line or two. */
void gw_statistics_print_errors(const struct gw_errors *errors, const struct gw_step_stats *steps,
                                FILE *out);
/* bytes of text under the key; what is no UTF-8 (an answer may end within a character) as U+FFFD.
 */
void gw_statistics_text(json_t *object, const char *key, const char *text, size_t bytes);
/* tokens_held: {node: tokens}, tokens_left. */
void gw_statistics_held(json_t *object, const struct gw_worker *worker,
                        struct gw_sequence *sequence);
/* Can the path of an option ("--json") be written? To be asked before the work. path "": PP_OK. */
PP_MUST_USE enum pp_status gw_statistics_check(const char *option, const char *path, FILE *errors);
/* Appends the object as a line; takes it over. path "" : nothing. PP_IO with a line on errors, and
 * the object there, so that nothing measured is lost. */
PP_MUST_USE enum pp_status gw_statistics_write(json_t *object, const char *path, FILE *errors);

#endif
