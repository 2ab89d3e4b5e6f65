/*
 * The node's built-in fixture. See self_test.h.
 */
#include "attn-node/exec/self_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/half.h"
#include "common/base/rng.h"

#define KV_HEADS 2u
#define Q_HEADS  4u
#define DIM      64u
#define SEED     20260101u
#define TOKENS   1057u /* of no block's size */
#define ROW      (KV_HEADS * DIM)

struct fixture {
    struct an_job job;
    struct an_attend_item item;
    uint64_t handle;
    float k[TOKENS * ROW], v[TOKENS * ROW];              /* as stored */
    uint16_t k_wire[TOKENS * ROW], v_wire[TOKENS * ROW]; /* bf16 */
    float q[Q_HEADS * DIM];
    _Alignas(64) uint8_t arena[16384];
};

double an_self_test_reference(const float *q, const float *k, const float *v, uint64_t stride,
                              uint32_t tokens, uint32_t dim, double scale, double *o_out)
{
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < dim; i++) {
        o_out[i] = 0;
    }
    for (uint32_t token = 0; token < tokens; token++) {
        double score = 0;
        for (uint32_t i = 0; i < dim; i++) {
            score += (double)q[i] * (double)k[token * stride + i];
        }
        score *= scale;
        double next = score > max ? score : max;
        double shrink = exp(max - next), weight = exp(score - next);
        sum = sum * shrink + weight;
        for (uint32_t i = 0; i < dim; i++) {
            o_out[i] = o_out[i] * shrink + weight * (double)v[token * stride + i];
        }
        max = next;
    }
    for (uint32_t i = 0; i < dim && sum > 0; i++) {
        o_out[i] /= sum;
    }
    return max + log(sum);
}

static void report(struct an_self_test_args *test, const char *name, bool ok, const char *detail)
{
    test->checks[test->count].name = name;
    test->checks[test->count].ok = ok;
    (void)snprintf(test->checks[test->count].detail, sizeof(test->checks[0].detail), "%s", detail);
    test->count++;
}

/* About a standard normal: four uniform numbers of 16 bits summed. Drawing a quarter of a million
 * true ones would keep exec from its work for milliseconds, every ten seconds. */
static float draw(struct pp_rng *rng)
{
    uint64_t bits = pp_rng_u64(rng);
    int32_t sum = (int32_t)(bits & 0xffff) + (int32_t)(bits >> 16 & 0xffff) +
                  (int32_t)(bits >> 32 & 0xffff) + (int32_t)(bits >> 48);
    return (float)(sum - 2 * 0xffff) * (1.0f / 37837.0f);
}

static void fill(struct fixture *fixture)
{
    struct pp_rng rng = {.seed = SEED};
    for (uint32_t i = 0; i < TOKENS * ROW; i++) {
        fixture->k_wire[i] = pp_bf16_from_f32(draw(&rng));
        fixture->v_wire[i] = pp_bf16_from_f32(draw(&rng));
        fixture->k[i] = pp_bf16_to_f32(fixture->k_wire[i]);
        fixture->v[i] = pp_bf16_to_f32(fixture->v_wire[i]);
    }
    for (uint32_t i = 0; i < Q_HEADS * DIM; i++) {
        fixture->q[i] = pp_bf16_to_f32(pp_bf16_from_f32(draw(&rng)));
    }
}

static enum pp_status open_part(struct an_exec *exec, struct fixture *fixture)
{
    struct an_job *job = &fixture->job;
    memset(job, 0, sizeof(*job));
    job->open = (struct an_open_args){
        .shape = {.layers = 1,
                  .q_heads = Q_HEADS,
                  .kv_heads = KV_HEADS,
                  .head_dim = DIM,
                  .scale = 0.125f,
                  .kv_dtype = PP_BF16},
        .kv_head_count = KV_HEADS,
        .estimator = {.kind = PP_LSH, .k = 5, .l = 16, .t = 2},
        .hash_seed = SEED,
        .generation = 1,
    };
    PP_TRY(pp_rng_system(job->open.part_id, PP_ID_BYTES));
    memcpy(job->open.sequence_id, job->open.part_id, PP_ID_BYTES);
    PP_TRY(an_exec_open(exec, job));
    fixture->handle = job->open.handle;
    return PP_OK;
}

/* Appends everything and gives it an index at once. */
static enum pp_status fill_part(struct an_exec *exec, struct fixture *fixture)
{
    struct an_job *job = &fixture->job;
    struct an_part *part;
    struct an_part_ref ref = {fixture->handle, 1};
    PP_TRY(an_exec_find(exec, &ref, false, &part));
    part->params->index_tokens_min = TOKENS; /* an index whatever the node's rule */
    memset(job, 0, sizeof(*job));
    uint64_t bytes = (uint64_t)TOKENS * ROW * sizeof(uint16_t);
    job->append = (struct an_append_args){
        .part = {fixture->handle, 1},
        .count = TOKENS,
        .bulk = true,
        .k = pp_span_of(fixture->k_wire, bytes),
        .v = pp_span_of(fixture->v_wire, bytes),
    };
    PP_TRY(an_exec_append(exec, job));
    uint64_t segments;
    PP_TRY(an_part_seal(part, NULL, 0, &segments));
    uint64_t scratch = an_index_scratch_bytes(&part->params->index, DIM, TOKENS, 1);
    PP_TRY(pp_limit_reserve(&exec->limit, PP_MEMORY_SCRATCH, scratch));
    an_builder_build_now(exec->builder, part->layers[0].views[0].segment);
    pp_limit_release(&exec->limit, PP_MEMORY_SCRATCH, scratch);
    return PP_OK;
}

static enum pp_status attend(struct an_exec *exec, struct fixture *fixture,
                             enum pp_estimator_kind kind)
{
    struct an_job *job = &fixture->job;
    struct an_attend_item *item = &fixture->item;
    memset(job, 0, sizeof(*job));
    job->arena = fixture->arena;
    job->arena_bytes = sizeof(fixture->arena);
    *item = (struct an_attend_item){
        .part = {fixture->handle, 1},
        .held_tokens = TOKENS,
        .q_rows = 1,
        .estimator = {.kind = kind},
        .q = (const uint8_t *)fixture->q,
        .q_bytes = sizeof(fixture->q),
    };
    struct an_attend_args *args = &job->attend;
    args->q_dtype = PP_F32;
    args->items = item;
    args->item_count = 1;
    item->status = an_exec_find(exec, &item->part, false, &exec->item_parts[0]);
    if (item->status == PP_OK) {
        item->status = an_attend_admit(exec->item_parts[0], 0, PP_F32, job, item);
    }
    an_attend_run(exec->attend, args, exec->item_parts);
    return item->status;
}

/* The largest difference of o from the reference. */
static double largest_error(const struct fixture *fixture)
{
    double largest = 0;
    for (uint32_t head = 0; head < Q_HEADS; head++) {
        double o[DIM];
        uint32_t kv = head / (Q_HEADS / KV_HEADS);
        (void)an_self_test_reference(fixture->q + head * DIM, fixture->k + kv * DIM,
                                     fixture->v + kv * DIM, ROW, TOKENS, DIM, 0.125, o);
        for (uint32_t i = 0; i < DIM; i++) {
            double error = fabs(o[i] - (double)fixture->item.o[head * DIM + i]);
            largest = error > largest || isnan(error) ? error : largest;
        }
    }
    return largest;
}

static void check_attends(struct an_exec *exec, struct fixture *fixture,
                          struct an_self_test_args *test)
{
    char detail[120];
    enum pp_status status = attend(exec, fixture, PP_EXACT);
    double error = status == PP_OK ? largest_error(fixture) : NAN;
    (void)snprintf(detail, sizeof(detail), "%s, largest difference %.2e", pp_status_name(status),
                   error);
    report(test, "exact", status == PP_OK && error < 1e-2, detail);
    status = attend(exec, fixture, PP_LSH);
    const struct an_attend_item *item = &fixture->item;
    (void)snprintf(detail, sizeof(detail), "%s, %llu of %llu rows read", pp_status_name(status),
                   (unsigned long long)item->rows_read, (unsigned long long)item->rows_held);
    report(test, "lsh",
           status == PP_OK && item->used == PP_LSH && item->rows_read < item->rows_held, detail);
}

enum pp_status an_exec_self_test(struct an_exec *exec, struct an_self_test_args *test)
{
    test->count = 0;
    struct fixture *fixture = aligned_alloc(64, sizeof(*fixture));
    if (fixture == NULL) {
        return PP_MEMORY;
    }
    uint64_t used_before = pp_limit_used(&exec->limit) - exec->store.build_scratch_bytes;
    uint64_t attend_before = an_attend_sampling_bytes(exec->attend);
    fill(fixture);
    enum pp_status status = open_part(exec, fixture);
    bool opened = status == PP_OK;
    if (opened) {
        status = fill_part(exec, fixture);
    }
    if (status == PP_OK) {
        check_attends(exec, fixture, test);
    } else {
        report(test, "room", status == PP_MEMORY, pp_status_name(status));
    }
    if (opened) {
        memset(&fixture->job, 0, sizeof(fixture->job));
        struct an_part *part;
        struct an_part_ref ref = {fixture->handle, 1};
        if (an_exec_find(exec, &ref, false, &part) == PP_OK) {
            an_table_remove(&exec->table, part);
            (void)an_exec_drop_part(exec, part);
        }
    }
    uint64_t grown = an_attend_sampling_bytes(exec->attend) - attend_before;
    uint64_t used = pp_limit_used(&exec->limit) - exec->store.build_scratch_bytes - grown;
    report(test, "memory", used <= used_before, "bytes after close against before open");
    free(fixture);
    return PP_OK;
}
