/*
 * Where a new sequence goes: over all nodes that have room, the roomiest last, and over all there
 * are where nobody knows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/unit/remote_fake.h"

#define TOKENS 30u
#define MIB    (1ull << 20)

/* Opens a sequence over three nodes with this much room; the node of each part in order, "ac". */
static void check_place(const uint64_t room_mib[FAKE_NODES], uint64_t tokens, const char *expected)
{
    struct fake_net *net = fake_net_new();
    struct gw_remote_config config;
    struct gw_remote_sequence_config sequence_config = fake_sequence_config(tokens);
    struct gw_remote *remote;
    struct gw_remote_sequence *sequence;
    char found[FAKE_NODES + 1] = "";
    fake_remote_config(net, FAKE_NODES, GW_SHARD_TOKENS, &config);
    for (uint32_t i = 0; i < FAKE_NODES; ++i) {
        net->nodes[i].memory_bytes = room_mib[i] > 0 ? 1024 * MIB : 0;
        net->nodes[i].free_bytes = room_mib[i] * MIB;
    }
    assert_int_equal(gw_remote_new(&config, &remote), PP_OK);
    assert_int_equal(gw_remote_ready(remote, 1000000, NULL, NULL), PP_OK);
    assert_int_equal(gw_remote_sequence_open(remote, &sequence_config, &sequence), PP_OK);
    uint32_t parts = 0;
    for (uint64_t share = 0; share <= tokens; ++share) { /* by where their spans begin */
        for (uint32_t i = 0; i < FAKE_NODES; ++i) {
            const struct fake_part *part = &net->nodes[i].parts[0];
            if (net->nodes[i].part_count == 1 && part->token_begin == share) {
                found[parts++] = (char)('a' + (char)i);
            }
        }
    }
    assert_string_equal(found, expected);
    gw_remote_sequence_close(sequence);
    gw_remote_destroy(remote);
    free(net);
}

static void all_nodes_that_have_room_get_a_share(void **state)
{
    (void)state;
    /* A token takes 4 layers x 4 kv heads x 64 bytes and a tenth: 30,000 take 32 MiB. */
    check_place((const uint64_t[]){100, 100, 100}, 30000, "abc");
    check_place((const uint64_t[]){100, 5, 100}, 30000, "ac");
    check_place((const uint64_t[]){5, 5, 100}, 30000, "c");
}

static void the_roomiest_node_gets_the_part_that_grows(void **state)
{
    (void)state;
    check_place((const uint64_t[]){900, 100, 500}, TOKENS, "bca");
    check_place((const uint64_t[]){100, 99, 98}, TOKENS, "abc"); /* alike */
}

static void what_fits_no_even_cut_is_cut_by_room(void **state)
{
    (void)state;
    /* 32 MiB and a tenth of it: a third is too much for two of the nodes, a half for one. */
    check_place((const uint64_t[]){8, 22, 10}, 30000, "acb");
    check_place((const uint64_t[]){18, 10, 9}, 30000, "bca"); /* the last grows */
}

static void all_are_asked_where_room_is_not_known_or_too_small(void **state)
{
    (void)state;
    check_place((const uint64_t[]){0, 0, 0}, TOKENS, "abc");
    check_place((const uint64_t[]){100, 0, 900}, TOKENS, "abc");
    check_place((const uint64_t[]){5, 5, 5}, 30000, "abc"); /* they refuse themselves */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_nodes_that_have_room_get_a_share),
        cmocka_unit_test(the_roomiest_node_gets_the_part_that_grows),
        cmocka_unit_test(what_fits_no_even_cut_is_cut_by_room),
        cmocka_unit_test(all_are_asked_where_room_is_not_known_or_too_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
