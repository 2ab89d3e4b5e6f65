/*
 * Simulated scale: many nodes, many long sequences, placed by gpu-worker/remote/placement.c as
 * several workers would that hear the nodes' figures late. It reports how even the nodes are used,
 * and what a step costs by the nodes that it touches: messages counted, times from a model whose
 * constants are options, measured by the other programs (bench/RESULTS.md). Nothing is timed here.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/placement.h"

#define NODES_MAX   1024u
#define WORKERS_MAX 64u
#define SEED        20260u

static struct settings {
    const char *json;
    uint64_t nodes, sequences, tokens, workers, layers, token_bytes, fill_percent;
    double round_trip_us, message_us, node_us, ktoken_us;
} settings;

static const struct pp_option options[] = {
    BENCH_NUMBER("nodes", &settings.nodes, "64", "Nodes, at most 1024.", .min = 1),
    BENCH_NUMBER("sequences", &settings.sequences, "1000", "Sequences placed.", .min = 1),
    BENCH_NUMBER("tokens", &settings.tokens, "1048576", "Tokens of each.", .min = 1),
    BENCH_NUMBER("workers", &settings.workers, "8", "Workers that take turns, at most 64.",
                 .min = 1),
    BENCH_NUMBER("layers", &settings.layers, "32", "Layers of the model.", .min = 1),
    BENCH_NUMBER("token-bytes", &settings.token_bytes, "139776",
                 "Bytes of a token: rows and codes of 8 kv heads of 128 in bf16, all layers.",
                 .min = 1),
    BENCH_NUMBER("fill-percent", &settings.fill_percent, "75",
                 "How full the nodes are when all are placed.", .min = 1),
    BENCH_REAL("round-trip-us", &settings.round_trip_us, "97", "US", 1e9,
               "A small attend, from dispatch to answer."),
    BENCH_REAL("message-us", &settings.message_us, "12", "US", 1e9,
               "What each further node of an attend costs the worker."),
    BENCH_REAL("node-us", &settings.node_us, "73", "US", 1e9,
               "What an attend costs a node besides reading."),
    BENCH_REAL("ktoken-us", &settings.ktoken_us, "34", "US", 1e9,
               "What attending a thousand held tokens costs a node."),
    BENCH_JSON(&settings.json),
};

static struct gw_placement_node truth[NODES_MAX];              /* as the nodes are */
static struct gw_placement_node heard[WORKERS_MAX][NODES_MAX]; /* as each worker thinks */
static uint64_t memory[NODES_MAX];

/* Nodes of one size, or of three: 1, 2 and 4 parts; together just large enough. */
static void make_nodes(bool sizes)
{
    double total = (double)settings.sequences * (double)settings.tokens *
                   (double)settings.token_bytes * 100.0 / (double)settings.fill_percent;
    double parts = 0.0;
    for (uint32_t i = 0; i < settings.nodes; i++) {
        parts += sizes ? (double)(1u << i % 3) : 1.0;
    }
    for (uint32_t i = 0; i < settings.nodes; i++) {
        char name[24];
        snprintf(name, sizeof(name), "node-%u", i);
        memory[i] = (uint64_t)(total * (sizes ? (double)(1u << i % 3) : 1.0) / parts);
        truth[i] = (struct gw_placement_node){.key = gw_placement_key(name),
                                              .memory_bytes = memory[i],
                                              .free_bytes = memory[i],
                                              .up_us = GW_PLACEMENT_SLOW_START_US,
                                              .open = true};
    }
}

/* Whether the chosen nodes take their shares: then the worker hears what each has left. */
static bool open_on(struct gw_placement_node *mine, const uint32_t *chosen, uint32_t count,
                    uint64_t piece)
{
    for (uint32_t i = 0; i < count; i++) {
        if (truth[chosen[i]].free_bytes < piece) {
            return false;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        truth[chosen[i]].free_bytes -= piece;
        mine[chosen[i]].free_bytes = truth[chosen[i]].free_bytes;
    }
    return true;
}

/* One sequence; a worker that was refused asks all nodes, and tries once more. */
static enum pp_status place_one(struct gw_placement_node *mine, uint64_t key, uint32_t spans)
{
    uint64_t bytes = settings.tokens * settings.token_bytes;
    for (uint32_t tries = 0; tries < 2; tries++) {
        uint32_t chosen[NODES_MAX], count;
        PP_TRY(
            gw_placement_spread(mine, (uint32_t)settings.nodes, key, bytes, spans, chosen, &count));
        if (open_on(mine, chosen, count, bytes / count)) {
            return PP_OK;
        }
        memcpy(mine, truth, sizeof(truth));
    }
    return PP_MEMORY;
}

/* Places every sequence on `spans` nodes; workers hear all figures every `period` sequences, and a
 * node's own with the answer of every open. */
static enum pp_status place(uint32_t spans, uint64_t period)
{
    for (uint64_t sequence = 0; sequence < settings.sequences; sequence++) {
        if (sequence % period == 0) {
            for (uint64_t worker = 0; worker < settings.workers; worker++) {
                memcpy(heard[worker], truth, sizeof(truth));
            }
        }
        PP_TRY(place_one(heard[sequence % settings.workers], pp_rng_at(SEED, sequence), spans));
    }
    return PP_OK;
}

/* The largest used share of a node over the used share of all. */
static double fullest(void)
{
    double used = 0.0, size = 0.0, most = 0.0;
    for (uint32_t i = 0; i < settings.nodes; i++) {
        double mine = (double)(memory[i] - truth[i].free_bytes);
        used += mine;
        size += (double)memory[i];
        most = mine / (double)memory[i] > most ? mine / (double)memory[i] : most;
    }
    return most / (used / size);
}

static enum pp_status report_placement(bool sizes, uint32_t spans, uint64_t period)
{
    make_nodes(sizes);
    PP_TRY(place(spans, period));
    json_t *report = json_pack(
        "{s:s, s:I, s:I, s:I, s:s, s:i, s:I, s:f}", "bench", "placement", "nodes",
        (json_int_t)settings.nodes, "sequences", (json_int_t)settings.sequences, "tokens",
        (json_int_t)settings.tokens, "memory", sizes ? "1:2:4" : "equal", "nodes_a_sequence",
        (int)spans, "figures_every", (json_int_t)period, "max_over_mean", fullest());
    return bench_report(report, 1, PP_COMMIT, settings.json);
}

/* A layer: the requests go out one after the other, the slowest node reads, answers come back. */
static enum pp_status report_step(uint32_t spans)
{
    double reading_us = settings.ktoken_us * (double)settings.tokens * 1e-3;
    double layer_us =
        settings.round_trip_us + settings.message_us * (spans - 1) + reading_us / (double)spans;
    double nodes_us = (double)settings.layers * (settings.node_us * spans + reading_us);
    json_t *report =
        json_pack("{s:s, s:I, s:i, s:I, s:f, s:f}", "bench", "placement_step", "tokens",
                  (json_int_t)settings.tokens, "nodes_a_sequence", (int)spans, "messages_a_step",
                  (json_int_t)(2 * settings.layers * spans), "step_ms",
                  layer_us * (double)settings.layers * 1e-3, "steps_per_s_of_all_nodes",
                  (double)settings.nodes * 1e6 / nodes_us);
    return bench_report(report, 1, PP_COMMIT, settings.json);
}

static enum pp_status run_bench(void)
{
    static const uint64_t periods[] = {1, 64};
    if (settings.nodes > NODES_MAX || settings.workers > WORKERS_MAX ||
        settings.fill_percent > 100) {
        return PP_OUT_OF_RANGE;
    }
    for (int sizes = 0; sizes < 2; sizes++) {
        for (uint32_t period = 0; period < 2; period++) {
            for (uint32_t spans = 1; spans <= 64 && spans <= settings.nodes; spans *= 4) {
                PP_TRY(report_placement(sizes == 1, spans, periods[period]));
            }
        }
    }
    for (uint32_t spans = 1; spans <= settings.nodes; spans *= 2) {
        PP_TRY(report_step(spans));
    }
    return PP_OK;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "placement_bench",
        .summary = "Places many long sequences on many nodes and counts what a step then costs.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
