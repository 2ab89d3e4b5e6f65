/*
 * Options of a program: the walk over the sources and what they share. First thing of every main;
 * knows no option by name but the general ones.
 */
#include "common/base/options.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/options_internal.h"

#define NAME_BYTES_MAX 64u

static const char *const general_names[] = {"config", "print-config", "check-config", "version",
                                            "help"};

void pp_options_complain(const struct pp_options *options, const char *text, ...)
{
    va_list arguments;
    va_start(arguments, text);
    fprintf(options->errors, "%s: ", options->spec.program);
    vfprintf(options->errors, text, arguments);
    fputc('\n', options->errors);
    va_end(arguments);
}

/* '_' as '-', upper case as lower. */
static char plain(char letter)
{
    return letter == '_' ? '-' : (char)tolower((unsigned char)letter);
}

size_t pp_options_find(const struct pp_options_spec *spec, const char *name, size_t name_bytes)
{
    for (size_t index = 0; index < spec->option_count; ++index) {
        const char *other = spec->options[index].name;
        size_t at = 0;
        while (at < name_bytes && other[at] != '\0' && plain(name[at]) == other[at]) {
            ++at;
        }
        if (at == name_bytes && other[at] == '\0') {
            return index;
        }
    }
    return spec->option_count;
}

size_t pp_options_find_short(const struct pp_options_spec *spec, char short_name)
{
    size_t index = 0;
    while (index < spec->option_count &&
           (short_name == 0 || spec->options[index].short_name != short_name)) {
        ++index;
    }
    return index;
}

/* Levenshtein's distance, one row at a time. */
static size_t distance(const char *one, size_t one_bytes, const char *other)
{
    size_t row[NAME_BYTES_MAX + 1];
    size_t other_bytes = strlen(other);
    if (other_bytes > NAME_BYTES_MAX || one_bytes > NAME_BYTES_MAX) {
        return NAME_BYTES_MAX;
    }
    for (size_t column = 0; column <= other_bytes; ++column) {
        row[column] = column;
    }
    for (size_t line = 1; line <= one_bytes; ++line) {
        size_t diagonal = row[0];
        row[0] = line;
        for (size_t column = 1; column <= other_bytes; ++column) {
            size_t swap = diagonal + (plain(one[line - 1]) != other[column - 1] ? 1 : 0);
            size_t shorter = row[column] < row[column - 1] ? row[column] : row[column - 1];
            diagonal = row[column];
            row[column] = swap < shorter + 1 ? swap : shorter + 1;
        }
    }
    return row[other_bytes];
}

static void consider(const char *name, size_t name_bytes, const char *other, size_t *least,
                     const char **nearest)
{
    size_t steps = distance(name, name_bytes, other);
    if (steps < *least) {
        *least = steps;
        *nearest = other;
    }
}

const char *pp_options_nearest(const struct pp_options_spec *spec, const char *name,
                               size_t name_bytes)
{
    size_t least = name_bytes / 3 + 2; /* More changes than a third: another word. */
    const char *nearest = NULL;
    for (size_t index = 0; index < spec->option_count; ++index) {
        consider(name, name_bytes, spec->options[index].name, &least, &nearest);
    }
    for (size_t index = 0; index < sizeof(general_names) / sizeof(general_names[0]); ++index) {
        consider(name, name_bytes, general_names[index], &least, &nearest);
    }
    return nearest;
}

enum pp_status pp_options_keep(struct pp_options *options, size_t index, const char *text,
                               enum pp_option_source source)
{
    struct pp_option_value *value = &options->values[index];
    if (value->text != NULL && source < value->source) {
        return PP_OK;
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return PP_MEMORY;
    }
    free(value->text);
    value->text = copy;
    value->source = source;
    return PP_OK;
}

void pp_options_environment_name(const char *name, char *text_out, size_t bytes)
{
    size_t at = 0;
    for (; name[at] != '\0' && at + 1 < bytes; ++at) {
        text_out[at] = name[at] == '-' ? '_' : (char)toupper((unsigned char)name[at]);
    }
    text_out[at] = '\0';
}

void pp_options_key_name(const char *name, char *text_out, size_t bytes)
{
    size_t at = 0;
    for (; name[at] != '\0' && at + 1 < bytes; ++at) {
        text_out[at] = name[at] == '-' ? '_' : name[at];
    }
    text_out[at] = '\0';
}

const char *pp_option_source_name(enum pp_option_source source)
{
    static const char *const names[] = {"default", "file", "environment", "flag"};
    return names[source];
}

static enum pp_status keep_defaults(struct pp_options *options)
{
    for (size_t index = 0; index < options->spec.option_count; ++index) {
        const char *text = options->spec.options[index].default_text;
        if (text != NULL) {
            PP_TRY(pp_options_keep(options, index, text, PP_FROM_DEFAULT));
        }
    }
    return PP_OK;
}

/* --help and --version answer whatever else stands there. */
static bool answer_first(const struct pp_options_spec *spec, int argc, char *const *argv,
                         FILE *output)
{
    for (int at = 1; at < argc && strcmp(argv[at], "--") != 0; ++at) {
        bool short_help =
            strcmp(argv[at], "-h") == 0 && pp_options_find_short(spec, 'h') == spec->option_count;
        if (strcmp(argv[at], "--help") == 0 || short_help) {
            pp_options_print_help(spec, output);
            return true;
        }
        if (strcmp(argv[at], "--version") == 0) {
            fprintf(output, "%s %s\n", spec->program, spec->version);
            return true;
        }
    }
    return false;
}

static enum pp_status read_all(struct pp_options *options, int argc, char *const *argv,
                               char *const *environment)
{
    PP_TRY(keep_defaults(options));
    PP_TRY(pp_options_read_flags(options, argc, argv));
    PP_TRY(pp_options_read_environment(options, environment));
    if (options->config_path != NULL) {
        PP_TRY(pp_options_read_file(options));
    }
    for (size_t index = 0; index < options->spec.option_count; ++index) {
        PP_TRY(pp_options_parse_value(options, index));
    }
    return PP_OK;
}

static void write_target(const struct pp_option *option, const struct pp_option_value *value)
{
    switch (option->kind) {
    case PP_OPTION_BOOL:
        *(bool *)option->target = value->parsed.flag;
        break;
    case PP_OPTION_U64:
    case PP_OPTION_SIZE:
    case PP_OPTION_DURATION:
        *(uint64_t *)option->target = value->parsed.number;
        break;
    case PP_OPTION_DOUBLE:
        *(double *)option->target = value->parsed.real;
        break;
    case PP_OPTION_TEXT:
        *(const char **)option->target = value->text;
        break;
    case PP_OPTION_CHOICE:
        *(int *)option->target = value->parsed.choice;
        break;
    }
}

static enum pp_status write_targets(const struct pp_options *options)
{
    const struct pp_options_spec *spec = &options->spec;
    for (size_t index = 0; index < spec->option_count; ++index) {
        write_target(&spec->options[index], &options->values[index]);
    }
    return spec->check == NULL ? PP_OK : spec->check(spec->check_context);
}

static enum pp_status options_new(const struct pp_options_spec *spec, FILE *errors,
                                  struct pp_options **options_out)
{
    struct pp_options *options = calloc(1, sizeof(*options));
    if (options == NULL) {
        return PP_MEMORY;
    }
    options->spec = *spec;
    options->errors = errors;
    options->values = calloc(spec->option_count + 1, sizeof(*options->values));
    if (options->values == NULL) {
        free(options);
        return PP_MEMORY;
    }
    *options_out = options;
    return PP_OK;
}

enum pp_status pp_options_parse(const struct pp_options_spec *spec, int argc, char *const *argv,
                                char *const *environment, FILE *output, FILE *errors,
                                enum pp_options_outcome *outcome_out,
                                struct pp_options **options_out)
{
    struct pp_options *options = NULL;
    enum pp_options_outcome outcome = PP_OPTIONS_EXIT_0;
    PP_TRY(options_new(spec, errors, &options));
    if (!answer_first(spec, argc, argv, output)) {
        enum pp_status status = read_all(options, argc, argv, environment);
        if (status == PP_OK && !options->wants_print) {
            status = write_targets(options);
        }
        if (status != PP_OK) {
            pp_options_destroy(options);
            return status;
        }
        if (options->wants_print) {
            pp_options_print(options, output);
        } else if (options->wants_check) {
            fprintf(output, "%s: the configuration is right\n", spec->program);
        } else {
            outcome = PP_OPTIONS_RUN;
        }
    }
    options->errors = NULL;
    if (outcome != PP_OPTIONS_RUN) {
        pp_options_destroy(options);
        options = NULL;
    }
    *outcome_out = outcome;
    *options_out = options;
    return PP_OK;
}

void pp_options_destroy(struct pp_options *options)
{
    if (options == NULL) {
        return;
    }
    for (size_t index = 0; index < options->spec.option_count; ++index) {
        free(options->values[index].text);
    }
    free(options->values);
    free(options->config_path);
    free(options);
}

void pp_options_print(const struct pp_options *options, FILE *output)
{
    for (size_t index = 0; index < options->spec.option_count; ++index) {
        const struct pp_option *option = &options->spec.options[index];
        const struct pp_option_value *value = &options->values[index];
        fprintf(output, "%s = %s  # %s", option->name, value->text != NULL ? value->text : "",
                pp_option_source_name(value->source));
        if (option->kind == PP_OPTION_SIZE && value->text != NULL) {
            fprintf(output, ", %llu bytes", (unsigned long long)value->parsed.number);
        }
        if (value->source == PP_FROM_FILE) {
            fprintf(output, " %s", options->config_path);
        }
        fputc('\n', output);
    }
}
