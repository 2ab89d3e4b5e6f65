/*
 * What the files of the options module share: the texts by option with where they came from, and
 * the steps of a parse. For common/base/options*.c only.
 */
#ifndef PIGPEN_COMMON_BASE_OPTIONS_INTERNAL_H
#define PIGPEN_COMMON_BASE_OPTIONS_INTERNAL_H

#include "common/base/options.h"

union pp_option_parsed {
    bool flag;
    uint64_t number;
    double real;
    int choice;
};

struct pp_option_value {
    char *text; /* owned; NULL: not given and no default */
    enum pp_option_source source;
    union pp_option_parsed parsed;
};

struct pp_options {
    struct pp_options_spec spec;
    struct pp_option_value *values; /* as many as spec.option_count */
    char *config_path;              /* owned; NULL: no file */
    FILE *errors;                   /* during the parse */
    bool wants_print;
    bool wants_check;
};

/* "program: ..." and a newline, to the errors stream. */
__attribute__((format(printf, 2, 3))) void pp_options_complain(const struct pp_options *options,
                                                               const char *text, ...);

/* Index of the option of this name, where '-' and '_' are alike and, for an environment name, upper
 * and lower case too; option_count when there is none. */
size_t pp_options_find(const struct pp_options_spec *spec, const char *name, size_t name_bytes);
size_t pp_options_find_short(const struct pp_options_spec *spec, char short_name);

/* The known name (of the table or of the general ones) that is near enough to be meant, or NULL. */
const char *pp_options_nearest(const struct pp_options_spec *spec, const char *name,
                               size_t name_bytes);

/* Keeps a copy of text, unless the option already has one from a stronger source. */
PP_MUST_USE enum pp_status pp_options_keep(struct pp_options *options, size_t index,
                                           const char *text, enum pp_option_source source);

/* The sources. Each complains itself. */
PP_MUST_USE enum pp_status pp_options_read_flags(struct pp_options *options, int argc,
                                                 char *const *argv);
PP_MUST_USE enum pp_status pp_options_read_environment(struct pp_options *options,
                                                       char *const *environment);
PP_MUST_USE enum pp_status pp_options_read_file(struct pp_options *options);

/* The text of one value as its kind; complains with what would be right. */
PP_MUST_USE enum pp_status pp_options_parse_value(struct pp_options *options, size_t index);

/* "MEMORY_LIMIT" and "memory_limit" from "memory-limit"; what fits, always ended. */
void pp_options_environment_name(const char *name, char *text_out, size_t bytes);
void pp_options_key_name(const char *name, char *text_out, size_t bytes);

const char *pp_option_source_name(enum pp_option_source source);

void pp_options_print_help(const struct pp_options_spec *spec, FILE *output);

#endif
