/*
 * The gRPC transport against itself over loopback: stopping, vanishing, restarts, full queues and
 * other threads.
 */
#include "tests/unit/grpc_fixture.h"

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
    struct pp_payload payload = {data, bytes, count_release, &released, NULL};
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
    struct pp_payload payload = {data, sizeof(data), count_release, &released, NULL};
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
