/*
 * The pre-tokenizer: cuts text into the pieces that are merged on their own, by the regular
 * expression that the model's tokenizer.ggml.pre names. Part of the tokenizer; not for others.
 * Threads: a splitter is immutable once made; a cursor belongs to one call. Matching keeps its
 * state on the heap (PCRE2's JIT with a stack of its own), so long runs need no deep stack.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_SPLIT_H
#define PIGPEN_GPU_WORKER_MODEL_SPLIT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

struct gw_splitter {
    void *code;       /* owned, compiled */
    bool nfc;         /* text is normalised first */
    bool whole_first; /* a piece that is a token is not merged ("ignore_merges") */
    bool bos_default; /* the begin token is added where the file does not say */
};

/* PP_UNIMPLEMENTED for a name that is not known, with error_out listing those that are. */
PP_MUST_USE enum pp_status gw_splitter_init(struct gw_splitter *splitter, const char *pre,
                                            size_t pre_bytes, char *error_out, size_t error_bytes);
void gw_splitter_deinit(struct gw_splitter *splitter);

struct gw_split_cursor {
    const struct gw_splitter *splitter;
    void *match;   /* owned */
    void *context; /* owned */
    void *stack;   /* owned, may be NULL */
};
PP_MUST_USE enum pp_status gw_split_begin(struct gw_split_cursor *cursor,
                                          const struct gw_splitter *splitter, size_t text_bytes);
void gw_split_end(struct gw_split_cursor *cursor);

/* Where the piece that begins at `start` (< count) ends. The text is valid UTF-8. */
PP_MUST_USE enum pp_status gw_split_next(struct gw_split_cursor *cursor, const char *text,
                                         size_t count, size_t start, size_t *end_out);

/* Unicode's NFC of valid UTF-8; *text_out is malloc'ed. Runs of combining marks beyond 256 are
 * put in order in parts of 256, which keeps the work linear. */
PP_MUST_USE enum pp_status gw_split_nfc(const char *text, size_t count, char **text_out,
                                        size_t *count_out);

#endif
