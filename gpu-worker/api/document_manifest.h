/*
 * The manifest of a saved document: what its files are, which model they belong to, and their
 * checksums. Text to struct and back; it refuses to know files. Any thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_DOCUMENT_MANIFEST_H
#define PIGPEN_GPU_WORKER_API_DOCUMENT_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/attn/shape.h"
#include "common/base/limits.h"
#include "common/base/status.h"

/* Raised when an older program could not read what a newer one wrote. */
#define GW_DOCUMENT_VERSION 1u

struct gw_document_manifest {
    struct pp_shape shape; /* without scale */
    uint8_t fingerprint[PP_FINGERPRINT_BYTES];
    uint32_t fingerprint_bytes;
    uint64_t tokens;
    bool balanced; /* there is a file of balances */
    uint32_t tokens_crc32c, balances_crc32c;
    uint32_t k_crc32c[PP_LAYERS_MAX], v_crc32c[PP_LAYERS_MAX]; /* [shape.layers] */
};

/* JSON; malloc'ed. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_document_manifest_render(const struct gw_document_manifest *manifest,
                                                       char **text_out);
/* PP_INVALID_ARGUMENT with what is wrong in error_out: no JSON, another format or version, a field
 * that is missing or out of its bounds. */
PP_MUST_USE enum pp_status gw_document_manifest_parse(const char *text, size_t bytes,
                                                      struct gw_document_manifest *manifest_out,
                                                      char *error_out, size_t error_bytes);
/* Whether the document can be used by a run of this model and dtype; else PP_FAILED_PRECONDITION
 * (PP_MODEL_MISMATCH for another model) with what differs and what to do in error_out. */
PP_MUST_USE enum pp_status gw_document_manifest_match(const struct gw_document_manifest *manifest,
                                                      const struct pp_shape *shape,
                                                      const uint8_t *fingerprint,
                                                      uint32_t fingerprint_bytes, char *error_out,
                                                      size_t error_bytes);

#endif
