/*
 * Copies rows between a sequence and a document, a piece at a time. See keep.h. It refuses to know
 * files and nodes.
 */
#include "gpu-worker/api/keep.h"

#include <stdlib.h>
#include <string.h>

struct keep {
    const struct gw_engine_info *info;
    struct gw_document_writer *writer;
    struct gw_sequence *sequence;
    gw_progress_fn *progress;
    void *context;
    void *k, *v;     /* [GW_BULK_TOKENS] rows */
    float *balances; /* [layers][kv head][dim] */
};

enum pp_status gw_keep_begin(const char *path, const struct gw_engine_info *info,
                             const uint32_t *ids, uint64_t count, FILE *errors,
                             struct gw_document_writer **writer_out)
{
    struct gw_document_manifest manifest = {
        .shape = info->shape, .fingerprint_bytes = info->fingerprint_bytes, .tokens = count};
    memcpy(manifest.fingerprint, info->fingerprint, info->fingerprint_bytes);
    return gw_document_begin(path, &manifest, ids, errors, writer_out);
}

static enum pp_status keep_rows(const struct keep *keep)
{
    uint64_t length = gw_sequence_length(keep->sequence);
    uint32_t layers = keep->info->shape.layers;
    for (uint32_t layer = 0; layer < layers; layer++) {
        for (uint64_t start = 0; start < length; start += GW_BULK_TOKENS) {
            uint64_t left = length - start;
            uint32_t count = left < GW_BULK_TOKENS ? (uint32_t)left : GW_BULK_TOKENS;
            PP_TRY(gw_sequence_read(keep->sequence, layer, start, count, keep->k, keep->v));
            PP_TRY(gw_document_write(keep->writer, layer, count, keep->k, keep->v));
            if (keep->progress != NULL &&
                !keep->progress(keep->context, GW_PHASE_KEEP, layer * length + start + count,
                                layers * length)) {
                return PP_CANCELLED;
            }
        }
    }
    return PP_OK;
}

/* Whether every layer is balanced; its balances then. */
static bool keep_balances(const struct keep *keep)
{
    uint64_t values = (uint64_t)keep->info->shape.kv_heads * keep->info->shape.head_dim;
    for (uint32_t layer = 0; layer < keep->info->shape.layers; layer++) {
        const float *balance = gw_sequence_balance_of(keep->sequence, layer);
        if (balance == NULL) {
            return false;
        }
        memcpy(keep->balances + layer * values, balance, values * sizeof(*balance));
    }
    return true;
}

enum pp_status gw_keep_sequence(struct gw_document_writer *writer,
                                const struct gw_engine_info *info, struct gw_sequence *sequence,
                                gw_progress_fn *progress, void *context)
{
    const struct pp_shape *shape = &info->shape;
    uint64_t rows = (uint64_t)GW_BULK_TOKENS * shape->kv_heads;
    uint64_t bytes = rows * pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t values = (uint64_t)shape->layers * shape->kv_heads * shape->head_dim;
    struct keep keep = {.info = info,
                        .writer = writer,
                        .sequence = sequence,
                        .progress = progress,
                        .context = context,
                        .k = malloc(bytes),
                        .v = malloc(bytes),
                        .balances = malloc(values * sizeof(float))};
    bool memory = keep.k != NULL && keep.v != NULL && keep.balances != NULL;
    enum pp_status status = memory ? keep_rows(&keep) : PP_MEMORY;
    if (status == PP_OK) {
        status = gw_document_commit(writer, keep_balances(&keep) ? keep.balances : NULL);
    }
    free(keep.balances);
    free(keep.v);
    free(keep.k);
    return status;
}

uint64_t gw_keep_shared(const struct gw_document *document, const uint32_t *ids, uint64_t count)
{
    const uint32_t *saved = gw_document_ids(document);
    uint64_t most = gw_document_tokens(document);
    most = most < count - 1 ? most : count - 1;
    uint64_t shared = 0;
    while (shared < most && saved[shared] == ids[shared]) {
        shared++;
    }
    return shared;
}

enum pp_status gw_keep_restore(struct gw_document *document, uint64_t tokens,
                               struct gw_sequence *sequence, gw_progress_fn *progress,
                               void *context)
{
    const struct gw_fill fill = {.count = tokens,
                                 .rows = gw_document_read,
                                 .context = document,
                                 .balances = gw_document_balances(document),
                                 .ids = gw_document_ids(document),
                                 .progress = progress,
                                 .progress_context = context};
    gw_document_want(document, tokens);
    return gw_sequence_fill(sequence, &fill);
}
