/*
 * Reading a document: what can be seen to be wrong is seen before the first row is given, and the
 * last rows of a layer are given only when the whole of its files was right. See document.h. It
 * refuses to know where rows go.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "gpu-worker/api/document.h"
#include "gpu-worker/api/worker.h"

#define DRAIN_BYTES (1u << 18)

struct gw_document {
    struct gw_document_manifest manifest;
    FILE *errors;
    char *path;
    int folder; /* -1: none */
    int k, v;   /* of the layer at hand; -1: none */
    uint32_t k_crc32c, v_crc32c;
    uint32_t layer;
    uint64_t given;  /* tokens of it */
    uint64_t wanted; /* tokens of each layer */
    uint64_t row_bytes;
    uint32_t *ids;
    float *balances;
    uint8_t drain[DRAIN_BYTES];
};

static enum pp_status document_missing(const struct gw_document *document, const char *name)
{
    fprintf(document->errors, "cannot read %s/%s: %s; save the document again\n", document->path,
            name, strerror(errno));
    return PP_IO;
}

static enum pp_status document_open_file(const struct gw_document *document, const char *name,
                                         int *file_out)
{
    int file = openat(document->folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return document_missing(document, name);
    }
    *file_out = file;
    return PP_OK;
}

/* bytes of file, continuing the checksum. */
static enum pp_status document_get(const struct gw_document *document, const char *name, int file,
                                   void *out, uint64_t bytes, uint32_t *crc32c)
{
    uint8_t *next = out;
    uint64_t left = bytes;
    while (left > 0) {
        ssize_t got = read(file, next, left < (1u << 30) ? (size_t)left : 1u << 30);
        if (got == 0) {
            errno = ENODATA;
        }
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return document_missing(document, name);
        }
        next += got > 0 ? got : 0;
        left -= got > 0 ? (uint64_t)got : 0;
    }
    *crc32c = pp_crc32c(*crc32c, out, bytes);
    return PP_OK;
}

static enum pp_status document_check_sum(const struct gw_document *document, const char *name,
                                         uint32_t crc32c, uint32_t expected)
{
    if (crc32c == expected) {
        return PP_OK;
    }
    fprintf(document->errors,
            "%s/%s is damaged: its CRC-32C is %08x, the manifest says %08x; save the document "
            "again\n",
            document->path, name, crc32c, expected);
    return PP_CHECKSUM;
}

/* A file that is read at once. */
static enum pp_status document_whole(const struct gw_document *document, const char *name,
                                     uint64_t bytes, uint32_t expected, void *out)
{
    int file;
    uint32_t crc32c = 0;
    PP_TRY(document_open_file(document, name, &file));
    enum pp_status status = document_get(document, name, file, out, bytes, &crc32c);
    close(file);
    return status != PP_OK ? status : document_check_sum(document, name, crc32c, expected);
}

static enum pp_status document_check_size(const struct gw_document *document, const char *name,
                                          uint64_t bytes)
{
    struct stat there;
    if (fstatat(document->folder, name, &there, 0) != 0) {
        return document_missing(document, name);
    }
    if (S_ISREG(there.st_mode) && (uint64_t)there.st_size == bytes) {
        return PP_OK;
    }
    fprintf(document->errors,
            "%s/%s is damaged: it has %llu bytes instead of %llu; save the document again\n",
            document->path, name, (unsigned long long)there.st_size, (unsigned long long)bytes);
    return PP_CHECKSUM;
}

static void layer_name(char kind, uint32_t layer, char name_out[16])
{
    snprintf(name_out, 16, "%c.%04u", kind, layer);
}

/* The manifest of the folder, which fits the model. */
static enum pp_status document_manifest(struct gw_document *document, const struct pp_shape *shape,
                                        const uint8_t *fingerprint, uint32_t fingerprint_bytes)
{
    char path[4096], error[512];
    char *text;
    size_t bytes;
    struct stat there;
    document->folder = open(document->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (document->folder < 0) {
        fprintf(document->errors, "cannot read the document %s: %s\n", document->path,
                strerror(errno));
        return PP_IO;
    }
    /* A pipe of that name would be waited for. */
    if (fstatat(document->folder, "manifest.json", &there, 0) != 0 || !S_ISREG(there.st_mode)) {
        fprintf(document->errors, "%s is no saved document: it has no file manifest.json\n",
                document->path);
        return PP_IO;
    }
    snprintf(path, sizeof(path), "%s/manifest.json", document->path);
    PP_TRY(gw_file_read(path, document->errors, &text, &bytes));
    enum pp_status status =
        gw_document_manifest_parse(text, bytes, &document->manifest, error, sizeof(error));
    free(text);
    if (status != PP_OK) {
        fprintf(document->errors, "%s cannot be used: %s; save the document again\n", path, error);
        return status;
    }
    status = gw_document_manifest_match(&document->manifest, shape, fingerprint, fingerprint_bytes,
                                        error, sizeof(error));
    if (status != PP_OK) {
        fprintf(document->errors, "the document %s does not fit: %s\n", document->path, error);
    }
    return status;
}

/* Sizes first: they bound the memory that is taken. */
static enum pp_status document_files(struct gw_document *document)
{
    const struct gw_document_manifest *manifest = &document->manifest;
    const struct pp_shape *shape = &manifest->shape;
    uint64_t ids_bytes = manifest->tokens * sizeof(*document->ids);
    uint64_t balances_bytes =
        (uint64_t)shape->layers * shape->kv_heads * shape->head_dim * sizeof(float);
    document->row_bytes = shape->kv_heads * pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    for (uint32_t i = 0; i < 2 * shape->layers; i++) {
        char name[16];
        layer_name(i % 2 == 0 ? 'k' : 'v', i / 2, name);
        PP_TRY(document_check_size(document, name, manifest->tokens * document->row_bytes));
    }
    PP_TRY(document_check_size(document, "tokens", ids_bytes));
    document->ids = malloc(ids_bytes);
    document->balances = malloc(balances_bytes);
    if (document->ids == NULL || document->balances == NULL) {
        return PP_MEMORY;
    }
    PP_TRY(document_whole(document, "tokens", ids_bytes, manifest->tokens_crc32c, document->ids));
    if (!manifest->balanced) {
        return PP_OK;
    }
    PP_TRY(document_check_size(document, "balances", balances_bytes));
    return document_whole(document, "balances", balances_bytes, manifest->balances_crc32c,
                          document->balances);
}

enum pp_status gw_document_open(const char *path, const struct pp_shape *shape,
                                const uint8_t *fingerprint, uint32_t fingerprint_bytes,
                                FILE *errors, struct gw_document **document_out)
{
    struct gw_document *document = calloc(1, sizeof(*document));
    if (document == NULL) {
        return PP_MEMORY;
    }
    document->errors = errors;
    document->folder = document->k = document->v = -1;
    document->path = strdup(path);
    enum pp_status status =
        document->path == NULL ? PP_MEMORY
                               : document_manifest(document, shape, fingerprint, fingerprint_bytes);
    status = status == PP_OK ? document_files(document) : status;
    if (status != PP_OK) {
        gw_document_close(document);
        return status;
    }
    document->wanted = document->manifest.tokens;
    *document_out = document;
    return PP_OK;
}

static void document_close_layer(struct gw_document *document)
{
    if (document->k >= 0) {
        close(document->k);
    }
    if (document->v >= 0) {
        close(document->v);
    }
    document->k = document->v = -1;
}

void gw_document_close(struct gw_document *document)
{
    if (document == NULL) {
        return;
    }
    document_close_layer(document);
    if (document->folder >= 0) {
        close(document->folder);
    }
    free(document->balances);
    free(document->ids);
    free(document->path);
    free(document);
}

uint64_t gw_document_tokens(const struct gw_document *document)
{
    return document->manifest.tokens;
}

const uint32_t *gw_document_ids(const struct gw_document *document)
{
    return document->ids;
}

const float *gw_document_balances(const struct gw_document *document)
{
    return document->manifest.balanced ? document->balances : NULL;
}

void gw_document_want(struct gw_document *document, uint64_t tokens)
{
    document->wanted = tokens < document->manifest.tokens ? tokens : document->manifest.tokens;
}

/* What is not wanted of a file counts for its checksum too. */
static enum pp_status document_finish_file(struct gw_document *document, const char *name, int file,
                                           uint32_t *crc32c, uint32_t expected)
{
    uint64_t left = (document->manifest.tokens - document->wanted) * document->row_bytes;
    while (left > 0) {
        uint64_t bytes = left < DRAIN_BYTES ? left : DRAIN_BYTES;
        PP_TRY(document_get(document, name, file, document->drain, bytes, crc32c));
        left -= bytes;
    }
    return document_check_sum(document, name, *crc32c, expected);
}

static enum pp_status document_read_rows(struct gw_document *document, uint32_t count, void *k_out,
                                         void *v_out)
{
    const struct gw_document_manifest *manifest = &document->manifest;
    uint32_t layer = document->layer;
    char k[16], v[16];
    layer_name('k', layer, k);
    layer_name('v', layer, v);
    if (document->given == 0) {
        document->k_crc32c = document->v_crc32c = 0;
        PP_TRY(document_open_file(document, k, &document->k));
        PP_TRY(document_open_file(document, v, &document->v));
    }
    uint64_t bytes = count * document->row_bytes;
    PP_TRY(document_get(document, k, document->k, k_out, bytes, &document->k_crc32c));
    PP_TRY(document_get(document, v, document->v, v_out, bytes, &document->v_crc32c));
    document->given += count;
    if (document->given < document->wanted) {
        return PP_OK;
    }
    PP_TRY(document_finish_file(document, k, document->k, &document->k_crc32c,
                                manifest->k_crc32c[layer]));
    PP_TRY(document_finish_file(document, v, document->v, &document->v_crc32c,
                                manifest->v_crc32c[layer]));
    document_close_layer(document);
    document->layer++;
    document->given = 0;
    return PP_OK;
}

enum pp_status gw_document_read(void *context, uint32_t layer, uint64_t start, uint32_t count,
                                void *k_out, void *v_out)
{
    struct gw_document *document = context;
    if (layer == 0 && start == 0) { /* a fill that lost a node begins again */
        document_close_layer(document);
        document->layer = 0;
        document->given = 0;
    }
    if (layer != document->layer || layer >= document->manifest.shape.layers ||
        start != document->given || count == 0 || count > document->wanted - start) {
        return PP_OUT_OF_RANGE;
    }
    return document_read_rows(document, count, k_out, v_out);
}
