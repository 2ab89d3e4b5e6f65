/*
 * A small byte-level vocabulary in a GGUF file: id b is byte b for all 256, then the tokens that
 * the merges make in their order (from 256), then control tokens, then user-defined ones.
 */
#ifndef PIGPEN_TESTS_UNIT_VOCAB_BUILD_H
#define PIGPEN_TESTS_UNIT_VOCAB_BUILD_H

#include "tests/unit/gguf_build.h"

#define VOCAB_TEXTS_MAX 64

struct vocab_build {
    const char *pre;
    const char *merges[VOCAB_TEXTS_MAX]; /* "left right" in the file's alphabet, NULL ends */
    const char *tokens[VOCAB_TEXTS_MAX]; /* normal tokens that no merge makes */
    const char *controls[VOCAB_TEXTS_MAX];
    const char *users[VOCAB_TEXTS_MAX];
};

/* The character that stands for a byte in the file. */
static inline void vocab_build_byte(uint32_t byte, char *text_out)
{
    uint32_t code = 0;
    for (uint32_t other = 0, odd = 256; other <= byte; other++) {
        const int prints = (other >= 33 && other <= 126) || (other >= 161 && other <= 172) ||
                           (other >= 174 && other <= 255);
        code = prints ? other : odd++;
    }
    if (code < 0x80) {
        text_out[0] = (char)code;
        text_out[1] = '\0';
        return;
    }
    text_out[0] = (char)(0xc0 | code >> 6);
    text_out[1] = (char)(0x80 | (code & 0x3f));
    text_out[2] = '\0';
}

static inline void vocab_build_text(struct gguf_build *list, size_t *count, const char *text)
{
    gguf_build_text(list, text);
    (*count)++;
}

/* The tokenizer's keys but for special ids, which are the test's to add. */
static inline void vocab_build_keys(struct gguf_build *build, const struct vocab_build *vocab)
{
    struct gguf_build tokens = {0};
    size_t count = 0;
    size_t merge_count = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[3];
        vocab_build_byte(byte, text);
        vocab_build_text(&tokens, &count, text);
    }
    for (; vocab->merges[merge_count] != NULL; merge_count++) {
        const char *space = strchr(vocab->merges[merge_count] + 1, ' ');
        char text[64];
        (void)snprintf(text, sizeof(text), "%.*s%s", (int)(space - vocab->merges[merge_count]),
                       vocab->merges[merge_count], space + 1);
        vocab_build_text(&tokens, &count, text);
    }
    for (size_t index = 0; vocab->tokens[index] != NULL; index++) {
        vocab_build_text(&tokens, &count, vocab->tokens[index]);
    }
    int32_t kinds[1024];
    for (size_t index = 0; index < 1024; index++) {
        kinds[index] = 1;
    }
    for (size_t index = 0; vocab->controls[index] != NULL; index++) {
        kinds[count] = 3;
        vocab_build_text(&tokens, &count, vocab->controls[index]);
    }
    for (size_t index = 0; vocab->users[index] != NULL; index++) {
        kinds[count] = 4;
        vocab_build_text(&tokens, &count, vocab->users[index]);
    }
    gguf_build_key_text(build, "tokenizer.ggml.model", "gpt2");
    gguf_build_key_text(build, "tokenizer.ggml.pre", vocab->pre);
    gguf_build_key(build, "tokenizer.ggml.tokens", 9);
    gguf_build_u32(build, 8);
    gguf_build_u64(build, count);
    gguf_build_raw(build, tokens.data, tokens.bytes);
    gguf_build_key_texts(build, "tokenizer.ggml.merges", vocab->merges, merge_count);
    gguf_build_key_i32s(build, "tokenizer.ggml.token_type", kinds, count);
    gguf_build_free(&tokens);
}

#endif
