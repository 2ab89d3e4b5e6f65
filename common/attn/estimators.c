/*
 * Reading which layer is attended how. See estimators.h. One estimator's own text is shape.c's.
 */
#include "common/attn/estimators.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES_MAX 96u

/* Copies up to a slash or the end, and parses it. */
static enum pp_status parse_one(const char *text, size_t bytes, struct pp_estimator *out)
{
    char copy[TEXT_BYTES_MAX];
    if (bytes >= sizeof(copy)) {
        return PP_INVALID_ARGUMENT;
    }
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return pp_estimator_parse(copy, out);
}

/* What a budget that makes no sense is told. The value must lie above 0, at most at `most`. */
static const struct budget_rule {
    const char *name;
    double most;
    const char *cause;
} budget_rules[] = {
    {"share=", 1.0,
     "reads no such share: it must be above 0, at most 1, as in sketch:share=0.04 for four of a "
     "hundred keys; leave it out for one by the length of the context"},
    {"rows=", 4294967295.0,
     "reads no such number of keys: it must be 1 or more, as in sketch:rows=1024; leave it out for "
     "a share by the length of the context"},
    {"error=", 1.0,
     "is within no such error: it must be above 0, at most 1, as in sketch:error=0.1; leave it out "
     "for a fixed budget, or write exact for no error at all"},
};

/* Why an estimator was refused: because of its budget, or as none that is known. */
static const char *cause_of(const char *text, size_t bytes)
{
    const char *cause = "is none of " PP_ESTIMATOR_SYNTAX;
    bool share = false, rows = false;
    bool lsh = bytes >= 3 && strncmp(text, "lsh", 3) == 0;
    for (size_t at = strcspn(text, ":"); at < bytes; at += 1 + strcspn(text + at + 1, ",/")) {
        for (uint32_t i = 0; i < sizeof(budget_rules) / sizeof(budget_rules[0]); ++i) {
            const struct budget_rule *rule = &budget_rules[i];
            size_t name = strlen(rule->name);
            if (strncmp(text + at + 1, rule->name, name) != 0 || (lsh && i < 2)) {
                continue;
            }
            char *end;
            double value = strtod(text + at + 1 + name, &end);
            bool number = end != text + at + 1 + name;
            cause = number && !(value > 0.0 && value <= rule->most) ? rule->cause : cause;
            share = share || i == 0;
            rows = rows || i == 1;
        }
    }
    return share && rows ? "names two budgets: write share=X or rows=N, not both" : cause;
}

/* A layer's number of at most four digits; moves *at behind it. */
static bool parse_layer(const char **at, uint32_t *layer_out)
{
    size_t digits = strspn(*at, "0123456789");
    if (digits == 0 || digits > 4) {
        return false;
    }
    *layer_out = (uint32_t)strtoul(*at, NULL, 10);
    *at += digits;
    return *layer_out < PP_LAYERS_MAX;
}

/* "3:" or "0-3:"; moves *at behind it. */
static bool parse_layers(const char **at, struct pp_estimator_range *range)
{
    if (!parse_layer(at, &range->first)) {
        return false;
    }
    range->last = range->first;
    if (**at == '-') {
        ++*at;
        if (!parse_layer(at, &range->last)) {
            return false;
        }
    }
    bool ends = **at == ':';
    *at += ends ? 1 : 0;
    return ends && range->first <= range->last;
}

static enum pp_status refuse(char *error_out, size_t error_bytes, const char *what, size_t bytes,
                             const char *cause)
{
    snprintf(error_out, error_bytes, "'%.*s' %s", (int)(bytes < 128 ? bytes : 128), what, cause);
    return PP_INVALID_ARGUMENT;
}

static bool named_before(const struct pp_estimators *estimators,
                         const struct pp_estimator_range *range)
{
    bool named = false;
    for (uint32_t i = 0; i < estimators->range_count; ++i) {
        const struct pp_estimator_range *before = &estimators->ranges[i];
        named = named || (range->first <= before->last && before->first <= range->last);
    }
    return named;
}

enum pp_status pp_estimators_parse(const char *text, struct pp_estimators *out, char *error_out,
                                   size_t error_bytes)
{
    struct pp_estimators estimators = {.range_count = 0};
    size_t bytes = strcspn(text, "/");
    if (parse_one(text, bytes, &estimators.common) != PP_OK) {
        return refuse(error_out, error_bytes, text, bytes, cause_of(text, bytes));
    }
    for (const char *at = text + bytes; *at == '/'; at += bytes) {
        const char *whole = ++at;
        size_t whole_bytes = strcspn(whole, "/");
        if (estimators.range_count == PP_ESTIMATOR_RANGES_MAX) {
            return refuse(error_out, error_bytes, whole, whole_bytes,
                          "is one too many: at most 32 ranges of layers may be named");
        }
        struct pp_estimator_range *range = &estimators.ranges[estimators.range_count];
        if (!parse_layers(&at, range)) {
            return refuse(error_out, error_bytes, whole, whole_bytes,
                          "names no layers below 1024: " PP_ESTIMATORS_SYNTAX);
        }
        if (named_before(&estimators, range)) {
            return refuse(error_out, error_bytes, whole, whole_bytes,
                          "names a layer for the second time: one estimator a layer");
        }
        bytes = strcspn(at, "/");
        if (parse_one(at, bytes, &range->estimator) != PP_OK) {
            return refuse(error_out, error_bytes, at, bytes, cause_of(at, bytes));
        }
        ++estimators.range_count;
    }
    *out = estimators;
    return PP_OK;
}

const struct pp_estimator *pp_estimators_of(const struct pp_estimators *estimators, uint32_t layer)
{
    for (uint32_t i = 0; i < estimators->range_count; ++i) {
        const struct pp_estimator_range *range = &estimators->ranges[i];
        if (layer >= range->first && layer <= range->last) {
            return &range->estimator;
        }
    }
    return &estimators->common;
}

bool pp_estimators_same(const struct pp_estimators *a, const struct pp_estimators *b)
{
    bool same = true;
    for (uint32_t layer = 0; layer < PP_LAYERS_MAX && same; ++layer) {
        same = pp_estimator_same(pp_estimators_of(a, layer), pp_estimators_of(b, layer));
    }
    return same;
}

bool pp_estimators_sample(const struct pp_estimators *estimators)
{
    bool sample = estimators->common.kind != PP_EXACT;
    for (uint32_t i = 0; i < estimators->range_count; ++i) {
        sample = sample || estimators->ranges[i].estimator.kind != PP_EXACT;
    }
    return sample;
}
