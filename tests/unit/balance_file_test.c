/*
 * The file of a model's balances: what was saved is loaded, what is damaged anywhere, of another
 * length, version or model is not, folders are made and failures are told apart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/crc32c.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "gpu-worker/engine/balance_file.h"

#define LAYERS 3u
#define VALUES (LAYERS * 2u * 5u)
#define BYTES  (92u + VALUES * 4u + 4u)

static const uint8_t fingerprint[] = {0xde, 0xad, 0xbe, 0xef};
static const struct gw_balance_key key = {.fingerprint = fingerprint,
                                          .fingerprint_bytes = 4,
                                          .layers = LAYERS,
                                          .kv_heads = 2,
                                          .head_dim = 5};

struct world {
    char folder[64], kept[80], path[160];
    float values[VALUES];
};

static struct world world_new(void)
{
    struct world world = {.folder = "/tmp/pigpen-balance-file-XXXXXX"};
    assert_non_null(mkdtemp(world.folder));
    snprintf(world.kept, sizeof(world.kept), "%s/kept", world.folder);
    snprintf(world.path, sizeof(world.path), "%s/balance-deadbeef-3x2x5.bin", world.kept);
    for (uint32_t i = 0; i < VALUES; i++) {
        world.values[i] = i < 10 ? 0.0f : 0.25f + 0.125f * (float)i; /* layer 0: none */
    }
    return world;
}

static void world_free(const struct world *world)
{
    (void)unlink(world->path);
    (void)rmdir(world->kept);
    assert_int_equal(rmdir(world->folder), 0);
}

static void read_bytes(const struct world *world, uint8_t *bytes)
{
    FILE *file = fopen(world->path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(bytes, 1, BYTES + 1, file), BYTES);
    fclose(file);
}

static void write_bytes(const struct world *world, const uint8_t *bytes, size_t count)
{
    FILE *file = fopen(world->path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Loads into values that must stay as they were unless it succeeds. */
static enum pp_status load(const struct world *world, const struct gw_balance_key *of)
{
    float values[VALUES];
    for (uint32_t i = 0; i < VALUES; i++) {
        values[i] = -7.0f;
    }
    enum pp_status status = gw_balance_file_load(world->kept, of, values);
    for (uint32_t i = 0; i < VALUES; i++) {
        assert_true(values[i] == (status == PP_OK ? world->values[i] : -7.0f));
    }
    return status;
}

static void what_was_saved_is_loaded(void **state)
{
    (void)state;
    struct world world = world_new();
    assert_int_equal(load(&world, &key), PP_NOT_FOUND);
    assert_int_equal(gw_balance_file_save(world.kept, &key, world.values), PP_OK);
    assert_int_equal(load(&world, &key), PP_OK);
    world.values[20] = 3.0f;
    assert_int_equal(gw_balance_file_save(world.kept, &key, world.values), PP_OK);
    assert_int_equal(load(&world, &key), PP_OK);
    struct gw_balance_key other = key;
    other.head_dim = 6;
    other.layers = 2;
    assert_int_equal(gw_balance_file_load(world.kept, &other, world.values), PP_NOT_FOUND);
    world_free(&world); /* nothing else lies beside the file */
}

static void a_file_damaged_in_any_byte_is_not_used(void **state)
{
    (void)state;
    struct world world = world_new();
    uint8_t bytes[BYTES + 1];
    assert_int_equal(gw_balance_file_save(world.kept, &key, world.values), PP_OK);
    read_bytes(&world, bytes);
    for (uint32_t i = 0; i < BYTES; i++) {
        bytes[i] ^= 0x10;
        write_bytes(&world, bytes, BYTES);
        assert_int_equal(load(&world, &key), PP_DATA_LOSS);
        bytes[i] ^= 0x10;
    }
    const size_t lengths[] = {0, 1, 91, 92, BYTES - 4, BYTES - 1, BYTES + 1};
    bytes[BYTES] = 0;
    for (uint32_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        write_bytes(&world, bytes, lengths[i]);
        assert_int_equal(load(&world, &key), PP_DATA_LOSS);
    }
    write_bytes(&world, bytes, BYTES);
    assert_int_equal(load(&world, &key), PP_OK);
    world_free(&world);
}

/* Changes four bytes and sums anew, as another program's file would be. */
static void change(const struct world *world, uint32_t at, uint32_t value)
{
    uint8_t bytes[BYTES + 1];
    assert_int_equal(gw_balance_file_save(world->kept, &key, world->values), PP_OK);
    read_bytes(world, bytes);
    memcpy(bytes + at, &value, sizeof(value));
    uint32_t crc = pp_crc32c(0, bytes, BYTES - 4);
    memcpy(bytes + BYTES - 4, &crc, sizeof(crc));
    write_bytes(world, bytes, BYTES);
}

static void whole_files_of_others_and_senseless_values_are_not_used(void **state)
{
    (void)state;
    struct world world = world_new();
    static const struct {
        uint32_t at, value;
    } changes[] = {{8, 2},               /* version */
                   {28, 0xefbeadd0},     /* fingerprint */
                   {16, 1},              /* kv heads */
                   {92 + 4 * 12, 0},     /* a zero in a layer that was measured */
                   {92 + 4, 0x3f800000}, /* a value in one that was not */
                   {92 + 4 * 12, 0x7fc00000},
                   {92 + 4 * 12, 0xbf800000},
                   {92 + 4 * 12, 0x48000000}};
    for (uint32_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        change(&world, changes[i].at, changes[i].value);
        assert_int_equal(load(&world, &key), PP_DATA_LOSS);
    }
    change(&world, 92 + 4 * 12, 0x3f800000);
    world.values[12] = 1.0f;
    assert_int_equal(load(&world, &key), PP_OK);
    world_free(&world);
}

static void a_folder_that_cannot_be_made_is_an_error_and_no_more(void **state)
{
    (void)state;
    struct world world = world_new();
    char deep[120], longest[5000];
    snprintf(deep, sizeof(deep), "%s/not/there", world.folder);
    assert_int_equal(gw_balance_file_save(deep, &key, world.values), PP_IO);
    assert_int_equal(gw_balance_file_load(deep, &key, world.values), PP_NOT_FOUND);
    memset(longest, 'a', sizeof(longest));
    longest[0] = '/';
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(gw_balance_file_save(longest, &key, world.values), PP_IO);
    assert_int_equal(gw_balance_file_load(longest, &key, world.values), PP_IO);
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_damaged_in_any_byte_is_not_used),
        cmocka_unit_test(a_folder_that_cannot_be_made_is_an_error_and_no_more),
        cmocka_unit_test(what_was_saved_is_loaded),
        cmocka_unit_test(whole_files_of_others_and_senseless_values_are_not_used),
    };
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
