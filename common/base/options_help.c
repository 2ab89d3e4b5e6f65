/*
 * --help from the table: groups as headings, flags left, wrapped text right.
 */
#include "common/base/options_internal.h"

#include <string.h>

#define COLUMNS     100
#define HELP_COLUMN 32
#define LABEL_BYTES 160

static void put_spaces(FILE *output, size_t count)
{
    fprintf(output, "%*s", (int)count, "");
}

/* Words of text between HELP_COLUMN and COLUMNS; column is where the line stands. */
static size_t put_wrapped(FILE *output, const char *text, size_t column)
{
    while (*text != '\0') {
        size_t word = strcspn(text, " \n");
        if (column > HELP_COLUMN && column + 1 + word > COLUMNS) {
            fputc('\n', output);
            put_spaces(output, HELP_COLUMN);
            column = HELP_COLUMN;
        } else if (column > HELP_COLUMN) {
            fputc(' ', output);
            ++column;
        }
        fwrite(text, 1, word, output);
        column += word;
        text += word;
        text += strspn(text, " \n");
    }
    return column;
}

static void put_entry(FILE *output, const char *label, const char *help, const char *more)
{
    fputs(label, output);
    size_t column = strlen(label);
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', output);
        column = 0;
    }
    put_spaces(output, HELP_COLUMN - column);
    column = put_wrapped(output, help, HELP_COLUMN);
    put_wrapped(output, more, column);
    fputc('\n', output);
}

static void value_label(const struct pp_option *option, char *text, size_t bytes)
{
    text[0] = '\0';
    if (option->value_name != NULL) {
        snprintf(text, bytes, "%s", option->value_name);
    } else if (option->kind == PP_OPTION_CHOICE) {
        for (int index = 0; option->choices[index] != NULL; ++index) {
            size_t used = strlen(text);
            snprintf(text + used, bytes - used, "%s%s", index == 0 ? "{" : ",",
                     option->choices[index]);
        }
        size_t used = strlen(text);
        snprintf(text + used, bytes - used, "}");
    } else if (option->kind != PP_OPTION_BOOL) {
        static const char *const names[] = {[PP_OPTION_U64] = "N",
                                            [PP_OPTION_DOUBLE] = "X",
                                            [PP_OPTION_TEXT] = "TEXT",
                                            [PP_OPTION_SIZE] = "BYTES",
                                            [PP_OPTION_DURATION] = "TIME"};
        snprintf(text, bytes, "%s", names[option->kind]);
    }
}

static void put_option(FILE *output, const struct pp_option *option)
{
    char value[LABEL_BYTES / 2];
    char label[LABEL_BYTES];
    char more[LABEL_BYTES];
    char choices[LABEL_BYTES / 2] = "";
    char short_name[8] = "    ";
    value_label(option, value, sizeof(value));
    if (option->short_name != 0) {
        snprintf(short_name, sizeof(short_name), "-%c, ", option->short_name);
    }
    snprintf(label, sizeof(label), "  %s--%s%s%s", short_name, option->name,
             value[0] != '\0' ? " " : "", value);
    if (option->kind == PP_OPTION_CHOICE && option->value_name != NULL) {
        struct pp_option unnamed = *option;
        unnamed.value_name = NULL;
        value_label(&unnamed, choices, sizeof(choices));
    }
    bool flag = option->kind == PP_OPTION_BOOL && option->default_text != NULL &&
                strcmp(option->default_text, "false") == 0;
    const char *space = choices[0] != '\0' ? " " : "";
    if (option->default_text == NULL) {
        snprintf(more, sizeof(more), "%s%s[must be given]", choices, space);
    } else if (option->default_text[0] == '\0' || flag) {
        snprintf(more, sizeof(more), "%s", choices);
    } else {
        snprintf(more, sizeof(more), "%s%s[default: %s]", choices, space, option->default_text);
    }
    put_entry(output, label, option->help != NULL ? option->help : "", more);
}

static void put_usage(FILE *output, const struct pp_options_spec *spec)
{
    fprintf(output, "%s: %s\n\nUsage: %s [OPTIONS]", spec->program, spec->summary, spec->program);
    for (size_t index = 0; index < spec->option_count; ++index) {
        const struct pp_option *option = &spec->options[index];
        if (option->positional) {
            char value[LABEL_BYTES];
            value_label(option, value, sizeof(value));
            bool must = option->default_text == NULL;
            fprintf(output, " %s%s%s", must ? "" : "[", value, must ? "" : "]");
        }
    }
    fputs("\n", output);
}

static const char *group_of(const struct pp_option *option)
{
    return option->group != NULL ? option->group : "Options";
}

/* Whether an option in front of it has its group. */
static bool group_known(const struct pp_options_spec *spec, size_t index)
{
    bool known = false;
    for (size_t i = 0; i < index && !known; ++i) {
        known = strcmp(group_of(&spec->options[i]), group_of(&spec->options[index])) == 0;
    }
    return known;
}

/* Each group once, where its first option stands; tables are made of several. */
static void put_groups(FILE *output, const struct pp_options_spec *spec)
{
    for (size_t first = 0; first < spec->option_count; ++first) {
        const char *group = group_of(&spec->options[first]);
        if (group_known(spec, first)) {
            continue;
        }
        fprintf(output, "\n%s:\n", group);
        for (size_t i = first; i < spec->option_count; ++i) {
            if (strcmp(group_of(&spec->options[i]), group) == 0) {
                put_option(output, &spec->options[i]);
            }
        }
    }
}

void pp_options_print_help(const struct pp_options_spec *spec, FILE *output)
{
    put_usage(output, spec);
    put_groups(output, spec);
    fputs("\nGeneral:\n", output);
    put_entry(output, "      --config FILE", "YAML file with the same options: memory_limit: 64GiB",
              "");
    put_entry(output, "      --print-config",
              "Print every option with its value and where it came from, and exit.", "");
    put_entry(output, "      --check-config", "Check all options, start nothing, and exit.", "");
    put_entry(output, "      --version", "Print the version and exit.", "");
    put_entry(output, "  -h, --help", "Print this and exit.", "");
    fputs("\nEach option is also a variable (--memory-limit is PIGPEN_MEMORY_LIMIT) and a key of\n"
          "the file (memory_limit). A flag wins over a variable, a variable over the file.\n",
          output);
    if (spec->examples != NULL) {
        fprintf(output, "\nExamples:\n%s%s", spec->examples,
                spec->examples[0] != '\0' && spec->examples[strlen(spec->examples) - 1] == '\n'
                    ? ""
                    : "\n");
    }
}
