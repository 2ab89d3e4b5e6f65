/*
 * What estimators cost in quality, on a real model and text. The text is prefilled once; its K/V is
 * cut as nodes cut it, and the last tokens are decoded with each estimator answering for the tokens
 * that nodes would hold: the product's own index and kernels, and peers as plain reference code
 * (bench/quality/). The same with needles hidden in the text.
 *
 * error_mean, error_by_layer, error_by_head: |o' - o| / |o| of the answers over the queries of an
 * exact run; coverage: how often that is at most twice what was published. kl_mean,
 * top1_agreement: of the logits against the exact run's; kl_by_layer: with the estimator in one
 * layer alone. ppl: of the text. needle_correct: digits
 * predicted right. bytes_per_token_kv_head: read in an attend, a held token. Prompts, estimators
 * and shares that --json has already are left out: a run that was ended goes on where it was.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "bench/quality/errors.h"
#include "bench/quality/model.h"
#include "bench/quality/needle.h"
#include "common/base/log.h"
#include "common/run/team.h"

#define SPECS_MAX  32u
#define SHARES_MAX 16u
#define TABLE_ROW  "%-9s %-32s %7s %10s %10s %8s %9s %7s %8s %11s\n"

static struct settings {
    const char *model, *text, *estimators, *shares, *json;
    uint64_t context, tokens, needles, threads;
    bool by_layer;
} settings;

static const struct pp_option options[] = {
    BENCH_TEXT("model", &settings.model, ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf", "PATH",
               "The model, a GGUF file of the Llama family."),
    BENCH_TEXT("text", &settings.text, "/usr/share/common-licenses/GPL-3", "PATH",
               "The text to measure on."),
    BENCH_NUMBER("context", &settings.context, "8192", "Tokens used of the text.", .min = 256,
                 .max = 65472),
    BENCH_NUMBER("tokens", &settings.tokens, "64", "How many of the last are measured.", .min = 1,
                 .max = 1024),
    BENCH_NUMBER("needles", &settings.needles, "5",
                 "Prompts with a needle, each prefilled for itself.", .max = QUALITY_NEEDLES),
    BENCH_TEXT("estimators", &settings.estimators,
               "exact,topk,weight,uniform,quest,loki,lsh,sketch", "LIST",
               "Several with commas of " QUALITY_SPEC_SYNTAX "."),
    BENCH_TEXT("rows-shares", &settings.shares, "0.01,0.02,0.04,0.08", "LIST",
               "Distinct rows that a kv head's group reads, as shares of those held. lsh without "
               "l= takes as many tables as that needs."),
    {.name = "by-layer",
     .kind = PP_OPTION_BOOL,
     .target = &settings.by_layer,
     .default_text = "false",
     .help = "Also decode with the estimator in each single layer and the others exact: "
             "kl_by_layer."},
    BENCH_NUMBER("threads", &settings.threads, "0", "0: what the machine gives.", .max = 256),
    BENCH_TEXT("json", &settings.json, "", "PATH",
               "Append one JSON object a line, for each prompt, estimator and share."),
};

struct bench {
    struct gw_worker worker;
    struct gw_eval_text text;
    struct gw_progress progress;
    struct gw_progress *bar; /* NULL where stderr is no terminal */
    uint32_t threads;
    struct quality_spec specs[SPECS_MAX];
    uint32_t spec_count;
    double shares[SHARES_MAX];
    uint32_t share_count;
    json_t *done; /* keys of what --json has: {key: true} */
};

/* A prompt at hand. */
struct prompt {
    char name[16]; /* "text", "needle-0" */
    struct gw_eval_text *text;
    struct gw_sequence *sequence;
    struct quality_held held;
    struct gw_eval_run exact;
};

static enum pp_status parse_shares(struct bench *bench)
{
    const char *at = settings.shares;
    bool more = true;
    while (more) {
        char *end;
        double share = strtod(at, &end);
        if (bench->share_count == SHARES_MAX || end == at || !(share > 0.0 && share <= 1.0) ||
            (*end != ',' && *end != '\0')) {
            fprintf(stderr, "quality_bench: --rows-shares: '%s' is no list of at most %u shares\n",
                    settings.shares, SHARES_MAX);
            return PP_INVALID_ARGUMENT;
        }
        bench->shares[bench->share_count++] = share;
        more = *end == ',';
        at = end + 1;
    }
    return PP_OK;
}

static void make_key(char *key_out, size_t bytes, const char *text, const char *prompt,
                     const char *estimator, double share, uint64_t context, uint64_t tokens)
{
    snprintf(key_out, bytes, "%s %s %s %.5f %llu %llu", text, prompt, estimator, share,
             (unsigned long long)context, (unsigned long long)tokens);
}

/* What lines of an earlier run measured. Lines of other programs have no prompt. */
static enum pp_status read_done(struct bench *bench)
{
    bench->done = json_object();
    FILE *file = settings.json[0] == '\0' ? NULL : fopen(settings.json, "r");
    char *line = NULL;
    size_t capacity = 0;
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        const char *prompt, *text, *estimator;
        double share;
        json_int_t context, tokens;
        char key[512];
        json_t *object = json_loads(line, 0, NULL);
        if (json_unpack(object, "{s:s, s:s, s:s, s:F, s:I, s:I}", "text", &text, "prompt", &prompt,
                        "estimator", &estimator, "rows_share_asked", &share, "context_asked",
                        &context, "tokens_asked", &tokens) == 0) {
            make_key(key, sizeof(key), text, prompt, estimator, share, (uint64_t)context,
                     (uint64_t)tokens);
            json_object_set_new(bench->done, key, json_true());
        }
        json_decref(object);
    }
    free(line);
    if (file != NULL) {
        fclose(file);
    }
    return PP_OK;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

static bool is_done(const struct bench *bench, const char *prompt, const struct quality_spec *spec,
                    double share)
{
    char key[512];
    make_key(key, sizeof(key), base_name(settings.text), prompt, spec->text, share,
             settings.context, settings.tokens);
    return json_object_get(bench->done, key) != NULL;
}

static enum pp_status open_all(struct bench *bench)
{
    struct gw_worker_options worker = {.model = settings.model,
                                       .nodes = "",
                                       .context = settings.context,
                                       .threads = settings.threads,
                                       .hash_seed = 1,
                                       .dense_layers = "",
                                       .log_level = PP_LOG_WARN};
    char *text;
    size_t bytes;
    PP_TRY(gw_worker_open(&bench->worker, &worker, stderr));
    PP_TRY(gw_file_read(settings.text, stderr, &text, &bytes));
    enum pp_status status = gw_eval_text_init(&bench->worker, settings.text, text, bytes,
                                              settings.tokens, stderr, &bench->text);
    free(text);
    bool terminal = isatty(STDERR_FILENO) == 1;
    gw_progress_init(&bench->progress, stderr, terminal, bench->worker.clock);
    bench->bar = terminal ? &bench->progress : NULL;
    bench->threads = settings.threads > 0 ? (uint32_t)settings.threads : pp_team_threads_default();
    quality_model_init(&bench->worker, bench->threads);
    return status;
}

static json_t *rounded(double value)
{
    char text[32];
    snprintf(text, sizeof(text), "%.4g", value);
    return json_real(strtod(text, NULL));
}

/* Errors by layer, and by layer and head. */
static void put_errors(json_t *object, const struct quality_held *held,
                       const struct quality_errors *errors)
{
    json_t *layers = json_array(), *heads = json_array();
    for (uint32_t layer = 0; layer < held->shape.layers; ++layer) {
        json_t *row = json_array();
        double sum = 0.0;
        for (uint32_t h = 0; h < held->shape.q_heads; ++h) {
            double mean = errors->means[layer * held->shape.q_heads + h];
            json_array_append_new(row, rounded(mean));
            sum += mean;
        }
        json_array_append_new(layers, rounded(sum / held->shape.q_heads));
        json_array_append_new(heads, row);
    }
    json_object_set_new(object, "error_by_layer", layers);
    json_object_set_new(object, "error_by_head", heads);
}

static enum pp_status report(const struct bench *bench, const struct prompt *prompt,
                             const struct quality_estimator *estimator, double asked,
                             const struct quality_errors *errors, const struct gw_eval_run *run,
                             json_t *kl_by_layer)
{
    double rows = (double)run->score.rows, kl = run->score.kl_sum / rows;
    double ppl = gw_eval_score_perplexity(&run->score);
    double top1 = (double)run->score.top1_same / rows;
    bool needle = prompt->text != &bench->text;
    const struct {
        const char *name;
        double value;
    } reals[] = {{"rows_share_asked", asked},
                 {"rows_share", errors->rows_share},
                 {"rows_share_q_head", errors->rows_share_q_head},
                 {"error_mean", errors->mean},
                 {"coverage", errors->covered},
                 {"error_over_published", errors->published},
                 {"kl_mean", kl},
                 {"kl_max", run->score.kl_max},
                 {"top1_agreement", top1},
                 {"ppl", ppl},
                 {"bytes_per_token_kv_head", errors->bytes},
                 {"index_bytes_per_token_kv_head", estimator->state_bytes}};
    json_t *object = json_object();
    json_object_set_new(object, "bench", json_string("quality"));
    json_object_set_new(object, "text", json_string(base_name(settings.text)));
    json_object_set_new(object, "prompt", json_string(prompt->name));
    json_object_set_new(object, "estimator", json_string(estimator->spec.text));
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); ++i) {
        json_object_set_new(object, reals[i].name, json_real(reals[i].value));
    }
    json_object_set_new(object, "l", json_integer(estimator->params.estimator.l));
    json_object_set_new(object, "context", json_integer((json_int_t)prompt->text->id_count));
    json_object_set_new(object, "context_asked", json_integer((json_int_t)settings.context));
    json_object_set_new(object, "tokens_asked", json_integer((json_int_t)settings.tokens));
    json_object_set_new(object, "held", json_integer(prompt->held.tokens));
    json_object_set_new(object, "needle_correct",
                        json_integer(needle ? (json_int_t)run->score.next_same : 0));
    json_object_set_new(object, "needle_total",
                        json_integer(needle ? (json_int_t)run->score.rows : 0));
    put_errors(object, &prompt->held, errors);
    if (kl_by_layer != NULL) {
        json_object_set(object, "kl_by_layer", kl_by_layer);
    }
    char texts[8][32];
    snprintf(texts[0], sizeof(texts[0]), "%.4f", errors->rows_share);
    snprintf(texts[1], sizeof(texts[1]), "%.4f", errors->mean);
    snprintf(texts[2], sizeof(texts[2]), "%.3e", kl);
    snprintf(texts[3], sizeof(texts[3]), "%.4f", top1);
    snprintf(texts[4], sizeof(texts[4]), "%.4f", ppl);
    snprintf(texts[5], sizeof(texts[5]), "%u/%u", needle ? (uint32_t)run->score.next_same : 0,
             needle ? (uint32_t)run->score.rows : 0);
    snprintf(texts[6], sizeof(texts[6]), "%.4f", errors->covered);
    snprintf(texts[7], sizeof(texts[7]), "%.1f", errors->bytes);
    fprintf(stderr, TABLE_ROW, prompt->name, estimator->spec.text, texts[0], texts[1], texts[2],
            texts[3], texts[4], texts[5], texts[6], texts[7]);
    return bench_report(object, bench->threads, PP_COMMIT, settings.json);
}

/* KL with the estimator in each layer alone. *kl_out is the caller's. */
static enum pp_status measure_layers(const struct bench *bench, struct prompt *prompt,
                                     const struct quality_estimator *estimator, json_t **kl_out)
{
    *kl_out = json_array();
    for (uint32_t layer = 0; layer < prompt->held.shape.layers; ++layer) {
        struct gw_eval_run run;
        PP_TRY(
            quality_model_run(prompt->text, prompt->sequence, estimator, layer, bench->bar, &run));
        json_array_append_new(*kl_out, rounded(run.score.kl_sum / (double)run.score.rows));
    }
    return PP_OK;
}

/* One line: the errors over the exact run's queries, and the run with the estimator. */
static enum pp_status measure_line(const struct bench *bench, struct prompt *prompt,
                                   const struct quality_spec *spec, double share)
{
    struct quality_estimator estimator = {0};
    struct quality_errors errors = {0};
    struct gw_eval_run run = prompt->exact;
    json_t *kl_by_layer = NULL;
    enum pp_status status =
        quality_open_for_share(spec, &prompt->held, share, bench->threads, &estimator);
    if (status == PP_OK) {
        status = quality_errors_measure(&estimator, &errors);
    }
    if (status == PP_OK && spec->kind != QUALITY_EXACT) {
        status = quality_model_run(prompt->text, prompt->sequence, &estimator, QUALITY_ALL_LAYERS,
                                   bench->bar, &run);
    }
    if (status == PP_OK && settings.by_layer) {
        status = measure_layers(bench, prompt, &estimator, &kl_by_layer);
    }
    if (status == PP_OK) {
        status = report(bench, prompt, &estimator, share, &errors, &run, kl_by_layer);
    }
    json_decref(kl_by_layer);
    quality_errors_free(&errors);
    quality_close(&estimator);
    return status;
}

/* exact and lsh with tables given have no share to ask for: one line. */
static uint32_t lines_of(const struct bench *bench, const struct quality_spec *spec)
{
    bool one = spec->kind == QUALITY_EXACT || (spec->kind == QUALITY_LSH && spec->l > 0);
    return one ? 1 : bench->share_count;
}

static double share_of_line(const struct bench *bench, const struct quality_spec *spec,
                            uint32_t line)
{
    bool one = spec->kind == QUALITY_EXACT || (spec->kind == QUALITY_LSH && spec->l > 0);
    return one ? 1.0 : bench->shares[line];
}

static bool prompt_done(const struct bench *bench, const char *name)
{
    for (uint32_t i = 0; i < bench->spec_count; ++i) {
        for (uint32_t line = 0; line < lines_of(bench, &bench->specs[i]); ++line) {
            if (!is_done(bench, name, &bench->specs[i],
                         share_of_line(bench, &bench->specs[i], line))) {
                return false;
            }
        }
    }
    return true;
}

static enum pp_status measure_lines(const struct bench *bench, struct prompt *prompt)
{
    for (uint32_t i = 0; i < bench->spec_count; ++i) {
        const struct quality_spec *spec = &bench->specs[i];
        for (uint32_t line = 0; line < lines_of(bench, spec); ++line) {
            double share = share_of_line(bench, spec, line);
            if (!is_done(bench, prompt->name, spec, share)) {
                PP_TRY(measure_line(bench, prompt, spec, share));
            }
        }
    }
    return PP_OK;
}

static enum pp_status measure_prompt(struct bench *bench, const char *name,
                                     struct gw_eval_text *text)
{
    struct prompt prompt = {.text = text};
    snprintf(prompt.name, sizeof(prompt.name), "%s", name);
    enum pp_status status =
        quality_model_record(text, bench->bar, &prompt.sequence, &prompt.held, &prompt.exact);
    if (status == PP_OK) {
        status = measure_lines(bench, &prompt);
    }
    if (prompt.sequence != NULL) {
        gw_sequence_close(prompt.sequence);
    }
    quality_held_free(&prompt.held);
    return status;
}

static enum pp_status measure_needle(struct bench *bench, uint32_t index)
{
    struct gw_eval_text needle;
    char name[16];
    snprintf(name, sizeof(name), "needle-%u", index);
    if (prompt_done(bench, name)) {
        return PP_OK;
    }
    enum pp_status status = quality_needle_make(&bench->text, index, &needle);
    if (status == PP_OK) {
        status = measure_prompt(bench, name, &needle);
    }
    gw_eval_text_free(&needle);
    return status;
}

static enum pp_status measure(struct bench *bench)
{
    if (quality_specs_parse(settings.estimators, bench->specs, SPECS_MAX, &bench->spec_count) !=
        PP_OK) {
        fprintf(stderr, "quality_bench: --estimators: '%s' is no list of %s\n", settings.estimators,
                QUALITY_SPEC_SYNTAX);
        return PP_INVALID_ARGUMENT;
    }
    PP_TRY(parse_shares(bench));
    PP_TRY(read_done(bench));
    PP_TRY(open_all(bench));
    fprintf(stderr, TABLE_ROW, "prompt", "estimator", "rows", "error", "kl", "top1", "ppl",
            "needle", "coverage", "bytes");
    if (!prompt_done(bench, "text")) {
        PP_TRY(measure_prompt(bench, "text", &bench->text));
    }
    for (uint32_t i = 0; i < settings.needles; ++i) {
        PP_TRY(measure_needle(bench, i));
    }
    return PP_OK;
}

static enum pp_status run_bench(void)
{
    static struct bench bench;
    enum pp_status status = measure(&bench);
    json_decref(bench.done);
    gw_eval_text_free(&bench.text);
    gw_worker_close(&bench.worker);
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
