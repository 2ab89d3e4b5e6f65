/*
 * The text of one option as its kind, within its bounds. A refusal names the option, the text,
 * where it came from and what would be right.
 */
#include "common/base/options_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/assert.h"

#define TEXT_BYTES_MAX 256

static enum pp_status parse_bool(const char *text, bool *value_out)
{
    static const char *const words[][2] = {
        {"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t index = 0; index < sizeof(words) / sizeof(words[0]); ++index) {
        for (int value = 0; value < 2; ++value) {
            if (strcasecmp(text, words[index][value]) == 0) {
                *value_out = value == 1;
                return PP_OK;
            }
        }
    }
    return PP_INVALID_ARGUMENT;
}

static enum pp_status parse_double(const struct pp_option *option, const char *text,
                                   double *value_out)
{
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        return PP_INVALID_ARGUMENT;
    }
    bool bounded = option->number_min != 0.0 || option->number_max != 0.0;
    if (bounded && (value < option->number_min || value > option->number_max)) {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = value;
    return PP_OK;
}

static enum pp_status parse_number(const struct pp_option *option, const char *text,
                                   uint64_t *value_out)
{
    uint64_t value = 0;
    if (option->kind == PP_OPTION_SIZE) {
        PP_TRY(pp_parse_size(text, option->whole, &value));
    } else if (option->kind == PP_OPTION_DURATION) {
        PP_TRY(pp_parse_duration(text, &value));
    } else {
        PP_TRY(pp_parse_u64(text, &value));
    }
    if (value < option->min || (option->max != 0 && value > option->max)) {
        return PP_INVALID_ARGUMENT;
    }
    *value_out = value;
    return PP_OK;
}

static enum pp_status parse_choice(const struct pp_option *option, const char *text, int *value_out)
{
    for (int index = 0; option->choices[index] != NULL; ++index) {
        if (strcmp(text, option->choices[index]) == 0) {
            *value_out = index;
            return PP_OK;
        }
    }
    return PP_INVALID_ARGUMENT;
}

static enum pp_status parse_kind(const struct pp_option *option, const char *text,
                                 union pp_option_parsed *parsed_out)
{
    switch (option->kind) {
    case PP_OPTION_BOOL:
        return parse_bool(text, &parsed_out->flag);
    case PP_OPTION_U64:
    case PP_OPTION_SIZE:
    case PP_OPTION_DURATION:
        return parse_number(option, text, &parsed_out->number);
    case PP_OPTION_DOUBLE:
        return parse_double(option, text, &parsed_out->real);
    case PP_OPTION_CHOICE:
        return parse_choice(option, text, &parsed_out->choice);
    case PP_OPTION_TEXT:
        return PP_OK;
    }
    return PP_INTERNAL;
}

static void add_bounds(const struct pp_option *option, const char *unit, char *text, size_t bytes)
{
    size_t used = strlen(text);
    if (option->min != 0) {
        snprintf(text + used, bytes - used, ", at least %llu%s", (unsigned long long)option->min,
                 unit);
        used = strlen(text);
    }
    if (option->max != 0) {
        snprintf(text + used, bytes - used, ", at most %llu%s", (unsigned long long)option->max,
                 unit);
    }
}

/* What would be right, in words. */
static void describe(const struct pp_option *option, char *text, size_t bytes)
{
    size_t used;
    switch (option->kind) {
    case PP_OPTION_BOOL:
        snprintf(text, bytes, "true or false");
        break;
    case PP_OPTION_U64:
        snprintf(text, bytes, "a whole number");
        add_bounds(option, "", text, bytes);
        break;
    case PP_OPTION_SIZE:
        snprintf(text, bytes, "a size such as 64GiB, 500MB or 67108864%s",
                 option->whole != 0 ? ", 80% or 80% of 64GiB" : "");
        add_bounds(option, " bytes", text, bytes);
        break;
    case PP_OPTION_DURATION:
        snprintf(text, bytes, "a time such as 500ms, 30s or 10m");
        add_bounds(option, "us", text, bytes);
        break;
    case PP_OPTION_DOUBLE:
        snprintf(text, bytes, "a number");
        if (option->number_min != 0.0 || option->number_max != 0.0) {
            snprintf(text, bytes, "a number from %g to %g", option->number_min, option->number_max);
        }
        break;
    case PP_OPTION_CHOICE:
        snprintf(text, bytes, "one of");
        for (int index = 0; option->choices[index] != NULL; ++index) {
            used = strlen(text);
            snprintf(text + used, bytes - used, "%s %s", index == 0 ? "" : ",",
                     option->choices[index]);
        }
        break;
    case PP_OPTION_TEXT:
        snprintf(text, bytes, "a text");
        break;
    }
}

enum pp_status pp_options_parse_value(struct pp_options *options, size_t index)
{
    const struct pp_option *option = &options->spec.options[index];
    struct pp_option_value *value = &options->values[index];
    if (value->text == NULL) {
        if (option->positional) {
            pp_options_complain(options, "%s is missing: see --help",
                                option->value_name != NULL ? option->value_name : option->name);
        } else {
            pp_options_complain(options, "--%s must be given: see --help", option->name);
        }
        return PP_INVALID_ARGUMENT;
    }
    if (parse_kind(option, value->text, &value->parsed) == PP_OK) {
        return PP_OK;
    }
    char wanted[TEXT_BYTES_MAX];
    describe(option, wanted, sizeof(wanted));
    pp_options_complain(options, "--%s: \"%s\" (from %s) is not right: give %s", option->name,
                        value->text, pp_option_source_name(value->source), wanted);
    return PP_INVALID_ARGUMENT;
}
