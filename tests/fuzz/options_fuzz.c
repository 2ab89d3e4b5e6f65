/*
 * Options from hostile bytes: the same input as YAML file, as flags and as value of each kind. No
 * crash, no leak, and nothing written on failure.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/options.h"

#define ARGUMENTS_MAX 16

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes);

static uint64_t number, size, duration;
static double real;
static bool flag;
static const char *text, *prompt;
static int choice;
static const char *const choices[] = {"off", "try", NULL};

static const struct pp_option table[] = {
    {.name = "number", .kind = PP_OPTION_U64, .target = &number, .default_text = "1", .max = 9},
    {.name = "size", .kind = PP_OPTION_SIZE, .target = &size, .default_text = "50%", .whole = 7},
    {.name = "duration", .kind = PP_OPTION_DURATION, .target = &duration, .default_text = "1s"},
    {.name = "real", .kind = PP_OPTION_DOUBLE, .target = &real, .default_text = "1"},
    {.name = "flag", .kind = PP_OPTION_BOOL, .target = &flag, .default_text = "false"},
    {.name = "text",
     .kind = PP_OPTION_TEXT,
     .target = &text,
     .default_text = "",
     .short_name = 't'},
    {.name = "choice",
     .kind = PP_OPTION_CHOICE,
     .target = &choice,
     .default_text = "try",
     .choices = choices},
    {.name = "prompt",
     .kind = PP_OPTION_TEXT,
     .target = &prompt,
     .default_text = "",
     .positional = true},
};

static const struct pp_options_spec spec = {.program = "fuzz",
                                            .summary = "",
                                            .version = "0",
                                            .options = table,
                                            .option_count = sizeof(table) / sizeof(table[0])};

static void parse(int argc, char **argv, char **environment, FILE *sink)
{
    enum pp_options_outcome outcome;
    struct pp_options *options;
    if (pp_options_parse(&spec, argc, argv, environment, sink, sink, &outcome, &options) == PP_OK) {
        if (outcome == PP_OPTIONS_EXIT_0) {
            PP_ASSERT(options == NULL);
            return;
        }
        pp_options_print(options, sink);
        pp_options_destroy(options);
    }
}

static void parse_as_file(const unsigned char *data, size_t bytes, FILE *sink)
{
    char path[64];
    char config[] = "--config";
    char program[] = "fuzz";
    int file = memfd_create("fuzz", MFD_CLOEXEC);
    if (file < 0 || write(file, data, bytes) != (ssize_t)bytes) {
        abort();
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    char *argv[] = {program, config, path, NULL};
    parse(3, argv, NULL, sink);
    close(file);
}

/* Lines as arguments and, with the prefix, as variables. */
static void parse_as_flags(char *lines, FILE *sink)
{
    char program[] = "fuzz";
    char *argv[ARGUMENTS_MAX + 1] = {program};
    char *environment[2] = {NULL, NULL};
    int argc = 1;
    char *rest = NULL;
    if (asprintf(&environment[0], "PIGPEN_%s", lines) < 0) {
        abort();
    }
    for (char *line = strtok_r(lines, "\n", &rest); line != NULL && argc < ARGUMENTS_MAX;
         line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "--config", 8) != 0) { /* No files of the machine. */
            argv[argc++] = line;
        }
    }
    parse(argc, argv, NULL, sink);
    if (strncmp(environment[0], "PIGPEN_CONFIG", 13) != 0) {
        parse(1, argv, environment, sink);
    }
    free(environment[0]);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes)
{
    char *lines = malloc(bytes + 1);
    FILE *sink = fopen("/dev/null", "w");
    if (lines == NULL || sink == NULL) {
        abort();
    }
    memcpy(lines, data, bytes);
    lines[bytes] = '\0';
    uint64_t value;
    (void)!pp_parse_u64(lines, &value);
    (void)!pp_parse_size(lines, 1000, &value);
    (void)!pp_parse_duration(lines, &value);
    parse_as_file(data, bytes, sink);
    parse_as_flags(lines, sink);
    fclose(sink);
    free(lines);
    return 0;
}
