/*
 * Writing a document: all files in a folder of its own beside the place where it will be, synced,
 * then one rename. So there is a whole document or none. See document.h. It refuses to know where
 * rows come from.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "gpu-worker/api/document.h"

#define PATH_MAX_BYTES 4096u

struct gw_document_writer {
    struct gw_document_manifest manifest;
    FILE *errors;
    char *path;    /* where it will be */
    char *partial; /* where it is now */
    int folder;    /* of partial; -1: none */
    int k, v;      /* of the layer at hand; -1: none */
    uint32_t layer;
    uint64_t written; /* tokens of it */
};

static enum pp_status writer_fail(const struct gw_document_writer *writer, const char *name)
{
    fprintf(writer->errors, "cannot save to %s: %s%s%s; nothing was saved\n", writer->path, name,
            name[0] == '\0' ? "" : ": ", strerror(errno));
    return PP_IO;
}

static enum pp_status writer_open(const struct gw_document_writer *writer, const char *name,
                                  int *file_out)
{
    int file = openat(writer->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        return writer_fail(writer, name);
    }
    *file_out = file;
    return PP_OK;
}

static enum pp_status writer_put(const struct gw_document_writer *writer, int file,
                                 const void *data, uint64_t bytes)
{
    const uint8_t *next = data;
    while (bytes > 0) {
        ssize_t put = write(file, next, bytes < (1u << 30) ? (size_t)bytes : 1u << 30);
        if (put < 0 && errno != EINTR) {
            return writer_fail(writer, "");
        }
        next += put > 0 ? put : 0;
        bytes -= put > 0 ? (uint64_t)put : 0;
    }
    return PP_OK;
}

/* Its bytes are on the disk when this returns PP_OK; the file is closed in any case. */
static enum pp_status writer_close(const struct gw_document_writer *writer, int *file)
{
    bool synced = fsync(*file) == 0;
    bool closed = close(*file) == 0;
    *file = -1;
    return synced && closed ? PP_OK : writer_fail(writer, "");
}

static enum pp_status writer_file(const struct gw_document_writer *writer, const char *name,
                                  const void *data, uint64_t bytes)
{
    int file;
    PP_TRY(writer_open(writer, name, &file));
    enum pp_status status = writer_put(writer, file, data, bytes);
    enum pp_status closed = writer_close(writer, &file);
    return status != PP_OK ? status : closed;
}

static enum pp_status writer_make_folder(struct gw_document_writer *writer)
{
    struct stat there;
    if (lstat(writer->path, &there) == 0) {
        fprintf(writer->errors, "cannot save to %s: it exists; remove it or name another place\n",
                writer->path);
        return PP_IO;
    }
    if (mkdtemp(writer->partial) == NULL) {
        writer->partial[0] = '\0';
        return writer_fail(writer, "");
    }
    mode_t mask = umask(0);
    (void)umask(mask);
    (void)chmod(writer->partial, 0777 & ~mask);
    writer->folder = open(writer->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return writer->folder < 0 ? writer_fail(writer, "") : PP_OK;
}

static enum pp_status writer_begin(struct gw_document_writer *writer, const char *path,
                                   const uint32_t *ids)
{
    struct gw_document_manifest *manifest = &writer->manifest;
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/') {
        bytes--;
    }
    writer->path = strndup(path, bytes);
    writer->partial = malloc(bytes + 16);
    if (writer->path == NULL || writer->partial == NULL) {
        return PP_MEMORY;
    }
    snprintf(writer->partial, bytes + 16, "%s.partial.XXXXXX", writer->path);
    enum pp_status status = writer_make_folder(writer);
    if (status != PP_OK) {
        return status;
    }
    manifest->tokens_crc32c = pp_crc32c(0, ids, manifest->tokens * sizeof(*ids));
    return writer_file(writer, "tokens", ids, manifest->tokens * sizeof(*ids));
}

enum pp_status gw_document_begin(const char *path, const struct gw_document_manifest *manifest,
                                 const uint32_t *ids, FILE *errors,
                                 struct gw_document_writer **writer_out)
{
    struct gw_document_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL) {
        return PP_MEMORY;
    }
    writer->manifest = *manifest;
    writer->errors = errors;
    writer->folder = writer->k = writer->v = -1;
    enum pp_status status = writer_begin(writer, path, ids);
    if (status != PP_OK) {
        gw_document_writer_destroy(writer);
        return status;
    }
    *writer_out = writer;
    return PP_OK;
}

static enum pp_status writer_open_layer(struct gw_document_writer *writer)
{
    char name[16];
    snprintf(name, sizeof(name), "k.%04u", writer->layer);
    PP_TRY(writer_open(writer, name, &writer->k));
    name[0] = 'v';
    return writer_open(writer, name, &writer->v);
}

enum pp_status gw_document_write(struct gw_document_writer *writer, uint32_t layer, uint32_t count,
                                 const void *k, const void *v)
{
    struct gw_document_manifest *manifest = &writer->manifest;
    const struct pp_shape *shape = &manifest->shape;
    if (layer != writer->layer || layer >= shape->layers || count == 0 ||
        count > manifest->tokens - writer->written) {
        return PP_OUT_OF_RANGE;
    }
    if (writer->written == 0) {
        PP_TRY(writer_open_layer(writer));
    }
    uint64_t bytes = count * shape->kv_heads * pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    manifest->k_crc32c[layer] = pp_crc32c(manifest->k_crc32c[layer], k, bytes);
    manifest->v_crc32c[layer] = pp_crc32c(manifest->v_crc32c[layer], v, bytes);
    PP_TRY(writer_put(writer, writer->k, k, bytes));
    PP_TRY(writer_put(writer, writer->v, v, bytes));
    writer->written += count;
    if (writer->written == manifest->tokens) {
        PP_TRY(writer_close(writer, &writer->k));
        PP_TRY(writer_close(writer, &writer->v));
        writer->layer++;
        writer->written = 0;
    }
    return PP_OK;
}

/* The folder that holds the document remembers its name only after a sync of its own. */
static enum pp_status writer_sync_parent(const struct gw_document_writer *writer)
{
    char parent[PATH_MAX_BYTES];
    const char *slash = strrchr(writer->path, '/');
    size_t bytes = slash == NULL ? 0 : (size_t)(slash - writer->path);
    snprintf(parent, sizeof(parent), "%.*s", (int)bytes, writer->path);
    const char *name = slash == NULL ? "." : bytes == 0 ? "/" : parent;
    int folder = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool synced = folder >= 0 && fsync(folder) == 0;
    if (folder >= 0) {
        close(folder);
    }
    if (!synced) {
        fprintf(writer->errors,
                "%s is written, but not yet sure to outlive a crash of the machine: %s: %s\n",
                writer->path, name, strerror(errno));
    }
    return synced ? PP_OK : PP_IO;
}

static enum pp_status writer_balances(struct gw_document_writer *writer, const float *balances)
{
    struct gw_document_manifest *manifest = &writer->manifest;
    const struct pp_shape *shape = &manifest->shape;
    manifest->balanced = balances != NULL;
    if (balances == NULL) {
        return PP_OK;
    }
    uint64_t values = (uint64_t)shape->layers * shape->kv_heads * shape->head_dim;
    manifest->balances_crc32c = pp_crc32c(0, balances, values * sizeof(*balances));
    return writer_file(writer, "balances", balances, values * sizeof(*balances));
}

enum pp_status gw_document_commit(struct gw_document_writer *writer, const float *balances)
{
    if (writer->layer != writer->manifest.shape.layers) {
        return PP_FAILED_PRECONDITION;
    }
    char *text;
    PP_TRY(writer_balances(writer, balances));
    PP_TRY(gw_document_manifest_render(&writer->manifest, &text));
    enum pp_status status = writer_file(writer, "manifest.json", text, strlen(text));
    free(text);
    if (status == PP_OK && fsync(writer->folder) != 0) {
        status = writer_fail(writer, "");
    }
    if (status == PP_OK && rename(writer->partial, writer->path) != 0) {
        status = writer_fail(writer, "");
    }
    if (status != PP_OK) {
        return status;
    }
    writer->partial[0] = '\0';
    return writer_sync_parent(writer);
}

static void writer_remove(const struct gw_document_writer *writer)
{
    static const char *const names[] = {"tokens", "balances", "manifest.json"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlinkat(writer->folder, names[i], 0);
    }
    for (uint32_t i = 0; i < 2 * writer->manifest.shape.layers; i++) {
        char name[16];
        snprintf(name, sizeof(name), "%c.%04u", i % 2 == 0 ? 'k' : 'v', i / 2);
        (void)unlinkat(writer->folder, name, 0);
    }
    (void)rmdir(writer->partial);
}

void gw_document_writer_destroy(struct gw_document_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    const int files[2] = {writer->k, writer->v};
    for (uint32_t i = 0; i < 2; i++) {
        if (files[i] >= 0) {
            close(files[i]);
        }
    }
    if (writer->folder >= 0 && writer->partial[0] != '\0') {
        writer_remove(writer);
    }
    if (writer->folder >= 0) {
        close(writer->folder);
    }
    free(writer->partial);
    free(writer->path);
    free(writer);
}
