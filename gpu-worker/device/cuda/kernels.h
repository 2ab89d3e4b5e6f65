/*
 * What host and kernels share: the kernels by name and the arguments of each, passed by value. The
 * host's side of a launch fills one struct; the .cu file of the operation says what a block does.
 * Compiles as C and as CUDA. It refuses to know how a launch travels.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_KERNELS_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu-worker/device/draw.h"

/* X(kernel, kind of its arguments, threads a block, by which it is bounded). */
#define GW_CUDA_KERNELS(X)                                                                         \
    X(embed, embed, 128)                                                                           \
    X(rms_norm, rms_norm, 256)                                                                     \
    X(add_rms_norm, rms_norm, 256)                                                                 \
    X(gather_rows, gather_rows, 128)                                                               \
    X(scatter_rows, scatter_rows, 128)                                                             \
    X(add_bias, add_bias, 256)                                                                     \
    X(rope, rope, 128)                                                                             \
    X(swiglu, swiglu, 256)                                                                         \
    X(to_dtype, to_dtype, 256)                                                                     \
    X(draw, draw, GW_CUDA_DRAW_THREADS)                                                            \
    X(merge, merge, 128)                                                                           \
    GW_CUDA_GEMV_KERNELS(X, f32)                                                                   \
    GW_CUDA_GEMV_KERNELS(X, f16)                                                                   \
    GW_CUDA_GEMV_KERNELS(X, bf16)                                                                  \
    GW_CUDA_GEMV_KERNELS(X, q4_0)                                                                  \
    GW_CUDA_GEMV_KERNELS(X, q4_1)                                                                  \
    GW_CUDA_GEMV_KERNELS(X, q8_0)                                                                  \
    X(gemv_any, gemv, 256)                                                                         \
    X(largest, largest, 256)                                                                       \
    X(round, round, 256)                                                                           \
    X(dequantise, dequantise, 256)                                                                 \
    X(attend_split, attend_split, 256)                                                             \
    X(attend_pieces, attend_pieces, 128)                                                           \
    X(attend_causal_bf16_64, attend_causal, 128)                                                   \
    X(attend_causal_bf16_96, attend_causal, 128)                                                   \
    X(attend_causal_bf16_128, attend_causal, 128)                                                  \
    X(attend_causal_bf16_256, attend_causal, 128)                                                  \
    X(attend_causal_f16_64, attend_causal, 128)                                                    \
    X(attend_causal_f16_96, attend_causal, 128)                                                    \
    X(attend_causal_f16_128, attend_causal, 128)                                                   \
    X(attend_causal_f16_256, attend_causal, 128)                                                   \
    X(centre_keys, key_sums, 128)                                                                  \
    X(key_squares, key_sums, 128)                                                                  \
    X(query_squares, query_squares, 128)                                                           \
    X(sign_keys_64, sign_keys, 256)                                                                \
    X(sign_keys_128, sign_keys, 256)                                                               \
    X(sign_keys_256, sign_keys, 256)

/* One activation row and 1 or 4 outputs a warp; up to 4 activation rows and 2 outputs a warp. */
#define GW_CUDA_GEMV_KERNELS(X, type)                                                              \
    X(gemv_##type##_1x1, gemv, 256)                                                                \
    X(gemv_##type##_1x4, gemv, 256)                                                                \
    X(gemv_##type##_4x2, gemv, 256)

#define GW_CUDA_GEMV_ROWS    4u /* activation rows of a call */
#define GW_CUDA_SPANS_MAX    4u
#define GW_CUDA_SCATTER_ROWS 16u /* rows of a launch */
#define GW_CUDA_SPLIT_ROWS   8u  /* q rows of a block of attend_split */

#define GW_CUDA_DRAW_THREADS 512u
#define GW_CUDA_DRAWS        16u /* rows of a launch */

struct gw_cuda_draw_args {
    const struct gw_draw *draws; /* [grid.x] */
    uint32_t *ids;               /* [grid.x] */
};

struct gw_cuda_draw_shared {
    uint64_t bins[GW_DRAW_BINS];
    uint64_t sums[GW_CUDA_DRAW_THREADS / 32]; /* a warp */
    uint64_t before, equal;                   /* what the thread that found it tells all others */
    uint32_t found, count;
};

struct gw_cuda_embed_args {
    const void *table; /* [.][columns] of a gw_weight_type */
    const uint32_t *ids;
    float *out; /* [grid.x][columns] */
    uint64_t row_bytes;
    uint32_t type, columns;
};

struct gw_cuda_rms_norm_args {
    const float *x, *weight; /* [grid.x][width], [width] */
    const float *y;          /* [grid.x][width], of add_rms_norm: x += y first, at sum */
    float *sum;              /* x */
    float *out;              /* may be x, or y */
    float epsilon;
    uint32_t width;
};

/* out row i = from row at[i]; i: grid.x. */
struct gw_cuda_gather_rows_args {
    const float *from;
    const uint32_t *at;
    float *out;
    uint32_t width;
};

struct gw_cuda_add_bias_args {
    const float *bias; /* [width] */
    float *x;          /* [count / width][width] */
    uint64_t count;
    uint32_t width;
};

struct gw_cuda_rope_args {
    const float *cosine, *sine; /* [position][dim / 2] */
    float *x;                   /* [grid.x][heads][dim] */
    uint64_t position;          /* of row 0 */
    uint32_t heads, dim;
    bool interleaved;
};

struct gw_cuda_swiglu_args {
    const float *gate, *up; /* [count] */
    float *out;             /* may be gate */
    uint64_t count;
};

struct gw_cuda_to_dtype_args {
    const float *values; /* [count][dim] */
    void *out;           /* [count] vectors */
    uint64_t count;
    uint32_t dim, dtype;
};

/* A row a block, to where it goes; NULL: nowhere. */
struct gw_cuda_scatter_rows_args {
    const float *values;              /* [grid.x][count][dim] */
    void *outs[GW_CUDA_SCATTER_ROWS]; /* [grid.x] of [count] vectors */
    uint32_t count, dim, dtype;
};

/* (o, lse) becomes its merge with the other, a partial a block. */
struct gw_cuda_merge_args {
    const float *other_o, *other_lse; /* [grid.x][dim], [grid.x] */
    float *o, *lse;
    uint32_t dim;
};

/* out [x_rows][outputs] = x [x_rows][columns] W^T, W [outputs][columns] of the kernel's type. */
struct gw_cuda_gemv_args {
    const void *weights;
    const float *x;
    float *out;
    uint64_t row_bytes;
    uint32_t outputs, columns, x_rows;
    uint32_t type; /* for gemv_any */
    bool add;
};

/* The largest |value| as bits of an f32, by atomic maximum into *bits, which was 0. */
struct gw_cuda_largest_args {
    const float *values;
    uint32_t *bits;
    uint64_t count;
};

/* values [rows][columns] to 16-bit floats [rows][stride], what is beyond zero. f16: multiplied by
 * the power of two that brings the largest magnitude to [2^14, 2^15), whose inverse is written to
 * *back. low: what the rounding takes off, rounded. */
struct gw_cuda_round_args {
    const float *values;
    const uint32_t *largest_bits; /* NULL: bf16, as they are */
    float *back;
    uint16_t *out, *low; /* low: NULL: not wanted */
    uint64_t count;      /* rows * stride */
    uint32_t columns, stride;
};

/* weights [rows][columns] to 16-bit floats [rows][stride], columns beyond zero: bf16 from bf16, f16
 * from all others. low, of block types: what the rounding takes off, rounded. */
struct gw_cuda_dequantise_args {
    const void *weights;
    uint16_t *out, *low; /* low: NULL: not wanted */
    uint64_t row_bytes;
    uint32_t type, rows, columns, stride;
};

/* K/V rows of one layer, as struct gw_kv_rows; dense vectors of a wire dtype. */
struct gw_cuda_kv {
    const void *k, *v;
    uint64_t count;
};

/* Partials of q rows over tokens of the spans laid end to end. A block: a piece of the tokens
 * (grid.x), a kv head (grid.y), and GW_CUDA_SPLIT_ROWS of the rows * group q rows of that kv head
 * (grid.z), counted as row * group + head. */
struct gw_cuda_attend_split_args {
    struct gw_cuda_kv spans[GW_CUDA_SPANS_MAX];
    uint32_t span_count;
    uint32_t q_heads, kv_heads, dim, dtype, rows;
    float scale;
    uint64_t tokens, piece_tokens;
    uint64_t causal_first; /* row r sees tokens [0, causal_first + r]; UINT64_MAX: all */
    const float *q;        /* [rows][q head][dim] */
    float *o, *lse;        /* [piece][rows][q head][dim], [piece][rows][q head]; lse may be NULL */
};

/* The merge of pieces of attend_split in index order, a row and head a block. */
struct gw_cuda_attend_pieces_args {
    const float *piece_o, *piece_lse; /* [pieces][grid.x][dim], [pieces][grid.x] */
    float *o, *lse;                   /* [grid.x][dim], [grid.x] */
    uint32_t pieces, dim;
};

/* Causal attention by tensor cores. A block: 64 of the rows * group q rows of a kv head (grid.x,
 * the last ones first), counted as row * group + head; a kv head (grid.y). */
struct gw_cuda_attend_causal_args {
    struct gw_cuda_kv kv; /* of 16-bit floats, dim a multiple of 8 */
    uint32_t q_heads, kv_heads, dim, rows;
    float scale;
    uint64_t first; /* token that row 0 stands at */
    const float *q; /* [rows][q head][dim] */
    float *o, *lse; /* like q; [rows][q head] or NULL */
};

/* Sums over the tokens of k, in their order, a dimension of a kv head a thread. centre_keys: means
 * into means; key_squares: sums of squared distances from centre, added to squares. */
struct gw_cuda_key_sums_args {
    const void *k;
    uint64_t count;
    uint32_t kv_heads, dim, dtype;
    const float *centre; /* [kv head][dim] */
    float *means;
    double *squares;
};

struct gw_cuda_query_squares_args {
    const float *q; /* [rows][q head][dim] */
    uint32_t rows, q_heads, kv_heads, dim;
    double *squares; /* [kv head][dim] */
};

/* Signatures by the law of common/attn/hash.h, a token and kv head a warp at a time. */
struct gw_cuda_sign_keys_args {
    const void *k;
    uint64_t count; /* tokens */
    uint32_t kv_heads, dim, dtype;
    uint32_t table_bits, tables, blocks; /* k and l of the law, and its R */
    const float *centre;                 /* [kv head][dim] */
    const uint32_t *signs;               /* [3 + blocks][P / 32]: bit set: -1 */
    const uint16_t *source;              /* [tables * table_bits]: block * P + dimension */
    uint16_t *codes;                     /* [token][kv head][tables] */
};

enum gw_cuda_kernel {
#define GW_CUDA_KERNEL_ID(name, kind, threads) GW_CUDA_##name,
    GW_CUDA_KERNELS(GW_CUDA_KERNEL_ID)
#undef GW_CUDA_KERNEL_ID
        GW_CUDA_KERNEL_COUNT
};

#endif
