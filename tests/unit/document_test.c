/*
 * Saved documents: what is read is what was written, whole or in part; there is a whole document or
 * none; and what is damaged, missing or of another model is refused with a line that says so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "gpu-worker/api/document.h"

#define LAYERS 3u
#define HEADS  2u
#define DIM    5u
#define TOKENS 70u
#define ROW    (HEADS * DIM * 2u) /* bf16 */

struct world {
    char folder[64], path[96];
    struct gw_document_manifest manifest;
    uint32_t ids[TOKENS];
    uint8_t k[LAYERS][TOKENS * ROW], v[LAYERS][TOKENS * ROW];
    float balances[LAYERS * HEADS * DIM];
    char said[1024];
};

static struct world *world_new(void)
{
    struct world *world = calloc(1, sizeof(*world));
    struct pp_rng rng = {.seed = 4111};
    snprintf(world->folder, sizeof(world->folder), "/tmp/pigpen_document.XXXXXX");
    assert_non_null(mkdtemp(world->folder));
    snprintf(world->path, sizeof(world->path), "%s/book", world->folder);
    world->manifest = (struct gw_document_manifest){.shape = {LAYERS, 4, HEADS, DIM, 1.0f, PP_BF16},
                                                    .fingerprint = {0x0a, 0xff, 3},
                                                    .fingerprint_bytes = 3,
                                                    .tokens = TOKENS};
    for (uint32_t i = 0; i < TOKENS; i++) {
        world->ids[i] = (uint32_t)pp_rng_u64(&rng);
    }
    for (uint32_t i = 0; i < LAYERS * TOKENS * ROW; i++) {
        world->k[i / (TOKENS * ROW)][i % (TOKENS * ROW)] = (uint8_t)pp_rng_u64(&rng);
        world->v[i / (TOKENS * ROW)][i % (TOKENS * ROW)] = (uint8_t)pp_rng_u64(&rng);
    }
    for (uint32_t i = 0; i < LAYERS * HEADS * DIM; i++) {
        world->balances[i] = (float)(i + 1);
    }
    return world;
}

static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] != '.') {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    (void)rmdir(path);
}

/* How many things lie in a folder. */
static uint32_t entries(const char *path)
{
    DIR *folder = opendir(path);
    uint32_t count = 0;
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.' ? 1 : 0;
    }
    closedir(folder);
    return count;
}

static void world_free(struct world *world)
{
    remove_folder(world->path);
    assert_int_equal(entries(world->folder), 0);
    assert_int_equal(rmdir(world->folder), 0);
    free(world);
}

/* A file of `said` that the code under test writes its line to. */
static FILE *listen(struct world *world)
{
    memset(world->said, 0, sizeof(world->said));
    return fmemopen(world->said, sizeof(world->said) - 1, "w");
}

static void heard(struct world *world, FILE *errors, const char *words)
{
    fclose(errors);
    if (strstr(world->said, words) == NULL) {
        fail_msg("'%s' is not in: %s", words, world->said);
    }
}

static enum pp_status write_rows(struct world *world, struct gw_document_writer *writer,
                                 uint32_t piece)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t start = 0; start < TOKENS; start += piece) {
            uint32_t count = TOKENS - start < piece ? TOKENS - start : piece;
            PP_TRY(gw_document_write(writer, layer, count, world->k[layer] + start * ROW,
                                     world->v[layer] + start * ROW));
        }
    }
    return PP_OK;
}

static void save(struct world *world, const float *balances)
{
    struct gw_document_writer *writer;
    assert_int_equal(gw_document_begin(world->path, &world->manifest, world->ids, stderr, &writer),
                     PP_OK);
    assert_int_equal(write_rows(world, writer, 32), PP_OK);
    assert_int_equal(gw_document_commit(writer, balances), PP_OK);
    gw_document_writer_destroy(writer);
}

static enum pp_status open_document(struct world *world, FILE *errors,
                                    struct gw_document **document_out)
{
    const struct gw_document_manifest *manifest = &world->manifest;
    return gw_document_open(world->path, &manifest->shape, manifest->fingerprint,
                            manifest->fingerprint_bytes, errors, document_out);
}

/* Reads `wanted` tokens a layer in pieces; the first status that is not PP_OK. */
static enum pp_status read_rows(struct world *world, struct gw_document *document, uint64_t wanted,
                                uint32_t piece)
{
    uint8_t k[TOKENS * ROW], v[TOKENS * ROW];
    gw_document_want(document, wanted);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint64_t start = 0; start < wanted; start += piece) {
            uint32_t count = wanted - start < piece ? (uint32_t)(wanted - start) : piece;
            PP_TRY(gw_document_read(document, layer, start, count, k, v));
            assert_memory_equal(k, world->k[layer] + start * ROW, count * ROW);
            assert_memory_equal(v, world->v[layer] + start * ROW, count * ROW);
        }
    }
    return PP_OK;
}

static void what_is_read_is_what_was_written(void **state)
{
    (void)state;
    for (uint32_t balanced = 0; balanced < 2; balanced++) {
        struct world *world = world_new();
        struct gw_document *document;
        save(world, balanced == 1 ? world->balances : NULL);
        assert_int_equal(open_document(world, stderr, &document), PP_OK);
        assert_int_equal(gw_document_tokens(document), TOKENS);
        assert_memory_equal(gw_document_ids(document), world->ids, sizeof(world->ids));
        const float *balances = gw_document_balances(document);
        assert_true((balances != NULL) == (balanced == 1));
        if (balanced == 1) {
            assert_memory_equal(balances, world->balances, sizeof(world->balances));
        }
        assert_int_equal(read_rows(world, document, TOKENS, 33), PP_OK);
        assert_int_equal(gw_document_read(document, LAYERS, 0, 1, NULL, NULL), PP_OUT_OF_RANGE);
        gw_document_close(document);
        assert_int_equal(open_document(world, stderr, &document), PP_OK);
        assert_int_equal(read_rows(world, document, 41, 8), PP_OK);
        gw_document_close(document);
        world_free(world);
    }
}

/* As a fill does that lost a node: the first rows again, wherever it was. */
static void rows_are_given_again_from_the_first(void **state)
{
    (void)state;
    struct world *world = world_new();
    struct gw_document *document;
    uint8_t k[TOKENS * ROW], v[TOKENS * ROW];
    save(world, NULL);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        assert_int_equal(open_document(world, stderr, &document), PP_OK);
        for (uint32_t before = 0; before < layer; before++) {
            assert_int_equal(gw_document_read(document, before, 0, TOKENS, k, v), PP_OK);
        }
        assert_int_equal(gw_document_read(document, layer, 0, 7, k, v), PP_OK);
        assert_int_equal(read_rows(world, document, TOKENS, 33), PP_OK);
        assert_int_equal(read_rows(world, document, TOKENS, TOKENS), PP_OK);
        assert_int_equal(gw_document_read(document, 1, 0, 1, k, v), PP_OUT_OF_RANGE);
        gw_document_close(document);
    }
    world_free(world);
}

static void document_that_is_not_committed_leaves_nothing(void **state)
{
    (void)state;
    struct world *world = world_new();
    struct gw_document_writer *writer;
    assert_int_equal(gw_document_begin(world->path, &world->manifest, world->ids, stderr, &writer),
                     PP_OK);
    assert_int_equal(gw_document_write(writer, 0, 5, world->k[0], world->v[0]), PP_OK);
    assert_int_equal(gw_document_write(writer, 1, 5, world->k[0], world->v[0]), PP_OUT_OF_RANGE);
    assert_int_equal(gw_document_write(writer, 0, TOKENS - 4, world->k[0], world->v[0]),
                     PP_OUT_OF_RANGE);
    assert_int_equal(gw_document_commit(writer, NULL), PP_FAILED_PRECONDITION);
    assert_int_equal(entries(world->folder), 1); /* not under its name yet */
    gw_document_writer_destroy(writer);
    assert_int_equal(entries(world->folder), 0);
    world_free(world);
}

static void place_that_is_taken_or_not_there_is_refused(void **state)
{
    (void)state;
    struct world *world = world_new();
    struct gw_document_writer *writer;
    save(world, NULL);
    FILE *errors = listen(world);
    assert_int_equal(gw_document_begin(world->path, &world->manifest, world->ids, errors, &writer),
                     PP_IO);
    heard(world, errors, "it exists");
    errors = listen(world);
    assert_int_equal(gw_document_begin("/tmp/pigpen/no/such/folder/book", &world->manifest,
                                       world->ids, errors, &writer),
                     PP_IO);
    heard(world, errors, "No such file");
    world_free(world);
}

/* Puts a byte at `at` of a file of the document; past its end: the file grows. */
static void poke(const struct world *world, const char *name, off_t at, char value)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", world->path, name);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(pwrite(file, &value, 1, at), 1);
    close(file);
}

static void cut(const struct world *world, const char *name, off_t bytes)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", world->path, name);
    assert_int_equal(bytes < 0 ? unlink(path) : truncate(path, bytes), 0);
}

/* Opens and reads all of a document that something is wrong with. */
static void check_refused(struct world *world, enum pp_status expected, const char *words)
{
    struct gw_document *document = NULL;
    FILE *errors = listen(world);
    enum pp_status status = open_document(world, errors, &document);
    if (status == PP_OK) {
        status = read_rows(world, document, TOKENS, 16);
    }
    gw_document_close(document);
    heard(world, errors, words);
    assert_int_equal(status, expected);
}

static void damaged_and_missing_files_are_named(void **state)
{
    (void)state;
    static const char *const names[] = {"tokens", "balances", "k.0000", "v.0002"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct world *world = world_new();
        char words[64];
        snprintf(words, sizeof(words), "%s is damaged: its CRC-32C", names[i]);
        world->ids[0] = 9;
        world->balances[0] = 9.0f;
        save(world, world->balances);
        /* A byte that comes after all that is compared with what was written. */
        uint8_t last = i < 2 ? 1 : (uint8_t)(world->k[LAYERS - 1][TOKENS * ROW - 1] ^ 1);
        off_t at = i == 0 ? TOKENS * 4 - 1 : i == 1 ? (off_t)sizeof(world->balances) - 1 : 0;
        if (i >= 2) {
            uint8_t *row = i == 2 ? &world->k[0][0] : &world->v[2][0];
            last = *row = (uint8_t)(*row ^ 1); /* what is read is compared with this */
        }
        poke(world, names[i], at, (char)last);
        check_refused(world, PP_CHECKSUM, words);
        poke(world, names[i], 100000, 0);
        check_refused(world, PP_CHECKSUM, "bytes instead of");
        cut(world, names[i], 3);
        check_refused(world, PP_CHECKSUM, "has 3 bytes instead of");
        cut(world, names[i], -1);
        check_refused(world, PP_IO, "save the document again");
        world_free(world);
    }
}

static void rows_that_are_not_wanted_count_for_the_checksum(void **state)
{
    (void)state;
    struct world *world = world_new();
    struct gw_document *document;
    save(world, NULL);
    poke(world, "k.0001", TOKENS * ROW - 1, (char)(world->k[1][TOKENS * ROW - 1] ^ 1));
    FILE *errors = listen(world);
    assert_int_equal(open_document(world, errors, &document), PP_OK);
    assert_int_equal(read_rows(world, document, 10, 10), PP_CHECKSUM);
    gw_document_close(document);
    heard(world, errors, "k.0001 is damaged");
    world_free(world);
}

static void document_of_another_model_or_dtype_is_refused(void **state)
{
    (void)state;
    struct world *world = world_new();
    save(world, NULL);
    world->manifest.fingerprint[1] ^= 1;
    check_refused(world, PP_MODEL_MISMATCH,
                  "another model (fingerprint 0aff03, this one's is 0afe03)");
    world->manifest.fingerprint[1] ^= 1;
    world->manifest.shape.layers--;
    check_refused(world, PP_MODEL_MISMATCH, "another model");
    world->manifest.shape.layers++;
    world->manifest.shape.kv_dtype = PP_F32;
    check_refused(world, PP_FAILED_PRECONDITION, "--kv-dtype=bf16");
    world_free(world);
}

static void manifest_that_is_none_is_refused(void **state)
{
    (void)state;
    struct world *world = world_new();
    save(world, NULL);
    poke(world, "manifest.json", 0, 'x');
    check_refused(world, PP_INVALID_ARGUMENT, "no JSON");
    cut(world, "manifest.json", -1);
    check_refused(world, PP_IO, "no saved document");
    char path[160];
    snprintf(path, sizeof(path), "%s/manifest.json", world->path);
    assert_int_equal(mkfifo(path, 0600), 0);
    check_refused(world, PP_IO, "no saved document");
    remove_folder(world->path);
    check_refused(world, PP_IO, "No such file");
    world_free(world);
}

/* The manifest of a small document with `from` replaced by `to`. */
static void check_manifest(const char *from, const char *to, const char *words)
{
    static const struct gw_document_manifest manifest = {.shape = {1, 2, 1, 8, 1.0f, PP_I8},
                                                         .fingerprint = {1},
                                                         .fingerprint_bytes = 1,
                                                         .tokens = 5,
                                                         .k_crc32c = {UINT32_MAX}};
    static struct gw_document_manifest parsed;
    char *text, error[512] = "", changed[2048];
    assert_int_equal(gw_document_manifest_render(&manifest, &text), PP_OK);
    char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    enum pp_status status =
        gw_document_manifest_parse(changed, strlen(changed), &parsed, error, sizeof(error));
    free(text);
    assert_int_equal(status, words == NULL ? PP_OK : PP_INVALID_ARGUMENT);
    if (words == NULL) {
        assert_int_equal(parsed.k_crc32c[0], UINT32_MAX);
        assert_int_equal(parsed.shape.kv_dtype, PP_I8);
    } else if (strstr(error, words) == NULL) {
        fail_msg("'%s' is not in: %s", words, error);
    }
}

static void numbers_of_a_manifest_are_bounded(void **state)
{
    (void)state;
    check_manifest("pigpen", "pigpen", NULL);
    check_manifest("pigpen", "Pigpen", "another program");
    check_manifest("\"version\": 1", "\"version\": 2", "version is 2");
    check_manifest("\"tokens\": 5", "\"tokens\": 0", "cannot have 0 tokens");
    check_manifest("\"tokens\": 5", "\"tokens\": 4294967297", "tokens");
    check_manifest("\"tokens\": 5", "\"tokens\": -5", "tokens");
    check_manifest("\"tokens\": 5", "\"tokens\": 5.0", "integer");
    check_manifest("\"layers\": 1", "\"layers\": 4294967297", "shape");
    check_manifest("\"layers\": 1", "\"layers\": 2", "checksums");
    check_manifest("\"kv_heads\": 1", "\"kv_heads\": 3", "shape");
    check_manifest("\"head_dim\": 8", "\"head_dim\": 257", "shape");
    check_manifest("int8", "int4", "shape");
    check_manifest("\"01\"", "\"0\"", "fingerprint");
    check_manifest("\"01\"", "\"\"", "fingerprint");
    check_manifest("\"01\"", "\"0g\"", "fingerprint");
    check_manifest("4294967295", "4294967296", "checksums");
    check_manifest("4294967295", "-1", "checksums");
    check_manifest("\"balanced\"", "\"balance\"", "balanced");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_is_what_was_written),
        cmocka_unit_test(rows_are_given_again_from_the_first),
        cmocka_unit_test(document_that_is_not_committed_leaves_nothing),
        cmocka_unit_test(place_that_is_taken_or_not_there_is_refused),
        cmocka_unit_test(damaged_and_missing_files_are_named),
        cmocka_unit_test(rows_that_are_not_wanted_count_for_the_checksum),
        cmocka_unit_test(document_of_another_model_or_dtype_is_refused),
        cmocka_unit_test(manifest_that_is_none_is_refused),
        cmocka_unit_test(numbers_of_a_manifest_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
