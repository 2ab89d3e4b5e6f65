/*
 * A decode step's remote side over real nodes: K/V made up (--synthetic-kv), queries made up, one
 * attend a layer after another as a model would ask for them. Measured a token: all layers. The
 * same with exact, interleaved, gives exact_tokens_per_s. device_ms is 0: no model computes here.
 *
 * Bytes a token and layer: q up 4 * q_heads * dim (+ 2 * q_heads * l for lsh), o down the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_common.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/rng.h"
#include "common/rpc/grpc_transport.h"
#include "common/run/team.h"
#include "gpu-worker/remote/remote.h"

#define APPEND_TOKENS 1024u
#define STEPS_MAX     4096u

extern char **environ;

static struct settings {
    const char *nodes, *program, *estimator, *json;
    uint64_t synthetic_kv, context, sequences, layers, q_heads, kv_heads, dim, steps, spin_us;
    uint64_t node_threads;
} settings;

#define NUMBER(n, t, d, h)                                                                         \
    {                                                                                              \
        .name = n, .kind = PP_OPTION_U64, .target = &settings.t, .default_text = d,                \
        .value_name = "N", .help = h                                                               \
    }
#define TEXT(n, t, d, v, h)                                                                        \
    {                                                                                              \
        .name = n, .kind = PP_OPTION_TEXT, .target = &settings.t, .default_text = d,               \
        .value_name = v, .help = h                                                                 \
    }

static const struct pp_option options[] = {
    TEXT("nodes", nodes, "2", "N|LIST",
         "How many nodes to start, or name=host:port,... of running ones."),
    TEXT("node-program", program, "build/release/attn-node/attn-node", "PATH",
         "The attn-node to start."),
    TEXT("estimator", estimator, "lsh", "NAME", "exact or lsh[:k=,l=,t=]."),
    TEXT("json", json, "", "PATH", "Append the report here."),
    NUMBER("synthetic-kv", synthetic_kv, "16384", "Held tokens a sequence."),
    NUMBER("context", context, "0", "The same under its other name; the larger counts."),
    NUMBER("sequences", sequences, "1",
           "Sequences decoded in turn, all attends of a layer in flight."),
    NUMBER("layers", layers, "4", "Layers."),
    NUMBER("q-heads", q_heads, "32", "Query heads."),
    NUMBER("kv-heads", kv_heads, "8", "K/V heads."),
    NUMBER("dim", dim, "128", "Head dimension."),
    NUMBER("steps", steps, "32", "Tokens measured a sequence."),
    NUMBER("node-threads", node_threads, "0", "Threads of a node that is started; 0: its default."),
    {.name = "spin",
     .kind = PP_OPTION_DURATION,
     .target = &settings.spin_us,
     .default_text = "200us",
     .value_name = "TIME",
     .help = "Spin of the worker's network thread."},
};

struct bench {
    struct pp_clock clock;
    struct pp_transport *transport;
    struct gw_remote *remote;
    struct bench_node nodes[GW_NODES_MAX];
    struct gw_remote_config config;
    struct gw_remote_sequence *sequences[64];
    struct pp_shape shape;
    struct pp_estimator estimator;
    float *q, *o, *lse;
    void *k, *v;
};

struct times {
    double ms[STEPS_MAX];
    double node_ms, network_ms, wait_ms;
    uint64_t steps, keys_read, keys_held;
    bool used;
};

static enum pp_status parse_nodes(struct bench *bench)
{
    const char *at = settings.nodes;
    while (*at != '\0' && bench->config.node_count < GW_NODES_MAX) {
        struct gw_node_address *node = &bench->config.nodes[bench->config.node_count];
        int used = 0;
        if (sscanf(at, "%63[^=]=%255[^,]%n", node->name, node->address, &used) != 2) {
            return PP_INVALID_ARGUMENT;
        }
        bench->config.node_count++;
        at += used;
        at += *at == ',' ? 1 : 0;
    }
    return bench->config.node_count > 0 ? PP_OK : PP_INVALID_ARGUMENT;
}

static enum pp_status start_nodes(struct bench *bench)
{
    uint64_t count = 0;
    char threads[48];
    if (pp_parse_u64(settings.nodes, &count) != PP_OK) {
        return parse_nodes(bench);
    }
    if (count == 0 || count > GW_NODES_MAX) {
        return PP_INVALID_ARGUMENT;
    }
    snprintf(threads, sizeof(threads), "--threads=%llu", (unsigned long long)settings.node_threads);
    const char *const extra[] = {threads, NULL};
    for (uint32_t i = 0; i < count; ++i) {
        PP_TRY(bench_node_start(settings.program, extra, &bench->nodes[i]));
        snprintf(bench->config.nodes[i].name, sizeof(bench->config.nodes[i].name), "node-%u", i);
        snprintf(bench->config.nodes[i].address, sizeof(bench->config.nodes[i].address),
                 "127.0.0.1:%d", bench->nodes[i].port);
        bench->config.node_count = i + 1;
    }
    return PP_OK;
}

static enum pp_status connect_nodes(struct bench *bench)
{
    struct pp_grpc_config grpc = {.clock = bench->clock, .spin_us = settings.spin_us};
    PP_TRY(pp_grpc_transport_new(&grpc, &bench->transport));
    bench->config.transport = bench->transport;
    bench->config.clock = bench->clock;
    bench->config.shard = GW_SHARD_TOKENS;
    bench->config.attend_timeout_us = 10000000;
    bench->config.call_timeout_us = 60000000;
    bench->config.outbox_bytes_max = 64u << 20;
    PP_TRY(gw_remote_new(&bench->config, &bench->remote));
    PP_TRY(gw_remote_start(bench->remote));
    return gw_remote_ready(bench->remote, 20000000);
}

static enum pp_status make_up_rows(struct bench *bench)
{
    struct pp_rng rng = {.seed = 11};
    uint64_t values = APPEND_TOKENS * settings.kv_heads * settings.dim;
    uint64_t heads = settings.q_heads * settings.dim;
    float *draws = malloc(values * sizeof(float));
    bench->k = malloc(values * 2);
    bench->v = malloc(values * 2);
    bench->q = malloc(heads * sizeof(float));
    bench->o = malloc(heads * sizeof(float));
    bench->lse = malloc(settings.q_heads * sizeof(float));
    if (draws == NULL || bench->k == NULL || bench->v == NULL || bench->q == NULL ||
        bench->o == NULL || bench->lse == NULL) {
        free(draws);
        return PP_MEMORY;
    }
    for (int tensor = 0; tensor < 2; ++tensor) {
        for (uint64_t i = 0; i < values; ++i) {
            draws[i] = (float)pp_rng_normal(&rng);
        }
        pp_dtype_from_f32(PP_BF16, draws, values, tensor == 0 ? bench->k : bench->v);
    }
    for (uint64_t i = 0; i < heads; ++i) {
        bench->q[i] = (float)pp_rng_normal(&rng);
    }
    free(draws);
    return PP_OK;
}

/* Fills one sequence layer by layer, as a prefill would; seconds_out: until sealed and indexed. */
static enum pp_status fill(struct bench *bench, uint32_t index, double *seconds_out)
{
    struct gw_remote_sequence_config config = {
        .shape = bench->shape,
        .fingerprint = "decode_bench",
        .fingerprint_bytes = 12,
        .estimator = bench->estimator,
        .hash_seed = 1,
        .tokens_expected = settings.synthetic_kv,
    };
    uint64_t begun_us = pp_clock_now_us(&bench->clock);
    PP_TRY(gw_remote_sequence_open(bench->remote, &config, &bench->sequences[index]));
    struct gw_remote_sequence *sequence = bench->sequences[index];
    for (uint32_t layer = 0; layer < settings.layers; ++layer) {
        for (uint64_t start = 0; start < settings.synthetic_kv; start += APPEND_TOKENS) {
            uint64_t left = settings.synthetic_kv - start;
            uint32_t count = (uint32_t)(left < APPEND_TOKENS ? left : APPEND_TOKENS);
            PP_TRY(gw_remote_append(sequence, layer, start, count, bench->k, bench->v, true));
        }
    }
    PP_TRY(gw_remote_seal(sequence, NULL, NULL));
    *seconds_out = (double)(pp_clock_now_us(&bench->clock) - begun_us) * 1e-6;
    return PP_OK;
}

static enum pp_status one_layer(struct bench *bench, const struct pp_estimator *estimator,
                                uint32_t layer, struct times *times)
{
    struct gw_remote_attend attend = {.layer = layer,
                                      .held_tokens = settings.synthetic_kv,
                                      .q_rows = 1,
                                      .q = bench->q,
                                      .estimator = *estimator};
    for (uint32_t i = 0; i < settings.sequences; ++i) {
        PP_TRY(gw_remote_attend_begin(bench->sequences[i], &attend));
    }
    for (uint32_t i = 0; i < settings.sequences; ++i) {
        struct gw_remote_answer answer = {.o = bench->o, .lse = bench->lse};
        uint64_t begun_us = pp_clock_now_us(&bench->clock);
        PP_TRY(gw_remote_attend_wait(bench->sequences[i], &answer));
        times->wait_ms += (double)(pp_clock_now_us(&bench->clock) - begun_us) * 1e-3;
        times->node_ms += (double)answer.node_us * 1e-3;
        times->network_ms += (double)answer.network_us * 1e-3;
        times->keys_read += answer.keys_read;
        times->keys_held += answer.keys_held;
        times->used = times->used && answer.estimator_used;
    }
    return PP_OK;
}

static enum pp_status one_step(struct bench *bench, const struct pp_estimator *estimator,
                               struct times *times)
{
    uint64_t begun_us = pp_clock_now_us(&bench->clock);
    for (uint32_t layer = 0; layer < settings.layers; ++layer) {
        PP_TRY(one_layer(bench, estimator, layer, times));
    }
    times->ms[times->steps++] = (double)(pp_clock_now_us(&bench->clock) - begun_us) * 1e-3;
    return PP_OK;
}

static enum pp_status report(struct bench *bench, struct times *chosen, struct times *exact,
                             double prefill_s)
{
    double tokens = (double)(chosen->steps * settings.sequences);
    double ms = bench_median(chosen->ms, chosen->steps);
    double exact_ms = bench_median(exact->ms, exact->steps);
    double batch = (double)settings.sequences;
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                  "bench", "decode", "estimator", settings.estimator, "synthetic_kv",
                  (json_int_t)settings.synthetic_kv, "layers", (json_int_t)settings.layers, "nodes",
                  (json_int_t)bench->config.node_count, "sequences", (json_int_t)settings.sequences,
                  "tokens_per_s", batch * 1e3 / ms, "ms_per_token", ms / batch, "device_ms", 0.0,
                  "node_ms", chosen->node_ms / tokens, "network_ms", chosen->network_ms / tokens,
                  "wait_ms", chosen->wait_ms / tokens, "prefill_tokens_per_s",
                  (double)settings.synthetic_kv * batch / prefill_s, "exact_tokens_per_s",
                  batch * 1e3 / exact_ms, "rows_share",
                  (double)chosen->keys_read / (double)chosen->keys_held);
    if (object == NULL) {
        return PP_MEMORY;
    }
    uint32_t threads =
        settings.node_threads == 0 ? pp_team_threads_default() : (uint32_t)settings.node_threads;
    return bench_report(object, threads, PP_COMMIT, settings.json);
}

static enum pp_status measure(struct bench *bench)
{
    static struct times chosen = {.used = true}, exact = {.used = true}, warm;
    static const struct pp_estimator exactly = {.kind = PP_EXACT};
    double seconds = 0;
    PP_TRY(start_nodes(bench));
    PP_TRY(connect_nodes(bench));
    PP_TRY(make_up_rows(bench));
    for (uint32_t i = 0; i < settings.sequences; ++i) {
        double one = 0;
        PP_TRY(fill(bench, i, &one));
        seconds += one;
    }
    for (uint32_t i = 0; i < 4; ++i) {
        PP_TRY(one_step(bench, i % 2 == 0 ? &exactly : &bench->estimator, &warm));
    }
    for (uint64_t step = 0; step < settings.steps; ++step) {
        PP_TRY(one_step(bench, &bench->estimator, &chosen));
        PP_TRY(one_step(bench, &exactly, &exact));
    }
    if (!chosen.used) {
        fprintf(stderr, "decode_bench: the nodes did not use %s\n", settings.estimator);
        return PP_FAILED_PRECONDITION;
    }
    return report(bench, &chosen, &exact, seconds);
}

static void tear_down(struct bench *bench)
{
    for (uint32_t i = 0; i < settings.sequences; ++i) {
        gw_remote_sequence_close(bench->sequences[i]);
    }
    if (bench->remote != NULL) {
        gw_remote_stop(bench->remote);
    }
    gw_remote_destroy(bench->remote);
    if (bench->transport != NULL) {
        bench->transport->ops->destroy(bench->transport);
    }
    for (uint32_t i = 0; i < GW_NODES_MAX; ++i) {
        bench_node_stop(&bench->nodes[i]);
    }
    free(bench->k);
    free(bench->v);
    free(bench->q);
    free(bench->o);
    free(bench->lse);
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct pp_options *parsed = NULL;
    enum pp_options_outcome outcome;
    struct pp_options_spec spec = {
        .program = "decode_bench",
        .summary = "Measures the remote side of decode steps over nodes.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .tolerate_foreign_environment = true,
    };
    if (pp_options_parse(&spec, argc, argv, environ, stdout, stderr, &outcome, &parsed) != PP_OK) {
        return 2;
    }
    if (outcome == PP_OPTIONS_EXIT_0) {
        return 0;
    }
    if (settings.context > settings.synthetic_kv) {
        settings.synthetic_kv = settings.context;
    }
    bench.clock = pp_clock_system();
    bench.shape = (struct pp_shape){.layers = (uint32_t)settings.layers,
                                    .q_heads = (uint32_t)settings.q_heads,
                                    .kv_heads = (uint32_t)settings.kv_heads,
                                    .head_dim = (uint32_t)settings.dim,
                                    .scale = 0.08838835f,
                                    .kv_dtype = PP_BF16};
    enum pp_status status = pp_estimator_parse(settings.estimator, &bench.estimator);
    if (settings.sequences == 0 || settings.sequences > 64 || settings.steps > STEPS_MAX ||
        settings.steps == 0 || settings.synthetic_kv == 0) {
        status = PP_INVALID_ARGUMENT;
    }
    status = status == PP_OK ? measure(&bench) : status;
    if (status != PP_OK) {
        fprintf(stderr, "decode_bench: %s\n", pp_status_name(status));
    }
    tear_down(&bench);
    pp_options_destroy(parsed);
    return status == PP_OK ? 0 : 1;
}
