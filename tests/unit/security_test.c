/*
 * Certificates from files, and calls under mutual TLS with certificates made here by openssl: who
 * is let in and who is not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/security.h"

#define WAIT_US UINT64_C(20000000)

static char folder[64];

static const char *path_of(const char *name)
{
    static char paths[8][128];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void run_shell(const char *command)
{
    char line[1024];
    snprintf(line, sizeof(line), "cd %s && { %s; } >log 2>&1", folder, command);
    if (system(line) != 0) {
        fail_msg("failed: %s (see %s/log)", command, folder);
    }
}

#define KEY "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"

/* An authority with a server's and a client's certificate, and another authority with its client.
 */
static int make_certificates(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/pp_security_test_XXXXXX");
    assert_non_null(mkdtemp(folder));
    run_shell("openssl req -x509 " KEY " -keyout ca.key -out ca.crt -days 2 -subj /CN=authority");
    run_shell("openssl req -x509 " KEY " -keyout other.key -out other.crt -days 2 -subj /CN=other");
    run_shell("openssl req " KEY " -keyout server.key -out server.csr -subj /CN=node && "
              "printf 'subjectAltName=DNS:node.test,IP:127.0.0.1' > san && "
              "openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
              "-extfile san -out server.crt");
    run_shell("openssl req " KEY " -keyout named.key -out named.csr -subj /CN=node && "
              "printf 'subjectAltName=DNS:node.test' > san2 && "
              "openssl x509 -req -in named.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
              "-extfile san2 -out named.crt");
    run_shell("openssl req " KEY " -keyout client.key -out client.csr -subj /CN=worker && "
              "openssl x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 "
              "-out client.crt");
    run_shell("openssl req " KEY " -keyout foreign.key -out foreign.csr -subj /CN=worker && "
              "openssl x509 -req -in foreign.csr -CA other.crt -CAkey other.key -CAcreateserial "
              "-days 2 -out foreign.crt");
    run_shell("openssl pkey -in client.key -aes256 -passout pass:x -out locked.key");
    return 0;
}

static int remove_certificates(void **state)
{
    (void)state;
    char line[128];
    snprintf(line, sizeof(line), "rm -rf %s", folder);
    return system(line);
}

static struct pp_tls *load(const char *name, const char *authority, bool client_auth,
                           const char *server_name)
{
    char cert[32] = "";
    char key[32] = "";
    struct pp_tls_config config = {
        .ca_file = path_of(authority), .client_auth = client_auth, .server_name = server_name};
    if (name != NULL) {
        snprintf(cert, sizeof(cert), "%s.crt", name);
        snprintf(key, sizeof(key), "%s.key", name);
        config.cert_file = path_of(cert);
        config.key_file = path_of(key);
    }
    struct pp_tls *tls = NULL;
    assert_int_equal(pp_tls_new(&config, &tls), PP_OK);
    return tls;
}

struct outcome {
    bool ended;
    enum pp_status status;
};

static void served_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct pp_transport *transport = context;
    pp_message_release(message);
    assert_int_equal(transport->ops->call_send(call, "ok", 2, NULL, false), PP_OK);
    transport->ops->call_finish(call, PP_OK, NULL, 0);
}

static const struct pp_call_events served_events = {.message = served_message};

static void opened(void *context, struct pp_call *call)
{
    struct pp_transport *transport = context;
    transport->ops->call_accept(call, &served_events, transport);
    transport->ops->call_receive(call);
}

static void release(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)context;
    (void)call;
    pp_message_release(message);
}

static void ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    (void)call;
    *(struct outcome *)context = (struct outcome){.ended = true, .status = end->status};
}

static const struct pp_call_events calling_events = {.message = release, .ended = ended};

/* A server under tls, and calls to it from the same transport. */
struct served {
    struct pp_transport *transport;
    struct pp_clock clock;
    char address[32];
};

static void serve(const struct pp_tls *tls, struct served *served)
{
    static const struct pp_method method = {"/s/M", PP_CALL_UNARY, opened};
    served->clock = pp_clock_system();
    struct pp_grpc_config config = {.clock = served->clock};
    assert_int_equal(pp_grpc_transport_new(&config, &served->transport), PP_OK);
    struct pp_server_config server = {.address = "127.0.0.1:0",
                                      .methods = &method,
                                      .method_count = 1,
                                      .context = served->transport,
                                      .tls = tls};
    int port = 0;
    assert_int_equal(served->transport->ops->server_start(served->transport, &server, &port),
                     PP_OK);
    snprintf(served->address, sizeof(served->address), "127.0.0.1:%d", port);
}

/* One unary call over a connection of its own. */
static enum pp_status call_served(struct served *served, const struct pp_tls *client_tls)
{
    struct pp_transport *transport = served->transport;
    struct pp_channel *channel = NULL;
    assert_int_equal(transport->ops->channel_open(transport, served->address, PP_CHANNEL_LATENCY,
                                                  client_tls, &channel),
                     PP_OK);
    struct outcome outcome = {.ended = false};
    struct pp_call *one = NULL;
    assert_int_equal(transport->ops->call_start(channel, "/s/M", PP_CALL_UNARY, 0, &calling_events,
                                                &outcome, &one),
                     PP_OK);
    transport->ops->call_receive(one);
    assert_int_equal(transport->ops->call_send(one, "x", 1, NULL, true), PP_OK);
    uint64_t end_us = pp_clock_now_us(&served->clock) + WAIT_US;
    while (!outcome.ended && pp_clock_now_us(&served->clock) < end_us) {
        transport->ops->poll(transport, pp_clock_now_us(&served->clock) + 10000);
    }
    assert_true(outcome.ended);
    transport->ops->channel_close(channel);
    return outcome.status;
}

/* One call from a client with one set of certificates to a server with another. */
static enum pp_status call(const struct pp_tls *server_tls, const struct pp_tls *client_tls)
{
    struct served served;
    serve(server_tls, &served);
    enum pp_status status = call_served(&served, client_tls);
    served.transport->ops->destroy(served.transport);
    return status;
}

static void call_between(const char *server, bool client_auth, const char *client,
                         const char *client_authority, const char *server_name,
                         enum pp_status expected)
{
    struct pp_tls *server_tls = load(server, "ca.crt", client_auth, NULL);
    struct pp_tls *client_tls =
        client_authority != NULL ? load(client, client_authority, false, server_name) : NULL;
    assert_int_equal(call(server_tls, client_tls), expected);
    pp_tls_destroy(client_tls);
    pp_tls_destroy(server_tls);
}

static void client_of_the_authority_is_let_in(void **state)
{
    (void)state;
    call_between("server", true, "client", "ca.crt", NULL, PP_OK);
}

static void client_without_certificate_is_refused_only_where_one_is_asked_for(void **state)
{
    (void)state;
    call_between("server", true, NULL, "ca.crt", NULL, PP_UNAVAILABLE);
    call_between("server", false, NULL, "ca.crt", NULL, PP_OK);
}

static void client_of_another_authority_is_refused(void **state)
{
    (void)state;
    call_between("server", true, "foreign", "ca.crt", NULL, PP_UNAVAILABLE);
}

static void server_of_an_authority_the_client_does_not_trust_is_refused(void **state)
{
    (void)state;
    call_between("server", true, "client", "other.crt", NULL, PP_UNAVAILABLE);
}

static void plain_text_client_is_refused(void **state)
{
    (void)state;
    call_between("server", true, NULL, NULL, NULL, PP_UNAVAILABLE);
}

static void name_in_the_certificate_must_match_or_be_given(void **state)
{
    (void)state;
    call_between("named", true, "client", "ca.crt", NULL, PP_UNAVAILABLE);
    call_between("named", true, "client", "ca.crt", "node.test", PP_OK);
    call_between("named", true, "client", "ca.crt", "else.test", PP_UNAVAILABLE);
}

static enum pp_status try_load(const char *cert, const char *key, const char *authority)
{
    struct pp_tls_config config = {.cert_file = cert != NULL ? path_of(cert) : NULL,
                                   .key_file = key != NULL ? path_of(key) : NULL,
                                   .ca_file = authority != NULL ? path_of(authority) : NULL,
                                   .client_auth = true};
    struct pp_tls *tls = NULL;
    enum pp_status status = pp_tls_new(&config, &tls);
    pp_tls_destroy(tls);
    return status;
}

static void bad_files_are_refused_when_loaded(void **state)
{
    (void)state;
    assert_int_equal(try_load("server.crt", "server.key", "ca.crt"), PP_OK);
    assert_int_equal(try_load("server.crt", "missing.key", "ca.crt"), PP_IO);
    assert_int_equal(try_load("missing.crt", "server.key", "ca.crt"), PP_IO);
    assert_int_equal(try_load("server.crt", "client.key", "ca.crt"), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load("server.crt", "locked.key", "ca.crt"), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load("server.key", "server.key", "ca.crt"), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load("server.crt", "server.crt", "ca.crt"), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load("server.crt", "server.key", "server.key"), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load("server.crt", "server.key", NULL), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load("server.crt", NULL, "ca.crt"), PP_INVALID_ARGUMENT);
    assert_int_equal(try_load(NULL, "server.key", "ca.crt"), PP_INVALID_ARGUMENT);
    pp_tls_destroy(NULL);
}

static void server_without_certificate_does_not_start(void **state)
{
    (void)state;
    struct pp_tls *tls = load(NULL, "ca.crt", false, NULL);
    struct pp_grpc_config config = {.clock = pp_clock_system()};
    struct pp_transport *transport = NULL;
    assert_int_equal(pp_grpc_transport_new(&config, &transport), PP_OK);
    struct pp_method method = {"/s/M", PP_CALL_UNARY, opened};
    struct pp_server_config server = {
        .address = "127.0.0.1:0", .methods = &method, .method_count = 1, .tls = tls};
    int port = 0;
    assert_int_equal(transport->ops->server_start(transport, &server, &port), PP_INVALID_ARGUMENT);
    transport->ops->destroy(transport);
    pp_tls_destroy(tls);
}

static void a_reload_is_met_by_the_next_connection_and_a_bad_one_by_none(void **state)
{
    (void)state;
    run_shell("cp server.crt live.crt && cp server.key live.key && cp ca.crt live-ca.crt");
    struct pp_tls *node = load("live", "live-ca.crt", true, NULL);
    struct pp_tls *ours = load("client", "ca.crt", false, NULL);
    struct pp_tls *theirs = load("foreign", "ca.crt", false, NULL);
    struct served served;
    serve(node, &served);
    assert_int_equal(call_served(&served, ours), PP_OK);
    assert_int_equal(call_served(&served, theirs), PP_UNAVAILABLE);
    run_shell("cp other.crt live-ca.crt");
    assert_int_equal(call_served(&served, ours), PP_OK); /* not read yet */
    assert_int_equal(pp_tls_reload(node), PP_OK);
    assert_int_equal(call_served(&served, theirs), PP_OK);
    assert_int_equal(call_served(&served, ours), PP_UNAVAILABLE);
    run_shell("cp client.key live.key && cp ca.crt live-ca.crt");
    assert_int_equal(pp_tls_reload(node), PP_INVALID_ARGUMENT);
    assert_int_equal(call_served(&served, theirs), PP_OK);
    run_shell("rm live.crt");
    assert_int_equal(pp_tls_reload(node), PP_IO);
    assert_int_equal(call_served(&served, theirs), PP_OK);
    served.transport->ops->destroy(served.transport);
    pp_tls_destroy(theirs);
    pp_tls_destroy(ours);
    pp_tls_destroy(node);
}

int main(void)
{
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    alarm(240);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(client_of_the_authority_is_let_in),
        cmocka_unit_test(client_without_certificate_is_refused_only_where_one_is_asked_for),
        cmocka_unit_test(client_of_another_authority_is_refused),
        cmocka_unit_test(server_of_an_authority_the_client_does_not_trust_is_refused),
        cmocka_unit_test(plain_text_client_is_refused),
        cmocka_unit_test(name_in_the_certificate_must_match_or_be_given),
        cmocka_unit_test(bad_files_are_refused_when_loaded),
        cmocka_unit_test(server_without_certificate_does_not_start),
        cmocka_unit_test(a_reload_is_met_by_the_next_connection_and_a_bad_one_by_none),
    };
    return cmocka_run_group_tests(tests, make_certificates, remove_certificates);
}
