/*
 * The options of `gpu-worker generate`. It refuses to know what is done with them.
 */
#include "gpu-worker/api/generate_options.h"

#include <string.h>

#include "gpu-worker/api/tuning.h"

static size_t generate_prompt_options(struct gw_generate_options *options,
                                      struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "prompt",
         .kind = PP_OPTION_TEXT,
         .target = &options->prompt.prompt,
         .group = "Prompt",
         .default_text = "",
         .value_name = "TEXT",
         .short_name = 'p',
         .help = "What to ask."},
        {.name = "prompt-file",
         .kind = PP_OPTION_TEXT,
         .target = &options->prompt.file,
         .group = "Prompt",
         .default_text = "",
         .value_name = "PATH",
         .short_name = 'f',
         .help = "A text to read first; the prompt follows it after a blank line. - is stdin."},
        {.name = "prompts",
         .kind = PP_OPTION_TEXT,
         .target = &options->prompts_path,
         .group = "Prompt",
         .default_text = "",
         .value_name = "PATH",
         .help =
             "Several prompts instead of one, a line each; every one of them is asked by itself, "
             "behind the text of --prompt-file if there is one. Each answer has a heading, and "
             "they come in the order of the lines. - is stdin."},
        {.name = "parallel",
         .kind = PP_OPTION_U64,
         .target = &options->parallel,
         .group = "Prompt",
         .default_text = "4",
         .value_name = "N",
         .min = 1,
         .max = GW_BATCH_MAX,
         .help = "Of --prompts: how many are answered side by side. They share each reading of the "
                 "model's weights and each message to a node. Each gets the answer that it gets "
                 "alone; on the host more than 6 are summed in another order, upon which a drawn "
                 "token may turn, or one of two that are as likely."},
        {.name = "micro-batches",
         .kind = PP_OPTION_U64,
         .target = &options->micro_batches,
         .group = "Prompt",
         .default_text = "0",
         .value_name = "N",
         .max = 2,
         .help = "Of --prompts: 2 computes one half of them while the other waits for nodes, which "
                 "pays where nodes are far; 1 all at once, with half the readings of the weights. "
                 "0: 2 on a GPU, else 1. The answers are as with --parallel."},
        {.name = "system",
         .kind = PP_OPTION_TEXT,
         .target = &options->prompt.system,
         .group = "Prompt",
         .default_text = "",
         .value_name = "TEXT",
         .help = "The system message. Default: the model's own."},
        {.name = "raw",
         .kind = PP_OPTION_BOOL,
         .target = &options->prompt.raw,
         .group = "Prompt",
         .default_text = "false",
         .help = "Continue the text as it is, without the model's chat template."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t generate_document_options(struct gw_generate_options *options,
                                        struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "save-kv",
         .kind = PP_OPTION_TEXT,
         .target = &options->save_path,
         .group = "Prompt",
         .default_text = "",
         .value_name = "DIR",
         .help = "Save the keys and values of the prompt in a new directory."},
        {.name = "load-kv",
         .kind = PP_OPTION_TEXT,
         .target = &options->load_path,
         .group = "Prompt",
         .default_text = "",
         .value_name = "DIR",
         .help = "Take what the prompt has in common with a saved one from there, from its first "
                 "token on, instead of computing it. Any nodes will do."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

static size_t generate_answer_options(struct gw_generate_options *options,
                                      struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "max-tokens",
         .kind = PP_OPTION_U64,
         .target = &options->tokens_max,
         .group = "Answer",
         .default_text = "256",
         .value_name = "N",
         .short_name = 'n',
         .min = 1,
         .max = 1u << 20,
         .help = "Longest answer."},
        {.name = "estimator",
         .kind = PP_OPTION_TEXT,
         .target = &options->estimator_text,
         .group = "Attention nodes",
         .default_text = GW_GENERATE_ESTIMATOR,
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

static size_t generate_output_options(struct gw_generate_options *options,
                                      struct pp_option *table_out)
{
    const struct pp_option table[] = {
        {.name = "json",
         .kind = PP_OPTION_TEXT,
         .target = &options->json_path,
         .group = "Output",
         .default_text = "",
         .value_name = "PATH",
         .help = "Append what was measured as one JSON object a line."},
        {.name = "quiet",
         .kind = PP_OPTION_BOOL,
         .target = &options->worker.quiet,
         .group = "Output",
         .default_text = "false",
         .short_name = 'q',
         .help = "Neither progress nor figures on stderr."},
    };
    memcpy(table_out, table, sizeof(table));
    return sizeof(table) / sizeof(table[0]);
}

size_t gw_generate_option_table(struct gw_generate_options *options, struct pp_option *table_out)
{
    size_t count = generate_prompt_options(options, table_out);
    count += generate_document_options(options, table_out + count);
    count += generate_answer_options(options, table_out + count);
    count += gw_sampling_option_table(&options->sampling, table_out + count);
    count += gw_worker_option_table(&options->worker, table_out + count);
    count += generate_output_options(options, table_out + count);
    return count;
}

/* Where prompts come from: one place, or a list of them. */
static enum pp_status generate_check_prompts(const struct gw_generate_options *options)
{
    bool one = options->prompt.prompt[0] != '\0', file = options->prompt.file[0] != '\0';
    if (options->prompts_path[0] == '\0' && !one && !file) {
        fprintf(stderr, "nothing to answer: give --prompt TEXT, --prompt-file PATH or --prompts "
                        "PATH\n");
        return PP_INVALID_ARGUMENT;
    }
    if (options->prompts_path[0] == '\0') {
        return PP_OK;
    }
    if (one) {
        fprintf(stderr,
                "--prompt is one more than --prompts has: write it as a line of its file\n");
        return PP_INVALID_ARGUMENT;
    }
    if (options->save_path[0] != '\0' || options->load_path[0] != '\0') {
        fprintf(stderr,
                "--save-kv and --load-kv are of one prompt: they do not go with --prompts\n");
        return PP_INVALID_ARGUMENT;
    }
    if (strcmp(options->prompts_path, "-") == 0 && strcmp(options->prompt.file, "-") == 0) {
        fprintf(stderr, "--prompts and --prompt-file cannot both be stdin\n");
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

enum pp_status gw_generate_check(struct gw_generate_options *options)
{
    char error[512];
    enum pp_status status =
        pp_estimators_parse(options->estimator_text, &options->estimators, error, sizeof(error));
    if (status != PP_OK) {
        fprintf(stderr, "--estimator: %s\n", error);
        return status;
    }
    PP_TRY(gw_tune_check(&options->worker, gw_tune_open(&options->estimators) ? 1 : 0, stderr,
                         &options->tune_error));
    PP_TRY(gw_worker_target(&options->worker, &options->estimators, stderr));
    PP_TRY(generate_check_prompts(options));
    return gw_worker_options_check(&options->worker, stderr);
}
