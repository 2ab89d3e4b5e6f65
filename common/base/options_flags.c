/*
 * The command line and the environment as sources of option texts. What a text means is decided
 * later, once for all sources.
 */
#include "common/base/options_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define ENVIRONMENT_PREFIX "PIGPEN_"

/* What one argument looks like. */
struct flag {
    const char *name;
    size_t name_bytes;
    const char *value; /* after '=', or NULL */
};

static void complain_unknown(const struct pp_options *options, const struct flag *flag)
{
    const char *nearest = pp_options_nearest(&options->spec, flag->name, flag->name_bytes);
    if (nearest != NULL) {
        pp_options_complain(options, "unknown flag --%.*s: did you mean --%s?",
                            (int)flag->name_bytes, flag->name, nearest);
    } else {
        pp_options_complain(options, "unknown flag --%.*s: see --help", (int)flag->name_bytes,
                            flag->name);
    }
}

static bool is_named(const struct flag *flag, const char *name)
{
    return strlen(name) == flag->name_bytes && memcmp(flag->name, name, flag->name_bytes) == 0;
}

static enum pp_status keep_config_path(struct pp_options *options, const char *path)
{
    char *copy = strdup(path);
    if (copy == NULL) {
        return PP_MEMORY;
    }
    free(options->config_path);
    options->config_path = copy;
    return PP_OK;
}

/* The value of a flag that has one: after '=' or the next argument. */
static enum pp_status take_value(const struct pp_options *options, const struct flag *flag,
                                 int argc, char *const *argv, int *at, const char **value_out)
{
    if (flag->value != NULL) {
        *value_out = flag->value;
        return PP_OK;
    }
    bool missing = *at + 1 >= argc;
    if (missing || (argv[*at + 1][0] == '-' && argv[*at + 1][1] == '-')) {
        pp_options_complain(options, "--%.*s needs a value%s", (int)flag->name_bytes, flag->name,
                            missing ? "" : " (one that starts with -- goes behind '=')");
        return PP_INVALID_ARGUMENT;
    }
    *value_out = argv[++*at];
    return PP_OK;
}

static enum pp_status read_general(struct pp_options *options, const struct flag *flag, int argc,
                                   char *const *argv, int *at, bool *known_out)
{
    *known_out = true;
    if (is_named(flag, "config")) {
        const char *path;
        PP_TRY(take_value(options, flag, argc, argv, at, &path));
        return keep_config_path(options, path);
    }
    if (is_named(flag, "print-config")) {
        options->wants_print = true;
    } else if (is_named(flag, "check-config")) {
        options->wants_check = true;
    } else {
        *known_out = false;
        return PP_OK;
    }
    if (flag->value != NULL) {
        pp_options_complain(options, "--%.*s takes no value", (int)flag->name_bytes, flag->name);
        return PP_INVALID_ARGUMENT;
    }
    return PP_OK;
}

static enum pp_status read_option(struct pp_options *options, size_t index, const struct flag *flag,
                                  int argc, char *const *argv, int *at)
{
    const char *value = "true";
    if (options->spec.options[index].kind != PP_OPTION_BOOL) {
        PP_TRY(take_value(options, flag, argc, argv, at, &value));
    } else if (flag->value != NULL) {
        value = flag->value;
    }
    return pp_options_keep(options, index, value, PP_FROM_FLAG);
}

static enum pp_status read_long(struct pp_options *options, int argc, char *const *argv, int *at)
{
    const struct pp_options_spec *spec = &options->spec;
    const char *equals = strchr(argv[*at], '=');
    struct flag flag = {.name = argv[*at] + 2, .value = equals != NULL ? equals + 1 : NULL};
    flag.name_bytes = equals != NULL ? (size_t)(equals - flag.name) : strlen(flag.name);

    size_t index = pp_options_find(spec, flag.name, flag.name_bytes);
    if (index < spec->option_count) {
        return read_option(options, index, &flag, argc, argv, at);
    }
    bool known;
    PP_TRY(read_general(options, &flag, argc, argv, at, &known));
    if (known) {
        return PP_OK;
    }
    if (flag.name_bytes > 3 && memcmp(flag.name, "no-", 3) == 0 && flag.value == NULL) {
        index = pp_options_find(spec, flag.name + 3, flag.name_bytes - 3);
        if (index < spec->option_count && spec->options[index].kind == PP_OPTION_BOOL) {
            return pp_options_keep(options, index, "false", PP_FROM_FLAG);
        }
    }
    complain_unknown(options, &flag);
    return PP_INVALID_ARGUMENT;
}

static enum pp_status read_short(struct pp_options *options, int argc, char *const *argv, int *at)
{
    const char *text = argv[*at];
    size_t index = pp_options_find_short(&options->spec, text[1]);
    if (index == options->spec.option_count) {
        pp_options_complain(options, "unknown flag -%c: see --help", text[1]);
        return PP_INVALID_ARGUMENT;
    }
    const struct pp_option *option = &options->spec.options[index];
    if (option->kind == PP_OPTION_BOOL && text[2] != '\0') {
        pp_options_complain(options, "-%c takes no value", text[1]);
        return PP_INVALID_ARGUMENT;
    }
    struct flag flag = {.name = option->name,
                        .name_bytes = strlen(option->name),
                        .value = text[2] != '\0' ? text + 2 : NULL};
    return read_option(options, index, &flag, argc, argv, at);
}

/* The next positional option in table order takes it. */
static enum pp_status read_positional(struct pp_options *options, const char *text, size_t *next)
{
    while (*next < options->spec.option_count && !options->spec.options[*next].positional) {
        ++*next;
    }
    if (*next == options->spec.option_count) {
        pp_options_complain(options, "unexpected argument \"%s\": see --help", text);
        return PP_INVALID_ARGUMENT;
    }
    return pp_options_keep(options, (*next)++, text, PP_FROM_FLAG);
}

enum pp_status pp_options_read_flags(struct pp_options *options, int argc, char *const *argv)
{
    size_t next_positional = 0;
    bool only_positional = false;
    for (int at = 1; at < argc; ++at) {
        const char *text = argv[at];
        if (only_positional || text[0] != '-' || text[1] == '\0') {
            PP_TRY(read_positional(options, text, &next_positional));
        } else if (strcmp(text, "--") == 0) {
            only_positional = true;
        } else if (text[1] == '-') {
            PP_TRY(read_long(options, argc, argv, &at));
        } else {
            PP_TRY(read_short(options, argc, argv, &at));
        }
    }
    return PP_OK;
}

static void complain_unknown_variable(const struct pp_options *options, const char *name,
                                      size_t name_bytes)
{
    const char *nearest = pp_options_nearest(&options->spec, name, name_bytes);
    if (nearest == NULL) {
        pp_options_complain(options, "unknown variable " ENVIRONMENT_PREFIX "%.*s: see --help",
                            (int)name_bytes, name);
        return;
    }
    char meant[128];
    pp_options_environment_name(nearest, meant, sizeof(meant));
    pp_options_complain(options,
                        "unknown variable " ENVIRONMENT_PREFIX
                        "%.*s: did you mean " ENVIRONMENT_PREFIX "%s?",
                        (int)name_bytes, name, meant);
}

enum pp_status pp_options_read_environment(struct pp_options *options, char *const *environment)
{
    size_t prefix_bytes = strlen(ENVIRONMENT_PREFIX);
    for (; environment != NULL && *environment != NULL; ++environment) {
        const char *equals = strchr(*environment, '=');
        if (equals == NULL || strncmp(*environment, ENVIRONMENT_PREFIX, prefix_bytes) != 0) {
            continue;
        }
        struct flag variable = {.name = *environment + prefix_bytes, .value = equals + 1};
        variable.name_bytes = (size_t)(equals - variable.name);
        size_t index = pp_options_find(&options->spec, variable.name, variable.name_bytes);
        if (index < options->spec.option_count) {
            PP_TRY(pp_options_keep(options, index, variable.value, PP_FROM_ENVIRONMENT));
        } else if (is_named(&variable, "CONFIG")) {
            if (options->config_path == NULL) {
                PP_TRY(keep_config_path(options, variable.value));
            }
        } else if (!is_named(&variable, "ISA") && !options->spec.tolerate_foreign_environment) {
            complain_unknown_variable(options, variable.name, variable.name_bytes);
            return PP_INVALID_ARGUMENT;
        }
    }
    return PP_OK;
}
