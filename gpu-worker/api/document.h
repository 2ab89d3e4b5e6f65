/*
 * A saved document: the token ids and the K/V of a prefilled text in a directory, so that it need
 * not be prefilled again, whichever nodes are there then. Files: manifest.json (last written),
 * tokens (u32), balances (f32, where a sketch was balanced), and k.NNNN and v.NNNN a layer: rows
 * [token][kv head] in wire format. A document is written under another name and renamed when it is
 * whole and on disk. On the walk of a token's K/V: engine/read > here > engine/fill. It refuses to
 * know nodes and text.
 *
 * One thread. Errors go to `errors` as one line that names the file and says what to do.
 */
#ifndef PIGPEN_GPU_WORKER_API_DOCUMENT_H
#define PIGPEN_GPU_WORKER_API_DOCUMENT_H

#include <stdio.h>

#include "gpu-worker/api/document_manifest.h"

struct gw_document_writer;

/* Begins a document at `path`, where nothing may be yet, of manifest's model and tokens; its sums
 * and `balanced` are made here. ids [tokens]. PP_IO, PP_MEMORY. */
PP_MUST_USE enum pp_status gw_document_begin(const char *path,
                                             const struct gw_document_manifest *manifest,
                                             const uint32_t *ids, FILE *errors,
                                             struct gw_document_writer **writer_out);
/* The next rows, layer by layer in order: k, v [count][kv heads] vectors of kv_dtype. */
PP_MUST_USE enum pp_status gw_document_write(struct gw_document_writer *writer, uint32_t layer,
                                             uint32_t count, const void *k, const void *v);
/* Every row has been written: the document gets its name. balances [layers][kv head][dim] or NULL.
 */
PP_MUST_USE enum pp_status gw_document_commit(struct gw_document_writer *writer,
                                              const float *balances);
/* Removes what is there of a document that was not committed. Accepts NULL. */
void gw_document_writer_destroy(struct gw_document_writer *writer);

struct gw_document; /* one that is read */

/* Opens a document for a model: the manifest fits, every file is there in its size, ids and
 * balances are whole. PP_IO, PP_INVALID_ARGUMENT, PP_MODEL_MISMATCH, PP_FAILED_PRECONDITION (other
 * dtype), PP_CHECKSUM, PP_MEMORY. `errors` is kept. */
PP_MUST_USE enum pp_status gw_document_open(const char *path, const struct pp_shape *shape,
                                            const uint8_t *fingerprint, uint32_t fingerprint_bytes,
                                            FILE *errors, struct gw_document **document_out);
void gw_document_close(struct gw_document *document);
uint64_t gw_document_tokens(const struct gw_document *document);
const uint32_t *gw_document_ids(const struct gw_document *document);
const float *gw_document_balances(const struct gw_document *document); /* NULL: none */

/* How many tokens of each layer will be read: at most all. */
void gw_document_want(struct gw_document *document, uint64_t tokens);
/* A gw_rows_fn (context: the document): rows layer by layer in order; the very first ones begin
 * all again, whatever was given before. The last wanted ones of a layer come only after the
 * checksum of its whole files was right: PP_CHECKSUM, PP_IO. */
PP_MUST_USE enum pp_status gw_document_read(void *document, uint32_t layer, uint64_t start,
                                            uint32_t count, void *k_out, void *v_out);

#endif
