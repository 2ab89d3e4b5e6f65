/*
 * Renders and parses the manifest of a saved document. Every number is checked before anybody
 * counts on it. It refuses to know files.
 */
#include "gpu-worker/api/document_manifest.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FORMAT "pigpen-document"

__attribute__((format(printf, 4, 5))) static enum pp_status
fault(enum pp_status status, char *error_out, size_t error_bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_out, error_bytes, format, arguments);
    va_end(arguments);
    return status;
}

static void fingerprint_text(const uint8_t *fingerprint, uint32_t bytes, char *text_out)
{
    text_out[0] = '\0';
    for (uint32_t i = 0; i < bytes; i++) {
        snprintf(text_out + (size_t)i * 2, 3, "%02x", fingerprint[i]);
    }
}

static json_t *sums_render(const uint32_t *sums, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        (void)json_array_append_new(list, json_integer(sums[i]));
    }
    return list;
}

enum pp_status gw_document_manifest_render(const struct gw_document_manifest *manifest,
                                           char **text_out)
{
    const struct pp_shape *shape = &manifest->shape;
    char fingerprint[2 * PP_FINGERPRINT_BYTES + 1];
    fingerprint_text(manifest->fingerprint, manifest->fingerprint_bytes, fingerprint);
    json_t *root = json_pack(
        "{s:s, s:i, s:{s:s, s:i, s:i, s:i, s:i}, s:s, s:I, s:b, s:{s:I, s:I, s:o, s:o}}", "format",
        FORMAT, "version", (int)GW_DOCUMENT_VERSION, "model", "fingerprint", fingerprint, "layers",
        (int)shape->layers, "q_heads", (int)shape->q_heads, "kv_heads", (int)shape->kv_heads,
        "head_dim", (int)shape->head_dim, "kv_dtype", pp_dtype_name(shape->kv_dtype), "tokens",
        (json_int_t)manifest->tokens, "balanced", (int)manifest->balanced, "crc32c", "tokens",
        (json_int_t)manifest->tokens_crc32c, "balances", (json_int_t)manifest->balances_crc32c, "k",
        sums_render(manifest->k_crc32c, shape->layers), "v",
        sums_render(manifest->v_crc32c, shape->layers));
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL) {
        return PP_MEMORY;
    }
    *text_out = text;
    return PP_OK;
}

/* "0af3" to bytes; 0: it is none. */
static uint32_t fingerprint_parse(const char *text, uint8_t *fingerprint_out)
{
    size_t digits = strlen(text);
    if (digits % 2 != 0 || digits > 2 * (size_t)PP_FINGERPRINT_BYTES ||
        strspn(text, "0123456789abcdef") != digits) {
        return 0;
    }
    for (size_t i = 0; i < digits; i++) {
        uint32_t nibble = (uint32_t)(text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
        fingerprint_out[i / 2] =
            (uint8_t)(i % 2 == 0 ? nibble << 4 : fingerprint_out[i / 2] | nibble);
    }
    return (uint32_t)(digits / 2);
}

static enum pp_dtype dtype_parse(const char *text)
{
    for (int dtype = PP_BF16; dtype <= PP_I8; dtype++) {
        if (strcmp(text, pp_dtype_name((enum pp_dtype)dtype)) == 0) {
            return (enum pp_dtype)dtype;
        }
    }
    return PP_DTYPE_NONE;
}

static bool sum_parse(const json_t *value, uint32_t *sum_out)
{
    json_int_t sum = json_integer_value(value);
    *sum_out = (uint32_t)sum;
    return json_is_integer(value) && sum >= 0 && sum <= (json_int_t)UINT32_MAX;
}

static bool sums_parse(const json_t *list, uint32_t count, uint32_t *sums_out)
{
    bool right = json_is_array(list) && json_array_size(list) == count;
    for (uint32_t i = 0; i < count && right; i++) {
        right = sum_parse(json_array_get(list, i), &sums_out[i]);
    }
    return right;
}

/* The fields by name and type; their bounds are checked behind. */
static enum pp_status fields_parse(json_t *root, struct gw_document_manifest *manifest,
                                   char *error_out, size_t error_bytes)
{
    const char *fingerprint, *dtype;
    json_int_t layers, q_heads, kv_heads, head_dim, tokens;
    json_t *tokens_sum, *balances_sum, *k, *v;
    json_error_t error;
    int balanced;
    if (json_unpack_ex(root, &error, 0,
                       "{s:{s:s, s:I, s:I, s:I, s:I}, s:s, s:I, s:b, s:{s:o, s:o, s:o, s:o}}",
                       "model", "fingerprint", &fingerprint, "layers", &layers, "q_heads", &q_heads,
                       "kv_heads", &kv_heads, "head_dim", &head_dim, "kv_dtype", &dtype, "tokens",
                       &tokens, "balanced", &balanced, "crc32c", "tokens", &tokens_sum, "balances",
                       &balances_sum, "k", &k, "v", &v) != 0) {
        return fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "%s", error.text);
    }
    bool sized = layers > 0 && layers <= PP_LAYERS_MAX && q_heads > 0 &&
                 q_heads <= PP_Q_HEADS_MAX && kv_heads > 0 && kv_heads <= PP_KV_HEADS_MAX &&
                 head_dim > 0 && head_dim <= PP_HEAD_DIM_MAX;
    manifest->shape = (struct pp_shape){.layers = (uint32_t)layers,
                                        .q_heads = (uint32_t)q_heads,
                                        .kv_heads = (uint32_t)kv_heads,
                                        .head_dim = (uint32_t)head_dim,
                                        .scale = 1.0f,
                                        .kv_dtype = dtype_parse(dtype)};
    if (!sized || pp_shape_check(&manifest->shape) != PP_OK) {
        return fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "its shape is of no model");
    }
    manifest->fingerprint_bytes = fingerprint_parse(fingerprint, manifest->fingerprint);
    if (manifest->fingerprint_bytes == 0) {
        return fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "its fingerprint is none");
    }
    if (tokens <= 0 || tokens > (json_int_t)PP_TOKENS_PER_PART_MAX) {
        return fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "it cannot have %lld tokens",
                     (long long)tokens);
    }
    manifest->tokens = (uint64_t)tokens;
    manifest->balanced = balanced != 0;
    if (!sum_parse(tokens_sum, &manifest->tokens_crc32c) ||
        !sum_parse(balances_sum, &manifest->balances_crc32c) ||
        !sums_parse(k, manifest->shape.layers, manifest->k_crc32c) ||
        !sums_parse(v, manifest->shape.layers, manifest->v_crc32c)) {
        return fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "its checksums are none");
    }
    return PP_OK;
}

enum pp_status gw_document_manifest_parse(const char *text, size_t bytes,
                                          struct gw_document_manifest *manifest_out,
                                          char *error_out, size_t error_bytes)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "it is no JSON: line %d: %s",
                     error.line, error.text);
    }
    const char *format = json_string_value(json_object_get(root, "format"));
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    struct gw_document_manifest manifest = {0};
    enum pp_status status;
    if (format == NULL || strcmp(format, FORMAT) != 0) {
        status = fault(PP_INVALID_ARGUMENT, error_out, error_bytes, "it is of another program");
    } else if (version != (json_int_t)GW_DOCUMENT_VERSION) {
        status = fault(PP_INVALID_ARGUMENT, error_out, error_bytes,
                       "its version is %lld, this program reads version %u", (long long)version,
                       GW_DOCUMENT_VERSION);
    } else {
        status = fields_parse(root, &manifest, error_out, error_bytes);
    }
    json_decref(root);
    if (status == PP_OK) {
        *manifest_out = manifest;
    }
    return status;
}

enum pp_status gw_document_manifest_match(const struct gw_document_manifest *manifest,
                                          const struct pp_shape *shape, const uint8_t *fingerprint,
                                          uint32_t fingerprint_bytes, char *error_out,
                                          size_t error_bytes)
{
    const struct pp_shape *saved = &manifest->shape;
    char theirs[2 * PP_FINGERPRINT_BYTES + 1], ours[2 * PP_FINGERPRINT_BYTES + 1];
    if (manifest->fingerprint_bytes != fingerprint_bytes ||
        memcmp(manifest->fingerprint, fingerprint, fingerprint_bytes) != 0 ||
        saved->layers != shape->layers || saved->q_heads != shape->q_heads ||
        saved->kv_heads != shape->kv_heads || saved->head_dim != shape->head_dim) {
        fingerprint_text(manifest->fingerprint, manifest->fingerprint_bytes, theirs);
        fingerprint_text(fingerprint, fingerprint_bytes, ours);
        return fault(PP_MODEL_MISMATCH, error_out, error_bytes,
                     "it was saved with another model (fingerprint %s, this one's is %s): give "
                     "that one with --model, or save the text again with this one",
                     theirs, ours);
    }
    if (saved->kv_dtype != shape->kv_dtype) {
        return fault(PP_FAILED_PRECONDITION, error_out, error_bytes,
                     "its keys and values are %s, this run's %s: give --kv-dtype=%s, or save the "
                     "text again",
                     pp_dtype_name(saved->kv_dtype), pp_dtype_name(shape->kv_dtype),
                     pp_dtype_name(saved->kv_dtype));
    }
    return PP_OK;
}
