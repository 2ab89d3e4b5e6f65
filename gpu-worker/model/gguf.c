/*
 * A GGUF file opened, and its values and tensors looked up. The bytes are read into memory of our
 * own rather than mapped: a file cut short later then cannot kill the process. Between the file
 * and config.c, weights.c and tokenizer.c; knows nothing of what keys and tensors mean.
 */
#include "gpu-worker/model/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "gpu-worker/model/gguf_internal.h"

/* Kernels may read a vector past the end of a row. */
#define SLACK_BYTES 64u

static void report(char *error_out, size_t error_bytes, const char *path, const char *what)
{
    if (error_bytes > 0) {
        (void)snprintf(error_out, error_bytes, "%s: %s", path, what);
    }
}

enum pp_status gw_gguf_parse(const uint8_t *data, uint64_t bytes, char *error_out,
                             size_t error_bytes, struct gw_gguf **gguf_out)
{
    struct gw_gguf_reader reader = {
        .data = data, .bytes = bytes, .error = error_out, .error_bytes = error_bytes};
    struct gw_gguf *gguf = calloc(1, sizeof(*gguf));
    enum pp_status status = PP_MEMORY;
    if (gguf != NULL) {
        gguf->data = data;
        gguf->bytes = bytes;
        status = gw_gguf_read(&reader, gguf);
        if (status == PP_OK) {
            status = gw_gguf_check_tensors(&reader, gguf);
        }
    }
    if (status == PP_MEMORY && error_bytes > 0) {
        (void)snprintf(error_out, error_bytes, "out of memory for the file's tables");
    }
    if (status != PP_OK) {
        gw_gguf_close(gguf);
        return status;
    }
    *gguf_out = gguf;
    return PP_OK;
}

static bool read_all(int fd, uint8_t *data, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        const ssize_t got = pread(fd, data + done, bytes - done, (off_t)done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            errno = got == 0 ? ENODATA : errno;
            return false;
        }
        done += (uint64_t)got;
    }
    return true;
}

/* Takes memory for the whole file only once its first bytes say that it is a GGUF file. */
static enum pp_status read_file(int fd, const char *path, char *error_out, size_t error_bytes,
                                uint8_t **data_out, uint64_t *bytes_out)
{
    struct stat facts;
    uint8_t magic[4];
    if (fstat(fd, &facts) != 0) {
        report(error_out, error_bytes, path, strerror(errno));
        return PP_IO;
    }
    if (!S_ISREG(facts.st_mode)) {
        report(error_out, error_bytes, path, "not a regular file");
        return PP_IO;
    }
    const uint64_t bytes = (uint64_t)facts.st_size;
    if (bytes < GGUF_HEADER_BYTES || !read_all(fd, magic, sizeof(magic)) ||
        memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        report(error_out, error_bytes, path, "not a GGUF file (it does not start with 'GGUF')");
        return PP_INVALID_ARGUMENT;
    }
    void *data =
        mmap(NULL, bytes + SLACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        report(error_out, error_bytes, path, "no memory for a file of this size");
        return PP_MEMORY;
    }
    (void)madvise(data, bytes, MADV_HUGEPAGE);
    if (!read_all(fd, data, bytes)) {
        report(error_out, error_bytes, path, strerror(errno));
        (void)munmap(data, bytes + SLACK_BYTES);
        return PP_IO;
    }
    (void)mprotect(data, bytes + SLACK_BYTES, PROT_READ);
    *data_out = data;
    *bytes_out = bytes;
    return PP_OK;
}

enum pp_status gw_gguf_open(const char *path, char *error_out, size_t error_bytes,
                            struct gw_gguf **gguf_out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        report(error_out, error_bytes, path, strerror(errno));
        return PP_IO;
    }
    uint8_t *data = NULL;
    uint64_t bytes = 0;
    enum pp_status status = read_file(fd, path, error_out, error_bytes, &data, &bytes);
    (void)close(fd);
    PP_TRY(status);
    char reason[256] = "";
    status = gw_gguf_parse(data, bytes, reason, sizeof(reason), gguf_out);
    if (status != PP_OK) {
        report(error_out, error_bytes, path, reason);
        (void)munmap(data, bytes + SLACK_BYTES);
        return status;
    }
    (*gguf_out)->mapping = data;
    (*gguf_out)->mapping_bytes = bytes + SLACK_BYTES;
    return PP_OK;
}

void gw_gguf_close(struct gw_gguf *gguf)
{
    if (gguf == NULL) {
        return;
    }
    for (uint64_t index = 0; index < gguf->value_count; index++) {
        free(gguf->values[index].offsets);
    }
    free(gguf->values);
    free(gguf->tensors);
    free(gguf->tensors_by_name);
    if (gguf->mapping != NULL) {
        (void)munmap(gguf->mapping, gguf->mapping_bytes);
    }
    free(gguf);
}

static int name_against_entry(const void *name, const void *entry)
{
    return strcmp(name, (*(struct gw_gguf_tensor_entry *const *)entry)->name);
}

const struct gw_tensor *gw_gguf_tensor(const struct gw_gguf *gguf, const char *name)
{
    struct gw_gguf_tensor_entry *const *found =
        bsearch(name, gguf->tensors_by_name, gguf->tensor_count,
                sizeof(struct gw_gguf_tensor_entry *), name_against_entry);
    return found == NULL ? NULL : &(*found)->tensor;
}

uint64_t gw_gguf_tensor_count(const struct gw_gguf *gguf)
{
    return gguf->tensor_count;
}

const struct gw_tensor *gw_gguf_tensor_at(const struct gw_gguf *gguf, uint64_t index)
{
    PP_ASSERT(index < gguf->tensor_count);
    return &gguf->tensors[index].tensor;
}

static int key_against_value(const void *key, const void *value)
{
    const struct gw_gguf_value *entry = value;
    const size_t bytes = strlen(key);
    const size_t least = bytes < entry->key_bytes ? bytes : entry->key_bytes;
    const int order = memcmp(key, entry->key, least);
    return order != 0 ? order : (bytes > entry->key_bytes) - (bytes < entry->key_bytes);
}

const struct gw_gguf_value *gw_gguf_find(const struct gw_gguf *gguf, const char *key)
{
    return bsearch(key, gguf->values, gguf->value_count, sizeof(*gguf->values), key_against_value);
}

/* An integer of any width; negative_out tells a negative one (two's complement in bits_out). */
static bool load_integer(enum gw_gguf_value_type type, const uint8_t *data, uint64_t *bits_out,
                         bool *negative_out)
{
    const uint32_t bytes = gw_gguf_value_bytes(type);
    uint64_t bits = 0;
    bool is_signed = false;
    switch (type) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64:
        is_signed = true;
        break;
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        break;
    default:
        return false;
    }
    memcpy(&bits, data, bytes);
    const uint32_t spare = 64 - 8 * bytes;
    if (is_signed) {
        bits = (uint64_t)((int64_t)(bits << spare) >> spare);
    }
    *bits_out = bits;
    *negative_out = is_signed && (int64_t)bits < 0;
    return true;
}

enum pp_status gw_gguf_u64(const struct gw_gguf *gguf, const char *key, uint64_t *value_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    uint64_t bits = 0;
    bool negative = false;
    if (value->array || !load_integer(value->type, value->data, &bits, &negative) || negative) {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = bits;
    return PP_OK;
}

enum pp_status gw_gguf_f64(const struct gw_gguf *gguf, const char *key, double *value_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    if (value->array) {
        return PP_INVALID_ARGUMENT;
    }
    if (value->type == GGUF_F32) {
        float single = 0;
        memcpy(&single, value->data, sizeof(single));
        *value_out = (double)single;
        return PP_OK;
    }
    if (value->type == GGUF_F64) {
        memcpy(value_out, value->data, sizeof(*value_out));
        return PP_OK;
    }
    uint64_t bits = 0;
    bool negative = false;
    if (!load_integer(value->type, value->data, &bits, &negative)) {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = negative ? (double)(int64_t)bits : (double)bits;
    return PP_OK;
}

enum pp_status gw_gguf_bool(const struct gw_gguf *gguf, const char *key, bool *value_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    if (value->array || value->type != GGUF_BOOL) {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = value->data[0] != 0;
    return PP_OK;
}

static void load_string(const uint8_t *data, const char **text_out, size_t *bytes_out)
{
    uint64_t bytes = 0;
    memcpy(&bytes, data, sizeof(bytes));
    *text_out = (const char *)data + sizeof(bytes);
    *bytes_out = bytes;
}

enum pp_status gw_gguf_string(const struct gw_gguf *gguf, const char *key, const char **text_out,
                              size_t *bytes_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    if (value->array || value->type != GGUF_STRING) {
        return PP_INVALID_ARGUMENT;
    }
    load_string(value->data, text_out, bytes_out);
    return PP_OK;
}

enum pp_status gw_gguf_array_count(const struct gw_gguf *gguf, const char *key, uint64_t *count_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    if (!value->array) {
        return PP_INVALID_ARGUMENT;
    }
    *count_out = value->count;
    return PP_OK;
}

enum pp_status gw_gguf_array_string(const struct gw_gguf *gguf, const char *key, uint64_t index,
                                    const char **text_out, size_t *bytes_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    if (!value->array || value->type != GGUF_STRING || index >= value->count) {
        return PP_INVALID_ARGUMENT;
    }
    load_string(value->data + value->offsets[index], text_out, bytes_out);
    return PP_OK;
}

enum pp_status gw_gguf_array_i64(const struct gw_gguf *gguf, const char *key, uint64_t index,
                                 int64_t *value_out)
{
    const struct gw_gguf_value *value = gw_gguf_find(gguf, key);
    if (value == NULL) {
        return PP_NOT_FOUND;
    }
    if (!value->array || index >= value->count) {
        return PP_INVALID_ARGUMENT;
    }
    uint64_t bits = 0;
    bool negative = false;
    const uint8_t *data = value->data + index * gw_gguf_value_bytes(value->type);
    if (!load_integer(value->type, data, &bits, &negative) || (!negative && bits > INT64_MAX)) {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = (int64_t)bits;
    return PP_OK;
}
