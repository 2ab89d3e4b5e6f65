/*
 * A GGUF file (version 2 or 3, little-endian), read into a table of values and tensors. Everything
 * in the file is hostile until checked: counts against bytes left, products for overflow, ranges
 * against the file's size, names for duplicates; nothing is allocated from a count alone.
 * Threads: open on one; then immutable, shared.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_GGUF_H
#define PIGPEN_GPU_WORKER_MODEL_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

/* Ids as in the file; only these can be loaded. */
enum gw_tensor_type {
    GW_TENSOR_F32 = 0,
    GW_TENSOR_F16 = 1,
    GW_TENSOR_Q4_0 = 2,
    GW_TENSOR_Q4_1 = 3,
    GW_TENSOR_Q8_0 = 8,
    GW_TENSOR_BF16 = 30,
};

struct gw_tensor {
    const char *name;
    enum gw_tensor_type type;
    uint32_t dim_count;
    uint64_t dims[4];    /* dims[0] is contiguous (in_features); absent ones are 1 */
    const uint8_t *data; /* in the file's memory, aligned as the file says (32) */
    uint64_t bytes;
};

struct gw_gguf;

/* Text in error_out [error_bytes] says what is wrong and where (tensor or key), for people.
 * PP_IO when it cannot be read, PP_INVALID_ARGUMENT when it is no good GGUF file. */
PP_MUST_USE enum pp_status gw_gguf_open(const char *path, char *error_out, size_t error_bytes,
                                        struct gw_gguf **gguf_out);
/* The same over bytes in memory that outlive the result (tests, fuzzing); tensors are then aligned
 * only as those bytes are. */
PP_MUST_USE enum pp_status gw_gguf_parse(const uint8_t *data, uint64_t bytes, char *error_out,
                                         size_t error_bytes, struct gw_gguf **gguf_out);
void gw_gguf_close(struct gw_gguf *gguf);

const struct gw_tensor *gw_gguf_tensor(const struct gw_gguf *gguf, const char *name);
uint64_t gw_gguf_tensor_count(const struct gw_gguf *gguf);
const struct gw_tensor *gw_gguf_tensor_at(const struct gw_gguf *gguf, uint64_t index);

/* Values by key. PP_NOT_FOUND when absent, PP_INVALID_ARGUMENT when of another type or range. */
PP_MUST_USE enum pp_status gw_gguf_u64(const struct gw_gguf *gguf, const char *key,
                                       uint64_t *value_out);
PP_MUST_USE enum pp_status gw_gguf_f64(const struct gw_gguf *gguf, const char *key,
                                       double *value_out);
PP_MUST_USE enum pp_status gw_gguf_bool(const struct gw_gguf *gguf, const char *key,
                                        bool *value_out);
/* Not NUL-ended: bytes_out of them at text_out. */
PP_MUST_USE enum pp_status gw_gguf_string(const struct gw_gguf *gguf, const char *key,
                                          const char **text_out, size_t *bytes_out);
/* Arrays: the number of entries, then entries by index. */
PP_MUST_USE enum pp_status gw_gguf_array_count(const struct gw_gguf *gguf, const char *key,
                                               uint64_t *count_out);
PP_MUST_USE enum pp_status gw_gguf_array_string(const struct gw_gguf *gguf, const char *key,
                                                uint64_t index, const char **text_out,
                                                size_t *bytes_out);
PP_MUST_USE enum pp_status gw_gguf_array_i64(const struct gw_gguf *gguf, const char *key,
                                             uint64_t index, int64_t *value_out);

#endif
