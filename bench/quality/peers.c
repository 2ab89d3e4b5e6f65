/*
 * The peers: what ranks rows before any is read, the choice by rank, and the softmax over the
 * chosen. Plain reference code, f32. See estimator.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/quality/estimator.h"
#include "bench/quality/principal.h"
#include "bench/quality/select.h"
#include "common/base/limits.h"
#include "common/base/rng.h"

/* scores_out[i] += sum over columns of x[d] columns[d][i]. */
static void add_products(const float *columns, const float *x, uint32_t dim, uint32_t count,
                         float *scores_out)
{
    for (uint32_t d = 0; d < dim; ++d) {
        const float *column = columns + (uint64_t)d * count;
        float value = x[d];
        for (uint32_t i = 0; i < count; ++i) {
            scores_out[i] += value * column[i];
        }
    }
}

static uint32_t page_count(const struct quality_head *head)
{
    return (head->tokens + QUALITY_QUEST_PAGE - 1) / QUALITY_QUEST_PAGE;
}

/* Quest's pages: least then largest keys, [dim][pages] each. */
static float *quest_pages(const struct quality_head *head)
{
    uint32_t pages = page_count(head);
    float *least = malloc(2ull * head->dim * pages * sizeof(float));
    for (uint64_t i = 0; least != NULL && i < (uint64_t)head->dim * head->tokens; ++i) {
        uint64_t d = i / head->tokens, row = i % head->tokens;
        uint64_t at = d * pages + row / QUALITY_QUEST_PAGE;
        float *most = least + (uint64_t)head->dim * pages;
        bool first = row % QUALITY_QUEST_PAGE == 0;
        least[at] = first || head->columns[i] < least[at] ? head->columns[i] : least[at];
        most[at] = first || head->columns[i] > most[at] ? head->columns[i] : most[at];
    }
    return least;
}

/* Loki's state: axes [rank][dim], then the keys around their mean along them, [rank][tokens]. */
static float *loki_keys(const struct quality_head *head)
{
    uint32_t rank = quality_loki_rank(head->dim);
    float *axes = calloc((uint64_t)rank * (head->dim + (uint64_t)head->tokens), sizeof(float));
    if (axes == NULL) {
        return NULL;
    }
    quality_principal_axes(head->columns, head->centre, head->dim, head->tokens, rank, axes);
    for (uint32_t r = 0; r < rank; ++r) {
        const float *axis = axes + (uint64_t)r * head->dim;
        float *keys = axes + (uint64_t)rank * head->dim + (uint64_t)r * head->tokens;
        add_products(head->columns, axis, head->dim, head->tokens, keys);
        float centre = 0.0f;
        for (uint32_t d = 0; d < head->dim; ++d) {
            centre += axis[d] * head->centre[d];
        }
        for (uint32_t i = 0; i < head->tokens; ++i) {
            keys[i] -= centre;
        }
    }
    return axes;
}

/* Bytes a held token of what is scanned before rows are chosen, as bf16. */
static double scanned_bytes(const struct quality_estimator *estimator)
{
    uint32_t dim = estimator->held->shape.head_dim;
    switch ((int)estimator->spec.kind) {
    case QUALITY_TOPK:
    case QUALITY_WEIGHT:
        return 2.0 * dim;
    case QUALITY_QUEST:
        return 4.0 * dim / QUALITY_QUEST_PAGE;
    case QUALITY_LOKI:
        return 2.0 * quality_loki_rank(dim);
    default:
        return 0.0;
    }
}

enum pp_status quality_peer_state(struct quality_estimator *estimator,
                                  const struct quality_head *head, void **state_out)
{
    bool quest = estimator->spec.kind == QUALITY_QUEST;
    bool loki = estimator->spec.kind == QUALITY_LOKI;
    if (!quest && !loki) {
        return PP_OK;
    }
    estimator->state_bytes = scanned_bytes(estimator);
    *state_out = quest ? quest_pages(head) : loki_keys(head);
    return *state_out == NULL ? PP_MEMORY : PP_OK;
}

/* The bound of every page for one head: sum over d of max(q least, q largest). */
static void quest_bounds(const struct quality_call *call, const float *q, float *bounds_out)
{
    uint32_t pages = page_count(call->head);
    const float *least = call->state;
    const float *most = least + (uint64_t)call->head->dim * pages;
    for (uint32_t d = 0; d < call->head->dim; ++d) {
        const float *column = (q[d] > 0.0f ? most : least) + (uint64_t)d * pages;
        for (uint32_t i = 0; i < pages; ++i) {
            bounds_out[i] += q[d] * column[i];
        }
    }
}

static void loki_scores(const struct quality_call *call, const float *q, float *scores_out)
{
    const struct quality_head *head = call->head;
    uint32_t rank = quality_loki_rank(head->dim);
    const float *axes = call->state;
    float along[PP_HEAD_DIM_MAX] = {0.0f};
    for (uint32_t r = 0; r < rank; ++r) {
        for (uint32_t d = 0; d < head->dim; ++d) {
            along[r] += axes[(uint64_t)r * head->dim + d] * q[d];
        }
    }
    add_products(axes + (uint64_t)rank * head->dim, along, rank, head->tokens, scores_out);
}

/* What ranks rows, or pages: [heads][count] into the scratch; returns count. */
static uint32_t proxies_of(const struct quality_call *call, uint32_t first, uint32_t heads)
{
    const struct quality_head *head = call->head;
    enum quality_kind kind = call->estimator->spec.kind;
    uint32_t count = kind == QUALITY_QUEST ? page_count(head) : head->tokens;
    memset(call->scratch->proxies, 0, (uint64_t)heads * count * sizeof(float));
    for (uint32_t h = 0; h < heads; ++h) {
        const float *q = call->scratch->q_scaled + (uint64_t)(first + h) * head->dim;
        float *proxies = call->scratch->proxies + (uint64_t)h * count;
        if (kind == QUALITY_QUEST) {
            quest_bounds(call, q, proxies);
        } else if (kind == QUALITY_LOKI) {
            loki_scores(call, q, proxies);
        } else if (kind != QUALITY_UNIFORM) {
            add_products(head->columns, q, head->dim, head->tokens, proxies);
        }
    }
    return count;
}

/* Pages to their rows, in place: from the last, because rows are more. */
static uint32_t rows_of_pages(const struct quality_head *head, uint32_t pages, uint32_t *ids)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < pages; ++i) {
        uint32_t left = head->tokens - ids[i] * QUALITY_QUEST_PAGE;
        rows += left < QUALITY_QUEST_PAGE ? left : QUALITY_QUEST_PAGE;
    }
    for (uint32_t i = pages, at = rows; i-- > 0;) {
        uint32_t begin = ids[i] * QUALITY_QUEST_PAGE;
        uint32_t left = head->tokens - begin;
        for (uint32_t j = left < QUALITY_QUEST_PAGE ? left : QUALITY_QUEST_PAGE; j-- > 0;) {
            ids[--at] = begin + j;
        }
    }
    return rows;
}

/* The rows for heads [first, first + heads), with their u; returns how many. */
static uint32_t choose(const struct quality_call *call, uint32_t first, uint32_t heads)
{
    struct quality_scratch *scratch = call->scratch;
    enum quality_kind kind = call->estimator->spec.kind;
    uint32_t count = proxies_of(call, first, heads);
    double budget = call->estimator->knob * count;
    budget = budget < 1.0 ? 1.0 : budget;
    quality_ranks(scratch->proxies, heads, count, scratch->ranks);
    if (kind == QUALITY_WEIGHT || kind == QUALITY_UNIFORM) {
        uint64_t seed = pp_rng_at(call->seed, first);
        return quality_sample(scratch->ranks, count, budget, seed, scratch->ids, scratch->u);
    }
    uint32_t wanted = (uint32_t)lrint(budget);
    uint32_t chosen = quality_largest(scratch->ranks, count, wanted, scratch->sorted, scratch->ids);
    chosen = kind == QUALITY_QUEST ? rows_of_pages(call->head, chosen, scratch->ids) : chosen;
    for (uint32_t i = 0; i < chosen; ++i) {
        scratch->u[i] = 1.0f;
    }
    return chosen;
}

/* The weighted softmax of one head over the chosen rows, with error sums (ARCHITECTURE.md). */
static void attend_chosen(const struct quality_call *call, uint32_t h, uint32_t chosen)
{
    const struct quality_head *head = call->head;
    struct quality_scratch *scratch = call->scratch;
    const float *q = scratch->q_scaled + (uint64_t)h * head->dim;
    struct an_accumulator sum = {.o = call->answer->o + (uint64_t)h * head->dim,
                                 .b1 = scratch->b1 + (uint64_t)h * head->dim};
    an_accumulator_clear(&sum, head->dim);
    for (uint32_t i = 0; i < chosen; ++i) {
        float key[PP_HEAD_DIM_MAX], score = 0.0f;
        const uint8_t *row = head->rows.base + scratch->ids[i] * head->rows.row_bytes;
        pp_vectors_to_f32(head->rows.dtype, head->dim, row, 1, key);
        for (uint32_t d = 0; d < head->dim; ++d) {
            score += q[d] * key[d];
        }
        scratch->scores[i] = score;
        sum.m = fmaxf(sum.m, score - logf(scratch->u[i]));
    }
    for (uint32_t i = 0; i < chosen; ++i) {
        float value[PP_HEAD_DIM_MAX], square = 0.0f;
        float a = expf(scratch->scores[i] - logf(scratch->u[i]) - sum.m);
        float b = (1.0f - scratch->u[i]) * a * a;
        const uint8_t *row = head->rows.base + scratch->ids[i] * head->rows.row_bytes;
        pp_vectors_to_f32(head->rows.dtype, head->dim, row + head->rows.v_offset, 1, value);
        for (uint32_t d = 0; d < head->dim; ++d) {
            sum.o[d] += a * value[d];
            sum.b1[d] += b * value[d];
            square += value[d] * value[d];
        }
        sum.sum += a;
        sum.b0 += b;
        sum.b2 += b * square;
    }
    quality_finish(&sum, head->dim, &call->answer->lse[h], &call->answer->var[h]);
}

void quality_peer_attend(const struct quality_call *call)
{
    const struct quality_head *head = call->head;
    struct quality_answer *answer = call->answer;
    enum quality_kind kind = call->estimator->spec.kind;
    uint32_t at_once = call->estimator->spec.head_by_head ? 1 : head->group;
    for (uint32_t first = 0; first < head->group; first += at_once) {
        uint32_t chosen = choose(call, first, at_once);
        for (uint32_t i = 0; i < chosen; ++i) {
            uint32_t id = call->scratch->ids[i];
            call->scratch->bits[id / 64] |= 1ull << (id % 64);
        }
        for (uint32_t h = first; h < first + at_once; ++h) {
            answer->lse[h] = -INFINITY;
            answer->var[h] = 0.0;
            memset(answer->o + (uint64_t)h * head->dim, 0, head->dim * sizeof(float));
            if (chosen > 0) {
                attend_chosen(call, h, chosen);
            }
            answer->rows_q += chosen;
        }
    }
    for (uint32_t i = 0; i < (head->tokens + 63) / 64; ++i) {
        answer->rows += (uint64_t)__builtin_popcountll(call->scratch->bits[i]);
    }
    /* Where all keys were scanned anyway, only values are read further. */
    bool keys_read = kind == QUALITY_TOPK || kind == QUALITY_WEIGHT;
    double row_bytes = keys_read ? (double)head->rows.v_offset : (double)head->rows.row_bytes;
    answer->bytes =
        scanned_bytes(call->estimator) * head->tokens + row_bytes * (double)answer->rows;
}
