/*
 * A sampled attend over one segment and kv head: candidates, their scores, log u from the angle
 * between the query and the centred key, and the weighted softmax. u is the probability that a row
 * collides in at least t of l tables (estimators: MagicPIG, arXiv 2410.16179, eq. 6).
 */
#include "attn-node/index/lsh.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attn-node/index/index.h"
#include "common/base/half.h"
#include "common/base/limits.h"

/* Ids are scored and attended in pieces that stay in the first-level cache. */
#define PIECE 128u

static uint64_t ids_bytes(uint32_t tokens)
{
    return (2ull * tokens + 63) & ~63ull;
}

uint64_t an_lsh_query_scratch_bytes(const struct an_index_params *params, uint32_t tokens)
{
    return ids_bytes(tokens) + an_lsh_scratch_bytes(tokens, params->estimator.t);
}

/* What log u of one query needs, once. */
struct angle {
    float q_dot_centre;
    float q_norm;
    float plain; /* plain over scaled scores; 0 for a zero query */
};

static struct angle measure_query(const struct an_lsh *index, const struct an_index_query *query)
{
    const float *q = query->q;
    double dot = 0.0;
    double square = 0.0;
    uint32_t largest = 0;
    for (uint32_t d = 0; d < index->dim; ++d) {
        dot += (double)q[d] * (double)index->centre[d];
        square += (double)q[d] * (double)q[d];
        largest = fabsf(q[d]) > fabsf(q[largest]) ? d : largest;
    }
    float scaled = query->q_scaled[largest];
    return (struct angle){.q_dot_centre = (float)dot,
                          .q_norm = (float)sqrt(square),
                          .plain = scaled != 0.0f ? q[largest] / scaled : 0.0f};
}

static float norm_of(const struct an_lsh *index, const struct an_rows *rows, uint32_t id)
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

/* log u of rows whose unscaled q . k is plain * scores[i]. A zero query gives p = 1/2 (cosine 0).
 */
static void log_us(const struct an_lsh *index, const struct an_index_params *params,
                   const struct an_rows *rows, const struct angle *angle, const uint16_t *ids,
                   const float *scores, uint32_t count, float *log_u_out)
{
    for (uint32_t i = 0; i < count; ++i) {
        float cosine = 0.0f;
        if (angle->q_norm > 0.0f) {
            float norm = norm_of(index, rows, ids[i]);
            cosine = (scores[i] * angle->plain - angle->q_dot_centre) / (angle->q_norm * norm);
            cosine = cosine > 1.0f ? 1.0f : cosine < -1.0f ? -1.0f : cosine;
        }
        log_u_out[i] = pp_log_u_lookup(params->log_u_table, cosine);
    }
}

/* The sample of one head, taken piece by piece: the candidates with their scores and log u. */
struct sample {
    const struct an_lsh *index;
    const struct an_index_params *params;
    const struct an_rows *rows;
    const struct an_index_query *query; /* of one head */
    struct angle angle;
    const uint16_t *ids;
    uint32_t found, at; /* candidates, and how many of them were taken */
};

struct piece {
    const uint16_t *ids;
    uint32_t count;
    float scores[PIECE];
    float log_u[PIECE];
};

/* ids [end - begin]: memory for the candidates; scratch [an_lsh_scratch_bytes]. */
static struct sample sample_begin(const struct an_lsh *index, const struct an_index_params *params,
                                  const struct an_rows *rows, uint32_t begin, uint32_t end,
                                  const struct an_index_query *query, void *scratch, uint16_t *ids)
{
    struct sample sample = {
        .index = index, .params = params, .rows = rows, .query = query, .ids = ids};
    sample.found = an_lsh_candidates(index, query->codes, params->estimator.t, begin, end, scratch,
                                     query->rows_read, ids);
    sample.angle = measure_query(index, query);
    return sample;
}

static bool sample_next(struct sample *sample, struct piece *piece)
{
    uint32_t left = sample->found - sample->at;
    uint32_t count = left < PIECE ? left : PIECE;
    piece->ids = sample->ids + sample->at;
    piece->count = count;
    if (count == 0) {
        return false;
    }
    an_kernels_get()->score_gather(sample->rows, piece->ids, count, left - count,
                                   sample->query->q_scaled, piece->scores);
    log_us(sample->index, sample->params, sample->rows, &sample->angle, piece->ids, piece->scores,
           count, piece->log_u);
    sample->at += count;
    return true;
}

/* The central rows within [begin, end), ascending. */
static uint32_t central_within(const struct an_lsh *index, uint32_t begin, uint32_t end,
                               uint16_t *ids_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < index->central_count; ++i) {
        if (index->central[i] >= begin && index->central[i] < end) {
            ids_out[count++] = index->central[i];
        }
    }
    return count;
}

uint32_t an_lsh_sample(const struct an_lsh *index, const struct an_index_params *params,
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
    struct sample sample = sample_begin(index, params, rows, begin, end, query, scratch, ids_out);
    struct piece piece;
    for (uint32_t at = 0; sample_next(&sample, &piece); at = sample.at) {
        memcpy(log_u_out + at, piece.log_u, piece.count * sizeof(*log_u_out));
    }
    uint16_t central[AN_LSH_CENTRAL_MAX];
    uint32_t central_count = central_within(index, begin, end, central);
    uint32_t found = sample.found;
    for (uint32_t i = 0; i < central_count; ++i) {
        uint32_t at = found++;
        for (; at > 0 && ids_out[at - 1] > central[i]; --at) {
            ids_out[at] = ids_out[at - 1];
            log_u_out[at] = log_u_out[at - 1];
        }
        ids_out[at] = central[i];
        log_u_out[at] = 0.0f;
    }
    return found;
}

/* Sets the bits of every row of [begin, end). */
static void mark_all(uint64_t *rows_read, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end && rows_read != NULL; ++i) {
        rows_read[i / 64] |= 1ull << (i % 64);
    }
}

/* Central rows are read for certain. */
static void attend_central(const struct an_lsh *index, const struct an_rows *rows, uint32_t begin,
                           uint32_t end, const struct an_index_query *query,
                           struct an_accumulator *accumulator)
{
    const struct an_kernels *kernels = an_kernels_get();
    uint16_t central[AN_LSH_CENTRAL_MAX];
    float scores[AN_LSH_CENTRAL_MAX];
    uint32_t count = central_within(index, begin, end, central);
    if (count == 0) {
        return;
    }
    for (uint32_t i = 0; i < count; ++i) {
        mark_all(query->rows_read, central[i], central[i] + 1u);
    }
    kernels->score_gather(rows, central, count, 0, query->q_scaled, scores);
    kernels->attend_gather(rows, central, scores, NULL, count, accumulator);
}

static void attend_head(const struct an_lsh *index, const struct an_index_params *params,
                        const struct an_rows *rows, uint32_t begin, uint32_t end,
                        const struct an_index_query *query, void *scratch,
                        struct an_accumulator *accumulator)
{
    uint16_t *ids = scratch;
    uint8_t *rest = (uint8_t *)scratch + ids_bytes(index->tokens);
    struct sample sample = sample_begin(index, params, rows, begin, end, query, rest, ids);
    struct piece piece;
    while (sample_next(&sample, &piece)) {
        an_kernels_get()->attend_gather(rows, piece.ids, piece.scores, piece.log_u, piece.count,
                                        accumulator);
    }
    attend_central(index, rows, begin, end, query, accumulator);
}

void an_lsh_attend(const struct an_lsh *index, const struct an_index_params *params,
                   const struct an_rows *rows, uint32_t begin, uint32_t end,
                   const struct an_index_query *query, void *scratch,
                   struct an_accumulator *accumulators)
{
    if (index->central_count > AN_LSH_CENTRAL_MAX) {
        an_kernels_get()->attend_exact(rows, begin, end, query->q_scaled, query->heads,
                                       accumulators);
        mark_all(query->rows_read, begin, end);
        return;
    }
    for (uint32_t head = 0; head < query->heads; ++head) {
        struct an_index_query one = *query;
        one.heads = 1;
        one.q += (uint64_t)head * index->dim;
        one.q_scaled += (uint64_t)head * index->dim;
        one.codes += (uint64_t)head * index->l;
        attend_head(index, params, rows, begin, end, &one, scratch, &accumulators[head]);
    }
}
