/*
 * Measures estimators on a text. On the walk: above engine. It refuses to know how attention is
 * computed; it fails when an estimator that was asked for was never used.
 */
#include "gpu-worker/api/eval.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu-worker/api/eval_text.h"
#include "gpu-worker/api/program.h"
#include "gpu-worker/api/progress.h"
#include "gpu-worker/api/statistics.h"
#include "gpu-worker/api/tuning.h"
#include "gpu-worker/api/worker.h"

#define EVAL_OPTIONS_MAX (GW_WORKER_OPTIONS_MAX + 9u)

struct eval {
    struct gw_worker_options worker_options;
    const char *text_path;
    uint64_t tokens;
    const char *estimators_text;
    uint64_t seed;
    const char *json_path;
    const char *dump_path, *decoded_path;
    FILE *decoded; /* NULL: not asked for */
    bool compare;

    struct gw_worker worker;
    struct gw_progress progress;
    struct gw_eval_estimator estimators[GW_EVAL_ESTIMATORS_MAX];
    uint32_t estimator_count;
    struct gw_eval_text text;
    struct gw_sequence *sequence;
    struct pp_estimators opened; /* what the sequence was opened with */
    uint64_t prefill_us, tune_us;
    float tune_error; /* 0: nothing is tuned */
};

static const char eval_examples[] =
    "  gpu-worker eval --text /usr/share/common-licenses/GPL-3 --context 7000\n"
    "  gpu-worker eval --text /usr/share/common-licenses/GPL-3 \\\n"
    "      --nodes a=127.0.0.1:7450,b=127.0.0.1:7451 --estimators exact,lsh:k=10,l=150\n";

static size_t eval_output_options(struct eval *eval, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "compare",
         .kind = PP_OPTION_BOOL,
         .target = &eval->compare,
         .group = "Text",
         .default_text = "false",
         .help =
             "Every attend is asked a second time, exactly: how far answers are from exact, and "
             "how often twice the error that they were published with covers it. Times then "
             "contain both."},
        {.name = "json",
         .kind = PP_OPTION_TEXT,
         .target = &eval->json_path,
         .group = "Output",
         .default_text = "",
         .value_name = "PATH",
         .help = "Append one JSON object a line and estimator."},
        {.name = "dump-logits",
         .kind = PP_OPTION_TEXT,
         .target = &eval->dump_path,
         .group = "Output",
         .default_text = "",
         .value_name = "PATH",
         .help = "Write the exact reference's logits: f32, little-endian, [tokens][vocabulary]. "
                 "--json then also carries the ids of the text."},
        {.name = "dump-decoded",
         .kind = PP_OPTION_TEXT,
         .target = &eval->decoded_path,
         .group = "Output",
         .default_text = "",
         .value_name = "PATH",
         .help = "Write the logits of every estimator's steps, each as it comes: f32, "
                 "little-endian, [estimators][tokens][vocabulary]."},
        {.name = "quiet",
         .kind = PP_OPTION_BOOL,
         .target = &eval->worker_options.quiet,
         .group = "Output",
         .default_text = "false",
         .short_name = 'q',
         .help = "No progress on stderr."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t eval_options(struct eval *eval, struct pp_option *table_out)
{
    const struct pp_option own[] = {
        {.name = "text",
         .kind = PP_OPTION_TEXT,
         .target = &eval->text_path,
         .group = "Text",
         .default_text = NULL,
         .value_name = "PATH",
         .short_name = 'f',
         .help = "The text to measure on. Its first --context tokens are used."},
        {.name = "tokens",
         .kind = PP_OPTION_U64,
         .target = &eval->tokens,
         .group = "Text",
         .default_text = "64",
         .value_name = "N",
         .short_name = 'n',
         .min = 1,
         .max = 8192,
         .help = "How many of the last tokens are measured."},
        {.name = "estimators",
         .kind = PP_OPTION_TEXT,
         .target = &eval->estimators_text,
         .group = "Text",
         .default_text = "exact",
         .value_name = "LIST",
         .help = "What to measure: exact, lsh, lsh:k=10,l=150,t=2, sketch, "
                 "sketch:bits=2,share=0.04, any with others for some layers as in lsh/0-3:exact, "
                 "several with commas. All but exact want --nodes."},
        {.name = "seed",
         .kind = PP_OPTION_U64,
         .target = &eval->seed,
         .group = "Text",
         .default_text = "1",
         .value_name = "N",
         .help = "Seed of the estimators' draws."},
    };
    size_t count = sizeof(own) / sizeof(own[0]);
    memcpy(table_out, own, sizeof(own));
    count += gw_worker_option_table(&eval->worker_options, table_out + count);
    return count + eval_output_options(eval, table_out + count);
}

/* Bytes of the first estimator of a list: up to a comma that no parameter follows. */
static size_t eval_estimator_bytes(const char *text)
{
    size_t bytes = strcspn(text, ",");
    while (text[bytes] == ',' && text[bytes + 1 + strcspn(text + bytes + 1, "=,:")] == '=') {
        bytes += 1 + strcspn(text + bytes + 1, ",");
    }
    return bytes;
}

enum pp_status gw_eval_estimators_parse(const char *text, struct gw_eval_estimator *estimators_out,
                                        uint32_t *count_out, char *error_out, size_t error_bytes)
{
    uint32_t count = 0;
    bool more = true;
    while (more) {
        size_t bytes = eval_estimator_bytes(text);
        if (count == GW_EVAL_ESTIMATORS_MAX || bytes >= sizeof(estimators_out[count].text)) {
            snprintf(error_out, error_bytes, "at most %u estimators of at most %zu characters each",
                     GW_EVAL_ESTIMATORS_MAX, sizeof(estimators_out[0].text) - 1);
            return PP_INVALID_ARGUMENT;
        }
        struct gw_eval_estimator *to = &estimators_out[count];
        memcpy(to->text, text, bytes);
        to->text[bytes] = '\0';
        PP_TRY(pp_estimators_parse(to->text, &to->estimators, error_out, error_bytes));
        count++;
        more = text[bytes] == ',';
        text += bytes + (more ? 1 : 0);
    }
    *count_out = count;
    return PP_OK;
}

static enum pp_status eval_check(void *context)
{
    struct eval *eval = context;
    char error[512];
    enum pp_status status = gw_eval_estimators_parse(eval->estimators_text, eval->estimators,
                                                     &eval->estimator_count, error, sizeof(error));
    if (status != PP_OK) {
        fprintf(stderr, "--estimators: %s\n", error);
        return status;
    }
    uint32_t open = 0;
    for (uint32_t i = 0; i < eval->estimator_count; i++) {
        open += gw_tune_open(&eval->estimators[i].estimators) ? 1 : 0;
    }
    PP_TRY(gw_tune_check(&eval->worker_options, open, stderr, &eval->tune_error));
    for (uint32_t i = 0; i < eval->estimator_count; i++) {
        struct gw_eval_estimator *one = &eval->estimators[i];
        if (pp_estimators_sample(&one->estimators) || eval->estimator_count == 1) {
            PP_TRY(gw_worker_target(&eval->worker_options, &one->estimators, stderr));
        }
        if (pp_estimators_sample(&one->estimators) && eval->worker_options.nodes[0] == '\0') {
            fprintf(stderr, "--estimators: %s runs on attention nodes: name them with --nodes\n",
                    eval->estimators[i].text);
            return PP_INVALID_ARGUMENT;
        }
    }
    return gw_worker_options_check(&eval->worker_options, stderr);
}

/* Opened once: what reads a pipe must not see it end in between. */
static enum pp_status eval_open_decoded(struct eval *eval)
{
    if (eval->decoded_path[0] == '\0') {
        return PP_OK;
    }
    eval->decoded = fopen(eval->decoded_path, "wb");
    if (eval->decoded == NULL) {
        fprintf(stderr, "--dump-decoded: cannot write %s: %s\n", eval->decoded_path,
                strerror(errno));
        return PP_IO;
    }
    return PP_OK;
}

/* What can fail at once comes before what takes its time. */
static enum pp_status eval_open(struct eval *eval)
{
    char *text;
    size_t bytes;
    PP_TRY(gw_statistics_check("--json", eval->json_path, stderr));
    PP_TRY(gw_statistics_check("--dump-logits", eval->dump_path, stderr));
    PP_TRY(eval_open_decoded(eval));
    PP_TRY(gw_file_read(eval->text_path, stderr, &text, &bytes));
    enum pp_status status = gw_worker_open(&eval->worker, &eval->worker_options, stderr);
    if (status == PP_OK) {
        status = gw_eval_text_init(&eval->worker, eval->text_path, text, bytes, eval->tokens,
                                   stderr, &eval->text);
        eval->text.decoded = eval->decoded;
    }
    for (uint32_t i = 0; i < eval->estimator_count && status == PP_OK; i++) {
        status = gw_estimators_check("--estimators", &eval->estimators[i].estimators,
                                     gw_engine_info(eval->worker.engine)->shape.layers, stderr);
    }
    free(text);
    return status;
}

static struct gw_progress *eval_bar(struct eval *eval)
{
    return eval->worker_options.quiet ? NULL : &eval->progress;
}

static enum pp_status eval_dump(const struct eval *eval)
{
    if (eval->dump_path[0] == '\0') {
        return PP_OK;
    }
    size_t count = eval->tokens * eval->text.vocab;
    FILE *file = fopen(eval->dump_path, "wb");
    bool failed = file == NULL || fwrite(eval->text.reference, sizeof(float), count, file) != count;
    if (file != NULL) {
        failed = fclose(file) != 0 || failed;
    }
    if (failed) {
        fprintf(stderr, "cannot write %s: %s\n", eval->dump_path, strerror(errno));
        return PP_IO;
    }
    return PP_OK;
}

/* tuned: its budget is. */
static enum pp_status eval_report(struct eval *eval, const char *estimator, bool tuned,
                                  const struct gw_eval_run *run)
{
    double rows = (double)run->score.rows;
    double ppl = gw_eval_score_perplexity(&run->score);
    double top1 = (double)run->score.top1_same / rows;
    printf("%-24s %10.4f %12.3e %12.3e %8.4f %10.4f %10.4f %10.2f\n", estimator, ppl,
           run->score.kl_sum / rows, run->score.kl_max, top1,
           gw_statistics_share(run->steps.keys_read_q, run->steps.keys_held_q),
           gw_statistics_share(run->steps.keys_read, run->steps.keys_held),
           (double)run->steps.total_us * 1e-3 / rows);
    gw_statistics_print_errors(gw_sequence_errors(eval->sequence), &run->steps, stdout);
    if (tuned) {
        gw_tuning_print(eval->sequence, eval->tune_error, stdout);
    }
    fflush(stdout);
    json_t *object = json_object();
    json_object_set_new(object, "program", json_string("eval"));
    json_object_set_new(object, "estimator", json_string(estimator));
    json_object_set_new(object, "context", json_integer((json_int_t)eval->text.id_count));
    json_object_set_new(object, "tokens", json_integer((json_int_t)eval->tokens));
    json_object_set_new(object, "ppl", json_real(ppl));
    json_object_set_new(object, "kl_mean", json_real(run->score.kl_sum / rows));
    json_object_set_new(object, "kl_max", json_real(run->score.kl_max));
    json_object_set_new(object, "top1_agreement", json_real(top1));
    json_object_set_new(object, "logit_error_max", json_real(run->score.logit_error_max));
    json_object_set_new(object, "prefill_s", json_real((double)eval->prefill_us * 1e-6));
    gw_statistics_steps(object, &run->steps);
    gw_statistics_errors(object, gw_sequence_errors(eval->sequence), &run->steps);
    if (tuned) {
        gw_tuning_json(object, eval->sequence, eval->tune_error, eval->tune_us);
    }
    gw_statistics_held(object, &eval->worker, eval->sequence);
    if (eval->dump_path[0] != '\0') {
        json_t *ids = json_array();
        for (uint64_t i = 0; i < eval->text.id_count; i++) {
            json_array_append_new(ids, json_integer((json_int_t)eval->text.ids[i]));
        }
        json_object_set_new(object, "token_ids", ids);
    }
    return gw_statistics_write(object, eval->json_path, stderr);
}

/* A sequence whose index serves estimator `index` of the list: its own, or for exact, which needs
 * none, that of the next that does. Prefilled and marked. */
static enum pp_status eval_open_sequence(struct eval *eval, uint32_t index)
{
    uint32_t of = index;
    while (of + 1 < eval->estimator_count &&
           !pp_estimators_sample(&eval->estimators[of].estimators)) {
        of++;
    }
    eval->opened = eval->estimators[of].estimators;
    struct gw_sequence_options options = {.remote = eval->worker.remote,
                                          .estimator = eval->opened.common,
                                          .ranges = eval->opened.ranges,
                                          .range_count = eval->opened.range_count,
                                          .nodes_plan = eval->worker_options.nodes_plan,
                                          .worker_signatures =
                                              eval->worker_options.worker_signatures,
                                          .balance = eval->worker_options.sketch_balance,
                                          .errors = eval->worker_options.errors,
                                          .tune = eval->tune_error > 0.0f,
                                          .compare_exact = eval->compare,
                                          .dense_layers = eval->worker.dense_layers,
                                          .dense_layer_count = eval->worker.dense_layer_count,
                                          .hash_seed = eval->worker_options.hash_seed,
                                          .step_seed = eval->seed,
                                          .tokens_expected = eval->text.id_count,
                                          .tokens_reserved = eval->text.id_count - eval->tokens +
                                                             eval->worker_options.tokens_reserved,
                                          .tokens_kept = (uint32_t)eval->tokens};
    bool first = !eval->text.has_reference;
    uint64_t begin_us = pp_clock_now_us(&eval->worker.clock);
    gw_worker_follow_nodes(&eval->worker);
    PP_TRY(gw_sequence_open(eval->worker.engine, &options, &eval->sequence));
    PP_TRY(gw_eval_text_prefill(&eval->text, eval->sequence, eval_bar(eval)));
    uint64_t tuned_us = pp_clock_now_us(&eval->worker.clock);
    eval->prefill_us = tuned_us - begin_us;
    if (eval->tune_error > 0.0f && pp_estimators_sample(&eval->opened)) {
        PP_TRY(gw_eval_text_tune(eval->tune_error, eval->sequence, eval_bar(eval)));
    }
    eval->tune_us = pp_clock_now_us(&eval->worker.clock) - tuned_us;
    return first ? eval_dump(eval) : PP_OK;
}

/* Whether an estimator's budget is what tuning found. */
static bool eval_tunes(const struct eval *eval, uint32_t index)
{
    return eval->tune_error > 0.0f && gw_tune_open(&eval->estimators[index].estimators);
}

/* Exact runs on whatever sequence there is; an index serves its own parameters only, and any budget
 * of rows: but one that an attend names is not planned by nodes. */
static enum pp_status eval_take_sequence(struct eval *eval, uint32_t index)
{
    const struct pp_estimators *wanted = &eval->estimators[index].estimators;
    bool same = pp_estimators_same(wanted, &eval->opened);
    bool one = wanted->range_count == 0 && eval->opened.range_count == 0;
    bool served = !eval->worker_options.nodes_plan && one &&
                  pp_estimator_share_index(&wanted->common, &eval->opened.common);
    bool fits = !pp_estimators_sample(wanted) || same || served;
    if (eval->sequence == NULL || !fits) {
        gw_sequence_close(eval->sequence);
        eval->sequence = NULL;
        PP_TRY(eval_open_sequence(eval, index));
    }
    static const struct pp_estimator own = {.kind = PP_ESTIMATOR_NONE};
    same = pp_estimators_same(wanted, &eval->opened);
    bool tuned = eval_tunes(eval, index);
    gw_sequence_use(eval->sequence, same || tuned ? &own : &wanted->common, tuned);
    return PP_OK;
}

static enum pp_status eval_estimator(struct eval *eval, uint32_t index)
{
    const struct gw_eval_estimator *estimator = &eval->estimators[index];
    struct gw_eval_run run;
    enum pp_status status = eval_take_sequence(eval, index);
    if (status == PP_OK) {
        status = gw_eval_text_run(&eval->text, eval->sequence, eval_bar(eval), &run);
    }
    if (status == PP_CANCELLED) {
        return status;
    }
    if (eval->decoded != NULL && ferror(eval->decoded) != 0) {
        fprintf(stderr, "cannot write %s\n", eval->decoded_path);
        return status;
    }
    if (status != PP_OK) {
        gw_worker_explain(stderr, estimator->text, status, eval->sequence);
        return status;
    }
    PP_TRY(eval_report(eval, estimator->text, eval_tunes(eval, index), &run));
    if (pp_estimators_sample(&estimator->estimators) && run.steps.attends_estimated == 0) {
        fprintf(stderr, "%s was never used: the nodes hold too few tokens for an index\n",
                estimator->text);
        return PP_FAILED_PRECONDITION;
    }
    return PP_OK;
}

static enum pp_status eval_all(void *context)
{
    struct eval *eval = context;
    PP_TRY(eval_open(eval));
    gw_progress_init(&eval->progress, stderr, isatty(STDERR_FILENO) == 1, eval->worker.clock);
    printf("%-24s %10s %12s %12s %8s %10s %10s %10s\n", "estimator", "ppl", "kl_mean", "kl_max",
           "top1", "read/q", "read/kv", "ms/token");
    for (uint32_t i = 0; i < eval->estimator_count; i++) {
        PP_TRY(eval_estimator(eval, i));
    }
    return PP_OK;
}

static void eval_close(void *context)
{
    struct eval *eval = context;
    gw_sequence_close(eval->sequence);
    gw_eval_text_free(&eval->text);
    gw_worker_close(&eval->worker);
    if (eval->decoded != NULL) {
        fclose(eval->decoded); /* every row was flushed */
    }
}

int gw_eval_main(int argc, char **argv)
{
    struct eval eval = {0};
    struct pp_option table[EVAL_OPTIONS_MAX];
    const struct gw_program program = {
        .name = "gpu-worker eval",
        .summary = "Measures estimators on a text against exact attention: perplexity, KL of the "
                   "next token's distribution in nats, how often the likeliest token agrees, and "
                   "the share of held keys that was read: by a query head (read/q), and distinct "
                   "ones by the group that shares a kv head (read/kv).",
        .examples = eval_examples,
        .options = table,
        .option_count = eval_options(&eval, table),
        .check = eval_check,
        .run = eval_all,
        .close = eval_close,
        .context = &eval};
    return gw_program_main(&program, argc, argv);
}
