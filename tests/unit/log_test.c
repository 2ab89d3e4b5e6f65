/*
 * Log lines as they come out of stderr: both formats, hostile text, levels, the gate.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

/* stderr goes into a file while a test runs. */
struct fixture {
    FILE *file;
    int kept;
    char text[16384];
};

static int start(void **state)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    fixture->file = tmpfile();
    fixture->kept = dup(STDERR_FILENO);
    dup2(fileno(fixture->file), STDERR_FILENO);
    pp_log_configure(PP_LOG_INFO, PP_LOG_TEXT);
    *state = fixture;
    return 0;
}

static int stop(void **state)
{
    struct fixture *fixture = *state;
    dup2(fixture->kept, STDERR_FILENO);
    close(fixture->kept);
    fclose(fixture->file);
    free(fixture);
    pp_log_configure(PP_LOG_INFO, PP_LOG_TEXT);
    return 0;
}

static const char *written(struct fixture *fixture)
{
    rewind(fixture->file);
    size_t bytes = fread(fixture->text, 1, sizeof(fixture->text) - 1, fixture->file);
    fixture->text[bytes] = '\0';
    return fixture->text;
}

static json_t *written_json(struct fixture *fixture)
{
    json_error_t error;
    json_t *line = json_loads(written(fixture), 0, &error);
    if (line == NULL) {
        fail_msg("%s: %s", error.text, fixture->text);
    }
    return line;
}

static const char *text_of(const json_t *line, const char *name)
{
    const char *text = json_string_value(json_object_get(line, name));
    return text != NULL ? text : "(none)";
}

static void a_text_line_has_time_level_component_message_and_fields(void **state)
{
    PP_LOG_WARNF("rpc", "append refused", "node=%s bytes=%llu", "a:1", 5ull);
    const char *line = written(*state);
    int year, month, day, hour, minute, second, micros, used = 0;
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%6dZ%n", &year, &month, &day, &hour,
                            &minute, &second, &micros, &used),
                     7);
    assert_int_equal(used, 27);
    assert_string_equal(line + used, " warn rpc: append refused node=a:1 bytes=5\n");
}

static void levels_below_the_set_one_are_silent(void **state)
{
    PP_LOG_DEBUGF("x", "no", "%s", "");
    pp_log_configure(PP_LOG_ERROR, PP_LOG_TEXT);
    PP_LOG_WARNF("x", "no", "%s", "");
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    PP_LOG_ERRORF("x", "no", "%s", "");
    assert_string_equal(written(*state), "");
    assert_false(pp_log_enabled(PP_LOG_ERROR));
}

static void control_bytes_cannot_break_a_text_line(void **state)
{
    PP_LOG_INFOF("x", "m", "peer=\"%s\"", "a\nb\x1b[31m\x7f\xff\xc3\xa9");
    assert_non_null(
        strstr(written(*state), " info x: m peer=\"a\\x0ab\\x1b[31m\\x7f\\xff\xc3\xa9\"\n"));
}

static void a_json_line_has_typed_fields(void **state)
{
    pp_log_configure(PP_LOG_INFO, PP_LOG_JSON);
    PP_LOG_INFOF("rpc", "a \"message\"",
                 "peer=\"a b\" bytes=%d share=%.2f id=%s hex=%s empty= quote=\"x\"y\"", -7, 0.25,
                 "007", "1e5x");
    json_t *line = written_json(*state);
    assert_string_equal(text_of(line, "level"), "info");
    assert_string_equal(text_of(line, "component"), "rpc");
    assert_string_equal(text_of(line, "msg"), "a \"message\"");
    assert_string_equal(text_of(line, "peer"), "a b");
    assert_int_equal(json_integer_value(json_object_get(line, "bytes")), -7);
    assert_true(json_real_value(json_object_get(line, "share")) == 0.25);
    assert_string_equal(text_of(line, "id"), "007");
    assert_string_equal(text_of(line, "hex"), "1e5x");
    assert_string_equal(text_of(line, "empty"), "");
    assert_string_equal(text_of(line, "quote"), "x\"y");
    assert_int_equal(strlen(text_of(line, "ts")), 27);
    json_decref(line);
}

static void hostile_bytes_leave_json_valid(void **state)
{
    pp_log_configure(PP_LOG_INFO, PP_LOG_JSON);
    PP_LOG_INFOF("x", "m", "peer=\"%s\"", "a\nb\\\"c\xff\xed\xa0\x80\xc3\xa9");
    json_t *line = written_json(*state);
    assert_string_equal(text_of(line, "peer"),
                        "a\nb\\\"c\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xc3\xa9");
    json_decref(line);
}

static void lines_that_are_too_long_stay_one_valid_line(void **state)
{
    struct fixture *fixture = *state;
    char *longer = malloc(10001);
    memset(longer, '\x01', 10000);
    longer[10000] = '\0';
    pp_log_configure(PP_LOG_INFO, PP_LOG_JSON);
    PP_LOG_INFOF("x", "long", "value=\"%s\"", longer);
    json_t *line = written_json(fixture);
    assert_true(json_is_true(json_object_get(line, "cut")));
    json_decref(line);
    assert_int_equal(ftruncate(fileno(fixture->file), 0), 0);
    rewind(fixture->file);
    pp_log_configure(PP_LOG_INFO, PP_LOG_TEXT);
    PP_LOG_INFOF("x", "long", "value=\"%s\"", longer);
    const char *text = written(fixture);
    assert_true(strlen(text) < 4096);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    free(longer);
}

static void level_names_are_parsed(void **state)
{
    (void)state;
    enum pp_log_level level = PP_LOG_INFO;
    assert_int_equal(pp_log_level_parse("debug", &level), PP_OK);
    assert_int_equal(level, PP_LOG_DEBUG);
    assert_int_equal(pp_log_level_parse("off", &level), PP_OK);
    assert_int_equal(level, PP_LOG_OFF);
    assert_int_equal(pp_log_level_parse("loud", &level), PP_INVALID_ARGUMENT);
    assert_int_equal(pp_log_level_parse("", &level), PP_INVALID_ARGUMENT);
    assert_int_equal(level, PP_LOG_OFF);
}

static void the_gate_counts_what_it_holds_back(void **state)
{
    (void)state;
    struct pp_log_gate gate = {0};
    uint64_t skipped = 99;
    assert_true(pp_log_gate_open(&gate, 1000, 500, &skipped));
    assert_int_equal(skipped, 0);
    assert_false(pp_log_gate_open(&gate, 1001, 500, &skipped));
    assert_false(pp_log_gate_open(&gate, 1499, 500, &skipped));
    assert_true(pp_log_gate_open(&gate, 1500, 500, &skipped));
    assert_int_equal(skipped, 2);
    assert_true(pp_log_gate_open(&gate, 2000, 500, &skipped));
    assert_int_equal(skipped, 0);
}

#define WITH_STDERR(test) cmocka_unit_test_setup_teardown(test, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_STDERR(a_text_line_has_time_level_component_message_and_fields),
        WITH_STDERR(levels_below_the_set_one_are_silent),
        WITH_STDERR(control_bytes_cannot_break_a_text_line),
        WITH_STDERR(a_json_line_has_typed_fields),
        WITH_STDERR(hostile_bytes_leave_json_valid),
        WITH_STDERR(lines_that_are_too_long_stay_one_valid_line),
        cmocka_unit_test(level_names_are_parsed),
        cmocka_unit_test(the_gate_counts_what_it_holds_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
