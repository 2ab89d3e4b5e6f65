/*
 * The admin port over loopback: paths, codes, bounds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/obs/admin_http.h"
#include "common/obs/listen.h"

static _Atomic bool ready;

static bool is_ready(void *context, FILE *details)
{
    (void)context;
    bool memory = pp_admin_http_put_check(details, "memory", true, NULL);
    return pp_admin_http_put_check(details, "serving", ready, ready ? "" : "draining") && memory;
}

static void put_metrics(void *context, FILE *output)
{
    fprintf(output, "%s 1\n", (const char *)context);
}

static void put_config(void *context, FILE *output)
{
    (void)context;
    fputs("threads = 2  # default\n", output);
}

static char name[] = "up";
static const struct pp_admin_http_calls calls = {
    .context = name, .ready = is_ready, .metrics = put_metrics, .config = put_config};

struct fixture {
    struct pp_admin_http *server;
    uint16_t port;
    char answer[65536];
};

static int start(void **state)
{
    struct fixture *fixture = calloc(1, sizeof(*fixture));
    atomic_store(&ready, true);
    *state = fixture;
    return pp_admin_http_start("127.0.0.1:0", &calls, &fixture->port, &fixture->server) == PP_OK
               ? 0
               : -1;
}

static int stop(void **state)
{
    struct fixture *fixture = *state;
    pp_admin_http_stop(fixture->server);
    free(fixture);
    return 0;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(client >= 0);
    assert_int_equal(connect(client, (struct sockaddr *)&address, sizeof(address)), 0);
    return client;
}

/* Sends a whole request and reads until the server closes. */
static const char *ask_raw(struct fixture *fixture, const char *request, size_t bytes)
{
    int client = connect_to(fixture->port);
    size_t got = 0;
    (void)!send(client, request, bytes, MSG_NOSIGNAL);
    while (got + 1 < sizeof(fixture->answer)) {
        ssize_t more = recv(client, fixture->answer + got, sizeof(fixture->answer) - 1 - got, 0);
        if (more <= 0) {
            break;
        }
        got += (size_t)more;
    }
    close(client);
    fixture->answer[got] = '\0';
    return fixture->answer;
}

static const char *ask(struct fixture *fixture, const char *method, const char *path)
{
    char request[512];
    int bytes = snprintf(request, sizeof(request),
                         "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path);
    return ask_raw(fixture, request, (size_t)bytes);
}

static void expect(const char *answer, const char *code, const char *words)
{
    if (strncmp(answer + 9, code, 3) != 0 || strstr(answer, words) == NULL) {
        fail_msg("not %s with \"%s\": %s", code, words, answer);
    }
}

static void a_program_is_live_without_a_check(void **state)
{
    expect(ask(*state, "GET", "/livez"), "200", "\r\n\r\nok\n");
}

static void readiness_follows_the_checks(void **state)
{
    expect(ask(*state, "GET", "/readyz"), "200", "\r\n\r\nok\n");
    expect(ask(*state, "GET", "/readyz?verbose"), "200", "[+] memory\n[+] serving\nok\n");
    atomic_store(&ready, false);
    expect(ask(*state, "GET", "/readyz"), "503", "[+] memory\n[-] serving: draining\nnot ok\n");
    expect(ask(*state, "GET", "/livez"), "200", "ok\n");
}

static void metrics_have_the_prometheus_type(void **state)
{
    const char *answer = ask(*state, "GET", "/metrics");
    expect(answer, "200", "\r\n\r\nup 1\n");
    expect(answer, "200", "Content-Type: text/plain; version=0.0.4");
}

static void config_is_shown_on_loopback(void **state)
{
    expect(ask(*state, "GET", "/config"), "200", "threads = 2  # default\n");
}

static void head_has_no_body(void **state)
{
    const char *answer = ask(*state, "HEAD", "/metrics");
    expect(answer, "200", "Content-Length: 5");
    assert_null(strstr(answer, "up 1"));
}

static void other_paths_and_methods_are_refused(void **state)
{
    expect(ask(*state, "GET", "/"), "404", "not found");
    expect(ask(*state, "GET", "/livez/../metrics"), "404", "not found");
    expect(ask(*state, "GET", "//metrics"), "404", "not found");
    expect(ask(*state, "POST", "/livez"), "405", "Allow: GET, HEAD");
    expect(ask(*state, "DELETE", "/metrics"), "405", "only GET and HEAD");
}

static void a_callback_that_is_missing_is_not_found(void **state)
{
    struct fixture *fixture = *state;
    struct fixture *other = calloc(1, sizeof(*other));
    struct pp_admin_http_calls none = {0};
    assert_int_equal(pp_admin_http_start("127.0.0.1:0", &none, &other->port, &other->server),
                     PP_OK);
    assert_int_not_equal(other->port, fixture->port);
    expect(ask(other, "GET", "/metrics"), "404", "not found");
    expect(ask(other, "GET", "/readyz"), "200", "ok");
    pp_admin_http_stop(other->server);
    free(other);
}

static void headers_beyond_the_bound_are_refused(void **state)
{
    struct fixture *fixture = *state;
    size_t bytes = 256 << 10;
    char *request = malloc(bytes + 1);
    int head = snprintf(request, bytes, "GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: ");
    memset(request + head, 'a', bytes - (size_t)head);
    const char *answer = ask_raw(fixture, request, bytes);
    assert_true(answer[0] == '\0' || answer[9] == '4');
    free(request);
    expect(ask(fixture, "GET", "/livez"), "200", "ok");
}

static void silent_clients_do_not_block_others(void **state)
{
    struct fixture *fixture = *state;
    int silent[16];
    for (int index = 0; index < 16; ++index) {
        silent[index] = connect_to(fixture->port);
        assert_int_equal(send(silent[index], "GET /li", 7, MSG_NOSIGNAL), 7);
    }
    expect(ask(fixture, "GET", "/livez"), "200", "ok");
    for (int index = 0; index < 16; ++index) {
        close(silent[index]);
    }
}

static void a_taken_port_and_a_bad_address_are_errors(void **state)
{
    struct fixture *fixture = *state;
    struct pp_admin_http *server = NULL;
    uint16_t port = 0;
    char address[64];
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    snprintf(address, sizeof(address), "127.0.0.1:%u", fixture->port);
    assert_int_equal(pp_admin_http_start(address, &calls, &port, &server), PP_IO);
    static const char *const wrong[] = {
        "", "7451", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "::1:7451"};
    for (size_t index = 0; index < sizeof(wrong) / sizeof(wrong[0]); ++index) {
        assert_int_equal(pp_admin_http_start(wrong[index], &calls, &port, &server),
                         PP_INVALID_ARGUMENT);
    }
    pp_log_configure(PP_LOG_INFO, PP_LOG_TEXT);
    assert_null(server);
}

static void loopback_addresses_are_known(void **state)
{
    (void)state;
    assert_true(pp_listen_is_loopback("127.0.0.1:1"));
    assert_true(pp_listen_is_loopback("127.8.8.8:1"));
    assert_true(pp_listen_is_loopback("[::1]:1"));
    assert_false(pp_listen_is_loopback("0.0.0.0:1"));
    assert_false(pp_listen_is_loopback("[::]:1"));
    assert_false(pp_listen_is_loopback(":1"));
    assert_false(pp_listen_is_loopback("junk"));
    static const char *const wrong[] = {
        "", "junk", "127.0.0.1", "127.0.0.1:", "h:65536", "h:-1", "::1:5", "h:1x"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
        assert_false(pp_listen_is_address(wrong[i]));
    }
    assert_true(pp_listen_is_address("no-such-host.invalid:5"));
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SERVER(a_program_is_live_without_a_check),
        WITH_SERVER(readiness_follows_the_checks),
        WITH_SERVER(metrics_have_the_prometheus_type),
        WITH_SERVER(config_is_shown_on_loopback),
        WITH_SERVER(head_has_no_body),
        WITH_SERVER(other_paths_and_methods_are_refused),
        WITH_SERVER(a_callback_that_is_missing_is_not_found),
        WITH_SERVER(headers_beyond_the_bound_are_refused),
        WITH_SERVER(silent_clients_do_not_block_others),
        WITH_SERVER(a_taken_port_and_a_bad_address_are_errors),
        cmocka_unit_test(loopback_addresses_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
