/*
 * Needles: a five-digit number hidden in a text at several depths, one prompt a depth, and asked
 * for at its end. The measured tokens are the digits, each predicted behind the right ones before
 * it. One thread.
 */
#ifndef PIGPEN_BENCH_QUALITY_NEEDLE_H
#define PIGPEN_BENCH_QUALITY_NEEDLE_H

#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/api/eval_text.h"

/* Depths are (i + 1/2) / QUALITY_NEEDLES of the text. */
#define QUALITY_NEEDLES 5u

/* A prompt as long as the text, of its first tokens around needle `index`. Free it whatever comes
 * back. PP_OUT_OF_RANGE: the text is too short; PP_UNIMPLEMENTED: the tokenizer does not keep the
 * digits apart from the question; PP_MEMORY. */
PP_MUST_USE enum pp_status quality_needle_make(const struct gw_eval_text *text, uint32_t index,
                                               struct gw_eval_text *needle_out);

#endif
