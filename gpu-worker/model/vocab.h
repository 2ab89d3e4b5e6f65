/*
 * The vocabulary of a byte-level BPE tokenizer: the bytes and kind of every token, the id of given
 * bytes, and the merges by rank, with the merging itself. Part of the tokenizer; not for others.
 * Threads: init on one; then immutable. A scratch belongs to one call.
 *
 * In the file a token is written in printable characters, one for each of the 256 bytes; here
 * tokens are plain bytes, which is the same language without the detour.
 */
#ifndef PIGPEN_GPU_WORKER_MODEL_VOCAB_H
#define PIGPEN_GPU_WORKER_MODEL_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu-worker/model/gguf.h"

#define GW_TOKEN_NONE UINT32_MAX

/* As in tokenizer.ggml.token_type. */
enum gw_token_kind {
    GW_TOKEN_NORMAL = 1,
    GW_TOKEN_UNKNOWN = 2,
    GW_TOKEN_CONTROL = 3,
    GW_TOKEN_USER_DEFINED = 4,
    GW_TOKEN_UNUSED = 5,
    GW_TOKEN_BYTE = 6,
};

struct gw_vocab_pair {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* GW_TOKEN_NONE: empty */
    uint32_t result;
};

struct gw_vocab {
    uint32_t count;
    char *bytes;    /* owned: of all tokens */
    size_t *starts; /* owned [count + 1], in bytes */
    uint8_t *kinds; /* owned [count], enum gw_token_kind */
    size_t token_bytes_max;
    uint32_t byte_ids[256]; /* GW_TOKEN_NONE where the vocabulary has no token for a byte */
    uint32_t *ids;          /* owned hash table of normal tokens by bytes, 1 << id_bits */
    uint32_t id_bits;
    struct gw_vocab_pair *pairs; /* owned hash table of merges, 1 << pair_bits */
    uint32_t pair_bits;
    uint32_t *results; /* owned [merge_count]: id that the merge of a rank makes */
    uint32_t merge_count;
    uint64_t seed; /* odd and random, so that no file can flood the tables */
};

/* error_out names the token or merge that is wrong. PP_INVALID_ARGUMENT, PP_MEMORY. */
PP_MUST_USE enum pp_status gw_vocab_init(struct gw_vocab *vocab, const struct gw_gguf *gguf,
                                         char *error_out, size_t error_bytes);
void gw_vocab_deinit(struct gw_vocab *vocab);

/* The normal token of exactly these bytes, or GW_TOKEN_NONE. */
uint32_t gw_vocab_find(const struct gw_vocab *vocab, const char *bytes, size_t count);

/* The merge of a pair (left id << 32 | right id), or the free place where it would stand. */
static inline struct gw_vocab_pair *gw_vocab_pair(const struct gw_vocab *vocab, uint64_t pair)
{
    const size_t mask = ((size_t)1 << vocab->pair_bits) - 1;
    size_t slot = (pair * vocab->seed) >> (64 - vocab->pair_bits);
    while (vocab->pairs[slot].rank != GW_TOKEN_NONE && vocab->pairs[slot].pair != pair) {
        slot = (slot + 1) & mask;
    }
    return &vocab->pairs[slot];
}

struct gw_bpe_node {
    uint32_t id;
    uint32_t previous; /* GW_TOKEN_NONE at the ends */
    uint32_t next;
    uint32_t rank; /* of the merge of this node and the next; GW_TOKEN_NONE when there is none */
};

/* Zeroed at first; grows to the longest piece met. */
struct gw_bpe_scratch {
    struct gw_bpe_node *nodes; /* owned */
    uint64_t *heap;            /* owned: rank << 32 | node, least on top */
    size_t capacity;           /* of nodes; the heap has twice as many and a spare */
    size_t heap_count;
};
void gw_bpe_scratch_deinit(struct gw_bpe_scratch *scratch);

/* Merges one piece of text: always the adjacent pair of least rank, leftmost on ties, until none
 * is left; O(n log n). ids_out has room for `count` ids; bytes without a token are left out, as
 * the reference implementation does. count is below 2^31. PP_MEMORY. */
PP_MUST_USE enum pp_status gw_vocab_merge(const struct gw_vocab *vocab,
                                          struct gw_bpe_scratch *scratch, const char *bytes,
                                          size_t count, uint32_t *ids_out, size_t *id_count_out);

#endif
