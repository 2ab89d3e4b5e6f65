/*
 * Inside the CUDA device: its state and the operations of its other files. Nothing outside this
 * folder includes it.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_INTERNAL_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_INTERNAL_H

#include "gpu-worker/device/cuda/device_cuda.h"
#include "gpu-worker/device/cuda/kernels.h"

/* Tokens a piece of a partial: reductions run over these, merged in index order (law 8). */
#define GW_CUDA_PIECE_TOKENS 256u
/* Products of up to so many rows of activations with quantised weights are as exact as f32 ones. */
#define GW_CUDA_EXACT_ROWS 64u
/* Rows of one attend_partial. */
#define GW_CUDA_PARTIAL_ROWS 6u
/* Weights made 16-bit at once, codes of keys signed at once, and what products may use beside. */
#define GW_CUDA_TILE_BYTES      (64u << 20)
#define GW_CUDA_CODES_BYTES     (4u << 20)
#define GW_CUDA_WORKSPACE_BYTES (32u << 20)
/* Pinned slots, so that copies of the sizes of a step wait for nothing. */
#define GW_CUDA_SLOTS      8u
#define GW_CUDA_SLOT_BYTES (256u << 10)
#define GW_CUDA_HASHES_MAX 4u
#define GW_CUDA_ARGS_BYTES 256u /* of a kernel, at most */

/* Device memory that was taken; free blocks are kept for the next of about their size. */
struct gw_cuda_block {
    gw_cuda_pointer pointer;
    uint64_t bytes;
    bool used;
};

/* A pinned slot: free when its event was reached. Of copies out, where its bytes go then. */
struct gw_cuda_slot {
    uint8_t *memory;
    struct CUevent_st *event;
    struct CUstream_st *stream; /* copies out: of the one pending */
    void *to_host;              /* NULL: nothing is pending */
    uint64_t bytes;
};

/* Pinned memory of a view and what was copied there last. */
struct gw_cuda_view {
    void *memory;
    uint64_t bytes;
    struct CUevent_st *event; /* behind the copy */
};

/* A launch: blocks, threads along x, and bytes of shared memory. */
struct gw_cuda_shape {
    uint32_t grid_x, grid_y, grid_z, threads, shared_bytes;
};

/* What goes to a stream: started there, or noted for a graph. */
enum gw_cuda_kind {
    GW_CUDA_LAUNCHES,
    GW_CUDA_FILLS,
    GW_CUDA_COPIES_WITHIN,
    GW_CUDA_COPIES_IN, /* pinned memory */
    GW_CUDA_COPIES_OUT,
    GW_CUDA_MULTIPLIES,
};

struct gw_cuda_work {
    enum gw_cuda_kind kind;
    enum gw_cuda_kernel kernel; /* GW_CUDA_LAUNCHES, with shape and args */
    struct gw_cuda_shape shape;
    uint32_t args_bytes;
    gw_cuda_pointer to, from; /* GW_CUDA_FILLS and copies */
    uint64_t bytes;
    uint32_t value;                 /* GW_CUDA_FILLS */
    struct gw_cuda_product product; /* GW_CUDA_MULTIPLIES */
    _Alignas(16) uint8_t args[GW_CUDA_ARGS_BYTES];
};

struct gw_cuda_notes {
    struct gw_cuda_work *works; /* [capacity] */
    uint32_t count, capacity;
};

/* Since the device was opened. */
struct gw_cuda_graph_counts {
    uint64_t started; /* operations that no graph held yet: started one by one */
    uint64_t captured, launched, updated; /* graphs, their launches, nodes that changed */
};

/* Tables of a hash on the device, by what determines them. */
struct gw_cuda_hash {
    uint64_t seed;
    uint32_t dim, k, l;
    uint32_t size, blocks;
    gw_cuda_pointer signs, source; /* 0: a free entry */
};

/* Numbers on the device that products and their preparation use. */
struct gw_cuda_scalars {
    float zero, one, factor;
    uint32_t largest_bits;
};

struct gw_cuda_device {
    struct gw_device device; /* first: a gw_device is a gw_cuda_device */
    const struct gw_cuda_driver *driver;
    const struct gw_cuda_gemm_ops *gemm_ops;
    struct gw_cuda_gemm *gemm;
    int handle; /* of the GPU */
    bool retained;
    uint32_t processors;
    struct CUmod_st *modules[GW_CUDA_IMAGES_MAX];
    struct CUfunc_st *functions[GW_CUDA_KERNEL_COUNT];
    uint32_t function_shared[GW_CUDA_KERNEL_COUNT]; /* bytes that a function was allowed */

    struct CUstream_st *stream; /* where the engine names none */
    struct gw_cuda_block *blocks;
    uint32_t block_count, block_capacity;
    struct gw_cuda_slot in[GW_CUDA_SLOTS], out[GW_CUDA_SLOTS];
    uint32_t in_next, out_next;
    struct gw_cuda_view views[GW_DEVICE_VIEWS];
    struct gw_cuda_hash hashes[GW_CUDA_HASHES_MAX];
    uint32_t hash_next;
    struct gw_cuda_notes notes;   /* of the operations between begin and end of a graph */
    struct CUstream_st *noted_on; /* NULL: operations are started as they come */
    struct gw_cuda_graph_counts graph_counts;

    /* Scratch, from prepare. */
    struct gw_device_limits limits;
    struct gw_cuda_scalars *scalars;
    uint16_t *halves;           /* [2][rows_max][columns_max] activations, high and low */
    uint16_t *tile;             /* GW_CUDA_TILE_BYTES of weights */
    uint32_t *ids;              /* [rows_max] */
    struct gw_draw *draws;      /* [GW_CUDA_DRAWS] */
    float *piece_o, *piece_lse; /* [piece][row][q head][dim], [piece][row][q head] */
    float *centre;              /* [kv head][dim] */
    double *squares;            /* [kv head][dim] */
    uint16_t *codes;            /* GW_CUDA_CODES_BYTES */
    void *workspace;
    uint64_t piece_count_max;
};

static inline struct gw_cuda_device *gw_cuda_device(struct gw_device *device)
{
    return (struct gw_cuda_device *)device;
}

/* A stream of the table; NULL is the device's own. */
static inline struct CUstream_st *gw_cuda_stream(struct gw_cuda_device *cuda,
                                                 struct gw_stream *stream)
{
    return stream == NULL ? cuda->stream : (struct CUstream_st *)stream;
}

static inline gw_cuda_pointer gw_cuda_pointer_of(const void *memory)
{
    return (gw_cuda_pointer)(uintptr_t)memory;
}

/* Looks the kernels up in the images. PP_UNAVAILABLE with what is missing. */
PP_MUST_USE enum pp_status gw_cuda_kernels_load(struct gw_cuda_device *cuda,
                                                const struct gw_cuda_images *images,
                                                char *error_out, size_t error_bytes);
void gw_cuda_kernels_unload(struct gw_cuda_device *cuda);
/* The one way to a stream: starts the work, or notes it while the stream is noted. */
PP_MUST_USE enum pp_status gw_cuda_give(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                        const struct gw_cuda_work *work);
/* Starts it whatever is noted. */
PP_MUST_USE enum pp_status gw_cuda_start(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                         const struct gw_cuda_work *work);
/* Lets a kernel have so many bytes of shared memory. */
PP_MUST_USE enum pp_status gw_cuda_allow(struct gw_cuda_device *cuda, enum gw_cuda_kernel kernel,
                                         uint32_t shared_bytes);
PP_MUST_USE enum pp_status gw_cuda_launch_kernel(struct gw_cuda_device *cuda,
                                                 struct CUstream_st *stream,
                                                 enum gw_cuda_kernel kernel,
                                                 const struct gw_cuda_shape *shape,
                                                 const void *args, size_t args_bytes);
/* The one way to start a kernel; args: its struct of kernels.h. */
#define GW_CUDA_LAUNCH(cuda, stream, kernel, shape, args)                                          \
    gw_cuda_launch_kernel(cuda, stream, kernel, shape, args, sizeof(*(args)))
/* Blocks of `threads` that stride over `count` things, no more than keep the GPU full. */
struct gw_cuda_shape gw_cuda_striding(const struct gw_cuda_device *cuda, uint64_t count,
                                      uint32_t threads);

/* graph.c */
enum pp_status gw_cuda_graph_new(struct gw_device *device, struct gw_graph **graph_out);
void gw_cuda_graph_destroy(struct gw_device *device, struct gw_graph *graph);
enum pp_status gw_cuda_graph_begin(struct gw_device *device, struct gw_graph *graph,
                                   struct gw_stream *stream);
enum pp_status gw_cuda_graph_end(struct gw_device *device, struct gw_graph *graph,
                                 enum pp_status failed);
/* PP_MEMORY. */
PP_MUST_USE enum pp_status gw_cuda_note(struct gw_cuda_device *cuda,
                                        const struct gw_cuda_work *work);
/* PP_FAILED_PRECONDITION while the stream is noted: what needs the host cannot be in a graph. */
PP_MUST_USE enum pp_status gw_cuda_needs_host(const struct gw_cuda_device *cuda,
                                              struct CUstream_st *stream, const char *what);

/* memory.c */
enum pp_status gw_cuda_alloc(struct gw_device *device, uint64_t bytes, void **memory_out);
void gw_cuda_free(struct gw_device *device, void *memory);
enum pp_status gw_cuda_import(struct gw_device *device, const void *data, uint64_t bytes,
                              const void **memory_out);
void gw_cuda_release(struct gw_device *device, const void *memory);
void gw_cuda_blocks_deinit(struct gw_cuda_device *cuda);

/* copies.c */
PP_MUST_USE enum pp_status gw_cuda_slots_init(struct gw_cuda_device *cuda);
void gw_cuda_slots_deinit(struct gw_cuda_device *cuda);
/* Room for views of so many bytes. */
PP_MUST_USE enum pp_status gw_cuda_views_reserve(struct gw_cuda_device *cuda, uint64_t bytes);
enum pp_status gw_cuda_pinned_alloc(struct gw_device *device, uint64_t bytes, void **memory_out);
void gw_cuda_pinned_free(struct gw_device *device, void *memory);
enum pp_status gw_cuda_pinned_in(struct gw_device *device, struct gw_stream *stream, void *to,
                                 const void *from_pinned, uint64_t bytes);
enum pp_status gw_cuda_pinned_out(struct gw_device *device, struct gw_stream *stream,
                                  void *to_pinned, const void *from, uint64_t bytes);
enum pp_status gw_cuda_synchronize(struct gw_device *device, struct gw_stream *stream);
enum pp_status gw_cuda_copy_in(struct gw_device *device, struct gw_stream *stream, void *to,
                               const void *from_host, uint64_t bytes);
enum pp_status gw_cuda_copy_out(struct gw_device *device, struct gw_stream *stream, void *to_host,
                                const void *from, uint64_t bytes);
enum pp_status gw_cuda_copy_within(struct gw_device *device, struct gw_stream *stream, void *to,
                                   const void *from, uint64_t bytes);
enum pp_status gw_cuda_view(struct gw_device *device, struct gw_stream *stream, uint32_t which,
                            const void *from, uint64_t bytes, const void **host_out);

/* elementwise.c */
enum pp_status gw_cuda_embed(struct gw_device *device, struct gw_stream *stream,
                             const struct gw_matrix *table, const uint32_t *ids, uint32_t count,
                             float *out);
enum pp_status gw_cuda_rms_norm(struct gw_device *device, struct gw_stream *stream, const float *x,
                                const float *weight, float epsilon, uint32_t rows, uint32_t width,
                                float *out);
enum pp_status gw_cuda_add_rms_norm(struct gw_device *device, struct gw_stream *stream,
                                    const float *y, const float *weight, float epsilon,
                                    uint32_t rows, uint32_t width, float *x, float *out);
enum pp_status gw_cuda_gather_rows(struct gw_device *device, struct gw_stream *stream,
                                   const float *x, const uint32_t *at, uint32_t count,
                                   uint32_t width, float *out);
enum pp_status gw_cuda_scatter_rows(struct gw_device *device, struct gw_stream *stream,
                                    enum pp_dtype dtype, uint32_t dim, const float *values,
                                    uint32_t rows, uint32_t count, void *const *outs);
enum pp_status gw_cuda_add_bias(struct gw_device *device, struct gw_stream *stream,
                                const float *bias, uint32_t rows, uint32_t width, float *x);
enum pp_status gw_cuda_rope(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_rope_table *table, uint64_t position, uint32_t rows,
                            uint32_t heads, uint32_t dim, float *x);
enum pp_status gw_cuda_swiglu(struct gw_device *device, struct gw_stream *stream, const float *gate,
                              const float *up, uint64_t count, float *out);
enum pp_status gw_cuda_to_dtype(struct gw_device *device, struct gw_stream *stream,
                                enum pp_dtype dtype, uint32_t dim, const float *values,
                                uint64_t count, void *out);

/* draw.c */
enum pp_status gw_cuda_draw(struct gw_device *device, struct gw_stream *stream,
                            const struct gw_draw *draws, uint32_t rows, uint32_t *ids_out);

/* linear.c */
enum pp_status gw_cuda_linear(struct gw_device *device, struct gw_stream *stream,
                              const struct gw_matrix *matrix, const float *x, uint32_t rows,
                              bool add, float *out);

/* attend.c */
enum pp_status gw_cuda_attend_causal(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const struct gw_kv_rows *kv,
                                     uint64_t first, const float *q, uint32_t rows, float *o,
                                     float *lse);
enum pp_status gw_cuda_attend_partial(struct gw_device *device, struct gw_stream *stream,
                                      const struct gw_heads *heads, const struct gw_kv_rows *spans,
                                      uint32_t span_count, const float *q, uint32_t rows, float *o,
                                      float *lse);
enum pp_status gw_cuda_merge(struct gw_device *device, struct gw_stream *stream, uint32_t count,
                             uint32_t dim, const float *other_o, const float *other_lse, float *o,
                             float *lse);

/* keys.c */
enum pp_status gw_cuda_centre_keys(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   float *centre_out);
enum pp_status gw_cuda_sign_keys(struct gw_device *device, struct gw_stream *stream,
                                 const struct gw_heads *heads, const struct pp_hash *hash,
                                 uint32_t l, const void *k, uint64_t count, const float *centre,
                                 uint16_t *codes_out);
enum pp_status gw_cuda_query_squares(struct gw_device *device, struct gw_stream *stream,
                                     const struct gw_heads *heads, const float *q, uint32_t rows,
                                     double *sums);
enum pp_status gw_cuda_key_squares(struct gw_device *device, struct gw_stream *stream,
                                   const struct gw_heads *heads, const void *k, uint64_t count,
                                   const float *centre, double *sums);

#endif
