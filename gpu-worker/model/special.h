/*
 * The tokens that stand in text as they are, matched before anything else: control tokens
 * (templates only) and user-defined ones (always). Leftmost, then longest. Part of the tokenizer;
 * not for others. Threads: init on one; then immutable.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_SPECIAL_H
#define PIGPEN_GPU_WORKER_MODEL_SPECIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/model/vocab.h"

struct gw_specials {
    const struct gw_vocab *vocab; /* outlives it */
    uint32_t *ids;                /* owned [count], sorted by bytes */
    uint32_t count;
    uint32_t first[257]; /* tokens that begin with byte b: ids[first[b]] to before first[b + 1] */
};

/* PP_INVALID_ARGUMENT when two have one text; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_specials_init(struct gw_specials *specials,
                                            const struct gw_vocab *vocab, char *error_out,
                                            size_t error_bytes);
void gw_specials_deinit(struct gw_specials *specials);

/* The first of them in text from `start` on: id_out and the bytes it spans, or PP_NOT_FOUND. */
PP_MUST_USE enum pp_status gw_specials_next(const struct gw_specials *specials, const char *text,
                                            size_t count, size_t start, bool control,
                                            size_t *begin_out, size_t *end_out, uint32_t *id_out);

/* The token of exactly this text, or GW_TOKEN_NONE. */
uint32_t gw_specials_find(const struct gw_specials *specials, const char *text, size_t count);

#endif
