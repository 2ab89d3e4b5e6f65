/*
 * Chat templates by family. Between the api's messages and the engine's ids. A stretch between two
 * control tokens ("user\n" and the content after it) is encoded as one text, so that ids equal
 * those of the written-out template, but never with control tokens parsed.
 */
#include "gpu-worker/model/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEMPLATE_BYTES_MAX (1u << 20)
#define LLAMA3_DATES       "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"

static const char *const ROLE_NAMES[] = {
    [GW_CHAT_SYSTEM] = "system",
    [GW_CHAT_USER] = "user",
    [GW_CHAT_ASSISTANT] = "assistant",
};

enum pp_status gw_chat_role_parse(const char *text, enum gw_chat_role *role_out)
{
    for (size_t role = 0; role < sizeof(ROLE_NAMES) / sizeof(ROLE_NAMES[0]); role++) {
        if (strcmp(text, ROLE_NAMES[role]) == 0) {
            *role_out = (enum gw_chat_role)role;
            return PP_OK;
        }
    }
    if (strcmp(text, "developer") == 0) {
        *role_out = GW_CHAT_SYSTEM;
        return PP_OK;
    }
    return PP_INVALID_ARGUMENT;
}

/* The file's template, not NUL-ended. */
struct template_text {
    const char *text;
    size_t bytes;
};

static const char *seek(struct template_text text, size_t start, const char *what)
{
    return start > text.bytes ? NULL
                              : memmem(text.text + start, text.bytes - start, what, strlen(what));
}

static bool has(struct template_text text, const char *what)
{
    return seek(text, 0, what) != NULL;
}

/* Copies a Jinja string's inside, undoing \n, \' and the like. Returns false when it is no plain
 * string (a quote ends it, so there is a program in it) or too long. */
static bool copy_literal(const char *text, size_t bytes, char *literal_out)
{
    size_t made = 0;
    for (size_t index = 0; index < bytes; index++) {
        char byte = text[index];
        if (byte == '\'' || byte == '"' || byte == '{' || byte == '}' || byte == '\0' ||
            made + 1 >= GW_CHAT_DEFAULT_BYTES) {
            return false;
        }
        if (byte == '\\' && index + 1 < bytes) {
            index++;
            byte = text[index] == 'n' ? '\n' : text[index];
        }
        literal_out[made++] = byte;
    }
    literal_out[made] = '\0';
    return true;
}

/* The system text that a ChatML template writes by itself: the plain string between
 * "<|im_start|>system" with a line's end, real or written as \n, and "<|im_end|>". */
static void find_default_system(struct template_text text, char *literal_out)
{
    static const char OPEN[] = "<|im_start|>system";
    for (const char *at = seek(text, 0, OPEN); at != NULL;) {
        size_t start = (size_t)(at - text.text) + strlen(OPEN);
        const size_t left = text.bytes - start;
        const size_t line_end = left >= 1 && text.text[start] == '\n'                   ? 1
                                : left >= 2 && memcmp(text.text + start, "\\n", 2) == 0 ? 2
                                                                                        : 0;
        const char *end = seek(text, start, "<|im_end|>");
        start += line_end;
        if (line_end > 0 && end != NULL &&
            copy_literal(text.text + start, (size_t)(end - text.text) - start, literal_out)) {
            return;
        }
        at = seek(text, start, OPEN);
    }
    literal_out[0] = '\0';
}

static enum pp_status detect(struct gw_chat *chat, struct template_text text, char *error_out,
                             size_t error_bytes)
{
    const char *unknown = NULL;
    if (text.bytes > TEMPLATE_BYTES_MAX) {
        unknown = "over 1 MiB long";
    } else if (has(text, "<|im_start|>") && has(text, "<|im_end|>")) {
        chat->family = GW_CHAT_CHATML;
        chat->trim = has(text, "|trim") || has(text, "| trim");
        if (has(text, "<|im_sep|>") || has(text, "enable_thinking")) {
            unknown = "a variant of chatml with rules of its own";
        }
        find_default_system(text, chat->default_system);
    } else if (has(text, "<|start_header_id|>") && has(text, "<|eot_id|>")) {
        chat->family = GW_CHAT_LLAMA3;
        chat->trim = true;
        chat->has_dates = has(text, "Cutting Knowledge Date");
    } else {
        unknown = "unknown";
    }
    if (unknown != NULL) {
        (void)snprintf(error_out, error_bytes,
                       "the model's chat template is %s (chatml and llama3 are supported; name "
                       "one of them, or give the prompt as plain text)",
                       unknown);
        return PP_UNIMPLEMENTED;
    }
    return PP_OK;
}

static enum pp_status pick_family(struct gw_chat *chat, const struct gw_gguf *gguf,
                                  const char *name, char *error_out, size_t error_bytes)
{
    if (name != NULL && strcmp(name, "chatml") == 0) {
        chat->family = GW_CHAT_CHATML;
        return PP_OK;
    }
    if (name != NULL && strcmp(name, "llama3") == 0) {
        chat->family = GW_CHAT_LLAMA3;
        chat->trim = true;
        return PP_OK;
    }
    if (name != NULL) {
        (void)snprintf(error_out, error_bytes,
                       "there is no chat template '%.32s' (chatml and llama3 are there)", name);
        return PP_UNIMPLEMENTED;
    }
    struct template_text text = {0};
    if (gw_gguf_string(gguf, "tokenizer.chat_template", &text.text, &text.bytes) != PP_OK) {
        (void)snprintf(error_out, error_bytes,
                       "the model has no chat template (name one: chatml or llama3)");
        return PP_NOT_FOUND;
    }
    return detect(chat, text, error_out, error_bytes);
}

static enum pp_status need_token(const struct gw_chat *chat, const char *text, char *error_out,
                                 size_t error_bytes, uint32_t *id_out)
{
    const enum pp_status status = gw_tokenizer_find(chat->tokenizer, text, id_out);
    if (status != PP_OK) {
        (void)snprintf(error_out, error_bytes, "the vocabulary has no control token %s", text);
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

/* The default text comes from the file: what no message could say must not fail every message. */
static enum pp_status check_default(const struct gw_chat *chat, char *error_out, size_t error_bytes)
{
    uint32_t *ids = NULL;
    size_t count = 0;
    const enum pp_status status = gw_tokenizer_encode(
        chat->tokenizer, chat->default_system, strlen(chat->default_system), false, &ids, &count);
    if (status != PP_OK) {
        (void)snprintf(error_out, error_bytes,
                       "the chat template's default system text cannot be encoded (no UTF-8?)");
        return status;
    }
    free(ids);
    return PP_OK;
}

enum pp_status gw_chat_init(struct gw_chat *chat, const struct gw_gguf *gguf,
                            const struct gw_tokenizer *tokenizer, const char *name, char *error_out,
                            size_t error_bytes)
{
    struct gw_chat made = {.tokenizer = tokenizer};
    PP_TRY(pick_family(&made, gguf, name, error_out, error_bytes));
    PP_TRY(check_default(&made, error_out, error_bytes));
    made.has_begin = gw_tokenizer_adds_bos(tokenizer, &made.begin_id);
    if (made.family == GW_CHAT_CHATML) {
        PP_TRY(need_token(&made, "<|im_start|>", error_out, error_bytes, &made.open_id));
        PP_TRY(need_token(&made, "<|im_end|>", error_out, error_bytes, &made.close_id));
    } else {
        /* The template writes the begin token itself: there once, whatever the tokenizer adds. */
        made.has_begin = true;
        PP_TRY(need_token(&made, "<|begin_of_text|>", error_out, error_bytes, &made.begin_id));
        PP_TRY(need_token(&made, "<|start_header_id|>", error_out, error_bytes, &made.open_id));
        PP_TRY(need_token(&made, "<|end_header_id|>", error_out, error_bytes, &made.header_end_id));
        PP_TRY(need_token(&made, "<|eot_id|>", error_out, error_bytes, &made.close_id));
    }
    *chat = made;
    return PP_OK;
}

struct writing {
    const struct gw_chat *chat;
    uint32_t *ids; /* owned until handed out */
    size_t count;
    size_t capacity;
};

static enum pp_status write_ids(struct writing *writing, const uint32_t *ids, size_t count)
{
    if (writing->capacity - writing->count < count) {
        const size_t capacity = (writing->count + count) * 2 + 64;
        uint32_t *grown = realloc(writing->ids, capacity * sizeof(*grown));
        if (grown == NULL) {
            return PP_MEMORY;
        }
        writing->ids = grown;
        writing->capacity = capacity;
    }
    memcpy(writing->ids + writing->count, ids, count * sizeof(*ids));
    writing->count += count;
    return PP_OK;
}

/* A text of the template's and one of a message's behind it, encoded together as plain text. */
static enum pp_status write_text(struct writing *writing, const char *lead, const char *content,
                                 size_t content_bytes)
{
    const size_t lead_bytes = strlen(lead);
    char *text = malloc(lead_bytes + content_bytes + 1);
    if (text == NULL) {
        return PP_MEMORY;
    }
    memcpy(text, lead, lead_bytes);
    if (content_bytes > 0) {
        memcpy(text + lead_bytes, content, content_bytes);
    }
    uint32_t *ids = NULL;
    size_t count = 0;
    enum pp_status status = gw_tokenizer_encode(writing->chat->tokenizer, text,
                                                lead_bytes + content_bytes, false, &ids, &count);
    free(text);
    if (status == PP_OK) {
        status = write_ids(writing, ids, count);
        free(ids);
    }
    return status;
}

/* The role and what stands between it and the content. */
static enum pp_status write_header(struct writing *writing, enum gw_chat_role role)
{
    const struct gw_chat *chat = writing->chat;
    PP_TRY(write_ids(writing, &chat->open_id, 1));
    if (chat->family == GW_CHAT_LLAMA3) {
        PP_TRY(write_text(writing, ROLE_NAMES[role], NULL, 0));
        return write_ids(writing, &chat->header_end_id, 1);
    }
    return PP_OK;
}

static bool is_blank(char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static enum pp_status write_message(struct writing *writing, enum gw_chat_role role,
                                    const char *content, size_t bytes, bool dates)
{
    const struct gw_chat *chat = writing->chat;
    while (chat->trim && bytes > 0 && is_blank(content[bytes - 1])) {
        bytes--;
    }
    while (chat->trim && bytes > 0 && is_blank(content[0])) {
        content++;
        bytes--;
    }
    char lead[GW_CHAT_DEFAULT_BYTES];
    if (chat->family == GW_CHAT_LLAMA3) {
        (void)snprintf(lead, sizeof(lead), "\n\n%s", dates ? LLAMA3_DATES : "");
    } else {
        (void)snprintf(lead, sizeof(lead), "%s\n", ROLE_NAMES[role]);
    }
    PP_TRY(write_header(writing, role));
    PP_TRY(write_text(writing, lead, content, bytes));
    PP_TRY(write_ids(writing, &chat->close_id, 1));
    return chat->family == GW_CHAT_CHATML ? write_text(writing, "\n", NULL, 0) : PP_OK;
}

static enum pp_status write_all(struct writing *writing, const struct gw_chat_message *messages,
                                size_t message_count, bool answer)
{
    const struct gw_chat *chat = writing->chat;
    const bool has_system = messages[0].role == GW_CHAT_SYSTEM;
    if (chat->has_begin) {
        PP_TRY(write_ids(writing, &chat->begin_id, 1));
    }
    if (!has_system && (chat->has_dates || chat->default_system[0] != '\0')) {
        PP_TRY(write_message(writing, GW_CHAT_SYSTEM, chat->default_system,
                             strlen(chat->default_system), chat->has_dates));
    }
    for (size_t index = 0; index < message_count; index++) {
        const struct gw_chat_message *message = &messages[index];
        PP_TRY(write_message(writing, message->role, message->content, message->content_bytes,
                             chat->has_dates && has_system && index == 0));
    }
    if (answer) {
        PP_TRY(write_header(writing, GW_CHAT_ASSISTANT));
        return write_text(writing, chat->family == GW_CHAT_LLAMA3 ? "\n\n" : "assistant\n", NULL,
                          0);
    }
    return PP_OK;
}

enum pp_status gw_chat_encode(const struct gw_chat *chat, const struct gw_chat_message *messages,
                              size_t message_count, bool answer, uint32_t **ids_out,
                              size_t *count_out)
{
    if (message_count == 0) {
        return PP_INVALID_ARGUMENT;
    }
    struct writing writing = {.chat = chat};
    const enum pp_status status = write_all(&writing, messages, message_count, answer);
    if (status != PP_OK) {
        free(writing.ids);
        return status;
    }
    *ids_out = writing.ids;
    *count_out = writing.count;
    return PP_OK;
}
