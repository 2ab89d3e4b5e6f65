/*
 * An answer from its prompt to its figures. See answer.h.
 */
#include "gpu-worker/api/answer.h"

#include <stdlib.h>
#include <string.h>

#include "gpu-worker/api/interrupt.h"
#include "gpu-worker/api/keep.h"
#include "gpu-worker/api/statistics.h"
#include "gpu-worker/api/tuning.h"

static void say_which(const struct gw_answer *answer)
{
    if (answer->of > 1) {
        fprintf(stderr, "prompt %u: ", answer->number);
    }
}

void gw_answer_explain(const struct gw_answer *answer, const char *what, enum pp_status status)
{
    say_which(answer);
    gw_worker_explain(stderr, what, status, answer->sequence);
}

static bool show_progress(void *context, enum gw_phase phase, uint64_t done, uint64_t total)
{
    static const char *const labels[] = {"prefill", "store", "index", "load", "save", "tune"};
    struct gw_answer *answer = context;
    if (!answer->options->worker.quiet) {
        gw_progress_show(answer->progress, labels[phase], done, total);
    }
    return gw_interrupt_signal() == 0;
}

/* A document that shares less than half of the prompt is another one than was meant. */
static enum pp_status open_documents(struct gw_answer *answer)
{
    const struct gw_generate_options *options = answer->options;
    const struct gw_engine_info *info = gw_engine_info(answer->worker->engine);
    if (options->load_path[0] != '\0') {
        PP_TRY(gw_document_open(options->load_path, &info->shape, info->fingerprint,
                                info->fingerprint_bytes, stderr, &answer->document));
        answer->shared = gw_keep_shared(answer->document, answer->ids, answer->id_count);
        if (2 * answer->shared + 1 < answer->id_count) {
            fprintf(stderr,
                    "%s is of another text: of the prompt's %zu tokens it begins with %llu; give "
                    "the same --prompt-file, or run without --load-kv\n",
                    options->load_path, answer->id_count, (unsigned long long)answer->shared);
            return PP_INVALID_ARGUMENT;
        }
    }
    if (options->save_path[0] == '\0') {
        return PP_OK;
    }
    return gw_keep_begin(options->save_path, info, answer->ids, answer->id_count, stderr,
                         &answer->writer);
}

enum pp_status gw_answer_check(struct gw_answer *answer)
{
    const struct gw_engine_info *info = gw_engine_info(answer->worker->engine);
    PP_TRY(open_documents(answer));
    if (answer->id_count >= info->tokens_max) {
        say_which(answer);
        fprintf(stderr, "the prompt has %zu tokens, which leaves no room in a context of %u\n",
                answer->id_count, info->tokens_max);
        return PP_OUT_OF_RANGE;
    }
    uint64_t room = info->tokens_max - answer->id_count;
    answer->tokens_max = answer->options->tokens_max < room ? answer->options->tokens_max : room;
    return PP_OK;
}

enum pp_status gw_answer_open(struct gw_answer *answer)
{
    const struct gw_generate_options *options = answer->options;
    const struct gw_worker *worker = answer->worker;
    struct gw_sequence_options how = {.remote = worker->remote,
                                      .estimator = options->estimators.common,
                                      .ranges = options->estimators.ranges,
                                      .range_count = options->estimators.range_count,
                                      .nodes_plan = options->worker.nodes_plan,
                                      .worker_signatures = options->worker.worker_signatures,
                                      .balance = options->worker.sketch_balance,
                                      .errors = options->worker.errors,
                                      .tune = options->tune_error > 0.0f,
                                      .dense_layers = worker->dense_layers,
                                      .dense_layer_count = worker->dense_layer_count,
                                      .hash_seed = options->worker.hash_seed,
                                      .step_seed = options->sampling.sampling.seed,
                                      .tokens_expected = answer->id_count + answer->tokens_max,
                                      .tokens_reserved =
                                          answer->id_count + options->worker.tokens_reserved};
    enum pp_status status = gw_sequence_open(worker->engine, &how, &answer->sequence);
    if (status != PP_OK && status != PP_MEMORY) {
        gw_answer_explain(answer, "opening the sequence on the nodes", status);
    }
    return status;
}

/* What the document does not give runs token by token. */
static enum pp_status restore(struct gw_answer *answer)
{
    uint64_t rest = answer->id_count - answer->shared;
    if (answer->shared > 0) {
        PP_TRY(gw_keep_restore(answer->document, answer->shared, answer->sequence, show_progress,
                               answer));
    }
    for (uint64_t i = 0; i < rest; i++) {
        PP_TRY(gw_sequence_step(answer->sequence, answer->ids[answer->shared + i], NULL, NULL));
        if (!show_progress(answer, GW_PHASE_PREFILL, i + 1, rest)) {
            return PP_CANCELLED;
        }
    }
    return PP_OK;
}

static enum pp_status prefill(struct gw_answer *answer)
{
    uint64_t begin_us = pp_clock_now_us(&answer->worker->clock);
    enum pp_status status =
        answer->document != NULL
            ? restore(answer)
            : gw_sequence_prefill(answer->sequence, answer->ids, (uint32_t)answer->id_count, 1,
                                  NULL, show_progress, answer);
    gw_progress_end(answer->progress);
    answer->prefill_us = pp_clock_now_us(&answer->worker->clock) - begin_us;
    if (status != PP_OK && status != PP_CANCELLED) {
        gw_answer_explain(answer, answer->document != NULL ? "loading the prompt" : "prefill",
                          status);
    }
    return status;
}

static enum pp_status draw_first(struct gw_answer *answer)
{
    enum pp_status status = gw_sequence_draw(answer->sequence, &answer->sampler, &answer->next);
    if (status != PP_OK) {
        gw_answer_explain(answer, "drawing a token", status);
    }
    return status;
}

static enum pp_status save(struct gw_answer *answer)
{
    uint64_t begin_us = pp_clock_now_us(&answer->worker->clock);
    enum pp_status status = gw_keep_sequence(answer->writer, gw_engine_info(answer->worker->engine),
                                             answer->sequence, show_progress, answer);
    gw_progress_end(answer->progress);
    answer->save_us = pp_clock_now_us(&answer->worker->clock) - begin_us;
    if (status != PP_OK && status != PP_CANCELLED) {
        gw_answer_explain(answer, "saving the prompt", status);
    }
    return status;
}

static enum pp_status tune(struct gw_answer *answer)
{
    float error = answer->options->tune_error;
    uint64_t begin_us = pp_clock_now_us(&answer->worker->clock);
    enum pp_status status = gw_sequence_tune(answer->sequence, error, show_progress, answer);
    gw_progress_end(answer->progress);
    answer->tune_us = pp_clock_now_us(&answer->worker->clock) - begin_us;
    if (status != PP_OK && status != PP_CANCELLED) {
        gw_answer_explain(answer, "tuning", status);
    }
    if (status == PP_OK && !answer->options->worker.quiet) {
        gw_tuning_print(answer->sequence, error, stderr);
    }
    return status;
}

enum pp_status gw_answer_read(struct gw_answer *answer)
{
    const struct gw_generate_options *options = answer->options;
    gw_detokenizer_init(&answer->detokenizer, answer->worker->tokenizer);
    PP_TRY(gw_sampling_open(&options->sampling, answer->worker, answer->ids, answer->id_count,
                            &answer->sampler));
    PP_TRY(prefill(answer));
    PP_TRY(draw_first(answer));
    if (answer->writer != NULL) {
        PP_TRY(save(answer));
    }
    return options->tune_error > 0.0f ? tune(answer) : PP_OK;
}

static enum pp_status add_text(struct gw_answer *answer, const char *text, size_t bytes)
{
    if (answer->bytes + bytes + 1 > answer->capacity) {
        size_t capacity = 2 * answer->capacity + bytes + 256;
        char *larger = realloc(answer->text, capacity);
        if (larger == NULL) {
            return PP_MEMORY;
        }
        answer->text = larger;
        answer->capacity = capacity;
    }
    memcpy(answer->text + answer->bytes, text, bytes);
    answer->bytes += bytes;
    return PP_OK;
}

enum pp_status gw_answer_add(struct gw_answer *answer)
{
    const struct gw_tokenizer *tokenizer = answer->worker->tokenizer;
    const char *text;
    size_t bytes;
    if (gw_tokenizer_is_end(tokenizer, answer->next)) {
        answer->finish = "stop";
        return PP_OK;
    }
    PP_TRY(gw_detokenizer_add(&answer->detokenizer, answer->next, &text, &bytes));
    PP_TRY(add_text(answer, text, bytes));
    answer->generated++;
    if (answer->generated >= answer->tokens_max) {
        answer->finish = "length";
    } else if (gw_interrupt_signal() != 0) {
        answer->finish = "interrupted";
    }
    return PP_OK;
}

static void print_figures(const struct gw_answer *answer, FILE *out)
{
    const struct gw_step_stats *steps = &answer->steps;
    const char *estimator = answer->options->estimator_text;
    double count = steps->steps == 0 ? 1.0 : (double)steps->steps;
    double prefill_s = (double)answer->prefill_us * 1e-6;
    if (answer->of > 1) {
        fprintf(out, "answer %u: ", answer->number);
    }
    fprintf(out, "%zu prompt tokens in %.2f s (%.0f tokens/s%s), %llu tokens at %.1f ms",
            answer->id_count, prefill_s, (double)answer->id_count / prefill_s,
            answer->document != NULL ? ", loaded" : "", (unsigned long long)answer->generated,
            (double)steps->total_us * 1e-3 / count);
    if (steps->attends > 0) {
        fprintf(out,
                "; %.1f ms of it waiting for nodes; of the held keys a query head read %.1f %%, "
                "its group %.1f %%",
                (double)steps->wait_us * 1e-3 / count,
                100.0 * gw_statistics_share(steps->keys_read_q, steps->keys_held_q),
                100.0 * gw_statistics_share(steps->keys_read, steps->keys_held));
    }
    fputc('\n', out);
    struct gw_recoveries recoveries;
    gw_sequence_recoveries(answer->sequence, &recoveries);
    if (recoveries.count > 0) {
        fprintf(out,
                "went on %llu times after nodes were lost, which took %.2f s; %llu tokens were "
                "computed again\n",
                (unsigned long long)recoveries.count, (double)recoveries.total_us * 1e-6,
                (unsigned long long)recoveries.tokens_recomputed);
    }
    gw_statistics_print_errors(gw_sequence_errors(answer->sequence), steps, out);
    bool wanted = answer->worker->remote != NULL || strcmp(estimator, GW_GENERATE_ESTIMATOR) != 0;
    bool sample = pp_estimators_sample(&answer->options->estimators);
    if (sample && wanted && steps->attends_estimated == 0 && steps->steps > 0) {
        fprintf(out,
                "note: %s was never used, all tokens were read: too few on the nodes for an index, "
                "or no nodes\n",
                estimator);
    }
}

static json_t *report(const struct gw_answer *answer)
{
    json_t *object = json_object();
    const char *text = answer->text == NULL ? "" : answer->text;
    json_object_set_new(object, "program", json_string("generate"));
    json_object_set_new(object, "estimator", json_string(answer->options->estimator_text));
    json_object_set_new(object, "prompt_tokens", json_integer((json_int_t)answer->id_count));
    json_object_set_new(object, "generated_tokens", json_integer((json_int_t)answer->generated));
    json_object_set_new(object, "finish_reason", json_string(answer->finish));
    if (answer->of > 1) {
        json_object_set_new(object, "prompt", json_integer((json_int_t)answer->number));
    }
    gw_statistics_text(object, "answer", text, answer->bytes);
    if (answer->status != PP_OK) {
        json_object_set_new(object, "error", json_string(pp_status_name(answer->status)));
        return object;
    }
    double prefill_s = (double)answer->prefill_us * 1e-6;
    json_object_set_new(object, "prefill_s", json_real(prefill_s));
    json_object_set_new(object, "prefill_tokens_per_s",
                        json_real((double)answer->id_count / prefill_s));
    json_object_set_new(object, "loaded_tokens", json_integer((json_int_t)answer->shared));
    json_object_set_new(object, "save_s", json_real((double)answer->save_us * 1e-6));
    gw_statistics_overlap(object, answer->worker->engine);
    gw_statistics_steps(object, &answer->steps);
    gw_statistics_errors(object, gw_sequence_errors(answer->sequence), &answer->steps);
    gw_tuning_json(object, answer->sequence, answer->options->tune_error, answer->tune_us);
    gw_statistics_held(object, answer->worker, answer->sequence);
    return object;
}

/* What only its steps need. */
static void free_steps(struct gw_answer *answer)
{
    gw_sequence_close(answer->sequence);
    gw_document_writer_destroy(answer->writer);
    gw_document_close(answer->document);
    gw_sampler_deinit(&answer->sampler);
    gw_detokenizer_deinit(&answer->detokenizer);
    free(answer->ids);
    answer->sequence = NULL;
    answer->writer = NULL;
    answer->document = NULL;
    answer->ids = NULL;
}

bool gw_answer_whole(const struct gw_answer *answer)
{
    return answer->status == PP_OK && strcmp(answer->finish, "interrupted") != 0;
}

void gw_answer_end(struct gw_answer *answer, enum pp_status status)
{
    size_t bytes;
    answer->ended = true;
    answer->status = status;
    if (status != PP_OK) {
        answer->finish = status == PP_CANCELLED ? "interrupted" : "error";
    }
    if (status == PP_OK) {
        FILE *out = open_memstream(&answer->figures, &bytes);
        gw_detokenizer_finish(&answer->detokenizer);
        if (out != NULL) {
            print_figures(answer, out);
            fclose(out);
        }
    }
    answer->object = report(answer);
    free_steps(answer);
}

void gw_answer_deinit(struct gw_answer *answer)
{
    free_steps(answer);
    json_decref(answer->object);
    free(answer->figures);
    free(answer->text);
}
