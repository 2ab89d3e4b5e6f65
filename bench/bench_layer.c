/*
 * The made-up layer, its exact attend and the plain read loop that both are held against.
 */
#include "bench/bench_layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/limits.h"
#include "common/base/rng.h"
#include "common/mem/pages.h"
#include "common/run/team.h"

#define POOL_VALUES   (1u << 20)
#define PIECE_TOKENS  4096u
#define STREAM_AHEAD  (32u * 64u)
#define STREAM_PIECES 64u

static void fill_rows(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    struct bench_layer *layer = context;
    const struct pp_shape *shape = &layer->shape;
    struct pp_rng rng = {.seed = 1 + index};
    uint64_t row_bytes = pp_row_bytes(shape->head_dim, shape->kv_dtype);
    uint64_t vector_bytes = pp_vector_bytes(shape->head_dim, shape->kv_dtype);
    float *pool = malloc(POOL_VALUES * sizeof(*pool));
    for (uint32_t i = 0; pool != NULL && i < POOL_VALUES; ++i) {
        pool[i] = (float)pp_rng_normal(&rng) + 0.5f;
    }
    uint8_t *row = layer->rows + index * layer->tokens * row_bytes;
    for (uint64_t i = 0; pool != NULL && i < layer->tokens; ++i, row += row_bytes) {
        const float *from = pool + pp_rng_u64(&rng) % (POOL_VALUES - 2 * shape->head_dim);
        pp_dtype_from_f32(shape->kv_dtype, from, shape->head_dim, row);
        pp_dtype_from_f32(shape->kv_dtype, from + shape->head_dim, shape->head_dim,
                          row + vector_bytes);
    }
    free(pool);
}

static void sum_centre(struct bench_segment *segment)
{
    double sums[PP_HEAD_DIM_MAX] = {0.0};
    an_kernels_get()->sum_keys(&segment->rows, 0, segment->tokens, sums);
    for (uint32_t d = 0; d < segment->rows.dim; ++d) {
        segment->centre[d] = (float)(sums[d] / segment->tokens);
    }
}

static enum pp_status make_segments(struct bench_layer *layer)
{
    const struct pp_shape *shape = &layer->shape;
    uint64_t row_bytes = pp_row_bytes(shape->head_dim, shape->kv_dtype);
    uint32_t per_head = layer->segments_a_head;
    layer->segments = calloc(shape->kv_heads * per_head, sizeof(*layer->segments));
    for (uint32_t i = 0; layer->segments != NULL && i < shape->kv_heads * per_head; ++i) {
        struct bench_segment *segment = &layer->segments[i];
        uint64_t first = (uint64_t)(i % per_head) * PP_SEGMENT_TOKENS_MAX;
        uint64_t rest = layer->tokens - first;
        segment->tokens = (uint32_t)(rest < PP_SEGMENT_TOKENS_MAX ? rest : PP_SEGMENT_TOKENS_MAX);
        segment->rows = (struct an_rows){
            .base = layer->rows + (i / per_head * layer->tokens + first) * row_bytes,
            .row_bytes = row_bytes,
            .v_offset = (uint32_t)pp_vector_bytes(shape->head_dim, shape->kv_dtype),
            .dim = shape->head_dim,
            .dtype = shape->kv_dtype};
        uint64_t bytes = an_index_bytes(&layer->params, shape->head_dim, segment->tokens);
        layer->index_bytes += bytes;
        segment->memory = aligned_alloc(64, (bytes + 63) & ~63ull);
        if (segment->memory == NULL) {
            return PP_MEMORY;
        }
        memset(segment->memory, 0, bytes);
    }
    return layer->segments != NULL ? PP_OK : PP_MEMORY;
}

static enum pp_status make_queries(struct bench_layer *layer)
{
    const struct pp_shape *shape = &layer->shape;
    uint32_t dim = shape->head_dim;
    uint32_t count = layer->piece_count * pp_shape_group(shape) + shape->q_heads;
    struct pp_rng rng = {.seed = 77};
    layer->q = calloc(shape->q_heads * (uint64_t)dim, sizeof(float));
    layer->q_scaled = calloc(shape->q_heads * (uint64_t)dim, sizeof(float));
    layer->partials = calloc(count, sizeof(*layer->partials));
    layer->sums = aligned_alloc(64, (count * (uint64_t)dim * sizeof(float) + 63) & ~63ull);
    if (layer->q == NULL || layer->q_scaled == NULL || layer->partials == NULL ||
        layer->sums == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < shape->q_heads * dim; ++i) {
        layer->q[i] = (float)pp_rng_normal(&rng);
        layer->q_scaled[i] = layer->q[i] * shape->scale;
    }
    for (uint32_t i = 0; i < count; ++i) {
        layer->partials[i].o = layer->sums + (uint64_t)i * dim;
    }
    return PP_OK;
}

enum pp_status bench_layer_make(const struct pp_shape *shape, const struct pp_estimator *estimator,
                                uint64_t tokens, uint32_t threads, struct bench_layer *layer_out)
{
    PP_TRY(pp_shape_check(shape));
    if (threads == 0 || threads > BENCH_THREADS_MAX || tokens == 0) {
        return PP_INVALID_ARGUMENT;
    }
    struct bench_layer *layer = layer_out;
    struct pp_hash *hash;
    void *rows;
    *layer = (struct bench_layer){.shape = *shape, .tokens = tokens, .threads = threads};
    layer->params.estimator = *estimator;
    if (estimator->kind == PP_SKETCH) {
        an_sketch_signs_init(&layer->signs, 42);
        layer->params.signs = &layer->signs;
    } else {
        layer->params.log_u_table = &layer->table;
        PP_TRY(pp_hash_new(42, shape->head_dim, estimator->k, estimator->l, &hash));
        layer->params.hash = hash;
        pp_log_u_table_init(&layer->table, estimator->k, estimator->l, estimator->t);
    }
    layer->segments_a_head =
        (uint32_t)((tokens + PP_SEGMENT_TOKENS_MAX - 1) / PP_SEGMENT_TOKENS_MAX);
    layer->piece_tokens = PIECE_TOKENS;
    layer->piece_count = (uint32_t)((tokens + PIECE_TOKENS - 1) / PIECE_TOKENS) * shape->kv_heads;
    uint64_t bytes = shape->kv_heads * tokens * pp_row_bytes(shape->head_dim, shape->kv_dtype);
    layer->rows_bytes = bytes;
    uint64_t committed = (bytes + PP_HUGE_PAGE_BYTES - 1) & ~(PP_HUGE_PAGE_BYTES - 1);
    PP_TRY(pp_pages_reserve(committed, &rows));
    PP_TRY(pp_pages_commit(rows, 0, committed, PP_HUGEPAGES_TRY));
    layer->rows = rows;
    pp_team_for(threads, shape->kv_heads, fill_rows, layer);
    PP_TRY(make_segments(layer));
    PP_TRY(make_queries(layer));
    uint32_t largest = (uint32_t)(tokens < PP_SEGMENT_TOKENS_MAX ? tokens : PP_SEGMENT_TOKENS_MAX);
    uint64_t build = an_index_scratch_bytes(&layer->params, shape->head_dim, largest, threads);
    uint64_t query = an_index_query_scratch_bytes(&layer->params, largest);
    layer->scratch_bytes = ((build > query ? build : query) + 63) & ~63ull;
    layer->scratch = aligned_alloc(64, threads * layer->scratch_bytes);
    return layer->scratch != NULL ? PP_OK : PP_MEMORY;
}

void bench_layer_free(struct bench_layer *layer)
{
    free(layer->scratch);
    for (uint32_t i = 0; i < layer->shape.kv_heads * layer->segments_a_head; ++i) {
        free(layer->segments[i].memory);
    }
    free(layer->segments);
    free(layer->q);
    free(layer->q_scaled);
    free(layer->partials);
    free(layer->sums);
    pp_hash_destroy((struct pp_hash *)(uintptr_t)layer->params.hash);
    pp_pages_free(layer->rows,
                  (layer->rows_bytes + PP_HUGE_PAGE_BYTES - 1) & ~(PP_HUGE_PAGE_BYTES - 1));
}

static void exact_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    struct bench_layer *layer = context;
    const struct pp_shape *shape = &layer->shape;
    uint32_t group = pp_shape_group(shape);
    uint32_t per_head = layer->piece_count / shape->kv_heads;
    uint32_t head = (uint32_t)(index / per_head);
    uint64_t begin = index % per_head * layer->piece_tokens;
    uint64_t end = begin + layer->piece_tokens;
    end = end < layer->tokens ? end : layer->tokens;
    struct an_accumulator *partials = layer->partials + index * group;
    for (uint32_t h = 0; h < group; ++h) {
        an_accumulator_clear(&partials[h], shape->head_dim);
    }
    struct an_rows rows = layer->segments[head * layer->segments_a_head].rows;
    an_kernels_get()->attend_exact(&rows, (uint32_t)begin, (uint32_t)end,
                                   layer->q_scaled + (uint64_t)head * group * shape->head_dim,
                                   group, partials);
}

void bench_layer_exact(struct bench_layer *layer)
{
    const struct pp_shape *shape = &layer->shape;
    uint32_t group = pp_shape_group(shape);
    uint32_t per_head = layer->piece_count / shape->kv_heads;
    pp_team_for(layer->threads, layer->piece_count, exact_piece, layer);
    struct an_accumulator *results = layer->partials + layer->piece_count * group;
    for (uint32_t h = 0; h < shape->q_heads; ++h) {
        an_accumulator_clear(&results[h], shape->head_dim);
        for (uint32_t i = 0; i < per_head; ++i) {
            uint32_t piece = h / group * per_head + i;
            an_accumulator_merge(&results[h], &layer->partials[piece * group + h % group],
                                 shape->head_dim);
        }
    }
}

static void stream_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    typedef uint64_t lanes __attribute__((vector_size(64)));
    const struct bench_layer *layer = context;
    uint64_t piece = layer->rows_bytes / STREAM_PIECES & ~63ull;
    const uint8_t *at = layer->rows + index * piece;
    lanes sum = {0};
    for (const uint8_t *end = at + piece; at < end; at += 64) {
        __builtin_prefetch(at + STREAM_AHEAD, 0, 2);
        sum += *(const lanes *)(const void *)at;
    }
    __asm__ volatile("" : : "m"(sum));
}

void bench_layer_stream(struct bench_layer *layer)
{
    pp_team_for(layer->threads, STREAM_PIECES, stream_piece, layer);
}

static void centre_piece(void *context, uint64_t index, uint32_t thread)
{
    (void)thread;
    struct bench_layer *layer = context;
    sum_centre(&layer->segments[index]);
}

void bench_layer_centres(struct bench_layer *layer)
{
    pp_team_for(layer->threads, layer->shape.kv_heads * (uint64_t)layer->segments_a_head,
                centre_piece, layer);
}

enum pp_status bench_layer_build(struct bench_layer *layer)
{
    bench_layer_centres(layer);
    for (uint32_t i = 0; i < layer->shape.kv_heads * layer->segments_a_head; ++i) {
        struct bench_segment *segment = &layer->segments[i];
        PP_TRY(an_index_build(&layer->params, &segment->rows, segment->tokens, segment->centre,
                              NULL, 0, layer->threads, segment->memory, layer->scratch,
                              &segment->index));
    }
    return PP_OK;
}

double bench_time_ms(void (*call)(struct bench_layer *layer), struct bench_layer *layer)
{
    struct timespec before;
    struct timespec after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    call(layer);
    clock_gettime(CLOCK_MONOTONIC, &after);
    return (double)(after.tv_sec - before.tv_sec) * 1e3 +
           (double)(after.tv_nsec - before.tv_nsec) * 1e-6;
}
