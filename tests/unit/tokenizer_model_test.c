/*
 * The tokenizer over the default model's own vocabulary, file PIGPEN_MODEL or the one that
 * tests/run puts into .cache/models: golden ids of 5,000 words, long runs on a small stack, streams
 * and conversations. The golden ids come from tests/interop/tokenizer_test.py --write-golden.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpu-worker/model/chat.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"

static struct gw_gguf *gguf;
static struct gw_tokenizer *tokenizer;
static char error[256];

static int open_model(void **state)
{
    (void)state;
    const char *path = getenv("PIGPEN_MODEL");
    if (path == NULL) {
        path = PP_SOURCE_DIR "/.cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    }
    if (access(path, R_OK) != 0) {
        print_error("the model %s is missing: tests/run fetches it, or set PIGPEN_MODEL\n", path);
        return -1;
    }
    if (gw_gguf_open(path, error, sizeof(error), &gguf) != PP_OK ||
        gw_tokenizer_new(gguf, error, sizeof(error), &tokenizer) != PP_OK) {
        print_error("%s\n", error);
        return -1;
    }
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    gw_tokenizer_destroy(tokenizer);
    gw_gguf_close(gguf);
    return 0;
}

static void expect_text_ids(const char *text, size_t bytes, char *wanted, const char *word)
{
    uint32_t *ids = NULL;
    size_t count = 0;
    assert_int_equal(gw_tokenizer_encode(tokenizer, text, bytes, false, &ids, &count), PP_OK);
    size_t at = 0;
    char *rest = NULL;
    for (char *number = strtok_r(wanted, " \n", &rest); number != NULL;
         number = strtok_r(NULL, " \n", &rest)) {
        if (at >= count || ids[at] != strtoul(number, NULL, 10)) {
            fail_msg("'%s': id %zu is not %s", word, at, number);
        }
        at++;
    }
    assert_int_equal(at, count);
    free(ids);
}

static void words_have_their_golden_ids_with_and_without_a_space(void **state)
{
    (void)state;
    FILE *file = fopen(PP_SOURCE_DIR "/tests/unit/data/tokenizer_words.txt", "r");
    assert_non_null(file);
    char line[1024];
    size_t words = 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        char spaced[512];
        char *rest = NULL;
        const char *word = strtok_r(line, "|", &rest);
        char *plain_ids = strtok_r(NULL, "|", &rest);
        char *spaced_ids = strtok_r(NULL, "|", &rest);
        assert_non_null(spaced_ids);
        const int spaced_bytes = snprintf(spaced, sizeof(spaced), " %s", word);
        expect_text_ids(word, strlen(word), plain_ids, word);
        expect_text_ids(spaced, (size_t)spaced_bytes, spaced_ids, spaced);
        words++;
    }
    assert_int_equal(fclose(file), 0);
    assert_int_equal(words, 5000);
}

struct run {
    const char *unit;
    size_t times;
    size_t token_count; /* of the reference library */
};

static const struct run RUNS[] = {
    {"Z", 131072, 65536},  {"\xe5\xad\x97", 30000, 30000}, {" ", 1000000, 15625},
    {"\n", 200000, 50000}, {"7", 100000, 100000},
};

/* Of this thread, so that a busy machine does not count. */
static double cpu_seconds(void)
{
    struct timespec now;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0
               ? 0.0
               : (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A million characters of any run take less than two seconds. Encodes every run and reads it back;
 * returns the number of the first that fails, else 0. */
static void *encode_runs(void *argument)
{
    (void)argument;
    for (size_t index = 0; index < sizeof(RUNS) / sizeof(RUNS[0]); index++) {
        const struct run *run = &RUNS[index];
        const size_t unit_bytes = strlen(run->unit);
        const size_t bytes = unit_bytes * run->times;
        char *text = malloc(bytes);
        uint32_t *ids = NULL;
        size_t count = 0;
        bool good = text != NULL;
        for (size_t at = 0; good && at < run->times; at++) {
            memcpy(text + at * unit_bytes, run->unit, unit_bytes);
        }
        const double begin = cpu_seconds();
        good = good && gw_tokenizer_encode(tokenizer, text, bytes, false, &ids, &count) == PP_OK &&
               count == run->token_count;
        const double seconds = cpu_seconds() - begin;
        print_message("%zu characters: %.3f s\n", run->times, seconds);
        good = good && seconds < 2.0;
        size_t made = 0;
        for (size_t at = 0; good && at < count; at++) {
            const char *piece = NULL;
            size_t piece_bytes = 0;
            gw_tokenizer_bytes(tokenizer, ids[at], false, &piece, &piece_bytes);
            good = made + piece_bytes <= bytes && memcmp(text + made, piece, piece_bytes) == 0;
            made += piece_bytes;
        }
        good = good && made == bytes;
        free(ids);
        free(text);
        if (!good) {
            return (void *)(index + 1);
        }
    }
    return NULL;
}

static void long_runs_are_encoded_on_a_stack_of_512_kib(void **state)
{
    (void)state;
    pthread_attr_t attributes;
    pthread_t thread;
    void *failed = NULL;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 512 << 10), 0);
    assert_int_equal(pthread_create(&thread, &attributes, encode_runs, NULL), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_int_equal(pthread_attr_destroy(&attributes), 0);
    assert_null(failed);
}

static void streamed_deltas_join_to_the_whole_text(void **state)
{
    (void)state;
    static const char TEXT[] = "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 "
                               "\xf0\x9f\xa6\x99 and \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80";
    uint32_t *ids = NULL;
    size_t count = 0;
    assert_int_equal(gw_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), false, &ids, &count),
                     PP_OK);
    assert_true(count > 8); /* characters do span tokens */
    for (size_t end = 0; end <= count; end++) {
        struct gw_detokenizer detokenizer;
        char text[sizeof(TEXT) + 8];
        size_t made = 0;
        gw_detokenizer_init(&detokenizer, tokenizer);
        for (size_t at = 0; at < end; at++) {
            const char *delta = NULL;
            size_t bytes = 0;
            assert_int_equal(gw_detokenizer_add(&detokenizer, ids[at], &delta, &bytes), PP_OK);
            memcpy(text + made, delta, bytes);
            made += bytes;
            assert_true((TEXT[made] & 0xc0) != 0x80); /* never inside a character */
        }
        gw_detokenizer_finish(&detokenizer);
        assert_memory_equal(text, TEXT, made);
        assert_true(end < count || made == strlen(TEXT));
        gw_detokenizer_deinit(&detokenizer);
    }
    free(ids);
}

static void end_tokens_of_the_model_are_known(void **state)
{
    (void)state;
    uint32_t id = 0;
    assert_int_equal(gw_tokenizer_vocab(tokenizer), 49152);
    assert_int_equal(gw_tokenizer_find(tokenizer, "<|im_end|>", &id), PP_OK);
    assert_int_equal(id, 2);
    assert_true(gw_tokenizer_is_end(tokenizer, 2));
    assert_true(gw_tokenizer_is_end(tokenizer, 0)); /* <|endoftext|> */
    assert_false(gw_tokenizer_is_end(tokenizer, 1));
    assert_false(gw_tokenizer_adds_bos(tokenizer, &id));
}

/* The ids of a conversation must be those of its template written out as one text. */
static void expect_written(const struct gw_chat_message *messages, size_t message_count,
                           const char *written)
{
    struct gw_chat chat;
    uint32_t *ids = NULL;
    uint32_t *wanted = NULL;
    size_t count = 0;
    size_t wanted_count = 0;
    if (gw_chat_init(&chat, gguf, tokenizer, NULL, error, sizeof(error)) != PP_OK) {
        fail_msg("%s", error);
    }
    assert_int_equal(gw_chat_encode(&chat, messages, message_count, true, &ids, &count), PP_OK);
    assert_int_equal(
        gw_tokenizer_encode(tokenizer, written, strlen(written), true, &wanted, &wanted_count),
        PP_OK);
    assert_int_equal(count, wanted_count);
    assert_memory_equal(ids, wanted, count * sizeof(*ids));
    free(ids);
    free(wanted);
}

static void conversation_is_written_as_the_models_template_does(void **state)
{
    (void)state;
    const struct gw_chat_message question = {GW_CHAT_USER, "\n What is it?  ", 15};
    expect_written(&question, 1,
                   "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                   "Hugging Face<|im_end|>\n<|im_start|>user\n\n What is it?  <|im_end|>\n"
                   "<|im_start|>assistant\n");
    const struct gw_chat_message messages[] = {
        {GW_CHAT_SYSTEM, "Be brief.", 9},
        {GW_CHAT_USER, "2+2?", 4},
        {GW_CHAT_ASSISTANT, "4", 1},
        {GW_CHAT_USER, "", 0},
    };
    expect_written(messages, 4,
                   "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n"
                   "<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
                   "<|im_start|>assistant\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_have_their_golden_ids_with_and_without_a_space),
        cmocka_unit_test(long_runs_are_encoded_on_a_stack_of_512_kib),
        cmocka_unit_test(streamed_deltas_join_to_the_whole_text),
        cmocka_unit_test(end_tokens_of_the_model_are_known),
        cmocka_unit_test(conversation_is_written_as_the_models_template_does),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
