/*
 * Prompts from the shell: progress on stderr, tokens streamed to stdout, then figures and, if
 * asked, a JSON object an answer. On the walk: above engine. It refuses to know how attention is
 * computed.
 */
#include "gpu-worker/api/generate.h"

#include <unistd.h>

#include "gpu-worker/api/answers.h"
#include "gpu-worker/api/generate_options.h"
#include "gpu-worker/api/program.h"
#include "gpu-worker/api/statistics.h"

struct generate {
    struct gw_generate_options options;
    struct gw_worker worker;
    struct gw_answers answers;
};

static const char generate_examples[] =
    "  gpu-worker generate --prompt \"What is the capital of France?\"\n"
    "  gpu-worker generate --prompt-file /usr/share/common-licenses/GPL-3 \\\n"
    "      --prompt \"May I sell copies?\" --nodes a=127.0.0.1:7450,b=127.0.0.1:7451 \\\n"
    "      --estimator sketch --json run.json\n"
    "  printf '%s\\n' \"What is a mutex?\" \"What is a monad?\" |\n"
    "      gpu-worker generate --prompts - --max-tokens 100\n";

static enum pp_status generate_check(void *context)
{
    struct generate *generate = context;
    return gw_generate_check(&generate->options);
}

/* One line each; an answer that fails does not keep the others' from being written. */
static enum pp_status generate_report(struct generate *generate)
{
    enum pp_status status = PP_OK;
    for (uint32_t i = 0; i < generate->answers.count; i++) {
        struct gw_answer *answer = &generate->answers.answers[i];
        bool wanted = answer->object != NULL && (answer->status == PP_OK || answer->of > 1);
        if (wanted) {
            enum pp_status wrote =
                gw_statistics_write(answer->object, generate->options.json_path, stderr);
            answer->object = NULL;
            status = status == PP_OK ? wrote : status;
        }
    }
    return status;
}

/* What can fail at once comes before what takes its time. */
static enum pp_status generate_run(void *context)
{
    struct generate *generate = context;
    struct gw_answers *answers = &generate->answers;
    PP_TRY(gw_statistics_check("--json", generate->options.json_path, stderr));
    PP_TRY(gw_answers_read(answers, &generate->options));
    PP_TRY(gw_worker_open(&generate->worker, &generate->options.worker, stderr));
    gw_engine_micro_batches(generate->worker.engine, (uint32_t)generate->options.micro_batches);
    PP_TRY(gw_answers_prepare(answers, &generate->worker));
    gw_progress_init(&answers->progress, stderr, isatty(STDERR_FILENO) == 1,
                     generate->worker.clock);
    enum pp_status status = gw_answers_run(answers);
    enum pp_status wrote = generate_report(generate);
    return status != PP_OK ? status : wrote;
}

static void generate_close(void *context)
{
    struct generate *generate = context;
    gw_answers_deinit(&generate->answers);
    gw_worker_close(&generate->worker);
}

int gw_generate_main(int argc, char **argv)
{
    struct generate generate = {0};
    struct pp_option table[GW_GENERATE_OPTIONS_MAX];
    const struct gw_program program = {
        .name = "gpu-worker generate",
        .summary = "Answers a prompt, or a list of them: reads it, puts its keys and values on "
                   "attention nodes when some are named, and streams the answer to stdout. "
                   "Progress and figures go to stderr.",
        .examples = generate_examples,
        .options = table,
        .option_count = gw_generate_option_table(&generate.options, table),
        .check = generate_check,
        .run = generate_run,
        .close = generate_close,
        .context = &generate};
    return gw_program_main(&program, argc, argv);
}
