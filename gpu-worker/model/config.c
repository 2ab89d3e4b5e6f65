/*
 * The model's sizes from a GGUF file's keys: second step on a model's way in, before weights.c
 * holds the tensors against them. Knows nothing of tensors but the two that settle a size.
 */
#include "gpu-worker/model/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"

#define HIDDEN_MAX (1u << 16)
#define FFN_MAX    (1u << 20)

#define CONTEXT_MAX (1u << 30)

struct config_reader {
    const struct gw_gguf *gguf;
    char *error;
    size_t error_bytes;
};

__attribute__((format(printf, 3, 4))) static enum pp_status
refuse(const struct config_reader *reader, enum pp_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (reader->error_bytes > 0) {
        (void)vsnprintf(reader->error, reader->error_bytes, format, arguments);
    }
    va_end(arguments);
    return status;
}

/* One number a layer is allowed where all are the same. */
static enum pp_status uniform_array(const struct config_reader *reader, const char *key,
                                    uint64_t *value_out)
{
    uint64_t count = 0;
    int64_t first = 0;
    if (gw_gguf_array_count(reader->gguf, key, &count) != PP_OK || count == 0 ||
        gw_gguf_array_i64(reader->gguf, key, 0, &first) != PP_OK || first < 0) {
        return refuse(reader, PP_INVALID_ARGUMENT, "%s is no whole number", key);
    }
    for (uint64_t index = 1; index < count; index++) {
        int64_t value = 0;
        if (gw_gguf_array_i64(reader->gguf, key, index, &value) != PP_OK || value != first) {
            return refuse(reader, PP_UNIMPLEMENTED,
                          "%s differs between layers, which is not supported", key);
        }
    }
    *value_out = (uint64_t)first;
    return PP_OK;
}

/* A whole number in [1, max]. PP_NOT_FOUND, without a message, when absent. */
static enum pp_status read_count(const struct config_reader *reader, const char *key, uint32_t max,
                                 uint32_t *count_out)
{
    uint64_t value = 0;
    enum pp_status status = gw_gguf_u64(reader->gguf, key, &value);
    if (status == PP_NOT_FOUND) {
        return status;
    }
    if (status != PP_OK) {
        PP_TRY(uniform_array(reader, key, &value));
    }
    if (value < 1 || value > max) {
        return refuse(reader, PP_INVALID_ARGUMENT, "%s is %llu (1 to %u is allowed)", key,
                      (unsigned long long)value, max);
    }
    *count_out = (uint32_t)value;
    return PP_OK;
}

static enum pp_status need_count(const struct config_reader *reader, const char *key, uint32_t max,
                                 uint32_t *count_out)
{
    const enum pp_status status = read_count(reader, key, max, count_out);
    if (status == PP_NOT_FOUND) {
        return refuse(reader, PP_INVALID_ARGUMENT, "%s is missing", key);
    }
    return status;
}

/* A finite number in (low, high]; value_out stands when the key is absent. */
static enum pp_status read_number(const struct config_reader *reader, const char *key, double low,
                                  double high, double *value_out)
{
    double value = 0;
    const enum pp_status status = gw_gguf_f64(reader->gguf, key, &value);
    if (status == PP_NOT_FOUND) {
        return PP_OK;
    }
    if (status != PP_OK) {
        return refuse(reader, status, "%s is no number", key);
    }
    if (!(value > low && value <= high)) { /* also NaN */
        return refuse(reader, PP_INVALID_ARGUMENT, "%s is %g (above %g, up to %g is allowed)", key,
                      value, low, high);
    }
    *value_out = value;
    return PP_OK;
}

/* Is the string value of key this text? */
static bool string_is(const struct gw_gguf *gguf, const char *key, const char *text)
{
    const char *value = NULL;
    size_t bytes = 0;
    return gw_gguf_string(gguf, key, &value, &bytes) == PP_OK && bytes == strlen(text) &&
           memcmp(value, text, bytes) == 0;
}

static void copy_name(const struct gw_gguf *gguf, char *name_out)
{
    const char *text = "llama";
    size_t bytes = strlen(text);
    if (gw_gguf_string(gguf, "general.name", &text, &bytes) != PP_OK || bytes == 0) {
        text = "llama";
        bytes = strlen(text);
    }
    bytes = bytes < GW_CONFIG_NAME_BYTES ? bytes : GW_CONFIG_NAME_BYTES - 1;
    for (size_t index = 0; index < bytes; index++) {
        const char byte = text[index];
        name_out[index] = (byte >= 0x20 && byte < 0x7f) ? byte : '?';
    }
    name_out[bytes] = '\0';
}

static enum pp_status read_heads(const struct config_reader *reader, struct gw_config *config)
{
    PP_TRY(need_count(reader, "llama.attention.head_count", PP_Q_HEADS_MAX, &config->q_heads));
    config->kv_heads = config->q_heads;
    enum pp_status status =
        read_count(reader, "llama.attention.head_count_kv", PP_KV_HEADS_MAX, &config->kv_heads);
    if (status != PP_OK && status != PP_NOT_FOUND) {
        return status;
    }
    if (config->q_heads % config->kv_heads != 0) {
        return refuse(reader, PP_INVALID_ARGUMENT,
                      "%u query heads (llama.attention.head_count) cannot share %u kv heads "
                      "(llama.attention.head_count_kv): not divisible",
                      config->q_heads, config->kv_heads);
    }
    status = read_count(reader, "llama.attention.key_length", PP_HEAD_DIM_MAX, &config->head_dim);
    if (status == PP_NOT_FOUND) {
        if (config->hidden % config->q_heads != 0) {
            return refuse(reader, PP_INVALID_ARGUMENT,
                          "llama.embedding_length %u is not divisible by %u query heads "
                          "(llama.attention.head_count)",
                          config->hidden, config->q_heads);
        }
        config->head_dim = config->hidden / config->q_heads;
    } else if (status != PP_OK) {
        return status;
    }
    if (config->head_dim > PP_HEAD_DIM_MAX || config->head_dim % 2 != 0) {
        return refuse(reader, PP_INVALID_ARGUMENT,
                      "heads of %u elements (even, up to %u is "
                      "allowed)",
                      config->head_dim, PP_HEAD_DIM_MAX);
    }
    uint32_t value_length = config->head_dim;
    status = read_count(reader, "llama.attention.value_length", PP_HEAD_DIM_MAX, &value_length);
    if (status != PP_OK && status != PP_NOT_FOUND) {
        return status;
    }
    if (value_length != config->head_dim) {
        return refuse(reader, PP_UNIMPLEMENTED,
                      "values of %u elements with keys of %u are not "
                      "supported",
                      value_length, config->head_dim);
    }
    double scale = 1.0 / sqrt((double)config->head_dim);
    PP_TRY(read_number(reader, "llama.attention.scale", 0, 1e6, &scale));
    config->attention_scale = (float)scale;
    return PP_OK;
}

static enum pp_status read_rope(const struct config_reader *reader, struct gw_config *config)
{
    config->rope_style = GW_ROPE_INTERLEAVED;
    config->rope_theta = 10000;
    PP_TRY(read_number(reader, "llama.rope.freq_base", 1, 1e12, &config->rope_theta));
    config->rope_dim = config->head_dim;
    const enum pp_status status =
        read_count(reader, "llama.rope.dimension_count", PP_HEAD_DIM_MAX, &config->rope_dim);
    if (status != PP_OK && status != PP_NOT_FOUND) {
        return status;
    }
    if (config->rope_dim != config->head_dim) {
        return refuse(reader, PP_UNIMPLEMENTED,
                      "llama.rope.dimension_count is %u, but heads have %u elements: partial "
                      "rotation is not supported",
                      config->rope_dim, config->head_dim);
    }
    double factor = 1;
    PP_TRY(read_number(reader, "llama.rope.scale_linear", 0, 1e6, &factor));
    const char *type = "none";
    size_t bytes = strlen(type);
    if (gw_gguf_string(reader->gguf, "llama.rope.scaling.type", &type, &bytes) ==
        PP_INVALID_ARGUMENT) {
        return refuse(reader, PP_INVALID_ARGUMENT, "llama.rope.scaling.type is no text");
    }
    if (string_is(reader->gguf, "llama.rope.scaling.type", "linear")) {
        PP_TRY(read_number(reader, "llama.rope.scaling.factor", 0, 1e6, &factor));
    } else if (bytes != 4 || memcmp(type, "none", 4) != 0) {
        return refuse(reader, PP_UNIMPLEMENTED,
                      "llama.rope.scaling.type '%.*s' is not supported (none and linear are)",
                      (int)(bytes < 32 ? bytes : 32), type);
    }
    config->rope_scale = 1.0 / factor;
    return PP_OK;
}

/* What this program does not compute. */
static enum pp_status check_features(const struct config_reader *reader,
                                     const struct gw_config *config)
{
    uint64_t experts = 0;
    const enum pp_status experts_status = gw_gguf_u64(reader->gguf, "llama.expert_count", &experts);
    if (experts_status != PP_NOT_FOUND && (experts_status != PP_OK || experts != 0)) {
        return refuse(reader, PP_UNIMPLEMENTED,
                      "llama.expert_count: mixtures of experts are not supported");
    }
    uint64_t window = 0;
    const enum pp_status window_status =
        gw_gguf_u64(reader->gguf, "llama.attention.sliding_window", &window);
    if (window_status != PP_NOT_FOUND &&
        (window_status != PP_OK || (window != 0 && window < config->context_length))) {
        return refuse(reader, PP_UNIMPLEMENTED,
                      "llama.attention.sliding_window: sliding windows are not supported");
    }
    return PP_OK;
}

/* The embedding's rows say the vocabulary where no key does. */
static enum pp_status read_vocab(const struct config_reader *reader, struct gw_config *config)
{
    enum pp_status status = read_count(reader, "llama.vocab_size", GW_VOCAB_MAX, &config->vocab);
    if (status == PP_NOT_FOUND) {
        const struct gw_tensor *embedding = gw_gguf_tensor(reader->gguf, "token_embd.weight");
        if (embedding == NULL || embedding->dims[1] > GW_VOCAB_MAX) {
            return refuse(reader, PP_INVALID_ARGUMENT,
                          "llama.vocab_size is missing and token_embd.weight does not tell it");
        }
        config->vocab = (uint32_t)embedding->dims[1];
    } else if (status != PP_OK) {
        return status;
    }
    uint64_t tokens = 0;
    status = gw_gguf_array_count(reader->gguf, "tokenizer.ggml.tokens", &tokens);
    if (status == PP_OK && tokens > config->vocab) {
        return refuse(reader, PP_INVALID_ARGUMENT, "%llu tokens, but a vocabulary of %u",
                      (unsigned long long)tokens, config->vocab);
    }
    config->tied = gw_gguf_tensor(reader->gguf, "output.weight") == NULL;
    return PP_OK;
}

enum pp_status gw_config_read(const struct gw_gguf *gguf, char *error_out, size_t error_bytes,
                              struct gw_config *config_out)
{
    const struct config_reader reader = {gguf, error_out, error_bytes};
    struct gw_config config = {0};
    const char *arch = "";
    size_t arch_bytes = 0;
    if (gw_gguf_string(gguf, "general.architecture", &arch, &arch_bytes) != PP_OK) {
        return refuse(&reader, PP_INVALID_ARGUMENT, "general.architecture is missing or no text");
    }
    if (!string_is(gguf, "general.architecture", "llama")) {
        return refuse(&reader, PP_UNIMPLEMENTED,
                      "the architecture '%.*s' is not supported (llama is)",
                      (int)(arch_bytes < 32 ? arch_bytes : 32), arch);
    }
    copy_name(gguf, config.name);
    PP_TRY(need_count(&reader, "llama.block_count", PP_LAYERS_MAX, &config.layers));
    PP_TRY(need_count(&reader, "llama.embedding_length", HIDDEN_MAX, &config.hidden));
    PP_TRY(need_count(&reader, "llama.feed_forward_length", FFN_MAX, &config.ffn));
    PP_TRY(need_count(&reader, "llama.context_length", CONTEXT_MAX, &config.context_length));
    PP_TRY(read_heads(&reader, &config));
    PP_TRY(read_rope(&reader, &config));
    double eps = NAN;
    PP_TRY(read_number(&reader, "llama.attention.layer_norm_rms_epsilon", 0, 1, &eps));
    if (isnan(eps)) {
        return refuse(&reader, PP_INVALID_ARGUMENT,
                      "llama.attention.layer_norm_rms_epsilon is missing");
    }
    config.rms_eps = (float)eps;
    PP_TRY(read_vocab(&reader, &config));
    PP_TRY(check_features(&reader, &config));
    *config_out = config;
    return PP_OK;
}
