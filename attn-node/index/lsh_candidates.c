/*
 * Which rows collide with a query in at least t tables: for t = 2 by two bitmaps (seen once, seen
 * twice) over the ids, else by counters. Bytes read: the query's bucket of every table.
 */
#include <string.h>

#include "attn-node/index/lsh.h"
#include "common/base/limits.h"

#define WORDS_MAX ((PP_SEGMENT_TOKENS_MAX + 63u) / 64u)

uint64_t an_lsh_scratch_bytes(uint32_t tokens, uint32_t t)
{
    uint64_t words = (tokens + 63ull) / 64;
    uint64_t bitmaps = 2 * words * sizeof(uint64_t);
    uint64_t counters = t > 2 ? 2ull * tokens : 0;
    return (bitmaps + counters + 63) & ~63ull;
}

static const uint16_t *bucket_of(const struct an_index *index, uint32_t table, uint32_t code,
                                 uint32_t *count_out)
{
    const uint16_t *offsets = index->offsets + ((uint64_t)table << index->k);
    uint32_t begin = offsets[code];
    uint32_t end = code + 1 < (1u << index->k) ? offsets[code + 1] : index->tokens;
    *count_out = end - begin;
    return index->ids + (uint64_t)table * index->tokens + begin;
}

/* Fills `chosen` with the rows seen at least t times, t = 1 or 2. */
static void mark(const struct an_index *index, const uint16_t *codes, uint32_t t, uint64_t *once,
                 uint64_t *twice)
{
    for (uint32_t table = 0; table < index->l; ++table) {
        uint32_t count;
        const uint16_t *ids = bucket_of(index, table, codes[table], &count);
        if (table + 1 < index->l) {
            uint32_t next_count;
            __builtin_prefetch(bucket_of(index, table + 1, codes[table + 1], &next_count), 0, 3);
        }
        for (uint32_t i = 0; i < count; ++i) {
            uint32_t word = ids[i] >> 6;
            uint64_t bit = 1ull << (ids[i] & 63u);
            twice[word] |= once[word] & bit;
            once[word] |= bit;
        }
    }
    if (t == 1) {
        memcpy(twice, once, (index->tokens + 63ull) / 64 * sizeof(*twice));
    }
}

static void mark_counting(const struct an_index *index, const uint16_t *codes, uint32_t t,
                          uint16_t *counters, uint64_t *chosen)
{
    memset(counters, 0, index->tokens * sizeof(*counters));
    for (uint32_t table = 0; table < index->l; ++table) {
        uint32_t count;
        const uint16_t *ids = bucket_of(index, table, codes[table], &count);
        for (uint32_t i = 0; i < count; ++i) {
            uint32_t seen = ++counters[ids[i]];
            chosen[ids[i] >> 6] |= (uint64_t)(seen >= t) << (ids[i] & 63u);
        }
    }
}

uint32_t an_lsh_candidates(const struct an_index *index, const uint16_t *codes, uint32_t t,
                           uint32_t begin, uint32_t end, void *scratch, uint64_t *rows_read,
                           uint16_t *ids_out)
{
    uint32_t words = (index->tokens + 63u) / 64u;
    uint64_t *once = scratch;
    uint64_t *chosen = once + words;
    memset(scratch, 0, 2ull * words * sizeof(*once));
    if (t <= 2) {
        mark(index, codes, t, once, chosen);
    } else {
        mark_counting(index, codes, t, (uint16_t *)(void *)(chosen + words), chosen);
    }
    for (uint32_t i = 0; i < index->central_count; ++i) {
        chosen[index->central[i] >> 6] &= ~(1ull << (index->central[i] & 63u));
    }
    uint32_t found = 0;
    for (uint32_t word = begin / 64u; word < words && word * 64u < end; ++word) {
        uint64_t bits = chosen[word];
        if (word * 64u < begin) {
            bits &= ~0ull << (begin & 63u);
        }
        if (word * 64u + 64u > end) {
            bits &= (1ull << (end & 63u)) - 1;
        }
        if (rows_read != NULL) {
            rows_read[word] |= bits;
        }
        for (; bits != 0; bits &= bits - 1) {
            ids_out[found++] = (uint16_t)(word * 64u + (uint32_t)__builtin_ctzll(bits));
        }
    }
    return found;
}
