/*
 * A device that computes: memory, streams, events and a table of operations. `host` implements it
 * here with threads and oneDNN; a CUDA device implements the same table. The engine above is one.
 * On the walk: engine/step > ops > device. It refuses to know models, sequences and nodes.
 *
 * All pointers in operations are device memory (alloc, import), but for the ids and small structs
 * said to be the host's. Operations go to a stream, run in its order and are finished after
 * synchronize; on the host each is finished when its call returns. Host memory that an operation
 * reads may be reused when it returns; host memory that it writes is written then, but for
 * copy_out's, which is after synchronize, and pinned memory, which is the stream's until an event
 * behind the operation is done. The NULL stream is one of the device's own, and what
 * copy_in copies there is copied when it returns. Activations are f32, row-major, rows dense.
 * Shapes were checked by whoever loaded the model: the operations assert on them.
 *
 * Threads: one thread owns a device and all that was made from it. prepare sizes the scratch once;
 * after it no operation allocates. Errors: PP_MEMORY, PP_INTERNAL (the library below failed).
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_DEVICE_H
#define PIGPEN_GPU_WORKER_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/attn/hash.h"
#include "common/attn/shape.h"
#include "common/base/status.h"

/* How weights lie in memory: ids and layouts of GGUF. Blocks of 32 along the columns:
 * Q4_0 {f16 d, 16 bytes}: w[j] = d ((b[j] & 15) - 8), w[j + 16] = d ((b[j] >> 4) - 8);
 * Q4_1 {f16 d, f16 m, 16 bytes}: d q + m, same order; Q8_0 {f16 d, 32 int8}: d q. */
enum gw_weight_type {
    GW_WEIGHT_F32 = 0,
    GW_WEIGHT_F16 = 1,
    GW_WEIGHT_Q4_0 = 2,
    GW_WEIGHT_Q4_1 = 3,
    GW_WEIGHT_Q8_0 = 8,
    GW_WEIGHT_BF16 = 30,
};

/* A weight matrix [row][column], used as y = W x: rows are outputs, columns inputs. */
struct gw_matrix {
    enum gw_weight_type type;
    uint32_t rows;
    uint32_t columns; /* a multiple of 32 for the block types */
    const void *data;
};

/* Bytes of one row; 0 when the type is unknown or columns do not fill whole blocks. */
uint64_t gw_matrix_row_bytes(enum gw_weight_type type, uint32_t columns);

/* K/V rows of one layer: [token][kv head] vectors of a wire dtype (shape.h), tokens dense. */
struct gw_kv_rows {
    const void *k;
    const void *v;
    uint64_t count; /* tokens */
};

/* Heads of one layer's attention. */
struct gw_heads {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    float scale;
    enum pp_dtype kv_dtype;
};

/* Angles: cos and sin [position][head_dim / 2] f32, positions [0, position_count). */
struct gw_rope_table {
    const float *cosine;
    const float *sine;
    uint32_t position_count;
    bool interleaved; /* pairs (2i, 2i + 1); otherwise (i, i + dim / 2) */
};

/* How the next token is drawn of a row of logits: the law of draw.h. What its numbers come from:
 * gpu-worker/ops/sample.h. */
#define GW_SEEN_IN_PROMPT 0x80000000u
#define GW_DRAW_NONE      UINT32_MAX /* a logit is NaN or +inf, or all are -inf */
struct gw_draw {
    const float *logits; /* of ids [0, count), count > 0 */
    uint32_t *seen;      /* [count] how often ids were drawn, and GW_SEEN_IN_PROMPT: those have
                            penalties; the drawn one is counted. NULL: none */
    uint32_t count;
    uint32_t top_k; /* 0: all */
    uint64_t top_p; /* in 2^-64; 0: all */
    uint64_t weight_min;
    uint64_t random;
    double scale; /* 0: the likeliest */
    float repetition, presence, frequency;
};

/* The largest shapes that will be asked for: sizes the scratch. */
struct gw_device_limits {
    uint32_t columns_max; /* of any matrix */
    uint32_t rows_max;    /* activations rows of one call */
    struct gw_heads heads;
    uint64_t kv_tokens_max; /* of one attend */
    uint64_t view_bytes;    /* of one view; larger ones take memory when they are asked for */
};

/* Views that may be there at a time. */
#define GW_DEVICE_VIEWS 8u

struct gw_device;
struct gw_stream;
struct gw_event;
struct gw_graph;

struct gw_device_ops {
    const char *name;
    bool queues; /* operations run behind their calls; false: within them */
    void (*destroy)(struct gw_device *device);
    enum pp_status (*prepare)(struct gw_device *device, const struct gw_device_limits *limits);

    /* 64-byte aligned, contents undefined. */
    enum pp_status (*alloc)(struct gw_device *device, uint64_t bytes, void **memory_out);
    void (*free)(struct gw_device *device, void *memory);
    /* Host bytes that outlive the device, seen from the device: the host lends the pointer itself,
     * a GPU copies. Given back with release. */
    enum pp_status (*import)(struct gw_device *device, const void *data, uint64_t bytes,
                             const void **memory_out);
    void (*release)(struct gw_device *device, const void *memory);

    enum pp_status (*stream_new)(struct gw_device *device, struct gw_stream **stream_out);
    void (*stream_destroy)(struct gw_device *device, struct gw_stream *stream);
    enum pp_status (*synchronize)(struct gw_device *device, struct gw_stream *stream);
    enum pp_status (*event_new)(struct gw_device *device, struct gw_event **event_out);
    void (*event_destroy)(struct gw_device *device, struct gw_event *event);
    /* record marks a point of a stream; wait holds another stream back until it; done asks, and
     * synchronize returns when it is done. One that was never recorded is. */
    enum pp_status (*event_record)(struct gw_device *device, struct gw_event *event,
                                   struct gw_stream *stream);
    enum pp_status (*event_wait)(struct gw_device *device, struct gw_event *event,
                                 struct gw_stream *stream);
    bool (*event_done)(struct gw_device *device, struct gw_event *event);
    enum pp_status (*event_synchronize)(struct gw_device *device, struct gw_event *event);

    /* Host memory that copies run from and to by themselves, 64-byte aligned. It is freed when
     * nothing is pending on it. */
    enum pp_status (*pinned_alloc)(struct gw_device *device, uint64_t bytes, void **memory_out);
    void (*pinned_free)(struct gw_device *device, void *memory);
    enum pp_status (*pinned_in)(struct gw_device *device, struct gw_stream *stream, void *to,
                                const void *from_pinned, uint64_t bytes);
    enum pp_status (*pinned_out)(struct gw_device *device, struct gw_stream *stream,
                                 void *to_pinned, const void *from, uint64_t bytes);

    /* Copies between host and device or within the device; ranges of within may overlap. */
    enum pp_status (*copy_in)(struct gw_device *device, struct gw_stream *stream, void *to,
                              const void *from_host, uint64_t bytes);
    enum pp_status (*copy_out)(struct gw_device *device, struct gw_stream *stream, void *to_host,
                               const void *from, uint64_t bytes);
    enum pp_status (*copy_within)(struct gw_device *device, struct gw_stream *stream, void *to,
                                  const void *from, uint64_t bytes);
    /* Device bytes seen from the host, once an event behind it on the stream is done: the host
     * lends the pointer itself, a GPU copies. Valid until the next view of the same number (below
     * GW_DEVICE_VIEWS), which is asked for when this one is done. */
    enum pp_status (*view)(struct gw_device *device, struct gw_stream *stream, uint32_t which,
                           const void *from, uint64_t bytes, const void **host_out);

    /* out[i] = table row ids[i] (host memory), i < count. Ids are below table->rows. */
    enum pp_status (*embed)(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_matrix *table, const uint32_t *ids, uint32_t count,
                            float *out);
    /* out = x / sqrt(mean(x^2) + eps) * weight [width], a row at a time; out may be x. */
    enum pp_status (*rms_norm)(struct gw_device *device, struct gw_stream *stream, const float *x,
                               const float *weight, float epsilon, uint32_t rows, uint32_t width,
                               float *out);
    /* x += y, then out = the same of x: a residual and the norm behind it. out may be y, y not x.
     */
    enum pp_status (*add_rms_norm)(struct gw_device *device, struct gw_stream *stream,
                                   const float *y, const float *weight, float epsilon,
                                   uint32_t rows, uint32_t width, float *x, float *out);
    /* Rows of a batch by number, at (host memory) [count]: out row i = x row at[i]. Rows of width
     * f32; the two do not overlap. */
    enum pp_status (*gather_rows)(struct gw_device *device, struct gw_stream *stream,
                                  const float *x, const uint32_t *at, uint32_t count,
                                  uint32_t width, float *out);
    /* out [rows][matrix rows] = x [rows][columns] W^T, or += when `add`. out is not x. */
    enum pp_status (*linear)(struct gw_device *device, struct gw_stream *stream,
                             const struct gw_matrix *matrix, const float *x, uint32_t rows,
                             bool add, float *out);
    /* x [rows][width] += bias [width]. */
    enum pp_status (*add_bias)(struct gw_device *device, struct gw_stream *stream,
                               const float *bias, uint32_t rows, uint32_t width, float *x);
    /* Turns x [rows][heads][dim] in place; row r stands at position `position` + r. */
    enum pp_status (*rope)(struct gw_device *device, struct gw_stream *stream,
                           const struct gw_rope_table *table, uint64_t position, uint32_t rows,
                           uint32_t heads, uint32_t dim, float *x);
    /* out = silu(gate) * up, elementwise; out may be gate. */
    enum pp_status (*swiglu)(struct gw_device *device, struct gw_stream *stream, const float *gate,
                             const float *up, uint64_t count, float *out);
    /* count vectors of dim f32 to a wire dtype, half to even (pp_vectors_from_f32). */
    enum pp_status (*to_dtype)(struct gw_device *device, struct gw_stream *stream,
                               enum pp_dtype dtype, uint32_t dim, const float *values,
                               uint64_t count, void *out);
    /* The same of rows of a batch, [rows][count][dim], each to a place of its own: outs [rows]
     * (host memory, of places on the device); NULL: nowhere. */
    enum pp_status (*scatter_rows)(struct gw_device *device, struct gw_stream *stream,
                                   enum pp_dtype dtype, uint32_t dim, const float *values,
                                   uint32_t rows, uint32_t count, void *const *outs);

    /* Draws a token of each row: ids_out [rows] in host memory, GW_DRAW_NONE where there is none.
     * The same on every device. */
    enum pp_status (*draw)(struct gw_device *device, struct gw_stream *stream,
                           const struct gw_draw *draws, uint32_t rows, uint32_t *ids_out);

    /* Exact causal attention: q [rows][q head][dim] stands at tokens first .. first + rows - 1 of
     * kv, each row attends kv tokens [0, its own], first + rows <= kv->count. o like q; lse
     * [rows][q head] or NULL. */
    enum pp_status (*attend_causal)(struct gw_device *device, struct gw_stream *stream,
                                    const struct gw_heads *heads, const struct gw_kv_rows *kv,
                                    uint64_t first, const float *q, uint32_t rows, float *o,
                                    float *lse);
    /* The partial of every row and head over all tokens of the spans (in order, one set): o
     * [rows][q head][dim], lse [rows][q head]; the empty partial when the spans hold nothing. */
    enum pp_status (*attend_partial)(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const struct gw_kv_rows *spans,
                                     uint32_t span_count, const float *q, uint32_t rows, float *o,
                                     float *lse);
    /* Mean keys of count > 0 tokens of k: centre [kv head][dim] in host memory, summed in f64 in
     * order of the tokens, as nodes do. */
    enum pp_status (*centre_keys)(struct gw_device *device, struct gw_stream *stream,
                                  const struct gw_heads *heads, const void *k, uint64_t count,
                                  float *centre_out);
    /* Signatures (common/attn/hash.h) of count tokens of k around centre [kv head][dim]: codes
     * [token][kv head][l]. Centre and codes are host memory. */
    enum pp_status (*sign_keys)(struct gw_device *device, struct gw_stream *stream,
                                const struct gw_heads *heads, const struct pp_hash *hash,
                                uint32_t l, const void *k, uint64_t count, const float *centre,
                                uint16_t *codes_out);
    /* Sums of squares a dimension, added to sums [kv head][dim] in host memory: of q [rows][q
     * head][dim] over the heads of a group, and of count tokens of k around centre [kv head][dim]
     * (host memory). */
    enum pp_status (*query_squares)(struct gw_device *device, struct gw_stream *stream,
                                    const struct gw_heads *heads, const float *q, uint32_t rows,
                                    double *sums);
    enum pp_status (*key_squares)(struct gw_device *device, struct gw_stream *stream,
                                  const struct gw_heads *heads, const void *k, uint64_t count,
                                  const float *centre, double *sums);
    /* The merge law over two sets of partials: (o, lse) becomes the merge of it and the other. */
    enum pp_status (*merge)(struct gw_device *device, struct gw_stream *stream, uint32_t count,
                            uint32_t dim, const float *other_o, const float *other_lse, float *o,
                            float *lse);

    /* Operations that are started together. Between begin and end, one graph at a time, those of
     * the stream are noted and not started; end starts them in their order, to the same bits: in
     * one launch once the same kernels in the same order came before, whatever their values and
     * pointers are now. Whatever needs the host (copies but pinned ones, views, events, waiting,
     * results in host memory) cannot come in between: PP_FAILED_PRECONDITION. end, which every
     * begin has, drops what was noted and returns `failed` where that is not PP_OK. A graph that
     * cannot be made is an error. NULL, all four: the device has none. */
    enum pp_status (*graph_new)(struct gw_device *device, struct gw_graph **graph_out);
    void (*graph_destroy)(struct gw_device *device, struct gw_graph *graph);
    enum pp_status (*graph_begin)(struct gw_device *device, struct gw_graph *graph,
                                  struct gw_stream *stream);
    enum pp_status (*graph_end)(struct gw_device *device, struct gw_graph *graph,
                                enum pp_status failed);
};

struct gw_device {
    const struct gw_device_ops *ops;
};

/* The host as device, computing on `threads` threads (0: pp_team_threads_default). */
PP_MUST_USE enum pp_status gw_host_device_new(uint32_t threads, struct gw_device **device_out);

#endif
