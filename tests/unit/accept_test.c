/* The gate before a server's socket, with real sockets from several loopback hosts. */
#include "tests/unit/grpc_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include "common/rpc/accept.h"

#define FILES_MAX 64u

static void serve_gated(struct fixture *fixture, uint32_t connections_max)
{
    memset(fixture, 0, sizeof(*fixture));
    current = fixture;
    fixture->server = fixture->client = make_transport(0);
    const struct pp_server_config config = {.address = "127.0.0.1:0",
                                            .methods = methods,
                                            .method_count = sizeof(methods) / sizeof(methods[0]),
                                            .context = fixture,
                                            .connections_max = connections_max};
    assert_int_equal(PP_OK,
                     fixture->server->ops->server_start(fixture->server, &config, &fixture->port));
}

/* A socket of host 127.0.0.`host`, not connected yet. */
static int socket_of(uint8_t host)
{
    int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in own = {.sin_family = AF_INET};
    own.sin_addr.s_addr = htonl(0x7f000000u + host);
    assert_true(file >= 0);
    assert_int_equal(0, bind(file, (struct sockaddr *)&own, sizeof(own)));
    return file;
}

static void connect_to(int file, int port)
{
    struct sockaddr_in far = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    far.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int outcome = connect(file, (struct sockaddr *)&far, sizeof(far));
    assert_true(outcome == 0 || errno == EINPROGRESS);
}

static int connect_from(uint8_t host, int port)
{
    int file = socket_of(host);
    connect_to(file, port);
    return file;
}

static bool hung_up(int file)
{
    char byte;
    ssize_t got = recv(file, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return got == 0 || (got < 0 && errno == ECONNRESET);
}

static uint32_t open_count(void)
{
    struct pp_accept_counts counts;
    pp_accept_count(&counts);
    return counts.open;
}

static uint64_t refused(enum pp_accept_refusal why)
{
    struct pp_accept_counts counts;
    pp_accept_count(&counts);
    return counts.refused[why];
}

static void connections_above_the_limit_are_refused_until_one_is_closed(void **state)
{
    (void)state;
    struct fixture fixture;
    int files[4];
    serve_gated(&fixture, 3);
    for (uint8_t host = 1; host <= 3; ++host) {
        files[host] = connect_from(host, fixture.port);
        WAIT_FOR(&fixture, open_count() == host);
    }
    int late = connect_from(4, fixture.port);
    WAIT_FOR(&fixture, hung_up(late));
    assert_int_equal(1, refused(PP_ACCEPT_FULL));
    close(late);
    close(files[2]);
    WAIT_FOR(&fixture, open_count() == 2);
    late = connect_from(4, fixture.port);
    WAIT_FOR(&fixture, open_count() == 3);
    assert_false(hung_up(late));
    assert_false(hung_up(files[1]));
    assert_int_equal(1, refused(PP_ACCEPT_FULL));
    close(late);
    close(files[1]);
    close(files[3]);
    teardown(&fixture);
}

static void one_host_gets_half_and_another_is_let_in_beside_it(void **state)
{
    (void)state;
    struct fixture fixture;
    int files[4];
    serve_gated(&fixture, 6);
    for (uint32_t i = 0; i < 3; ++i) {
        files[i] = connect_from(9, fixture.port);
        WAIT_FOR(&fixture, open_count() == i + 1);
    }
    int greedy = connect_from(9, fixture.port);
    WAIT_FOR(&fixture, hung_up(greedy));
    assert_int_equal(1, refused(PP_ACCEPT_SHARE));
    files[3] = connect_from(8, fixture.port);
    WAIT_FOR(&fixture, open_count() == 4);
    struct pp_accept_counts counts;
    pp_accept_count(&counts);
    assert_int_equal(2, counts.hosts);
    assert_int_equal(6, counts.max);
    for (uint32_t i = 0; i < 4; ++i) {
        close(files[i]);
    }
    close(greedy);
    WAIT_FOR(&fixture, open_count() == 0);
    teardown(&fixture);
}

/* No descriptor from here on: the lowest free one is the limit. */
static struct rlimit forbid_files(void)
{
    struct rlimit before;
    assert_int_equal(0, getrlimit(RLIMIT_NOFILE, &before));
    int lowest = dup(0);
    assert_true(lowest >= 0);
    close(lowest);
    struct rlimit none = {.rlim_cur = (rlim_t)lowest, .rlim_max = before.rlim_max};
    assert_int_equal(0, setrlimit(RLIMIT_NOFILE, &none));
    return before;
}

static void without_descriptors_connections_are_refused_and_taken_again_afterwards(void **state)
{
    (void)state;
    struct fixture fixture;
    serve_gated(&fixture, FILES_MAX);
    int early = connect_from(1, fixture.port);
    WAIT_FOR(&fixture, open_count() == 1);
    int files[3];
    for (uint32_t i = 0; i < 3; ++i) {
        files[i] = socket_of(2);
    }
    struct rlimit before = forbid_files();
    for (uint32_t i = 0; i < 3; ++i) {
        connect_to(files[i], fixture.port);
        WAIT_FOR(&fixture, hung_up(files[i]));
    }
    assert_int_equal(0, setrlimit(RLIMIT_NOFILE, &before));
    assert_int_equal(3, refused(PP_ACCEPT_FILES));
    assert_false(hung_up(early));
    int late = connect_from(2, fixture.port);
    WAIT_FOR(&fixture, open_count() == 2);
    for (uint32_t i = 0; i < 3; ++i) {
        close(files[i]);
    }
    close(early);
    close(late);
    teardown(&fixture);
}

static void calls_go_through_a_gated_server_as_ever(void **state)
{
    (void)state;
    struct fixture fixture;
    serve_gated(&fixture, 8);
    open_channel(&fixture);
    fixture.on_message = answer_once;
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(PP_OK, say(&fixture.calling, "hello", true));
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(PP_OK, fixture.calling.status);
    assert_string_equal("re: hello", fixture.calling.text);
    assert_int_equal(1, open_count());
    teardown(&fixture);
}

static void other_sockets_of_the_program_know_no_gate(void **state)
{
    (void)state;
    struct fixture fixture;
    serve_gated(&fixture, 1);
    int listener = socket_of(1);
    struct sockaddr_in own;
    socklen_t bytes = sizeof(own);
    assert_int_equal(0, listen(listener, 8));
    assert_int_equal(0, getsockname(listener, (struct sockaddr *)&own, &bytes));
    int ends[6];
    for (uint32_t i = 0; i < 3; ++i) {
        ends[i] = connect_from(7, ntohs(own.sin_port));
        ends[3 + i] = accept4(listener, (struct sockaddr *)&own, &bytes, SOCK_CLOEXEC);
        assert_true(ends[3 + i] >= 0);
        assert_int_equal(0x7f000007u, ntohl(own.sin_addr.s_addr));
        bytes = sizeof(own);
        assert_int_equal(0, getsockname(listener, (struct sockaddr *)&own, &bytes));
    }
    assert_int_equal(-1, accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    assert_int_equal(EAGAIN, errno);
    assert_int_equal(0, open_count());
    for (uint32_t i = 0; i < 6; ++i) {
        close(ends[i]);
    }
    close(listener);
    teardown(&fixture);
}

static void a_second_gate_is_refused_and_the_next_server_gets_one(void **state)
{
    (void)state;
    struct fixture fixture;
    serve_gated(&fixture, 2);
    assert_int_equal(PP_FAILED_PRECONDITION,
                     pp_accept_begin("127.0.0.1:1", 1, 2, pp_clock_system()));
    teardown(&fixture);
    struct pp_accept_counts counts;
    pp_accept_count(&counts);
    assert_int_equal(0, counts.max);
    serve_gated(&fixture, 5);
    pp_accept_count(&counts);
    assert_int_equal(5, counts.max);
    teardown(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_above_the_limit_are_refused_until_one_is_closed),
        cmocka_unit_test(one_host_gets_half_and_another_is_let_in_beside_it),
        cmocka_unit_test(without_descriptors_connections_are_refused_and_taken_again_afterwards),
        cmocka_unit_test(calls_go_through_a_gated_server_as_ever),
        cmocka_unit_test(other_sockets_of_the_program_know_no_gate),
        cmocka_unit_test(a_second_gate_is_refused_and_the_next_server_gets_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
