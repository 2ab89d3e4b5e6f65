/*
 * Spans: however bytes are cut into pieces, reading, skipping and comparing see the same bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/span.h"

#define BYTES 61u

static uint8_t whole[BYTES];
static struct pp_piece pieces[2 * BYTES + 1];

/* Pieces of `step` bytes, an empty one before each. */
static struct pp_span cut(size_t step)
{
    size_t count = 0;
    for (size_t at = 0; at < BYTES; at += step) {
        size_t left = BYTES - at;
        pieces[count++] = (struct pp_piece){whole + at, 0};
        pieces[count++] = (struct pp_piece){whole + at, left < step ? left : step};
    }
    return pp_span_of_pieces(pieces, BYTES);
}

static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < BYTES; i++) {
        whole[i] = (uint8_t)(7 * i + 1);
    }
    return 0;
}

static void reading_gives_the_bytes_whatever_the_pieces(void **state)
{
    (void)state;
    for (size_t step = 1; step <= BYTES; step++) {
        for (size_t take = 1; take <= BYTES; take++) {
            struct pp_span span = cut(step);
            uint8_t out[BYTES];
            size_t at = 0;
            while (span.bytes > 0) {
                assert_true(span.run > 0 && span.run <= span.bytes);
                size_t bytes = take < span.bytes ? take : span.bytes;
                pp_span_read(&span, out + at, bytes);
                at += bytes;
            }
            assert_int_equal(at, BYTES);
            assert_memory_equal(out, whole, BYTES);
        }
    }
}

static void a_part_is_the_bytes_between_its_ends(void **state)
{
    (void)state;
    for (size_t step = 1; step <= 16; step++) {
        for (size_t offset = 0; offset <= BYTES; offset++) {
            for (size_t bytes = 0; bytes <= BYTES - offset; bytes++) {
                struct pp_span part = pp_span_part(cut(step), offset, bytes);
                assert_int_equal(part.bytes, bytes);
                assert_non_null(part.data);
                assert_true(bytes == 0 || part.run > 0);
                assert_true(pp_span_equals(&part, whole + offset, bytes));
                assert_int_equal(part.bytes, 0);
                assert_int_equal(part.run, 0);
            }
        }
    }
}

static void one_wrong_byte_makes_spans_unequal_and_both_are_read(void **state)
{
    (void)state;
    for (size_t wrong = 0; wrong < BYTES; wrong++) {
        uint8_t other[BYTES];
        memcpy(other, whole, BYTES);
        other[wrong] ^= 1;
        struct pp_span span = cut(3);
        assert_false(pp_span_equals(&span, other, BYTES));
        assert_int_equal(span.bytes, 0);
    }
}

static void nothing_is_a_span_without_pieces(void **state)
{
    (void)state;
    struct pp_span none = pp_span_of_pieces(NULL, 0);
    assert_null(none.data);
    assert_int_equal(none.bytes, 0);
    pp_span_skip(&none, 0);
    struct pp_span one = pp_span_of(whole, BYTES);
    pp_span_skip(&one, BYTES);
    assert_int_equal(one.run, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reading_gives_the_bytes_whatever_the_pieces),
        cmocka_unit_test(a_part_is_the_bytes_between_its_ends),
        cmocka_unit_test(one_wrong_byte_makes_spans_unequal_and_both_are_read),
        cmocka_unit_test(nothing_is_a_span_without_pieces),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
