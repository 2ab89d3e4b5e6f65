/*
 * Text to ids: control tokens, then normalisation, then pieces, then merges. Between the api (or
 * the chat templates) and the engine. Knows nothing of templates; text from users never becomes
 * control tokens here unless the caller asks for it.
 */
#include "gpu-worker/model/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/base/assert.h"
#include "gpu-worker/model/special.h"
#include "gpu-worker/model/split.h"
#include "gpu-worker/model/tokenizer_internal.h"

#define END_IDS_MAX 32u

/* One call's text may not be longer: positions are 32 bits with a bit to spare. */
#define TEXT_BYTES_MAX ((size_t)1 << 30)

struct gw_tokenizer {
    struct gw_vocab vocab;
    struct gw_specials specials;
    struct gw_splitter splitter;
    uint32_t end_ids[END_IDS_MAX];
    uint32_t end_count;
    bool adds_bos;
    uint32_t bos_id;
};

struct encoding {
    const struct gw_tokenizer *tokenizer;
    struct gw_bpe_scratch scratch;
    struct gw_split_cursor cursor;
    uint32_t *ids; /* owned until handed out */
    size_t count;
    size_t capacity;
};

static enum pp_status reserve(struct encoding *encoding, size_t more)
{
    if (encoding->capacity - encoding->count >= more) {
        return PP_OK;
    }
    size_t capacity = encoding->capacity + encoding->capacity / 2 + 64;
    if (capacity < encoding->count + more) {
        capacity = encoding->count + more;
    }
    uint32_t *grown = realloc(encoding->ids, capacity * sizeof(*grown));
    if (grown == NULL) {
        return PP_MEMORY;
    }
    encoding->ids = grown;
    encoding->capacity = capacity;
    return PP_OK;
}

static enum pp_status encode_piece(struct encoding *encoding, const char *text, size_t count)
{
    const struct gw_tokenizer *tokenizer = encoding->tokenizer;
    PP_TRY(reserve(encoding, count));
    if (tokenizer->splitter.whole_first) {
        const uint32_t id = gw_vocab_find(&tokenizer->vocab, text, count);
        if (id != GW_TOKEN_NONE) {
            encoding->ids[encoding->count++] = id;
            return PP_OK;
        }
    }
    size_t made = 0;
    PP_TRY(gw_vocab_merge(&tokenizer->vocab, &encoding->scratch, text, count,
                          encoding->ids + encoding->count, &made));
    encoding->count += made;
    return PP_OK;
}

static enum pp_status encode_pieces(struct encoding *encoding, const char *text, size_t count)
{
    for (size_t start = 0; start < count;) {
        size_t end = 0;
        PP_TRY(gw_split_next(&encoding->cursor, text, count, start, &end));
        PP_TRY(encode_piece(encoding, text + start, end - start));
        start = end;
    }
    return PP_OK;
}

static bool is_ascii(const char *text, size_t count)
{
    uint8_t all = 0;
    for (size_t index = 0; index < count; index++) {
        all |= (uint8_t)text[index];
    }
    return all < 0x80;
}

/* Text between control tokens. */
static enum pp_status encode_plain(struct encoding *encoding, const char *text, size_t count)
{
    if (!encoding->tokenizer->splitter.nfc || is_ascii(text, count)) {
        return encode_pieces(encoding, text, count);
    }
    char *normal = NULL;
    size_t normal_bytes = 0;
    PP_TRY(gw_split_nfc(text, count, &normal, &normal_bytes));
    const enum pp_status status = encode_pieces(encoding, normal, normal_bytes);
    free(normal);
    return status;
}

static enum pp_status encode_all(struct encoding *encoding, const char *text, size_t bytes,
                                 bool parse_special)
{
    const struct gw_specials *specials = &encoding->tokenizer->specials;
    for (size_t start = 0; start < bytes;) {
        size_t begin = bytes;
        size_t end = bytes;
        uint32_t id = GW_TOKEN_NONE;
        const enum pp_status found =
            gw_specials_next(specials, text, bytes, start, parse_special, &begin, &end, &id);
        PP_TRY(encode_plain(encoding, text + start, begin - start));
        if (found == PP_OK) {
            PP_TRY(reserve(encoding, 1));
            encoding->ids[encoding->count++] = id;
        }
        start = end;
    }
    return PP_OK;
}

static bool is_utf8(const char *text, size_t count)
{
    for (size_t at = 0; at < count;) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                        (utf8proc_ssize_t)(count - at), &code);
        if (bytes <= 0) {
            return false;
        }
        at += (size_t)bytes;
    }
    return true;
}

enum pp_status gw_tokenizer_encode(const struct gw_tokenizer *tokenizer, const char *text,
                                   size_t bytes, bool parse_special, uint32_t **ids_out,
                                   size_t *count_out)
{
    if (bytes > TEXT_BYTES_MAX) {
        return PP_MESSAGE_TOO_LARGE;
    }
    if (!is_utf8(text, bytes)) {
        return PP_INVALID_ARGUMENT;
    }
    struct encoding encoding = {.tokenizer = tokenizer};
    PP_TRY(gw_split_begin(&encoding.cursor, &tokenizer->splitter, bytes));
    enum pp_status status = reserve(&encoding, bytes / 3 + 1);
    if (status == PP_OK) {
        status = encode_all(&encoding, text, bytes, parse_special);
    }
    gw_split_end(&encoding.cursor);
    gw_bpe_scratch_deinit(&encoding.scratch);
    if (status != PP_OK) {
        free(encoding.ids);
        return status;
    }
    *ids_out = encoding.ids;
    *count_out = encoding.count;
    return PP_OK;
}

static void add_end(struct gw_tokenizer *tokenizer, uint32_t id)
{
    if (!gw_tokenizer_is_end(tokenizer, id) && tokenizer->end_count < END_IDS_MAX) {
        tokenizer->end_ids[tokenizer->end_count++] = id;
    }
}

/* A special id by key. PP_NOT_FOUND when the file has none. */
static enum pp_status read_id(const struct gw_tokenizer *tokenizer, const struct gw_gguf *gguf,
                              const char *key, char *error_out, size_t error_bytes,
                              uint32_t *id_out)
{
    uint64_t id = 0;
    const enum pp_status status = gw_gguf_u64(gguf, key, &id);
    if (status == PP_NOT_FOUND) {
        return status;
    }
    if (status != PP_OK || id >= tokenizer->vocab.count) {
        (void)snprintf(error_out, error_bytes, "%s is no token's id", key);
        return PP_INVALID_ARGUMENT;
    }
    *id_out = (uint32_t)id;
    return PP_OK;
}

/* End tokens: those the keys name, and those known by their text, since files often name only one
 * of several. */
static enum pp_status read_ends(struct gw_tokenizer *tokenizer, const struct gw_gguf *gguf,
                                char *error_out, size_t error_bytes)
{
    static const char *const KEYS[] = {
        "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",     "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
    };
    static const char *const TEXTS[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>",   "<|endoftext|>",
        "</s>",       "<|eom_id|>", "<EOT>",   "<|end_of_text|>", "<eos>",
    };
    for (size_t index = 0; index < sizeof(KEYS) / sizeof(KEYS[0]); index++) {
        uint32_t id = 0;
        const enum pp_status status =
            read_id(tokenizer, gguf, KEYS[index], error_out, error_bytes, &id);
        if (status == PP_OK) {
            add_end(tokenizer, id);
        } else if (status != PP_NOT_FOUND) {
            return status;
        }
    }
    for (size_t index = 0; index < sizeof(TEXTS) / sizeof(TEXTS[0]); index++) {
        uint32_t id = 0;
        if (gw_tokenizer_find(tokenizer, TEXTS[index], &id) == PP_OK) {
            add_end(tokenizer, id);
        }
    }
    return PP_OK;
}

static enum pp_status read_bos(struct gw_tokenizer *tokenizer, const struct gw_gguf *gguf,
                               char *error_out, size_t error_bytes)
{
    bool adds = tokenizer->splitter.bos_default;
    if (gw_gguf_bool(gguf, "tokenizer.ggml.add_bos_token", &adds) == PP_INVALID_ARGUMENT) {
        (void)snprintf(error_out, error_bytes, "tokenizer.ggml.add_bos_token is no bool");
        return PP_INVALID_ARGUMENT;
    }
    const enum pp_status status = read_id(tokenizer, gguf, "tokenizer.ggml.bos_token_id", error_out,
                                          error_bytes, &tokenizer->bos_id);
    if (status != PP_OK && status != PP_NOT_FOUND) {
        return status;
    }
    if (adds && status == PP_NOT_FOUND) {
        (void)snprintf(error_out, error_bytes,
                       "a begin token is to be added, but tokenizer.ggml.bos_token_id is missing");
        return PP_INVALID_ARGUMENT;
    }
    tokenizer->adds_bos = adds;
    return PP_OK;
}

static enum pp_status read_model(const struct gw_gguf *gguf, char *error_out, size_t error_bytes,
                                 const char **pre_out, size_t *pre_bytes_out)
{
    const char *model = "";
    size_t bytes = 0;
    if (gw_gguf_string(gguf, "tokenizer.ggml.model", &model, &bytes) != PP_OK) {
        (void)snprintf(error_out, error_bytes, "tokenizer.ggml.model is missing or no text");
        return PP_INVALID_ARGUMENT;
    }
    if (bytes != 4 || memcmp(model, "gpt2", 4) != 0) {
        (void)snprintf(error_out, error_bytes,
                       "tokenizer.ggml.model '%.*s' is not supported (gpt2, byte-level BPE, is)",
                       (int)(bytes < 32 ? bytes : 32), model);
        return PP_UNIMPLEMENTED;
    }
    *pre_out = "default";
    *pre_bytes_out = strlen("default");
    if (gw_gguf_string(gguf, "tokenizer.ggml.pre", pre_out, pre_bytes_out) == PP_INVALID_ARGUMENT) {
        (void)snprintf(error_out, error_bytes, "tokenizer.ggml.pre is no text");
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

static enum pp_status init(struct gw_tokenizer *tokenizer, const struct gw_gguf *gguf,
                           char *error_out, size_t error_bytes)
{
    const char *pre = NULL;
    size_t pre_bytes = 0;
    PP_TRY(read_model(gguf, error_out, error_bytes, &pre, &pre_bytes));
    PP_TRY(gw_splitter_init(&tokenizer->splitter, pre, pre_bytes, error_out, error_bytes));
    PP_TRY(gw_vocab_init(&tokenizer->vocab, gguf, error_out, error_bytes));
    PP_TRY(gw_specials_init(&tokenizer->specials, &tokenizer->vocab, error_out, error_bytes));
    PP_TRY(read_ends(tokenizer, gguf, error_out, error_bytes));
    return read_bos(tokenizer, gguf, error_out, error_bytes);
}

enum pp_status gw_tokenizer_new(const struct gw_gguf *gguf, char *error_out, size_t error_bytes,
                                struct gw_tokenizer **tokenizer_out)
{
    struct gw_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    if (tokenizer == NULL) {
        (void)snprintf(error_out, error_bytes, "tokenizer: out of memory");
        return PP_MEMORY;
    }
    const enum pp_status status = init(tokenizer, gguf, error_out, error_bytes);
    if (status != PP_OK) {
        gw_tokenizer_destroy(tokenizer);
        return status;
    }
    *tokenizer_out = tokenizer;
    return PP_OK;
}

void gw_tokenizer_destroy(struct gw_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    gw_specials_deinit(&tokenizer->specials);
    gw_vocab_deinit(&tokenizer->vocab);
    gw_splitter_deinit(&tokenizer->splitter);
    free(tokenizer);
}

uint32_t gw_tokenizer_vocab(const struct gw_tokenizer *tokenizer)
{
    return tokenizer->vocab.count;
}

void gw_tokenizer_bytes(const struct gw_tokenizer *tokenizer, uint32_t id, bool special,
                        const char **bytes_out, size_t *count_out)
{
    const struct gw_vocab *vocab = &tokenizer->vocab;
    PP_ASSERT(id < vocab->count);
    const uint8_t kind = vocab->kinds[id];
    const bool hidden =
        kind == GW_TOKEN_CONTROL || kind == GW_TOKEN_UNKNOWN || kind == GW_TOKEN_UNUSED;
    *bytes_out = vocab->bytes + vocab->starts[id];
    *count_out = hidden && !special ? 0 : vocab->starts[id + 1] - vocab->starts[id];
}

size_t gw_tokenizer_token_bytes_max(const struct gw_tokenizer *tokenizer)
{
    return tokenizer->vocab.token_bytes_max;
}

enum pp_status gw_tokenizer_find(const struct gw_tokenizer *tokenizer, const char *text,
                                 uint32_t *id_out)
{
    const uint32_t id = gw_specials_find(&tokenizer->specials, text, strlen(text));
    if (id == GW_TOKEN_NONE) {
        return PP_NOT_FOUND;
    }
    *id_out = id;
    return PP_OK;
}

bool gw_tokenizer_is_end(const struct gw_tokenizer *tokenizer, uint32_t id)
{
    for (uint32_t index = 0; index < tokenizer->end_count; index++) {
        if (tokenizer->end_ids[index] == id) {
            return true;
        }
    }
    return false;
}

bool gw_tokenizer_adds_bos(const struct gw_tokenizer *tokenizer, uint32_t *id_out)
{
    if (tokenizer->adds_bos) {
        *id_out = tokenizer->bos_id;
    }
    return tokenizer->adds_bos;
}
