/*
 * The config's keys: sizes that divide by zero, do not divide, are missing or of another type, and
 * features that would change the arithmetic unseen. Every refusal names its key.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/model/config.h"
#include "tests/unit/gguf_build.h"

static const struct gguf_build_llama TINY = {2, 24, 6, 2, 48, 100};
static char error[256];

/* Reads the config of what was built and frees that. */
static enum pp_status read_config(struct gguf_build *build, struct gw_config *config_out)
{
    struct gw_gguf *gguf = NULL;
    error[0] = '\0';
    if (gw_gguf_parse(build->data, build->bytes, error, sizeof(error), &gguf) != PP_OK) {
        fail_msg("%s", error);
    }
    const enum pp_status status = gw_config_read(gguf, error, sizeof(error), config_out);
    gw_gguf_close(gguf);
    gguf_build_free(build);
    return status;
}

static void expect_refusal(struct gguf_build *build, enum pp_status status, const char *what)
{
    struct gw_config config;
    assert_int_equal(read_config(build, &config), status);
    if (strstr(error, what) == NULL) {
        fail_msg("'%s' does not tell of '%s'", error, what);
    }
}

static void sizes_are_read(void **state)
{
    (void)state;
    struct gguf_build build;
    struct gw_config config;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &TINY);
    assert_int_equal(read_config(&build, &config), PP_OK);
    assert_string_equal(config.name, "A tiny one");
    assert_int_equal(config.layers, 2);
    assert_int_equal(config.hidden, 24);
    assert_int_equal(config.q_heads, 6);
    assert_int_equal(config.kv_heads, 2);
    assert_int_equal(config.head_dim, 4);
    assert_int_equal(config.ffn, 48);
    assert_int_equal(config.vocab, 100);
    assert_int_equal(config.context_length, 128);
    assert_int_equal(config.rope_style, GW_ROPE_INTERLEAVED);
    assert_int_equal(config.rope_dim, 4);
    assert_true(config.rope_theta == 10000 && config.rope_scale == 1);
    assert_true(config.attention_scale == 0.5F && config.rms_eps == 1e-5F);
    assert_true(config.tied);
}

static void head_counts_that_do_not_divide_are_refused(void **state)
{
    (void)state;
    static const uint32_t PAIRS[][2] = {{33, 2}, {3, 2}, {4, 0}, {2, 4}, {0, 1}, {0, 0}};
    for (size_t index = 0; index < sizeof(PAIRS) / sizeof(PAIRS[0]); index++) {
        struct gguf_build_llama llama = TINY;
        llama.hidden = 33 * 4 * 12;
        llama.q_heads = PAIRS[index][0];
        llama.kv_heads = PAIRS[index][1];
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_llama_keys(&build, &llama);
        expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.attention.head_count");
    }
}

static void head_counts_of_real_models_are_taken(void **state)
{
    (void)state;
    static const uint32_t PAIRS[][2] = {{28, 4}, {24, 8}, {40, 8}, {15, 5}, {71, 1}, {12, 12}};
    for (size_t index = 0; index < sizeof(PAIRS) / sizeof(PAIRS[0]); index++) {
        struct gguf_build_llama llama = TINY;
        struct gw_config config;
        llama.hidden = PAIRS[index][0] * 64;
        llama.q_heads = PAIRS[index][0];
        llama.kv_heads = PAIRS[index][1];
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_llama_keys(&build, &llama);
        assert_int_equal(read_config(&build, &config), PP_OK);
        assert_int_equal(config.head_dim, 64);
    }
}

static void zero_sizes_are_refused_by_key(void **state)
{
    (void)state;
    struct gguf_build_llama llama = TINY;
    struct gguf_build build;
    llama.layers = 0;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.block_count is 0");
    llama = TINY;
    llama.hidden = 0;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.embedding_length is 0");
    llama = TINY;
    llama.hidden = 25;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.embedding_length 25 is not divisible");
    llama = TINY;
    llama.hidden = 6 * 5;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "heads of 5 elements");
    llama = TINY;
    llama.layers = 1025;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.block_count is 1025");
}

static void small_file_with_a_text_for_a_count_is_refused(void **state)
{
    (void)state;
    struct gguf_build build;
    gguf_build_begin(&build);
    gguf_build_key_text(&build, "general.architecture", "llama");
    gguf_build_key_text(&build, "llama.block_count", "32");
    assert_in_range(build.bytes, 1, 199);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.block_count");
    gguf_build_begin(&build);
    gguf_build_key_text(&build, "general.architecture", "llama");
    expect_refusal(&build, PP_INVALID_ARGUMENT, "llama.block_count is missing");
    gguf_build_begin(&build);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "general.architecture");
    gguf_build_begin(&build);
    gguf_build_key_u32(&build, "general.architecture", 1);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "general.architecture");
}

/* Nothing but what it takes to reach a division: under 200 bytes each. */
static void small_files_never_divide_by_zero(void **state)
{
    (void)state;
    static const struct {
        uint32_t embedding, heads, kv_heads, blocks;
        const char *key;
    } CASES[] = {
        {64, 0, 4, 1, "llama.attention.head_count"},
        {64, 4, 0, 1, "llama.attention.head_count_kv"},
        {64, 4, 4, 0, "llama.block_count"},
        {65, 4, 4, 1, "llama.embedding_length"},
    };
    for (size_t index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        for (int with_kv = 0; with_kv < 2; with_kv++) {
            struct gguf_build build;
            struct gw_config config;
            gguf_build_begin(&build);
            gguf_build_key_text(&build, "general.architecture", "llama");
            gguf_build_key_u32(&build, CASES[index].key,
                               index == 0   ? CASES[index].heads
                               : index == 1 ? CASES[index].kv_heads
                               : index == 2 ? CASES[index].blocks
                                            : CASES[index].embedding);
            if (index != 0 && with_kv == 1) {
                gguf_build_key_u32(&build, "llama.attention.head_count", CASES[index].heads);
            }
            if (index == 0 && with_kv == 1) {
                gguf_build_key_u32(&build, "llama.embedding_length", CASES[index].embedding);
            }
            assert_in_range(build.bytes, 1, 199);
            assert_int_equal(read_config(&build, &config), PP_INVALID_ARGUMENT);
            assert_non_null(strstr(error, "llama."));
        }
    }
}

static void numbers_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        float value;
    } CASES[] = {
        {"llama.attention.scale", 0},
        {"llama.attention.scale", -1},
        {"llama.rope.scale_linear", 0},
        {"llama.rope.scale_linear", __builtin_nanf("")},
        {"llama.attention.scale", __builtin_inff()},
    };
    for (size_t index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        gguf_build_llama_keys(&build, &TINY);
        gguf_build_key_f32(&build, CASES[index].key, CASES[index].value);
        expect_refusal(&build, PP_INVALID_ARGUMENT, CASES[index].key);
    }
}

static void features_that_change_the_arithmetic_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
    } CASES[] = {
        {"llama.expert_count", 8},
        {"llama.attention.sliding_window", 64},
        {"llama.rope.dimension_count", 2},
        {"llama.attention.value_length", 8},
    };
    struct gguf_build build;
    for (size_t index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        gguf_build_begin(&build);
        gguf_build_llama_keys(&build, &TINY);
        gguf_build_key_u32(&build, CASES[index].key, CASES[index].value);
        expect_refusal(&build, PP_UNIMPLEMENTED,
                       index == 3 ? "values of 8 elements" : CASES[index].key);
    }
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &TINY);
    gguf_build_key_text(&build, "llama.rope.scaling.type", "yarn");
    expect_refusal(&build, PP_UNIMPLEMENTED, "'yarn'");
    gguf_build_begin(&build);
    gguf_build_key_text(&build, "general.architecture", "qwen2");
    expect_refusal(&build, PP_UNIMPLEMENTED, "'qwen2'");
}

static void harmless_forms_of_those_features_are_taken(void **state)
{
    (void)state;
    struct gguf_build build;
    struct gw_config config;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &TINY);
    gguf_build_key_u32(&build, "llama.expert_count", 0);
    gguf_build_key_u32(&build, "llama.attention.sliding_window", 128);
    gguf_build_key_u32(&build, "llama.rope.dimension_count", 4);
    gguf_build_key_text(&build, "llama.rope.scaling.type", "linear");
    gguf_build_key_f32(&build, "llama.rope.scaling.factor", 8);
    assert_int_equal(read_config(&build, &config), PP_OK);
    assert_true(config.rope_scale == 0.125);
}

static void counts_a_layer_are_taken_when_all_are_equal(void **state)
{
    (void)state;
    for (int32_t last = 6; last <= 7; last++) {
        const int32_t counts[2] = {6, last};
        struct gguf_build build;
        struct gw_config config;
        gguf_build_begin(&build);
        gguf_build_key_text(&build, "general.architecture", "llama");
        gguf_build_key_u32(&build, "llama.block_count", 2);
        gguf_build_key_u32(&build, "llama.embedding_length", 24);
        gguf_build_key_u32(&build, "llama.feed_forward_length", 48);
        gguf_build_key_u32(&build, "llama.context_length", 128);
        gguf_build_key_i32s(&build, "llama.attention.head_count", counts, 2);
        gguf_build_key_f32(&build, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
        gguf_build_key_u32(&build, "llama.vocab_size", 10);
        assert_int_equal(read_config(&build, &config), last == 6 ? PP_OK : PP_UNIMPLEMENTED);
        assert_true(last == 7 || (config.q_heads == 6 && config.kv_heads == 6));
    }
}

static void more_tokens_than_rows_are_refused(void **state)
{
    (void)state;
    const char *tokens[] = {"a", "b", "c"};
    struct gguf_build_llama llama = TINY;
    struct gguf_build build;
    llama.vocab = 2;
    gguf_build_begin(&build);
    gguf_build_llama_keys(&build, &llama);
    gguf_build_key_texts(&build, "tokenizer.ggml.tokens", tokens, 3);
    expect_refusal(&build, PP_INVALID_ARGUMENT, "3 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(head_counts_that_do_not_divide_are_refused),
        cmocka_unit_test(head_counts_of_real_models_are_taken),
        cmocka_unit_test(zero_sizes_are_refused_by_key),
        cmocka_unit_test(small_file_with_a_text_for_a_count_is_refused),
        cmocka_unit_test(small_files_never_divide_by_zero),
        cmocka_unit_test(numbers_that_make_no_sense_are_refused),
        cmocka_unit_test(features_that_change_the_arithmetic_are_refused),
        cmocka_unit_test(harmless_forms_of_those_features_are_taken),
        cmocka_unit_test(counts_a_layer_are_taken_when_all_are_equal),
        cmocka_unit_test(more_tokens_than_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
