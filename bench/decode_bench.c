/*
 * Decode steps over nodes. With a model (the default) a worker runs it whole: prefill of --context
 * tokens of a text, or --synthetic-kv made up ones, then steps. Without (--model=) only the remote
 * side runs, in the shape that the options say: what nodes and network cost a model that is not at
 * hand. Steps with the estimator and exact ones take turns, so that both figures are of one run.
 *
 * Times are a token's, over all layers: device_ms computing here, wait_ms waiting for nodes,
 * node_ms the slowest node's own, network_ms dispatch to last answer less that.
 * Bytes a token and layer: q up 4 * q_heads * dim (+ 2 * q_heads * l for lsh), o down the same.
 */
#include "bench/decode_bench.h"

#include <stdio.h>
#include <string.h>

#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "common/base/limits.h"
#include "common/run/team.h"

static struct decode_settings settings;

static const struct pp_option options[] = {
    BENCH_TEXT("model", &settings.model, ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf", "PATH",
               "The model, a GGUF file of the Llama family. Empty: none, the remote side alone."),
    BENCH_TEXT("text", &settings.text, "/usr/share/common-licenses/GPL-3", "PATH",
               "What the model reads, over and over until the context is full."),
    BENCH_NUMBER("context", &settings.context, "2048", "Tokens of the prompt.", .min = 256,
                 .max = 1u << 24),
    BENCH_NUMBER("synthetic-kv", &settings.synthetic_kv, "0",
                 "Made up tokens held by the nodes instead, also past the model's context.",
                 .max = 1u << 24),
    BENCH_TEXT("nodes", &settings.nodes, "2", "N|LIST",
               "How many nodes to start, or name=host:port,... of running ones."),
    BENCH_TEXT("node-program", &settings.program, "", "PATH",
               "The attn-node to start. Default: this build's."),
    BENCH_TEXT("estimator", &settings.estimator_text, "sketch", "NAME",
               "One of " PP_ESTIMATOR_SYNTAX "."),
    BENCH_NUMBER("sequences", &settings.sequences, "1", "Sequences decoded in turn.", .min = 1,
                 .max = DECODE_SEQUENCES_MAX),
    BENCH_NUMBER("steps", &settings.steps, "32", "Tokens measured a sequence.", .min = 1,
                 .max = DECODE_STEPS_MAX),
    BENCH_NUMBER("threads", &settings.threads, "0",
                 "Threads of the worker; 0: as many as it may use.", .max = 1024),
    BENCH_NUMBER("node-threads", &settings.node_threads, "0",
                 "Threads of a node that is started; 0: its default.", .max = 1024),
    BENCH_NUMBER("layers", &settings.layers, "4", "Layers, without a model.", .min = 1,
                 .max = PP_LAYERS_MAX),
    BENCH_NUMBER("q-heads", &settings.q_heads, "32", "Query heads, without a model.", .min = 1,
                 .max = 1024),
    BENCH_NUMBER("kv-heads", &settings.kv_heads, "8", "K/V heads, without a model.", .min = 1,
                 .max = 1024),
    BENCH_NUMBER("dim", &settings.dim, "128", "Head dimension, without a model.", .min = 1,
                 .max = 256),
    BENCH_JSON(&settings.json),
};

static enum pp_status report(const struct decode_start *start, struct decode_times *chosen,
                             struct decode_times *exact)
{
    double sequences = (double)settings.sequences;
    double tokens = (double)chosen->steps * sequences;
    double ms = bench_median(chosen->ms, chosen->steps);
    double exact_ms = bench_median(exact->ms, exact->steps);
    const char *slash = strrchr(settings.model, '/');
    json_t *object = json_pack(
        "{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
        "bench", "decode", "model", slash == NULL ? settings.model : slash + 1, "estimator",
        settings.estimator_text, "context", (json_int_t)settings.context, "synthetic_kv",
        (json_int_t)settings.synthetic_kv, "tokens_held", (json_int_t)start->held_tokens, "layers",
        (json_int_t)start->layers, "sequences", (json_int_t)settings.sequences, "tokens_per_s",
        sequences * 1e3 / ms, "ms_per_token", ms / sequences, "device_ms",
        chosen->device_ms / tokens, "node_ms", chosen->node_ms / tokens, "network_ms",
        chosen->network_ms / tokens, "wait_ms", chosen->wait_ms / tokens, "prefill_tokens_per_s",
        start->prefill_tokens_per_s, "exact_tokens_per_s", sequences * 1e3 / exact_ms, "rows_share",
        (double)chosen->keys_read / (double)chosen->keys_held);
    if (object == NULL) {
        return PP_MEMORY;
    }
    json_object_set_new(object, "nodes", json_string(settings.nodes));
    uint32_t threads = (uint32_t)settings.threads;
    return bench_report(object, threads == 0 ? pp_team_threads_default() : threads, PP_COMMIT,
                        settings.json);
}

static enum pp_status measure(const struct decode_side *side, const char *nodes)
{
    static struct decode_times chosen = {.used = true}, exact = {.used = true}, warm;
    static const struct pp_estimator exactly = {.kind = PP_EXACT};
    struct decode_start start = {0};
    PP_TRY(side->open(&settings, nodes, &start));
    for (uint32_t i = 0; i < DECODE_WARM_STEPS; ++i) {
        PP_TRY(side->step(&settings, i % 2 == 0 ? &exactly : &settings.estimator, &warm));
    }
    for (uint64_t step = 0; step < settings.steps; ++step) {
        PP_TRY(side->step(&settings, &settings.estimator, &chosen));
        PP_TRY(side->step(&settings, &exactly, &exact));
    }
    if (!chosen.used || chosen.keys_held == 0) {
        fprintf(stderr, "decode_bench: the nodes did not use %s\n", settings.estimator_text);
        return PP_FAILED_PRECONDITION;
    }
    return report(&start, &chosen, &exact);
}

/* Nodes of settings.nodes, as many as it says: their list of addresses. */
static enum pp_status start_nodes(uint64_t count, struct bench_nodes *nodes_out)
{
    char threads[48];
    snprintf(threads, sizeof(threads), "--threads=%llu", (unsigned long long)settings.node_threads);
    /* Whatever is held has an index: the estimator that is measured is the one that runs. */
    const char *const extra[] = {threads, "--index-tokens-min=1", NULL};
    enum pp_status status = bench_nodes_start(settings.program, count, extra, nodes_out);
    if (status != PP_OK) {
        fprintf(stderr, "decode_bench: --nodes: %s could not be started, 1 to %u can\n",
                settings.nodes, BENCH_NODES_MAX);
    }
    return status;
}

static enum pp_status run_bench(void)
{
    static struct bench_nodes nodes;
    const struct decode_side *side = settings.model[0] != '\0' ? &decode_model : &decode_remote;
    uint64_t count = 0;
    if (pp_estimator_parse(settings.estimator_text, &settings.estimator) != PP_OK) {
        fprintf(stderr, "decode_bench: --estimator: '%s' is none of " PP_ESTIMATOR_SYNTAX "\n",
                settings.estimator_text);
        return PP_INVALID_ARGUMENT;
    }
    const char *list = settings.nodes;
    if (pp_parse_u64(settings.nodes, &count) == PP_OK) {
        PP_TRY(start_nodes(count, &nodes));
        list = nodes.text;
    }
    enum pp_status status = measure(side, list);
    side->close();
    bench_nodes_stop(&nodes);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "decode_bench",
        .summary = "Measures decode steps of a worker over nodes.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
