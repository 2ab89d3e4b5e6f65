/* Which layer is attended how, from a text: each layer has one estimator, and errors say what to
 * write. */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "common/attn/estimators.h"

static void a_plain_estimator_is_every_layers(void **state)
{
    (void)state;
    struct pp_estimators estimators;
    char error[512];
    assert_int_equal(pp_estimators_parse("lsh:k=8,l=75", &estimators, error, sizeof(error)), PP_OK);
    assert_int_equal(estimators.range_count, 0);
    assert_int_equal(pp_estimators_of(&estimators, 0)->l, 75);
    assert_ptr_equal(pp_estimators_of(&estimators, 1023), &estimators.common);
    assert_true(pp_estimators_sample(&estimators));
    assert_int_equal(pp_estimators_parse("exact", &estimators, error, sizeof(error)), PP_OK);
    assert_false(pp_estimators_sample(&estimators));
}

static void layers_behind_slashes_have_their_own(void **state)
{
    (void)state;
    struct pp_estimators estimators;
    char error[512];
    assert_int_equal(
        pp_estimators_parse("lsh:k=10,l=150,t=2/0-3:exact/4:lsh:k=8,l=98,t=3/5-1023:sketch",
                            &estimators, error, sizeof(error)),
        PP_OK);
    assert_int_equal(estimators.common.kind, PP_LSH);
    assert_int_equal(pp_estimators_of(&estimators, 0)->kind, PP_EXACT);
    assert_int_equal(pp_estimators_of(&estimators, 3)->kind, PP_EXACT);
    assert_int_equal(pp_estimators_of(&estimators, 4)->t, 3);
    assert_int_equal(pp_estimators_of(&estimators, 4)->l, 98);
    assert_int_equal(pp_estimators_of(&estimators, 1023)->kind, PP_SKETCH);
    assert_int_equal(pp_estimators_parse("exact/7:lsh:t=3", &estimators, error, sizeof(error)),
                     PP_OK);
    assert_true(pp_estimators_sample(&estimators));
    assert_int_equal(pp_estimators_of(&estimators, 7)->k, 10);
    assert_int_equal(pp_estimators_of(&estimators, 8)->kind, PP_EXACT);
}

static void the_order_of_layers_does_not_matter(void **state)
{
    (void)state;
    struct pp_estimators a, b;
    char error[512];
    assert_int_equal(pp_estimators_parse("lsh/1-2:exact/5:lsh:t=3", &a, error, sizeof(error)),
                     PP_OK);
    assert_int_equal(pp_estimators_parse("lsh/5:lsh:t=3/1:exact/2:exact", &b, error, sizeof(error)),
                     PP_OK);
    assert_true(pp_estimators_same(&a, &b));
    assert_int_equal(pp_estimators_parse("lsh/5:lsh:t=3/1:exact", &b, error, sizeof(error)), PP_OK);
    assert_false(pp_estimators_same(&a, &b));
}

static void texts_that_name_no_layers_say_what_to_write(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "'' is none of exact, lsh"},
        {"lsh:k=77/3:exact", "'lsh:k=77' is none of exact, lsh"},
        {"lsh/", "'' names no layers below 1024"},
        {"lsh/exact", "'exact' names no layers below 1024"},
        {"lsh/3", "'3' names no layers below 1024"},
        {"lsh/3-:exact", "'3-:exact' names no layers below 1024"},
        {"lsh/-3:exact", "'-3:exact' names no layers below 1024"},
        {"lsh/5-3:exact", "'5-3:exact' names no layers below 1024"},
        {"lsh/1024:exact", "'1024:exact' names no layers below 1024"},
        {"lsh/00000:exact", "'00000:exact' names no layers below 1024"},
        {"lsh/3:", "'' is none of exact, lsh"},
        {"lsh/3:exakt/4:exact", "'exakt' is none of exact, lsh"},
        {"lsh/3 :exact", "'3 :exact' names no layers below 1024"},
        {"lsh/0-3:exact/2:lsh", "'2:lsh' names a layer for the second time"},
        {"lsh/2:exact/0-3:lsh", "'0-3:lsh' names a layer for the second time"},
        {"lsh/3:exact/", "'' names no layers below 1024"},
    };
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        struct pp_estimators estimators = {.range_count = 77};
        char error[512] = "";
        assert_int_equal(pp_estimators_parse(bad[i].text, &estimators, error, sizeof(error)),
                         PP_INVALID_ARGUMENT);
        if (strncmp(error, bad[i].says, strlen(bad[i].says)) != 0) {
            fail_msg("'%s': %s", bad[i].text, error);
        }
        assert_int_equal(estimators.range_count, 77);
    }
}

static void budgets_that_make_no_sense_say_what_does(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"sketch:share=0", "'sketch:share=0' reads no such share: it must be above 0"},
        {"sketch:bits=2,share=1.5", "'sketch:bits=2,share=1.5' reads no such share"},
        {"sketch:share=-0.1", "'sketch:share=-0.1' reads no such share"},
        {"sketch:share=nan", "'sketch:share=nan' reads no such share"},
        {"sketch:rows=0", "'sketch:rows=0' reads no such number of keys: it must be 1 or more"},
        {"sketch:rows=4294967296", "'sketch:rows=4294967296' reads no such number"},
        {"sketch:error=0", "'sketch:error=0' is within no such error: it must be above 0"},
        {"lsh:error=2", "'lsh:error=2' is within no such error"},
        {"sketch:share=0.1,rows=5", "'sketch:share=0.1,rows=5' names two budgets"},
        {"lsh/3:sketch:share=0/4:exact", "'sketch:share=0' reads no such share"},
        {"lsh:share=0", "'lsh:share=0' is none of exact"}, /* it has none */
        {"sketch:share=x", "'sketch:share=x' is none of exact"},
        {"sketch:bits=3,share=0.1", "'sketch:bits=3,share=0.1' is none of exact"},
        {"sketch/3:sketch:bits=3/4:sketch:share=0", "'sketch:bits=3' is none of exact"},
    };
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
        struct pp_estimators estimators;
        char error[512] = "";
        assert_int_equal(pp_estimators_parse(bad[i].text, &estimators, error, sizeof(error)),
                         PP_INVALID_ARGUMENT);
        if (strncmp(error, bad[i].says, strlen(bad[i].says)) != 0) {
            fail_msg("'%s': %s", bad[i].text, error);
        }
    }
}

static void ranges_and_their_texts_are_bounded(void **state)
{
    (void)state;
    struct pp_estimators estimators;
    char error[64], text[1024] = "lsh", longest[512];
    for (uint32_t i = 0; i <= PP_ESTIMATOR_RANGES_MAX; ++i) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "/%u:exact", i);
        assert_int_equal(pp_estimators_parse(text, &estimators, error, sizeof(error)),
                         i < PP_ESTIMATOR_RANGES_MAX ? PP_OK : PP_INVALID_ARGUMENT);
    }
    memset(longest, '1', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    assert_int_equal(pp_estimators_parse(longest, &estimators, error, sizeof(error)),
                     PP_INVALID_ARGUMENT);
    assert_true(strlen(error) < sizeof(error));
}

static void estimators_are_written_as_they_are_read(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "exact",         "lsh:k=8,l=98,t=3",           "lsh:k=10,l=150,t=2,error=0.1",
        "sketch:bits=2", "sketch:bits=4,share=0.0475", "sketch:bits=1,rows=300,error=0.05",
    };
    for (uint32_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
        struct pp_estimator estimator;
        char text[PP_ESTIMATOR_TEXT_BYTES];
        assert_int_equal(pp_estimator_parse(texts[i], &estimator), PP_OK);
        pp_estimator_text(&estimator, text);
        assert_string_equal(text, texts[i]);
    }
    /* Of a share with more digits, and of one that others write with an exponent. */
    static const float shares[] = {0.123456f, 1.0f, 0.00001f};
    for (uint32_t i = 0; i < 3; ++i) {
        struct pp_estimator estimator = {.kind = PP_SKETCH, .bits = 2, .rows_share = shares[i]};
        char text[PP_ESTIMATOR_TEXT_BYTES];
        pp_estimator_text(&estimator, text);
        assert_int_equal(pp_estimator_parse(text, &estimator), PP_OK);
        assert_float_equal(estimator.rows_share, shares[i], 0.005 * (double)shares[i]);
    }
}

static void layers_are_written_as_one_for_all_and_others_for_runs(void **state)
{
    (void)state;
    static char texts[PP_LAYERS_MAX][PP_ESTIMATOR_TEXT_BYTES] = {
        "exact", "exact", "sketch", "", "sketch:bits=1", "sketch", "sketch"};
    static char out[PP_ESTIMATORS_TEXT_BYTES];
    struct pp_estimators estimators;
    char error[512];
    assert_true(pp_estimators_text(texts, 7, out));
    assert_string_equal(out, "sketch/0-1:exact/4:sketch:bits=1");
    assert_false(pp_estimators_text(texts + 3, 1, out));
    for (uint32_t i = 0; i < 2 * PP_ESTIMATOR_RANGES_MAX + 2; ++i) {
        snprintf(texts[i], sizeof(texts[i]), "%s", i % 2 == 0 ? "sketch" : "exact");
        if (i > 0) {
            bool fits = i <= 2 * PP_ESTIMATOR_RANGES_MAX;
            assert_true(pp_estimators_text(texts, i + 1, out) == fits);
            assert_true(!fits ||
                        pp_estimators_parse(out, &estimators, error, sizeof(error)) == PP_OK);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_estimator_is_every_layers),
        cmocka_unit_test(layers_behind_slashes_have_their_own),
        cmocka_unit_test(the_order_of_layers_does_not_matter),
        cmocka_unit_test(texts_that_name_no_layers_say_what_to_write),
        cmocka_unit_test(budgets_that_make_no_sense_say_what_does),
        cmocka_unit_test(estimators_are_written_as_they_are_read),
        cmocka_unit_test(layers_are_written_as_one_for_all_and_others_for_runs),
        cmocka_unit_test(ranges_and_their_texts_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
