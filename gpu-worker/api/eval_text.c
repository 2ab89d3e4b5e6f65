/*
 * Runs a text through the engine and scores it. On the walk: above engine. It refuses to know which
 * estimator runs and how figures are shown.
 */
#include "gpu-worker/api/eval_text.h"

#include <stdlib.h>
#include <string.h>

#include "gpu-worker/api/interrupt.h"

enum pp_status gw_eval_text_init(struct gw_worker *worker, const char *path, const char *bytes,
                                 size_t byte_count, uint64_t tokens, FILE *errors,
                                 struct gw_eval_text *text_out)
{
    size_t count;
    memset(text_out, 0, sizeof(*text_out));
    text_out->worker = worker;
    enum pp_status status =
        gw_tokenizer_encode(worker->tokenizer, bytes, byte_count, false, &text_out->ids, &count);
    if (status != PP_OK) {
        fprintf(errors, "%s cannot be encoded: %s (is it UTF-8 text?)\n", path,
                pp_status_name(status));
        return status;
    }
    uint64_t most = gw_engine_info(worker->engine)->tokens_max;
    text_out->id_count = count < most ? count : most;
    text_out->tokens = tokens;
    if (text_out->id_count < 2 || tokens > text_out->id_count - 1) {
        fprintf(errors, "%s has %zu tokens, %llu of them used: too few to measure %llu\n", path,
                count, (unsigned long long)text_out->id_count, (unsigned long long)tokens);
        return PP_OUT_OF_RANGE;
    }
    text_out->vocab = gw_engine_info(worker->engine)->vocab;
    text_out->reference = malloc(tokens * text_out->vocab * sizeof(float));
    text_out->logits = malloc(text_out->vocab * sizeof(float));
    return text_out->reference == NULL || text_out->logits == NULL ? PP_MEMORY : PP_OK;
}

void gw_eval_text_free(struct gw_eval_text *text)
{
    free(text->logits);
    free(text->reference);
    free(text->ids);
    memset(text, 0, sizeof(*text));
}

static bool eval_text_progress(void *context, enum gw_phase phase, uint64_t done, uint64_t total)
{
    static const char *const labels[] = {"prefill", "store", "index", "load", "save", "tune"};
    struct gw_progress *progress = context;
    if (progress != NULL) {
        gw_progress_show(progress, labels[phase], done, total);
    }
    return gw_interrupt_signal() == 0;
}

static void eval_text_progress_end(struct gw_progress *progress)
{
    if (progress != NULL) {
        gw_progress_end(progress);
    }
}

/* Tokens before the measured ones. */
static uint64_t eval_text_prompt(const struct gw_eval_text *text)
{
    return text->id_count - 1 - text->tokens; /* the very last is only predicted */
}

enum pp_status gw_eval_text_prefill(struct gw_eval_text *text, struct gw_sequence *sequence,
                                    struct gw_progress *progress)
{
    /* Also where the reference is there: so nodes hold the same under every estimator. */
    uint64_t count = eval_text_prompt(text) + text->tokens;
    uint64_t rows = text->has_reference ? 0 : text->tokens;
    enum pp_status status =
        gw_sequence_prefill(sequence, text->ids, (uint32_t)count, (uint32_t)rows, text->reference,
                            eval_text_progress, progress);
    eval_text_progress_end(progress);
    PP_TRY(status);
    text->has_reference = true;
    return gw_sequence_mark(sequence, eval_text_prompt(text));
}

enum pp_status gw_eval_text_tune(float error, struct gw_sequence *sequence,
                                 struct gw_progress *progress)
{
    enum pp_status status = gw_sequence_tune(sequence, error, eval_text_progress, progress);
    eval_text_progress_end(progress);
    return status;
}

static enum pp_status eval_text_keep(const struct gw_eval_text *text)
{
    bool failed = text->decoded != NULL &&
                  (fwrite(text->logits, sizeof(float), text->vocab, text->decoded) != text->vocab ||
                   fflush(text->decoded) != 0);
    return failed ? PP_IO : PP_OK;
}

/* Steps over the measured tokens, fed with the text. */
static enum pp_status eval_text_steps(struct gw_eval_text *text, struct gw_sequence *sequence,
                                      struct gw_progress *progress, struct gw_eval_run *run)
{
    uint64_t first = eval_text_prompt(text);
    for (uint64_t i = 0; i < text->tokens; i++) {
        struct gw_step_stats step;
        if (gw_interrupt_signal() != 0) {
            return PP_CANCELLED;
        }
        gw_worker_follow_nodes(text->worker);
        PP_TRY(gw_sequence_step(sequence, text->ids[first + i], text->logits, &step));
        gw_step_stats_add(&run->steps, &step);
        PP_TRY(gw_eval_score_add(&run->score, text->reference + i * text->vocab, text->logits,
                                 text->vocab, text->ids[first + i + 1]));
        PP_TRY(eval_text_keep(text));
        if (progress != NULL) {
            gw_progress_show(progress, "decode", i + 1, text->tokens);
        }
    }
    return PP_OK;
}

enum pp_status gw_eval_text_run(struct gw_eval_text *text, struct gw_sequence *sequence,
                                struct gw_progress *progress, struct gw_eval_run *run_out)
{
    struct gw_eval_run run = {0};
    PP_TRY(gw_sequence_rewind(sequence));
    enum pp_status status = eval_text_steps(text, sequence, progress, &run);
    eval_text_progress_end(progress);
    PP_TRY(status);
    *run_out = run;
    return PP_OK;
}
