/*
 * Attend over chosen rows with AVX-512, for one query: scores of 16 rows at a time while later rows
 * are prefetched whole, then the weighted sums with their errors.
 * Shapes: kernels.h. Mathematics: attend_scalar.c. Bytes moved a call: every chosen row once.
 */
#include "attn-node/kernels/lanes_avx512.h"

#include <math.h>
#include <stddef.h>

#include "attn-node/kernels/tables.h"

#define PREFETCH_ROWS 32u /* ids ahead */

PP_INLINE void dots_body(enum pp_dtype dtype, const struct an_rows *rows, const uint16_t *ids,
                         uint32_t count, uint32_t ahead, const float *q, float *scores_out)
{
    _Alignas(64) float prepared[AN_Q_STRIDE];
    struct an_chunks chunks = an_chunks_of(dtype, rows->dim);
    an_prepare_q(dtype, rows->dim, q, prepared);
    for (uint32_t i = 0; i < count; i += AN_BLOCK) {
        const uint8_t *row[AN_BLOCK];
        for (uint32_t r = 0; r < AN_BLOCK; ++r) {
            uint32_t at = i + r < count ? i + r : count - 1;
            row[r] = rows->base + ids[at] * rows->row_bytes;
            uint32_t later = i + r + PREFETCH_ROWS;
            if (later < count + ahead) {
                const uint8_t *line = rows->base + ids[later] * rows->row_bytes;
                for (uint64_t byte = 0; byte < rows->row_bytes; byte += 64) {
                    _mm_prefetch((const char *)line + byte, _MM_HINT_T1);
                }
            }
        }
        uint32_t lanes = count - i < AN_BLOCK ? count - i : AN_BLOCK;
        __m512 dots = an_dots(dtype, 1, 16, row, prepared, &chunks);
        dots = dtype == PP_I8 ? _mm512_mul_ps(dots, an_scales(row, rows->dim)) : dots;
        _mm512_mask_storeu_ps(scores_out + i, (__mmask16)((1u << lanes) - 1u), dots);
    }
}

static void score_gather(const struct an_rows *rows, const uint16_t *ids, uint32_t count,
                         uint32_t ahead, const float *q, float *scores_out)
{
    switch (rows->dtype) {
    case PP_BF16:
        dots_body(PP_BF16, rows, ids, count, ahead, q, scores_out);
        break;
    case PP_F16:
        dots_body(PP_F16, rows, ids, count, ahead, q, scores_out);
        break;
    case PP_I8:
        dots_body(PP_I8, rows, ids, count, ahead, q, scores_out);
        break;
    default:
        dots_body(PP_F32, rows, ids, count, ahead, q, scores_out);
        break;
    }
}

/* A block's weights a = e^(t-m) and b = (1-u) a^2; factor shrinks what was summed before. */
struct weighted {
    float a[AN_BLOCK] __attribute__((aligned(64)));
    float b[AN_BLOCK] __attribute__((aligned(64)));
    float factor;
};

PP_INLINE void weigh(const float *scores, const float *log_u, uint32_t count,
                     struct an_accumulator *accumulator, struct weighted *weighted)
{
    __mmask16 valid = (__mmask16)((1u << count) - 1u);
    __m512 shift = log_u != NULL ? _mm512_maskz_loadu_ps(valid, log_u) : _mm512_setzero_ps();
    __m512 shifted = _mm512_sub_ps(_mm512_maskz_loadu_ps(valid, scores), shift);
    float m_block = _mm512_mask_reduce_max_ps(valid, shifted);
    weighted->factor = 1.0f;
    if (m_block > accumulator->m) {
        weighted->factor = pp_exp_neg(accumulator->m - m_block);
        accumulator->m = m_block;
    }
    float factor = weighted->factor;
    __m512 a = an_exp_neg(_mm512_sub_ps(shifted, _mm512_set1_ps(accumulator->m)));
    a = _mm512_maskz_mov_ps(valid, a);
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 b = _mm512_mul_ps(_mm512_sub_ps(one, an_exp_neg(shift)), _mm512_mul_ps(a, a));
    _mm512_store_ps(weighted->a, a);
    _mm512_store_ps(weighted->b, b);
    accumulator->sum = accumulator->sum * factor + _mm512_reduce_add_ps(a);
    if (accumulator->b1 != NULL) {
        accumulator->b0 = accumulator->b0 * factor * factor + _mm512_reduce_add_ps(b);
        accumulator->b2 *= factor * factor;
    }
}

/* N chunks of o (and, with errors, of b1; then returns their part of b2). */
PP_INLINE __m512 sum_chunks(enum pp_dtype dtype, const uint32_t N, bool tail, bool errors,
                            const uint8_t *const *rows, uint32_t count, uint32_t dim,
                            const struct an_chunks *chunks, uint32_t c,
                            const struct weighted *weighted, float *o, float *b1)
{
    __m512 sum[8];
    __m512 error[8];
    __m512 square = _mm512_setzero_ps();
    __mmask16 lanes[2];
    uint32_t b_offset;
    an_chunk_lanes(chunks, c, &lanes[0], &lanes[1], &b_offset);
    __m512 factor = _mm512_set1_ps(weighted->factor);
    PP_UNROLL for (uint32_t i = 0; i < 2 * N; ++i)
    {
        uint32_t at = (c + i / 2) * AN_CHUNK + i % 2 * b_offset;
        sum[i] = _mm512_mul_ps(factor, _mm512_maskz_loadu_ps(lanes[i % 2], o + at));
        if (errors) {
            __m512 old = _mm512_maskz_loadu_ps(lanes[i % 2], b1 + at);
            error[i] = _mm512_mul_ps(_mm512_mul_ps(factor, factor), old);
        }
    }
    for (uint32_t r = 0; r < count; ++r) {
        __m512 a = _mm512_set1_ps(weighted->a[r]);
        __m512 b = _mm512_set1_ps(weighted->b[r]);
        __m512 v[8];
        PP_UNROLL for (uint32_t n = 0; n < N; ++n)
        {
            if (tail) {
                an_load_tail(dtype, rows[r], chunks, &v[2 * n], &v[2 * n + 1]);
            } else {
                an_load_chunk(dtype, rows[r], c + n, &v[2 * n], &v[2 * n + 1]);
            }
        }
        __m512 scale = _mm512_set1_ps(1.0f);
        if (dtype == PP_I8) {
            scale = _mm512_broadcastss_ps(_mm_castsi128_ps(_mm_loadu_si32(rows[r] + dim)));
        }
        PP_UNROLL for (uint32_t i = 0; i < 2 * N; ++i)
        {
            v[i] = dtype == PP_I8 ? _mm512_mul_ps(v[i], scale) : v[i];
            sum[i] = _mm512_fmadd_ps(a, v[i], sum[i]);
            if (errors) {
                __m512 weighed = _mm512_mul_ps(b, v[i]);
                error[i] = _mm512_add_ps(error[i], weighed);
                square = _mm512_fmadd_ps(weighed, v[i], square);
            }
        }
    }
    PP_UNROLL for (uint32_t i = 0; i < 2 * N; ++i)
    {
        uint32_t at = (c + i / 2) * AN_CHUNK + i % 2 * b_offset;
        _mm512_mask_storeu_ps(o + at, lanes[i % 2], sum[i]);
        if (errors) {
            _mm512_mask_storeu_ps(b1 + at, lanes[i % 2], error[i]);
        }
    }
    return square;
}

PP_INLINE void scored_body(enum pp_dtype dtype, bool errors, const struct an_rows *rows,
                           const uint16_t *ids, const float *scores, const float *log_u,
                           uint32_t count, struct an_accumulator *accumulator)
{
    struct an_chunks chunks = an_chunks_of(dtype, rows->dim);
    float *o = accumulator->o;
    float *b1 = accumulator->b1;
    for (uint32_t i = 0; i < count; i += AN_BLOCK) {
        struct weighted weighted;
        uint32_t lanes = count - i < AN_BLOCK ? count - i : AN_BLOCK;
        const uint8_t *row[AN_BLOCK];
        for (uint32_t r = 0; r < lanes; ++r) {
            row[r] = rows->base + ids[i + r] * rows->row_bytes + rows->v_offset;
        }
        weigh(scores + i, log_u == NULL ? NULL : log_u + i, lanes, accumulator, &weighted);
        __m512 square = _mm512_setzero_ps();
        uint32_t c = 0;
        for (; c + 2 <= chunks.whole; c += 2) {
            square = _mm512_add_ps(square, sum_chunks(dtype, 2, false, errors, row, lanes,
                                                      rows->dim, &chunks, c, &weighted, o, b1));
        }
        for (; c < chunks.whole; ++c) {
            square = _mm512_add_ps(square, sum_chunks(dtype, 1, false, errors, row, lanes,
                                                      rows->dim, &chunks, c, &weighted, o, b1));
        }
        if (chunks.tail != 0) {
            square = _mm512_add_ps(square, sum_chunks(dtype, 1, true, errors, row, lanes, rows->dim,
                                                      &chunks, c, &weighted, o, b1));
        }
        if (errors) {
            accumulator->b2 += _mm512_reduce_add_ps(square);
        }
    }
}

/* Sums over rows whose o and b1 are in chunk order already. */
static void attend_spread(const struct an_rows *rows, const uint16_t *ids, const float *scores,
                          const float *log_u, uint32_t count, struct an_accumulator *accumulator)
{
    bool errors = accumulator->b1 != NULL;
    switch (rows->dtype * 2 + errors) {
    case PP_BF16 * 2:
        scored_body(PP_BF16, false, rows, ids, scores, log_u, count, accumulator);
        break;
    case PP_BF16 * 2 + 1:
        scored_body(PP_BF16, true, rows, ids, scores, log_u, count, accumulator);
        break;
    case PP_F16 * 2:
        scored_body(PP_F16, false, rows, ids, scores, log_u, count, accumulator);
        break;
    case PP_F16 * 2 + 1:
        scored_body(PP_F16, true, rows, ids, scores, log_u, count, accumulator);
        break;
    case PP_I8 * 2:
        scored_body(PP_I8, false, rows, ids, scores, log_u, count, accumulator);
        break;
    case PP_I8 * 2 + 1:
        scored_body(PP_I8, true, rows, ids, scores, log_u, count, accumulator);
        break;
    case PP_F32 * 2:
        scored_body(PP_F32, false, rows, ids, scores, log_u, count, accumulator);
        break;
    default:
        scored_body(PP_F32, true, rows, ids, scores, log_u, count, accumulator);
        break;
    }
    accumulator->keys_read += count;
}

static void spread_sums(const struct an_rows *rows, struct an_accumulator *accumulator)
{
    an_spread(rows->dtype, rows->dim, accumulator->o, accumulator->o);
    if (accumulator->b1 != NULL) {
        an_spread(rows->dtype, rows->dim, accumulator->b1, accumulator->b1);
    }
}

static void unspread_sums(const struct an_rows *rows, struct an_accumulator *accumulator)
{
    an_unspread(rows->dtype, rows->dim, accumulator->o);
    if (accumulator->b1 != NULL) {
        an_unspread(rows->dtype, rows->dim, accumulator->b1);
    }
}

static void attend_gather(const struct an_rows *rows, const uint16_t *ids, const float *scores,
                          const float *log_u, uint32_t count, struct an_accumulator *accumulator)
{
    spread_sums(rows, accumulator);
    attend_spread(rows, ids, scores, log_u, count, accumulator);
    unspread_sums(rows, accumulator);
}

const struct an_kernels an_kernels_avx512 = {
    .isa = "avx512",
    .costs = &an_costs_avx512,
    .attend_exact = an_attend_exact_avx512,
    .score_gather = score_gather,
    .attend_gather = attend_gather,
    .sum_keys = an_sum_keys_avx512,
    .square_distances = an_square_distances_avx512,
    .sort_codes = an_sort_codes_avx512,
};
