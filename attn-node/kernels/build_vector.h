/*
 * What an index build does with rows and codes, over vectors of 16 floats, as text for
 * build_avx2.c and build_avx512.c; build_scalar.c is the reference. All give the same bits: a
 * difference squared is exact in f64, and the sums have a fixed order (kernels.h).
 *
 * The sort scatters 16-bit ids over 2^k buckets: into memory that lies in no cache every store
 * would wait for its line, so it goes into a buffer of at most 128 KiB, which stays in the
 * second-level cache, and from there past the caches to where it belongs.
 * Bytes moved a call: every row; codes twice (the second time from a cache) and ids once.
 * Private to the kernels.
 */
#ifndef PIGPEN_ATTN_NODE_KERNELS_BUILD_VECTOR_H
#define PIGPEN_ATTN_NODE_KERNELS_BUILD_VECTOR_H

#include "attn-node/kernels/attend_vector.h"
#include "attn-node/kernels/tables.h"

typedef double an_vd __attribute__((vector_size(128)));

/* What the elements of a vector are multiplied by: int8 has a scale behind them. */
static inline float an_scale_of(const uint8_t *values, enum pp_dtype dtype, uint32_t dim)
{
    float scale = 1.0f;
    if (dtype == PP_I8) {
        memcpy(&scale, values + dim, sizeof(scale));
    }
    return scale;
}

/* 16 dimensions from `at` on as f32, zeros past dim. */
static inline an_vf an_widen_partly(const uint8_t *values, enum pp_dtype dtype, uint32_t at,
                                    uint32_t dim, float scale)
{
    uint64_t element_bytes = dtype == PP_F32 ? 4 : dtype == PP_I8 ? 1 : 2;
    an_vf wide;
    if (at + AN_LANES <= dim) {
        wide = an_widen(values + at * element_bytes, dtype);
    } else {
        _Alignas(64) uint8_t rest[64] = {0};
        memcpy(rest, values + at * element_bytes, (dim - at) * element_bytes);
        wide = an_widen(rest, dtype);
    }
    return dtype == PP_I8 ? wide * scale : wide;
}

/* Whole rows, though V is not wanted: every other 256 bytes come at half the pace. */
static inline void an_prefetch_ahead(const struct an_rows *rows, uint32_t row, uint32_t end)
{
    if (row + AN_PREFETCH_ROWS < end) {
        an_prefetch_row(rows->base + (row + AN_PREFETCH_ROWS) * rows->row_bytes, rows->row_bytes);
    }
}

static inline void an_sum_keys_body(const struct an_rows *rows, enum pp_dtype dtype, uint32_t begin,
                                    uint32_t end, double *sums)
{
    _Alignas(128) an_vd wide[PP_HEAD_DIM_MAX / AN_LANES] = {{0.0}};
    memcpy(wide, sums, rows->dim * sizeof(*sums));
    for (uint32_t row = begin; row < end; ++row) {
        const uint8_t *key = rows->base + row * rows->row_bytes;
        float scale = an_scale_of(key, dtype, rows->dim);
        an_prefetch_ahead(rows, row, end);
        for (uint32_t i = 0; i < rows->dim; i += AN_LANES) {
            an_vf values = an_widen_partly(key, dtype, i, rows->dim, scale);
            wide[i / AN_LANES] += __builtin_convertvector(values, an_vd);
        }
    }
    memcpy(sums, wide, rows->dim * sizeof(*sums));
}

/* The tree of kernels.h: lanes 8 apart, then 4, 2, 1. */
static inline double an_sum_wide(an_vd x)
{
    typedef double v8 __attribute__((vector_size(64)));
    typedef double v4 __attribute__((vector_size(32)));
    v8 eight = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    v4 four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
              __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
    return (four[0] + four[2]) + (four[1] + four[3]);
}

static inline void an_square_distances_body(const struct an_rows *rows, enum pp_dtype dtype,
                                            uint32_t begin, uint32_t end, const float *centre,
                                            double *squares_out)
{
    _Alignas(64) float padded[PP_HEAD_DIM_MAX] = {0.0f};
    memcpy(padded, centre, rows->dim * sizeof(*centre));
    for (uint32_t row = begin; row < end; ++row) {
        const uint8_t *key = rows->base + row * rows->row_bytes;
        float scale = an_scale_of(key, dtype, rows->dim);
        an_prefetch_ahead(rows, row, end);
        an_vd sums = {0.0};
        for (uint32_t i = 0; i < rows->dim; i += AN_LANES) {
            an_vf values = an_widen_partly(key, dtype, i, rows->dim, scale);
            an_vd difference = __builtin_convertvector(values - an_load(padded + i), an_vd);
            sums += difference * difference;
        }
        squares_out[row - begin] = an_sum_wide(sums);
    }
}

/* `count` values to where they belong, past the caches where whole lines are written. */
static inline void an_stream_ids(const uint16_t *from, uint32_t count, uint16_t *to)
{
    uint32_t first = (uint32_t)(-(uintptr_t)to % 64 / sizeof(*to));
    first = first < count ? first : count;
    memcpy(to, from, first * sizeof(*to));
    uint32_t at = first;
    for (; at + 32 <= count; at += 32) {
        an_vf line;
        memcpy(&line, from + at, sizeof(line));
        __builtin_nontemporal_store(line, (an_vf *)(void *)(to + at));
    }
    memcpy(to + at, from + at, (count - at) * sizeof(*to));
}

static inline void an_sort_codes_body(const uint16_t *codes, uint32_t count, uint32_t k,
                                      void *scratch, uint16_t *offsets, uint16_t *ids)
{
    uint16_t *buffer = scratch;
    uint16_t *cursors = an_sort_cursors(codes, count, k, scratch, offsets);
    for (uint32_t i = 0; i < count; ++i) {
        buffer[cursors[codes[i]]++] = (uint16_t)i;
    }
    an_stream_ids(buffer, count, ids);
}

/* The three kernels of one instruction set, each with the dtype as a constant. */
#define AN_DEFINE_BUILD(ISA)                                                                       \
    void an_sum_keys_##ISA(const struct an_rows *rows, uint32_t begin, uint32_t end, double *sums) \
    {                                                                                              \
        AN_BY_DTYPE(an_sum_keys_body, rows, begin, end, sums)                                      \
    }                                                                                              \
    void an_square_distances_##ISA(const struct an_rows *rows, uint32_t begin, uint32_t end,       \
                                   const float *centre, double *squares_out)                       \
    {                                                                                              \
        AN_BY_DTYPE(an_square_distances_body, rows, begin, end, centre, squares_out)               \
    }                                                                                              \
    void an_sort_codes_##ISA(const uint16_t *codes, uint32_t count, uint32_t k, void *scratch,     \
                             uint16_t *offsets, uint16_t *ids)                                     \
    {                                                                                              \
        an_sort_codes_body(codes, count, k, scratch, offsets, ids);                                \
    }

#define AN_BY_DTYPE(BODY, ROWS, ...)                                                               \
    switch ((ROWS)->dtype) {                                                                       \
    case PP_F32:                                                                                   \
        BODY(ROWS, PP_F32, __VA_ARGS__);                                                           \
        break;                                                                                     \
    case PP_F16:                                                                                   \
        BODY(ROWS, PP_F16, __VA_ARGS__);                                                           \
        break;                                                                                     \
    case PP_I8:                                                                                    \
        BODY(ROWS, PP_I8, __VA_ARGS__);                                                            \
        break;                                                                                     \
    default:                                                                                       \
        BODY(ROWS, PP_BF16, __VA_ARGS__);                                                          \
    }

#endif
