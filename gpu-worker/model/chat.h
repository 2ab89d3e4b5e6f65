/*
 * Messages of a conversation into ids, as the model's own template would write them. Templates are
 * programs in the file (Jinja) and are not run: the families known here are told by their text and
 * written by hand, and an unknown one is refused by name rather than guessed.
 *   chatml  <|im_start|>role \n content <|im_end|> \n, with the default system text of the file's
 *           template when the first message is no system message (SmolLM2, Qwen2.5)
 *   llama3  begin, <|start_header_id|>role<|end_header_id|> \n\n trimmed content <|eot_id|>; with
 *           the system header and fixed dates of 3.1 where the template has them
 * Only the template's own marks become control tokens: what a message says never does, whatever
 * it says. Roles are an enum, so that none can be smuggled in as text.
 * Threads: init on one; then immutable.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_CHAT_H
#define PIGPEN_GPU_WORKER_MODEL_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"

enum gw_chat_role { GW_CHAT_SYSTEM, GW_CHAT_USER, GW_CHAT_ASSISTANT };

/* "system", "developer" (the same), "user", "assistant"; else PP_INVALID_ARGUMENT. */
PP_MUST_USE enum pp_status gw_chat_role_parse(const char *text, enum gw_chat_role *role_out);

struct gw_chat_message {
    enum gw_chat_role role;
    const char *content; /* valid UTF-8, not NUL-ended */
    size_t content_bytes;
};

enum gw_chat_family { GW_CHAT_CHATML, GW_CHAT_LLAMA3 };

#define GW_CHAT_DEFAULT_BYTES 1024

struct gw_chat {
    const struct gw_tokenizer *tokenizer; /* outlives it */
    enum gw_chat_family family;
    bool trim;      /* spaces around contents are dropped */
    bool has_dates; /* llama3: a system header with dates always stands first */
    bool has_begin; /* the begin token stands first, once */
    uint32_t begin_id;
    uint32_t open_id;       /* chatml <|im_start|>, llama3 <|start_header_id|> */
    uint32_t close_id;      /* chatml <|im_end|>, llama3 <|eot_id|> */
    uint32_t header_end_id; /* llama3 <|end_header_id|> */
    char default_system[GW_CHAT_DEFAULT_BYTES]; /* chatml; "" for none */
};

/* name is "chatml" or "llama3", or NULL to go by the file's tokenizer.chat_template. With
 * error_out: PP_NOT_FOUND when the file has no template, PP_UNIMPLEMENTED when it is none of the
 * known, PP_INVALID_ARGUMENT when the vocabulary lacks the family's control tokens or the
 * template's default text is no UTF-8. */
PP_MUST_USE enum pp_status gw_chat_init(struct gw_chat *chat, const struct gw_gguf *gguf,
                                        const struct gw_tokenizer *tokenizer, const char *name,
                                        char *error_out, size_t error_bytes);

/* Ids of the conversation, begin token included where the model wants one, followed by the opening
 * of the assistant's answer when `answer`. *ids_out is malloc'ed, freed by the caller.
 * PP_INVALID_ARGUMENT for a content that is no UTF-8 or no message at all; PP_MEMORY. */
PP_MUST_USE enum pp_status gw_chat_encode(const struct gw_chat *chat,
                                          const struct gw_chat_message *messages,
                                          size_t message_count, bool answer, uint32_t **ids_out,
                                          size_t *count_out);

#endif
