/*
 * The front of a GGUF file: header, keys and values, tensor infos. First thing on a model's way
 * in. Every length is checked against the bytes left before it is used, and nothing is allocated
 * from a count that the bytes left could not hold. Knows nothing of what the keys mean, but for
 * general.alignment (gguf_check.c).
 */
#include "gpu-worker/model/gguf_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum pp_status gw_gguf_fail(struct gw_gguf_reader *reader, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (reader->error_bytes > 0) {
        (void)vsnprintf(reader->error, reader->error_bytes, format, arguments);
    }
    va_end(arguments);
    return PP_INVALID_ARGUMENT;
}

struct gw_gguf_printable gw_gguf_printable(const char *text, uint64_t bytes)
{
    struct gw_gguf_printable printable;
    const size_t room = sizeof(printable.text) - 4;
    size_t count = bytes < room ? (size_t)bytes : room;
    for (size_t index = 0; index < count; index++) {
        char byte = text[index];
        printable.text[index] = (byte >= 0x20 && byte < 0x7f) ? byte : '?';
    }
    if (bytes > room) {
        memcpy(printable.text + count, "...", 3);
        count += 3;
    }
    printable.text[count] = '\0';
    return printable;
}

uint32_t gw_gguf_value_bytes(enum gw_gguf_value_type type)
{
    static const uint8_t BYTES[GGUF_VALUE_TYPES] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return BYTES[type];
}

static uint64_t bytes_left(const struct gw_gguf_reader *reader)
{
    return reader->bytes - reader->position;
}

static enum pp_status read_bytes(struct gw_gguf_reader *reader, void *value_out, uint64_t bytes)
{
    if (bytes > bytes_left(reader)) {
        return gw_gguf_fail(reader, "the file ends at byte %llu, in the middle of its header",
                            (unsigned long long)reader->bytes);
    }
    memcpy(value_out, reader->data + reader->position, bytes);
    reader->position += bytes;
    return PP_OK;
}

static enum pp_status read_string(struct gw_gguf_reader *reader, const char *what,
                                  uint64_t bytes_max, const char **text_out, uint64_t *bytes_out)
{
    uint64_t bytes = 0;
    PP_TRY(read_bytes(reader, &bytes, sizeof(bytes)));
    if (bytes > bytes_left(reader) || bytes > bytes_max) {
        return gw_gguf_fail(reader, "%s at byte %llu claims %llu bytes (%llu left, %llu allowed)",
                            what, (unsigned long long)reader->position, (unsigned long long)bytes,
                            (unsigned long long)bytes_left(reader), (unsigned long long)bytes_max);
    }
    *text_out = (const char *)reader->data + reader->position;
    *bytes_out = bytes;
    reader->position += bytes;
    return PP_OK;
}

/* Keys and names: not empty and without NUL. */
static enum pp_status read_name(struct gw_gguf_reader *reader, const char *what, uint64_t bytes_max,
                                const char **text_out, uint64_t *bytes_out)
{
    const char *text = NULL;
    uint64_t bytes = 0;
    PP_TRY(read_string(reader, what, bytes_max, &text, &bytes));
    if (bytes == 0) {
        return gw_gguf_fail(reader, "%s at byte %llu is empty", what,
                            (unsigned long long)reader->position);
    }
    if (memchr(text, 0, bytes) != NULL) {
        return gw_gguf_fail(reader, "%s '%s' holds a NUL byte", what,
                            gw_gguf_printable(text, bytes).text);
    }
    *text_out = text;
    *bytes_out = bytes;
    return PP_OK;
}

static enum pp_status read_type(struct gw_gguf_reader *reader, const struct gw_gguf_value *value,
                                bool in_array, enum gw_gguf_value_type *type_out)
{
    uint32_t type = 0;
    PP_TRY(read_bytes(reader, &type, sizeof(type)));
    if (type >= GGUF_VALUE_TYPES) {
        return gw_gguf_fail(reader, "key '%s' has the unknown type %u",
                            gw_gguf_printable(value->key, value->key_bytes).text, type);
    }
    if (in_array && type == GGUF_ARRAY) {
        return gw_gguf_fail(reader, "key '%s' holds an array of arrays, which is not supported",
                            gw_gguf_printable(value->key, value->key_bytes).text);
    }
    *type_out = (enum gw_gguf_value_type)type;
    return PP_OK;
}

static enum pp_status read_string_array(struct gw_gguf_reader *reader, struct gw_gguf_value *value)
{
    const uint64_t start = reader->position;
    if (value->count == 0) {
        return PP_OK;
    }
    value->offsets = malloc(value->count * sizeof(*value->offsets));
    if (value->offsets == NULL) {
        return PP_MEMORY;
    }
    for (uint64_t index = 0; index < value->count; index++) {
        const char *text = NULL;
        uint64_t bytes = 0;
        value->offsets[index] = reader->position - start;
        PP_TRY(read_string(reader, "a string of an array", GGUF_ENTRY_BYTES_MAX, &text, &bytes));
    }
    return PP_OK;
}

/* Steps over value->count entries of a fixed size. */
static enum pp_status skip_fixed(struct gw_gguf_reader *reader, struct gw_gguf_value *value)
{
    const uint64_t bytes = value->count * gw_gguf_value_bytes(value->type);
    if (bytes > bytes_left(reader)) {
        return gw_gguf_fail(reader, "the file ends in the middle of key '%s'",
                            gw_gguf_printable(value->key, value->key_bytes).text);
    }
    for (uint64_t index = 0; value->type == GGUF_BOOL && index < value->count; index++) {
        if (value->data[index] > 1) {
            return gw_gguf_fail(reader, "key '%s' is a bool of value %u",
                                gw_gguf_printable(value->key, value->key_bytes).text,
                                value->data[index]);
        }
    }
    reader->position += bytes;
    return PP_OK;
}

static enum pp_status read_value(struct gw_gguf_reader *reader, struct gw_gguf_value *value)
{
    uint64_t key_bytes = 0;
    PP_TRY(read_name(reader, "a key", GGUF_KEY_BYTES_MAX, &value->key, &key_bytes));
    value->key_bytes = (uint32_t)key_bytes;
    PP_TRY(read_type(reader, value, false, &value->type));
    value->count = 1;
    value->array = value->type == GGUF_ARRAY;
    if (value->array) {
        PP_TRY(read_type(reader, value, true, &value->type));
        PP_TRY(read_bytes(reader, &value->count, sizeof(value->count)));
        uint64_t entry_bytes = value->type == GGUF_STRING ? 8 : gw_gguf_value_bytes(value->type);
        if (value->count > bytes_left(reader) / entry_bytes) {
            return gw_gguf_fail(reader, "key '%s' claims %llu entries, more than the file can hold",
                                gw_gguf_printable(value->key, value->key_bytes).text,
                                (unsigned long long)value->count);
        }
    }
    value->data = reader->data + reader->position;
    if (value->type != GGUF_STRING) {
        return skip_fixed(reader, value);
    }
    if (value->array) {
        return read_string_array(reader, value);
    }
    const char *text = NULL;
    uint64_t bytes = 0;
    return read_string(reader, "a string value", UINT64_MAX, &text, &bytes);
}

static int value_compare(const void *left, const void *right)
{
    const struct gw_gguf_value *a = left;
    const struct gw_gguf_value *b = right;
    const uint32_t least = a->key_bytes < b->key_bytes ? a->key_bytes : b->key_bytes;
    const int order = memcmp(a->key, b->key, least);
    return order != 0 ? order : (a->key_bytes > b->key_bytes) - (a->key_bytes < b->key_bytes);
}

static enum pp_status read_values(struct gw_gguf_reader *reader, struct gw_gguf *gguf,
                                  uint64_t count)
{
    gguf->values = calloc(count + 1, sizeof(*gguf->values));
    if (gguf->values == NULL) {
        return PP_MEMORY;
    }
    for (uint64_t index = 0; index < count; index++) {
        gguf->value_count = index + 1; /* so that closing frees what the failing one took */
        PP_TRY(read_value(reader, &gguf->values[index]));
    }
    /* Sorting finds twins in O(n log n) whatever the keys are, where a hash could be flooded. */
    qsort(gguf->values, count, sizeof(*gguf->values), value_compare);
    for (uint64_t index = 1; index < count; index++) {
        const struct gw_gguf_value *value = &gguf->values[index];
        if (value_compare(value - 1, value) == 0) {
            return gw_gguf_fail(reader, "key '%s' stands there twice",
                                gw_gguf_printable(value->key, value->key_bytes).text);
        }
    }
    return PP_OK;
}

static enum pp_status read_tensor(struct gw_gguf_reader *reader, struct gw_gguf_tensor_entry *entry)
{
    const char *name = NULL;
    uint64_t name_bytes = 0;
    PP_TRY(read_name(reader, "a tensor's name", GGUF_NAME_BYTES_MAX, &name, &name_bytes));
    memcpy(entry->name, name, name_bytes);
    struct gw_tensor *tensor = &entry->tensor;
    tensor->name = entry->name;
    PP_TRY(read_bytes(reader, &tensor->dim_count, sizeof(tensor->dim_count)));
    if (tensor->dim_count < 1 || tensor->dim_count > GGUF_DIMS_MAX) {
        return gw_gguf_fail(reader, "tensor '%s' has %u dimensions (1 to %d are allowed)",
                            gw_gguf_printable(name, name_bytes).text, tensor->dim_count,
                            GGUF_DIMS_MAX);
    }
    for (uint32_t dim = 0; dim < GGUF_DIMS_MAX; dim++) {
        tensor->dims[dim] = 1;
    }
    PP_TRY(read_bytes(reader, tensor->dims, tensor->dim_count * sizeof(tensor->dims[0])));
    uint32_t type = 0;
    PP_TRY(read_bytes(reader, &type, sizeof(type)));
    tensor->type = (enum gw_tensor_type)type;
    return read_bytes(reader, &entry->offset, sizeof(entry->offset));
}

static enum pp_status read_tensors(struct gw_gguf_reader *reader, struct gw_gguf *gguf,
                                   uint64_t count)
{
    gguf->tensors = calloc(count + 1, sizeof(*gguf->tensors));
    gguf->tensors_by_name = calloc(count + 1, sizeof(struct gw_gguf_tensor_entry *));
    if (gguf->tensors == NULL || gguf->tensors_by_name == NULL) {
        return PP_MEMORY;
    }
    gguf->tensor_count = count;
    for (uint64_t index = 0; index < count; index++) {
        gguf->tensors_by_name[index] = &gguf->tensors[index];
        PP_TRY(read_tensor(reader, &gguf->tensors[index]));
    }
    return PP_OK;
}

static enum pp_status read_header(struct gw_gguf_reader *reader, uint64_t *tensor_count_out,
                                  uint64_t *value_count_out)
{
    char magic[4];
    uint32_t version = 0;
    if (reader->bytes < GGUF_HEADER_BYTES) {
        return gw_gguf_fail(reader, "%llu bytes are too few for a GGUF file",
                            (unsigned long long)reader->bytes);
    }
    PP_TRY(read_bytes(reader, magic, sizeof(magic)));
    if (memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        return gw_gguf_fail(reader, "not a GGUF file (it does not start with 'GGUF')");
    }
    PP_TRY(read_bytes(reader, &version, sizeof(version)));
    if (version != 2 && version != 3) {
        return gw_gguf_fail(reader, "GGUF version %u%s cannot be read (2 and 3 can)", version,
                            (version & 0xffff) == 0 ? " (a big-endian file)" : "");
    }
    PP_TRY(read_bytes(reader, tensor_count_out, sizeof(*tensor_count_out)));
    PP_TRY(read_bytes(reader, value_count_out, sizeof(*value_count_out)));
    if (*value_count_out > GGUF_KEYS_MAX ||
        *value_count_out > bytes_left(reader) / GGUF_KEY_BYTES_LEAST) {
        return gw_gguf_fail(reader, "the file claims %llu keys, too many",
                            (unsigned long long)*value_count_out);
    }
    if (*tensor_count_out > GGUF_TENSORS_MAX ||
        *tensor_count_out > bytes_left(reader) / GGUF_TENSOR_BYTES_LEAST) {
        return gw_gguf_fail(reader, "the file claims %llu tensors, too many",
                            (unsigned long long)*tensor_count_out);
    }
    return PP_OK;
}

enum pp_status gw_gguf_read(struct gw_gguf_reader *reader, struct gw_gguf *gguf)
{
    uint64_t tensor_count = 0;
    uint64_t value_count = 0;
    PP_TRY(read_header(reader, &tensor_count, &value_count));
    PP_TRY(read_values(reader, gguf, value_count));
    return read_tensors(reader, gguf, tensor_count);
}
