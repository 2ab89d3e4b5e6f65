/* Peers as keys: the same from an address and from gRPC's text of it, and apart where hosts are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>

#include "common/rpc/peer.h"

static uint64_t key_of(const char *host, int family)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = 7};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = 7};
    if (family == AF_INET) {
        assert_int_equal(1, inet_pton(AF_INET, host, &four.sin_addr));
        memcpy(&address, &four, sizeof(four));
    } else {
        assert_int_equal(1, inet_pton(AF_INET6, host, &six.sin6_addr));
        memcpy(&address, &six, sizeof(six));
    }
    return pp_peer_key_of_address(&address);
}

static void an_address_and_its_text_are_one_peer_whatever_the_port(void **state)
{
    (void)state;
    assert_true(key_of("10.1.2.3", AF_INET) == pp_peer_key("ipv4:10.1.2.3:50000"));
    assert_true(pp_peer_key("ipv4:10.1.2.3:1") == pp_peer_key("ipv4:10.1.2.3:65535"));
    assert_true(key_of("fd00::1", AF_INET6) == pp_peer_key("ipv6:%5Bfd00::1%5D:50000"));
    assert_true(pp_peer_key("ipv6:[fd00::1]:5") == pp_peer_key("ipv6:%5Bfd00::1%5D:6"));
    struct sockaddr_storage path = {.ss_family = AF_UNIX};
    assert_true(pp_peer_key_of_address(&path) == pp_peer_key("unix:/run/node"));
}

static void hosts_are_apart_and_one_network_of_ipv6_is_one(void **state)
{
    (void)state;
    assert_false(pp_peer_key("ipv4:10.1.2.3:5") == pp_peer_key("ipv4:10.1.2.4:5"));
    assert_true(key_of("fd00:0:0:1::1", AF_INET6) == key_of("fd00:0:0:1:2:3:4:5", AF_INET6));
    assert_false(key_of("fd00:0:0:1::1", AF_INET6) == key_of("fd00:0:0:2::1", AF_INET6));
    assert_true(key_of("::ffff:10.1.2.3", AF_INET6) == key_of("10.1.2.3", AF_INET));
    assert_true(pp_peer_key("ipv6:%5B::ffff:10.1.2.3%5D:9") == pp_peer_key("ipv4:10.1.2.3:8"));
    assert_true(pp_peer_key("ipv6:%5Bfe80::1%25eth0%5D:9") == key_of("fe80::2", AF_INET6));
}

static void any_other_text_is_a_peer_of_its_own(void **state)
{
    (void)state;
    static const char *const texts[] = {"",           "ipv4:",       "ipv4:10.1.2:5", "ipv6:%5B:5",
                                        "ipv6:%5B%5", "sim:worker1", "ipv4:x",        "ipv6:[[:1"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
        for (size_t j = 0; j < i; ++j) {
            assert_false(pp_peer_key(texts[i]) == pp_peer_key(texts[j]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_and_its_text_are_one_peer_whatever_the_port),
        cmocka_unit_test(hosts_are_apart_and_one_network_of_ipv6_is_one),
        cmocka_unit_test(any_other_text_is_a_peer_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
