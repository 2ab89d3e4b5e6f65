/*
 * A sequence kept in a document, and one that starts with what a document holds. On the walk:
 * between engine and document. It refuses to know files and nodes.
 */
#ifndef PIGPEN_GPU_WORKER_API_KEEP_H
#define PIGPEN_GPU_WORKER_API_KEEP_H

#include "gpu-worker/api/document.h"
#include "gpu-worker/engine/engine.h"

/* Begins a document of the model's for the tokens `ids` [count]; nothing is computed yet. */
PP_MUST_USE enum pp_status gw_keep_begin(const char *path, const struct gw_engine_info *info,
                                         const uint32_t *ids, uint64_t count, FILE *errors,
                                         struct gw_document_writer **writer_out);
/* Writes the rows of the sequence, which holds exactly these tokens, and commits. Progress is told
 * as GW_PHASE_KEEP. PP_CANCELLED, PP_MEMORY, errors of nodes and files. */
PP_MUST_USE enum pp_status gw_keep_sequence(struct gw_document_writer *writer,
                                            const struct gw_engine_info *info,
                                            struct gw_sequence *sequence, gw_progress_fn *progress,
                                            void *context);

/* How many of the tokens `ids` [count] the document gives: those that it begins with too, but not
 * the last, whose logits are wanted. */
uint64_t gw_keep_shared(const struct gw_document *document, const uint32_t *ids, uint64_t count);
/* Makes a new sequence the first `tokens` tokens of the document. */
PP_MUST_USE enum pp_status gw_keep_restore(struct gw_document *document, uint64_t tokens,
                                           struct gw_sequence *sequence, gw_progress_fn *progress,
                                           void *context);

#endif
