/*
 * The gRPC transport against itself over loopback: every kind of call, every way a call ends,
 * limits and the ways to stop. One thread polls; a test waits for what it expects up to 20 s, and
 * fails.
 */
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "common/rpc/grpc_transport.h"

#define WAIT_US UINT64_C(20000000)

/* One side of a call and what happened to it. */
struct side {
    struct pp_transport *transport;
    struct pp_call *call;
    bool keep_receiving;
    size_t messages;
    size_t bytes;
    uint64_t sum;  /* of all bytes received */
    char text[64]; /* the last message's begin */
    bool half_closed;
    size_t writable;
    bool ended;
    enum pp_status status;
    char end_text[128];
    uint64_t retry_after_ms;
    bool order_broken; /* an event after ended */
};

/* Server behaviour is chosen by the test through this. */
struct fixture {
    struct pp_transport *server;
    struct pp_transport *client; /* may be the same */
    struct pp_channel *channel;
    int port;
    char address[64];
    struct side served;
    struct side calling;
    size_t opened;
    void (*on_message)(struct fixture *fixture, struct pp_message *message);
};

static struct fixture *current;

static void side_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct side *side = context;
    side->order_broken |= side->ended;
    ++side->messages;
    side->bytes += message->bytes;
    size_t filled = 0;
    for (size_t i = 0; i < message->piece_count; ++i) {
        for (size_t j = 0; j < message->pieces[i].bytes; ++j) {
            side->sum += message->pieces[i].data[j];
            if (filled < sizeof(side->text) - 1) {
                side->text[filled++] = (char)message->pieces[i].data[j];
            }
        }
    }
    side->text[filled] = '\0';
    if (side == &current->served && current->on_message != NULL) {
        current->on_message(current, message);
    }
    pp_message_release(message);
    if (side->keep_receiving) {
        side->transport->ops->call_receive(call);
    }
}

static void side_writable(void *context, struct pp_call *call)
{
    (void)call;
    struct side *side = context;
    side->order_broken |= side->ended;
    ++side->writable;
}

static void side_half_closed(void *context, struct pp_call *call)
{
    (void)call;
    struct side *side = context;
    side->order_broken |= side->ended;
    side->half_closed = true;
}

static void side_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    (void)call;
    struct side *side = context;
    side->order_broken |= side->ended;
    side->ended = true;
    side->status = end->status;
    side->retry_after_ms = end->retry_after_ms;
    snprintf(side->end_text, sizeof(side->end_text), "%s", end->message);
    side->call = NULL;
}

static const struct pp_call_events side_events = {.message = side_message,
                                                  .writable = side_writable,
                                                  .half_closed = side_half_closed,
                                                  .ended = side_ended};

static void opened(void *context, struct pp_call *call)
{
    struct fixture *fixture = context;
    ++fixture->opened;
    memset(&fixture->served, 0, sizeof(fixture->served));
    fixture->served.transport = fixture->server;
    fixture->served.call = call;
    fixture->served.keep_receiving = true;
    fixture->server->ops->call_accept(call, &side_events, &fixture->served);
    assert_non_null(strstr(fixture->server->ops->call_peer(call), ":"));
    fixture->server->ops->call_receive(call);
}

/* Takes the call and never pulls. */
static void opened_deaf(void *context, struct pp_call *call)
{
    struct fixture *fixture = context;
    ++fixture->opened;
    memset(&fixture->served, 0, sizeof(fixture->served));
    fixture->served.transport = fixture->server;
    fixture->served.call = call;
    fixture->server->ops->call_accept(call, &side_events, &fixture->served);
}

static void opened_refusing(void *context, struct pp_call *call)
{
    struct fixture *fixture = context;
    ++fixture->opened;
    fixture->server->ops->call_finish(call, PP_QUOTA, "no more for you", 1234);
}

static const struct pp_method methods[] = {
    {"/test.Service/Unary", PP_CALL_UNARY, opened},
    {"/test.Service/Stream", PP_CALL_SERVER_STREAM, opened},
    {"/test.Service/Bidi", PP_CALL_BIDI, opened},
    {"/test.Service/Deaf", PP_CALL_BIDI, opened_deaf},
    {"/test.Service/Refusing", PP_CALL_UNARY, opened_refusing},
};

static struct pp_transport *make_transport(uint64_t message_bytes_max)
{
    struct pp_grpc_config config = {
        .clock = pp_clock_system(), .spin_us = 50, .message_bytes_max = message_bytes_max};
    struct pp_transport *transport = NULL;
    assert_int_equal(pp_grpc_transport_new(&config, &transport), PP_OK);
    return transport;
}

static enum pp_status serve_at(struct fixture *fixture, const char *address)
{
    struct pp_server_config config = {.address = address,
                                      .methods = methods,
                                      .method_count = sizeof(methods) / sizeof(methods[0]),
                                      .context = fixture};
    return fixture->server->ops->server_start(fixture->server, &config, &fixture->port);
}

static void open_channel(struct fixture *fixture)
{
    snprintf(fixture->address, sizeof(fixture->address), "127.0.0.1:%d", fixture->port);
    assert_int_equal(fixture->client->ops->channel_open(fixture->client, fixture->address,
                                                        PP_CHANNEL_LATENCY, NULL,
                                                        &fixture->channel),
                     PP_OK);
}

static void setup_with(struct fixture *fixture, bool apart, uint64_t message_bytes_max)
{
    memset(fixture, 0, sizeof(*fixture));
    current = fixture;
    fixture->server = make_transport(message_bytes_max);
    fixture->client = apart ? make_transport(0) : fixture->server;
    assert_int_equal(serve_at(fixture, "127.0.0.1:0"), PP_OK);
    assert_true(fixture->port > 0);
    open_channel(fixture);
}

static void teardown(struct fixture *fixture)
{
    if (fixture->client != fixture->server) {
        fixture->client->ops->destroy(fixture->client);
    }
    fixture->server->ops->destroy(fixture->server);
}

static void turn(struct fixture *fixture)
{
    struct pp_clock clock = pp_clock_system();
    fixture->server->ops->poll(fixture->server, pp_clock_now_us(&clock) + 1000);
    if (fixture->client != fixture->server) {
        fixture->client->ops->poll(fixture->client, pp_clock_now_us(&clock) + 1000);
    }
}

#define WAIT_FOR(fixture, condition)                                                               \
    do {                                                                                           \
        struct pp_clock clock_ = pp_clock_system();                                                \
        uint64_t end_us_ = pp_clock_now_us(&clock_) + WAIT_US;                                     \
        while (!(condition) && pp_clock_now_us(&clock_) < end_us_) {                               \
            turn(fixture);                                                                         \
        }                                                                                          \
        assert_true(condition);                                                                    \
    } while (0)

static void start(struct fixture *fixture, const char *path, enum pp_call_kind kind,
                  uint64_t deadline_us)
{
    struct side *side = &fixture->calling;
    memset(side, 0, sizeof(*side));
    side->transport = fixture->client;
    side->keep_receiving = true;
    assert_int_equal(fixture->client->ops->call_start(fixture->channel, path, kind, deadline_us,
                                                      &side_events, side, &side->call),
                     PP_OK);
    fixture->client->ops->call_receive(side->call);
}

static enum pp_status say(struct side *side, const char *text, bool last)
{
    return side->transport->ops->call_send(side->call, text, strlen(text), NULL, last);
}

static void finish(struct side *side, enum pp_status status, const char *message)
{
    side->transport->ops->call_finish(side->call, status, message, 0);
}

static void answer_once(struct fixture *fixture, struct pp_message *message)
{
    (void)message;
    char text[80];
    snprintf(text, sizeof(text), "re: %s", fixture->served.text);
    assert_int_equal(say(&fixture->served, text, false), PP_OK);
    finish(&fixture->served, PP_OK, NULL);
}

static void echo(struct fixture *fixture, struct pp_message *message)
{
    (void)message;
    assert_int_equal(say(&fixture->served, fixture->served.text, false), PP_OK);
}

static void unary_call_gets_one_answer_and_ok(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    fixture.on_message = answer_once;
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(say(&fixture.calling, "hello", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_OK);
    assert_int_equal(fixture.calling.messages, 1);
    assert_string_equal(fixture.calling.text, "re: hello");
    assert_int_equal(fixture.served.status, PP_OK);
    assert_false(fixture.calling.order_broken || fixture.served.order_broken);
    teardown(&fixture);
}

static void failed_call_carries_reason_message_and_retry_time(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    start(&fixture, "/test.Service/Refusing", PP_CALL_UNARY, 0);
    assert_int_equal(say(&fixture.calling, "x", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_QUOTA);
    assert_string_equal(fixture.calling.end_text, "no more for you");
    assert_int_equal(fixture.calling.retry_after_ms, 1234);
    assert_int_equal(fixture.calling.messages, 0);
    teardown(&fixture);
}

static void unknown_method_is_unimplemented(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    start(&fixture, "/test.Service/Nothing", PP_CALL_UNARY, 0);
    assert_int_equal(say(&fixture.calling, "x", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_UNIMPLEMENTED);
    assert_int_equal(fixture.opened, 0);
    teardown(&fixture);
}

static void stream_forty(struct fixture *fixture, struct pp_message *message)
{
    (void)message;
    for (int i = 0; i < 40; ++i) {
        char text[16];
        snprintf(text, sizeof(text), "%d", i);
        assert_int_equal(say(&fixture->served, text, false), PP_OK);
    }
    finish(&fixture->served, PP_OUT_OF_RANGE, "forty is all");
}

static void server_stream_delivers_all_messages_before_its_status(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    fixture.on_message = stream_forty;
    start(&fixture, "/test.Service/Stream", PP_CALL_SERVER_STREAM, 0);
    assert_int_equal(say(&fixture.calling, "go", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.messages, 40);
    assert_string_equal(fixture.calling.text, "39");
    assert_int_equal(fixture.calling.status, PP_OUT_OF_RANGE);
    assert_false(fixture.calling.order_broken);
    teardown(&fixture);
}

static void bidi_stream_echoes_and_half_close_reaches_the_server(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    fixture.on_message = echo;
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    for (size_t i = 1; i <= 20; ++i) {
        assert_int_equal(say(&fixture.calling, "ping", false), PP_OK);
        WAIT_FOR(&fixture, fixture.calling.messages == i);
    }
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, NULL, 0, NULL, true),
                     PP_OK);
    WAIT_FOR(&fixture, fixture.served.half_closed);
    assert_int_equal(fixture.served.messages, 20);
    assert_false(fixture.calling.ended);
    finish(&fixture.served, PP_OK, NULL);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_OK);
    teardown(&fixture);
}

struct released {
    _Atomic int count;
};

static void count_release(void *context)
{
    struct released *released = context;
    ++released->count;
}

static void sixteen_mebibytes_travel_uncopied_and_are_released_once(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    fixture.on_message = answer_once;
    size_t bytes = (16u << 20) - 16;
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; ++i) {
        data[i] = (uint8_t)(i * 2654435761u >> 24);
        sum += data[i];
    }
    struct released released = {0};
    struct pp_payload payload = {data, bytes, count_release, &released};
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, "0123456789abcdef", 16,
                                                    &payload, true),
                     PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_OK);
    assert_int_equal(fixture.served.bytes, bytes + 16);
    for (const char *at = "0123456789abcdef"; *at != '\0'; ++at) {
        sum += (uint8_t)*at;
    }
    assert_true(fixture.served.sum == sum);
    teardown(&fixture);
    assert_int_equal(released.count, 1);
    free(data);
}

static void message_above_the_limit_is_refused_by_its_sender(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 4096);
    uint8_t data[4096] = {0};
    struct released released = {0};
    struct pp_payload payload = {data, sizeof(data), count_release, &released};
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, "x", 1, &payload, true),
                     PP_MESSAGE_TOO_LARGE);
    assert_int_equal(released.count, 0);
    teardown(&fixture);
    assert_int_equal(released.count, 0);
    assert_true(fixture.calling.ended);
}

static void message_above_the_limit_is_refused_by_its_receiver_with_the_limit_named(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 4096);
    uint8_t *data = calloc(1, 100000);
    struct pp_payload payload = {data, 100000, NULL, NULL};
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, NULL, 0, &payload, false),
                     PP_OK);
    free(data);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_MESSAGE_TOO_LARGE);
    assert_non_null(strstr(fixture.calling.end_text, "max_bytes 4096"));
    assert_int_equal(fixture.served.messages, 0);
    assert_int_equal(fixture.served.status, PP_MESSAGE_TOO_LARGE);
    teardown(&fixture);
}

static void message_far_above_the_limit_is_cut_off(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 4096);
    uint8_t *data = calloc(1, 8u << 20);
    struct pp_payload payload = {data, 8u << 20, NULL, NULL};
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, NULL, 0, &payload, false),
                     PP_OK);
    free(data);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_not_equal(fixture.calling.status, PP_OK);
    assert_int_equal(fixture.served.messages, 0);
    teardown(&fixture);
}

static void call_ends_at_its_deadline_on_both_sides(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    struct pp_clock clock = pp_clock_system();
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, pp_clock_now_us(&clock) + 100000);
    assert_int_equal(say(&fixture.calling, "nobody answers", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_DEADLINE_EXCEEDED);
    assert_int_equal(fixture.served.status, PP_CANCELLED);
    teardown(&fixture);
}

static void deadline_in_the_past_ends_a_call_that_sent_nothing(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 1);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_DEADLINE_EXCEEDED);
    teardown(&fixture);
}

static void client_cancel_ends_both_sides_and_is_no_half_close(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
    WAIT_FOR(&fixture, fixture.served.messages == 1);
    fixture.client->ops->call_cancel(fixture.calling.call);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_CANCELLED);
    assert_int_equal(fixture.served.status, PP_CANCELLED);
    assert_false(fixture.served.half_closed);
    teardown(&fixture);
}

static void cancel_of_an_unsent_unary_call_ends_it(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    fixture.client->ops->call_cancel(fixture.calling.call);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_CANCELLED);
    assert_int_equal(fixture.opened, 0);
    teardown(&fixture);
}

static void server_cancel_ends_both_sides(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
    WAIT_FOR(&fixture, fixture.served.messages == 1);
    fixture.server->ops->call_cancel(fixture.served.call);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_CANCELLED);
    assert_int_equal(fixture.served.status, PP_CANCELLED);
    teardown(&fixture);
}

static void channel_close_ends_its_calls_before_it_returns(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
    WAIT_FOR(&fixture, fixture.served.messages == 1);
    fixture.client->ops->channel_close(fixture.channel);
    assert_true(fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_CANCELLED);
    WAIT_FOR(&fixture, fixture.served.ended);
    assert_int_equal(fixture.served.status, PP_CANCELLED);
    teardown(&fixture);
}

static void server_stop_ends_open_streams_and_the_port_serves_again(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    fixture.on_message = echo;
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.messages == 1);
    int port = fixture.port;
    fixture.server->ops->server_stop(fixture.server);
    assert_true(fixture.served.ended);
    assert_int_equal(fixture.served.status, PP_CANCELLED);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_UNAVAILABLE);

    assert_int_equal(serve_at(&fixture, fixture.address), PP_OK);
    assert_int_equal(fixture.port, port);
    bool served = false;
    for (int i = 0; i < 1000 && !served; ++i) {
        start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
        (void)say(&fixture.calling, "again", false);
        WAIT_FOR(&fixture, fixture.calling.messages == 1 || fixture.calling.ended);
        served = fixture.calling.messages == 1;
    }
    assert_true(served);
    teardown(&fixture);
}

static void drained_server_finishes_running_calls_and_takes_no_new_ones(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    fixture.on_message = echo;
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.messages == 1);
    fixture.server->ops->server_drain(fixture.server);
    assert_int_equal(say(&fixture.calling, "y", false), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.messages == 2);

    struct pp_channel *second = NULL;
    assert_int_equal(fixture.client->ops->channel_open(fixture.client, fixture.address,
                                                       PP_CHANNEL_LATENCY, NULL, &second),
                     PP_OK);
    struct side late = {.transport = fixture.client};
    assert_int_equal(fixture.client->ops->call_start(second, "/test.Service/Bidi", PP_CALL_BIDI, 0,
                                                     &side_events, &late, &late.call),
                     PP_OK);
    WAIT_FOR(&fixture, late.ended);
    assert_int_equal(late.status, PP_UNAVAILABLE);
    assert_int_equal(fixture.opened, 1);

    finish(&fixture.served, PP_OK, NULL);
    WAIT_FOR(&fixture, fixture.calling.ended && fixture.served.ended);
    assert_int_equal(fixture.calling.status, PP_OK);
    fixture.server->ops->server_stop(fixture.server);
    teardown(&fixture);
}

static void vanished_client_ends_the_servers_call(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
    WAIT_FOR(&fixture, fixture.served.messages == 1);
    fixture.client->ops->destroy(fixture.client);
    assert_true(fixture.calling.ended);
    fixture.client = fixture.server;
    WAIT_FOR(&fixture, fixture.served.ended);
    assert_int_equal(fixture.served.status, PP_CANCELLED);
    assert_false(fixture.served.half_closed);
    teardown(&fixture);
}

static void nobody_listening_is_unavailable(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    fixture.server->ops->server_stop(fixture.server);
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(say(&fixture.calling, "x", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_UNAVAILABLE);
    teardown(&fixture);
}

static void taken_port_and_taken_socket_are_unavailable(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    struct pp_server_config config = {
        .address = fixture.address, .methods = methods, .method_count = 1, .context = &fixture};
    int port = 0;
    assert_int_equal(fixture.client->ops->server_start(fixture.client, &config, &port),
                     PP_UNAVAILABLE);
    fixture.server->ops->server_stop(fixture.server);

    char address[64];
    snprintf(address, sizeof(address), "unix:/tmp/pp_grpc_test_%d", (int)getpid());
    assert_int_equal(serve_at(&fixture, address), PP_OK);
    assert_int_equal(fixture.port, 0);
    config.address = address;
    assert_int_equal(fixture.client->ops->server_start(fixture.client, &config, &port),
                     PP_UNAVAILABLE);
    teardown(&fixture);
    unlink(address + 5);
}

static void unix_socket_carries_calls(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    fixture.server->ops->server_stop(fixture.server);
    char address[64];
    snprintf(address, sizeof(address), "unix:/tmp/pp_grpc_test_%d", (int)getpid());
    assert_int_equal(serve_at(&fixture, address), PP_OK);
    fixture.client->ops->channel_close(fixture.channel);
    assert_int_equal(fixture.client->ops->channel_open(fixture.client, address, PP_CHANNEL_BULK,
                                                       NULL, &fixture.channel),
                     PP_OK);
    fixture.on_message = answer_once;
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(say(&fixture.calling, "hello", true), PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_OK);
    teardown(&fixture);
    unlink(address + 5);
}

static void full_send_queue_says_queue_and_then_writable(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    start(&fixture, "/test.Service/Deaf", PP_CALL_BIDI, 0);
    size_t bytes = 1u << 20;
    uint8_t *data = calloc(1, bytes);
    struct released released = {0};
    struct pp_payload payload = {data, bytes, count_release, &released};
    int accepted = 0;
    enum pp_status status = PP_OK;
    /* Polling in between lets gRPC take what the window allows; then the queue fills. */
    while (status == PP_OK && accepted < 1000) {
        status = fixture.client->ops->call_send(fixture.calling.call, "h", 1, &payload, false);
        accepted += status == PP_OK ? 1 : 0;
        turn(&fixture);
    }
    assert_int_equal(status, PP_QUEUE);
    assert_true(accepted >= (int)PP_SEND_QUEUE_MAX);
    assert_int_equal(fixture.calling.writable, 0);

    fixture.served.keep_receiving = true;
    fixture.server->ops->call_receive(fixture.served.call);
    WAIT_FOR(&fixture, fixture.calling.writable == 1);
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, "h", 1, &payload, true),
                     PP_OK);
    WAIT_FOR(&fixture, fixture.served.half_closed);
    assert_int_equal(fixture.served.messages, accepted + 1);
    teardown(&fixture);
    assert_int_equal(released.count, accepted + 1);
    free(data);
}

static void unsent_messages_are_released_when_the_call_ends(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    fixture.server->ops->server_stop(fixture.server);
    start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
    uint8_t data[100] = {0};
    struct released released = {0};
    struct pp_payload payload = {data, sizeof(data), count_release, &released};
    for (int i = 0; i < 30; ++i) {
        assert_int_equal(
            fixture.client->ops->call_send(fixture.calling.call, "h", 1, &payload, false), PP_OK);
    }
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_UNAVAILABLE);
    teardown(&fixture);
    assert_int_equal(released.count, 30);
}

static void server_takes_calls_beyond_the_armed_requests(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, true, 0);
    enum { CALLS = 200 };
    static struct side sides[CALLS];
    memset(sides, 0, sizeof(sides));
    for (int i = 0; i < CALLS; ++i) {
        sides[i].transport = fixture.client;
        assert_int_equal(fixture.client->ops->call_start(fixture.channel, "/test.Service/Refusing",
                                                         PP_CALL_UNARY, 0, &side_events, &sides[i],
                                                         &sides[i].call),
                         PP_OK);
        assert_int_equal(say(&sides[i], "x", true), PP_OK);
    }
    for (int i = 0; i < CALLS; ++i) {
        WAIT_FOR(&fixture, sides[i].ended);
        assert_int_equal(sides[i].status, PP_QUOTA);
    }
    assert_int_equal(fixture.opened, CALLS);
    teardown(&fixture);
}

struct waker {
    struct pp_transport *transport;
    _Atomic int polls;
    _Atomic bool stop;
};

static void *wake_after_each_poll(void *context)
{
    struct waker *waker = context;
    int seen = -1;
    while (!waker->stop) {
        int polls = waker->polls;
        if (polls != seen) {
            seen = polls;
            waker->transport->ops->wake(waker->transport);
        }
    }
    return NULL;
}

static void wake_from_another_thread_ends_every_poll(void **state)
{
    (void)state;
    struct pp_transport *transport = make_transport(0);
    struct pp_clock clock = pp_clock_system();
    struct waker waker = {.transport = transport};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wake_after_each_poll, &waker), 0);
    uint64_t begin_us = pp_clock_now_us(&clock);
    for (int i = 0; i < 300; ++i) {
        ++waker.polls;
        assert_int_equal(transport->ops->poll(transport, UINT64_MAX), 0);
    }
    assert_true(pp_clock_now_us(&clock) - begin_us < WAIT_US);
    waker.stop = true;
    pthread_join(thread, NULL);
    transport->ops->destroy(transport);
}

static void *release_message(void *context)
{
    pp_message_release(context);
    return NULL;
}

static struct pp_message *kept_message;

static void keep_message(void *context, struct pp_call *call, struct pp_message *message)
{
    (void)call;
    struct side *side = context;
    ++side->messages;
    kept_message = message;
}

static void message_may_be_released_on_another_thread_after_its_call(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    fixture.on_message = answer_once;
    struct pp_call_events events = side_events;
    events.message = keep_message;
    struct side *side = &fixture.calling;
    side->transport = fixture.client;
    assert_int_equal(fixture.client->ops->call_start(fixture.channel, "/test.Service/Unary",
                                                     PP_CALL_UNARY, 0, &events, side, &side->call),
                     PP_OK);
    fixture.client->ops->call_receive(side->call);
    assert_int_equal(say(side, "x", true), PP_OK);
    WAIT_FOR(&fixture, side->ended);
    assert_int_equal(kept_message->bytes, 5);
    assert_memory_equal(kept_message->pieces[0].data, "re: x", 5);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, release_message, kept_message), 0);
    pthread_join(thread, NULL);
    teardown(&fixture);
}

static void poll_returns_at_its_time_without_events(void **state)
{
    (void)state;
    struct pp_transport *transport = make_transport(0);
    struct pp_clock clock = pp_clock_system();
    uint64_t until_us = pp_clock_now_us(&clock) + 20000;
    assert_int_equal(transport->ops->poll(transport, until_us), 0);
    assert_true(pp_clock_now_us(&clock) >= until_us);
    transport->ops->destroy(transport);
}

static void destroy_with_everything_open_gives_all_back(void **state)
{
    (void)state;
    for (int i = 0; i < 20; ++i) {
        struct fixture fixture;
        setup_with(&fixture, i % 2 == 0, 0);
        fixture.on_message = echo;
        start(&fixture, "/test.Service/Bidi", PP_CALL_BIDI, 0);
        assert_int_equal(say(&fixture.calling, "x", false), PP_OK);
        for (int j = 0; j < i; ++j) {
            turn(&fixture);
        }
        teardown(&fixture);
        assert_true(fixture.calling.ended);
        assert_true(fixture.served.ended || fixture.opened == 0);
    }
}

int main(void)
{
    pp_log_configure(PP_LOG_OFF, PP_LOG_TEXT);
    alarm(240);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unary_call_gets_one_answer_and_ok),
        cmocka_unit_test(failed_call_carries_reason_message_and_retry_time),
        cmocka_unit_test(unknown_method_is_unimplemented),
        cmocka_unit_test(server_stream_delivers_all_messages_before_its_status),
        cmocka_unit_test(bidi_stream_echoes_and_half_close_reaches_the_server),
        cmocka_unit_test(sixteen_mebibytes_travel_uncopied_and_are_released_once),
        cmocka_unit_test(message_above_the_limit_is_refused_by_its_sender),
        cmocka_unit_test(message_above_the_limit_is_refused_by_its_receiver_with_the_limit_named),
        cmocka_unit_test(message_far_above_the_limit_is_cut_off),
        cmocka_unit_test(call_ends_at_its_deadline_on_both_sides),
        cmocka_unit_test(deadline_in_the_past_ends_a_call_that_sent_nothing),
        cmocka_unit_test(client_cancel_ends_both_sides_and_is_no_half_close),
        cmocka_unit_test(cancel_of_an_unsent_unary_call_ends_it),
        cmocka_unit_test(server_cancel_ends_both_sides),
        cmocka_unit_test(channel_close_ends_its_calls_before_it_returns),
        cmocka_unit_test(server_stop_ends_open_streams_and_the_port_serves_again),
        cmocka_unit_test(drained_server_finishes_running_calls_and_takes_no_new_ones),
        cmocka_unit_test(vanished_client_ends_the_servers_call),
        cmocka_unit_test(nobody_listening_is_unavailable),
        cmocka_unit_test(taken_port_and_taken_socket_are_unavailable),
        cmocka_unit_test(unix_socket_carries_calls),
        cmocka_unit_test(full_send_queue_says_queue_and_then_writable),
        cmocka_unit_test(unsent_messages_are_released_when_the_call_ends),
        cmocka_unit_test(server_takes_calls_beyond_the_armed_requests),
        cmocka_unit_test(wake_from_another_thread_ends_every_poll),
        cmocka_unit_test(message_may_be_released_on_another_thread_after_its_call),
        cmocka_unit_test(poll_returns_at_its_time_without_events),
        cmocka_unit_test(destroy_with_everything_open_gives_all_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
