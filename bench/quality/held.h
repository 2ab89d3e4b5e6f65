/*
 * What the estimators of quality_bench are measured on: the K/V of a prompt's tokens that a node
 * would hold, cut into kv heads as a node cuts them, the queries that the model asked of them in an
 * exact run, and the exact answers. It refuses to know the estimators. Threads: filled on one,
 * then read by a team.
 */
#ifndef PIGPEN_BENCH_QUALITY_HELD_H
#define PIGPEN_BENCH_QUALITY_HELD_H

#include <stdint.h>

#include "attn-node/kernels/kernels.h"
#include "common/attn/shape.h"
#include "common/base/status.h"

/* Query heads of a kv head. */
#define QUALITY_GROUP_MAX 32u

/* One kv head of one layer. */
struct quality_head {
    uint32_t tokens, dim, group;
    float scale;
    struct an_rows rows;     /* as a node lays them */
    float *columns;          /* [dim][tokens] f32: its keys for plain loops */
    float *centre, *balance; /* [dim]: the mean key; what sketches are balanced with */
};

struct quality_held {
    struct pp_shape shape;
    uint32_t tokens, steps;
    struct quality_head *heads; /* [layer][kv head] */
    uint8_t *rows;              /* of all heads */
    float *floats;              /* columns, centres, balances */
    /* The exact run: [step][layer][q head], vectors of dim. */
    float *q, *o, *lse;
};

/* Takes the memory; rows, columns and centres are filled head by head, the rest by the exact run.
 * Free it whatever comes back. PP_OUT_OF_RANGE: more tokens than a segment has, or too large a
 * group; PP_MEMORY. */
PP_MUST_USE enum pp_status quality_held_init(const struct pp_shape *shape, uint32_t tokens,
                                             uint32_t steps, struct quality_held *held_out);
void quality_held_free(struct quality_held *held);

static inline struct quality_head *quality_head_at(const struct quality_held *held, uint32_t layer,
                                                   uint32_t kv_head)
{
    return &held->heads[layer * held->shape.kv_heads + kv_head];
}

/* Copies one layer in: k and v [token][kv head] vectors of the shape's dtype, balance
 * [kv head][dim]. */
void quality_held_fill(struct quality_held *held, uint32_t layer, const void *k, const void *v,
                       const float *balance);

/* Where q, o [q head][dim] and lse [q head] of a step and layer lie: offset in vectors. */
static inline uint64_t quality_recorded_at(const struct quality_held *held, uint32_t step,
                                           uint32_t layer)
{
    return ((uint64_t)step * held->shape.layers + layer) * held->shape.q_heads;
}

/* The exact answer of a kv head's group over the held tokens, by the node's own kernel. q, o
 * [group][dim], lse [group]. */
void quality_exact(const struct quality_head *head, const float *q, float *o_out, float *lse_out);

/* From running sums to an answer: o normalised in place, lse, and the squared error as published
 * (ARCHITECTURE.md), 0 without error sums. */
void quality_finish(struct an_accumulator *sum, uint32_t dim, float *lse_out, double *var_out);

#endif
