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
#include "common/base/limits.h"
#include "common/base/options.h"
#include "common/run/team.h"

extern char **environ;

static struct decode_settings settings;

#define NUMBER(n, t, d, low, high, h)                                                              \
    {                                                                                              \
        .name = n, .kind = PP_OPTION_U64, .target = &settings.t, .default_text = d,                \
        .value_name = "N", .min = low, .max = high, .help = h                                      \
    }
#define TEXT(n, t, d, v, h)                                                                        \
    {                                                                                              \
        .name = n, .kind = PP_OPTION_TEXT, .target = &settings.t, .default_text = d,               \
        .value_name = v, .help = h                                                                 \
    }

static const struct pp_option options[] = {
    TEXT("model", model, ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf", "PATH",
         "The model, a GGUF file of the Llama family. Empty: none, the remote side alone."),
    TEXT("text", text, "/usr/share/common-licenses/GPL-3", "PATH",
         "What the model reads, over and over until the context is full."),
    NUMBER("context", context, "2048", 256, 1u << 24, "Tokens of the prompt."),
    NUMBER("synthetic-kv", synthetic_kv, "0", 0, 1u << 24,
           "Made up tokens held by the nodes instead, also past the model's context."),
    TEXT("nodes", nodes, "2", "N|LIST",
         "How many nodes to start, or name=host:port,... of running ones."),
    TEXT("node-program", program, "", "PATH", "The attn-node to start. Default: this build's."),
    TEXT("estimator", estimator_text, "lsh", "NAME", "exact or lsh[:k=,l=,t=]."),
    NUMBER("sequences", sequences, "1", 1, DECODE_SEQUENCES_MAX, "Sequences decoded in turn."),
    NUMBER("steps", steps, "32", 1, DECODE_STEPS_MAX, "Tokens measured a sequence."),
    NUMBER("threads", threads, "0", 0, 1024, "Threads of the worker; 0: as many as it may use."),
    NUMBER("node-threads", node_threads, "0", 0, 1024,
           "Threads of a node that is started; 0: its default."),
    NUMBER("layers", layers, "4", 1, PP_LAYERS_MAX, "Layers, without a model."),
    NUMBER("q-heads", q_heads, "32", 1, 1024, "Query heads, without a model."),
    NUMBER("kv-heads", kv_heads, "8", 1, 1024, "K/V heads, without a model."),
    NUMBER("dim", dim, "128", 1, 256, "Head dimension, without a model."),
    TEXT("json", json, "", "PATH", "Append the report here."),
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

static enum pp_status run_bench(struct bench_nodes *nodes)
{
    const struct decode_side *side = settings.model[0] != '\0' ? &decode_model : &decode_remote;
    uint64_t count = 0;
    if (pp_estimator_parse(settings.estimator_text, &settings.estimator) != PP_OK) {
        fprintf(stderr, "decode_bench: --estimator: '%s' is none of " PP_ESTIMATOR_SYNTAX "\n",
                settings.estimator_text);
        return PP_INVALID_ARGUMENT;
    }
    const char *list = settings.nodes;
    if (pp_parse_u64(settings.nodes, &count) == PP_OK) {
        char threads[48];
        snprintf(threads, sizeof(threads), "--threads=%llu",
                 (unsigned long long)settings.node_threads);
        /* Whatever is held has an index: the estimator that is measured is the one that runs. */
        const char *const extra[] = {threads, "--index-tokens-min=1", NULL};
        enum pp_status started = bench_nodes_start(settings.program, count, extra, nodes);
        if (started != PP_OK) {
            fprintf(stderr, "decode_bench: --nodes: %s could not be started, 1 to %u can\n",
                    settings.nodes, BENCH_NODES_MAX);
            return started;
        }
        list = nodes->text;
    }
    enum pp_status status = measure(side, list);
    side->close();
    return status;
}

int main(int argc, char **argv)
{
    static struct bench_nodes nodes;
    struct pp_options *parsed = NULL;
    enum pp_options_outcome outcome;
    struct pp_options_spec spec = {
        .program = "decode_bench",
        .summary = "Measures decode steps of a worker over nodes.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
        .tolerate_foreign_environment = true,
    };
    if (pp_options_parse(&spec, argc, argv, environ, stdout, stderr, &outcome, &parsed) != PP_OK) {
        return 2;
    }
    enum pp_status status = PP_OK;
    if (outcome == PP_OPTIONS_RUN) {
        status = run_bench(&nodes);
        if (status != PP_OK) {
            fprintf(stderr, "decode_bench: %s\n", pp_status_name(status));
        }
        bench_nodes_stop(&nodes);
    }
    pp_options_destroy(parsed);
    return status == PP_OK ? 0 : 1;
}
