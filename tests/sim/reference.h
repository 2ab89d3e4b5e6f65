/*
 * What the simulator compares with: the K/V of a sequence as the worker handed it over, and the
 * attention over a prefix of it in f64, straight from the definition.
 */
#ifndef PIGPEN_TESTS_SIM_REFERENCE_H
#define PIGPEN_TESTS_SIM_REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn/shape.h"
#include "common/base/rng.h"

struct reference {
    struct pp_shape shape;
    uint64_t tokens_max;
    float *k, *v;             /* [layer][token][kv head][dim], as the wire dtype holds them */
    uint8_t *wire_k, *wire_v; /* the same rows as they travel */
};

static inline uint64_t reference_row(const struct reference *reference)
{
    return (uint64_t)reference->shape.kv_heads * reference->shape.head_dim;
}

static inline void reference_init(struct reference *reference, const struct pp_shape *shape,
                                  uint64_t tokens_max)
{
    reference->shape = *shape;
    reference->tokens_max = tokens_max;
    uint64_t values = shape->layers * tokens_max * reference_row(reference);
    reference->k = calloc(values, sizeof(float));
    reference->v = calloc(values, sizeof(float));
    reference->wire_k = calloc(values, 2 * sizeof(float)); /* int8 rows carry their scales */
    reference->wire_v = calloc(values, 2 * sizeof(float));
}

/* Where the row of a token lies in wire_k and wire_v. */
static inline uint64_t reference_wire(const struct reference *reference, uint32_t layer,
                                      uint64_t token)
{
    const struct pp_shape *shape = &reference->shape;
    uint64_t bytes = pp_vector_bytes(shape->head_dim, shape->kv_dtype) * shape->kv_heads;
    return (layer * reference->tokens_max + token) * bytes;
}

static inline void reference_deinit(struct reference *reference)
{
    free(reference->k);
    free(reference->v);
    free(reference->wire_k);
    free(reference->wire_v);
}

/* Draws rows [start, start + count) of a layer. */
static inline void reference_draw(struct reference *reference, struct pp_rng *rng, uint32_t layer,
                                  uint64_t start, uint32_t count)
{
    uint64_t row = reference_row(reference), values = row * count;
    uint64_t at = (layer * reference->tokens_max + start) * row;
    for (uint64_t i = 0; i < values; ++i) {
        reference->k[at + i] = (float)pp_rng_normal(rng) * 2.0f;
        reference->v[at + i] = (float)pp_rng_normal(rng);
    }
    enum pp_dtype dtype = reference->shape.kv_dtype;
    uint32_t dim = reference->shape.head_dim;
    uint8_t *k_out = reference->wire_k + reference_wire(reference, layer, start);
    uint8_t *v_out = reference->wire_v + reference_wire(reference, layer, start);
    pp_vectors_from_f32(dtype, dim, reference->k + at, values / dim, k_out);
    pp_vectors_from_f32(dtype, dim, reference->v + at, values / dim, v_out);
    pp_vectors_to_f32(dtype, dim, k_out, values / dim, reference->k + at);
    pp_vectors_to_f32(dtype, dim, v_out, values / dim, reference->v + at);
}

/* One q head over the first `tokens` tokens: o [dim], and the log-sum-exp. */
static inline double reference_attend(const struct reference *reference, uint32_t layer,
                                      uint64_t tokens, uint32_t q_head, const float *q, double *o)
{
    uint32_t dim = reference->shape.head_dim;
    uint32_t kv_head = q_head / pp_shape_group(&reference->shape);
    double most = -INFINITY, sum = 0;
    double *scores = calloc(tokens + 1, sizeof(double));
    const float *k = reference->k, *v = reference->v;
    for (uint64_t token = 0; token < tokens; ++token) {
        uint64_t at = (layer * reference->tokens_max + token) * reference_row(reference) +
                      (uint64_t)kv_head * dim;
        for (uint32_t d = 0; d < dim; ++d) {
            scores[token] += (double)q[d] * (double)k[at + d];
        }
        scores[token] *= (double)reference->shape.scale;
        most = scores[token] > most ? scores[token] : most;
    }
    memset(o, 0, dim * sizeof(*o));
    for (uint64_t token = 0; token < tokens; ++token) {
        double weight = exp(scores[token] - most);
        uint64_t at = (layer * reference->tokens_max + token) * reference_row(reference) +
                      (uint64_t)kv_head * dim;
        sum += weight;
        for (uint32_t d = 0; d < dim; ++d) {
            o[d] += weight * (double)v[at + d];
        }
    }
    for (uint32_t d = 0; d < dim && tokens > 0; ++d) {
        o[d] /= sum;
    }
    free(scores);
    return tokens > 0 ? most + log(sum) : -INFINITY;
}

#endif
