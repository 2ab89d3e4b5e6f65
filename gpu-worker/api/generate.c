/*
 * One prompt from the shell: prefill with progress on stderr, then tokens streamed to stdout, then
 * a line of figures and, if asked, a JSON object. On the walk: above engine. It refuses to know how
 * attention is computed.
 */
#include "gpu-worker/api/generate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu-worker/api/interrupt.h"
#include "gpu-worker/api/keep.h"
#include "gpu-worker/api/program.h"
#include "gpu-worker/api/progress.h"
#include "gpu-worker/api/prompt.h"
#include "gpu-worker/api/statistics.h"
#include "gpu-worker/api/tuning.h"
#include "gpu-worker/api/worker.h"
#include "gpu-worker/ops/sample.h"

#define GENERATE_OPTIONS_MAX (GW_WORKER_OPTIONS_MAX + 16u)
/* The best of bench/RESULTS.md, Quality: least error and KL for the keys it reads. */
#define DEFAULT_ESTIMATOR "sketch"

struct generate {
    struct gw_worker_options worker_options;
    struct gw_prompt_options prompt;
    uint64_t tokens_max;
    const char *estimator_text;
    double temperature;
    uint64_t top_k;
    double top_p;
    uint64_t seed;
    const char *json_path, *save_path, *load_path;

    struct gw_worker worker;
    struct pp_estimators estimators;
    struct gw_sequence *sequence;
    struct gw_document *document;      /* NULL: prefill */
    struct gw_document_writer *writer; /* NULL: nothing is saved */
    uint64_t shared;                   /* tokens that the document gives */
    struct gw_sampler sampler;
    struct gw_progress progress;
    struct gw_detokenizer detokenizer;
    uint32_t *ids;
    size_t id_count;
    float *logits; /* [vocab] */
    char *answer;
    size_t answer_bytes, answer_capacity;
    uint64_t prefill_us, save_us, tune_us;
    float tune_error; /* 0: layers are not tuned */
    uint64_t generated;
    const char *finish;
    struct gw_step_stats steps;
};

static const char generate_examples[] =
    "  gpu-worker generate --prompt \"What is the capital of France?\"\n"
    "  gpu-worker generate --prompt-file /usr/share/common-licenses/GPL-3 \\\n"
    "      --prompt \"May I sell copies?\" --nodes a=127.0.0.1:7450,b=127.0.0.1:7451 \\\n"
    "      --estimator sketch --json run.json\n";

static size_t generate_prompt_options(struct generate *generate, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "prompt",
         .kind = PP_OPTION_TEXT,
         .target = &generate->prompt.prompt,
         .group = "Prompt",
         .default_text = "",
         .value_name = "TEXT",
         .short_name = 'p',
         .help = "What to ask."},
        {.name = "prompt-file",
         .kind = PP_OPTION_TEXT,
         .target = &generate->prompt.file,
         .group = "Prompt",
         .default_text = "",
         .value_name = "PATH",
         .short_name = 'f',
         .help = "A text to read first; the prompt follows it after a blank line. - is stdin."},
        {.name = "system",
         .kind = PP_OPTION_TEXT,
         .target = &generate->prompt.system,
         .group = "Prompt",
         .default_text = "",
         .value_name = "TEXT",
         .help = "The system message. Default: the model's own."},
        {.name = "raw",
         .kind = PP_OPTION_BOOL,
         .target = &generate->prompt.raw,
         .group = "Prompt",
         .default_text = "false",
         .help = "Continue the text as it is, without the model's chat template."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t generate_document_options(struct generate *generate, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "save-kv",
         .kind = PP_OPTION_TEXT,
         .target = &generate->save_path,
         .group = "Prompt",
         .default_text = "",
         .value_name = "DIR",
         .help = "Save the keys and values of the prompt in a new directory."},
        {.name = "load-kv",
         .kind = PP_OPTION_TEXT,
         .target = &generate->load_path,
         .group = "Prompt",
         .default_text = "",
         .value_name = "DIR",
         .help = "Take what the prompt has in common with a saved one from there, from its first "
                 "token on, instead of computing it. Any nodes will do."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t generate_answer_options(struct generate *generate, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "max-tokens",
         .kind = PP_OPTION_U64,
         .target = &generate->tokens_max,
         .group = "Answer",
         .default_text = "256",
         .value_name = "N",
         .short_name = 'n',
         .min = 1,
         .max = 1u << 20,
         .help = "Longest answer."},
        {.name = "temperature",
         .kind = PP_OPTION_DOUBLE,
         .target = &generate->temperature,
         .group = "Answer",
         .default_text = "0",
         .value_name = "T",
         .number_max = 100.0,
         .help = "0 takes the likeliest token each time (greedy)."},
        {.name = "top-k",
         .kind = PP_OPTION_U64,
         .target = &generate->top_k,
         .group = "Answer",
         .default_text = "0",
         .value_name = "K",
         .max = 1u << 30,
         .help = "Draw among the K likeliest tokens only. 0: all."},
        {.name = "top-p",
         .kind = PP_OPTION_DOUBLE,
         .target = &generate->top_p,
         .group = "Answer",
         .default_text = "1",
         .value_name = "P",
         .number_min = 1e-6,
         .number_max = 1.0,
         .help = "Draw among the likeliest tokens that together have this probability."},
        {.name = "seed",
         .kind = PP_OPTION_U64,
         .target = &generate->seed,
         .group = "Answer",
         .default_text = "1",
         .value_name = "N",
         .help = "Same seed, same answer."},
        {.name = "estimator",
         .kind = PP_OPTION_TEXT,
         .target = &generate->estimator_text,
         .group = "Attention nodes",
         .default_text = DEFAULT_ESTIMATOR,
         .value_name = "NAME",
         .help = "How nodes attend: sketch or sketch:bits=2,share=0.04 (bits a dimension, share "
                 "of the keys a kv head that are read, by default by the context's length; or "
                 "rows=N); lsh or lsh:k=10,l=150,t=2 (k bits a table, l tables, t of which must "
                 "collide); exact. error=E names a relative error to be within. Layers with "
                 "another one follow behind slashes, counted from 0: "
                 "lsh/0-3:exact/16:lsh:k=8,l=98,t=3."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t generate_output_options(struct generate *generate, struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "json",
         .kind = PP_OPTION_TEXT,
         .target = &generate->json_path,
         .group = "Output",
         .default_text = "",
         .value_name = "PATH",
         .help = "Append what was measured as one JSON object a line."},
        {.name = "quiet",
         .kind = PP_OPTION_BOOL,
         .target = &generate->worker_options.quiet,
         .group = "Output",
         .default_text = "false",
         .short_name = 'q',
         .help = "Neither progress nor figures on stderr."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t generate_options(struct generate *generate, struct pp_option *table_out)
{
    size_t count = generate_prompt_options(generate, table_out);
    count += generate_document_options(generate, table_out + count);
    count += generate_answer_options(generate, table_out + count);
    count += gw_worker_option_table(&generate->worker_options, table_out + count);
    count += generate_output_options(generate, table_out + count);
    return count;
}

static bool generate_progress(void *context, enum gw_phase phase, uint64_t done, uint64_t total)
{
    static const char *const labels[] = {"prefill", "store", "index", "load", "save", "tune"};
    struct generate *generate = context;
    if (!generate->worker_options.quiet) {
        gw_progress_show(&generate->progress, labels[phase], done, total);
    }
    return gw_interrupt_signal() == 0;
}

static enum pp_status generate_check(void *context)
{
    struct generate *generate = context;
    char error[512];
    enum pp_status status =
        pp_estimators_parse(generate->estimator_text, &generate->estimators, error, sizeof(error));
    if (status != PP_OK) {
        fprintf(stderr, "--estimator: %s\n", error);
        return status;
    }
    PP_TRY(gw_tune_check(&generate->worker_options, gw_tune_open(&generate->estimators) ? 1 : 0,
                         stderr, &generate->tune_error));
    PP_TRY(gw_worker_target(&generate->worker_options, &generate->estimators, stderr));
    if (generate->prompt.prompt[0] == '\0' && generate->prompt.file[0] == '\0') {
        fprintf(stderr, "nothing to answer: give --prompt TEXT or --prompt-file PATH\n");
        return PP_INVALID_ARGUMENT;
    }
    return gw_worker_options_check(&generate->worker_options, stderr);
}

/* What can fail at once comes before what takes its time. */
static enum pp_status generate_open_worker(struct generate *generate)
{
    char *text;
    size_t bytes;
    PP_TRY(gw_statistics_check("--json", generate->json_path, stderr));
    PP_TRY(gw_prompt_read(&generate->prompt, stderr, &text, &bytes));
    enum pp_status status = gw_worker_open(&generate->worker, &generate->worker_options, stderr);
    if (status == PP_OK) {
        status = gw_prompt_encode(&generate->worker, &generate->prompt, text, bytes, stderr,
                                  &generate->ids, &generate->id_count);
    }
    free(text);
    return status;
}

/* A document that shares less than half of the prompt is another one than was meant. */
static enum pp_status generate_open_documents(struct generate *generate)
{
    const struct gw_engine_info *info = gw_engine_info(generate->worker.engine);
    if (generate->load_path[0] != '\0') {
        PP_TRY(gw_document_open(generate->load_path, &info->shape, info->fingerprint,
                                info->fingerprint_bytes, stderr, &generate->document));
        generate->shared = gw_keep_shared(generate->document, generate->ids, generate->id_count);
        if (2 * generate->shared + 1 < generate->id_count) {
            fprintf(stderr,
                    "%s is of another text: of the prompt's %zu tokens it begins with %llu; give "
                    "the same --prompt-file, or run without --load-kv\n",
                    generate->load_path, generate->id_count, (unsigned long long)generate->shared);
            return PP_INVALID_ARGUMENT;
        }
    }
    if (generate->save_path[0] == '\0') {
        return PP_OK;
    }
    return gw_keep_begin(generate->save_path, info, generate->ids, generate->id_count, stderr,
                         &generate->writer);
}

static enum pp_status generate_open(struct generate *generate)
{
    PP_TRY(generate_open_worker(generate));
    PP_TRY(generate_open_documents(generate));
    const struct gw_engine_info *info = gw_engine_info(generate->worker.engine);
    if (generate->id_count >= info->tokens_max) {
        fprintf(stderr, "the prompt has %zu tokens, which leaves no room in a context of %u\n",
                generate->id_count, info->tokens_max);
        return PP_OUT_OF_RANGE;
    }
    PP_TRY(gw_estimators_check("--estimator", &generate->estimators, info->shape.layers, stderr));
    uint64_t room = info->tokens_max - generate->id_count;
    generate->tokens_max = generate->tokens_max < room ? generate->tokens_max : room;
    generate->logits = malloc(info->vocab * sizeof(float));
    if (generate->logits == NULL) {
        return PP_MEMORY;
    }
    PP_TRY(gw_sampler_init(&generate->sampler, info->vocab, generate->temperature,
                           (uint32_t)generate->top_k, generate->top_p, generate->seed));
    struct gw_sequence_options options = {
        .remote = generate->worker.remote,
        .estimator = generate->estimators.common,
        .ranges = generate->estimators.ranges,
        .range_count = generate->estimators.range_count,
        .nodes_plan = generate->worker_options.nodes_plan,
        .worker_signatures = generate->worker_options.worker_signatures,
        .balance = generate->worker_options.sketch_balance,
        .errors = generate->worker_options.errors,
        .tune = generate->tune_error > 0.0f,
        .dense_layers = generate->worker.dense_layers,
        .dense_layer_count = generate->worker.dense_layer_count,
        .hash_seed = generate->worker_options.hash_seed,
        .step_seed = generate->seed,
        .tokens_expected = generate->id_count + generate->tokens_max,
        .tokens_reserved = generate->id_count + generate->worker_options.tokens_reserved};
    enum pp_status status =
        gw_sequence_open(generate->worker.engine, &options, &generate->sequence);
    if (status != PP_OK) {
        gw_worker_explain(stderr, "opening the sequence on the nodes", status, NULL);
    }
    return status;
}

static enum pp_status generate_keep(struct generate *generate, const char *text, size_t bytes)
{
    if (generate->answer_bytes + bytes + 1 > generate->answer_capacity) {
        size_t capacity = 2 * generate->answer_capacity + bytes + 256;
        char *larger = realloc(generate->answer, capacity);
        if (larger == NULL) {
            return PP_MEMORY;
        }
        generate->answer = larger;
        generate->answer_capacity = capacity;
    }
    memcpy(generate->answer + generate->answer_bytes, text, bytes);
    generate->answer_bytes += bytes;
    return PP_OK;
}

static enum pp_status generate_emit(struct generate *generate, uint32_t id)
{
    const char *text;
    size_t bytes;
    PP_TRY(gw_detokenizer_add(&generate->detokenizer, id, &text, &bytes));
    if (bytes > 0 && (fwrite(text, 1, bytes, stdout) != bytes || fflush(stdout) != 0)) {
        fprintf(stderr, "cannot write the answer to stdout: %s\n", strerror(errno));
        return PP_IO;
    }
    return generate_keep(generate, text, bytes);
}

/* Ids past the tokenizer's have no text: they are never drawn. */
static enum pp_status generate_next(struct generate *generate, uint32_t *id_out)
{
    uint32_t vocab = gw_engine_info(generate->worker.engine)->vocab;
    for (uint32_t i = gw_tokenizer_vocab(generate->worker.tokenizer); i < vocab; i++) {
        generate->logits[i] = -__builtin_inff();
    }
    return gw_sampler_next(&generate->sampler, generate->logits, id_out);
}

static enum pp_status generate_decode(struct generate *generate)
{
    generate->finish = "length";
    for (;;) {
        uint32_t id;
        struct gw_step_stats step;
        PP_TRY(generate_next(generate, &id));
        if (gw_tokenizer_is_end(generate->worker.tokenizer, id)) {
            generate->finish = "stop";
            return PP_OK;
        }
        PP_TRY(generate_emit(generate, id));
        generate->generated++;
        if (gw_interrupt_signal() != 0) {
            generate->finish = "interrupted";
            return PP_OK;
        }
        if (generate->generated >= generate->tokens_max) {
            return PP_OK;
        }
        gw_worker_follow_nodes(&generate->worker);
        PP_TRY(gw_sequence_step(generate->sequence, id, generate->logits, &step));
        gw_step_stats_add(&generate->steps, &step);
    }
}

/* What the document does not give runs token by token. */
static enum pp_status generate_restore(struct generate *generate)
{
    uint64_t rest = generate->id_count - generate->shared;
    if (generate->shared > 0) {
        PP_TRY(gw_keep_restore(generate->document, generate->shared, generate->sequence,
                               generate_progress, generate));
    }
    for (uint64_t i = 0; i < rest; i++) {
        bool last = i + 1 == rest;
        PP_TRY(gw_sequence_step(generate->sequence, generate->ids[generate->shared + i],
                                last ? generate->logits : NULL, NULL));
        if (!generate_progress(generate, GW_PHASE_PREFILL, i + 1, rest)) {
            return PP_CANCELLED;
        }
    }
    return PP_OK;
}

static enum pp_status generate_prefill(struct generate *generate)
{
    if (generate->document != NULL) {
        return generate_restore(generate);
    }
    return gw_sequence_prefill(generate->sequence, generate->ids, (uint32_t)generate->id_count, 1,
                               generate->logits, generate_progress, generate);
}

static enum pp_status generate_save(struct generate *generate)
{
    uint64_t begin_us = pp_clock_now_us(&generate->worker.clock);
    enum pp_status status =
        gw_keep_sequence(generate->writer, gw_engine_info(generate->worker.engine),
                         generate->sequence, generate_progress, generate);
    gw_progress_end(&generate->progress);
    generate->save_us = pp_clock_now_us(&generate->worker.clock) - begin_us;
    if (status != PP_OK && status != PP_CANCELLED) {
        gw_worker_explain(stderr, "saving the prompt", status, generate->sequence);
    }
    return status;
}

static enum pp_status generate_tune(struct generate *generate)
{
    if (generate->tune_error == 0.0f) {
        return PP_OK;
    }
    uint64_t begin_us = pp_clock_now_us(&generate->worker.clock);
    enum pp_status status =
        gw_sequence_tune(generate->sequence, generate->tune_error, generate_progress, generate);
    gw_progress_end(&generate->progress);
    generate->tune_us = pp_clock_now_us(&generate->worker.clock) - begin_us;
    if (status != PP_OK && status != PP_CANCELLED) {
        gw_worker_explain(stderr, "tuning", status, generate->sequence);
    }
    if (status == PP_OK && !generate->worker_options.quiet) {
        gw_tuning_print(generate->sequence, generate->tune_error, stderr);
    }
    return status;
}

static enum pp_status generate_run(struct generate *generate)
{
    uint64_t begin_us = pp_clock_now_us(&generate->worker.clock);
    enum pp_status status = generate_prefill(generate);
    gw_progress_end(&generate->progress);
    if (status == PP_CANCELLED) {
        return status;
    }
    if (status != PP_OK) {
        gw_worker_explain(stderr, generate->document != NULL ? "loading the prompt" : "prefill",
                          status, generate->sequence);
        return status;
    }
    generate->prefill_us = pp_clock_now_us(&generate->worker.clock) - begin_us;
    if (generate->writer != NULL) {
        PP_TRY(generate_save(generate));
    }
    PP_TRY(generate_tune(generate));
    status = generate_decode(generate);
    gw_detokenizer_finish(&generate->detokenizer);
    if (generate->answer_bytes > 0) {
        fputc('\n', stdout);
        fflush(stdout);
    }
    if (status != PP_OK) {
        fprintf(stderr, "the answer ends here, after %llu tokens: ",
                (unsigned long long)generate->generated);
        gw_worker_explain(stderr, "decoding", status, generate->sequence);
    }
    return status;
}

static void generate_figures(const struct generate *generate)
{
    const struct gw_step_stats *steps = &generate->steps;
    double count = steps->steps == 0 ? 1.0 : (double)steps->steps;
    double prefill_s = (double)generate->prefill_us * 1e-6;
    fprintf(stderr, "%zu prompt tokens in %.2f s (%.0f tokens/s%s), %llu tokens at %.1f ms",
            generate->id_count, prefill_s, (double)generate->id_count / prefill_s,
            generate->document != NULL ? ", loaded" : "", (unsigned long long)generate->generated,
            (double)steps->total_us * 1e-3 / count);
    if (steps->attends > 0) {
        fprintf(stderr,
                "; %.1f ms of it waiting for nodes; of the held keys a query head read %.1f %%, "
                "its group %.1f %%",
                (double)steps->wait_us * 1e-3 / count,
                100.0 * gw_statistics_share(steps->keys_read_q, steps->keys_held_q),
                100.0 * gw_statistics_share(steps->keys_read, steps->keys_held));
    }
    fputc('\n', stderr);
    struct gw_recoveries recoveries;
    gw_sequence_recoveries(generate->sequence, &recoveries);
    if (recoveries.count > 0) {
        fprintf(stderr,
                "went on %llu times after nodes were lost, which took %.2f s; %llu tokens were "
                "computed again\n",
                (unsigned long long)recoveries.count, (double)recoveries.total_us * 1e-6,
                (unsigned long long)recoveries.tokens_recomputed);
    }
    gw_statistics_print_errors(gw_sequence_errors(generate->sequence), steps, stderr);
    bool wanted =
        generate->worker.remote != NULL || strcmp(generate->estimator_text, DEFAULT_ESTIMATOR) != 0;
    bool sample = pp_estimators_sample(&generate->estimators);
    if (sample && wanted && steps->attends_estimated == 0 && steps->steps > 0) {
        fprintf(stderr,
                "note: %s was never used, all tokens were read: too few on the nodes for an index, "
                "or no nodes\n",
                generate->estimator_text);
    }
}

static enum pp_status generate_report(struct generate *generate)
{
    json_t *object = json_object();
    double prefill_s = (double)generate->prefill_us * 1e-6;
    const char *answer = generate->answer == NULL ? "" : generate->answer;
    json_object_set_new(object, "program", json_string("generate"));
    json_object_set_new(object, "estimator", json_string(generate->estimator_text));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)generate->id_count));
    json_object_set_new(object, "generated_tokens", json_integer((json_int_t)generate->generated));
    json_object_set_new(object, "finish_reason", json_string(generate->finish));
    json_object_set_new(object, "prefill_s", json_real(prefill_s));
    json_object_set_new(object, "prefill_tokens_per_s",
                        json_real((double)generate->id_count / prefill_s));
    json_object_set_new(object, "loaded_tokens", json_integer((json_int_t)generate->shared));
    json_object_set_new(object, "save_s", json_real((double)generate->save_us * 1e-6));
    gw_statistics_steps(object, &generate->steps);
    gw_statistics_errors(object, gw_sequence_errors(generate->sequence), &generate->steps);
    gw_tuning_json(object, generate->sequence, generate->tune_error, generate->tune_us);
    gw_statistics_held(object, &generate->worker, generate->sequence);
    gw_statistics_text(object, "answer", answer, generate->answer_bytes);
    return gw_statistics_write(object, generate->json_path, stderr);
}

static void generate_close(void *context)
{
    struct generate *generate = context;
    gw_sequence_close(generate->sequence);
    gw_document_writer_destroy(generate->writer);
    gw_document_close(generate->document);
    gw_sampler_deinit(&generate->sampler);
    gw_detokenizer_deinit(&generate->detokenizer);
    free(generate->answer);
    free(generate->logits);
    free(generate->ids);
    gw_worker_close(&generate->worker);
}

static enum pp_status generate_all(void *context)
{
    struct generate *generate = context;
    PP_TRY(generate_open(generate));
    gw_progress_init(&generate->progress, stderr, isatty(STDERR_FILENO) == 1,
                     generate->worker.clock);
    gw_detokenizer_init(&generate->detokenizer, generate->worker.tokenizer);
    PP_TRY(generate_run(generate));
    if (!generate->worker_options.quiet) {
        generate_figures(generate);
    }
    return generate_report(generate);
}

int gw_generate_main(int argc, char **argv)
{
    struct generate generate = {0};
    struct pp_option table[GENERATE_OPTIONS_MAX];
    const struct gw_program program = {
        .name = "gpu-worker generate",
        .summary = "Answers one prompt: reads it, puts its keys and values on attention nodes when "
                   "some are named, and streams the answer to stdout. Progress and figures go to "
                   "stderr.",
        .examples = generate_examples,
        .options = table,
        .option_count = generate_options(&generate, table),
        .check = generate_check,
        .run = generate_all,
        .close = generate_close,
        .context = &generate};
    return gw_program_main(&program, argc, argv);
}
