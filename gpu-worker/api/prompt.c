/*
 * Prompts from texts: reads, joins, wraps in the model's chat template, encodes. It refuses to know
 * what is done with the ids.
 */
#include "gpu-worker/api/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "gpu-worker/model/chat.h"

static enum pp_status prompt_memory(FILE *errors)
{
    fprintf(errors, "the prompt does not fit the memory\n");
    return PP_MEMORY;
}

enum pp_status gw_prompt_read(const struct gw_prompt_options *options, FILE *errors,
                              char **text_out, size_t *bytes_out)
{
    if (options->file[0] != '\0') {
        return gw_file_read(options->file, errors, text_out, bytes_out);
    }
    char *empty = calloc(1, 1);
    if (empty == NULL) {
        return prompt_memory(errors);
    }
    *text_out = empty;
    *bytes_out = 0;
    return PP_OK;
}

enum pp_status gw_prompt_join(const char *text, size_t bytes, const char *prompt, FILE *errors,
                              char **joined_out, size_t *bytes_out)
{
    const char *between = bytes == 0 || prompt[0] == '\0' ? ""
                          : text[bytes - 1] == '\n'       ? "\n"
                                                          : "\n\n";
    size_t between_bytes = strlen(between), prompt_bytes = strlen(prompt);
    char *joined = malloc(bytes + between_bytes + prompt_bytes + 1);
    if (joined == NULL) {
        return prompt_memory(errors);
    }
    memcpy(joined, text, bytes);
    memcpy(joined + bytes, between, between_bytes);
    memcpy(joined + bytes + between_bytes, prompt, prompt_bytes + 1);
    *joined_out = joined;
    *bytes_out = bytes + between_bytes + prompt_bytes;
    return PP_OK;
}

static void prompt_explain(FILE *errors, enum pp_status status)
{
    fprintf(errors, "the prompt cannot be encoded: %s (is it UTF-8 text?)\n",
            pp_status_name(status));
}

static enum pp_status prompt_raw(const struct gw_worker *worker, const char *text, size_t bytes,
                                 FILE *errors, uint32_t **ids_out, size_t *count_out)
{
    uint32_t begin;
    enum pp_status status =
        gw_tokenizer_encode(worker->tokenizer, text, bytes, false, ids_out, count_out);
    if (status != PP_OK) {
        prompt_explain(errors, status);
        return status;
    }
    if (!gw_tokenizer_adds_bos(worker->tokenizer, &begin)) {
        return PP_OK;
    }
    uint32_t *longer = realloc(*ids_out, (*count_out + 1) * sizeof(**ids_out));
    if (longer == NULL) {
        free(*ids_out);
        return PP_MEMORY;
    }
    memmove(longer + 1, longer, *count_out * sizeof(*longer));
    longer[0] = begin;
    *ids_out = longer;
    *count_out += 1;
    return PP_OK;
}

static enum pp_status prompt_chat(const struct gw_worker *worker,
                                  const struct gw_prompt_options *options, const char *text,
                                  size_t bytes, FILE *errors, uint32_t **ids_out, size_t *count_out)
{
    struct gw_chat chat;
    char error[512] = "";
    enum pp_status status =
        gw_chat_init(&chat, worker->gguf, worker->tokenizer, NULL, error, sizeof(error));
    if (status != PP_OK) {
        fprintf(errors, "%s (--raw continues a text without a template)\n", error);
        return status;
    }
    struct gw_chat_message messages[2];
    size_t count = 0;
    if (options->system[0] != '\0') {
        messages[count++] =
            (struct gw_chat_message){GW_CHAT_SYSTEM, options->system, strlen(options->system)};
    }
    messages[count++] = (struct gw_chat_message){GW_CHAT_USER, text, bytes};
    status = gw_chat_encode(&chat, messages, count, true, ids_out, count_out);
    if (status != PP_OK) {
        prompt_explain(errors, status);
    }
    return status;
}

enum pp_status gw_prompt_encode(const struct gw_worker *worker,
                                const struct gw_prompt_options *options, const char *text,
                                size_t bytes, FILE *errors, uint32_t **ids_out, size_t *count_out)
{
    enum pp_status status =
        options->raw ? prompt_raw(worker, text, bytes, errors, ids_out, count_out)
                     : prompt_chat(worker, options, text, bytes, errors, ids_out, count_out);
    if (status == PP_OK && *count_out == 0) {
        fprintf(errors, "the prompt is empty\n");
        free(*ids_out);
        return PP_INVALID_ARGUMENT;
    }
    return status;
}
