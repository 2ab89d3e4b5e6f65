/*
 * The scan and the draw of the sketch with AVX-512: look-ups by vpermb, sixty-four keys at a time,
 * sums of 2^t by vdpbf16ps. Shapes and mathematics: sketch.h. Bytes moved a call: the stream once
 * for each four heads (from L2 after the first), 2 bytes a key and head out.
 */
#include <immintrin.h>

#include "attn-node/kernels/sketch_tables.h"
#include "common/base/inline.h"

#define TILE_HEADS  4u
#define SPAN_BLOCKS 64u   /* between changes of tile: stays in L2 */
#define AHEAD_BYTES 1024u /* of the stream */

/* Sums of a block's entries: raw has each 16-bit word as it is, odd its upper byte lane alone. */
struct counts {
    __m512i raw[TILE_HEADS], odd[TILE_HEADS];
};

PP_INLINE void add_entries(struct counts *counts, uint32_t h, __m512i entries)
{
    counts->raw[h] = _mm512_add_epi16(counts->raw[h], entries);
    counts->odd[h] = _mm512_add_epi16(counts->odd[h], _mm512_srli_epi16(entries, 8));
}

/* N planes of 1 or 2 bits, 3 or what is left. */
PP_INLINE void add_group(const uint32_t H, const uint32_t N, const uint8_t *planes,
                         const struct an_sketch_query *queries, uint32_t table,
                         struct counts *counts)
{
    __m512i low[3];
    PP_UNROLL for (uint32_t b = 0; b < N; ++b)
    {
        low[b] = _mm512_load_si512(planes + b * 64);
        _mm_prefetch((const char *)planes + b * 64 + AHEAD_BYTES, _MM_HINT_T1);
    }
    __m512i top = _mm512_srli_epi16(low[0], 6);
    if (N > 1) {
        top = _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x03), top, _mm512_srli_epi16(low[1], 4),
                                        0xca);
    }
    if (N > 2) {
        top = _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x0f), top, _mm512_srli_epi16(low[2], 2),
                                        0xca);
    }
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        const uint8_t *tables = queries[h].tables + table * 64;
        __m512i sum = _mm512_permutexvar_epi8(top, _mm512_load_si512(tables + 3 * 64));
        PP_UNROLL for (uint32_t b = 0; b < N; ++b)
        {
            __m512i entries = _mm512_permutexvar_epi8(low[b], _mm512_load_si512(tables + b * 64));
            sum = _mm512_add_epi8(sum, entries);
        }
        add_entries(counts, h, sum);
    }
}

PP_INLINE void add_nibbles(const uint32_t H, const uint8_t *plane,
                           const struct an_sketch_query *queries, uint32_t j, struct counts *counts)
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
        add_entries(counts, h,
                    _mm512_add_epi8(_mm512_shuffle_epi8(a, low), _mm512_shuffle_epi8(b, high)));
    }
}

/* D of a query to t: half a block. */
PP_INLINE __m512i score_half(const struct an_sketch_query *query, __m512i sums, __m512i factors)
{
    __m512i d = _mm512_sub_epi16(sums, _mm512_set1_epi16((short)query->offset));
    d = _mm512_sll_epi16(d, _mm_cvtsi32_si128(query->shift));
    __m512i t = _mm512_mulhrs_epi16(d, _mm512_set1_epi16(query->gain));
    t = _mm512_mulhrs_epi16(t, factors);
    if (__builtin_expect(query->clamped, 0)) {
        for (uint32_t i = 0; i < query->doublings; ++i) {
            t = _mm512_adds_epi16(t, t);
        }
        t = _mm512_min_epi16(t, _mm512_set1_epi16(AN_SKETCH_SCORE_MAX));
        t = _mm512_max_epi16(t, _mm512_set1_epi16(-AN_SKETCH_SCORE_MAX));
    }
    return t;
}

PP_INLINE __m512 add_powers(__m512 sum, __m512i bits)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)bits, (__m512bh)_mm512_set1_epi16(0x3f80));
}

/* Sums to scores, scores to memory, their powers of two to the sums of the heads. */
PP_INLINE void score_block(const uint32_t H, const struct an_sketch_query *queries,
                           const uint8_t *factor_bytes, const struct counts *counts, uint64_t valid,
                           uint32_t at, struct an_sketch_scores *scores, __m512 *powers)
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
            __m512i t = score_half(&queries[h], halves[i], factors[i]);
            __m512i bits = _mm512_maskz_add_epi16(lanes, t, one);
            t = _mm512_mask_mov_epi16(_mm512_set1_epi16(AN_SKETCH_NONE), lanes, t);
            _mm512_storeu_si512(scores[h].scores + at + 32 * i, t);
            powers[h] = add_powers(powers[h], bits);
        }
    }
}

/* Which rows of the block that begins at row `first` are wanted. */
PP_INLINE uint64_t valid_rows(uint32_t first, uint32_t begin, uint32_t end)
{
    uint64_t valid = ~0ull;
    valid = begin > first ? valid << (begin - first) : valid;
    return end - first < 64 ? valid & ((1ull << (end - first)) - 1) : valid;
}

/* Blocks [block, block_end) for one tile; at: where their scores begin. */
PP_INLINE void scan_tile(const uint32_t H, const bool nibbles, const struct an_sketch_shape *shape,
                         const uint8_t *stream, uint32_t begin, uint32_t end, uint32_t block,
                         uint32_t block_end, const struct an_sketch_query *queries,
                         struct an_sketch_scores *scores)
{
    __m512 powers[TILE_HEADS];
    uint32_t groups = shape->planes / 3;
    uint32_t rest = shape->planes % 3;
    uint32_t at = block * 64 - begin / 64 * 64;
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        powers[h] = _mm512_setzero_ps();
    }
    for (; block < block_end; ++block, at += 64) {
        const uint8_t *planes = stream + (uint64_t)block * shape->block_bytes;
        struct counts counts;
        PP_UNROLL for (uint32_t h = 0; h < H; ++h)
        {
            counts.raw[h] = counts.odd[h] = _mm512_setzero_si512();
        }
        if (nibbles) {
            for (uint32_t j = 0; j < shape->planes; ++j) {
                add_nibbles(H, planes + j * 64, queries, j, &counts);
            }
        } else {
            for (uint32_t g = 0; g < groups; ++g) {
                add_group(H, 3, planes + g * 192, queries, 4 * g, &counts);
            }
            if (rest == 1) {
                add_group(H, 1, planes + groups * 192, queries, 4 * groups, &counts);
            } else if (rest == 2) {
                add_group(H, 2, planes + groups * 192, queries, 4 * groups, &counts);
            }
        }
        score_block(H, queries, planes + shape->planes * 64, &counts,
                    valid_rows(block * 64, begin, end), at, scores, powers);
    }
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        scores[h].sum += _mm512_reduce_add_ps(powers[h]);
    }
}

#define DEFINE_TILE(NAME, H, NIBBLES)                                                              \
    static void NAME(const struct an_sketch_shape *shape, const uint8_t *stream, uint32_t begin,   \
                     uint32_t end, uint32_t block, uint32_t block_end,                             \
                     const struct an_sketch_query *queries, struct an_sketch_scores *scores)       \
    {                                                                                              \
        scan_tile(H, NIBBLES, shape, stream, begin, end, block, block_end, queries, scores);       \
    }
DEFINE_TILE(tile_1, 1, false)
DEFINE_TILE(tile_2, 2, false)
DEFINE_TILE(tile_3, 3, false)
DEFINE_TILE(tile_4, 4, false)
DEFINE_TILE(nibbles_1, 1, true)
DEFINE_TILE(nibbles_2, 2, true)
DEFINE_TILE(nibbles_3, 3, true)
DEFINE_TILE(nibbles_4, 4, true)

typedef void (*tile_function)(const struct an_sketch_shape *, const uint8_t *, uint32_t, uint32_t,
                              uint32_t, uint32_t, const struct an_sketch_query *,
                              struct an_sketch_scores *);
static const tile_function tile_functions[2][TILE_HEADS] = {
    {tile_1, tile_2, tile_3, tile_4},
    {nibbles_1, nibbles_2, nibbles_3, nibbles_4},
};

static void scan(const struct an_sketch_shape *shape, const uint8_t *stream, uint32_t begin,
                 uint32_t end, const struct an_sketch_query *queries, uint32_t heads,
                 struct an_sketch_scores *scores)
{
    uint32_t block_end = (end + 63) / 64;
    for (uint32_t h = 0; h < heads; ++h) {
        scores[h].sum = 0.0f;
    }
    for (uint32_t block = begin / 64; block < block_end; block += SPAN_BLOCKS) {
        uint32_t last = block_end - block < SPAN_BLOCKS ? block_end : block + SPAN_BLOCKS;
        for (uint32_t h = 0; h < heads; h += TILE_HEADS) {
            uint32_t tile = heads - h < TILE_HEADS ? heads - h : TILE_HEADS;
            tile_functions[shape->bits == 4][tile - 1](shape, stream, begin, end, block, last,
                                                       queries + h, scores + h);
        }
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
            sums[j] = add_powers(sums[j], _mm512_maskz_max_epi16(wanted, x, zero));
        }
    }
    for (uint32_t j = 0; j < 3; ++j) {
        sums_out[j] += _mm512_reduce_add_ps(sums[j]);
    }
}

/* an_sketch_draw of sixteen held indexes, in the upper half of each lane. */
PP_INLINE __m512i hash_sixteen(uint64_t key, uint32_t held)
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
        __m512i random = _mm512_permutex2var_epi16(hash_sixteen(key, held + i), upper,
                                                   hash_sixteen(key, held + i + 16));
        __mmask32 taken = _mm512_cmplt_epu16_mask(random, threshold) | certain;
        taken &= wanted;
        threshold = _mm512_maskz_mov_epi16(~certain, threshold);
        __m512i ids = _mm512_add_epi16(lanes, _mm512_set1_epi16((short)(id + i)));
        _mm512_storeu_si512(ids_out + drawn, _mm512_maskz_compress_epi16(taken, ids));
        _mm512_storeu_si512(thresholds_out + drawn, _mm512_maskz_compress_epi16(taken, threshold));
        drawn += (uint32_t)__builtin_popcount(taken);
    }
    return drawn;
}

static const struct an_sketch_costs costs = {
    .query = 8000.0f,
    .plane = 0.005f,
    .plane_head = 0.0105f,
    .select = 0.35f,
    .select_head = 0.02f,
    .row_byte = 0.04f,
    .row_value = 0.06f,
};

const struct an_sketch_kernels an_sketch_avx512bf16 = {
    .isa = "avx512bf16",
    .costs = &costs,
    .rotate = an_sketch_rotate_avx512,
    .encode = an_sketch_encode_avx512,
    .scan = scan,
    .combine = combine,
    .sum_u = sum_u,
    .draw = draw,
    .attend = an_sketch_attend_avx512,
};
