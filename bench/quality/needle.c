/*
 * Hides a number and asks for it. See needle.h. It refuses to know which estimator finds it.
 */
#include "bench/quality/needle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"

#define NEEDLE_SEED     48213u
#define NEEDLE_TEXT     "\n\nThe secret number of the lighthouse is %u. Remember it.\n\n"
#define NEEDLE_QUESTION "\n\nThe secret number of the lighthouse is %u"
#define NEEDLE_DIGITS   5u

/* Encodes a format around a number. */
static enum pp_status encode(const struct gw_worker *worker, const char *format, uint32_t number,
                             uint32_t **ids_out, size_t *count_out)
{
    char text[sizeof(NEEDLE_TEXT) + 16];
    size_t at = (size_t)(strstr(format, "%u") - format);
    snprintf(text, sizeof(text), "%.*s%u%s", (int)at, format, number, format + at + 2);
    return gw_tokenizer_encode(worker->tokenizer, text, strlen(text), false, ids_out, count_out);
}

/* Whether the last tokens are one digit of the number each. */
static bool digits_apart(const struct gw_worker *worker, const uint32_t *ids, size_t count,
                         uint32_t number)
{
    char digits[16];
    snprintf(digits, sizeof(digits), "%u", number);
    for (uint32_t i = 0; count > NEEDLE_DIGITS && i < NEEDLE_DIGITS; ++i) {
        const char *bytes;
        size_t length;
        gw_tokenizer_bytes(worker->tokenizer, ids[count - NEEDLE_DIGITS + i], false, &bytes,
                           &length);
        if (length != 1 || bytes[0] != digits[i]) {
            return false;
        }
    }
    return count > NEEDLE_DIGITS;
}

/* The text's first tokens around the hidden ones, then the question and its answer. */
static enum pp_status join(const struct gw_eval_text *text, uint32_t index, const uint32_t *hidden,
                           size_t hidden_count, const uint32_t *question, size_t question_count,
                           struct gw_eval_text *needle)
{
    size_t extra = hidden_count + question_count;
    if (text->id_count <= extra + QUALITY_NEEDLES) {
        return PP_OUT_OF_RANGE;
    }
    size_t around = text->id_count - extra;
    size_t before = around * (2u * index + 1u) / (2u * QUALITY_NEEDLES);
    needle->ids = malloc(text->id_count * sizeof(*needle->ids));
    needle->reference = malloc((uint64_t)NEEDLE_DIGITS * text->vocab * sizeof(float));
    needle->logits = malloc(text->vocab * sizeof(float));
    if (needle->ids == NULL || needle->reference == NULL || needle->logits == NULL) {
        return PP_MEMORY;
    }
    uint32_t *to = needle->ids;
    memcpy(to, text->ids, before * sizeof(*to));
    memcpy(to + before, hidden, hidden_count * sizeof(*to));
    memcpy(to + before + hidden_count, text->ids + before, (around - before) * sizeof(*to));
    memcpy(to + around + hidden_count, question, question_count * sizeof(*to));
    return PP_OK;
}

enum pp_status quality_needle_make(const struct gw_eval_text *text, uint32_t index,
                                   struct gw_eval_text *needle_out)
{
    const struct gw_worker *worker = text->worker;
    uint32_t *hidden = NULL, *question = NULL;
    size_t hidden_count = 0, question_count = 0;
    uint32_t number = 10000u + (uint32_t)(pp_rng_at(NEEDLE_SEED, index) % 90000u);
    *needle_out = (struct gw_eval_text){.worker = text->worker,
                                        .id_count = text->id_count,
                                        .tokens = NEEDLE_DIGITS,
                                        .vocab = text->vocab};
    enum pp_status status = encode(worker, NEEDLE_TEXT, number, &hidden, &hidden_count);
    if (status == PP_OK) {
        status = encode(worker, NEEDLE_QUESTION, number, &question, &question_count);
    }
    if (status == PP_OK && !digits_apart(worker, question, question_count, number)) {
        status = PP_UNIMPLEMENTED;
    }
    if (status == PP_OK) {
        status = join(text, index, hidden, hidden_count, question, question_count, needle_out);
    }
    free(question);
    free(hidden);
    return status;
}
