/*
 * Control and user-defined tokens found in text: a sorted list, narrowed byte by byte by binary
 * search, so that a position costs no more than the longest token. Between the tokenizer and the
 * vocabulary; decides nothing about who may use them.
 */
#include "gpu-worker/model/special.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct span {
    const char *bytes;
    size_t count;
    uint32_t id;
};

static struct span span_of(const struct gw_vocab *vocab, uint32_t id)
{
    const size_t start = vocab->starts[id];
    return (struct span){vocab->bytes + start, vocab->starts[id + 1] - start, id};
}

static int span_compare(const void *left, const void *right)
{
    const struct span *a = left;
    const struct span *b = right;
    const int order = memcmp(a->bytes, b->bytes, a->count < b->count ? a->count : b->count);
    return order != 0 ? order : (a->count > b->count) - (a->count < b->count);
}

static bool is_special(const struct gw_vocab *vocab, uint32_t id)
{
    return (vocab->kinds[id] == GW_TOKEN_CONTROL || vocab->kinds[id] == GW_TOKEN_USER_DEFINED) &&
           vocab->starts[id + 1] > vocab->starts[id];
}

/* Fills ids and first from the sorted spans. */
static enum pp_status index_spans(struct gw_specials *specials, const struct span *spans,
                                  char *error_out, size_t error_bytes)
{
    uint32_t byte = 0;
    for (uint32_t index = 0; index < specials->count; index++) {
        if (index > 0 && span_compare(&spans[index - 1], &spans[index]) == 0) {
            (void)snprintf(error_out, error_bytes,
                           "tokenizer: two control tokens have one text (number %u)",
                           spans[index].id);
            return PP_INVALID_ARGUMENT;
        }
        for (; byte <= (uint8_t)spans[index].bytes[0]; byte++) {
            specials->first[byte] = index;
        }
        specials->ids[index] = spans[index].id;
    }
    for (; byte <= 256; byte++) {
        specials->first[byte] = specials->count;
    }
    return PP_OK;
}

enum pp_status gw_specials_init(struct gw_specials *specials, const struct gw_vocab *vocab,
                                char *error_out, size_t error_bytes)
{
    struct gw_specials made = {.vocab = vocab};
    for (uint32_t id = 0; id < vocab->count; id++) {
        made.count += is_special(vocab, id);
    }
    struct span *spans = calloc((size_t)made.count + 1, sizeof(*spans));
    made.ids = calloc((size_t)made.count + 1, sizeof(*made.ids));
    enum pp_status status = PP_MEMORY;
    if (spans != NULL && made.ids != NULL) {
        uint32_t filled = 0;
        for (uint32_t id = 0; id < vocab->count; id++) {
            if (is_special(vocab, id)) {
                spans[filled++] = span_of(vocab, id);
            }
        }
        qsort(spans, made.count, sizeof(*spans), span_compare);
        status = index_spans(&made, spans, error_out, error_bytes);
    }
    free(spans);
    if (status != PP_OK) {
        gw_specials_deinit(&made);
        return status;
    }
    *specials = made;
    return PP_OK;
}

void gw_specials_deinit(struct gw_specials *specials)
{
    free(specials->ids);
    memset(specials, 0, sizeof(*specials));
}

/* The first of [low, high) whose byte at `depth` is at least `byte`; all of them agree before
 * depth, and those that end there come first. */
static uint32_t lower_bound(const struct gw_specials *specials, uint32_t low, uint32_t high,
                            size_t depth, uint32_t byte)
{
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const struct span span = span_of(specials->vocab, specials->ids[middle]);
        if (span.count <= depth || (uint8_t)span.bytes[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest one that stands at the beginning of text, or GW_TOKEN_NONE. */
static uint32_t match_here(const struct gw_specials *specials, const char *text, size_t count,
                           bool control, size_t *bytes_out)
{
    uint32_t low = specials->first[(uint8_t)text[0]];
    uint32_t high = specials->first[(uint8_t)text[0] + 1];
    uint32_t best = GW_TOKEN_NONE;
    for (size_t depth = 1; low < high; depth++) {
        const struct span span = span_of(specials->vocab, specials->ids[low]);
        if (span.count == depth &&
            (control || specials->vocab->kinds[span.id] == GW_TOKEN_USER_DEFINED)) {
            best = span.id;
            *bytes_out = depth;
        }
        if (depth == count) {
            break;
        }
        const uint32_t byte = (uint8_t)text[depth];
        low = lower_bound(specials, low, high, depth, byte);
        high = lower_bound(specials, low, high, depth, byte + 1);
    }
    return best;
}

enum pp_status gw_specials_next(const struct gw_specials *specials, const char *text, size_t count,
                                size_t start, bool control, size_t *begin_out, size_t *end_out,
                                uint32_t *id_out)
{
    for (size_t at = start; at < count && specials->count > 0; at++) {
        size_t bytes = 0;
        const uint32_t id = match_here(specials, text + at, count - at, control, &bytes);
        if (id != GW_TOKEN_NONE) {
            *begin_out = at;
            *end_out = at + bytes;
            *id_out = id;
            return PP_OK;
        }
    }
    return PP_NOT_FOUND;
}

uint32_t gw_specials_find(const struct gw_specials *specials, const char *text, size_t count)
{
    size_t bytes = 0;
    if (count == 0) {
        return GW_TOKEN_NONE;
    }
    const uint32_t id = match_here(specials, text, count, true, &bytes);
    return bytes == count ? id : GW_TOKEN_NONE;
}
