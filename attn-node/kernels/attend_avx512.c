/*
 * Exact attend over a run of rows with AVX-512: blocks of 16 rows, up to four heads a tile. Scores
 * by f32 fma with q in registers, one tree of sums for 16 of them; a running maximum that moves
 * rarely; then o += w v, a chunk of 32 dimensions at a time so that the sums stay in registers.
 * Shapes: kernels.h. Mathematics: attend_scalar.c. Bytes moved a call: every row once (from L2
 * again for each further tile of heads).
 */
#include "attn-node/kernels/lanes_avx512.h"

#include <math.h>
#include <stddef.h>

#include "attn-node/kernels/tables.h"

#define TILE_HEADS     4u
#define SPAN_ROWS      256u /* between changes of tile: stays in L2 */
#define PREFETCH_LINES 64u  /* how far ahead rows are asked for */

struct tile {
    float q[TILE_HEADS * AN_Q_STRIDE] __attribute__((aligned(64)));
    float weights[TILE_HEADS * AN_BLOCK] __attribute__((aligned(64))); /* scores, then e^(s-m) */
    float sums[TILE_HEADS * AN_BLOCK] __attribute__((aligned(64)));
    float factors[TILE_HEADS]; /* what o is multiplied by before this block */
    struct an_accumulator *heads;
};

/* Scores of a block into tile->weights; those of int8 lack K's scale. */
PP_INLINE void score_block(enum pp_dtype dtype, const uint32_t H, const uint8_t *const *rows,
                           const struct an_chunks *chunks, struct tile *tile)
{
    const uint32_t R = H == 1 ? 16 : H == 2 ? 8 : 4;
    for (uint32_t r = 0; r < AN_BLOCK; r += R) {
        an_store_dots(H, r, an_dots(dtype, H, R, rows + r, tile->q, chunks), tile->weights);
    }
}

/* Scores to weights, and the factor by which what was summed before shrinks. */
PP_INLINE void weigh_block(enum pp_dtype dtype, const uint32_t H, __mmask16 valid, uint32_t dim,
                           struct an_block_scales scales, struct tile *tile)
{
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        struct an_accumulator *head = &tile->heads[h];
        __m512 scores = _mm512_load_ps(tile->weights + h * AN_BLOCK);
        scores = dtype == PP_I8 ? _mm512_mul_ps(scores, scales.k) : scores;
        __m512 sums = _mm512_load_ps(tile->sums + h * AN_BLOCK);
        tile->factors[h] = 1.0f;
        __mmask16 above =
            _mm512_mask_cmp_ps_mask(valid, scores, _mm512_set1_ps(head->m), _CMP_GT_OQ);
        if (above != 0) {
            float m = _mm512_mask_reduce_max_ps(above, scores);
            float factor = pp_exp_neg(head->m - m);
            tile->factors[h] = factor;
            sums = _mm512_mul_ps(sums, _mm512_set1_ps(factor));
            for (uint32_t d = 0; d < dim && head->b1 != NULL; ++d) {
                head->b1[d] *= factor * factor;
            }
            head->b0 *= factor * factor;
            head->b2 *= factor * factor;
            head->m = m;
        }
        __m512 weights = an_exp_neg(_mm512_sub_ps(scores, _mm512_set1_ps(head->m)));
        weights = _mm512_maskz_mov_ps(valid, weights);
        _mm512_store_ps(tile->sums + h * AN_BLOCK, _mm512_add_ps(sums, weights));
        weights = dtype == PP_I8 ? _mm512_mul_ps(weights, scales.v) : weights;
        _mm512_store_ps(tile->weights + h * AN_BLOCK, weights);
    }
}

/* N chunks of o from chunk c on: o = factor o + sum of w v. */
PP_INLINE void sum_chunks(enum pp_dtype dtype, const uint32_t H, const uint32_t N, bool tail,
                          const uint8_t *const *rows, uint32_t v_offset,
                          const struct an_chunks *chunks, uint32_t c, struct tile *tile)
{
    __m512 a[16];
    __m512 b[16];
    __mmask16 lanes_a;
    __mmask16 lanes_b;
    uint32_t b_offset;
    an_chunk_lanes(chunks, c, &lanes_a, &lanes_b, &b_offset);
    PP_UNROLL for (uint32_t i = 0; i < H * N; ++i)
    {
        const float *o = tile->heads[i / N].o + (c + i % N) * AN_CHUNK;
        __m512 factor = _mm512_set1_ps(tile->factors[i / N]);
        a[i] = tail ? _mm512_maskz_loadu_ps(lanes_a, o) : _mm512_loadu_ps(o);
        b[i] = tail ? _mm512_maskz_loadu_ps(lanes_b, o + b_offset) : _mm512_loadu_ps(o + 16);
        a[i] = _mm512_mul_ps(a[i], factor);
        b[i] = _mm512_mul_ps(b[i], factor);
    }
    for (uint32_t r = 0; r < AN_BLOCK; ++r) {
        PP_UNROLL for (uint32_t n = 0; n < N; ++n)
        {
            __m512 va;
            __m512 vb;
            if (tail) {
                an_load_tail(dtype, rows[r] + v_offset, chunks, &va, &vb);
            } else {
                an_load_chunk(dtype, rows[r] + v_offset, c + n, &va, &vb);
            }
            PP_UNROLL for (uint32_t h = 0; h < H; ++h)
            {
                __m512 weight = _mm512_set1_ps(tile->weights[h * AN_BLOCK + r]);
                a[h * N + n] = _mm512_fmadd_ps(va, weight, a[h * N + n]);
                b[h * N + n] = _mm512_fmadd_ps(vb, weight, b[h * N + n]);
            }
        }
    }
    PP_UNROLL for (uint32_t i = 0; i < H * N; ++i)
    {
        float *o = tile->heads[i / N].o + (c + i % N) * AN_CHUNK;
        if (tail) {
            _mm512_mask_storeu_ps(o, lanes_a, a[i]);
            _mm512_mask_storeu_ps(o + b_offset, lanes_b, b[i]);
        } else {
            _mm512_storeu_ps(o, a[i]);
            _mm512_storeu_ps(o + 16, b[i]);
        }
    }
}

/* The rows [begin, end) for one tile of H heads. */
PP_INLINE void attend_tile(enum pp_dtype dtype, const uint32_t H, const struct an_rows *rows,
                           uint32_t begin, uint32_t end, bool prefetch, struct tile *tile)
{
    const uint32_t N = H == 1 ? 4 : H == 2 ? 2 : 1;
    struct an_chunks chunks = an_chunks_of(dtype, rows->dim);
    for (uint32_t i = begin; i < end; i += AN_BLOCK) {
        uint32_t count = end - i < AN_BLOCK ? end - i : AN_BLOCK;
        const uint8_t *block = rows->base + i * rows->row_bytes;
        const uint8_t *row[AN_BLOCK];
        for (uint32_t r = 0; r < AN_BLOCK; ++r) {
            row[r] = block + (r < count ? r : count - 1) * rows->row_bytes;
        }
        const char *ahead = (const char *)block + PREFETCH_LINES * 64;
        for (uint64_t at = 0; prefetch && at < AN_BLOCK * rows->row_bytes; at += 64) {
            _mm_prefetch(ahead + at, _MM_HINT_T1);
        }
        score_block(dtype, H, row, &chunks, tile);
        weigh_block(dtype, H, (__mmask16)((1u << count) - 1u), rows->dim,
                    an_scales_of(dtype, row, rows), tile);
        uint32_t c = 0;
        for (; c + N <= chunks.whole; c += N) {
            sum_chunks(dtype, H, N, false, row, rows->v_offset, &chunks, c, tile);
        }
        for (; c < chunks.whole; ++c) {
            sum_chunks(dtype, H, 1, false, row, rows->v_offset, &chunks, c, tile);
        }
        if (chunks.tail != 0) {
            sum_chunks(dtype, H, 1, true, row, rows->v_offset, &chunks, c, tile);
        }
    }
}

#define DEFINE_TILE(NAME, DTYPE, H)                                                                \
    static void NAME(const struct an_rows *rows, uint32_t begin, uint32_t end, bool prefetch,      \
                     struct tile *tile)                                                            \
    {                                                                                              \
        attend_tile(DTYPE, H, rows, begin, end, prefetch, tile);                                   \
    }
#define DEFINE_TILES(NAME, DTYPE)                                                                  \
    DEFINE_TILE(NAME##_1, DTYPE, 1)                                                                \
    DEFINE_TILE(NAME##_2, DTYPE, 2)                                                                \
    DEFINE_TILE(NAME##_3, DTYPE, 3)                                                                \
    DEFINE_TILE(NAME##_4, DTYPE, 4)
DEFINE_TILES(tile_bf16, PP_BF16)
DEFINE_TILES(tile_f16, PP_F16)
DEFINE_TILES(tile_f32, PP_F32)
DEFINE_TILES(tile_i8, PP_I8)

typedef void (*tile_function)(const struct an_rows *, uint32_t, uint32_t, bool, struct tile *);
static const tile_function tile_functions[4][TILE_HEADS] = {
    {tile_bf16_1, tile_bf16_2, tile_bf16_3, tile_bf16_4},
    {tile_f16_1, tile_f16_2, tile_f16_3, tile_f16_4},
    {tile_f32_1, tile_f32_2, tile_f32_3, tile_f32_4},
    {tile_i8_1, tile_i8_2, tile_i8_3, tile_i8_4},
};

static void attend_span(const struct an_rows *rows, uint32_t begin, uint32_t end, const float *q,
                        uint32_t heads, struct an_accumulator *accumulators)
{
    struct tile tile;
    for (uint32_t first = 0; first < heads; first += TILE_HEADS) {
        uint32_t count = heads - first < TILE_HEADS ? heads - first : TILE_HEADS;
        for (uint32_t h = 0; h < count; ++h) {
            an_prepare_q(rows->dtype, rows->dim, q + (uint64_t)(first + h) * rows->dim,
                         tile.q + h * AN_Q_STRIDE);
        }
        for (uint32_t i = 0; i < TILE_HEADS * AN_BLOCK; ++i) {
            tile.sums[i] = i % AN_BLOCK == 0 && i / AN_BLOCK < count
                               ? accumulators[first + i / AN_BLOCK].sum
                               : 0.0f;
        }
        tile.heads = accumulators + first;
        tile_functions[rows->dtype - PP_BF16][count - 1](rows, begin, end, first == 0, &tile);
        for (uint32_t h = 0; h < count; ++h) {
            accumulators[first + h].sum =
                _mm512_reduce_add_ps(_mm512_load_ps(tile.sums + h * AN_BLOCK));
            accumulators[first + h].keys_read += end - begin;
        }
    }
}

void an_attend_exact_avx512(const struct an_rows *rows, uint32_t begin, uint32_t end,
                            const float *q, uint32_t heads, struct an_accumulator *accumulators)
{
    if (begin >= end) {
        return;
    }
    for (uint32_t h = 0; h < heads; ++h) {
        an_spread(rows->dtype, rows->dim, accumulators[h].o, accumulators[h].o);
    }
    uint32_t span = heads <= TILE_HEADS ? end - begin : SPAN_ROWS;
    for (uint32_t i = begin; i < end; i += span) {
        span = end - i < span ? end - i : span;
        attend_span(rows, i, i + span, q, heads, accumulators);
    }
    for (uint32_t h = 0; h < heads; ++h) {
        an_unspread(rows->dtype, rows->dim, accumulators[h].o);
    }
}
