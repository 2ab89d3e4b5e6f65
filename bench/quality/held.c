/*
 * The held tokens of a prompt. See held.h.
 */
#include "bench/quality/held.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/attn/partial.h"
#include "common/base/limits.h"

static enum pp_status take_memory(struct quality_held *held)
{
    const struct pp_shape *shape = &held->shape;
    uint64_t heads = (uint64_t)shape->layers * shape->kv_heads;
    uint64_t row_bytes = pp_row_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t recorded = (uint64_t)held->steps * shape->layers * shape->q_heads;
    uint64_t floats = heads * shape->head_dim * (held->tokens + 2ull);
    held->heads = calloc(heads, sizeof(*held->heads));
    held->rows = aligned_alloc(64, (heads * held->tokens * row_bytes + 63) & ~63ull);
    held->floats = malloc(floats * sizeof(float));
    held->q = malloc(recorded * shape->head_dim * sizeof(float));
    held->o = malloc(recorded * shape->head_dim * sizeof(float));
    held->lse = malloc(recorded * sizeof(float));
    bool taken = held->heads != NULL && held->rows != NULL && held->floats != NULL &&
                 held->q != NULL && held->o != NULL && held->lse != NULL;
    return taken ? PP_OK : PP_MEMORY;
}

enum pp_status quality_held_init(const struct pp_shape *shape, uint32_t tokens, uint32_t steps,
                                 struct quality_held *held_out)
{
    struct quality_held *held = held_out;
    *held = (struct quality_held){.shape = *shape, .tokens = tokens, .steps = steps};
    if (tokens > PP_SEGMENT_TOKENS_MAX || pp_shape_group(shape) > QUALITY_GROUP_MAX) {
        return PP_OUT_OF_RANGE;
    }
    PP_TRY(take_memory(held));
    uint64_t row_bytes = pp_row_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t floats = shape->head_dim * (tokens + 2ull);
    for (uint32_t i = 0; i < shape->layers * shape->kv_heads; ++i) {
        float *memory = held->floats + i * floats;
        held->heads[i] = (struct quality_head){
            .tokens = tokens,
            .dim = shape->head_dim,
            .group = pp_shape_group(shape),
            .scale = shape->scale,
            .rows = {.base = held->rows + i * tokens * row_bytes,
                     .row_bytes = row_bytes,
                     .v_offset = (uint32_t)pp_vector_bytes(shape->head_dim, shape->kv_dtype),
                     .dim = shape->head_dim,
                     .dtype = shape->kv_dtype},
            .columns = memory,
            .centre = memory + (uint64_t)shape->head_dim * tokens,
            .balance = memory + (uint64_t)shape->head_dim * (tokens + 1ull)};
    }
    return PP_OK;
}

void quality_held_free(struct quality_held *held)
{
    free(held->heads);
    free(held->rows);
    free(held->floats);
    free(held->q);
    free(held->o);
    free(held->lse);
    memset(held, 0, sizeof(*held));
}

static void fill_head(struct quality_held *held, uint32_t layer, uint32_t kv_head, const uint8_t *k,
                      const uint8_t *v)
{
    const struct pp_shape *shape = &held->shape;
    struct quality_head *head = quality_head_at(held, layer, kv_head);
    uint64_t bytes = head->rows.v_offset;
    double sums[PP_HEAD_DIM_MAX] = {0.0};
    for (uint32_t i = 0; i < head->tokens; ++i) {
        float key[PP_HEAD_DIM_MAX];
        uint64_t from = ((uint64_t)i * shape->kv_heads + kv_head) * bytes;
        uint8_t *row = held->rows + (head->rows.base - held->rows) + i * head->rows.row_bytes;
        memcpy(row, k + from, bytes);
        memcpy(row + bytes, v + from, bytes);
        pp_vectors_to_f32(shape->kv_dtype, head->dim, row, 1, key);
        for (uint32_t d = 0; d < head->dim; ++d) {
            head->columns[(uint64_t)d * head->tokens + i] = key[d];
        }
    }
    an_kernels_get()->sum_keys(&head->rows, 0, head->tokens, sums);
    for (uint32_t d = 0; d < head->dim; ++d) {
        head->centre[d] = (float)(sums[d] / head->tokens);
    }
}

void quality_held_fill(struct quality_held *held, uint32_t layer, const void *k, const void *v,
                       const float *balance)
{
    for (uint32_t kv_head = 0; kv_head < held->shape.kv_heads; ++kv_head) {
        struct quality_head *head = quality_head_at(held, layer, kv_head);
        fill_head(held, layer, kv_head, k, v);
        memcpy(head->balance, balance + (uint64_t)kv_head * head->dim, head->dim * sizeof(float));
    }
}

void quality_finish(struct an_accumulator *sum, uint32_t dim, float *lse_out, double *var_out)
{
    double o_norm = 0.0, o_b1 = 0.0, square = (double)sum->sum * (double)sum->sum;
    for (uint32_t d = 0; d < dim; ++d) {
        sum->o[d] /= sum->sum;
        o_norm += (double)sum->o[d] * (double)sum->o[d];
        o_b1 += sum->b1 != NULL ? (double)sum->o[d] * (double)sum->b1[d] : 0.0;
    }
    double var = ((double)sum->b2 - 2.0 * o_b1 + o_norm * (double)sum->b0) / square;
    *lse_out = sum->m + logf(sum->sum);
    var *= (double)pp_small_sample((float)((double)sum->b0 / square));
    *var_out = sum->b1 != NULL && var > 0.0 ? var : 0.0;
}

void quality_exact(const struct quality_head *head, const float *q, float *o_out, float *lse_out)
{
    float scaled[QUALITY_GROUP_MAX * PP_HEAD_DIM_MAX];
    struct an_accumulator sums[QUALITY_GROUP_MAX];
    double var;
    for (uint32_t i = 0; i < head->group * head->dim; ++i) {
        scaled[i] = q[i] * head->scale;
    }
    for (uint32_t h = 0; h < head->group; ++h) {
        sums[h] = (struct an_accumulator){.o = o_out + (uint64_t)h * head->dim};
        an_accumulator_clear(&sums[h], head->dim);
    }
    an_kernels_get()->attend_exact(&head->rows, 0, head->tokens, scaled, head->group, sums);
    for (uint32_t h = 0; h < head->group; ++h) {
        quality_finish(&sums[h], head->dim, &lse_out[h], &var);
    }
}
