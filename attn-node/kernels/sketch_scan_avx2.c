/*
 * The scan and the draw of the sketch with AVX2: look-ups of four bits by vpshufb, thirty-two keys
 * at a time, sums of 2^t as f32. Shapes and mathematics: sketch.h. Bytes moved a call: the stream
 * once for each four heads (from L2 after the first), 2 bytes a key and head out.
 */
#include <immintrin.h>

#include "attn-node/kernels/sketch_tables.h"
#include "attn-node/kernels/sketch_tiles_vector.h"
#include "common/base/inline.h"

#define AHEAD_BYTES 1024u /* of the stream */

/* Sums of half a block's entries: raw has each 16-bit word as it is, odd its upper byte alone. */
struct counts {
    __m256i raw[AN_TILE_HEADS], odd[AN_TILE_HEADS];
};

PP_INLINE __m256i load(const void *at)
{
    return _mm256_loadu_si256(at);
}

PP_INLINE void add_entries(struct counts *counts, uint32_t h, __m256i entries)
{
    counts->raw[h] = _mm256_add_epi16(counts->raw[h], entries);
    counts->odd[h] = _mm256_add_epi16(counts->odd[h], _mm256_srli_epi16(entries, 8));
}

PP_INLINE __m256i look_up(const uint8_t *table, __m256i fields)
{
    __m128i entries = _mm_load_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(entries), fields);
}

/* N planes of 1 or 2 bits, 3 or what is left, of half a block. */
PP_INLINE void add_group(const uint32_t H, const uint32_t N, const uint8_t *planes,
                         const uint8_t *tables, struct counts *counts)
{
    const __m256i four = _mm256_set1_epi8(0x0f);
    const __m256i lower = _mm256_set1_epi8(0x03);
    const __m256i upper = _mm256_set1_epi8(0x0c);
    __m256i low[3];
    __m256i high[3]; /* the upper four bits, with others above */
    PP_UNROLL for (uint32_t b = 0; b < N; ++b)
    {
        __m256i plane = load(planes + b * 64);
        low[b] = _mm256_and_si256(plane, four);
        high[b] = _mm256_srli_epi16(plane, 4);
    }
    __m256i middle = _mm256_and_si256(high[0], lower);
    __m256i top = _mm256_and_si256(_mm256_srli_epi16(high[0], 2), lower);
    if (N > 1) {
        __m256i shifted = _mm256_slli_epi16(high[1], 2);
        middle = _mm256_or_si256(middle, _mm256_and_si256(shifted, upper));
        top = _mm256_or_si256(top, _mm256_and_si256(high[1], upper));
    }
    __m256i last = N > 2 ? _mm256_and_si256(high[2], four) : _mm256_setzero_si256();
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        const uint8_t *own = tables + h * AN_SKETCH_NIBBLE_BYTES_MAX;
        __m256i sum = _mm256_add_epi8(look_up(own + 3 * 16, middle), look_up(own + 4 * 16, top));
        PP_UNROLL for (uint32_t b = 0; b < N; ++b)
        {
            sum = _mm256_add_epi8(sum, look_up(own + b * 16, low[b]));
        }
        sum = N > 2 ? _mm256_add_epi8(sum, look_up(own + 5 * 16, last)) : sum;
        add_entries(counts, h, sum);
    }
}

PP_INLINE void add_nibbles(const uint32_t H, const uint8_t *plane,
                           const struct an_sketch_query *queries, uint32_t j, struct counts *counts)
{
    const __m256i mask = _mm256_set1_epi8(0x0f);
    __m256i bytes = load(plane);
    __m256i low = _mm256_and_si256(bytes, mask);
    __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        const uint8_t *own = queries[h].tables + j * 32;
        add_entries(counts, h, _mm256_add_epi8(look_up(own, low), look_up(own + 16, high)));
    }
}

/* D of a query to t: sixteen keys. */
PP_INLINE __m256i score_some(int32_t offset, const struct an_sketch_scale *scale, __m256i sums,
                             __m256i factors)
{
    __m256i d = _mm256_sub_epi16(sums, _mm256_set1_epi16((short)offset));
    d = _mm256_sll_epi16(d, _mm_cvtsi32_si128(scale->shift));
    __m256i t = _mm256_mulhrs_epi16(d, _mm256_set1_epi16(scale->gain));
    t = _mm256_mulhrs_epi16(t, factors);
    if (__builtin_expect(scale->clamped, 0)) {
        for (uint32_t i = 0; i < scale->doublings; ++i) {
            t = _mm256_adds_epi16(t, t);
        }
        t = _mm256_min_epi16(t, _mm256_set1_epi16(AN_SKETCH_SCORE_MAX));
        t = _mm256_max_epi16(t, _mm256_set1_epi16(-AN_SKETCH_SCORE_MAX));
    }
    return t;
}

/* Adds the bf16 in `bits` to the sums. */
PP_INLINE __m256 add_powers(__m256 sum, __m256i bits)
{
    __m256i odd = _mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000u));
    sum = _mm256_add_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
    return _mm256_add_ps(sum, _mm256_castsi256_ps(odd));
}

PP_INLINE float sum_lanes(__m256 x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/* All ones in the words of the rows [first, first + 16) that lie in [begin, end). */
PP_INLINE __m256i valid_rows(uint32_t first, uint32_t begin, uint32_t end)
{
    const __m256i lanes = _mm256_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    int low = begin > first ? begin - first < 16 ? (int)(begin - first) : 16 : 0;
    int high = end < first ? 0 : end - first < 16 ? (int)(end - first) : 16;
    __m256i from = _mm256_cmpgt_epi16(lanes, _mm256_set1_epi16((short)(low - 1)));
    return _mm256_and_si256(from, _mm256_cmpgt_epi16(_mm256_set1_epi16((short)high), lanes));
}

/* Sums of half a block to scores, scores to memory, their powers of two to the heads' sums. Its
 * keys are those of rows [first, first + 16) and 32 behind them. */
PP_INLINE void score_half(const uint32_t H, const struct an_sketch_query *queries,
                          const uint8_t *factor_bytes, const struct counts *counts, uint32_t first,
                          uint32_t begin, uint32_t end, uint32_t at,
                          struct an_sketch_scores *scores, __m256 *powers)
{
    const __m256i one = _mm256_set1_epi16(127 * 128);
    const __m256i none = _mm256_set1_epi16(AN_SKETCH_NONE);
    PP_UNROLL for (uint32_t i = 0; i < 2; ++i)
    {
        __m256i factors = load(factor_bytes + 64 * i);
        __m256i valid = valid_rows(first + 32 * i, begin, end);
        PP_UNROLL for (uint32_t h = 0; h < H; ++h)
        {
            __m256i even = _mm256_sub_epi16(counts->raw[h], _mm256_slli_epi16(counts->odd[h], 8));
            __m256i t = score_some(queries[h].offset, &scores[h].scale,
                                   i == 0 ? even : counts->odd[h], factors);
            powers[h] = add_powers(powers[h], _mm256_and_si256(_mm256_add_epi16(t, one), valid));
            t = _mm256_blendv_epi8(none, t, valid);
            _mm256_storeu_si256((__m256i *)(void *)(scores[h].scores + at + 32 * i), t);
        }
    }
}

/* The entries of half a block whose planes begin at `planes`. */
PP_INLINE void count_half(const uint32_t H, const bool nibbles, const struct an_sketch_shape *shape,
                          const uint8_t *planes, const struct an_sketch_query *queries,
                          const uint8_t *tables, struct counts *counts)
{
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        counts->raw[h] = counts->odd[h] = _mm256_setzero_si256();
    }
    if (nibbles) {
        for (uint32_t j = 0; j < shape->planes; ++j) {
            add_nibbles(H, planes + j * 64, queries, j, counts);
        }
        return;
    }
    uint32_t left = shape->planes;
    for (; left >= 3; left -= 3, planes += 192, tables += AN_SKETCH_NIBBLE_GROUP) {
        add_group(H, 3, planes, tables, counts);
    }
    if (left == 1) {
        add_group(H, 1, planes, tables, counts);
    } else if (left == 2) {
        add_group(H, 2, planes, tables, counts);
    }
}

/* Blocks [block, block_end) for one tile; at: where their scores begin. */
PP_INLINE void an_scan_tile(const uint32_t H, const bool nibbles,
                            const struct an_sketch_shape *shape, const uint8_t *stream,
                            uint32_t begin, uint32_t end, uint32_t block, uint32_t block_end,
                            const struct an_sketch_query *queries, const uint8_t *tables,
                            struct an_sketch_scores *scores)
{
    __m256 powers[AN_TILE_HEADS];
    uint32_t at = block * 64 - begin / 64 * 64;
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        powers[h] = _mm256_setzero_ps();
    }
    for (; block < block_end; ++block, at += 64) {
        const uint8_t *planes = stream + (uint64_t)block * shape->block_bytes;
        const uint8_t *factors = planes + shape->planes * 64;
        for (uint32_t line = 0; line < shape->block_bytes; line += 64) {
            _mm_prefetch((const char *)planes + line + AHEAD_BYTES, _MM_HINT_T1);
        }
        for (uint32_t half = 0; half < 2; ++half) {
            struct counts counts;
            count_half(H, nibbles, shape, planes + 32 * half, queries, tables, &counts);
            score_half(H, queries, factors + 32 * half, &counts, block * 64 + 16 * half, begin, end,
                       at + 16 * half, scores, powers);
        }
    }
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        scores[h].sum += sum_lanes(powers[h]);
    }
}

static void combine(const int16_t *const *scores, const int16_t *shifts, uint32_t heads,
                    int16_t floor, uint32_t count, int16_t *into)
{
    const __m256i none = _mm256_set1_epi16(AN_SKETCH_NONE);
    for (uint32_t i = 0; i < count; i += 16) {
        __m256i most = _mm256_set1_epi16(floor);
        __m256i unwanted = _mm256_cmpeq_epi16(load(scores[0] + i), none);
        for (uint32_t h = 0; h < heads; ++h) {
            __m256i shifted = _mm256_adds_epi16(load(scores[h] + i), _mm256_set1_epi16(shifts[h]));
            most = _mm256_max_epi16(most, shifted);
        }
        most = _mm256_blendv_epi8(most, none, unwanted);
        _mm256_storeu_si256((__m256i *)(void *)(into + i), most);
    }
}

static void sum_u(const int16_t *logs, uint32_t count, const int16_t *shifts, float *sums_out)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256 sums[3] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < count; i += 16) {
        __m256i log = load(logs + i);
        __m256i unwanted = _mm256_cmpeq_epi16(log, _mm256_set1_epi16(AN_SKETCH_NONE));
        PP_UNROLL for (uint32_t j = 0; j < 3; ++j)
        {
            __m256i x = _mm256_adds_epi16(log, _mm256_set1_epi16(shifts[j]));
            x = _mm256_add_epi16(_mm256_min_epi16(x, zero), _mm256_set1_epi16(127 * 128));
            x = _mm256_andnot_si256(unwanted, _mm256_max_epi16(x, zero));
            sums[j] = add_powers(sums[j], x);
        }
    }
    for (uint32_t j = 0; j < 3; ++j) {
        sums_out[j] += sum_lanes(sums[j]);
    }
}

/* an_sketch_draw of eight held indexes. */
PP_INLINE __m256i draw_eight(uint64_t key, uint32_t held)
{
    const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    __m256i x = _mm256_add_epi32(_mm256_set1_epi32((int)(held + (uint32_t)key)), lanes);
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32(0x7feb352d));
    x = _mm256_add_epi32(x, _mm256_set1_epi32((int)(uint32_t)(key >> 32)));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
    return _mm256_srli_epi32(_mm256_mullo_epi32(x, _mm256_set1_epi32((int)0x846ca68bu)), 16);
}

static uint32_t draw(const int16_t *logs, uint32_t count, int16_t shift, uint64_t key,
                     uint32_t held, uint32_t id, uint16_t *ids_out, uint16_t *thresholds_out)
{
    const __m256i none = _mm256_set1_epi32(AN_SKETCH_NONE);
    const __m256i ones = _mm256_set1_epi32(-1);
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < count; i += 8) {
        __m256i log =
            _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(logs + i)));
        __m256i x = _mm256_add_epi32(log, _mm256_set1_epi32(shift));
        __m256i certain = _mm256_cmpgt_epi32(x, ones);
        __m256i down = _mm256_xor_si256(_mm256_srai_epi32(x, 7), ones);
        __m256i fraction = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
        fraction = _mm256_slli_epi32(_mm256_or_si256(fraction, _mm256_set1_epi32(0x80)), 8);
        __m256i threshold =
            _mm256_max_epi32(_mm256_srlv_epi32(fraction, down), _mm256_set1_epi32(1));
        __m256i taken = _mm256_cmpgt_epi32(threshold, draw_eight(key, held + i));
        taken = _mm256_or_si256(taken, certain);
        taken = _mm256_andnot_si256(_mm256_cmpeq_epi32(log, none), taken);
        uint32_t mask = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(taken));
        if (mask == 0) {
            continue;
        }
        uint32_t each[8];
        _mm256_storeu_si256((__m256i *)(void *)each, _mm256_andnot_si256(certain, threshold));
        for (; mask != 0; mask &= mask - 1) {
            uint32_t lane = (uint32_t)__builtin_ctz(mask);
            ids_out[drawn] = (uint16_t)(id + i + lane);
            thresholds_out[drawn++] = (uint16_t)each[lane];
        }
    }
    return drawn;
}

const struct an_sketch_kernels an_sketch_avx2 = {
    .isa = "avx2",
    .costs = &an_sketch_costs_avx2,
    .rotate = an_sketch_rotate_avx2,
    .encode = an_sketch_encode_avx2,
    .scan = an_scan_by_nibbles,
    .combine = combine,
    .sum_u = sum_u,
    .draw = draw,
    .attend = an_sketch_attend_avx2,
};
