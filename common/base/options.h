/*
 * Options of a program: one table makes the flags, the PIGPEN_* variables, the YAML keys, --help,
 * --print-config and /config. Flag > environment > file > default. An unknown flag, an unknown
 * PIGPEN_* variable and an unknown key are start-up errors that name the nearest known one.
 * `--memory-limit` is PIGPEN_MEMORY_LIMIT and memory_limit. A default is text, parsed like the
 * rest. General ones come of themselves: --config FILE (PIGPEN_CONFIG), --print-config,
 * --check-config, --version, --help. PIGPEN_ISA passes (common/run/cpu.h). In the file a list of
 * plain values is the same as its items with commas between. A flag given twice: the last counts.
 * Secrets are only ever file paths. Threads: the parse happens once on the main thread.
 */
#ifndef PIGPEN_COMMON_BASE_OPTIONS_H
#define PIGPEN_COMMON_BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"

enum pp_option_kind {
    PP_OPTION_BOOL,     /* bool *; --flag, --flag=false, --no-flag */
    PP_OPTION_U64,      /* uint64_t *; within [min, max] */
    PP_OPTION_DOUBLE,   /* double *; within [number_min, number_max]; both 0: no bounds */
    PP_OPTION_TEXT,     /* const char **; lives as long as the struct pp_options */
    PP_OPTION_SIZE,     /* uint64_t * bytes; "64GiB", "64Gi", "64GB", "67108864", "80%" of `whole`,
                         * "80% of 64GiB" */
    PP_OPTION_DURATION, /* uint64_t * microseconds; "250us", "500ms", "30s", "1m30s", "2h", "0" */
    PP_OPTION_CHOICE,   /* int *; index of one of `choices` */
};

struct pp_option {
    const char *name; /* "memory-limit" */
    enum pp_option_kind kind;
    void *target;
    const char *default_text; /* NULL: the option must be given */
    const char *value_name;   /* "BYTES" in --help */
    const char *help;         /* one or more sentences; wrapped by --help */
    const char *group;        /* heading in --help; consecutive options share it */
    uint64_t min, max;        /* U64, SIZE, DURATION; max 0: no upper bound */
    double number_min, number_max;
    const char *const *choices; /* CHOICE: NULL-ended */
    uint64_t whole;             /* SIZE: what per cent refers to; 0: per cent is refused */
    char short_name;            /* 0: none */
    bool positional;            /* takes the next argument that is no flag */
};

enum pp_option_source { PP_FROM_DEFAULT, PP_FROM_FILE, PP_FROM_ENVIRONMENT, PP_FROM_FLAG };

struct pp_options; /* owns the texts */

enum pp_options_outcome {
    PP_OPTIONS_RUN,   /* go on */
    PP_OPTIONS_EXIT_0 /* --help, --version, --print-config or --check-config has answered */
};

struct pp_options_spec {
    const char *program;  /* "attn-node", or "gpu-worker generate" */
    const char *summary;  /* what it does, for --help */
    const char *examples; /* shown at the end of --help; may be NULL */
    const char *version;
    const struct pp_option *options;
    size_t option_count;
    bool tolerate_foreign_environment; /* PIGPEN_* of other programs of the project pass */
    /* What the written targets tell to be wrong beyond each one's own bounds, with a line of its
     * own on stderr; asked before PP_OPTIONS_RUN and by --check-config. NULL: nothing. */
    enum pp_status (*check)(void *context);
    void *check_context;
};

/* Parses argv (argv[0] skipped), the environment and the file of --config. On an error a clear line
 * that says what to do has gone to `errors`, and the status is PP_INVALID_ARGUMENT (or PP_IO for
 * a file that cannot be read), or the check's own. options_out is to be destroyed after
 * PP_OPTIONS_RUN, and is NULL after PP_OPTIONS_EXIT_0. The targets count after PP_OPTIONS_RUN only;
 * texts in them live until then. The table and the spec's texts must live as long.
 */
PP_MUST_USE enum pp_status pp_options_parse(const struct pp_options_spec *spec, int argc,
                                            char *const *argv, char *const *environment,
                                            FILE *output, FILE *errors,
                                            enum pp_options_outcome *outcome_out,
                                            struct pp_options **options_out);
void pp_options_destroy(struct pp_options *options);

/* One line an option, `name = value  # source`, in table order. */
void pp_options_print(const struct pp_options *options, FILE *output);

/* For other parsers of sizes and durations; whole as in struct pp_option. PP_INVALID_ARGUMENT on
 * bad text or overflow. */
PP_MUST_USE enum pp_status pp_parse_size(const char *text, uint64_t whole, uint64_t *bytes_out);
PP_MUST_USE enum pp_status pp_parse_duration(const char *text, uint64_t *duration_us_out);
PP_MUST_USE enum pp_status pp_parse_u64(const char *text, uint64_t *value_out);

#endif
