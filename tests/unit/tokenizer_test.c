/*
 * The tokenizer and the detokenizer over a small vocabulary made here: the order of merges against
 * a plain reference, pre-tokenizers, control tokens, streams of bytes, and vocabularies that lie.
 * The real model's vocabulary is in tokenizer_model_test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "gpu-worker/model/tokenizer.h"
#include "tests/unit/vocab_build.h"

static char error[256];

struct fixture {
    struct gguf_build build;
    struct gw_gguf *gguf;
    struct gw_tokenizer *tokenizer;
};

static void begin(struct fixture *fixture, const struct vocab_build *vocab)
{
    gguf_build_begin(&fixture->build);
    vocab_build_keys(&fixture->build, vocab);
}

static enum pp_status finish(struct fixture *fixture)
{
    fixture->gguf = NULL;
    fixture->tokenizer = NULL;
    error[0] = '\0';
    if (gw_gguf_parse(fixture->build.data, fixture->build.bytes, error, sizeof(error),
                      &fixture->gguf) != PP_OK) {
        fail_msg("%s", error);
    }
    return gw_tokenizer_new(fixture->gguf, error, sizeof(error), &fixture->tokenizer);
}

static void load(struct fixture *fixture, const struct vocab_build *vocab)
{
    begin(fixture, vocab);
    if (finish(fixture) != PP_OK) {
        fail_msg("%s", error);
    }
}

static void unload(struct fixture *fixture)
{
    gw_tokenizer_destroy(fixture->tokenizer);
    gw_gguf_close(fixture->gguf);
    gguf_build_free(&fixture->build);
}

static void expect_refusal(struct fixture *fixture, enum pp_status status, const char *what)
{
    assert_int_equal(finish(fixture), status);
    if (strstr(error, what) == NULL) {
        fail_msg("'%s' does not tell of '%s'", error, what);
    }
    unload(fixture);
}

static void expect_ids(const struct fixture *fixture, const char *text, bool special,
                       const uint32_t *wanted, size_t wanted_count)
{
    uint32_t *ids = NULL;
    size_t count = 0;
    assert_int_equal(
        gw_tokenizer_encode(fixture->tokenizer, text, strlen(text), special, &ids, &count), PP_OK);
    assert_int_equal(count, wanted_count);
    assert_memory_equal(ids, wanted, count * sizeof(*ids));
    free(ids);
}
#define EXPECT_IDS(fixture, text, special, ...)                                                    \
    expect_ids(fixture, text, special, (const uint32_t[]){__VA_ARGS__},                            \
               sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static void merges_go_by_rank_and_leftmost_on_ties(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "gpt-2",
                                      .merges = {"b c", "a b", "d d", "dd dd", "a bc"}};
    load(&fixture, &vocab);
    EXPECT_IDS(&fixture, "abc", false, 260); /* bc first, then a bc */
    EXPECT_IDS(&fixture, "abd", false, 257, 'd');
    EXPECT_IDS(&fixture, "ddd", false, 258, 'd'); /* leftmost */
    EXPECT_IDS(&fixture, "ddddd", false, 259, 'd');
    EXPECT_IDS(&fixture, "ddddddd", false, 259, 258, 'd');
    EXPECT_IDS(&fixture, "x", false, 'x');
    unload(&fixture);
}

static void empty_text_has_no_ids(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "smollm"};
    load(&fixture, &vocab);
    uint32_t *ids = NULL;
    size_t count = 9;
    assert_int_equal(gw_tokenizer_encode(fixture.tokenizer, "", 0, true, &ids, &count), PP_OK);
    assert_int_equal(count, 0);
    free(ids);
    unload(&fixture);
}

/* The plain way: look for the least rank in all pairs, join, begin again. */
static size_t merge_plainly(const struct vocab_build *vocab, char (*pieces)[32], size_t count)
{
    for (;;) {
        size_t best_rank = SIZE_MAX;
        size_t best_at = 0;
        for (size_t at = 0; at + 1 < count; at++) {
            char pair[80];
            (void)snprintf(pair, sizeof(pair), "%s %s", pieces[at], pieces[at + 1]);
            for (size_t rank = 0; vocab->merges[rank] != NULL; rank++) {
                if (rank < best_rank && strcmp(vocab->merges[rank], pair) == 0) {
                    best_rank = rank;
                    best_at = at;
                }
            }
        }
        if (best_rank == SIZE_MAX) {
            return count;
        }
        const size_t length = strlen(pieces[best_at]);
        (void)snprintf(pieces[best_at] + length, sizeof(*pieces) - length, "%s",
                       pieces[best_at + 1]);
        memmove(pieces + best_at + 1, pieces + best_at + 2,
                (count - best_at - 2) * sizeof(*pieces));
        count--;
    }
}

static void merges_of_random_words_equal_the_plain_way(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct vocab_build vocab = {
        .pre = "gpt-2",
        .merges = {"b a", "a b", "a a", "ba b", "ab ab", "c c", "aa a", "b b", "a c", "ba ba",
                   "abab a", "cc cc", "bab b", "c a", "bb ac"},
    };
    load(&fixture, &vocab);
    const uint64_t seed = 20261129;
    print_message("seed %llu\n", (unsigned long long)seed);
    uint64_t draw = seed;
    for (int word = 0; word < 2000; word++) {
        char text[41];
        char pieces[40][32];
        draw = draw * 6364136223846793005ULL + 1442695040888963407ULL;
        const size_t length = 1 + (draw >> 33) % 40;
        for (size_t at = 0; at < length; at++) {
            draw = draw * 6364136223846793005ULL + 1442695040888963407ULL;
            text[at] = (char)('a' + (draw >> 33) % 3);
            pieces[at][0] = text[at];
            pieces[at][1] = '\0';
        }
        text[length] = '\0';
        const size_t wanted = merge_plainly(&vocab, pieces, length);
        uint32_t *ids = NULL;
        size_t count = 0;
        assert_int_equal(gw_tokenizer_encode(fixture.tokenizer, text, length, false, &ids, &count),
                         PP_OK);
        assert_int_equal(count, wanted);
        for (size_t at = 0; at < count; at++) {
            const char *bytes = NULL;
            size_t byte_count = 0;
            gw_tokenizer_bytes(fixture.tokenizer, ids[at], false, &bytes, &byte_count);
            assert_int_equal(byte_count, strlen(pieces[at]));
            assert_memory_equal(bytes, pieces[at], byte_count);
        }
        free(ids);
    }
    unload(&fixture);
}

static void whole_word_is_looked_up_first_only_where_the_model_does(void **state)
{
    (void)state;
    struct fixture fixture;
    struct vocab_build vocab = {.pre = "gpt-2", .merges = {"a b"}, .tokens = {"abc"}};
    load(&fixture, &vocab);
    EXPECT_IDS(&fixture, "abc", false, 256, 'c'); /* no merge makes it */
    unload(&fixture);
    vocab.pre = "llama-bpe";
    begin(&fixture, &vocab);
    gguf_build_key_u32(&fixture.build, "tokenizer.ggml.bos_token_id", 0);
    assert_int_equal(finish(&fixture), PP_OK);
    EXPECT_IDS(&fixture, "abc", false, 257);
    EXPECT_IDS(&fixture, "abcd", false, 256, 'c', 'd');
    unload(&fixture);
}

static void pieces_are_cut_as_each_pre_tokenizer_says(void **state)
{
    (void)state;
    struct fixture fixture;
    /* The alphabet's sign for a space is U+0120. Merges show where the cuts are. */
    struct vocab_build vocab = {
        .pre = "smollm",
        .merges = {"1 2", "\xc4\xa0 \xc4\xa0", "\xc4\xa0 x", "\xc4\xa0 1", "12 3", "' s", "' S"}};
    load(&fixture, &vocab);
    EXPECT_IDS(&fixture, "x   12", false, 'x', 257, ' ', '1', '2');
    EXPECT_IDS(&fixture, "   x", false, 257, 258); /* the last space goes with the word */
    EXPECT_IDS(&fixture, "a's'S", false, 'a', 261, '\'', 'S');
    unload(&fixture);
    vocab.pre = "gpt-2";
    load(&fixture, &vocab);
    EXPECT_IDS(&fixture, "x   123", false, 'x', 257, ' ', 260);
    EXPECT_IDS(&fixture, "1234", false, 260, '4');
    unload(&fixture);
    vocab.pre = "llama-bpe";
    begin(&fixture, &vocab);
    gguf_build_key_u32(&fixture.build, "tokenizer.ggml.bos_token_id", 0);
    assert_int_equal(finish(&fixture), PP_OK);
    EXPECT_IDS(&fixture, "a's'S", false, 'a', 261, 262);
    EXPECT_IDS(&fixture, "x   1212", false, 'x', 257, ' ', 256, '1', '2'); /* threes */
    unload(&fixture);
    vocab.pre = "qwen2";
    load(&fixture, &vocab);
    EXPECT_IDS(&fixture, "12", false, '1', '2');
    EXPECT_IDS(&fixture, "e\xcc\x81", false, 0xc3, 0xa9); /* composed to U+00E9 */
    unload(&fixture);
}

static void control_tokens_come_from_text_only_when_asked(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct vocab_build vocab = {
        .pre = "smollm",
        .controls = {"<|a|>", "<|a|>b", "<|end|>"},
        .users = {"<u>"},
    };
    load(&fixture, &vocab);
    EXPECT_IDS(&fixture, "x<|a|>y", true, 'x', 256, 'y');
    EXPECT_IDS(&fixture, "<|a|>bb<|a|", true, 257, 'b', '<', '|', 'a', '|'); /* the longest */
    EXPECT_IDS(&fixture, "<|<|a|>", true, '<', '|', 256);
    EXPECT_IDS(&fixture, "<|a|>", false, '<', '|', 'a', '|', '>');
    EXPECT_IDS(&fixture, "<u><|a|>", false, 259, '<', '|', 'a', '|', '>');
    uint32_t id = 0;
    assert_int_equal(gw_tokenizer_find(fixture.tokenizer, "<|end|>", &id), PP_OK);
    assert_int_equal(id, 258);
    assert_int_equal(gw_tokenizer_find(fixture.tokenizer, "<|end|", &id), PP_NOT_FOUND);
    assert_int_equal(gw_tokenizer_find(fixture.tokenizer, "a", &id), PP_NOT_FOUND);
    const char *bytes = NULL;
    size_t count = 0;
    gw_tokenizer_bytes(fixture.tokenizer, 258, false, &bytes, &count);
    assert_int_equal(count, 0);
    gw_tokenizer_bytes(fixture.tokenizer, 258, true, &bytes, &count);
    assert_int_equal(count, 7);
    unload(&fixture);
}

static void several_end_tokens_are_known_by_key_and_by_text(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "smollm",
                                      .controls = {"<one>", "<two>", "<|im_end|>", "<four>"}};
    begin(&fixture, &vocab);
    gguf_build_key_u32(&fixture.build, "tokenizer.ggml.eos_token_id", 256);
    gguf_build_key_u32(&fixture.build, "tokenizer.ggml.eot_token_id", 257);
    assert_int_equal(finish(&fixture), PP_OK);
    uint32_t id = 0;
    assert_true(gw_tokenizer_is_end(fixture.tokenizer, 256));
    assert_true(gw_tokenizer_is_end(fixture.tokenizer, 257));
    assert_true(gw_tokenizer_is_end(fixture.tokenizer, 258));
    assert_false(gw_tokenizer_is_end(fixture.tokenizer, 259));
    assert_false(gw_tokenizer_adds_bos(fixture.tokenizer, &id));
    unload(&fixture);
    begin(&fixture, &vocab);
    gguf_build_key_u32(&fixture.build, "tokenizer.ggml.bos_token_id", 259);
    gguf_build_key_bool(&fixture.build, "tokenizer.ggml.add_bos_token", 1);
    assert_int_equal(finish(&fixture), PP_OK);
    assert_true(gw_tokenizer_adds_bos(fixture.tokenizer, &id));
    assert_int_equal(id, 259);
    unload(&fixture);
}

/* Feeds byte tokens; every delta must be whole characters. */
static void stream(struct gw_detokenizer *detokenizer, const char *bytes, size_t count,
                   char *text_out)
{
    size_t made = 0;
    for (size_t index = 0; index < count; index++) {
        const char *delta = NULL;
        size_t delta_bytes = 0;
        assert_int_equal(
            gw_detokenizer_add(detokenizer, (uint8_t)bytes[index], &delta, &delta_bytes), PP_OK);
        assert_true(delta_bytes == 0 || ((uint8_t)delta[0] & 0xc0) != 0x80);
        memcpy(text_out + made, delta, delta_bytes);
        made += delta_bytes;
    }
    text_out[made] = '\0';
}

static void characters_over_several_tokens_are_streamed_whole(void **state)
{
    (void)state;
    static const char TEXT[] = "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 \xf0\x9f\x98\x80!";
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "smollm"};
    struct gw_detokenizer detokenizer;
    char text[128];
    load(&fixture, &vocab);
    gw_detokenizer_init(&detokenizer, fixture.tokenizer);
    stream(&detokenizer, TEXT, strlen(TEXT), text);
    assert_string_equal(text, TEXT);
    /* The end comes inside the emoji: what was whole stands, the rest is dropped. */
    stream(&detokenizer, TEXT, strlen(TEXT) - 2, text);
    assert_string_equal(text, "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 ");
    gw_detokenizer_finish(&detokenizer);
    stream(&detokenizer, "ok", 2, text);
    assert_string_equal(text, "ok");
    gw_detokenizer_deinit(&detokenizer);
    unload(&fixture);
}

static void bytes_that_make_no_character_become_replacements(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        const char *text;
    } CASES[] = {
        {"\xff", "\xef\xbf\xbd"},
        {"a\x80z", "a\xef\xbf\xbdz"},
        {"\xe2\x82z", "\xef\xbf\xbdz"},                           /* a start cut off */
        {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},     /* then a whole one */
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* a surrogate */
        {"\xf4\x90z", "\xef\xbf\xbd\xef\xbf\xbdz"},               /* above U+10FFFF */
        {"\xf0\x9f\x98\xff", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "smollm"};
    load(&fixture, &vocab);
    for (size_t index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        struct gw_detokenizer detokenizer;
        char text[64];
        gw_detokenizer_init(&detokenizer, fixture.tokenizer);
        stream(&detokenizer, CASES[index].bytes, strlen(CASES[index].bytes), text);
        assert_string_equal(text, CASES[index].text);
        gw_detokenizer_deinit(&detokenizer);
    }
    unload(&fixture);
}

static void text_that_is_no_utf8_is_refused(void **state)
{
    (void)state;
    static const char *const TEXTS[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\xaf",
                                        "\xf4\x90\x80\x80"};
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "smollm"};
    load(&fixture, &vocab);
    for (size_t index = 0; index < sizeof(TEXTS) / sizeof(TEXTS[0]); index++) {
        uint32_t *ids = NULL;
        size_t count = 0;
        assert_int_equal(gw_tokenizer_encode(fixture.tokenizer, TEXTS[index], strlen(TEXTS[index]),
                                             false, &ids, &count),
                         PP_INVALID_ARGUMENT);
        assert_null(ids);
    }
    unload(&fixture);
}

static void bytes_without_a_token_are_left_out(void **state)
{
    (void)state;
    struct fixture fixture;
    const char *tokens[] = {"a", "b", "ab"};
    const char *merges[] = {"a b"};
    gguf_build_begin(&fixture.build);
    gguf_build_key_text(&fixture.build, "tokenizer.ggml.model", "gpt2");
    gguf_build_key_texts(&fixture.build, "tokenizer.ggml.tokens", tokens, 3);
    gguf_build_key_texts(&fixture.build, "tokenizer.ggml.merges", merges, 1);
    assert_int_equal(finish(&fixture), PP_OK);
    EXPECT_IDS(&fixture, "azb", false, 2); /* neighbours once z is gone */
    EXPECT_IDS(&fixture, "z zab", false, 2);
    unload(&fixture);
}

static void long_runs_of_combining_marks_take_linear_time(void **state)
{
    (void)state;
    struct fixture fixture;
    const struct vocab_build vocab = {.pre = "qwen2"};
    const size_t marks = 200000;
    char *text = malloc(2 * marks + 1);
    assert_non_null(text);
    text[0] = 'a';
    for (size_t index = 0; index < marks; index++) { /* below and above in turn: out of order */
        memcpy(text + 1 + 2 * index, index % 2 == 0 ? "\xcc\x81" : "\xcc\xa3", 2);
    }
    load(&fixture, &vocab);
    uint32_t *ids = NULL;
    size_t count = 0;
    assert_int_equal(
        gw_tokenizer_encode(fixture.tokenizer, text, 2 * marks + 1, false, &ids, &count), PP_OK);
    assert_in_range(count, 2 * marks, 2 * marks + 3);
    free(ids);
    free(text);
    unload(&fixture);
}

static void vocabularies_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct vocab_build vocab;
        enum pp_status status;
        const char *what;
    } CASES[] = {
        {{.pre = "tekken"}, PP_UNIMPLEMENTED, "'tekken'"},
        {{.pre = "smollm", .tokens = {"a"}}, PP_INVALID_ARGUMENT, "stands there twice"},
        {{.pre = "smollm", .merges = {"a b"}, .tokens = {"ab"}},
         PP_INVALID_ARGUMENT,
         "a token stands there twice"},
        {{.pre = "smollm", .controls = {"<a>", "<a>"}}, PP_INVALID_ARGUMENT, "one text"},
    };
    for (size_t index = 0; index < sizeof(CASES) / sizeof(CASES[0]); index++) {
        struct fixture fixture;
        begin(&fixture, &CASES[index].vocab);
        expect_refusal(&fixture, CASES[index].status, CASES[index].what);
    }
    static const char *const MERGES[] = {"ab", "a", "", " ", "a ", " a", "a q", "a b c", "xx yy"};
    for (size_t index = 0; index < sizeof(MERGES) / sizeof(MERGES[0]); index++) {
        struct fixture fixture;
        const char *tokens[] = {"a", "b", "ab"};
        gguf_build_begin(&fixture.build);
        gguf_build_key_text(&fixture.build, "tokenizer.ggml.model", "gpt2");
        gguf_build_key_texts(&fixture.build, "tokenizer.ggml.tokens", tokens, 3);
        gguf_build_key_texts(&fixture.build, "tokenizer.ggml.merges", &MERGES[index], 1);
        expect_refusal(&fixture, PP_INVALID_ARGUMENT, "a merge");
    }
}

static void special_ids_and_lists_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const char *const KEYS[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    const struct vocab_build vocab = {.pre = "smollm"};
    struct fixture fixture;
    for (size_t index = 0; index < sizeof(KEYS) / sizeof(KEYS[0]); index++) {
        begin(&fixture, &vocab);
        gguf_build_key_u32(&fixture.build, KEYS[index], 256);
        expect_refusal(&fixture, PP_INVALID_ARGUMENT, KEYS[index]);
    }
    const struct vocab_build llama = {.pre = "llama-bpe"};
    begin(&fixture, &llama);
    expect_refusal(&fixture, PP_INVALID_ARGUMENT, "bos_token_id is missing");
    const char *tokens[] = {"a", "b"};
    const int32_t kinds[] = {1, 7};
    for (size_t count = 1; count <= 2; count++) {
        gguf_build_begin(&fixture.build);
        gguf_build_key_text(&fixture.build, "tokenizer.ggml.model", "gpt2");
        gguf_build_key_texts(&fixture.build, "tokenizer.ggml.tokens", tokens, 2);
        gguf_build_key_texts(&fixture.build, "tokenizer.ggml.merges", NULL, 0);
        gguf_build_key_i32s(&fixture.build, "tokenizer.ggml.token_type", kinds, count);
        expect_refusal(&fixture, PP_INVALID_ARGUMENT, count == 1 ? "shorter" : "1 to 6");
    }
    gguf_build_begin(&fixture.build);
    gguf_build_key_text(&fixture.build, "tokenizer.ggml.model", "llama");
    expect_refusal(&fixture, PP_UNIMPLEMENTED, "'llama'");
    gguf_build_begin(&fixture.build);
    expect_refusal(&fixture, PP_INVALID_ARGUMENT, "tokenizer.ggml.model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_go_by_rank_and_leftmost_on_ties),
        cmocka_unit_test(empty_text_has_no_ids),
        cmocka_unit_test(merges_of_random_words_equal_the_plain_way),
        cmocka_unit_test(whole_word_is_looked_up_first_only_where_the_model_does),
        cmocka_unit_test(pieces_are_cut_as_each_pre_tokenizer_says),
        cmocka_unit_test(control_tokens_come_from_text_only_when_asked),
        cmocka_unit_test(several_end_tokens_are_known_by_key_and_by_text),
        cmocka_unit_test(characters_over_several_tokens_are_streamed_whole),
        cmocka_unit_test(bytes_that_make_no_character_become_replacements),
        cmocka_unit_test(text_that_is_no_utf8_is_refused),
        cmocka_unit_test(bytes_without_a_token_are_left_out),
        cmocka_unit_test(long_runs_of_combining_marks_take_linear_time),
        cmocka_unit_test(vocabularies_that_lie_are_refused),
        cmocka_unit_test(special_ids_and_lists_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
