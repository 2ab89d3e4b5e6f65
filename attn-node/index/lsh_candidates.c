/*
 * Which rows collide with a query in at least t tables: by t bitmaps over the ids, one for rows
 * seen at least once, twice and so on, that lie side by side word by word; above PLANES_MAX by
 * counters. Bytes read: the query's bucket of every table, asked for some tables ahead.
 */
#include <string.h>

#include "attn-node/index/lsh.h"
#include "common/base/limits.h"

#define PLANES_MAX   4u
#define TABLES_AHEAD 8u
#define ALWAYS       static inline __attribute__((always_inline))

struct bucket {
    const uint16_t *ids;
    uint32_t count;
};

static uint32_t planes_of(uint32_t t)
{
    return t <= PLANES_MAX ? t : 1;
}

uint64_t an_lsh_scratch_bytes(uint32_t tokens, uint32_t t)
{
    uint64_t words = (tokens + 63ull) / 64;
    uint64_t counters = t > PLANES_MAX ? 2ull * tokens : 0;
    return (planes_of(t) * words * sizeof(uint64_t) + counters + 63) & ~63ull;
}

static void ask_for(const struct bucket *bucket)
{
    const char *ids = (const char *)bucket->ids;
    for (uint32_t at = 0; at < 2 * bucket->count; at += 64) {
        __builtin_prefetch(ids + at, 0, 3);
    }
}

/* The query's bucket of every table. */
static void find_buckets(const struct an_lsh *index, const uint16_t *codes, struct bucket *buckets)
{
    for (uint32_t table = 0; table < index->l; ++table) {
        buckets[table].ids = an_lsh_bucket(index, table, codes[table], &buckets[table].count);
    }
    for (uint32_t table = 0; table < index->l && table < TABLES_AHEAD; ++table) {
        ask_for(&buckets[table]);
    }
}

/* planes [words][T]: plane j has the rows seen at least j + 1 times. */
ALWAYS void mark_planes(const uint32_t T, const struct bucket *buckets, uint32_t l,
                        uint64_t *planes)
{
    for (uint32_t table = 0; table < l; ++table) {
        if (table + TABLES_AHEAD < l) {
            ask_for(&buckets[table + TABLES_AHEAD]);
        }
        const uint16_t *ids = buckets[table].ids;
        for (uint32_t i = 0; i < buckets[table].count; ++i) {
            uint64_t *word = planes + (ids[i] >> 6) * T;
            uint64_t bit = 1ull << (ids[i] & 63u);
            for (uint32_t j = 0; j < T; ++j) {
                uint64_t before = word[j];
                word[j] = before | bit;
                bit &= before;
            }
        }
    }
}

static void mark(uint32_t t, const struct bucket *buckets, uint32_t l, uint64_t *planes)
{
    switch (t) {
    case 1:
        mark_planes(1, buckets, l, planes);
        break;
    case 2:
        mark_planes(2, buckets, l, planes);
        break;
    case 3:
        mark_planes(3, buckets, l, planes);
        break;
    default:
        mark_planes(PLANES_MAX, buckets, l, planes);
        break;
    }
}

static void mark_counting(uint32_t t, const struct bucket *buckets, uint32_t l, uint16_t *counters,
                          uint64_t *chosen)
{
    for (uint32_t table = 0; table < l; ++table) {
        if (table + TABLES_AHEAD < l) {
            ask_for(&buckets[table + TABLES_AHEAD]);
        }
        const uint16_t *ids = buckets[table].ids;
        for (uint32_t i = 0; i < buckets[table].count; ++i) {
            uint32_t seen = ++counters[ids[i]];
            chosen[ids[i] >> 6] |= (uint64_t)(seen >= t) << (ids[i] & 63u);
        }
    }
}

uint32_t an_lsh_candidates(const struct an_lsh *index, const uint16_t *codes, uint32_t t,
                           uint32_t begin, uint32_t end, void *scratch, uint64_t *rows_read,
                           uint16_t *ids_out)
{
    struct bucket buckets[PP_LSH_L_MAX];
    uint32_t words = (index->tokens + 63u) / 64u;
    uint32_t planes = planes_of(t);
    uint64_t *marks = scratch;
    find_buckets(index, codes, buckets);
    memset(scratch, 0, an_lsh_scratch_bytes(index->tokens, t));
    if (t <= PLANES_MAX) {
        mark(t, buckets, index->l, marks);
    } else {
        mark_counting(t, buckets, index->l, (uint16_t *)(void *)(marks + words), marks);
    }
    uint64_t *chosen = marks + planes - 1; /* a word in `planes` */
    for (uint32_t i = 0; i < index->central_count; ++i) {
        chosen[(index->central[i] >> 6) * planes] &= ~(1ull << (index->central[i] & 63u));
    }
    uint32_t found = 0;
    for (uint32_t word = begin / 64u; word < words && word * 64u < end; ++word) {
        uint64_t bits = chosen[word * planes];
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
