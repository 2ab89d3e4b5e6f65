/*
 * Attends over one layer of a sequence that came in bulk, beside the same tokens appended 64 at a
 * time as decoding does, with its small segments merged and with all of them kept. Through exec
 * without a network; rounds interleaved. It reports each one's time, segments and index bytes.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "attn-node/exec/exec.h"
#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "common/base/rng.h"
#include "common/run/team.h"

#define ROUNDS      21u
#define STEP_TOKENS 64u
#define GROUP       4u
#define POOL_VALUES (1u << 20)
#define ARENA_BYTES (1u << 20)

static struct settings {
    const char *json;
    uint64_t tokens, kv_heads, dim, k, l, threads;
} settings;

static const struct pp_option options[] = {
    BENCH_NUMBER("tokens", &settings.tokens, "98304", "Held tokens; a multiple of 64."),
    BENCH_NUMBER("kv-heads", &settings.kv_heads, "2", "K/V heads, each with four query heads."),
    BENCH_NUMBER("dim", &settings.dim, "128", "Head dimension."),
    BENCH_NUMBER("k", &settings.k, "10", "lsh: bits a table."),
    BENCH_NUMBER("l", &settings.l, "150", "lsh: tables."),
    BENCH_THREADS(&settings.threads),
    BENCH_JSON(&settings.json),
};

enum way { BULK, GROWN, KEPT, WAYS };
static const char *const way_names[WAYS] = {"bulk", "grown", "kept"};

struct bed {
    struct an_exec *exec;
    struct an_job job;
    uint64_t handle;
    uint8_t *arena; /* of the job */
    uint32_t segments;
    uint64_t rows_read;
};

static uint64_t now_us(void *context)
{
    (void)context;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static enum pp_status run_job(struct bed *bed, enum an_job_kind kind)
{
    bed->job.kind = kind;
    bed->job.arena = bed->arena;
    bed->job.arena_bytes = ARENA_BYTES;
    bed->job.arena_used = 0;
    PP_TRY(an_exec_submit(bed->exec, &bed->job));
    while (an_exec_take_done(bed->exec) == NULL) {
        (void)an_exec_poll(bed->exec, 0);
    }
    return bed->job.status;
}

static uint64_t step_bytes(void)
{
    return STEP_TOKENS * settings.kv_heads * settings.dim * sizeof(uint16_t);
}

/* K and V of a step: windows of a pool of Gaussians around one half. */
static enum pp_status append_step(struct bed *bed, const uint16_t *pool, uint64_t step, bool bulk,
                                  uint8_t *memory)
{
    struct pp_rng rng = {.seed = 1 + step};
    uint64_t value_bytes = settings.dim * sizeof(uint16_t);
    for (uint64_t at = 0; at < 2 * step_bytes(); at += value_bytes) {
        uint64_t from = pp_rng_u64(&rng) % (POOL_VALUES - settings.dim);
        memcpy(memory + at, pool + from, value_bytes);
    }
    bed->job.append = (struct an_append_args){
        .part = {bed->handle, 1},
        .start = step * STEP_TOKENS,
        .count = STEP_TOKENS,
        .bulk = bulk,
        .k = pp_span_of(memory, step_bytes()),
        .v = pp_span_of(memory + step_bytes(), step_bytes()),
    };
    return run_job(bed, AN_JOB_APPEND);
}

static enum pp_status open_part(struct bed *bed)
{
    uint32_t heads = (uint32_t)settings.kv_heads;
    bed->job.open = (struct an_open_args){
        .shape = {.layers = 1,
                  .q_heads = heads * GROUP,
                  .kv_heads = heads,
                  .head_dim = (uint32_t)settings.dim,
                  .scale = 1.0f / sqrtf((float)settings.dim),
                  .kv_dtype = PP_BF16},
        .kv_head_count = heads,
        .estimator = {.kind = PP_LSH, .k = (uint32_t)settings.k, .l = (uint32_t)settings.l},
        .hash_seed = 42,
        .generation = 1,
    };
    PP_TRY(run_job(bed, AN_JOB_OPEN));
    bed->handle = bed->job.open.handle;
    return PP_OK;
}

static enum pp_status fill(struct bed *bed, enum way way, const uint16_t *pool, uint32_t threads)
{
    struct an_exec_config config = {
        .clock = {now_us, NULL},
        .memory_limit_bytes = 64ull << 30,
        .threads = threads,
        .seal_tokens = 1024,
        .index_tokens_min = 1024,
        .lease_us = 3600ull * 1000000u,
        .build_sync = true,
        .keep_segments = way == KEPT,
        .hugepages = PP_HUGEPAGES_TRY,
        .queue_depth = 16,
    };
    PP_TRY(an_exec_new(&config, &bed->exec));
    PP_TRY(open_part(bed));
    uint8_t *memory = malloc(2 * step_bytes());
    enum pp_status status = memory != NULL ? PP_OK : PP_MEMORY;
    for (uint64_t i = 0; status == PP_OK && i < settings.tokens / STEP_TOKENS; i++) {
        status = append_step(bed, pool, i, way == BULK, memory);
    }
    free(memory);
    PP_TRY(status);
    bed->job.seal = (struct an_seal_args){.part = {bed->handle, 1}};
    if (way == BULK) {
        PP_TRY(run_job(bed, AN_JOB_SEAL));
    }
    struct an_layer_info layer;
    bed->job.get = (struct an_get_args){.part = {bed->handle, 1}, .layers = &layer};
    PP_TRY(run_job(bed, AN_JOB_GET));
    bed->segments = layer.segments;
    return PP_OK;
}

static enum pp_status attend(struct bed *bed, const float *q, double *ms_out)
{
    struct an_attend_item item = {
        .part = {bed->handle, 1},
        .held_tokens = settings.tokens,
        .q_rows = 1,
        .estimator = {.kind = PP_LSH},
        .q = (const uint8_t *)q,
        .q_bytes = settings.kv_heads * GROUP * settings.dim * sizeof(float),
    };
    bed->job.received_us = now_us(NULL);
    bed->job.attend = (struct an_attend_args){.q_dtype = PP_F32, .items = &item, .item_count = 1};
    PP_TRY(run_job(bed, AN_JOB_ATTEND));
    *ms_out = (double)(now_us(NULL) - bed->job.received_us) * 1e-3;
    bed->rows_read = item.rows_read;
    return item.status;
}

static enum pp_status measure(struct bed *beds, const float *q, uint32_t threads)
{
    double ms[WAYS][ROUNDS];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        for (int way = 0; way < WAYS; way++) {
            PP_TRY(attend(&beds[way], q, &ms[way][i]));
        }
    }
    double bulk_ms = bench_median(ms[BULK], ROUNDS);
    json_t *report =
        json_pack("{s:s, s:I}", "bench", "grow", "tokens", (json_int_t)settings.tokens);
    for (int way = 0; way < WAYS; way++) {
        struct an_exec_usage usage;
        an_exec_usage(beds[way].exec, &usage);
        double rows = (double)(settings.tokens * settings.kv_heads);
        double way_ms = bench_median(ms[way], ROUNDS);
        json_object_set_new(report, way_names[way],
                            json_pack("{s:f, s:f, s:i, s:f, s:f}", "ms_median", way_ms, "of_bulk",
                                      way_ms / bulk_ms, "segments", (int)beds[way].segments,
                                      "bytes_per_token_kv_head", (double)usage.index_bytes / rows,
                                      "rows_share", (double)beds[way].rows_read / rows));
    }
    return bench_report(report, threads, PP_COMMIT, settings.json);
}

static enum pp_status run_bench(void)
{
    if (settings.tokens == 0 || settings.tokens % STEP_TOKENS != 0) {
        return PP_INVALID_ARGUMENT;
    }
    uint32_t threads =
        settings.threads == 0 ? pp_team_threads_default() : (uint32_t)settings.threads;
    static struct bed beds[WAYS];
    struct pp_rng rng = {.seed = 9};
    uint64_t q_values = settings.kv_heads * GROUP * settings.dim;
    uint16_t *pool = malloc(POOL_VALUES * sizeof(*pool));
    float *q = malloc(q_values * sizeof(*q));
    enum pp_status status = pool != NULL && q != NULL ? PP_OK : PP_MEMORY;
    for (uint32_t i = 0; status == PP_OK && i < POOL_VALUES; i++) {
        float value = (float)pp_rng_normal(&rng) + 0.5f;
        pp_dtype_from_f32(PP_BF16, &value, 1, &pool[i]);
    }
    for (uint64_t i = 0; status == PP_OK && i < q_values; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    for (int way = 0; way < WAYS && status == PP_OK; way++) {
        beds[way].arena = aligned_alloc(64, ARENA_BYTES);
        status = beds[way].arena != NULL ? fill(&beds[way], way, pool, threads) : PP_MEMORY;
    }
    if (status == PP_OK) {
        status = measure(beds, q, threads);
    }
    for (int way = 0; way < WAYS; way++) {
        an_exec_destroy(beds[way].exec);
        free(beds[way].arena);
    }
    free(q);
    free(pool);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "grow_bench",
        .summary = "Measures attends over a sequence that grew by decoding.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
