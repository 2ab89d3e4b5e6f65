/*
 * A sampled attend over one segment and kv head: candidates, their scores, log u from the angle
 * between the query and the centred key, and the weighted softmax. u is the probability that a row
 * collides in at least t of l tables (estimators: MagicPIG, arXiv 2410.16179, eq. 6).
 */
#include "attn-node/index/lsh.h"

#include <math.h>
#include <string.h>

#include "attn-node/index/index.h"
#include "common/base/half.h"
#include "common/base/limits.h"

/* Ids are scored and attended in pieces that stay in the first-level cache. */
#define PIECE 128u

uint64_t an_index_query_scratch_bytes(const struct an_index_params *params, uint32_t tokens)
{
    uint64_t ids = (2ull * tokens + 63) & ~63ull;
    return ids + an_lsh_scratch_bytes(tokens, params->estimator.t);
}

/* What log u of one query needs, once. */
struct angle {
    float q_dot_centre;
    float q_norm;
};

static struct angle measure_query(const struct an_index *index, const float *q)
{
    double dot = 0.0;
    double square = 0.0;
    for (uint32_t d = 0; d < index->dim; ++d) {
        dot += (double)q[d] * (double)index->centre[d];
        square += (double)q[d] * (double)q[d];
    }
    return (struct angle){.q_dot_centre = (float)dot, .q_norm = (float)sqrt(square)};
}

static float norm_of(const struct an_index *index, const struct an_rows *rows, uint32_t id)
{
    if (index->norms[id] != 0) {
        return pp_f16_to_f32(index->norms[id]);
    }
    float key[PP_HEAD_DIM_MAX];
    double square = 0.0;
    pp_dtype_to_f32(rows->dtype, rows->base + id * rows->row_bytes, rows->dim, key);
    for (uint32_t d = 0; d < rows->dim; ++d) {
        double difference = (double)(key[d] - index->centre[d]);
        square += difference * difference;
    }
    return (float)sqrt(square);
}

/* log u of rows whose unscaled q . k is dots[i]. A zero query gives p = 1/2 (cosine 0). */
static void log_us(const struct an_index *index, const struct an_index_params *params,
                   const struct an_rows *rows, const struct angle *angle, const uint16_t *ids,
                   const float *dots, uint32_t count, float *log_u_out)
{
    for (uint32_t i = 0; i < count; ++i) {
        float cosine = 0.0f;
        if (angle->q_norm > 0.0f) {
            float norm = norm_of(index, rows, ids[i]);
            cosine = (dots[i] - angle->q_dot_centre) / (angle->q_norm * norm);
            cosine = cosine > 1.0f ? 1.0f : cosine < -1.0f ? -1.0f : cosine;
        }
        log_u_out[i] = pp_log_u_lookup(params->log_u_table, cosine);
    }
}

uint32_t an_index_sample(const struct an_index *index, const struct an_index_params *params,
                         const struct an_rows *rows, uint32_t begin, uint32_t end,
                         const struct an_index_query *query, void *scratch, uint16_t *ids_out,
                         float *log_u_out)
{
    if (index->central_count > AN_LSH_CENTRAL_MAX) {
        for (uint32_t i = begin; i < end; ++i) {
            ids_out[i - begin] = (uint16_t)i;
            log_u_out[i - begin] = 0.0f;
        }
        return end - begin;
    }
    uint32_t found = an_lsh_candidates(index, query->codes, params->estimator.t, begin, end,
                                       scratch, NULL, ids_out);
    struct angle angle = measure_query(index, query->q);
    const struct an_kernels *kernels = an_kernels_get();
    for (uint32_t at = 0; at < found; at += PIECE) {
        uint32_t count = found - at < PIECE ? found - at : PIECE;
        float dots[PIECE];
        kernels->score_gather(rows, ids_out + at, count, found - at - count, query->q, dots);
        log_us(index, params, rows, &angle, ids_out + at, dots, count, log_u_out + at);
    }
    for (uint32_t i = 0; i < index->central_count; ++i) {
        uint32_t id = index->central[i];
        if (id < begin || id >= end) {
            continue;
        }
        uint32_t at = found++;
        for (; at > 0 && ids_out[at - 1] > id; --at) {
            ids_out[at] = ids_out[at - 1];
            log_u_out[at] = log_u_out[at - 1];
        }
        ids_out[at] = (uint16_t)id;
        log_u_out[at] = 0.0f;
    }
    return found;
}

/* The ratio of plain to scaled scores, from the largest element of the query; 0 for a zero query.
 */
static float unscale(const struct an_index_query *query, uint32_t dim)
{
    uint32_t largest = 0;
    for (uint32_t d = 1; d < dim; ++d) {
        largest = fabsf(query->q[d]) > fabsf(query->q[largest]) ? d : largest;
    }
    float scaled = query->q_scaled[largest];
    return scaled != 0.0f ? query->q[largest] / scaled : 0.0f;
}

/* Sets the bits of every row of [begin, end). */
static void mark_all(uint64_t *rows_read, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end && rows_read != NULL; ++i) {
        rows_read[i / 64] |= 1ull << (i % 64);
    }
}

uint32_t an_index_attend(const struct an_index *index, const struct an_index_params *params,
                         const struct an_rows *rows, uint32_t begin, uint32_t end,
                         const struct an_index_query *query, void *scratch,
                         struct an_accumulator *accumulator)
{
    const struct an_kernels *kernels = an_kernels_get();
    if (index->central_count > AN_LSH_CENTRAL_MAX) {
        kernels->attend_exact(rows, begin, end, query->q_scaled, 1, accumulator);
        mark_all(query->rows_read, begin, end);
        return end - begin;
    }
    uint16_t *ids = scratch;
    uint8_t *rest = (uint8_t *)scratch + ((2ull * index->tokens + 63) & ~63ull);
    uint32_t found = an_lsh_candidates(index, query->codes, params->estimator.t, begin, end, rest,
                                       query->rows_read, ids);
    struct angle angle = measure_query(index, query->q);
    float plain = unscale(query, index->dim);
    for (uint32_t at = 0; at < found; at += PIECE) {
        uint32_t count = found - at < PIECE ? found - at : PIECE;
        float scores[PIECE];
        float dots[PIECE];
        float log_u[PIECE];
        kernels->score_gather(rows, ids + at, count, found - at - count, query->q_scaled, scores);
        for (uint32_t i = 0; i < count; ++i) {
            dots[i] = scores[i] * plain;
        }
        log_us(index, params, rows, &angle, ids + at, dots, count, log_u);
        kernels->attend_gather(rows, ids + at, scores, log_u, count, accumulator);
    }
    uint16_t central[AN_LSH_CENTRAL_MAX];
    float central_scores[AN_LSH_CENTRAL_MAX];
    uint32_t central_count = 0;
    for (uint32_t i = 0; i < index->central_count; ++i) {
        if (index->central[i] >= begin && index->central[i] < end) {
            central[central_count++] = index->central[i];
            mark_all(query->rows_read, index->central[i], index->central[i] + 1u);
        }
    }
    if (central_count > 0) {
        kernels->score_gather(rows, central, central_count, 0, query->q_scaled, central_scores);
        kernels->attend_gather(rows, central, central_scores, NULL, central_count, accumulator);
    }
    return found + central_count;
}
