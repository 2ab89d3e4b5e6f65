/*
 * Hides a number, asks for it, reads the digits of the answer. It refuses to know which estimator
 * finds it.
 */
#include "bench/quality_bench_needle.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "gpu-worker/ops/sample.h"

#define NEEDLE_SEED        48213u
#define NEEDLE_TEXT        "\n\nThe secret number of the lighthouse is %u. Remember it.\n\n"
#define NEEDLE_QUESTION    "\n\nThe secret number of the lighthouse is"
#define NEEDLE_DIGITS      5u
#define NEEDLE_ANSWER_SIZE 256u

struct needle {
    uint32_t number;
    uint32_t *ids; /* [count]: text, needle, text, question */
    size_t count;
};

static enum pp_status needle_encode(const struct gw_worker *worker, const char *text,
                                    uint32_t **ids_out, size_t *count_out)
{
    return gw_tokenizer_encode(worker->tokenizer, text, strlen(text), false, ids_out, count_out);
}

/* Puts the pieces together; hidden and question are the caller's. */
static enum pp_status needle_join(const struct gw_eval_text *text, uint32_t index,
                                  const uint32_t *hidden, size_t hidden_count,
                                  const uint32_t *question, size_t question_count,
                                  struct needle *needle)
{
    size_t extra = hidden_count + question_count + NEEDLE_ANSWER_TOKENS;
    if (text->id_count <= extra + NEEDLE_COUNT) {
        return PP_OUT_OF_RANGE;
    }
    size_t around = text->id_count - extra;
    size_t before = around * (2u * index + 1u) / (2u * NEEDLE_COUNT);
    needle->count = around + hidden_count + question_count;
    needle->ids = malloc(needle->count * sizeof(*needle->ids));
    if (needle->ids == NULL) {
        return PP_MEMORY;
    }
    uint32_t *to = needle->ids;
    memcpy(to, text->ids, before * sizeof(*to));
    to += before;
    memcpy(to, hidden, hidden_count * sizeof(*to));
    to += hidden_count;
    memcpy(to, text->ids + before, (around - before) * sizeof(*to));
    to += around - before;
    memcpy(to, question, question_count * sizeof(*to));
    return PP_OK;
}

static enum pp_status needle_make(const struct gw_worker *worker, const struct gw_eval_text *text,
                                  uint32_t index, struct needle *needle_out)
{
    char sentence[sizeof(NEEDLE_TEXT) + 16];
    uint32_t *hidden = NULL, *question = NULL;
    size_t hidden_count = 0, question_count = 0;
    struct needle needle = {.number = 10000u + (uint32_t)(pp_rng_at(NEEDLE_SEED, index) % 90000u)};
    snprintf(sentence, sizeof(sentence), NEEDLE_TEXT, needle.number);
    enum pp_status status = needle_encode(worker, sentence, &hidden, &hidden_count);
    if (status == PP_OK) {
        status = needle_encode(worker, NEEDLE_QUESTION, &question, &question_count);
    }
    if (status == PP_OK) {
        status = needle_join(text, index, hidden, hidden_count, question, question_count, &needle);
    }
    free(question);
    free(hidden);
    PP_TRY(status);
    *needle_out = needle;
    return PP_OK;
}

/* Is the first run of digits in the answer the number? */
static bool needle_found(const char *answer, uint32_t number)
{
    const char *digits = answer + strcspn(answer, "0123456789");
    char expected[NEEDLE_DIGITS + 1];
    snprintf(expected, sizeof(expected), "%05u", number % 100000u);
    return strncmp(digits, expected, NEEDLE_DIGITS) == 0 &&
           isdigit((unsigned char)digits[NEEDLE_DIGITS]) == 0;
}

/* Decodes greedily; answer_out is NUL-ended. */
static enum pp_status needle_decode(const struct gw_worker *worker, struct gw_sequence *sequence,
                                    float *logits, char *answer_out)
{
    size_t length = 0;
    uint32_t vocab = gw_tokenizer_vocab(worker->tokenizer); /* ids past it have no text */
    for (uint32_t i = 0; i < NEEDLE_ANSWER_TOKENS; i++) {
        uint32_t id;
        const char *bytes;
        size_t count;
        PP_TRY(gw_argmax(logits, vocab, &id));
        if (gw_tokenizer_is_end(worker->tokenizer, id)) {
            break;
        }
        gw_tokenizer_bytes(worker->tokenizer, id, false, &bytes, &count);
        if (length + count < NEEDLE_ANSWER_SIZE) {
            memcpy(answer_out + length, bytes, count);
            length += count;
        }
        PP_TRY(gw_sequence_step(sequence, id, logits, NULL));
    }
    answer_out[length] = '\0';
    return PP_OK;
}

static enum pp_status needle_ask(struct gw_worker *worker, const struct needle *needle,
                                 const struct gw_sequence_options *options, float *logits,
                                 FILE *errors, bool *found_out)
{
    char answer[NEEDLE_ANSWER_SIZE];
    struct gw_sequence *sequence = NULL;
    enum pp_status status = gw_sequence_open(worker->engine, options, &sequence);
    if (status == PP_OK) {
        status = gw_sequence_prefill(sequence, needle->ids, (uint32_t)needle->count, 1, logits,
                                     NULL, NULL);
    }
    if (status == PP_OK) {
        status = needle_decode(worker, sequence, logits, answer);
    }
    if (status != PP_OK) {
        gw_worker_explain(errors, "asking for a needle", status, sequence);
    } else {
        *found_out = needle_found(answer, needle->number);
    }
    gw_sequence_close(sequence);
    return status;
}

enum pp_status needle_run(struct gw_worker *worker, const struct gw_eval_text *text,
                          const struct gw_sequence_options *options, FILE *errors,
                          uint32_t *correct_out)
{
    struct gw_sequence_options own = *options;
    uint32_t correct = 0;
    own.tokens_expected = text->id_count;
    for (uint32_t i = 0; i < NEEDLE_COUNT; i++) {
        struct needle needle;
        bool found = false;
        PP_TRY(needle_make(worker, text, i, &needle));
        enum pp_status status = needle_ask(worker, &needle, &own, text->logits, errors, &found);
        free(needle.ids);
        PP_TRY(status);
        correct += found ? 1 : 0;
    }
    *correct_out = correct;
    return PP_OK;
}
