/*
 * Byte-level BPE from a GGUF file's keys (tokenizer.ggml.model "gpt2", pre "smollm", "llama-bpe",
 * "qwen2", "gpt-2", "default"): pre-tokenizer by PCRE2, merges by rank with a heap, O(n log n).
 * Threads: new on one; then immutable, encode and decode from any.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_TOKENIZER_H
#define PIGPEN_GPU_WORKER_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/model/gguf.h"

struct gw_tokenizer;

/* error_out says what is wrong. PP_UNIMPLEMENTED: another kind of tokenizer or pre-tokenizer;
 * PP_INVALID_ARGUMENT: a vocabulary that contradicts itself; PP_MEMORY. Keeps nothing of gguf. */
PP_MUST_USE enum pp_status gw_tokenizer_new(const struct gw_gguf *gguf, char *error_out,
                                            size_t error_bytes,
                                            struct gw_tokenizer **tokenizer_out);
void gw_tokenizer_destroy(struct gw_tokenizer *tokenizer);

uint32_t gw_tokenizer_vocab(const struct gw_tokenizer *tokenizer);

/* Text to ids. parse_special: control tokens in the text become their ids (templates); otherwise
 * they are plain text (users' content). User-defined tokens are always matched. No begin token is
 * added (gw_tokenizer_adds_bos says whether one belongs there; gw_chat_encode does it itself).
 * Bytes the vocabulary has no token for are left out, as the reference does. *ids_out is malloc'ed
 * by the callee, freed by the caller. Work is O(n log n), the stack needed small and fixed.
 * PP_INVALID_ARGUMENT: no valid UTF-8; PP_MESSAGE_TOO_LARGE: over 1 GiB; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_tokenizer_encode(const struct gw_tokenizer *tokenizer,
                                               const char *text, size_t bytes, bool parse_special,
                                               uint32_t **ids_out, size_t *count_out);

/* The bytes of one token, not NUL-ended; control tokens have none unless `special`. */
void gw_tokenizer_bytes(const struct gw_tokenizer *tokenizer, uint32_t id, bool special,
                        const char **bytes_out, size_t *count_out);

/* The id of a control token by its text; PP_NOT_FOUND. */
PP_MUST_USE enum pp_status gw_tokenizer_find(const struct gw_tokenizer *tokenizer, const char *text,
                                             uint32_t *id_out);
/* Does this token end an answer? Those that the file's keys name and those known by their text
 * (<|im_end|>, <|endoftext|>, <|eot_id|>, ...), since files often name only one of several. */
bool gw_tokenizer_is_end(const struct gw_tokenizer *tokenizer, uint32_t id);
bool gw_tokenizer_adds_bos(const struct gw_tokenizer *tokenizer, uint32_t *id_out);

/* Tokens to text in a stream: bytes are held back until they complete a UTF-8 character. Bytes that
 * can never complete one become U+FFFD. text_out is valid until the next call. */
struct gw_detokenizer {
    const struct gw_tokenizer *tokenizer;
    char pending[4];
    uint32_t pending_bytes;
    char *text; /* owned */
    size_t text_capacity;
};
void gw_detokenizer_init(struct gw_detokenizer *detokenizer, const struct gw_tokenizer *tokenizer);
void gw_detokenizer_deinit(struct gw_detokenizer *detokenizer);
PP_MUST_USE enum pp_status gw_detokenizer_add(struct gw_detokenizer *detokenizer, uint32_t id,
                                              const char **text_out, size_t *bytes_out);
/* What is still pending at the end: incomplete characters are dropped (max_tokens cut them). */
void gw_detokenizer_finish(struct gw_detokenizer *detokenizer);

#endif
