/*
 * The scan and the draw of the sketch with AVX-512 as it was first: look-ups of four bits by
 * vpshufb, sums of 2^t as f32. The rest: sketch_lanes_avx512.h.
 */
#include <stddef.h>

#define GROUP_TABLE_BYTES AN_SKETCH_NIBBLE_GROUP

#include "attn-node/kernels/sketch_lanes_avx512.h"

PP_INLINE __m512i look_up(const uint8_t *table, __m512i fields)
{
    __m512i entries = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)table));
    return _mm512_shuffle_epi8(entries, fields);
}

/* (a & mask) | (b & ~mask). */
PP_INLINE __m512i choose(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

PP_INLINE void an_add_group(const uint32_t H, const uint32_t N, const uint8_t *planes,
                            const uint8_t *tables, struct an_counts *counts)
{
    const __m512i four = _mm512_set1_epi8(0x0f);
    const __m512i two = _mm512_set1_epi8(0x03);
    __m512i low[3];
    __m512i high[3]; /* the upper four bits, with others above */
    PP_UNROLL for (uint32_t b = 0; b < N; ++b)
    {
        __m512i plane = _mm512_load_si512(planes + b * 64);
        _mm_prefetch((const char *)planes + b * 64 + AHEAD_BYTES, _MM_HINT_T1);
        low[b] = _mm512_and_si512(plane, four);
        high[b] = _mm512_srli_epi16(plane, 4);
    }
    __m512i middle = _mm512_and_si512(high[0], two);
    __m512i top = _mm512_and_si512(_mm512_srli_epi16(high[0], 2), two);
    if (N > 1) {
        middle = choose(two, middle, _mm512_and_si512(_mm512_slli_epi16(high[1], 2), four));
        top = choose(two, top, _mm512_and_si512(high[1], four));
    }
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        const uint8_t *own = tables + h * AN_SKETCH_NIBBLE_BYTES_MAX;
        __m512i sum = _mm512_add_epi8(look_up(own + 3 * 16, middle), look_up(own + 4 * 16, top));
        PP_UNROLL for (uint32_t b = 0; b < N; ++b)
        {
            sum = _mm512_add_epi8(sum, look_up(own + b * 16, low[b]));
        }
        if (N > 2) {
            __m512i last = _mm512_and_si512(high[2], four);
            sum = _mm512_add_epi8(sum, look_up(own + 5 * 16, last));
        }
        an_add_entries(counts, h, sum);
    }
}

PP_INLINE __m512 an_add_powers(__m512 sum, __m512i bits)
{
    __m512i odd = _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u));
    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)));
    return _mm512_add_ps(sum, _mm512_castsi512_ps(odd));
}

PP_INLINE void an_write_taken(__mmask32 taken, __m512i ids, __m512i thresholds, uint16_t *ids_out,
                              uint16_t *thresholds_out)
{
    PP_UNROLL for (uint32_t i = 0; i < 2; ++i)
    {
        __mmask16 some = (__mmask16)(taken >> (16 * i));
        __m256i id = i == 0 ? _mm512_castsi512_si256(ids) : _mm512_extracti64x4_epi64(ids, 1);
        __m256i threshold =
            i == 0 ? _mm512_castsi512_si256(thresholds) : _mm512_extracti64x4_epi64(thresholds, 1);
        __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(id),
                                       _mm512_slli_epi32(_mm512_cvtepu16_epi32(threshold), 16));
        both = _mm512_maskz_compress_epi32(some, both);
        uint32_t at = i * (uint32_t)__builtin_popcount(taken & 0xffffu);
        _mm256_storeu_si256((__m256i *)(void *)(ids_out + at), _mm512_cvtepi32_epi16(both));
        both = _mm512_srli_epi32(both, 16);
        _mm256_storeu_si256((__m256i *)(void *)(thresholds_out + at), _mm512_cvtepi32_epi16(both));
    }
}

const struct an_sketch_kernels an_sketch_avx512 = {
    .isa = "avx512",
    .costs = &an_sketch_costs_avx512,
    .rotate = an_sketch_rotate_avx512,
    .encode = an_sketch_encode_avx512,
    .scan = an_scan_by_nibbles,
    .combine = combine,
    .sum_u = sum_u,
    .draw = draw,
    .attend = an_sketch_attend_avx512,
};
