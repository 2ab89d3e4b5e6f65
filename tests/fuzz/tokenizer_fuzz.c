/*
 * Any text, and any merges: the first byte picks a pre-tokenizer, what stands before the first NUL
 * are merges (pairs of letters), the rest is the text. Text that is no UTF-8 must be refused; all
 * other must come back byte for byte, and streaming it must give the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"
#include "tests/unit/vocab_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const PRES[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
enum { QWEN2 = 3, MERGES = 12 };

/* Merges of two single letters each, or of the one before and a letter; twins are left out by the
 * letters' order. */
static void make_merges(const uint8_t *bytes, size_t count, struct vocab_build *vocab,
                        char (*texts)[64])
{
    size_t made = 0;
    char last[32] = "a";
    for (size_t index = 0; index < count && made < MERGES && strlen(last) < 20; index++) {
        const char letter = (char)('a' + bytes[index] % 4);
        (void)snprintf(texts[made], sizeof(texts[made]), "%s %c", last, letter);
        vocab->merges[made] = texts[made];
        const size_t length = strlen(last);
        last[length] = letter;
        last[length + 1] = '\0';
        made++;
    }
}

static struct gw_tokenizer *make(const struct vocab_build *vocab, struct gguf_build *build,
                                 struct gw_gguf **gguf_out)
{
    char error[256] = "";
    struct gw_tokenizer *tokenizer = NULL;
    gguf_build_begin(build);
    vocab_build_keys(build, vocab);
    gguf_build_key_u32(build, "tokenizer.ggml.bos_token_id", 0);
    PP_ASSERT(gw_gguf_parse(build->data, build->bytes, error, sizeof(error), gguf_out) == PP_OK);
    PP_ASSERT(gw_tokenizer_new(*gguf_out, error, sizeof(error), &tokenizer) == PP_OK);
    return tokenizer;
}

/* Are the ids' bytes the text, whole and streamed? */
static void check_text(const struct gw_tokenizer *tokenizer, const uint32_t *ids, size_t count,
                       const char *text, size_t bytes)
{
    struct gw_detokenizer detokenizer;
    size_t whole = 0;
    size_t streamed = 0;
    gw_detokenizer_init(&detokenizer, tokenizer);
    for (size_t index = 0; index < count; index++) {
        const char *piece = NULL;
        size_t piece_bytes = 0;
        gw_tokenizer_bytes(tokenizer, ids[index], false, &piece, &piece_bytes);
        PP_ASSERT(whole + piece_bytes <= bytes && memcmp(text + whole, piece, piece_bytes) == 0);
        whole += piece_bytes;
        PP_ASSERT(gw_detokenizer_add(&detokenizer, ids[index], &piece, &piece_bytes) == PP_OK);
        PP_ASSERT(streamed + piece_bytes <= whole &&
                  memcmp(text + streamed, piece, piece_bytes) == 0);
        streamed += piece_bytes;
    }
    PP_ASSERT(whole == bytes && streamed == bytes);
    gw_detokenizer_deinit(&detokenizer);
}

/* A stream of arbitrary bytes must give valid text: encoding it again succeeds. */
static void check_stream(const struct gw_tokenizer *tokenizer, const uint8_t *bytes, size_t count)
{
    struct gw_detokenizer detokenizer;
    gw_detokenizer_init(&detokenizer, tokenizer);
    for (size_t index = 0; index < count; index++) {
        const char *piece = NULL;
        size_t piece_bytes = 0;
        uint32_t *ids = NULL;
        size_t id_count = 0;
        PP_ASSERT(gw_detokenizer_add(&detokenizer, bytes[index], &piece, &piece_bytes) == PP_OK);
        PP_ASSERT(gw_tokenizer_encode(tokenizer, piece, piece_bytes, false, &ids, &id_count) ==
                  PP_OK);
        free(ids);
    }
    gw_detokenizer_finish(&detokenizer);
    gw_detokenizer_deinit(&detokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    char texts[MERGES][64];
    struct vocab_build vocab = {.pre = PRES[data[0] % 4], .controls = {"<|a|>", "<|ab|>"}};
    const uint8_t *stop = memchr(data + 1, 0, size - 1);
    const size_t merge_bytes = stop == NULL ? 0 : (size_t)(stop - data) - 1;
    const char *text = (const char *)data + 1 + (stop == NULL ? 0 : merge_bytes + 1);
    const size_t bytes = size - (size_t)(text - (const char *)data);
    make_merges(data + 1, merge_bytes, &vocab, texts);
    struct gguf_build build;
    struct gw_gguf *gguf = NULL;
    struct gw_tokenizer *tokenizer = make(&vocab, &build, &gguf);
    uint32_t *ids = NULL;
    size_t count = 0;
    const enum pp_status status = gw_tokenizer_encode(tokenizer, text, bytes, false, &ids, &count);
    PP_ASSERT(status == PP_OK || status == PP_INVALID_ARGUMENT);
    if (status == PP_OK && data[0] % 4 != QWEN2) {
        check_text(tokenizer, ids, count, text, bytes);
    }
    free(ids);
    ids = NULL;
    PP_ASSERT(gw_tokenizer_encode(tokenizer, text, bytes, true, &ids, &count) == status);
    free(ids);
    check_stream(tokenizer, (const uint8_t *)text, bytes < 256 ? bytes : 256);
    gw_tokenizer_destroy(tokenizer);
    gw_gguf_close(gguf);
    gguf_build_free(&build);
    return 0;
}
