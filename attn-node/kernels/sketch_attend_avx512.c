/*
 * Attend over the rows that a sketch drew with AVX-512: sixteen rows at a time, each loaded once
 * for up to four heads, while later rows are prefetched whole. Shapes: sketch.h. Mathematics:
 * sketch_scalar.c. Bytes moved a call: every drawn row once (from L2 for each further four heads).
 */
#include "attn-node/kernels/lanes_avx512.h"

#include <math.h>
#include <stddef.h>

#include "attn-node/kernels/sketch_tables.h"

#define TILE_HEADS    4u
#define SPAN_ROWS     256u /* between changes of tile: stays in L2 */
#define PREFETCH_ROWS 32u

struct tile {
    float q[TILE_HEADS * AN_Q_STRIDE] __attribute__((aligned(64)));
    float a[TILE_HEADS * AN_BLOCK] __attribute__((aligned(64))); /* scores, then e^(s-m)/u */
    float b[TILE_HEADS * AN_BLOCK] __attribute__((aligned(64))); /* (1-u) a^2 */
    float factors[TILE_HEADS]; /* what o is multiplied by before this block */
    struct an_accumulator *heads;
};

PP_INLINE void score_block(enum pp_dtype dtype, const uint32_t H, const uint8_t *const *rows,
                           const struct an_chunks *chunks, struct tile *tile)
{
    const uint32_t R = H == 1 ? 16 : H == 2 ? 8 : 4;
    for (uint32_t r = 0; r < AN_BLOCK; r += R) {
        an_store_dots(H, r, an_dots(dtype, H, R, rows + r, tile->q, chunks), tile->a);
    }
}

/* |v|^2 of sixteen rows; of int8 without the scale. */
PP_INLINE __m512 row_squares(enum pp_dtype dtype, const uint8_t *const *v,
                             const struct an_chunks *chunks)
{
    __m512 sums[AN_BLOCK];
    PP_UNROLL for (uint32_t r = 0; r < AN_BLOCK; ++r)
    {
        sums[r] = _mm512_setzero_ps();
        for (uint32_t c = 0; c < chunks->whole + (chunks->tail != 0); ++c) {
            __m512 a;
            __m512 b;
            if (c < chunks->whole) {
                an_load_chunk(dtype, v[r], c, &a, &b);
            } else {
                an_load_tail(dtype, v[r], chunks, &a, &b);
            }
            sums[r] = _mm512_fmadd_ps(a, a, _mm512_fmadd_ps(b, b, sums[r]));
        }
    }
    return an_sum_sixteen(sums);
}

/* Scores to weights, and what does not depend on a dimension into the sums. */
PP_INLINE void weigh_block(enum pp_dtype dtype, const uint32_t H, __mmask16 valid, __m512 u,
                           __m512 squares, struct an_block_scales scales, struct tile *tile)
{
    __m512 one = _mm512_set1_ps(1.0f);
    __m512 inverse = _mm512_div_ps(one, u);
    __m512 rest = _mm512_sub_ps(one, u);
    PP_UNROLL for (uint32_t h = 0; h < H; ++h)
    {
        struct an_accumulator *head = &tile->heads[h];
        __m512 scores = _mm512_load_ps(tile->a + h * AN_BLOCK);
        scores = dtype == PP_I8 ? _mm512_mul_ps(scores, scales.k) : scores;
        float m = _mm512_mask_reduce_max_ps(valid, scores);
        tile->factors[h] = 1.0f;
        if (m > head->m) {
            tile->factors[h] = pp_exp_neg(head->m - m);
            head->m = m;
        }
        float factor = tile->factors[h];
        __m512 a = an_exp_neg(_mm512_sub_ps(scores, _mm512_set1_ps(head->m)));
        a = _mm512_maskz_mul_ps(valid, a, inverse);
        __m512 b = _mm512_mul_ps(rest, _mm512_mul_ps(a, a));
        head->sum = head->sum * factor + _mm512_reduce_add_ps(a);
        head->b0 = head->b0 * factor * factor + _mm512_reduce_add_ps(b);
        head->b2 = head->b2 * factor * factor + _mm512_reduce_add_ps(_mm512_mul_ps(b, squares));
        _mm512_store_ps(tile->a + h * AN_BLOCK, dtype == PP_I8 ? _mm512_mul_ps(a, scales.v) : a);
        _mm512_store_ps(tile->b + h * AN_BLOCK, dtype == PP_I8 ? _mm512_mul_ps(b, scales.v) : b);
    }
}

/* N chunks of o and b1 from chunk c on. */
PP_INLINE void sum_chunks(enum pp_dtype dtype, const uint32_t H, const uint32_t N, bool tail,
                          const uint8_t *const *v, uint32_t count, const struct an_chunks *chunks,
                          uint32_t c, struct tile *tile)
{
    __m512 o[8];
    __m512 b1[8];
    __mmask16 lanes[2];
    uint32_t b_offset;
    an_chunk_lanes(chunks, c, &lanes[0], &lanes[1], &b_offset);
    PP_UNROLL for (uint32_t i = 0; i < 2 * H * N; ++i)
    {
        uint32_t h = i / (2 * N);
        uint32_t at = (c + i / 2 % N) * AN_CHUNK + i % 2 * b_offset;
        __m512 factor = _mm512_set1_ps(tile->factors[h]);
        o[i] = _mm512_mul_ps(factor, _mm512_maskz_loadu_ps(lanes[i % 2], tile->heads[h].o + at));
        b1[i] = _mm512_mul_ps(_mm512_mul_ps(factor, factor),
                              _mm512_maskz_loadu_ps(lanes[i % 2], tile->heads[h].b1 + at));
    }
    for (uint32_t r = 0; r < count; ++r) {
        __m512 values[8];
        PP_UNROLL for (uint32_t n = 0; n < N; ++n)
        {
            if (tail) {
                an_load_tail(dtype, v[r], chunks, &values[2 * n], &values[2 * n + 1]);
            } else {
                an_load_chunk(dtype, v[r], c + n, &values[2 * n], &values[2 * n + 1]);
            }
        }
        PP_UNROLL for (uint32_t i = 0; i < 2 * H * N; ++i)
        {
            uint32_t weight = i / (2 * N) * AN_BLOCK + r;
            o[i] = _mm512_fmadd_ps(values[i % (2 * N)], _mm512_set1_ps(tile->a[weight]), o[i]);
            b1[i] = _mm512_fmadd_ps(values[i % (2 * N)], _mm512_set1_ps(tile->b[weight]), b1[i]);
        }
    }
    PP_UNROLL for (uint32_t i = 0; i < 2 * H * N; ++i)
    {
        uint32_t h = i / (2 * N);
        uint32_t at = (c + i / 2 % N) * AN_CHUNK + i % 2 * b_offset;
        _mm512_mask_storeu_ps(tile->heads[h].o + at, lanes[i % 2], o[i]);
        _mm512_mask_storeu_ps(tile->heads[h].b1 + at, lanes[i % 2], b1[i]);
    }
}

static void prefetch_row(const struct an_rows *rows, uint32_t id)
{
    const char *row = (const char *)rows->base + id * rows->row_bytes;
    for (uint64_t byte = 0; byte < rows->row_bytes; byte += 64) {
        _mm_prefetch(row + byte, _MM_HINT_T1);
    }
}

/* ids[0..count) for a tile; ids up to `count + ahead` may be asked for. */
PP_INLINE void attend_tile(enum pp_dtype dtype, const uint32_t H, const struct an_rows *rows,
                           const uint16_t *ids, const uint16_t *thresholds, uint32_t count,
                           uint32_t ahead, struct tile *tile)
{
    const uint32_t N = H == 1 ? 4 : H == 2 ? 2 : 1;
    struct an_chunks chunks = an_chunks_of(dtype, rows->dim);
    for (uint32_t i = 0; i < count; i += AN_BLOCK) {
        uint32_t block = count - i < AN_BLOCK ? count - i : AN_BLOCK;
        const uint8_t *k[AN_BLOCK];
        const uint8_t *v[AN_BLOCK];
        for (uint32_t r = 0; r < AN_BLOCK; ++r) {
            uint32_t at = i + (r < block ? r : block - 1);
            k[r] = rows->base + ids[at] * rows->row_bytes;
            v[r] = k[r] + rows->v_offset;
            if (i + r + PREFETCH_ROWS < count + ahead) {
                prefetch_row(rows, ids[i + r + PREFETCH_ROWS]);
            }
        }
        __mmask16 valid = (__mmask16)((1u << block) - 1u);
        __m512i threshold = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, thresholds + i));
        __mmask16 certain = _mm512_testn_epi32_mask(threshold, threshold);
        threshold = _mm512_mask_mov_epi32(threshold, certain, _mm512_set1_epi32(65536));
        __m512 u = _mm512_mul_ps(_mm512_cvtepi32_ps(threshold), _mm512_set1_ps(0x1p-16f));
        score_block(dtype, H, k, &chunks, tile);
        struct an_block_scales scales = an_scales_of(dtype, k, rows);
        __m512 squares = row_squares(dtype, v, &chunks);
        if (dtype == PP_I8) {
            squares = _mm512_mul_ps(squares, _mm512_mul_ps(scales.v, scales.v));
        }
        weigh_block(dtype, H, valid, u, squares, scales, tile);
        uint32_t c = 0;
        for (; c + N <= chunks.whole; c += N) {
            sum_chunks(dtype, H, N, false, v, block, &chunks, c, tile);
        }
        for (; c < chunks.whole; ++c) {
            sum_chunks(dtype, H, 1, false, v, block, &chunks, c, tile);
        }
        if (chunks.tail != 0) {
            sum_chunks(dtype, H, 1, true, v, block, &chunks, c, tile);
        }
    }
}

#define DEFINE_TILE(NAME, DTYPE, H)                                                                \
    static void NAME(const struct an_rows *rows, const uint16_t *ids, const uint16_t *thresholds,  \
                     uint32_t count, uint32_t ahead, struct tile *tile)                            \
    {                                                                                              \
        attend_tile(DTYPE, H, rows, ids, thresholds, count, ahead, tile);                          \
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

typedef void (*tile_function)(const struct an_rows *, const uint16_t *, const uint16_t *, uint32_t,
                              uint32_t, struct tile *);
static const tile_function tile_functions[4][TILE_HEADS] = {
    {tile_bf16_1, tile_bf16_2, tile_bf16_3, tile_bf16_4},
    {tile_f16_1, tile_f16_2, tile_f16_3, tile_f16_4},
    {tile_f32_1, tile_f32_2, tile_f32_3, tile_f32_4},
    {tile_i8_1, tile_i8_2, tile_i8_3, tile_i8_4},
};

void an_sketch_attend_avx512(const struct an_rows *rows, const uint16_t *ids,
                             const uint16_t *thresholds, uint32_t count, const float *q,
                             uint32_t heads, struct an_accumulator *accumulators)
{
    for (uint32_t h = 0; h < heads; ++h) {
        an_spread(rows->dtype, rows->dim, accumulators[h].o, accumulators[h].o);
        an_spread(rows->dtype, rows->dim, accumulators[h].b1, accumulators[h].b1);
        accumulators[h].keys_read += count;
    }
    for (uint32_t i = 0; i < count && i < PREFETCH_ROWS; ++i) {
        prefetch_row(rows, ids[i]);
    }
    struct tile tile;
    for (uint32_t i = 0; i < count; i += SPAN_ROWS) {
        uint32_t span = count - i < SPAN_ROWS ? count - i : SPAN_ROWS;
        for (uint32_t first = 0; first < heads; first += TILE_HEADS) {
            uint32_t width = heads - first < TILE_HEADS ? heads - first : TILE_HEADS;
            for (uint32_t h = 0; h < width; ++h) {
                an_prepare_q(rows->dtype, rows->dim, q + (uint64_t)(first + h) * rows->dim,
                             tile.q + h * AN_Q_STRIDE);
            }
            tile.heads = accumulators + first;
            tile_functions[rows->dtype - PP_BF16][width - 1](
                rows, ids + i, thresholds + i, span, first == 0 ? count - i - span : 0, &tile);
        }
    }
    for (uint32_t h = 0; h < heads; ++h) {
        an_unspread(rows->dtype, rows->dim, accumulators[h].o);
        an_unspread(rows->dtype, rows->dim, accumulators[h].b1);
    }
}
