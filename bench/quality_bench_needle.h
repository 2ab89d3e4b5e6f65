/*
 * Needles: a five-digit number hidden in a text at several depths, one text a depth, and asked for
 * at its end. Answers are decoded greedily and their digits compared. One thread.
 */
#ifndef PIGPEN_BENCH_QUALITY_BENCH_NEEDLE_H
#define PIGPEN_BENCH_QUALITY_BENCH_NEEDLE_H

#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/api/eval_text.h"

/* Depths are (i + 1/2) / NEEDLE_COUNT of the text. */
#define NEEDLE_COUNT         5u
#define NEEDLE_ANSWER_TOKENS 12u

/* Asks for every needle with new sequences opened by `options` (tokens_expected is set here) and
 * counts the right answers. Text around a needle comes from the start of text->ids; with needle,
 * question and answer it is as long as text->id_count. PP_OUT_OF_RANGE when that is too short;
 * errors of sequences, explained on `errors`. */
PP_MUST_USE enum pp_status needle_run(struct gw_worker *worker, const struct gw_eval_text *text,
                                      const struct gw_sequence_options *options, FILE *errors,
                                      uint32_t *correct_out);

#endif
