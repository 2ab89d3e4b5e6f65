/*
 * The GGUF reader against good files and hostile ones, built in memory: counts, lengths, types,
 * shapes and places that lie. Each bad file must be refused with a message that names the culprit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/resource.h>
#include <unistd.h>

#include "gpu-worker/model/gguf.h"
#include "tests/unit/gguf_build.h"

static char error[256];

/* Parses and expects a refusal whose message holds `what`. */
static void expect_refusal(struct gguf_build *build, const char *what)
{
    struct gw_gguf *gguf = NULL;
    error[0] = '\0';
    assert_int_equal(gw_gguf_parse(build->data, build->bytes, error, sizeof(error), &gguf),
                     PP_INVALID_ARGUMENT);
    if (strstr(error, what) == NULL) {
        fail_msg("'%s' does not tell of '%s'", error, what);
    }
    gguf_build_free(build);
}

static struct gw_gguf *parse(const struct gguf_build *build)
{
    struct gw_gguf *gguf = NULL;
    error[0] = '\0';
    if (gw_gguf_parse(build->data, build->bytes, error, sizeof(error), &gguf) != PP_OK) {
        fail_msg("%s", error);
    }
    return gguf;
}

static void values_of_every_type_are_read_back(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key(&build, "u8", 0);
    gguf_build_raw(&build, "\xff", 1);
    gguf_build_key(&build, "i16", 3);
    gguf_build_raw(&build, "\xfe\xff", 2);
    gguf_build_key_u32(&build, "u32", 4000000000U);
    gguf_build_key(&build, "u64", 10);
    gguf_build_u64(&build, UINT64_MAX);
    gguf_build_key_f32(&build, "f32", 1.5F);
    gguf_build_key_bool(&build, "yes", 1);
    gguf_build_key_text(&build, "text", "caf\xc3\xa9");
    const char *texts[] = {"a", "", "ccc"};
    gguf_build_key_texts(&build, "texts", texts, 3);
    const int32_t numbers[] = {-7, 8};
    gguf_build_key_i32s(&build, "numbers", numbers, 2);
    struct gw_gguf *gguf = parse(&build);
    uint64_t whole = 0;
    double number = 0;
    bool yes = false;
    const char *text = NULL;
    size_t bytes = 0;
    int64_t entry = 0;
    assert_int_equal(gw_gguf_u64(gguf, "u8", &whole), PP_OK);
    assert_int_equal(whole, 255);
    assert_int_equal(gw_gguf_u64(gguf, "u32", &whole), PP_OK);
    assert_int_equal(whole, 4000000000U);
    assert_int_equal(gw_gguf_u64(gguf, "u64", &whole), PP_OK);
    assert_true(whole == UINT64_MAX);
    assert_int_equal(gw_gguf_u64(gguf, "i16", &whole), PP_INVALID_ARGUMENT); /* negative */
    assert_int_equal(gw_gguf_f64(gguf, "i16", &number), PP_OK);
    assert_true(number == -2);
    assert_int_equal(gw_gguf_f64(gguf, "f32", &number), PP_OK);
    assert_true(number == 1.5);
    assert_int_equal(gw_gguf_bool(gguf, "yes", &yes), PP_OK);
    assert_true(yes);
    assert_int_equal(gw_gguf_string(gguf, "text", &text, &bytes), PP_OK);
    assert_int_equal(bytes, 5);
    assert_memory_equal(text, "caf\xc3\xa9", 5);
    assert_int_equal(gw_gguf_array_string(gguf, "texts", 2, &text, &bytes), PP_OK);
    assert_int_equal(bytes, 3);
    assert_memory_equal(text, "ccc", 3);
    assert_int_equal(gw_gguf_array_string(gguf, "texts", 3, &text, &bytes), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_gguf_array_i64(gguf, "numbers", 0, &entry), PP_OK);
    assert_int_equal(entry, -7);
    gw_gguf_close(gguf);
    gguf_build_free(&build);
}

static void value_of_another_type_is_refused_and_absent_one_not_found(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key_text(&build, "text", "x");
    gguf_build_key_u32(&build, "number", 1);
    struct gw_gguf *gguf = parse(&build);
    uint64_t whole = 7;
    double number = 7;
    bool yes = false;
    const char *text = NULL;
    size_t bytes = 0;
    uint64_t count = 0;
    assert_int_equal(gw_gguf_u64(gguf, "text", &whole), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_gguf_f64(gguf, "text", &number), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_gguf_bool(gguf, "number", &yes), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_gguf_string(gguf, "number", &text, &bytes), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_gguf_array_count(gguf, "text", &count), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_gguf_u64(gguf, "texts", &whole), PP_NOT_FOUND);
    assert_int_equal(gw_gguf_u64(gguf, "tex", &whole), PP_NOT_FOUND);
    assert_int_equal(whole, 7); /* outputs are written only on success */
    gw_gguf_close(gguf);
    gguf_build_free(&build);
}

static void tensors_are_found_by_name_with_their_bytes(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    const uint64_t square[2] = {32, 3};
    const uint64_t vector[1] = {5};
    gguf_build_tensor(&build, "b", 2, square, 3, 0);  /* Q4_1: 20 bytes a row */
    gguf_build_tensor(&build, "a", 1, vector, 0, 64); /* F32 */
    gguf_build_data(&build, 64 + 20);
    struct gw_gguf *gguf = parse(&build);
    const struct gw_tensor *tensor = gw_gguf_tensor(gguf, "b");
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, 60);
    assert_int_equal(tensor->dims[1], 3);
    assert_int_equal(tensor->dims[3], 1);
    assert_ptr_equal(gw_gguf_tensor(gguf, "a")->data, tensor->data + 64);
    assert_ptr_equal(gw_gguf_tensor(gguf, "a")->data + 20, build.data + build.bytes);
    assert_null(gw_gguf_tensor(gguf, "c"));
    assert_int_equal(gw_gguf_tensor_count(gguf), 2);
    assert_string_equal(gw_gguf_tensor_at(gguf, 0)->name, "b");
    gw_gguf_close(gguf);
    gguf_build_free(&build);
}

static void header_of_another_kind_is_refused(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    build.bytes = 23;
    expect_refusal(&build, "23 bytes");
    gguf_build_begin(&build);
    build.data[0] = 'g';
    expect_refusal(&build, "not a GGUF file");
    gguf_build_begin(&build);
    build.data[4] = 1;
    expect_refusal(&build, "version 1");
    gguf_build_begin(&build);
    memcpy(build.data + 4, "\0\0\0\3", 4);
    expect_refusal(&build, "big-endian");
}

static void impossible_counts_of_dimensions_are_refused_by_name(void **state)
{
    (void)state;
    static const uint32_t COUNTS[] = {0, 5, 9, 0xffffffff};
    const uint64_t dims[16] = {4, 4, 1, 1, 1};
    for (size_t index = 0; index < sizeof(COUNTS) / sizeof(COUNTS[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_tensor(&build, "the.culprit", COUNTS[index], dims, 0, 0);
        gguf_build_data(&build, 256);
        expect_refusal(&build, "the.culprit");
    }
}

static long peak_kib(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

static void sizes_that_overflow_are_refused_by_name(void **state)
{
    (void)state;
    static const uint64_t SHAPES[][4] = {
        {4, (1ULL << 62) + 1, 1, 1},    {1ULL << 63, 2, 1, 1},
        {UINT64_MAX, 1, 1, 1},          {0, 4, 1, 1},
        {(uint64_t)-4, 4, 1, 1},        {1ULL << 31, 1ULL << 31, 4, 1},
        {1ULL << 31, 1ULL << 31, 1, 1}, {1ULL << 31, 1ULL << 31, 1ULL << 31, 1ULL << 31},
    };
    const long before = peak_kib();
    for (size_t index = 0; index < sizeof(SHAPES) / sizeof(SHAPES[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_tensor(&build, "the.culprit", 4, SHAPES[index], 0, 0);
        gguf_build_data(&build, 256);
        expect_refusal(&build, "the.culprit");
    }
    assert_in_range(peak_kib() - before, 0, 1024); /* what a size says is not taken */
}

static void tensor_outside_the_file_or_unaligned_is_refused_by_name(void **state)
{
    (void)state;
    static const uint64_t OFFSETS[] = {UINT64_MAX - 31, UINT64_MAX, 1ULL << 63, 16, 33, 256, 224};
    const uint64_t dims[1] = {16};
    for (size_t index = 0; index < sizeof(OFFSETS) / sizeof(OFFSETS[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_tensor(&build, "the.culprit", 1, dims, 0, OFFSETS[index]);
        gguf_build_data(&build, 224 + 63); /* a byte short for the last offset */
        expect_refusal(&build, "the.culprit");
    }
}

static void tensor_of_an_unusable_type_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *what;
    } CASES[] = {{12, "Q4_K"}, {39, "MXFP4"}, {4, "unknown type 4"}, {0xffffffff, "unknown type"}};
    const uint64_t dims[1] = {256};
    for (size_t index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_tensor(&build, "the.culprit", 1, dims, CASES[index].type, 0);
        gguf_build_data(&build, 4096);
        expect_refusal(&build, CASES[index].what);
        assert_non_null(strstr(error, "the.culprit"));
    }
    struct gguf_build build;
    const uint64_t partial[1] = {48};
    gguf_build_begin(&build);
    gguf_build_tensor(&build, "the.culprit", 1, partial, 8, 0);
    gguf_build_data(&build, 4096);
    expect_refusal(&build, "block of 32");
}

static void twins_and_overlaps_are_refused_by_name(void **state)
{
    (void)state;
    const uint64_t dims[1] = {16};
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_tensor(&build, "the.culprit", 1, dims, 0, 0);
    gguf_build_tensor(&build, "another", 1, dims, 0, 64);
    gguf_build_tensor(&build, "the.culprit", 1, dims, 0, 128);
    gguf_build_data(&build, 256);
    expect_refusal(&build, "'the.culprit' stands there twice");
    gguf_build_begin(&build);
    gguf_build_tensor(&build, "second", 1, dims, 0, 32);
    gguf_build_tensor(&build, "first", 1, dims, 0, 0);
    gguf_build_data(&build, 256);
    expect_refusal(&build, "'first' and 'second' overlap");
    gguf_build_begin(&build);
    gguf_build_key_u32(&build, "a.key", 1);
    gguf_build_key_u32(&build, "b.key", 1);
    gguf_build_key_u32(&build, "a.key", 2);
    expect_refusal(&build, "'a.key' stands there twice");
}

static void keys_and_names_that_are_empty_or_hold_nul_are_refused(void **state)
{
    (void)state;
    const uint64_t dims[1] = {16};
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key_u32(&build, "", 1);
    expect_refusal(&build, "empty");
    gguf_build_begin(&build);
    gguf_build_u64(&build, 3);
    gguf_build_raw(&build, "a\0b", 3);
    gguf_build_u32(&build, 0);
    gguf_build_raw(&build, "1", 1);
    gguf_build_patch_u64(&build, 16, 1);
    expect_refusal(&build, "NUL");
    gguf_build_begin(&build);
    gguf_build_tensor(&build, "", 1, dims, 0, 0);
    gguf_build_data(&build, 64);
    expect_refusal(&build, "empty");
    gguf_build_begin(&build);
    char name[66];
    memset(name, 'n', 65);
    name[65] = '\0';
    gguf_build_tensor(&build, name, 1, dims, 0, 0);
    gguf_build_data(&build, 64);
    expect_refusal(&build, "65 bytes");
}

static void message_never_repeats_control_characters_of_the_file(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key(&build, "\x1b[31mred\n", 99);
    expect_refusal(&build, "'?[31mred?'");
}

static void lengths_and_counts_past_the_file_take_no_memory(void **state)
{
    (void)state;
    static const uint64_t LENGTHS[] = {1ULL << 30, 1ULL << 63, UINT64_MAX, UINT64_MAX - 7};
    const long before = peak_kib();
    for (size_t index = 0; index < sizeof(LENGTHS) / sizeof(LENGTHS[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build); /* a value's length */
        gguf_build_key(&build, "text", 8);
        gguf_build_u64(&build, LENGTHS[index]);
        expect_refusal(&build, "claims");
        gguf_build_begin(&build); /* a key's length */
        gguf_build_u64(&build, LENGTHS[index]);
        gguf_build_raw(&build, "0123456789012345", 16);
        gguf_build_patch_u64(&build, 16, 1);
        expect_refusal(&build, "claims");
        for (uint32_t type = 0; type <= 12; type++) { /* an array's count */
            if (type != 9) {
                gguf_build_begin(&build);
                gguf_build_key(&build, "list", 9);
                gguf_build_u32(&build, type);
                gguf_build_u64(&build, LENGTHS[index]);
                gguf_build_raw(&build, "0123456789012345", 16);
                expect_refusal(&build, "'list' claims");
            }
        }
        gguf_build_begin(&build);
        gguf_build_key_u32(&build, "key", 1);
        gguf_build_patch_u64(&build, 16, LENGTHS[index]);
        expect_refusal(&build, "keys, too many");
        gguf_build_begin(&build);
        gguf_build_key_u32(&build, "key", 1);
        gguf_build_patch_u64(&build, 8, LENGTHS[index]);
        expect_refusal(&build, "tensors, too many");
    }
    assert_in_range(peak_kib() - before, 0, 1024);
}

static void nested_arrays_unknown_types_and_odd_bools_are_refused(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key(&build, "nest", 9);
    for (int depth = 0; depth < 1000; depth++) {
        gguf_build_u32(&build, 9);
        gguf_build_u64(&build, 1);
    }
    expect_refusal(&build, "array of arrays");
    gguf_build_begin(&build);
    gguf_build_key(&build, "odd", 13);
    gguf_build_u64(&build, 0);
    expect_refusal(&build, "unknown type 13");
    gguf_build_begin(&build);
    gguf_build_key_bool(&build, "odd", 2);
    expect_refusal(&build, "bool");
}

static void odd_alignments_are_refused(void **state)
{
    (void)state;
    static const uint32_t ALIGNMENTS[] = {0, 3, 4, 48, 1U << 17, 1U << 30, 1U << 31};
    for (size_t index = 0; index < sizeof(ALIGNMENTS) / sizeof(ALIGNMENTS[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_key_u32(&build, "general.alignment", ALIGNMENTS[index]);
        expect_refusal(&build, "general.alignment");
    }
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key_text(&build, "general.alignment", "32");
    expect_refusal(&build, "general.alignment");
}

static void file_cut_short_anywhere_is_refused(void **state)
{
    (void)state;
    const struct gguf_build_llama llama = {1, 8, 2, 1, 16, 10};
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    const uint64_t data_bytes = gguf_build_llama_tensors(&build, &llama, NULL);
    gguf_build_data(&build, data_bytes);
    struct gw_gguf *gguf = parse(&build);
    gw_gguf_close(gguf);
    for (size_t bytes = 0; bytes + 1 < build.bytes; bytes++) {
        uint8_t *copy = malloc(bytes + 1); /* so that a sanitizer sees a read past the end */
        assert_non_null(copy);
        memcpy(copy, build.data, bytes);
        gguf = NULL;
        assert_int_equal(gw_gguf_parse(copy, bytes, error, sizeof(error), &gguf),
                         PP_INVALID_ARGUMENT);
        free(copy);
    }
    gguf_build_free(&build);
}

static void files_are_opened_and_those_that_cannot_be_are_named(void **state)
{
    (void)state;
    char path[] = "/tmp/pigpen_gguf_test_XXXXXX";
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key_u32(&build, "key", 42);
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, build.data, build.bytes), (ssize_t)build.bytes);
    assert_int_equal(close(fd), 0);
    struct gw_gguf *gguf = NULL;
    assert_int_equal(gw_gguf_open(path, error, sizeof(error), &gguf), PP_OK);
    uint64_t value = 0;
    assert_int_equal(gw_gguf_u64(gguf, "key", &value), PP_OK);
    assert_int_equal(value, 42);
    gw_gguf_close(gguf);
    assert_int_equal(truncate(path, 30), 0);
    assert_int_equal(gw_gguf_open(path, error, sizeof(error), &gguf), PP_INVALID_ARGUMENT);
    assert_non_null(strstr(error, path));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(gw_gguf_open(path, error, sizeof(error), &gguf), PP_IO);
    assert_non_null(strstr(error, path));
    assert_int_equal(gw_gguf_open("/tmp", error, sizeof(error), &gguf), PP_IO);
    gguf_build_free(&build);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_type_are_read_back),
        cmocka_unit_test(value_of_another_type_is_refused_and_absent_one_not_found),
        cmocka_unit_test(tensors_are_found_by_name_with_their_bytes),
        cmocka_unit_test(header_of_another_kind_is_refused),
        cmocka_unit_test(impossible_counts_of_dimensions_are_refused_by_name),
        cmocka_unit_test(sizes_that_overflow_are_refused_by_name),
        cmocka_unit_test(tensor_outside_the_file_or_unaligned_is_refused_by_name),
        cmocka_unit_test(tensor_of_an_unusable_type_is_refused_by_name),
        cmocka_unit_test(twins_and_overlaps_are_refused_by_name),
        cmocka_unit_test(keys_and_names_that_are_empty_or_hold_nul_are_refused),
        cmocka_unit_test(message_never_repeats_control_characters_of_the_file),
        cmocka_unit_test(lengths_and_counts_past_the_file_take_no_memory),
        cmocka_unit_test(nested_arrays_unknown_types_and_odd_bools_are_refused),
        cmocka_unit_test(odd_alignments_are_refused),
        cmocka_unit_test(file_cut_short_anywhere_is_refused),
        cmocka_unit_test(files_are_opened_and_those_that_cannot_be_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
