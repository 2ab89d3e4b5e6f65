/*
 * The scan and the draw of the sketch over 512-bit vectors, sixty-four keys at a time, as text for
 * sketch_scan_avx512.c and sketch_scan_avx512bf16.c, which say how a field is looked up, how 2^t is
 * summed and how what was drawn is packed. Shapes and mathematics: sketch.h. Bytes moved a call:
 * the stream once for each four heads (from L2 after the first), 2 bytes a key and head out.
 * Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_SKETCH_LANES_AVX512_H
#define PIGPEN_ATTN_NODE_KERNELS_SKETCH_LANES_AVX512_H

#include <immintrin.h>

#include "attn-node/kernels/sketch_tables.h"
#include "attn-node/kernels/sketch_tiles_vector.h"
#include "common/base/inline.h"

#define AHEAD_BYTES 1024u /* of the stream */

/* Sums of a block's entries: raw has each 16-bit word as it is, odd its upper byte lane alone. */
struct an_counts {
    __m512i raw[AN_TILE_HEADS], odd[AN_TILE_HEADS];
};

PP_INLINE void an_add_entries(struct an_counts *counts, uint32_t h, __m512i entries)
{
    counts->raw[h] = _mm512_add_epi16(counts->raw[h], entries);
    counts->odd[h] = _mm512_add_epi16(counts->odd[h], _mm512_srli_epi16(entries, 8));
}

/* What the includer defines, beside GROUP_TABLE_BYTES, of three planes. */

/* Adds what N planes of 1 or 2 bits, 3 or what is left, say by their tables. */
PP_INLINE void an_add_group(const uint32_t H, const uint32_t N, const uint8_t *planes,
                            const uint8_t *tables, struct an_counts *counts);
/* Adds the bf16 in `bits` to the sums. */
PP_INLINE __m512 an_add_powers(__m512 sum, __m512i bits);
/* Writes those taken side by side, up to 32 of each. */
PP_INLINE void an_write_taken(__mmask32 taken, __m512i ids, __m512i thresholds, uint16_t *ids_out,
                              uint16_t *thresholds_out);

PP_INLINE void an_add_nibbles(const uint32_t H, const uint8_t *plane,
                              const struct an_sketch_query *queries, uint32_t j,
                              struct an_counts *counts)
{
    const __m512i mask = _mm512_set1_epi8(0x0f);
    __m512i bytes = _mm512_load_si512(plane);
    _mm_prefetch((const char *)plane + AHEAD_BYTES, _MM_HINT_T1);
    __m512i low = _mm512_and_si512(bytes, mask);
    __m512i high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        const __m128i *tables = (const __m128i *)(const void *)(queries[h].tables + j * 32);
        __m512i a = _mm512_broadcast_i32x4(_mm_load_si128(tables));
        __m512i b = _mm512_broadcast_i32x4(_mm_load_si128(tables + 1));
        an_add_entries(counts, h,
                       _mm512_add_epi8(_mm512_shuffle_epi8(a, low), _mm512_shuffle_epi8(b, high)));
    }
}

/* D of a query to t: half a block. */
PP_INLINE __m512i an_score_half(int32_t offset, const struct an_sketch_scale *scale, __m512i sums,
                                __m512i factors)
{
    __m512i d = _mm512_sub_epi16(sums, _mm512_set1_epi16((short)offset));
    d = _mm512_sll_epi16(d, _mm_cvtsi32_si128(scale->shift));
    __m512i t = _mm512_mulhrs_epi16(d, _mm512_set1_epi16(scale->gain));
    t = _mm512_mulhrs_epi16(t, factors);
    if (__builtin_expect(scale->clamped, 0)) {
        for (uint32_t i = 0; i < scale->doublings; ++i) {
            t = _mm512_adds_epi16(t, t);
        }
        t = _mm512_min_epi16(t, _mm512_set1_epi16(AN_SKETCH_SCORE_MAX));
        t = _mm512_max_epi16(t, _mm512_set1_epi16(-AN_SKETCH_SCORE_MAX));
    }
    return t;
}

/* Sums to scores, scores to memory, their powers of two to the sums of the heads. */
PP_INLINE void an_score_block(const uint32_t H, const struct an_sketch_query *queries,
                              const uint8_t *factor_bytes, const struct an_counts *counts,
                              uint64_t valid, uint32_t at, struct an_sketch_scores *scores,
                              __m512 *powers)
{
    __m512i factors[2] = {_mm512_load_si512(factor_bytes), _mm512_load_si512(factor_bytes + 64)};
    const __m512i one = _mm512_set1_epi16(127 * 128);
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        __m512i halves[2] = {_mm512_sub_epi16(counts->raw[h], _mm512_slli_epi16(counts->odd[h], 8)),
                             counts->odd[h]};
        PP_UNROLL for (uint32_t i = 0; i < 2; ++i)
        {
            __mmask32 lanes = (__mmask32)(valid >> (32 * i));
            __m512i t = an_score_half(queries[h].offset, &scores[h].scale, halves[i], factors[i]);
            __m512i bits = _mm512_maskz_add_epi16(lanes, t, one);
            t = _mm512_mask_mov_epi16(_mm512_set1_epi16(AN_SKETCH_NONE), lanes, t);
            _mm512_storeu_si512(scores[h].scores + at + 32 * i, t);
            powers[h] = an_add_powers(powers[h], bits);
        }
    }
}

/* Which rows of the block that begins at row `first` are wanted. */
PP_INLINE uint64_t an_valid_rows(uint32_t first, uint32_t begin, uint32_t end)
{
    uint64_t valid = ~0ull;
    valid = begin > first ? valid << (begin - first) : valid;
    return end - first < 64 ? valid & ((1ull << (end - first)) - 1) : valid;
}

/* Blocks [block, block_end) for one tile; at: where their scores begin. */
PP_INLINE void an_scan_tile(const uint32_t H, const bool nibbles,
                            const struct an_sketch_shape *shape, const uint8_t *stream,
                            uint32_t begin, uint32_t end, uint32_t block, uint32_t block_end,
                            const struct an_sketch_query *queries, const uint8_t *tables,
                            struct an_sketch_scores *scores)
{
    __m512 powers[AN_TILE_HEADS];
    uint32_t groups = shape->planes / 3;
    uint32_t rest = shape->planes % 3;
    const uint8_t *rest_tables = tables + groups * GROUP_TABLE_BYTES;
    uint32_t at = block * 64 - begin / 64 * 64;
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        powers[h] = _mm512_setzero_ps();
    }
    for (; block < block_end; ++block, at += 64) {
        const uint8_t *planes = stream + (uint64_t)block * shape->block_bytes;
        struct an_counts counts;
        PP_UNROLL for (uint32_t h = 0; h < H; ++h)
        {
            counts.raw[h] = counts.odd[h] = _mm512_setzero_si512();
        }
        if (nibbles) {
            for (uint32_t j = 0; j < shape->planes; ++j) {
                an_add_nibbles(H, planes + j * 64, queries, j, &counts);
            }
        } else {
            for (uint32_t g = 0; g < groups; ++g) {
                an_add_group(H, 3, planes + g * 192, tables + g * GROUP_TABLE_BYTES, &counts);
            }
            if (rest == 1) {
                an_add_group(H, 1, planes + groups * 192, rest_tables, &counts);
            } else if (rest == 2) {
                an_add_group(H, 2, planes + groups * 192, rest_tables, &counts);
            }
        }
        an_score_block(H, queries, planes + shape->planes * 64, &counts,
                       an_valid_rows(block * 64, begin, end), at, scores, powers);
    }
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        scores[h].sum += _mm512_reduce_add_ps(powers[h]);
    }
}

static void combine(const int16_t *const *scores, const int16_t *shifts, uint32_t heads,
                    int16_t floor, uint32_t count, int16_t *into)
{
    const __m512i none = _mm512_set1_epi16(AN_SKETCH_NONE);
    for (uint32_t i = 0; i < count; i += 32) {
        __m512i most = _mm512_set1_epi16(floor);
        __m512i first = _mm512_loadu_si512(scores[0] + i);
        for (uint32_t h = 0; h < heads; ++h) {
            __m512i shifted =
                _mm512_adds_epi16(_mm512_loadu_si512(scores[h] + i), _mm512_set1_epi16(shifts[h]));
            most = _mm512_max_epi16(most, shifted);
        }
        __mmask32 wanted = _mm512_cmpneq_epi16_mask(first, none);
        _mm512_storeu_si512(into + i, _mm512_mask_mov_epi16(none, wanted, most));
    }
}

static void sum_u(const int16_t *logs, uint32_t count, const int16_t *shifts, float *sums_out)
{
    const __m512i zero = _mm512_setzero_si512();
    __m512 sums[3] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (uint32_t i = 0; i < count; i += 32) {
        __m512i log = _mm512_loadu_si512(logs + i);
        __mmask32 wanted = _mm512_cmpneq_epi16_mask(log, _mm512_set1_epi16(AN_SKETCH_NONE));
        PP_UNROLL for (uint32_t j = 0; j < 3; ++j)
        {
            __m512i x = _mm512_adds_epi16(log, _mm512_set1_epi16(shifts[j]));
            x = _mm512_add_epi16(_mm512_min_epi16(x, zero), _mm512_set1_epi16(127 * 128));
            sums[j] = an_add_powers(sums[j], _mm512_maskz_max_epi16(wanted, x, zero));
        }
    }
    for (uint32_t j = 0; j < 3; ++j) {
        sums_out[j] += _mm512_reduce_add_ps(sums[j]);
    }
}

/* an_sketch_draw of sixteen held indexes, in the upper half of each lane. */
PP_INLINE __m512i an_hash_sixteen(uint64_t key, uint32_t held)
{
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i x = _mm512_add_epi32(_mm512_set1_epi32((int)(held + (uint32_t)key)), lanes);
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32(0x7feb352d));
    x = _mm512_add_epi32(x, _mm512_set1_epi32((int)(uint32_t)(key >> 32)));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    return _mm512_mullo_epi32(x, _mm512_set1_epi32((int)0x846ca68bu));
}

static uint32_t draw(const int16_t *logs, uint32_t count, int16_t shift, uint64_t key,
                     uint32_t held, uint32_t id, uint16_t *ids_out, uint16_t *thresholds_out)
{
    const __m512i lanes =
        _mm512_set_epi16(31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13,
                         12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i upper = _mm512_add_epi16(_mm512_slli_epi16(lanes, 1), _mm512_set1_epi16(1));
    const __m512i one = _mm512_set1_epi16(1);
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < count; i += 32) {
        __m512i log = _mm512_loadu_si512(logs + i);
        __mmask32 wanted = _mm512_cmpneq_epi16_mask(log, _mm512_set1_epi16(AN_SKETCH_NONE));
        __m512i x = _mm512_adds_epi16(log, _mm512_set1_epi16(shift));
        __mmask32 certain = ~_mm512_movepi16_mask(x);
        __m512i down = _mm512_xor_si512(_mm512_srai_epi16(x, 7), _mm512_set1_epi16(-1));
        __m512i fraction = _mm512_slli_epi16(_mm512_or_si512(x, _mm512_set1_epi16(0x80)), 8);
        __m512i threshold = _mm512_max_epu16(_mm512_srlv_epi16(fraction, down), one);
        __m512i random = _mm512_permutex2var_epi16(an_hash_sixteen(key, held + i), upper,
                                                   an_hash_sixteen(key, held + i + 16));
        __mmask32 taken = _mm512_cmplt_epu16_mask(random, threshold) | certain;
        taken &= wanted;
        threshold = _mm512_maskz_mov_epi16(~certain, threshold);
        __m512i ids = _mm512_add_epi16(lanes, _mm512_set1_epi16((short)(id + i)));
        an_write_taken(taken, ids, threshold, ids_out + drawn, thresholds_out + drawn);
        drawn += (uint32_t)__builtin_popcount(taken);
    }
    return drawn;
}

#endif
