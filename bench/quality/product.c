/*
 * lsh and sketch as a node runs them: its index of every kv head's held tokens as one segment, its
 * kernels, its answers to empty samples. See estimator.h.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn-node/index/lsh.h"
#include "bench/quality/estimator.h"
#include "common/base/limits.h"
#include "common/base/rng.h"

#define SEED 1u
/* What a node multiplies lsh's own estimate of its squared error with. */
#define LSH_VAR_FACTOR 2.56

static enum pp_status take_params(struct quality_estimator *estimator)
{
    const struct quality_spec *spec = &estimator->spec;
    struct an_index_params *params = &estimator->params;
    if (spec->kind == QUALITY_SKETCH) {
        params->estimator = (struct pp_estimator){.kind = PP_SKETCH, .bits = spec->bits};
        an_sketch_signs_init(&estimator->signs, SEED);
        params->signs = &estimator->signs;
        return PP_OK;
    }
    uint32_t l = spec->l > 0 ? spec->l : (uint32_t)estimator->knob;
    params->estimator = (struct pp_estimator){.kind = PP_LSH, .k = spec->k, .l = l, .t = spec->t};
    PP_TRY(pp_hash_new(SEED, estimator->held->shape.head_dim, spec->k, l, &estimator->hash));
    pp_log_u_table_init(&estimator->table, spec->k, l, spec->t);
    params->hash = estimator->hash;
    params->log_u_table = &estimator->table;
    return PP_OK;
}

/* Where segment `index` of the held tokens begins: at a whole word of the bits of rows read. */
static uint32_t segment_begin(const struct quality_estimator *estimator, uint32_t index)
{
    uint32_t words = (estimator->held->tokens + 63) / 64;
    uint64_t begin = (uint64_t)words * index / estimator->spec.segments * 64;
    return begin < estimator->held->tokens ? (uint32_t)begin : estimator->held->tokens;
}

static struct an_rows segment_rows(const struct quality_head *head, uint32_t begin)
{
    struct an_rows rows = head->rows;
    rows.base += begin * rows.row_bytes;
    return rows;
}

/* One segment's index, around its own centre. */
static enum pp_status build_segment(const struct quality_estimator *estimator,
                                    const struct an_index_params *params,
                                    const struct quality_head *head, uint32_t segment, void *memory,
                                    void *scratch)
{
    uint32_t begin = segment_begin(estimator, segment);
    uint32_t tokens = segment_begin(estimator, segment + 1) - begin;
    struct an_rows rows = segment_rows(head, begin);
    double sums[PP_HEAD_DIM_MAX] = {0.0};
    float centre[PP_HEAD_DIM_MAX] = {0.0f};
    struct an_index *index;
    an_kernels_get()->sum_keys(&rows, 0, tokens, sums);
    for (uint32_t d = 0; d < head->dim && estimator->spec.centred; ++d) {
        centre[d] = (float)(sums[d] / tokens);
    }
    return an_index_build(params, &rows, tokens, centre, NULL, 0, estimator->threads, memory,
                          scratch, &index);
}

enum pp_status quality_product_open(struct quality_estimator *estimator)
{
    const struct quality_held *held = estimator->held;
    const struct quality_spec *spec = &estimator->spec;
    PP_TRY(take_params(estimator));
    if (spec->segments > (held->tokens + 63) / 64 || spec->segments > QUALITY_SEGMENTS_MAX) {
        return PP_INVALID_ARGUMENT; /* one would be empty */
    }
    struct an_index_params params = estimator->params;
    uint32_t longest = (held->tokens + 63) / 64 / spec->segments * 64 + 64;
    longest = longest < held->tokens ? longest : held->tokens;
    uint64_t bytes = (an_index_bytes(&params, held->shape.head_dim, longest) + 63) & ~63ull;
    uint64_t scratch_bytes =
        an_index_scratch_bytes(&params, held->shape.head_dim, longest, estimator->threads);
    void *scratch = aligned_alloc(64, (scratch_bytes + 63) & ~63ull);
    enum pp_status status = scratch == NULL ? PP_MEMORY : PP_OK;
    for (uint32_t i = 0; status == PP_OK && i < held->shape.layers * held->shape.kv_heads; ++i) {
        uint8_t *memory = aligned_alloc(64, spec->segments * bytes);
        estimator->states[i] = memory;
        params.balance =
            spec->kind == QUALITY_SKETCH && spec->balanced ? held->heads[i].balance : NULL;
        status = memory == NULL ? PP_MEMORY : PP_OK;
        for (uint32_t segment = 0; status == PP_OK && segment < spec->segments; ++segment) {
            status = build_segment(estimator, &params, &held->heads[i], segment,
                                   memory + segment * bytes, scratch);
        }
    }
    free(scratch);
    estimator->segment_bytes = bytes;
    estimator->state_bytes = (double)(spec->segments * bytes) / held->tokens;
    return status;
}

/* Offsets, ids and norms that a look-up of lsh reads for one head. */
static double lsh_bytes(const struct an_lsh *index, const uint16_t *codes, uint32_t keys_read)
{
    double bytes = 2.0 * keys_read;
    for (uint32_t table = 0; table < index->l; ++table) {
        uint32_t count;
        an_lsh_bucket(index, table, codes[table], &count);
        bytes += 4.0 + 2.0 * count;
    }
    return bytes;
}

static double index_bytes_read(const struct quality_call *call, const struct an_accumulator *sums)
{
    const struct quality_estimator *estimator = call->estimator;
    double bytes = 0.0;
    if (estimator->spec.kind == QUALITY_SKETCH) {
        struct an_sketch_shape shape = an_sketch_shape_of(call->head->dim, estimator->spec.bits);
        return (double)shape.block_bytes / AN_SKETCH_BLOCK * call->head->tokens;
    }
    for (uint32_t h = 0; h < call->head->group; ++h) {
        bytes +=
            lsh_bytes(call->state, call->scratch->codes + (uint64_t)h * 512, sums[h].keys_read);
    }
    return bytes;
}

/* A head whose sample was empty is answered exactly, and its rows were read. */
static void answer_empty(const struct quality_call *call, uint32_t head_index,
                         struct an_accumulator *sum)
{
    const struct quality_head *head = call->head;
    an_kernels_get()->attend_exact(&head->rows, 0, head->tokens,
                                   call->scratch->q_scaled + (uint64_t)head_index * head->dim, 1,
                                   sum);
    memset(call->scratch->bits, 0xff, head->tokens / 64 * sizeof(uint64_t));
}

static void attend_heads(const struct quality_call *call, uint32_t first, uint32_t heads,
                         struct an_accumulator *sums)
{
    const struct quality_estimator *estimator = call->estimator;
    struct quality_scratch *scratch = call->scratch;
    uint64_t at = (uint64_t)first * call->head->dim;
    struct an_index_query query = {.heads = heads,
                                   .q = call->q + at,
                                   .q_scaled = scratch->q_scaled + at,
                                   .codes = scratch->codes + (uint64_t)first * 512,
                                   .draw = {.seed = pp_rng_at(call->seed, first)},
                                   .rows_share = (float)estimator->knob};
    if (estimator->spec.kind == QUALITY_LSH) {
        pp_hash_query(estimator->hash, query.q, scratch->codes + (uint64_t)first * 512);
    }
    struct an_index_view views[QUALITY_SEGMENTS_MAX];
    for (uint32_t segment = 0; segment < estimator->spec.segments; ++segment) {
        uint32_t begin = segment_begin(estimator, segment);
        const uint8_t *index = (const uint8_t *)call->state + segment * estimator->segment_bytes;
        views[segment] = (struct an_index_view){
            .index = (const struct an_index *)(const void *)index,
            .rows = segment_rows(call->head, begin),
            .end = segment_begin(estimator, segment + 1) - begin,
            .first = begin,
            .rows_read = scratch->bits + begin / 64,
            .accumulators = sums,
            .next = segment + 1 < estimator->spec.segments ? &views[segment + 1] : NULL};
    }
    an_index_attend_views(&estimator->params, views, &query, scratch->index);
}

void quality_product_attend(const struct quality_call *call)
{
    const struct quality_head *head = call->head;
    struct quality_answer *answer = call->answer;
    bool shared =
        call->estimator->spec.kind == QUALITY_SKETCH && !call->estimator->spec.head_by_head;
    uint32_t at_once = shared ? an_index_heads_at_once(&call->estimator->params, head->group) : 1;
    struct an_accumulator sums[QUALITY_GROUP_MAX];
    for (uint32_t h = 0; h < head->group; ++h) {
        uint64_t at = (uint64_t)h * head->dim;
        sums[h] = (struct an_accumulator){.o = answer->o + at, .b1 = call->scratch->b1 + at};
        an_accumulator_clear(&sums[h], head->dim);
    }
    for (uint32_t h = 0; h < head->group; h += at_once) {
        uint32_t left = head->group - h;
        attend_heads(call, h, left < at_once ? left : at_once, &sums[h]);
    }
    answer->bytes = index_bytes_read(call, sums);
    for (uint32_t h = 0; h < head->group; ++h) {
        double factor = call->estimator->spec.kind == QUALITY_LSH ? LSH_VAR_FACTOR : 1.0;
        if (sums[h].keys_read == 0) {
            answer_empty(call, h, &sums[h]);
            answer->fell_back = true;
        }
        answer->rows_q += sums[h].keys_read;
        quality_finish(&sums[h], head->dim, &answer->lse[h], &answer->var[h]);
        answer->var[h] *= factor;
    }
    for (uint32_t i = 0; i < (head->tokens + 63) / 64; ++i) {
        answer->rows += (uint64_t)__builtin_popcountll(call->scratch->bits[i]);
    }
    answer->bytes += (double)answer->rows * (double)head->rows.row_bytes;
}
