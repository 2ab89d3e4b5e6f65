/*
 * CRC-32C: the vectors of RFC 3720, chaining, and the paths against each other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/crc32c.h"
#include "common/base/crc32c_paths.h"
#include "common/base/rng.h"

#define BYTES_MAX 20000u

static void vectors_of_rfc_3720_are_met(void **state)
{
    (void)state;
    unsigned char bytes[32];
    assert_int_equal(pp_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(pp_crc32c(0, "", 0), 0);
    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(pp_crc32c(0, bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, sizeof(bytes));
    assert_int_equal(pp_crc32c(0, bytes, 32), 0x62a8ab43u);
    for (unsigned char index = 0; index < 32; ++index) {
        bytes[index] = index;
    }
    assert_int_equal(pp_crc32c(0, bytes, 32), 0x46dd794eu);
}

static unsigned char *random_bytes(void)
{
    unsigned char *bytes = malloc(BYTES_MAX);
    for (uint32_t index = 0; index < BYTES_MAX; ++index) {
        bytes[index] = (unsigned char)pp_rng_at(3, index);
    }
    return bytes;
}

static void pieces_may_be_chained(void **state)
{
    (void)state;
    unsigned char *bytes = random_bytes();
    uint32_t whole = pp_crc32c(0, bytes, BYTES_MAX);
    for (uint32_t cut = 0; cut < BYTES_MAX; cut += 977) {
        uint32_t first = pp_crc32c(0, bytes, cut);
        assert_int_equal(pp_crc32c(first, bytes + cut, BYTES_MAX - cut), whole);
    }
    free(bytes);
}

static void the_instruction_agrees_with_the_table_on_every_length_and_offset(void **state)
{
    (void)state;
    if (!__builtin_cpu_supports("sse4.2")) {
        print_message("skipped: this processor has no SSE4.2\n");
        skip();
    }
    unsigned char *bytes = random_bytes();
    (void)pp_crc32c(0, bytes, 1); /* fills the tables */
    for (uint32_t length = 0; length < 100; ++length) {
        for (uint32_t offset = 0; offset < 9; ++offset) {
            assert_int_equal(pp_crc32c_sse42(1, bytes + offset, length),
                             pp_crc32c_scalar(1, bytes + offset, length));
        }
    }
    for (uint32_t length = 3000; length <= BYTES_MAX - 1; length += 331) {
        assert_int_equal(pp_crc32c_sse42(7, bytes + 1, length),
                         pp_crc32c_scalar(7, bytes + 1, length));
    }
    for (uint32_t length = 3 * 1024 - 1; length <= 3 * 1024 + 1; ++length) {
        assert_int_equal(pp_crc32c_sse42(0, bytes, length), pp_crc32c_scalar(0, bytes, length));
    }
    free(bytes);
}

static void multiplication_agrees_with_the_table_on_every_length_and_offset(void **state)
{
    (void)state;
    if (!pp_crc32c_vpclmul_supported()) {
        print_message("skipped: this processor has no VPCLMULQDQ\n");
        skip();
    }
    unsigned char *bytes = random_bytes();
    (void)pp_crc32c(0, bytes, 1); /* fills the tables */
    static const uint32_t offsets[] = {0, 1, 7, 13, 31, 63};
    for (uint32_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); ++i) {
        const unsigned char *from = bytes + offsets[i];
        uint32_t crc = 0xdeadbeefu * (i + 1), expected = crc;
        for (uint32_t length = 0; length <= 4096; ++length) {
            assert_int_equal(pp_crc32c_vpclmul(crc, from, length), expected);
            expected = pp_crc32c_scalar(expected, from + length, 1);
        }
    }
    for (uint32_t length = 4097; length <= BYTES_MAX - 1; length += 331) {
        assert_int_equal(pp_crc32c_vpclmul(7, bytes + 1, length),
                         pp_crc32c_scalar(7, bytes + 1, length));
    }
    free(bytes);
}

static void one_flipped_bit_is_seen(void **state)
{
    (void)state;
    unsigned char *bytes = random_bytes();
    uint32_t right = pp_crc32c(0, bytes, BYTES_MAX);
    for (uint32_t at = 0; at < BYTES_MAX; at += 501) {
        bytes[at] ^= 1u << (at % 8);
        assert_int_not_equal(pp_crc32c(0, bytes, BYTES_MAX), right);
        bytes[at] ^= 1u << (at % 8);
    }
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_of_rfc_3720_are_met),
        cmocka_unit_test(pieces_may_be_chained),
        cmocka_unit_test(the_instruction_agrees_with_the_table_on_every_length_and_offset),
        cmocka_unit_test(multiplication_agrees_with_the_table_on_every_length_and_offset),
        cmocka_unit_test(one_flipped_bit_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
