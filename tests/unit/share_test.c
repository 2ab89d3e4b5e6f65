/* Fair shares: who gets one, who is told what, and the table against a plain list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/share.h"

static uint32_t take_all(struct pp_share *share, uint64_t key)
{
    uint32_t taken = 0;
    while (pp_share_take(share, key) == PP_SHARE_TAKEN) {
        ++taken;
    }
    return taken;
}

static void one_alone_gets_half_and_the_next_half_of_what_is_left(void **state)
{
    (void)state;
    struct pp_share share;
    assert_int_equal(PP_OK, pp_share_init(&share, 1024));
    assert_int_equal(512, take_all(&share, 1));
    assert_int_equal(PP_SHARE_USED_UP, pp_share_take(&share, 1));
    assert_int_equal(256, take_all(&share, 2));
    assert_int_equal(128, take_all(&share, 3));
    assert_int_equal(3, share.holders);
    pp_share_deinit(&share);
}

static void whoever_holds_nothing_gets_one_until_all_are_taken(void **state)
{
    (void)state;
    struct pp_share share;
    assert_int_equal(PP_OK, pp_share_init(&share, 64));
    (void)take_all(&share, 7);
    uint64_t key = 100;
    while (share.held < share.max) {
        assert_int_equal(PP_SHARE_TAKEN, pp_share_take(&share, key++));
    }
    assert_int_equal(PP_SHARE_FULL, pp_share_take(&share, key));
    assert_int_equal(PP_SHARE_FULL, pp_share_take(&share, 7));
    pp_share_deinit(&share);
}

static void what_others_give_back_is_had_again(void **state)
{
    (void)state;
    struct pp_share share;
    assert_int_equal(PP_OK, pp_share_init(&share, 12));
    assert_int_equal(6, take_all(&share, 1));
    assert_int_equal(3, take_all(&share, 2));
    for (int i = 0; i < 3; ++i) {
        pp_share_give(&share, 2);
    }
    assert_int_equal(6, share.held);
    assert_int_equal(PP_SHARE_USED_UP, pp_share_take(&share, 1));
    pp_share_give(&share, 1);
    assert_int_equal(PP_SHARE_TAKEN, pp_share_take(&share, 1));
    assert_int_equal(1, share.holders);
    pp_share_deinit(&share);
}

static void one_thing_alone_is_had_by_anybody(void **state)
{
    (void)state;
    struct pp_share share;
    assert_int_equal(PP_OK, pp_share_init(&share, 1));
    assert_int_equal(PP_SHARE_TAKEN, pp_share_take(&share, 5));
    assert_int_equal(PP_SHARE_FULL, pp_share_take(&share, 6));
    pp_share_give(&share, 5);
    assert_int_equal(PP_SHARE_TAKEN, pp_share_take(&share, 6));
    pp_share_deinit(&share);
}

/* Keys of one home, and of the table's end, so that probes run into each other and wrap. */
static void the_table_says_what_a_plain_list_says(void **state)
{
    (void)state;
    enum { KEYS = 24, STEPS = 200000 };
    uint64_t keys[KEYS];
    uint32_t held[KEYS] = {0};
    struct pp_share share;
    assert_int_equal(PP_OK, pp_share_init(&share, 32));
    for (uint32_t i = 0; i < KEYS; ++i) {
        keys[i] = (uint64_t)(i % 3 == 0 ? i : share.place_count * (i + 1) - 1 - i % 2);
    }
    unsigned seed = 1;
    uint32_t total = 0;
    for (int step = 0; step < STEPS; ++step) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t who = (seed >> 8) % KEYS;
        if ((seed >> 20) % 2 == 0 && held[who] != 0) {
            pp_share_give(&share, keys[who]);
            --held[who];
            --total;
        } else {
            enum pp_share_outcome outcome = pp_share_take(&share, keys[who]);
            enum pp_share_outcome wanted = total == 32               ? PP_SHARE_FULL
                                           : held[who] >= 32 - total ? PP_SHARE_USED_UP
                                                                     : PP_SHARE_TAKEN;
            assert_int_equal(wanted, outcome);
            held[who] += outcome == PP_SHARE_TAKEN ? 1 : 0;
            total += outcome == PP_SHARE_TAKEN ? 1 : 0;
        }
        uint32_t holders = 0;
        for (uint32_t i = 0; i < KEYS; ++i) {
            holders += held[i] != 0 ? 1 : 0;
        }
        assert_int_equal(total, share.held);
        assert_int_equal(holders, share.holders);
    }
    pp_share_deinit(&share);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_alone_gets_half_and_the_next_half_of_what_is_left),
        cmocka_unit_test(whoever_holds_nothing_gets_one_until_all_are_taken),
        cmocka_unit_test(what_others_give_back_is_had_again),
        cmocka_unit_test(one_thing_alone_is_had_by_anybody),
        cmocka_unit_test(the_table_says_what_a_plain_list_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
