/*
 * What gguf.c, gguf_read.c and gguf_check.c share: the tables made of a file, and the reader
 * that walks its bytes. Not included from elsewhere.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_GGUF_INTERNAL_H
#define PIGPEN_GPU_WORKER_MODEL_GGUF_INTERNAL_H

#include "gpu-worker/model/gguf.h"

enum {
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_KEY_BYTES_MAX = 65535,   /* as in the specification */
    GGUF_NAME_BYTES_MAX = 64,     /* as in the specification */
    GGUF_ENTRY_BYTES_MAX = 65536, /* a string inside an array: tokens, merges */
    GGUF_DIMS_MAX = 4,
    GGUF_HEADER_BYTES = 24,
    GGUF_KEY_BYTES_LEAST = 8 + 1 + 4 + 1,            /* length, key, type, u8 */
    GGUF_TENSOR_BYTES_LEAST = 8 + 1 + 4 + 8 + 4 + 8, /* length, name, n_dims, dim, type, offset */
    GGUF_ALIGNMENT_DEFAULT = 32,
    GGUF_ALIGNMENT_MAX = 65536,
};

/* Types of values, as in the file. */
enum gw_gguf_value_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
    GGUF_VALUE_TYPES = 13,
};

struct gw_gguf_value {
    const char *key; /* in the file's bytes, key_bytes of them, without NUL */
    uint32_t key_bytes;
    enum gw_gguf_value_type type; /* of the entries when it is an array */
    bool array;
    uint64_t count;      /* of entries; 1 when it is no array */
    const uint8_t *data; /* the first entry; strings: its length */
    uint64_t *offsets;   /* owned; arrays of strings only: of each entry from data */
};

struct gw_gguf_tensor_entry {
    struct gw_tensor tensor; /* first, so that a pointer to it is one to the entry */
    uint64_t offset;         /* from the start of the data section */
    char name[GGUF_NAME_BYTES_MAX + 1];
};

struct gw_gguf {
    const uint8_t *data;
    uint64_t bytes;
    uint8_t *mapping; /* owned; NULL when the bytes are the caller's */
    uint64_t mapping_bytes;
    struct gw_gguf_value *values; /* sorted by key once read */
    uint64_t value_count;
    struct gw_gguf_tensor_entry *tensors; /* in the file's order */
    uint64_t tensor_count;
    struct gw_gguf_tensor_entry **tensors_by_name;
    uint64_t alignment;
};

struct gw_gguf_reader {
    const uint8_t *data;
    uint64_t bytes;
    uint64_t position; /* <= bytes */
    char *error;
    size_t error_bytes;
};

/* Writes the message (printf form) and returns PP_INVALID_ARGUMENT. */
__attribute__((format(printf, 2, 3))) PP_MUST_USE enum pp_status
gw_gguf_fail(struct gw_gguf_reader *reader, const char *format, ...);

/* A name or key of the file made fit for a message: at most 64 bytes, odd ones as '?'. */
struct gw_gguf_printable {
    char text[68];
};
struct gw_gguf_printable gw_gguf_printable(const char *text, uint64_t bytes);

/* Bytes of one value of a fixed size, 0 for strings and arrays. */
uint32_t gw_gguf_value_bytes(enum gw_gguf_value_type type);

/* Header, keys and tensor infos into the tables; then gw_gguf_check_tensors places the data. */
PP_MUST_USE enum pp_status gw_gguf_read(struct gw_gguf_reader *reader, struct gw_gguf *gguf);
PP_MUST_USE enum pp_status gw_gguf_check_tensors(struct gw_gguf_reader *reader,
                                                 struct gw_gguf *gguf);

const struct gw_gguf_value *gw_gguf_find(const struct gw_gguf *gguf, const char *key);

#endif
