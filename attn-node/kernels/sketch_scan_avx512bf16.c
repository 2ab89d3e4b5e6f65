/*
 * The scan and the draw of the sketch with AVX-512 VBMI and BF16: look-ups of six bits by vpermb,
 * sums of 2^t by vdpbf16ps. The rest: sketch_lanes_avx512.h.
 */
#include <stddef.h>

#define GROUP_TABLE_BYTES 256u
#define HEAD_TABLE_BYTES  sizeof(struct an_sketch_query)

#include "attn-node/kernels/sketch_lanes_avx512.h"

PP_INLINE void an_add_group(const uint32_t H, const uint32_t N, const uint8_t *planes,
                            const uint8_t *tables, struct an_counts *counts)
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
        const uint8_t *own = tables + h * HEAD_TABLE_BYTES;
        __m512i sum = _mm512_permutexvar_epi8(top, _mm512_load_si512(own + 3 * 64));
        PP_UNROLL for (uint32_t b = 0; b < N; ++b)
        {
            __m512i entries = _mm512_permutexvar_epi8(low[b], _mm512_load_si512(own + b * 64));
            sum = _mm512_add_epi8(sum, entries);
        }
        an_add_entries(counts, h, sum);
    }
}

PP_INLINE __m512 an_add_powers(__m512 sum, __m512i bits)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)bits, (__m512bh)_mm512_set1_epi16(0x3f80));
}

PP_INLINE void an_write_taken(__mmask32 taken, __m512i ids, __m512i thresholds, uint16_t *ids_out,
                              uint16_t *thresholds_out)
{
    _mm512_storeu_si512(ids_out, _mm512_maskz_compress_epi16(taken, ids));
    _mm512_storeu_si512(thresholds_out, _mm512_maskz_compress_epi16(taken, thresholds));
}

static void scan(const struct an_sketch_shape *shape, const uint8_t *stream, uint32_t begin,
                 uint32_t end, const struct an_sketch_query *queries, uint32_t heads,
                 struct an_sketch_scores *scores)
{
    an_scan_heads(shape, stream, begin, end, queries, queries->tables, HEAD_TABLE_BYTES, heads,
                  scores);
}

const struct an_sketch_kernels an_sketch_avx512bf16 = {
    .isa = "avx512bf16",
    .costs = &an_sketch_costs_avx512bf16,
    .rotate = an_sketch_rotate_avx512,
    .encode = an_sketch_encode_avx512,
    .scan = scan,
    .combine = combine,
    .sum_u = sum_u,
    .draw = draw,
    .attend = an_sketch_attend_avx512,
};
