/*
 * Shapes of a model's attention and of the rows that hold its K/V, and the checks on them.
 * Pure, any thread.
 */
#ifndef PIGPEN_COMMON_ATTN_SHAPE_H
#define PIGPEN_COMMON_ATTN_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/status.h"

/* Values as in proto Dtype and EstimatorKind. */
enum pp_dtype { PP_DTYPE_NONE = 0, PP_BF16 = 1, PP_F16 = 2, PP_F32 = 3, PP_I8 = 4 };
enum pp_estimator_kind {
    PP_ESTIMATOR_NONE = 0,
    PP_EXACT = 1,
    PP_LSH = 2,
    PP_SKETCH = 3,
};

/* lsh: k bits a table, l tables, t of which must collide. sketch: bits a dimension, and a budget of
 * distinct rows a kv head and q row, as a share of those held under an index or as a number of
 * them; neither: a share by the context's length (budget.h). target_error: the relative error that
 * an answer is to be within, of either kind; a budget beside it is the most that is read for it
 * before all rows are. Unused ones are 0. */
struct pp_estimator {
    enum pp_estimator_kind kind;
    uint32_t k, l, t;
    uint32_t bits;
    float rows_share;
    uint32_t rows;
    float target_error;
};

/* An estimator for one layer in place of the sequence's. */
struct pp_layer_estimator {
    uint32_t layer;
    struct pp_estimator estimator;
};

/* Whether one index serves both: all but budget and target, which every attend may choose. */
static inline bool pp_estimator_share_index(const struct pp_estimator *a,
                                            const struct pp_estimator *b)
{
    return a->kind == b->kind && a->k == b->k && a->l == b->l && a->t == b->t && a->bits == b->bits;
}

static inline bool pp_estimator_same(const struct pp_estimator *a, const struct pp_estimator *b)
{
    return pp_estimator_share_index(a, b) && a->rows == b->rows && a->rows_share == b->rows_share &&
           a->target_error == b->target_error;
}

struct pp_shape {
    uint32_t layers;
    uint32_t q_heads;
    uint32_t kv_heads; /* q_heads is a multiple; group = q_heads / kv_heads */
    uint32_t head_dim; /* 1 to 256 */
    float scale;       /* of the softmax */
    enum pp_dtype kv_dtype;
};

static inline uint32_t pp_shape_group(const struct pp_shape *shape)
{
    return shape->q_heads / shape->kv_heads;
}

/* Of one element: 1 for int8, 2 for bf16 and f16, 4 for f32, 0 for anything else. */
uint32_t pp_dtype_bytes(enum pp_dtype dtype);

/* "bf16"; for logs and options. */
const char *pp_dtype_name(enum pp_dtype dtype);
const char *pp_estimator_name(enum pp_estimator_kind kind);

/* PP_BAD_SHAPE or PP_BAD_DTYPE unless: 1 <= layers, heads, dim <= their limits (limits.h), q_heads
 * a multiple of kv_heads, scale finite and > 0, a known dtype. A scale of 0 must have been replaced
 * by 1/sqrt(head_dim) before. */
PP_MUST_USE enum pp_status pp_shape_check(const struct pp_shape *shape);

/* Fills zeros with defaults (lsh: 10, 150, 2; sketch: 2 bits) and checks: lsh 1 <= k <= 16,
 * 1 <= t <= l <= 512; sketch 1, 2 or 4 bits, 0 < share <= 1 or a number of rows, not both; a target
 * error above 0, at most 1, or none. PP_INVALID_ARGUMENT. */
PP_MUST_USE enum pp_status pp_estimator_resolve(struct pp_estimator *estimator);

/* What an estimator may be, for messages. */
#define PP_ESTIMATOR_SYNTAX                                                                        \
    "exact, lsh:k=K,l=L,t=T (K 1 to 16, L 1 to 512, T 1 to L), sketch:bits=B,share=X (B 1, 2 or "  \
    "4, X above 0 to 1) or sketch:rows=N; either with error=E (E above 0 to 1)"

/* Parses "exact", "lsh:k=10,l=150,t=2", "sketch:bits=2,share=0.04", "sketch:rows=2048" or
 * "sketch:error=0.1".
 * PP_INVALID_ARGUMENT. The result is resolved. */
PP_MUST_USE enum pp_status pp_estimator_parse(const char *text, struct pp_estimator *estimator_out);

/* Bytes of a vector: K or V of one token and kv head. int8 is followed by its scale, an f32 that
 * need not be aligned: value = element * scale. */
static inline uint64_t pp_vector_bytes(uint32_t head_dim, enum pp_dtype dtype)
{
    return (uint64_t)head_dim * pp_dtype_bytes(dtype) + (dtype == PP_I8 ? sizeof(float) : 0);
}

/* One row [K|V] of a token and kv head: two vectors, padded to 64 bytes. int8 rows are padded to 8:
 * at d = 128 that is 264 bytes, which lie in 5 cache lines wherever they begin, as 320 would. */
static inline uint64_t pp_row_bytes(uint32_t head_dim, enum pp_dtype dtype)
{
    uint64_t align = dtype == PP_I8 ? 8 : 64;
    return (2 * pp_vector_bytes(head_dim, dtype) + align - 1) & ~(align - 1);
}

/* f32 values to and from a wire dtype (rounded half to even), count of them. int8: one vector of
 * count elements with its scale, max |value| / 127; what is not finite gives such a scale. */
void pp_dtype_from_f32(enum pp_dtype dtype, const float *values, uint64_t count, void *out);
void pp_dtype_to_f32(enum pp_dtype dtype, const void *values, uint64_t count, float *out);

/* count vectors of dim values, dense. */
void pp_vectors_from_f32(enum pp_dtype dtype, uint32_t dim, const float *values, uint64_t count,
                         void *out);
void pp_vectors_to_f32(enum pp_dtype dtype, uint32_t dim, const void *vectors, uint64_t count,
                       float *out);

/* Whether the scale of an int8 vector keeps its values finite and within PP_MAGNITUDE_MAX. */
static inline bool pp_scale_within(float scale)
{
    return scale >= 0.0f && scale <= PP_MAGNITUDE_MAX / 128.0f;
}

/* PP_NON_FINITE when a value, of any alignment, is not finite or its magnitude is above
 * PP_MAGNITUDE_MAX. Not for int8. */
PP_MUST_USE enum pp_status pp_dtype_check_finite(enum pp_dtype dtype, const void *values,
                                                 uint64_t count);

#endif
