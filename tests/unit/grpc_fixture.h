/*
 * What the tests of the gRPC transport share: two sides of a call that note what happens to them, a
 * server whose behaviour the test chooses, and waits that fail after 20 s. Included by one file a
 * program.
 */
#ifndef PIGPEN_TESTS_UNIT_GRPC_FIXTURE_H
#define PIGPEN_TESTS_UNIT_GRPC_FIXTURE_H

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

static inline void side_message(void *context, struct pp_call *call, struct pp_message *message)
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

static inline void side_writable(void *context, struct pp_call *call)
{
    (void)call;
    struct side *side = context;
    side->order_broken |= side->ended;
    ++side->writable;
}

static inline void side_half_closed(void *context, struct pp_call *call)
{
    (void)call;
    struct side *side = context;
    side->order_broken |= side->ended;
    side->half_closed = true;
}

static inline void side_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
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

static inline void opened(void *context, struct pp_call *call)
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
static inline void opened_deaf(void *context, struct pp_call *call)
{
    struct fixture *fixture = context;
    ++fixture->opened;
    memset(&fixture->served, 0, sizeof(fixture->served));
    fixture->served.transport = fixture->server;
    fixture->served.call = call;
    fixture->server->ops->call_accept(call, &side_events, &fixture->served);
}

static inline void opened_refusing(void *context, struct pp_call *call)
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

static inline struct pp_transport *make_transport(uint64_t message_bytes_max)
{
    struct pp_grpc_config config = {
        .clock = pp_clock_system(), .spin_us = 50, .message_bytes_max = message_bytes_max};
    struct pp_transport *transport = NULL;
    assert_int_equal(pp_grpc_transport_new(&config, &transport), PP_OK);
    return transport;
}

static inline enum pp_status serve_at(struct fixture *fixture, const char *address)
{
    struct pp_server_config config = {.address = address,
                                      .methods = methods,
                                      .method_count = sizeof(methods) / sizeof(methods[0]),
                                      .context = fixture};
    return fixture->server->ops->server_start(fixture->server, &config, &fixture->port);
}

static inline void open_channel(struct fixture *fixture)
{
    snprintf(fixture->address, sizeof(fixture->address), "127.0.0.1:%d", fixture->port);
    assert_int_equal(fixture->client->ops->channel_open(fixture->client, fixture->address,
                                                        PP_CHANNEL_LATENCY, NULL,
                                                        &fixture->channel),
                     PP_OK);
}

static inline void setup_with(struct fixture *fixture, bool apart, uint64_t message_bytes_max)
{
    memset(fixture, 0, sizeof(*fixture));
    current = fixture;
    fixture->server = make_transport(message_bytes_max);
    fixture->client = apart ? make_transport(0) : fixture->server;
    assert_int_equal(serve_at(fixture, "127.0.0.1:0"), PP_OK);
    assert_true(fixture->port > 0);
    open_channel(fixture);
}

static inline void teardown(struct fixture *fixture)
{
    if (fixture->client != fixture->server) {
        fixture->client->ops->destroy(fixture->client);
    }
    fixture->server->ops->destroy(fixture->server);
}

static inline void turn(struct fixture *fixture)
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

static inline void start(struct fixture *fixture, const char *path, enum pp_call_kind kind,
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

static inline enum pp_status say(struct side *side, const char *text, bool last)
{
    return side->transport->ops->call_send(side->call, text, strlen(text), NULL, last);
}

static inline void finish(struct side *side, enum pp_status status, const char *message)
{
    side->transport->ops->call_finish(side->call, status, message, 0);
}

static inline void answer_once(struct fixture *fixture, struct pp_message *message)
{
    (void)message;
    char text[80];
    snprintf(text, sizeof(text), "re: %s", fixture->served.text);
    assert_int_equal(say(&fixture->served, text, false), PP_OK);
    finish(&fixture->served, PP_OK, NULL);
}

static inline void echo(struct fixture *fixture, struct pp_message *message)
{
    (void)message;
    assert_int_equal(say(&fixture->served, fixture->served.text, false), PP_OK);
}

struct released {
    _Atomic int count;
};

static inline void count_release(void *context)
{
    struct released *released = context;
    ++released->count;
}

#endif
