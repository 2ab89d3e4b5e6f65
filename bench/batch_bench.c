/*
 * Decode steps of several sequences over nodes: one sequence at a time, all in one batch, and all
 * in two micro-batches that take turns. The three take turns within a run, so that their ratios are
 * of one machine at one time. With --delay-us the nodes are behind a relay that holds every byte
 * for so long, each way.
 *
 * Times are medians of steps: of one token, or of one token of each sequence.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/batch_bench_relay.h"
#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "common/base/log.h"
#include "common/run/team.h"
#include "gpu-worker/api/worker.h"

#define STEPS_MAX  1024u
#define WARM_STEPS 2u
#define WAYS       3u

static struct {
    const char *model, *text, *estimator_text, *json;
    uint64_t context, nodes, sequences, steps, threads, node_threads, delay_us;
    struct pp_estimator estimator;
} settings;

static struct {
    struct gw_worker worker;
    struct bench_nodes nodes;
    struct batch_relay *relay;
    struct gw_sequence *sequences[GW_BATCH_MAX];
    float *logits; /* [sequences][vocab] */
    uint32_t *ids;
    size_t id_count;
} bench;

/* What a way's steps took. */
struct way {
    const char *name;
    uint32_t micro_batches; /* 0: one sequence at a time */
    double ms[STEPS_MAX], wait_ms[STEPS_MAX];
    uint64_t steps;
};

static const struct pp_option options[] = {
    BENCH_TEXT("model", &settings.model, ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf", "PATH",
               "The model, a GGUF file of the Llama family."),
    BENCH_TEXT("text", &settings.text, "/usr/share/common-licenses/GPL-3", "PATH",
               "What the model reads: each sequence from another place on."),
    BENCH_NUMBER("context", &settings.context, "1024", "Tokens of each prompt.", .min = 256,
                 .max = 1u << 20),
    BENCH_NUMBER("nodes", &settings.nodes, "2", "How many nodes to start.", .min = 1,
                 .max = BENCH_NODES_MAX),
    BENCH_TEXT("estimator", &settings.estimator_text, "exact", "NAME",
               "One of " PP_ESTIMATOR_SYNTAX "."),
    BENCH_NUMBER("sequences", &settings.sequences, "4", "Sequences.", .min = 2,
                 .max = GW_BATCH_MAX),
    BENCH_NUMBER("steps", &settings.steps, "32", "Steps measured each way.", .min = 1,
                 .max = STEPS_MAX),
    BENCH_NUMBER("delay-us", &settings.delay_us, "0",
                 "Microseconds that a relay adds each way; 0: no relay.", .max = 1000000),
    BENCH_THREADS(&settings.threads),
    BENCH_NUMBER("node-threads", &settings.node_threads, "1", "Threads of a node.", .max = 1024),
    BENCH_JSON(&settings.json),
};

static enum pp_status open_worker(const char *nodes)
{
    struct gw_worker_options how = {.model = settings.model,
                                    .nodes = nodes,
                                    .context = settings.context + WAYS * settings.steps + 64,
                                    .threads = settings.threads,
                                    .hash_seed = 1,
                                    .node_timeout_us = 30000000,
                                    .nodes_wait_us = 10000000,
                                    .dense_layers = "",
                                    .quiet = true,
                                    .log_level = PP_LOG_WARN};
    char *text;
    size_t bytes;
    PP_TRY(gw_worker_open(&bench.worker, &how, stderr));
    PP_TRY(gw_file_read(settings.text, stderr, &text, &bytes));
    enum pp_status status = gw_tokenizer_encode(bench.worker.tokenizer, text, bytes, false,
                                                &bench.ids, &bench.id_count);
    free(text);
    bench.logits =
        malloc(settings.sequences * gw_engine_info(bench.worker.engine)->vocab * sizeof(float));
    return status == PP_OK && bench.logits == NULL ? PP_MEMORY : status;
}

/* The relay's addresses in place of the nodes' own. */
static enum pp_status put_relay_between(char *text_out, size_t bytes)
{
    int ports[BENCH_NODES_MAX], through[BENCH_NODES_MAX];
    size_t at = 0;
    for (uint32_t i = 0; i < bench.nodes.count; i++) {
        ports[i] = bench.nodes.node[i].port;
    }
    PP_TRY(batch_relay_start(ports, bench.nodes.count, settings.delay_us, through, &bench.relay));
    for (uint32_t i = 0; i < bench.nodes.count; i++) {
        at += (size_t)snprintf(text_out + at, bytes - at, "%snode%u=127.0.0.1:%d", i > 0 ? "," : "",
                               i, through[i]);
    }
    return PP_OK;
}

static enum pp_status prefill(uint32_t index)
{
    const struct gw_sequence_options how = {
        .remote = bench.worker.remote,
        .estimator = settings.estimator,
        .hash_seed = 1,
        .step_seed = 1 + index,
        .tokens_expected = settings.context + WAYS * (settings.steps + WARM_STEPS)};
    uint64_t from = index * 400u;
    if (from + settings.context > bench.id_count) {
        fprintf(stderr, "batch_bench: --text has %zu tokens, too few\n", bench.id_count);
        return PP_INVALID_ARGUMENT;
    }
    PP_TRY(gw_sequence_open(bench.worker.engine, &how, &bench.sequences[index]));
    return gw_sequence_prefill(bench.sequences[index], bench.ids + from, (uint32_t)settings.context,
                               0, NULL, NULL, NULL);
}

/* A token of each sequence, or of one of them. */
static enum pp_status step(struct way *way, uint64_t turn, bool counts)
{
    struct gw_step steps[GW_BATCH_MAX];
    bool alone = way->micro_batches == 0;
    uint32_t count = alone ? 1 : (uint32_t)settings.sequences;
    uint64_t vocab = gw_engine_info(bench.worker.engine)->vocab;
    gw_engine_micro_batches(bench.worker.engine, alone ? 1 : way->micro_batches);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t which = alone ? turn % settings.sequences : i;
        steps[i] = (struct gw_step){.sequence = bench.sequences[which],
                                    .id = bench.ids[(turn + 17 * which) % bench.id_count],
                                    .logits_out = bench.logits + i * vocab};
    }
    PP_TRY(gw_engine_step(bench.worker.engine, steps, count));
    for (uint32_t i = 0; i < count; i++) {
        PP_TRY(steps[i].status);
    }
    if (counts) {
        way->ms[way->steps] = (double)steps[0].stats.total_us * 1e-3;
        way->wait_ms[way->steps++] = (double)steps[0].stats.wait_us * 1e-3;
    }
    return PP_OK;
}

static enum pp_status report(struct way *ways)
{
    double tokens_per_s[WAYS];
    json_t *object = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I}", "bench", "batch", "estimator", settings.estimator_text,
        "context", (json_int_t)settings.context, "nodes", (json_int_t)settings.nodes, "sequences",
        (json_int_t)settings.sequences, "delay_us", (json_int_t)settings.delay_us);
    for (uint32_t i = 0; i < WAYS; i++) {
        double ms = bench_median(ways[i].ms, ways[i].steps);
        double tokens = ways[i].micro_batches == 0 ? 1.0 : (double)settings.sequences;
        tokens_per_s[i] = tokens * 1e3 / ms;
        json_object_set_new(object, ways[i].name,
                            json_pack("{s:f, s:f, s:f, s:f}", "tokens_per_s", tokens_per_s[i], "ms",
                                      ms, "wait_ms", bench_median(ways[i].wait_ms, ways[i].steps),
                                      "of_one", tokens_per_s[i] / tokens_per_s[0]));
    }
    uint32_t threads = (uint32_t)settings.threads;
    return bench_report(object, threads == 0 ? pp_team_threads_default() : threads, PP_COMMIT,
                        settings.json);
}

static enum pp_status measure(void)
{
    static struct way ways[WAYS] = {{.name = "one"},
                                    {.name = "batch", .micro_batches = 1},
                                    {.name = "micro_batches", .micro_batches = 2}};
    uint64_t turn = 0;
    for (uint32_t i = 0; i < settings.sequences; i++) {
        PP_TRY(prefill(i));
    }
    for (uint64_t i = 0; i < settings.steps + WARM_STEPS; i++) {
        for (uint32_t way = 0; way < WAYS; way++) {
            PP_TRY(step(&ways[way], turn++, i >= WARM_STEPS));
        }
    }
    return report(ways);
}

static enum pp_status run_bench(void)
{
    char threads[48], through[BENCH_NODES_MAX * 32u];
    if (pp_estimator_parse(settings.estimator_text, &settings.estimator) != PP_OK) {
        fprintf(stderr, "batch_bench: --estimator: '%s' is none of " PP_ESTIMATOR_SYNTAX "\n",
                settings.estimator_text);
        return PP_INVALID_ARGUMENT;
    }
    snprintf(threads, sizeof(threads), "--threads=%llu", (unsigned long long)settings.node_threads);
    const char *const extra[] = {threads, NULL};
    PP_TRY(bench_nodes_start("", settings.nodes, extra, &bench.nodes));
    enum pp_status status =
        settings.delay_us > 0 ? put_relay_between(through, sizeof(through)) : PP_OK;
    status =
        status == PP_OK ? open_worker(settings.delay_us > 0 ? through : bench.nodes.text) : status;
    status = status == PP_OK ? measure() : status;
    for (uint32_t i = 0; i < GW_BATCH_MAX; i++) {
        gw_sequence_close(bench.sequences[i]);
    }
    gw_worker_close(&bench.worker);
    batch_relay_stop(bench.relay);
    bench_nodes_stop(&bench.nodes);
    free(bench.logits);
    free(bench.ids);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "batch_bench",
        .summary = "Measures decode steps of several sequences at once.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
