/*
 * The loop over all answers: begins as many as may run side by side, adds a token to each, steps
 * all at once, prints the one in front. See answers.h.
 */
#include "gpu-worker/api/answers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu-worker/api/interrupt.h"

/* Cuts the list at its line ends, in place; blank lines are none. */
static uint32_t cut_lines(char *list, size_t bytes, const char **lines_out)
{
    uint32_t count = 0;
    for (char *at = list, *end = list + bytes; at < end;) {
        char *line_end = memchr(at, '\n', (size_t)(end - at));
        line_end = line_end != NULL ? line_end : end;
        *line_end = '\0';
        if (line_end > at && line_end[-1] == '\r') {
            line_end[-1] = '\0';
        }
        if (at[strspn(at, " \t")] != '\0') {
            lines_out[count++] = at;
        }
        at = line_end + 1;
    }
    return count;
}

static enum pp_status read_list(struct gw_answers *answers, const char *path)
{
    size_t bytes, lines = 1;
    bool standard = strcmp(path, "-") == 0;
    PP_TRY(gw_file_read(path, stderr, &answers->list, &bytes));
    for (size_t i = 0; i < bytes; i++) {
        lines += answers->list[i] == '\n' ? 1 : 0;
    }
    answers->lines = calloc(lines, sizeof(*answers->lines));
    if (answers->lines == NULL || lines > UINT32_MAX) {
        return PP_MEMORY;
    }
    if (memchr(answers->list, '\0', bytes) != NULL) { /* what is behind it would not be asked */
        fprintf(stderr, "--prompts: %s has a NUL byte in it; it takes text\n",
                standard ? "stdin" : path);
        return PP_INVALID_ARGUMENT;
    }
    answers->count = cut_lines(answers->list, bytes, answers->lines);
    if (answers->count == 0) {
        fprintf(stderr, "--prompts: %s has no prompt in it; it takes one a line\n",
                standard ? "stdin" : path);
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

enum pp_status gw_answers_read(struct gw_answers *answers,
                               const struct gw_generate_options *options)
{
    answers->options = options;
    PP_TRY(gw_prompt_read(&options->prompt, stderr, &answers->text, &answers->text_bytes));
    if (options->prompts_path[0] != '\0') {
        return read_list(answers, options->prompts_path);
    }
    answers->lines = calloc(1, sizeof(*answers->lines));
    if (answers->lines == NULL) {
        return PP_MEMORY;
    }
    answers->lines[0] = options->prompt.prompt;
    answers->count = 1;
    return PP_OK;
}

static enum pp_status encode(const struct gw_answers *answers, const char *line,
                             struct gw_answer *answer)
{
    char *text;
    size_t bytes;
    PP_TRY(gw_prompt_join(answers->text, answers->text_bytes, line, stderr, &text, &bytes));
    enum pp_status status = gw_prompt_encode(answers->worker, &answers->options->prompt, text,
                                             bytes, stderr, &answer->ids, &answer->id_count);
    free(text);
    return status;
}

static enum pp_status prepare_one(struct gw_answers *answers, uint32_t index)
{
    struct gw_answer *answer = &answers->answers[index];
    *answer = (struct gw_answer){.options = answers->options,
                                 .worker = answers->worker,
                                 .progress = &answers->progress,
                                 .number = index + 1,
                                 .of = answers->count};
    enum pp_status status = encode(answers, answers->lines[index], answer);
    if (status != PP_OK && answer->of > 1) {
        fprintf(stderr, "it is prompt %u of %u: %s\n", answer->number, answer->of,
                answers->lines[index]);
    }
    PP_TRY(status);
    return gw_answer_check(answer);
}

enum pp_status gw_answers_prepare(struct gw_answers *answers, struct gw_worker *worker)
{
    uint32_t layers = gw_engine_info(worker->engine)->shape.layers;
    answers->worker = worker;
    answers->answers = calloc(answers->count, sizeof(*answers->answers));
    if (answers->answers == NULL) {
        return PP_MEMORY;
    }
    for (uint32_t i = 0; i < answers->count; i++) {
        PP_TRY(prepare_one(answers, i));
    }
    return gw_estimators_check("--estimator", &answers->options->estimators, layers, stderr);
}

/* Text of the answer in front goes out, and of those behind it that waited for it to end. */
static enum pp_status print_front(struct gw_answers *answers)
{
    while (answers->front < answers->begun) {
        const struct gw_answer *answer = &answers->answers[answers->front];
        size_t bytes = answer->bytes - answers->printed;
        bool ends = answer->ended;
        if (answers->list != NULL && !answers->headed) {
            printf("%s== %u of %u: %s\n", answers->front > 0 ? "\n" : "", answer->number,
                   answer->of, answers->lines[answers->front]);
            answers->headed = true;
        }
        if (bytes > 0) {
            fwrite(answer->text + answers->printed, 1, bytes, stdout);
            answers->printed = answer->bytes;
        }
        if (ends && answer->bytes > 0) {
            fputc('\n', stdout);
        }
        if (fflush(stdout) != 0) {
            fprintf(stderr, "cannot write the answer to stdout: %s\n", strerror(errno));
            return PP_IO;
        }
        if (!ends) {
            return PP_OK;
        }
        if (answer->figures != NULL && !answers->options->worker.quiet) {
            fputs(answer->figures, stderr);
        }
        answers->front++;
        answers->printed = 0;
        answers->headed = false;
    }
    return PP_OK;
}

/* One is over; the last of the running ones takes its place. */
static void end_one(struct gw_answers *answers, uint32_t at, enum pp_status status)
{
    struct gw_answer *answer = answers->active[at];
    gw_answer_end(answer, status);
    answers->active[at] = answers->active[--answers->active_count];
    answers->full = false;
    answers->answered += status == PP_OK ? 1 : 0;
    answers->whole += gw_answer_whole(answer) ? 1 : 0;
    answers->status = answers->status == PP_OK ? status : answers->status;
}

/* The next prompt runs beside the others. PP_MEMORY: not before one of them has ended. */
static enum pp_status begin_one(struct gw_answers *answers)
{
    struct gw_answer *answer = &answers->answers[answers->begun];
    enum pp_status status = gw_answer_open(answer);
    if (status == PP_MEMORY && answers->active_count > 0) {
        return status;
    }
    if (status == PP_MEMORY) {
        gw_answer_explain(answer, "opening the sequence on the nodes", status);
    }
    answers->begun++;
    answers->active[answers->active_count++] = answer;
    status = status == PP_OK ? gw_answer_read(answer) : status;
    if (status != PP_OK) {
        end_one(answers, answers->active_count - 1, status);
    }
    return PP_OK;
}

/* Where there was no room for one, nodes are not asked again at every step. */
static void begin_more(struct gw_answers *answers)
{
    while (!answers->full && answers->begun < answers->count &&
           answers->active_count < answers->options->parallel && gw_interrupt_signal() == 0) {
        answers->full = begin_one(answers) == PP_MEMORY;
    }
}

/* The token of each; who has its last one makes room. */
static void add_all(struct gw_answers *answers)
{
    for (uint32_t i = answers->active_count; i-- > 0;) {
        struct gw_answer *answer = answers->active[i];
        enum pp_status status = gw_answer_add(answer);
        if (status != PP_OK) {
            gw_answer_explain(answer, "adding a token", status);
        }
        if (status != PP_OK || answer->finish != NULL) {
            end_one(answers, i, status);
        }
    }
}

static enum pp_status step_all(struct gw_answers *answers)
{
    struct gw_step steps[GW_BATCH_MAX];
    uint32_t count = answers->active_count;
    for (uint32_t i = 0; i < count; i++) {
        struct gw_answer *answer = answers->active[i];
        steps[i] = (struct gw_step){
            .sequence = answer->sequence, .id = answer->next, .sampler = &answer->sampler};
    }
    gw_worker_follow_nodes(answers->worker);
    PP_TRY(gw_engine_step(answers->worker->engine, steps, count));
    gw_step_stats_add(&answers->steps, &steps[0].stats);
    answers->rows += count;
    for (uint32_t i = count; i-- > 0;) {
        struct gw_answer *answer = answers->active[i];
        if (steps[i].status == PP_OK) {
            gw_step_stats_add(&answer->steps, &steps[i].stats);
            answer->next = steps[i].next;
            continue;
        }
        fprintf(stderr,
                "the answer ends here, after %llu tokens: ", (unsigned long long)answer->generated);
        gw_answer_explain(answer, "decoding", steps[i].status);
        end_one(answers, i, steps[i].status);
    }
    return PP_OK;
}

static void print_all_figures(const struct gw_answers *answers)
{
    const struct gw_step_stats *steps = &answers->steps;
    double count = steps->steps == 0 ? 1.0 : (double)steps->steps;
    double decode_s = (double)steps->total_us * 1e-6;
    fprintf(stderr,
            "%u answers; %llu steps of %.1f sequences: %.1f tokens/s, %.1f ms of a step's "
            "%.1f waiting for nodes\n",
            answers->answered, (unsigned long long)steps->steps, (double)answers->rows / count,
            decode_s > 0.0 ? (double)answers->rows / decode_s : 0.0,
            (double)steps->wait_us * 1e-3 / count, (double)steps->total_us * 1e-3 / count);
}

enum pp_status gw_answers_run(struct gw_answers *answers)
{
    for (;;) {
        begin_more(answers);
        add_all(answers);
        PP_TRY(print_front(answers));
        if (answers->active_count > 0) {
            PP_TRY(step_all(answers));
        } else if (answers->begun == answers->count || gw_interrupt_signal() != 0) {
            break;
        }
    }
    PP_TRY(print_front(answers));
    if (answers->list != NULL && !answers->options->worker.quiet) {
        print_all_figures(answers);
    }
    if (answers->whole < answers->count && answers->count > 1) {
        fprintf(stderr, "%u of %u prompts have no whole answer\n", answers->count - answers->whole,
                answers->count);
    }
    return answers->status;
}

void gw_answers_deinit(struct gw_answers *answers)
{
    for (uint32_t i = 0; i < answers->count && answers->answers != NULL; i++) {
        gw_answer_deinit(&answers->answers[i]);
    }
    free(answers->answers);
    free(answers->lines);
    free(answers->list);
    free(answers->text);
}
