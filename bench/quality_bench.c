/*
 * What an estimator costs in quality, on a real model and text: one node is started, the text's
 * last tokens are decoded over it, and next to every answer of the node stands its exact one.
 *
 * error_mean: |o' - o| / |o| of the node's answers, over layers, heads and steps, with the model's
 * own queries. kl_mean, top1_agreement: of the logits against a run without nodes. ppl: of the
 * text. Needles: quality_bench_needle.h. Fails when the estimator was not used.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attn-node/index/index.h"
#include "bench/bench_common.h"
#include "bench/quality_bench_needle.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/run/team.h"
#include "gpu-worker/api/eval.h"
#include "gpu-worker/api/eval_text.h"

#define MEASURED_TOKENS  64u
#define STEP_SEED        1u
#define NODE_TIMEOUT_US  (30u * 1000u * 1000u)
#define NODES_WAIT_US    10000000u
#define TABLE_ROW        "%-20s %10s %10s %10s %8s %9s %7s %11s\n"
#define INDEX_TOKENS_MIN "--index-tokens-min=1" /* the estimator is forced */

static struct settings {
    const char *model, *text, *estimators, *json;
    uint64_t context;
    bool balance;
} settings;

static const struct pp_option options[] = {
    {.name = "model",
     .kind = PP_OPTION_TEXT,
     .target = &settings.model,
     .default_text = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf",
     .value_name = "PATH",
     .help = "The model, a GGUF file of the Llama family."},
    {.name = "text",
     .kind = PP_OPTION_TEXT,
     .target = &settings.text,
     .default_text = "/usr/share/common-licenses/GPL-3",
     .value_name = "PATH",
     .help = "The text to measure on."},
    {.name = "context",
     .kind = PP_OPTION_U64,
     .target = &settings.context,
     .default_text = "2048",
     .value_name = "TOKENS",
     .min = 256,
     .max = 1u << 26,
     .help = "Tokens used of the text; the last 64 are measured."},
    {.name = "estimators",
     .kind = PP_OPTION_TEXT,
     .target = &settings.estimators,
     .default_text = "exact,lsh",
     .value_name = "LIST",
     .help = "exact, lsh, lsh:k=10,l=150,t=2, sketch:bits=2,share=0.04, several with commas."},
    {.name = "balance",
     .kind = PP_OPTION_BOOL,
     .target = &settings.balance,
     .default_text = "true",
     .help = "Sketches are balanced by what the prompt says of queries and keys."},
    {.name = "json",
     .kind = PP_OPTION_TEXT,
     .target = &settings.json,
     .default_text = "",
     .value_name = "PATH",
     .help = "Append one JSON object a line and estimator."},
};

struct bench {
    struct bench_nodes nodes;
    struct gw_worker worker;
    struct gw_eval_text text;
    struct gw_progress progress;
    struct gw_progress *bar; /* NULL where stderr is no terminal */
    struct gw_eval_estimator estimators[GW_EVAL_ESTIMATORS_MAX];
    uint32_t estimator_count;
};

/* Of an index over so many held tokens, in segments as nodes cut them. */
static double index_bytes(const struct pp_estimator *estimator, uint32_t dim, uint64_t tokens)
{
    const struct an_index_params params = {.estimator = *estimator};
    uint64_t bytes = 0;
    for (uint64_t done = 0; done < tokens; done += PP_SEGMENT_TOKENS_MAX) {
        uint64_t left = tokens - done;
        bytes += an_index_bytes(
            &params, dim, (uint32_t)(left < PP_SEGMENT_TOKENS_MAX ? left : PP_SEGMENT_TOKENS_MAX));
    }
    return tokens == 0 ? 0.0 : (double)bytes / (double)tokens;
}

static enum pp_status open_all(struct bench *bench)
{
    const char *const extra[] = {INDEX_TOKENS_MIN, NULL};
    PP_TRY(bench_nodes_start(NULL, 1, extra, &bench->nodes));
    struct gw_worker_options worker = {.model = settings.model,
                                       .nodes = bench->nodes.text,
                                       .context = settings.context,
                                       .hash_seed = 1,
                                       .node_timeout_us = NODE_TIMEOUT_US,
                                       .nodes_wait_us = NODES_WAIT_US,
                                       .dense_layers = "",
                                       .log_level = PP_LOG_WARN};
    char *text;
    size_t bytes;
    PP_TRY(gw_worker_open(&bench->worker, &worker, stderr));
    PP_TRY(gw_file_read(settings.text, stderr, &text, &bytes));
    enum pp_status status = gw_eval_text_init(&bench->worker, settings.text, text, bytes,
                                              MEASURED_TOKENS, stderr, &bench->text);
    free(text);
    bool terminal = isatty(STDERR_FILENO) == 1;
    gw_progress_init(&bench->progress, stderr, terminal, bench->worker.clock);
    bench->bar = terminal ? &bench->progress : NULL;
    return status;
}

static enum pp_status report(struct bench *bench, const struct gw_eval_estimator *estimator,
                             const struct gw_eval_run *run, uint32_t correct, uint64_t held)
{
    char texts[7][32];
    double rows = (double)run->score.rows;
    double share = (double)run->steps.keys_read / (double)run->steps.keys_held;
    double error = run->steps.error_sum / (double)run->steps.errors;
    double kl = run->score.kl_sum / rows, top1 = (double)run->score.top1_same / rows;
    double ppl = gw_eval_score_perplexity(&run->score);
    double bytes = index_bytes(&estimator->estimator,
                               gw_engine_info(bench->worker.engine)->shape.head_dim, held);
    snprintf(texts[0], sizeof(texts[0]), "%.4f", share);
    snprintf(texts[1], sizeof(texts[1]), "%.3e", error);
    snprintf(texts[2], sizeof(texts[2]), "%.3e", kl);
    snprintf(texts[3], sizeof(texts[3]), "%.4f", top1);
    snprintf(texts[4], sizeof(texts[4]), "%.4f", ppl);
    snprintf(texts[5], sizeof(texts[5]), "%u/%u", correct, NEEDLE_COUNT);
    snprintf(texts[6], sizeof(texts[6]), "%.1f", bytes);
    fprintf(stderr, TABLE_ROW, estimator->text, texts[0], texts[1], texts[2], texts[3], texts[4],
            texts[5], texts[6]);
    json_t *object = json_object();
    json_object_set_new(object, "bench", json_string("quality"));
    json_object_set_new(object, "estimator", json_string(estimator->text));
    json_object_set_new(object, "context", json_integer((json_int_t)bench->text.id_count));
    json_object_set_new(object, "rows_share", json_real(share));
    json_object_set_new(object, "error_mean", json_real(error));
    json_object_set_new(object, "kl_mean", json_real(kl));
    json_object_set_new(object, "top1_agreement", json_real(top1));
    json_object_set_new(object, "ppl", json_real(ppl));
    json_object_set_new(object, "needle_correct", json_integer(correct));
    json_object_set_new(object, "needle_total", json_integer(NEEDLE_COUNT));
    json_object_set_new(object, "index_bytes_per_token_kv_head", json_real(bytes));
    return bench_report(object, pp_team_threads_default(), PP_COMMIT, settings.json);
}

/* The text's run; its sequence is closed before the needles open theirs. */
static enum pp_status run_text(struct bench *bench, const struct gw_eval_estimator *estimator,
                               const struct gw_sequence_options *opening,
                               struct gw_eval_run *run_out, uint64_t *held_out)
{
    struct gw_sequence *sequence = NULL;
    enum pp_status status = gw_sequence_open(bench->worker.engine, opening, &sequence);
    if (status == PP_OK) {
        status = gw_eval_text_prefill(&bench->text, sequence, bench->bar);
    }
    if (status == PP_OK) {
        status = gw_eval_text_run(&bench->text, sequence, bench->bar, run_out);
    }
    if (status != PP_OK) {
        gw_worker_explain(stderr, estimator->text, status, sequence);
    } else {
        *held_out = gw_sequence_left(sequence);
    }
    gw_sequence_close(sequence);
    PP_TRY(status);
    if (run_out->steps.errors == 0) {
        fprintf(stderr, "quality_bench: the node did not use %s\n", estimator->text);
        return PP_FAILED_PRECONDITION;
    }
    return PP_OK;
}

static enum pp_status run_estimator(struct bench *bench, const struct gw_eval_estimator *estimator)
{
    struct gw_eval_run run;
    uint64_t held = 0;
    uint32_t correct = 0;
    struct gw_sequence_options opening = {.remote = bench->worker.remote,
                                          .estimator = estimator->estimator,
                                          .hash_seed = 1,
                                          .step_seed = STEP_SEED,
                                          .tokens_expected = bench->text.id_count,
                                          .tokens_kept = MEASURED_TOKENS,
                                          .balance = settings.balance,
                                          .compare_exact = true};
    PP_TRY(run_text(bench, estimator, &opening, &run, &held));
    opening.tokens_kept = 0;
    opening.compare_exact = false;
    PP_TRY(needle_run(&bench->worker, &bench->text, &opening, stderr, &correct));
    return report(bench, estimator, &run, correct, held);
}

static enum pp_status measure(struct bench *bench)
{
    enum pp_status parsed =
        gw_eval_estimators_parse(settings.estimators, bench->estimators, &bench->estimator_count);
    if (parsed != PP_OK) {
        fprintf(stderr,
                "quality_bench: --estimators: '%s' is no list of exact, "
                "lsh:k=K,l=L,t=T, sketch:bits=B,share=X\n",
                settings.estimators);
        return parsed;
    }
    PP_TRY(open_all(bench));
    fprintf(stderr, TABLE_ROW, "estimator", "rows_share", "error_mean", "kl_mean", "top1", "ppl",
            "needle", "index bytes");
    for (uint32_t i = 0; i < bench->estimator_count; i++) {
        PP_TRY(run_estimator(bench, &bench->estimators[i]));
    }
    return PP_OK;
}

static enum pp_status run_bench(void)
{
    static struct bench bench;
    enum pp_status status = measure(&bench);
    gw_eval_text_free(&bench.text);
    gw_worker_close(&bench.worker);
    bench_nodes_stop(&bench.nodes);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "quality_bench",
        .summary = "Measures what estimators cost in quality on a model and a text.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
