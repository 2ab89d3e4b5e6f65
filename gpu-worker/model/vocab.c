/*
 * Tokens and merges from a GGUF file's arrays into tables. Between the file and the tokenizer.
 * Knows nothing of how text is cut into pieces, nor of what control tokens mean.
 */
#include "gpu-worker/model/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "gpu-worker/model/config.h"

#define MERGES_MAX (1u << 22)

struct loader {
    const struct gw_gguf *gguf;
    struct gw_vocab *vocab;
    char *error;
    size_t error_bytes;
};

static enum pp_status refuse(const struct loader *loader, const char *what, uint64_t index)
{
    (void)snprintf(loader->error, loader->error_bytes, "tokenizer: %s (number %llu)", what,
                   (unsigned long long)index);
    return PP_INVALID_ARGUMENT;
}

static enum pp_status no_memory(const struct loader *loader)
{
    (void)snprintf(loader->error, loader->error_bytes, "tokenizer: out of memory");
    return PP_MEMORY;
}

/* The byte that a character of the file's alphabet stands for, or -1. Bytes that print stand for
 * themselves (33-126, 161-172, 174-255); the others, in order, are U+0100 and on. */
static int byte_of(uint32_t code)
{
    if ((code >= 33 && code <= 126) || (code >= 161 && code <= 172) ||
        (code >= 174 && code <= 255)) {
        return (int)code;
    }
    if (code >= 256 && code <= 288) {
        return (int)code - 256;
    }
    if (code >= 289 && code <= 322) {
        return (int)code - 289 + 127;
    }
    return code == 323 ? 173 : -1;
}

/* Text of the file's alphabet into bytes, which are never more. Returns false when a character is
 * not of the alphabet. All of the alphabet are one or two bytes of UTF-8. */
static bool text_to_bytes(const char *text, size_t count, char *bytes_out, size_t *count_out)
{
    size_t made = 0;
    for (size_t index = 0; index < count; index++) {
        uint32_t code = (uint8_t)text[index];
        if (code >= 0xc0) {
            if (code >= 0xe0 || index + 1 >= count || ((uint8_t)text[index + 1] & 0xc0) != 0x80) {
                return false;
            }
            index++;
            code = (code & 0x1f) << 6 | ((uint8_t)text[index] & 0x3f);
        } else if (code >= 0x80) {
            return false;
        }
        const int byte = byte_of(code);
        if (byte < 0) {
            return false;
        }
        bytes_out[made++] = (char)byte;
    }
    *count_out = made;
    return true;
}

static uint64_t hash_bytes(const struct gw_vocab *vocab, const char *bytes, size_t count)
{
    uint64_t hash = count * vocab->seed;
    for (size_t index = 0; index < count; index += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes + index, count - index < 8 ? count - index : 8);
        hash = (hash ^ word) * vocab->seed;
        hash ^= hash >> 32;
    }
    return hash * vocab->seed;
}

/* Where these bytes stand, or the free place where they would. */
static uint32_t *id_slot(const struct gw_vocab *vocab, const char *bytes, size_t count)
{
    const size_t mask = ((size_t)1 << vocab->id_bits) - 1;
    size_t slot = hash_bytes(vocab, bytes, count) >> (64 - vocab->id_bits);
    for (;; slot = (slot + 1) & mask) {
        const uint32_t id = vocab->ids[slot];
        if (id == GW_TOKEN_NONE) {
            return &vocab->ids[slot];
        }
        const size_t start = vocab->starts[id];
        if (vocab->starts[id + 1] - start == count &&
            memcmp(vocab->bytes + start, bytes, count) == 0) {
            return &vocab->ids[slot];
        }
    }
}

uint32_t gw_vocab_find(const struct gw_vocab *vocab, const char *bytes, size_t count)
{
    return *id_slot(vocab, bytes, count);
}

/* Bits of a table for `count` entries that is at most half full. */
static uint32_t table_bits(uint64_t count)
{
    uint32_t bits = 4;
    while (((uint64_t)1 << bits) < count * 2) {
        bits++;
    }
    return bits;
}

static enum pp_status read_kinds(const struct loader *loader)
{
    struct gw_vocab *vocab = loader->vocab;
    uint64_t count = 0;
    const enum pp_status status =
        gw_gguf_array_count(loader->gguf, "tokenizer.ggml.token_type", &count);
    if (status == PP_NOT_FOUND) {
        memset(vocab->kinds, GW_TOKEN_NORMAL, vocab->count);
        return PP_OK;
    }
    if (status != PP_OK || count < vocab->count) {
        return refuse(loader, "tokenizer.ggml.token_type is shorter than the tokens", count);
    }
    for (uint32_t id = 0; id < vocab->count; id++) {
        int64_t kind = 0;
        if (gw_gguf_array_i64(loader->gguf, "tokenizer.ggml.token_type", id, &kind) != PP_OK ||
            kind < GW_TOKEN_NORMAL || kind > GW_TOKEN_BYTE) {
            return refuse(loader, "a token's type is not 1 to 6", id);
        }
        vocab->kinds[id] = (uint8_t)kind;
    }
    return PP_OK;
}

/* One token's bytes, and its place in the table when text may become it. */
static enum pp_status add_token(const struct loader *loader, uint32_t id)
{
    struct gw_vocab *vocab = loader->vocab;
    const char *text = NULL;
    size_t text_bytes = 0;
    if (gw_gguf_array_string(loader->gguf, "tokenizer.ggml.tokens", id, &text, &text_bytes) !=
        PP_OK) {
        return refuse(loader, "a token is no text", id);
    }
    const size_t start = vocab->starts[id];
    size_t count = 0;
    const bool plain = vocab->kinds[id] == GW_TOKEN_NORMAL &&
                       text_to_bytes(text, text_bytes, vocab->bytes + start, &count);
    if (!plain) {
        memcpy(vocab->bytes + start, text, text_bytes);
        count = text_bytes;
    }
    vocab->starts[id + 1] = start + count;
    vocab->token_bytes_max = count > vocab->token_bytes_max ? count : vocab->token_bytes_max;
    if (!plain || count == 0) {
        return PP_OK;
    }
    uint32_t *slot = id_slot(vocab, vocab->bytes + start, count);
    if (*slot != GW_TOKEN_NONE) {
        return refuse(loader, "a token stands there twice", id);
    }
    *slot = id;
    if (count == 1) {
        vocab->byte_ids[(uint8_t)vocab->bytes[start]] = id;
    }
    return PP_OK;
}

static enum pp_status read_tokens(const struct loader *loader)
{
    struct gw_vocab *vocab = loader->vocab;
    uint64_t count = 0;
    if (gw_gguf_array_count(loader->gguf, "tokenizer.ggml.tokens", &count) != PP_OK || count < 1 ||
        count > GW_VOCAB_MAX) {
        return refuse(loader, "tokenizer.ggml.tokens is missing, empty or too long", count);
    }
    size_t total = 0;
    for (uint64_t index = 0; index < count; index++) {
        const char *text = NULL;
        size_t bytes = 0;
        if (gw_gguf_array_string(loader->gguf, "tokenizer.ggml.tokens", index, &text, &bytes) !=
            PP_OK) {
            return refuse(loader, "a token is no text", index);
        }
        total += bytes; /* at most the file's size */
    }
    vocab->count = (uint32_t)count;
    vocab->id_bits = table_bits(count);
    vocab->bytes = malloc(total + 1);
    vocab->starts = calloc(count + 1, sizeof(*vocab->starts));
    vocab->kinds = calloc(count, 1);
    vocab->ids = malloc(sizeof(*vocab->ids) << vocab->id_bits);
    if (vocab->bytes == NULL || vocab->starts == NULL || vocab->kinds == NULL ||
        vocab->ids == NULL) {
        return no_memory(loader);
    }
    memset(vocab->ids, 0xff, sizeof(*vocab->ids) << vocab->id_bits);
    memset(vocab->byte_ids, 0xff, sizeof(vocab->byte_ids));
    PP_TRY(read_kinds(loader));
    for (uint32_t id = 0; id < vocab->count; id++) {
        PP_TRY(add_token(loader, id));
    }
    return PP_OK;
}

/* "left right" of the file's alphabet: split at the first space that leaves a left part. Token
 * ids of both and of the two together. */
static enum pp_status parse_merge(const struct loader *loader, uint64_t index, char *room,
                                  uint64_t *pair_out, uint32_t *result_out)
{
    const char *text = NULL;
    size_t text_bytes = 0;
    if (gw_gguf_array_string(loader->gguf, "tokenizer.ggml.merges", index, &text, &text_bytes) !=
        PP_OK) {
        return refuse(loader, "a merge is no text", index);
    }
    const char *space = text_bytes < 3 ? NULL : memchr(text + 1, ' ', text_bytes - 2);
    size_t left_bytes = 0;
    size_t right_bytes = 0;
    if (space == NULL || !text_to_bytes(text, (size_t)(space - text), room, &left_bytes) ||
        !text_to_bytes(space + 1, text_bytes - (size_t)(space - text) - 1, room + left_bytes,
                       &right_bytes)) {
        return refuse(loader, "a merge is not two tokens with a space between them", index);
    }
    const uint32_t left = gw_vocab_find(loader->vocab, room, left_bytes);
    const uint32_t right = gw_vocab_find(loader->vocab, room + left_bytes, right_bytes);
    const uint32_t result = gw_vocab_find(loader->vocab, room, left_bytes + right_bytes);
    if (left == GW_TOKEN_NONE || right == GW_TOKEN_NONE || result == GW_TOKEN_NONE) {
        return refuse(loader, "a merge of or into what is no token", index);
    }
    *pair_out = (uint64_t)left << 32 | right;
    *result_out = result;
    return PP_OK;
}

static enum pp_status fill_merges(const struct loader *loader, char *room)
{
    struct gw_vocab *vocab = loader->vocab;
    for (uint32_t rank = 0; rank < vocab->merge_count; rank++) {
        uint64_t pair = 0;
        PP_TRY(parse_merge(loader, rank, room, &pair, &vocab->results[rank]));
        struct gw_vocab_pair *slot = gw_vocab_pair(vocab, pair);
        if (slot->rank != GW_TOKEN_NONE) {
            return refuse(loader, "a merge stands there twice", rank);
        }
        *slot = (struct gw_vocab_pair){pair, rank, vocab->results[rank]};
    }
    return PP_OK;
}

static enum pp_status read_merges(const struct loader *loader)
{
    struct gw_vocab *vocab = loader->vocab;
    uint64_t count = 0;
    if (gw_gguf_array_count(loader->gguf, "tokenizer.ggml.merges", &count) != PP_OK ||
        count > MERGES_MAX) {
        return refuse(loader, "tokenizer.ggml.merges is missing or too long", count);
    }
    vocab->merge_count = (uint32_t)count;
    vocab->pair_bits = table_bits(count);
    vocab->pairs = malloc(sizeof(*vocab->pairs) << vocab->pair_bits);
    vocab->results = malloc((count + 1) * sizeof(*vocab->results));
    char *room = malloc(65536); /* what a string of an array may hold, see gguf.h */
    enum pp_status status = PP_MEMORY;
    if (vocab->pairs != NULL && vocab->results != NULL && room != NULL) {
        memset(vocab->pairs, 0xff, sizeof(*vocab->pairs) << vocab->pair_bits);
        status = fill_merges(loader, room);
    } else {
        status = no_memory(loader);
    }
    free(room);
    return status;
}

enum pp_status gw_vocab_init(struct gw_vocab *vocab, const struct gw_gguf *gguf, char *error_out,
                             size_t error_bytes)
{
    struct gw_vocab made = {0};
    const struct loader loader = {gguf, &made, error_out, error_bytes};
    if (getrandom(&made.seed, sizeof(made.seed), 0) != (ssize_t)sizeof(made.seed)) {
        (void)snprintf(error_out, error_bytes, "tokenizer: no random numbers from the system");
        return PP_IO;
    }
    made.seed |= 1;
    enum pp_status status = read_tokens(&loader);
    if (status == PP_OK) {
        status = read_merges(&loader);
    }
    if (status != PP_OK) {
        gw_vocab_deinit(&made);
        return status;
    }
    *vocab = made;
    return PP_OK;
}

void gw_vocab_deinit(struct gw_vocab *vocab)
{
    free(vocab->bytes);
    free(vocab->starts);
    free(vocab->kinds);
    free(vocab->ids);
    free(vocab->pairs);
    free(vocab->results);
    memset(vocab, 0, sizeof(*vocab));
}
