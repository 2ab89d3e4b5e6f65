/*
 * One layer of made-up K/V for attend_bench and build_bench: every kv head's rows in one run of
 * memory, cut into segments, with queries. Keys are Gaussian around a centre that is not zero, so
 * that lsh at (10,150,2) reads about 1.5 % of them. Threads: make on one; the pieces on a team.
 */
#ifndef PIGPEN_BENCH_BENCH_LAYER_H
#define PIGPEN_BENCH_BENCH_LAYER_H

#include <stdint.h>

#include "attn-node/index/index.h"
#include "common/attn/shape.h"
#include "common/base/status.h"

#define BENCH_THREADS_MAX 256u

struct bench_segment {
    struct an_rows rows;
    uint32_t tokens;
    float centre[256];
    void *memory; /* of the index, touched */
    struct an_index *index;
};

struct bench_layer {
    struct pp_shape shape;
    uint64_t tokens;
    uint32_t threads;
    uint8_t *rows; /* [kv head][token] rows */
    uint64_t rows_bytes;
    uint32_t segments_a_head;
    struct bench_segment *segments; /* [kv head][segment] */
    struct an_index_params params;
    struct pp_log_u_table table;
    struct an_sketch_signs signs;
    uint64_t index_bytes; /* of all segments */
    uint8_t *scratch;     /* [threads][scratch_bytes], of a build and of a query */
    uint64_t scratch_bytes;
    float *q, *q_scaled;             /* [q head][dim] */
    struct an_accumulator *partials; /* [exact piece][group], then [q head] */
    uint32_t piece_tokens, piece_count;
    float *sums; /* of the partials */
};

/* A layer of random rows; estimator lsh or sketch for the index. PP_MEMORY and what the parts
 * return. */
PP_MUST_USE enum pp_status bench_layer_make(const struct pp_shape *shape,
                                            const struct pp_estimator *estimator, uint64_t tokens,
                                            uint32_t threads, struct bench_layer *layer_out);
void bench_layer_free(struct bench_layer *layer);

/* Attends every row for every head, in pieces over the team, partials merged. */
void bench_layer_exact(struct bench_layer *layer);
/* Reads every row with prefetch ahead and does nothing else: what memory gives. */
void bench_layer_stream(struct bench_layer *layer);
/* The mean key of every segment. */
void bench_layer_centres(struct bench_layer *layer);
/* Mean keys, and the index of every segment on the team. */
PP_MUST_USE enum pp_status bench_layer_build(struct bench_layer *layer);
/* Milliseconds of one call, by the system's clock. */
double bench_time_ms(void (*call)(struct bench_layer *layer), struct bench_layer *layer);

#endif
