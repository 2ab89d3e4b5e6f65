/*
 * Inside the host device: its state and the operations of its other files. Nothing outside this
 * folder includes it, but for tests that look at one instruction set.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_HOST_H
#define PIGPEN_GPU_WORKER_DEVICE_HOST_H

#include <stdint.h>

#include "gpu-worker/device/device.h"
#include "gpu-worker/device/host_kernels.h"

/* Activation rows up to this go through dot products on quantised rows; more through a tile made
 * f32 and a GEMM. */
#define GW_HOST_DOT_ROWS_MAX 6u
/* Weight rows a tile (GEMM) and a piece of work (dot products). Fixed, so that results do not
 * depend on the number of threads. */
#define GW_HOST_TILE_ROWS 64u
#define GW_HOST_DOT_ROWS  32u
/* Tokens a piece of a partial: reductions run over these, merged in index order (law 8). */
#define GW_HOST_TOKEN_BLOCK 1024u
/* Weights or K/V values below which a call stays on the caller's thread: waking others costs more,
 * above all where other programs want the cores. */
#define GW_HOST_TEAM_VALUES_MIN (1u << 20)

struct gw_host_device {
    struct gw_device device; /* first: a gw_device is a gw_host_device */
    const struct gw_host_kernels *kernels;
    uint32_t threads;
    struct gw_device_limits limits;
    /* Scratch, from prepare. */
    float *scratch; /* [threads][thread_floats] */
    uint64_t thread_floats;
    float *sums;   /* [GW_HOST_DOT_ROWS_MAX][columns_max / 32] */
    float *pieces; /* partials of pieces: [piece][row][head_dim + 2] */
    uint64_t piece_count_max;
};

static inline struct gw_host_device *gw_host_device(struct gw_device *device)
{
    return (struct gw_host_device *)device;
}

/* floats a thread needs for the limits; in host_linear.c and host_attend.c. */
uint64_t gw_host_linear_floats(const struct gw_device_limits *limits);
uint64_t gw_host_attend_floats(const struct gw_device_limits *limits);

enum pp_status gw_host_linear(struct gw_device *device, struct gw_stream *stream,
                              const struct gw_matrix *matrix, const float *x, uint32_t rows,
                              bool add, float *out);
enum pp_status gw_host_embed(struct gw_device *device, struct gw_stream *stream,
                             const struct gw_matrix *table, const uint32_t *ids, uint32_t count,
                             float *out);
enum pp_status gw_host_rms_norm(struct gw_device *device, struct gw_stream *stream, const float *x,
                                const float *weight, float epsilon, uint32_t rows, uint32_t width,
                                float *out);
enum pp_status gw_host_add_rms_norm(struct gw_device *device, struct gw_stream *stream,
                                    const float *y, const float *weight, float epsilon,
                                    uint32_t rows, uint32_t width, float *x, float *out);
enum pp_status gw_host_gather_rows(struct gw_device *device, struct gw_stream *stream,
                                   const float *x, const uint32_t *at, uint32_t count,
                                   uint32_t width, float *out);
enum pp_status gw_host_scatter_rows(struct gw_device *device, struct gw_stream *stream,
                                    enum pp_dtype dtype, uint32_t dim, const float *values,
                                    uint32_t rows, uint32_t count, void *const *outs);
enum pp_status gw_host_add_bias(struct gw_device *device, struct gw_stream *stream,
                                const float *bias, uint32_t rows, uint32_t width, float *x);
enum pp_status gw_host_rope(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_rope_table *table, uint64_t position, uint32_t rows,
                            uint32_t heads, uint32_t dim, float *x);
enum pp_status gw_host_swiglu(struct gw_device *device, struct gw_stream *stream, const float *gate,
                              const float *up, uint64_t count, float *out);
enum pp_status gw_host_centre_keys(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   float *centre_out);
enum pp_status gw_host_sign_keys(struct gw_device *device, struct gw_stream *stream,
                                 const struct gw_heads *heads, const struct pp_hash *hash,
                                 uint32_t l, const void *k, uint64_t count, const float *centre,
                                 uint16_t *codes_out);
enum pp_status gw_host_query_squares(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const float *q, uint32_t rows,
                                     double *sums);
enum pp_status gw_host_key_squares(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   const float *centre, double *sums);
enum pp_status gw_host_to_dtype(struct gw_device *device, struct gw_stream *stream,
                                enum pp_dtype dtype, uint32_t dim, const float *values,
                                uint64_t count, void *out);
enum pp_status gw_host_draw(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_draw *draws, uint32_t rows, uint32_t *ids_out);
enum pp_status gw_host_attend_causal(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const struct gw_kv_rows *kv,
                                     uint64_t first, const float *q, uint32_t rows, float *o,
                                     float *lse);
enum pp_status gw_host_attend_partial(struct gw_device *device, struct gw_stream *stream,
                                      const struct gw_heads *heads, const struct gw_kv_rows *spans,
                                      uint32_t span_count, const float *q, uint32_t rows, float *o,
                                      float *lse);
enum pp_status gw_host_merge(struct gw_device *device, struct gw_stream *stream, uint32_t count,
                             uint32_t dim, const float *other_o, const float *other_lse, float *o,
                             float *lse);

#endif
