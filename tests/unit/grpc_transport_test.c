/*
 * The gRPC transport against itself over loopback: every kind of call, and every way that one
 * side ends it.
 */
#include "tests/unit/grpc_fixture.h"

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
    struct pp_payload payload = {data, bytes, count_release, &released, NULL};
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

static void payloads_in_a_row_make_one_message_and_are_released_once_each(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 0);
    fixture.on_message = answer_once;
    static const uint8_t data[PP_PAYLOADS_MAX][2000] = {{1}, {2}, {3}, {4}};
    struct released released[PP_PAYLOADS_MAX] = {{0}};
    struct pp_payload payloads[PP_PAYLOADS_MAX];
    uint64_t sum = 'x' + 1 + 2 + 3 + 4;
    size_t bytes = 1;
    for (size_t i = 0; i < PP_PAYLOADS_MAX; ++i) {
        const struct pp_payload *next = i + 1 < PP_PAYLOADS_MAX ? &payloads[i + 1] : NULL;
        size_t count = i == 5 ? 0 : sizeof(data[i]) - i; /* an empty one is one too */
        payloads[i] = (struct pp_payload){data[i], count, count_release, &released[i], next};
        bytes += count;
    }
    assert_int_equal(pp_payload_bytes(payloads), bytes - 1);
    start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(fixture.client->ops->call_send(fixture.calling.call, "x", 1, payloads, true),
                     PP_OK);
    WAIT_FOR(&fixture, fixture.calling.ended);
    assert_int_equal(fixture.calling.status, PP_OK);
    assert_int_equal(fixture.served.bytes, bytes);
    assert_true(fixture.served.sum == sum);
    teardown(&fixture);
    for (size_t i = 0; i < PP_PAYLOADS_MAX; ++i) {
        assert_int_equal(released[i].count, 1);
    }
}

static void message_above_the_limit_is_refused_by_its_sender(void **state)
{
    (void)state;
    struct fixture fixture;
    setup_with(&fixture, false, 4096);
    uint8_t data[4096] = {0};
    struct released released = {0};
    struct pp_payload payload = {data, sizeof(data), count_release, &released, NULL};
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
    struct pp_payload payload = {data, 100000, NULL, NULL, NULL};
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
    struct pp_payload payload = {data, 8u << 20, NULL, NULL, NULL};
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

/* gRPC asks these variables in this order; nothing listens on port 1. */
static void proxies_of_the_environment_are_passed_by(void **state)
{
    (void)state;
    static const char *const names[] = {"grpc_proxy", "https_proxy", "http_proxy"};
    unsetenv("no_grpc_proxy");
    unsetenv("no_proxy");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
        struct fixture fixture;
        assert_int_equal(setenv(names[i], "http://127.0.0.1:1", 1), 0);
        setup_with(&fixture, false, 0);
        fixture.on_message = answer_once;
        start(&fixture, "/test.Service/Unary", PP_CALL_UNARY, 0);
        assert_int_equal(say(&fixture.calling, "hello", true), PP_OK);
        WAIT_FOR(&fixture, fixture.calling.ended);
        assert_int_equal(fixture.calling.status, PP_OK);
        teardown(&fixture);
        unsetenv(names[i]);
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
        cmocka_unit_test(payloads_in_a_row_make_one_message_and_are_released_once_each),
        cmocka_unit_test(message_above_the_limit_is_refused_by_its_sender),
        cmocka_unit_test(message_above_the_limit_is_refused_by_its_receiver_with_the_limit_named),
        cmocka_unit_test(message_far_above_the_limit_is_cut_off),
        cmocka_unit_test(call_ends_at_its_deadline_on_both_sides),
        cmocka_unit_test(deadline_in_the_past_ends_a_call_that_sent_nothing),
        cmocka_unit_test(client_cancel_ends_both_sides_and_is_no_half_close),
        cmocka_unit_test(cancel_of_an_unsent_unary_call_ends_it),
        cmocka_unit_test(server_cancel_ends_both_sides),
        cmocka_unit_test(channel_close_ends_its_calls_before_it_returns),
        cmocka_unit_test(proxies_of_the_environment_are_passed_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
