/*
 * The index build of one layer, all segments of all kv heads over the team, beside the exact attend
 * of the same run. centre_ms and hash_ms are the mean keys and the hashing alone (runs of their
 * own), index_ms the rest of the build: norms and sort.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_common.h"
#include "bench/bench_layer.h"
#include "bench/bench_options.h"
#include "common/run/team.h"

#define ROUNDS 5u

static struct settings {
    const char *estimator, *json;
    uint64_t tokens, kv_heads, dim, k, l, bits, threads;
} settings;

static const struct pp_option options[] = {
    BENCH_NUMBER("tokens", &settings.tokens, "98304", "Held tokens."),
    BENCH_NUMBER("kv-heads", &settings.kv_heads, "8",
                 "K/V heads; the exact attend has four query heads for each."),
    BENCH_NUMBER("dim", &settings.dim, "128", "Head dimension."),
    BENCH_TEXT("estimator", &settings.estimator, "lsh", "NAME", "lsh or sketch."),
    BENCH_NUMBER("k", &settings.k, "10", "lsh: bits a table."),
    BENCH_NUMBER("l", &settings.l, "150", "lsh: tables."),
    BENCH_NUMBER("bits", &settings.bits, "2", "sketch: bits a dimension, 1, 2 or 4."),
    BENCH_THREADS(&settings.threads),
    BENCH_JSON(&settings.json),
};

static void hash_piece(void *context, uint64_t index, uint32_t thread)
{
    struct bench_layer *layer = context;
    const struct bench_segment *segment = &layer->segments[index];
    pp_hash_keys(layer->params.hash, segment->rows.base, segment->rows.row_bytes,
                 segment->rows.dtype, segment->centre, segment->tokens,
                 (uint16_t *)(void *)(layer->scratch + thread * layer->scratch_bytes),
                 (segment->tokens + 31ull) & ~31ull);
}

static void hash_all(struct bench_layer *layer)
{
    pp_team_for(layer->threads, layer->shape.kv_heads * (uint64_t)layer->segments_a_head,
                hash_piece, layer);
}

static enum pp_status build_status;

static void build_all(struct bench_layer *layer)
{
    build_status = bench_layer_build(layer);
}

static enum pp_status measure(struct bench_layer *layer)
{
    double centre[ROUNDS];
    double hash[ROUNDS];
    double total[ROUNDS];
    double exact[ROUNDS];
    build_all(layer);
    PP_TRY(build_status);
    for (uint32_t i = 0; i < ROUNDS; ++i) {
        exact[i] = bench_time_ms(bench_layer_exact, layer);
        centre[i] = bench_time_ms(bench_layer_centres, layer);
        hash[i] = layer->params.hash != NULL ? bench_time_ms(hash_all, layer) : 0.0;
        total[i] = bench_time_ms(build_all, layer);
    }
    double hash_ms = bench_median(hash, ROUNDS);
    double total_ms = bench_median(total, ROUNDS);
    double centre_ms = bench_median(centre, ROUNDS);
    json_t *report = json_object();
    json_object_set_new(report, "bench", json_string("build"));
    json_object_set_new(report, "estimator", json_string(settings.estimator));
    json_object_set_new(report, "tokens", json_integer((json_int_t)layer->tokens));
    json_object_set_new(report, "centre_ms", json_real(centre_ms));
    json_object_set_new(report, "hash_ms", json_real(hash_ms));
    json_object_set_new(report, "index_ms", json_real(total_ms - hash_ms - centre_ms));
    json_object_set_new(report, "total_ms", json_real(total_ms));
    json_object_set_new(report, "exact_ms_median", json_real(bench_median(exact, ROUNDS)));
    json_object_set_new(
        report, "bytes_per_token_kv_head",
        json_real((double)layer->index_bytes / (double)(layer->tokens * layer->shape.kv_heads)));
    return bench_report(report, layer->threads, PP_COMMIT, settings.json);
}

static enum pp_status run_bench(void)
{
    static struct bench_layer layer;
    bool sketch = strcmp(settings.estimator, "sketch") == 0;
    struct pp_estimator estimator = {.kind = PP_LSH};
    if (sketch) {
        estimator = (struct pp_estimator){.kind = PP_SKETCH, .bits = (uint32_t)settings.bits};
    } else {
        estimator.k = (uint32_t)settings.k;
        estimator.l = (uint32_t)settings.l;
    }
    struct pp_shape shape = {.layers = 1,
                             .q_heads = (uint32_t)settings.kv_heads * 4,
                             .kv_heads = (uint32_t)settings.kv_heads,
                             .head_dim = (uint32_t)settings.dim,
                             .scale = 1.0f / sqrtf((float)settings.dim),
                             .kv_dtype = PP_BF16};
    PP_TRY(pp_estimator_resolve(&estimator));
    if (!sketch && strcmp(settings.estimator, "lsh") != 0) {
        return PP_INVALID_ARGUMENT;
    }
    uint32_t threads =
        settings.threads == 0 ? pp_team_threads_default() : (uint32_t)settings.threads;
    PP_TRY(bench_layer_make(&shape, &estimator, settings.tokens, threads, &layer));
    enum pp_status status = measure(&layer);
    bench_layer_free(&layer);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "build_bench",
        .summary = "Measures the index build of one layer.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
