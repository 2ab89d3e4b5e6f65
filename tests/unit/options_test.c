/*
 * Options: every source, their order, every kind, and what is said about mistakes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/options.h"

static const char *const choices[] = {"off", "try", "require", NULL};

struct settings {
    uint64_t memory_limit;
    uint64_t drain_timeout_us;
    uint64_t threads;
    double share;
    bool insecure;
    const char *listen;
    int hugepages;
    const char *prompt;
};

static struct settings settings;

static const struct pp_option table[] = {
    {.name = "memory-limit",
     .kind = PP_OPTION_SIZE,
     .target = &settings.memory_limit,
     .default_text = "80%",
     .whole = 1000,
     .group = "Memory",
     .help = "Bytes that the node may use for everything it holds. A share is a share of what the "
             "control group allows."},
    {.name = "hugepages",
     .kind = PP_OPTION_CHOICE,
     .target = &settings.hugepages,
     .default_text = "try",
     .choices = choices,
     .group = "Memory",
     .help = "Whether rows lie in huge pages."},
    {.name = "drain-timeout",
     .kind = PP_OPTION_DURATION,
     .target = &settings.drain_timeout_us,
     .default_text = "30s",
     .max = 3600000000u},
    {.name = "threads",
     .kind = PP_OPTION_U64,
     .target = &settings.threads,
     .default_text = "2",
     .min = 1,
     .max = 1024,
     .short_name = 't'},
    {.name = "share",
     .kind = PP_OPTION_DOUBLE,
     .target = &settings.share,
     .default_text = "0.02",
     .number_max = 1.0},
    {.name = "insecure",
     .kind = PP_OPTION_BOOL,
     .target = &settings.insecure,
     .default_text = "false",
     .short_name = 'i'},
    {.name = "listen",
     .kind = PP_OPTION_TEXT,
     .target = &settings.listen,
     .default_text = "127.0.0.1:7450",
     .value_name = "HOST:PORT"},
    {.name = "prompt",
     .kind = PP_OPTION_TEXT,
     .target = &settings.prompt,
     .default_text = "",
     .value_name = "PROMPT",
     .positional = true},
};

static const struct pp_options_spec spec = {.program = "tool",
                                            .summary = "does things",
                                            .examples = "  tool --threads 3\n",
                                            .version = "1.2.3",
                                            .options = table,
                                            .option_count = sizeof(table) / sizeof(table[0])};

#define ARGUMENTS_MAX 8

/* One parse and all that came of it. */
struct outcome {
    enum pp_status status;
    enum pp_options_outcome outcome;
    struct pp_options *options;
    char *output;
    char *errors;
};

static struct outcome parse_spec(const struct pp_options_spec *own, const char *const *arguments,
                                 const char *const *environment)
{
    struct outcome result = {0};
    size_t output_bytes;
    size_t error_bytes;
    FILE *output = open_memstream(&result.output, &output_bytes);
    FILE *errors = open_memstream(&result.errors, &error_bytes);
    char *argv[ARGUMENTS_MAX + 1] = {strdup("tool")};
    char *envp[ARGUMENTS_MAX + 1] = {NULL};
    int argc = 1;
    for (; arguments != NULL && arguments[argc - 1] != NULL; ++argc) {
        argv[argc] = strdup(arguments[argc - 1]);
    }
    for (int at = 0; environment != NULL && environment[at] != NULL; ++at) {
        envp[at] = strdup(environment[at]);
    }
    memset(&settings, 0xee, sizeof(settings));
    result.status =
        pp_options_parse(own, argc, argv, envp, output, errors, &result.outcome, &result.options);
    for (int at = 0; at <= ARGUMENTS_MAX; ++at) {
        free(argv[at]);
        free(envp[at]);
    }
    fclose(output);
    fclose(errors);
    return result;
}

#define ARGUMENTS(...)   ((const char *const[]){__VA_ARGS__, NULL})
#define ENVIRONMENT(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct outcome parse(const char *const *arguments, const char *const *environment)
{
    return parse_spec(&spec, arguments, environment);
}

static void drop(struct outcome *result)
{
    if (result->status == PP_OK) {
        pp_options_destroy(result->options);
    }
    free(result->output);
    free(result->errors);
}

static void expect_run(struct outcome *result)
{
    if (result->status != PP_OK) {
        print_error("%s", result->errors);
    }
    assert_int_equal(result->status, PP_OK);
    assert_int_equal(result->outcome, PP_OPTIONS_RUN);
    assert_string_equal(result->errors, "");
}

static void expect_refusal(const char *const *arguments, const char *const *environment,
                           const char *words)
{
    struct settings before;
    struct outcome result = parse(arguments, environment);
    memset(&before, 0xee, sizeof(before));
    assert_int_equal(result.status, PP_INVALID_ARGUMENT);
    if (strstr(result.errors, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", result.errors, words);
    }
    assert_memory_equal(&before, &settings, sizeof(before));
    drop(&result);
}

/* A file of this text; its name is to be unlinked and freed. */
static char *write_file(const char *text)
{
    char *path = strdup("/tmp/pigpen-options-test-XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    close(file);
    return path;
}

static void defaults_are_parsed_like_the_rest(void **state)
{
    (void)state;
    struct outcome result = parse(NULL, NULL);
    expect_run(&result);
    assert_int_equal(settings.memory_limit, 800);
    assert_int_equal(settings.drain_timeout_us, 30000000);
    assert_int_equal(settings.threads, 2);
    assert_true(settings.share == 0.02);
    assert_false(settings.insecure);
    assert_string_equal(settings.listen, "127.0.0.1:7450");
    assert_int_equal(settings.hugepages, 1);
    assert_string_equal(settings.prompt, "");
    drop(&result);
}

static void flags_of_every_kind_are_read(void **state)
{
    (void)state;
    struct outcome result = parse(ARGUMENTS("--memory-limit=1.5GiB", "--hugepages", "require",
                                            "--drain-timeout=1m30s", "-t", "7", "--insecure"),
                                  NULL);
    expect_run(&result);
    assert_int_equal(settings.memory_limit, 1610612736);
    assert_int_equal(settings.hugepages, 2);
    assert_int_equal(settings.drain_timeout_us, 90000000);
    assert_int_equal(settings.threads, 7);
    assert_true(settings.insecure);
    drop(&result);
    result = parse(ARGUMENTS("-t9", "-i", "--share=1e-3", "--", "--what is it"), NULL);
    expect_run(&result);
    assert_int_equal(settings.threads, 9);
    assert_true(settings.insecure);
    assert_true(settings.share == 1e-3);
    assert_string_equal(settings.prompt, "--what is it");
    drop(&result);
    result = parse(ARGUMENTS("--insecure", "--no-insecure", "-"), NULL);
    expect_run(&result);
    assert_false(settings.insecure);
    assert_string_equal(settings.prompt, "-");
    drop(&result);
    result = parse(ARGUMENTS("--insecure=false", "--threads", "3", "--threads=4"), NULL);
    expect_run(&result);
    assert_false(settings.insecure);
    assert_int_equal(settings.threads, 4);
    drop(&result);
}

static void flag_beats_variable_beats_file_beats_default(void **state)
{
    (void)state;
    char *path = write_file("threads: 5\nshare: 0.5\ndrain_timeout: 5s\n");
    struct outcome result =
        parse(ARGUMENTS("--config", path, "--threads=6"),
              ENVIRONMENT("HOME=/x", "PIGPEN_THREADS=7", "PIGPEN_SHARE=0.25", "PIGPEN_ISA=avx2"));
    expect_run(&result);
    assert_int_equal(settings.threads, 6);
    assert_true(settings.share == 0.25);
    assert_int_equal(settings.drain_timeout_us, 5000000);
    assert_int_equal(settings.memory_limit, 800);
    drop(&result);
    char variable[128];
    snprintf(variable, sizeof(variable), "PIGPEN_CONFIG=%s", path);
    result = parse(NULL, ENVIRONMENT(variable));
    expect_run(&result);
    assert_int_equal(settings.threads, 5);
    drop(&result);
    unlink(path);
    free(path);
}

static void unknown_names_are_errors_that_name_the_nearest(void **state)
{
    (void)state;
    expect_refusal(ARGUMENTS("--memory-limt=5"), NULL,
                   "unknown flag --memory-limt: did you mean --memory-limit?");
    expect_refusal(ARGUMENTS("--hlep"), NULL, "did you mean --help?");
    expect_refusal(ARGUMENTS("--quux-of-another-kind"), NULL, "see --help");
    expect_refusal(ARGUMENTS("-z"), NULL, "unknown flag -z");
    expect_refusal(ARGUMENTS("a", "b"), NULL, "unexpected argument \"b\"");
    expect_refusal(NULL, ENVIRONMENT("PIGPEN_THREDS=3"), "did you mean PIGPEN_THREADS?");
    expect_refusal(ARGUMENTS("--no-threads"), NULL, "unknown flag --no-threads");
    expect_refusal(ARGUMENTS("--threads"), NULL, "--threads needs a value");
    expect_refusal(ARGUMENTS("--threads", "--insecure"), NULL, "--threads needs a value");
    expect_refusal(ARGUMENTS("--print-config=yes"), NULL, "takes no value");
    struct pp_options_spec tolerant = spec;
    tolerant.tolerate_foreign_environment = true;
    struct outcome result = parse_spec(&tolerant, NULL, ENVIRONMENT("PIGPEN_NODES=a"));
    expect_run(&result);
    drop(&result);
}

static void values_that_are_not_right_are_refused_with_a_hint(void **state)
{
    (void)state;
    expect_refusal(ARGUMENTS("--threads=0"), NULL, "at least 1");
    expect_refusal(ARGUMENTS("--threads=1025"), NULL, "at most 1024");
    expect_refusal(ARGUMENTS("--threads=3x"), NULL, "whole number");
    expect_refusal(ARGUMENTS("--threads=-3"), NULL, "whole number");
    expect_refusal(ARGUMENTS("--threads="), NULL, "whole number");
    expect_refusal(ARGUMENTS("--hugepages=maybe"), NULL, "one of off, try, require");
    expect_refusal(ARGUMENTS("--insecure=perhaps"), NULL, "true or false");
    expect_refusal(ARGUMENTS("--drain-timeout=30"), NULL, "30s");
    expect_refusal(ARGUMENTS("--drain-timeout=2h"), NULL, "at most 3600000000us");
    expect_refusal(ARGUMENTS("--share=nan"), NULL, "from 0 to 1");
    expect_refusal(ARGUMENTS("--share=1.01"), NULL, "from 0 to 1");
    expect_refusal(NULL, ENVIRONMENT("PIGPEN_MEMORY_LIMIT=12XB"), "(from environment)");
}

static void bad_files_are_refused_with_the_line(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        {"threads: 5\nthread: 6\n", ":2: unknown key thread: did you mean threads?"},
        {"threads: 5\nthreads: 6\n", ":2: given twice: threads"},
        {"threads:\n  deep: 6\n", ":2: needs one plain value: threads"},
        {"threads:\n", "needs one plain value: threads"},
        {"- threads\n", "must be one mapping"},
        {"threads\n", "must be one mapping"},
        {"threads: [1\n", "not YAML"},
        {"threads: 5\n---\nthreads: 5\n", "must be one mapping"},
        {"listen: [a, [b]]\n", "plain values only"},
        {"a: &x 1\n", "unknown key a"},
        {"threads: *x\n", "needs one plain value: threads"},
    };
    for (size_t index = 0; index < sizeof(files) / sizeof(files[0]); ++index) {
        char *path = write_file(files[index][0]);
        expect_refusal(ARGUMENTS("--config", path), NULL, files[index][1]);
        unlink(path);
        free(path);
    }
    struct outcome result = parse(ARGUMENTS("--config=/nowhere/at/all.yaml"), NULL);
    assert_int_equal(result.status, PP_IO);
    assert_non_null(strstr(result.errors, "cannot open /nowhere/at/all.yaml"));
    drop(&result);
}

static void files_may_be_empty_and_hold_lists(void **state)
{
    (void)state;
    char *path = write_file("# nothing\n");
    struct outcome result = parse(ARGUMENTS("--config", path), NULL);
    expect_run(&result);
    drop(&result);
    unlink(path);
    free(path);
    path = write_file("listen:\n  - a:1\n  - \"b:2\"\ninsecure: yes\n");
    result = parse(ARGUMENTS("--config", path), NULL);
    expect_run(&result);
    assert_string_equal(settings.listen, "a:1,b:2");
    assert_true(settings.insecure);
    drop(&result);
    unlink(path);
    free(path);
}

static void an_option_without_default_must_be_given(void **state)
{
    (void)state;
    struct pp_option must[] = {
        {.name = "model", .kind = PP_OPTION_TEXT, .target = &settings.listen}};
    struct pp_options_spec own = spec;
    own.options = must;
    own.option_count = 1;
    struct outcome result = parse_spec(&own, NULL, NULL);
    assert_int_equal(result.status, PP_INVALID_ARGUMENT);
    assert_non_null(strstr(result.errors, "--model must be given"));
    drop(&result);
    result = parse_spec(&own, ARGUMENTS("--model=x"), NULL);
    expect_run(&result);
    drop(&result);
}

static void help_version_and_checks_answer_and_end(void **state)
{
    (void)state;
    struct outcome result = parse(ARGUMENTS("--threads=junk", "--help"), NULL);
    assert_int_equal(result.status, PP_OK);
    assert_int_equal(result.outcome, PP_OPTIONS_EXIT_0);
    assert_null(result.options); /* a program that ends here has nothing to free */
    assert_non_null(strstr(result.output, "--memory-limit BYTES"));
    assert_non_null(strstr(result.output, "-t, --threads N"));
    assert_non_null(strstr(result.output, "--hugepages {off,try,require}"));
    assert_non_null(strstr(result.output, "[default: 30s]"));
    assert_non_null(strstr(result.output, "Usage: tool [OPTIONS] [PROMPT]"));
    assert_non_null(strstr(result.output, "tool --threads 3"));
    for (const char *line = result.output; line != NULL; line = strchr(line + 1, '\n')) {
        assert_true(strcspn(line + 1, "\n") <= 100);
    }
    drop(&result);
    result = parse(ARGUMENTS("--version"), NULL);
    assert_string_equal(result.output, "tool 1.2.3\n");
    drop(&result);
    result = parse(ARGUMENTS("--check-config"), NULL);
    assert_int_equal(result.outcome, PP_OPTIONS_EXIT_0);
    assert_non_null(strstr(result.output, "right"));
    drop(&result);
    expect_refusal(ARGUMENTS("--check-config", "--threads=0"), NULL, "at least 1");
}

static void help_has_each_group_once_where_its_first_option_stands(void **state)
{
    (void)state;
    const struct pp_option own_table[] = {table[0], table[2], table[1], table[3]};
    struct pp_options_spec own = spec;
    own.options = own_table;
    own.option_count = 4;
    struct outcome result = parse_spec(&own, ARGUMENTS("--help"), NULL);
    const char *order[] = {"\nMemory:\n",  "--memory-limit BYTES", "--hugepages",
                           "\nOptions:\n", "--drain-timeout",      "--threads"};
    const char *at = result.output;
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); ++i) {
        at = strstr(at, order[i]);
        assert_non_null(at);
    }
    assert_null(strstr(at, "\nMemory:\n"));
    drop(&result);
}

static enum pp_status check_threads(void *context)
{
    *(uint64_t *)context = settings.threads;
    return settings.threads == 3 ? PP_OK : PP_OUT_OF_RANGE;
}

static void what_the_program_knows_to_be_wrong_is_wrong_for_check_config_too(void **state)
{
    (void)state;
    struct pp_options_spec own = spec;
    uint64_t seen = 0;
    own.check = check_threads;
    own.check_context = &seen;
    const char *const more[] = {"", "--check-config"};
    for (int i = 0; i < 2; ++i) {
        struct outcome result = parse_spec(&own, ARGUMENTS("--threads=2", more[i]), NULL);
        assert_int_equal(result.status, PP_OUT_OF_RANGE);
        assert_int_equal(seen, 2);
        assert_null(result.options);
        assert_string_equal(result.output, "");
        drop(&result);
        result = parse_spec(&own, ARGUMENTS("--threads=3", more[i]), NULL);
        assert_int_equal(result.status, PP_OK);
        assert_int_equal(seen, 3);
        assert_int_equal(result.outcome, i == 0 ? PP_OPTIONS_RUN : PP_OPTIONS_EXIT_0);
        drop(&result);
    }
    struct outcome result = parse_spec(&own, ARGUMENTS("--threads=2", "--print-config"), NULL);
    assert_int_equal(result.status, PP_OK); /* shows what there is, right or wrong */
    drop(&result);
}

static void print_config_shows_values_and_sources(void **state)
{
    (void)state;
    struct outcome result =
        parse(ARGUMENTS("--print-config", "--threads=3"), ENVIRONMENT("PIGPEN_SHARE=0.5"));
    assert_int_equal(result.outcome, PP_OPTIONS_EXIT_0);
    assert_string_equal(result.output, "memory-limit = 80%  # default, 800 bytes\n"
                                       "hugepages = try  # default\n"
                                       "drain-timeout = 30s  # default\n"
                                       "threads = 3  # flag\n"
                                       "share = 0.5  # environment\n"
                                       "insecure = false  # default\n"
                                       "listen = 127.0.0.1:7450  # default\n"
                                       "prompt =   # default\n");
    drop(&result);
}

static void sizes_are_exact(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } right[] = {
        {"0", 0},
        {"67108864", 67108864},
        {"64GiB", UINT64_C(64) << 30},
        {"64gib", UINT64_C(64) << 30},
        {"64Gi", UINT64_C(64) << 30},
        {"64 GiB", UINT64_C(64) << 30},
        {"2GB", 2000000000},
        {"1.5KiB", 1536},
        {"0.1GB", 100000000},
        {"80%", 160},
        {"12.5%", 25},
        {"100%", 200},
        {"80% of 10GiB", UINT64_C(8) << 30},
        {"12.5% of 800", 100},
        {"100% of 18446744073709551615", UINT64_MAX},
        {"18446744073709551615", UINT64_MAX},
        {"16777215TiB", UINT64_C(16777215) << 40},
    };
    static const char *const wrong[] = {
        "",      "-1",   "1.",         "1.5",  ".5",
        "x",     "5XB",  "5G",         "101%", "100.1%",
        "80 %",  "1e9",  " 5",         "5 ",   "18446744073709551616",
        "5GiBs", "0x10", "16777216TiB"};
    static const char *const wrong_wholes[] = {"80% of",       "80% of ",      "80% of 80%",
                                               "80% of 1.5",   "80%of 1GiB",   "80% of  1GiB",
                                               "80% of 1GiB ", "101% of 1GiB", "80% of -1"};
    uint64_t bytes;
    for (size_t index = 0; index < sizeof(right) / sizeof(right[0]); ++index) {
        assert_int_equal(pp_parse_size(right[index].text, 200, &bytes), PP_OK);
        assert_int_equal(bytes, right[index].bytes);
    }
    for (size_t index = 0; index < sizeof(wrong) / sizeof(wrong[0]); ++index) {
        bytes = 77;
        assert_int_equal(pp_parse_size(wrong[index], 200, &bytes), PP_INVALID_ARGUMENT);
        assert_int_equal(bytes, 77);
    }
    for (size_t index = 0; index < sizeof(wrong_wholes) / sizeof(wrong_wholes[0]); ++index) {
        bytes = 77;
        assert_int_equal(pp_parse_size(wrong_wholes[index], 200, &bytes), PP_INVALID_ARGUMENT);
        assert_int_equal(bytes, 77);
    }
    assert_int_equal(pp_parse_size("80%", 0, &bytes), PP_INVALID_ARGUMENT);
}

static void durations_are_exact(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t us;
    } right[] = {{"0", 0},           {"250us", 250},        {"500ms", 500000},
                 {"30s", 30000000},  {"10m", 600000000},    {"1.5s", 1500000},
                 {"2h", 7200000000}, {"1h30m", 5400000000}, {"1d", 86400000000}};
    static const char *const wrong[] = {"", "30", "s", "-1s", "5x", "1s2", "1 s", "999999999999d"};
    uint64_t us;
    for (size_t index = 0; index < sizeof(right) / sizeof(right[0]); ++index) {
        assert_int_equal(pp_parse_duration(right[index].text, &us), PP_OK);
        assert_int_equal(us, right[index].us);
    }
    for (size_t index = 0; index < sizeof(wrong) / sizeof(wrong[0]); ++index) {
        assert_int_equal(pp_parse_duration(wrong[index], &us), PP_INVALID_ARGUMENT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_parsed_like_the_rest),
        cmocka_unit_test(flags_of_every_kind_are_read),
        cmocka_unit_test(flag_beats_variable_beats_file_beats_default),
        cmocka_unit_test(unknown_names_are_errors_that_name_the_nearest),
        cmocka_unit_test(values_that_are_not_right_are_refused_with_a_hint),
        cmocka_unit_test(bad_files_are_refused_with_the_line),
        cmocka_unit_test(files_may_be_empty_and_hold_lists),
        cmocka_unit_test(an_option_without_default_must_be_given),
        cmocka_unit_test(help_version_and_checks_answer_and_end),
        cmocka_unit_test(help_has_each_group_once_where_its_first_option_stands),
        cmocka_unit_test(what_the_program_knows_to_be_wrong_is_wrong_for_check_config_too),
        cmocka_unit_test(print_config_shows_values_and_sources),
        cmocka_unit_test(sizes_are_exact),
        cmocka_unit_test(durations_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
