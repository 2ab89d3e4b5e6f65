/*
 * Texts in reports: whatever bytes an answer ends with, the line stays JSON and the answer is in
 * it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "gpu-worker/api/statistics.h"

static void check_text(const char *text, size_t bytes, const char *expected)
{
    json_t *object = json_object();
    gw_statistics_text(object, "answer", text, bytes);
    json_t *answer = json_object_get(object, "answer");
    assert_true(json_is_string(answer));
    assert_int_equal(json_string_length(answer), strlen(expected));
    assert_string_equal(json_string_value(answer), expected);
    json_decref(object);
}

static void text_is_kept_as_it_is(void **state)
{
    (void)state;
    check_text("", 0, "");
    check_text("plain", 5, "plain");
    check_text("gr\xC3\xBC\xC3\x9F \xF0\x9F\x90\x96", 11, "gr\xC3\xBC\xC3\x9F \xF0\x9F\x90\x96");
}

static void text_that_ends_within_a_character_is_kept_up_to_it(void **state)
{
    (void)state;
    check_text("pig \xF0\x9F\x90", 7, "pig \xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    check_text("gr\xC3", 3, "gr\xEF\xBF\xBD");
}

static void bytes_that_are_no_text_are_replaced(void **state)
{
    (void)state;
    check_text("a\xFF"
               "b\x80",
               4,
               "a\xEF\xBF\xBD"
               "b\xEF\xBF\xBD");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_kept_as_it_is),
        cmocka_unit_test(text_that_ends_within_a_character_is_kept_up_to_it),
        cmocka_unit_test(bytes_that_are_no_text_are_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
