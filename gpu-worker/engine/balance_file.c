/*
 * Writes and reads the file of a model's balances. See balance_file.h.
 */
#include "gpu-worker/engine/balance_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/crc32c.h"
#include "common/base/limits.h"
#include "common/base/log.h"

#define VERSION     1u
#define PATH_BYTES  4096u
#define VALUE_LEAST 0x1p-16f /* nodes take no others */
#define VALUE_MOST  0x1p16f

static const char magic[8] = {'p', 'g', 'n', 'b', 'a', 'l', 'n', 'c'};

struct header {
    char magic[8];
    uint32_t version, layers, kv_heads, head_dim, fingerprint_bytes;
    uint8_t fingerprint[PP_FINGERPRINT_BYTES];
};

static uint64_t layer_values(const struct gw_balance_key *key)
{
    return (uint64_t)key->kv_heads * key->head_dim;
}

static uint64_t file_bytes(const struct gw_balance_key *key)
{
    return sizeof(struct header) + key->layers * layer_values(key) * sizeof(float) +
           sizeof(uint32_t);
}

static struct header header_of(const struct gw_balance_key *key)
{
    struct header header = {.version = VERSION,
                            .layers = key->layers,
                            .kv_heads = key->kv_heads,
                            .head_dim = key->head_dim,
                            .fingerprint_bytes = key->fingerprint_bytes};
    memcpy(header.magic, magic, sizeof(magic));
    memcpy(header.fingerprint, key->fingerprint, key->fingerprint_bytes);
    return header;
}

/* false: the path is too long. */
static bool file_path(const char *folder, const struct gw_balance_key *key, char *path_out)
{
    char hex[2 * PP_FINGERPRINT_BYTES + 1] = "";
    for (uint32_t i = 0; i < key->fingerprint_bytes; i++) {
        snprintf(hex + 2ull * i, 3, "%02x", key->fingerprint[i]);
    }
    int length = snprintf(path_out, PATH_BYTES, "%s/balance-%s-%ux%ux%u.bin", folder, hex,
                          key->layers, key->kv_heads, key->head_dim);
    return length > 0 && (uint32_t)length + 32 < PATH_BYTES;
}

/* Every layer is measured, all its values within what nodes take, or all zeros. */
static bool values_right(const struct gw_balance_key *key, const float *values)
{
    uint64_t count = layer_values(key);
    for (uint64_t i = 0; i < key->layers * count; i++) {
        bool measured = values[i / count * count] != 0.0f;
        bool right =
            measured ? values[i] >= VALUE_LEAST && values[i] <= VALUE_MOST : values[i] == 0.0f;
        if (!right) {
            return false;
        }
    }
    return true;
}

/* NULL when the bytes are whole, this model's and sensible; else what is wrong. */
static const char *file_fault(const struct gw_balance_key *key, const uint8_t *bytes)
{
    struct header header, expected = header_of(key);
    uint64_t summed = file_bytes(key) - sizeof(uint32_t);
    uint32_t crc;
    memcpy(&header, bytes, sizeof(header));
    memcpy(&crc, bytes + summed, sizeof(crc));
    if (memcmp(header.magic, magic, sizeof(magic)) != 0) {
        return "it is no file of balances";
    }
    if (header.version != VERSION) {
        return "another version";
    }
    if (crc != pp_crc32c(0, bytes, summed)) {
        return "its checksum is another";
    }
    if (memcmp(&header, &expected, sizeof(header)) != 0) {
        return "another model's";
    }
    const float *values = (const float *)(const void *)(bytes + sizeof(header));
    return values_right(key, values) ? NULL : "a value that is no balance";
}

enum pp_status gw_balance_file_load(const char *folder, const struct gw_balance_key *key,
                                    float *values_out)
{
    char path[PATH_BYTES];
    errno = ENAMETOOLONG;
    FILE *file = file_path(folder, key, path) ? fopen(path, "rb") : NULL;
    if (file == NULL && errno == ENOENT) {
        return PP_NOT_FOUND;
    }
    if (file == NULL) {
        PP_LOG_WARNF("engine", "kept balances cannot be read: they are measured again",
                     "path=\"%s\" cause=\"%s\"", path, strerror(errno));
        return PP_IO;
    }
    uint64_t wanted = file_bytes(key);
    uint8_t *bytes = malloc(wanted + 1);
    if (bytes == NULL) {
        fclose(file);
        return PP_MEMORY;
    }
    uint64_t got = fread(bytes, 1, wanted + 1, file);
    fclose(file);
    const char *fault = got == wanted ? file_fault(key, bytes) : "its length is another";
    if (fault == NULL) {
        memcpy(values_out, bytes + sizeof(struct header),
               key->layers * layer_values(key) * sizeof(float));
    } else {
        PP_LOG_WARNF("engine", "kept balances are not used: they are measured again",
                     "path=\"%s\" cause=\"%s\"", path, fault);
    }
    free(bytes);
    return fault == NULL ? PP_OK : PP_DATA_LOSS;
}

/* Writes the whole file at `path`; 0 or errno. */
static int write_file(const char *path, const uint8_t *bytes, uint64_t count)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL) {
        return errno;
    }
    bool written =
        fwrite(bytes, 1, count, file) == count && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int cause = written ? 0 : errno;
    if (fclose(file) != 0 && cause == 0) {
        cause = errno;
    }
    return cause;
}

enum pp_status gw_balance_file_save(const char *folder, const struct gw_balance_key *key,
                                    const float *values)
{
    char path[PATH_BYTES] = "", beside[PATH_BYTES];
    uint64_t count = file_bytes(key);
    uint8_t *bytes = malloc(count);
    if (bytes == NULL) {
        return PP_MEMORY;
    }
    struct header header = header_of(key);
    memcpy(bytes, &header, sizeof(header));
    memcpy(bytes + sizeof(header), values, count - sizeof(header) - sizeof(uint32_t));
    uint32_t crc = pp_crc32c(0, bytes, count - sizeof(crc));
    memcpy(bytes + count - sizeof(crc), &crc, sizeof(crc));
    int cause = mkdir(folder, 0700) == 0 || errno == EEXIST ? 0 : errno;
    if (cause == 0 && !file_path(folder, key, path)) {
        cause = ENAMETOOLONG;
    }
    if (cause == 0) {
        snprintf(beside, sizeof(beside), "%.*s.%ld", (int)(PATH_BYTES - 32), path, (long)getpid());
        cause = write_file(beside, bytes, count);
        if (cause == 0 && rename(beside, path) != 0) {
            cause = errno;
        }
        if (cause != 0) {
            (void)unlink(beside);
        }
    }
    free(bytes);
    if (cause != 0) {
        PP_LOG_WARNF("engine", "balances cannot be kept", "folder=\"%s\" cause=\"%s\"", folder,
                     strerror(cause));
    }
    return cause == 0 ? PP_OK : PP_IO;
}
