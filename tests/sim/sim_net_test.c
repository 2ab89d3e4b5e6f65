/*
 * The simulated network keeps the promises of the transport, breaks as a network would, and does
 * the same again for the same seed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/rng.h"
#include "tests/sim/sim_net.h"

#define SECOND UINT64_C(1000000)

struct side {
    struct pp_transport *transport;
    struct pp_call *call;
    bool keep_receiving;
    bool echo;
    int messages;
    char text[32];
    bool half_closed;
    int writable;
    bool ended;
    enum pp_status status;
    uint64_t retry_after_ms;
    uint64_t ended_us;
};

struct world {
    struct pp_sim_net *net;
    struct pp_transport *node;
    struct pp_transport *worker;
    struct pp_channel *channel;
    struct side served;
    struct side calling;
    int opened;
    bool deaf;
};

static uint64_t now(const struct pp_transport *transport)
{
    return pp_clock_now_us(&transport->clock);
}

static void on_message(void *context, struct pp_call *call, struct pp_message *message)
{
    struct side *side = context;
    ++side->messages;
    size_t filled = 0;
    for (size_t i = 0; i < message->piece_count; ++i) {
        for (size_t j = 0; j < message->pieces[i].bytes && filled < sizeof(side->text) - 1; ++j) {
            side->text[filled++] = (char)message->pieces[i].data[j];
        }
    }
    side->text[filled] = '\0';
    pp_message_release(message);
    if (side->echo) {
        (void)side->transport->ops->call_send(call, side->text, filled, NULL, false);
    }
    if (side->keep_receiving) {
        side->transport->ops->call_receive(call);
    }
}

static void on_writable(void *context, struct pp_call *call)
{
    (void)call;
    ++((struct side *)context)->writable;
}

static void on_half_closed(void *context, struct pp_call *call)
{
    struct side *side = context;
    side->half_closed = true;
    if (side->echo) {
        side->transport->ops->call_finish(call, PP_QUOTA, "done", 7);
    }
}

static void on_ended(void *context, struct pp_call *call, const struct pp_call_end *end)
{
    (void)call;
    struct side *side = context;
    assert_false(side->ended);
    side->ended = true;
    side->status = end->status;
    side->retry_after_ms = end->retry_after_ms;
    side->ended_us = now(side->transport);
    side->call = NULL;
}

static const struct pp_call_events events = {.message = on_message,
                                             .writable = on_writable,
                                             .half_closed = on_half_closed,
                                             .ended = on_ended};

static void on_opened(void *context, struct pp_call *call)
{
    struct world *world = context;
    ++world->opened;
    world->served = (struct side){.transport = world->node,
                                  .call = call,
                                  .echo = !world->deaf,
                                  .keep_receiving = !world->deaf};
    world->node->ops->call_accept(call, &events, &world->served);
    assert_string_equal(world->node->ops->call_peer(call), "sim:worker");
    if (!world->deaf) {
        world->node->ops->call_receive(call);
    }
}

static bool node_step(void *context)
{
    struct world *world = context;
    return world->node->ops->poll(world->node, now(world->node)) != 0;
}

static void node_start(struct world *world)
{
    static const struct pp_method methods[] = {{"/s/Bidi", PP_CALL_BIDI, on_opened},
                                               {"/s/Unary", PP_CALL_UNARY, on_opened}};
    world->node = pp_sim_transport_new(world->net, "node");
    pp_sim_process(world->node, node_step, world);
    struct pp_server_config config = {
        .address = "node:7450", .methods = methods, .method_count = 2, .context = world};
    int port = 0;
    assert_int_equal(world->node->ops->server_start(world->node, &config, &port), PP_OK);
    assert_int_equal(port, 7450);
}

static void world_init(struct world *world, uint64_t seed, double break_rate)
{
    memset(world, 0, sizeof(*world));
    world->net = pp_sim_net_new(&(struct pp_sim_config){
        .seed = seed, .delay_us_min = 20, .delay_us_max = 400, .break_rate = break_rate});
    node_start(world);
    world->worker = pp_sim_transport_new(world->net, "worker");
    assert_int_equal(world->worker->ops->channel_open(world->worker, "node:7450",
                                                      PP_CHANNEL_LATENCY, NULL, &world->channel),
                     PP_OK);
}

static void world_deinit(struct world *world)
{
    world->worker->ops->destroy(world->worker);
    world->node->ops->destroy(world->node);
    pp_sim_net_destroy(world->net);
}

static void start(struct world *world, const char *path, enum pp_call_kind kind,
                  uint64_t deadline_us)
{
    world->calling = (struct side){.transport = world->worker, .keep_receiving = true};
    assert_int_equal(world->worker->ops->call_start(world->channel, path, kind, deadline_us,
                                                    &events, &world->calling, &world->calling.call),
                     PP_OK);
    world->worker->ops->call_receive(world->calling.call);
}

static enum pp_status say(struct side *side, const char *text, bool last)
{
    return side->transport->ops->call_send(side->call, text, strlen(text), NULL, last);
}

/* Polls the worker until the flag or count is there, one simulated minute at most. */
#define WAIT_FOR(world, condition)                                                                 \
    do {                                                                                           \
        uint64_t end_us_ = now((world)->worker) + 60 * SECOND;                                     \
        while (!(condition) && now((world)->worker) < end_us_) {                                   \
            (world)->worker->ops->poll((world)->worker, now((world)->worker) + 1000);              \
        }                                                                                          \
        assert_true(condition);                                                                    \
    } while (0)

static void stream_echoes_in_order_and_ends_with_its_status(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 1, 0);
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    for (int i = 0; i < 50; ++i) {
        char text[16];
        snprintf(text, sizeof(text), "message %d", i);
        assert_int_equal(say(&world.calling, text, i == 49), PP_OK);
    }
    WAIT_FOR(&world, world.calling.ended);
    assert_int_equal(world.calling.messages, 50);
    assert_string_equal(world.calling.text, "message 49");
    assert_int_equal(world.calling.status, PP_QUOTA);
    assert_int_equal(world.calling.retry_after_ms, 7);
    assert_int_equal(world.served.status, PP_OK);
    world_deinit(&world);
}

static void unknown_method_and_unknown_address_are_told(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 2, 0);
    start(&world, "/s/Nothing", PP_CALL_UNARY, 0);
    assert_int_equal(say(&world.calling, "x", true), PP_OK);
    WAIT_FOR(&world, world.calling.ended);
    assert_int_equal(world.calling.status, PP_UNIMPLEMENTED);
    world.node->ops->server_stop(world.node);
    start(&world, "/s/Unary", PP_CALL_UNARY, 0);
    assert_int_equal(say(&world.calling, "x", true), PP_OK);
    WAIT_FOR(&world, world.calling.ended);
    assert_int_equal(world.calling.status, PP_UNAVAILABLE);
    assert_int_equal(world.opened, 0);
    world_deinit(&world);
}

static void deadline_is_kept_to_the_microsecond(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 3, 0);
    world.deaf = true;
    uint64_t deadline_us = now(world.worker) + 123456;
    start(&world, "/s/Unary", PP_CALL_UNARY, deadline_us);
    assert_int_equal(say(&world.calling, "x", true), PP_OK);
    WAIT_FOR(&world, world.calling.ended && world.served.ended);
    assert_int_equal(world.calling.status, PP_DEADLINE_EXCEEDED);
    assert_true(world.calling.ended_us == deadline_us);
    assert_int_equal(world.served.status, PP_CANCELLED);
    world_deinit(&world);
}

static void cancel_by_either_side_ends_both(void **state)
{
    (void)state;
    for (int by_server = 0; by_server < 2; ++by_server) {
        struct world world;
        world_init(&world, 4, 0);
        start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
        assert_int_equal(say(&world.calling, "x", false), PP_OK);
        WAIT_FOR(&world, world.calling.messages == 1);
        struct side *by = by_server ? &world.served : &world.calling;
        by->transport->ops->call_cancel(by->call);
        WAIT_FOR(&world, world.calling.ended && world.served.ended);
        assert_int_equal(world.calling.status, PP_CANCELLED);
        assert_int_equal(world.served.status, PP_CANCELLED);
        assert_false(world.served.half_closed);
        world_deinit(&world);
    }
}

static void crashed_node_is_seen_and_its_successor_serves(void **state)
{
    (void)state;
    for (int silent = 0; silent < 2; ++silent) {
        struct world world;
        world_init(&world, 5, 0);
        start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
        assert_int_equal(say(&world.calling, "x", false), PP_OK);
        WAIT_FOR(&world, world.calling.messages == 1);
        uint64_t crash_us = now(world.worker);
        struct pp_transport *old = world.node;
        pp_sim_crash(old, silent != 0);
        WAIT_FOR(&world, world.calling.ended);
        assert_int_equal(world.calling.status, PP_UNAVAILABLE);
        uint64_t noticed_us = world.calling.ended_us - crash_us;
        assert_true(silent ? noticed_us >= PP_SIM_KEEPALIVE_US : noticed_us < 10000);
        assert_false(world.served.ended);
        old->ops->destroy(old);
        node_start(&world);
        start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
        assert_int_equal(say(&world.calling, "again", false), PP_OK);
        WAIT_FOR(&world, world.calling.messages == 1);
        assert_string_equal(world.calling.text, "again");
        world_deinit(&world);
    }
}

static void cut_link_holds_messages_and_breaks_when_it_lasts(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 6, 0);
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&world.calling, "a", false), PP_OK);
    WAIT_FOR(&world, world.calling.messages == 1);
    pp_sim_link_cut(world.net, "worker", "node", true);
    assert_int_equal(say(&world.calling, "b", false), PP_OK);
    pp_sim_net_run(world.net, now(world.worker) + 5 * SECOND, NULL, NULL);
    assert_int_equal(world.served.messages, 1);
    pp_sim_link_cut(world.net, "node", "worker", false);
    WAIT_FOR(&world, world.calling.messages == 2);
    pp_sim_link_cut(world.net, "worker", "node", true);
    WAIT_FOR(&world, world.calling.ended && world.served.ended);
    assert_int_equal(world.calling.status, PP_UNAVAILABLE);
    assert_int_equal(world.served.status, PP_CANCELLED);
    world_deinit(&world);
}

static void paused_node_answers_after_it_goes_on(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 7, 0);
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    pp_sim_pause(world.node, true);
    assert_int_equal(say(&world.calling, "x", false), PP_OK);
    pp_sim_net_run(world.net, now(world.worker) + 2 * SECOND, NULL, NULL);
    assert_int_equal(world.opened, 0);
    pp_sim_pause(world.node, false);
    WAIT_FOR(&world, world.calling.messages == 1);
    world_deinit(&world);
}

struct released {
    int count;
};

static void count_release(void *context)
{
    ++((struct released *)context)->count;
}

static void full_queue_says_queue_then_writable_and_releases_each_payload_once(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 8, 0);
    world.deaf = true;
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    size_t bytes = 1u << 20;
    uint8_t *data = calloc(1, bytes);
    struct released released = {0};
    struct pp_payload payload = {data, bytes, count_release, &released, NULL};
    int accepted = 0;
    enum pp_status status = PP_OK;
    while (status == PP_OK && accepted < 1000) {
        status = world.worker->ops->call_send(world.calling.call, "h", 1, &payload, false);
        accepted += status == PP_OK ? 1 : 0;
        world.worker->ops->poll(world.worker, now(world.worker) + 1000);
    }
    assert_int_equal(status, PP_QUEUE);
    assert_int_equal(world.calling.writable, 0);
    world.served.keep_receiving = true;
    world.node->ops->call_receive(world.served.call);
    WAIT_FOR(&world, world.calling.writable == 1);
    assert_int_equal(world.worker->ops->call_send(world.calling.call, "h", 1, &payload, true),
                     PP_OK);
    WAIT_FOR(&world, world.served.half_closed);
    assert_int_equal(world.served.messages, accepted + 1);
    world_deinit(&world);
    assert_int_equal(released.count, accepted + 1);
    free(data);
}

static void stop_and_close_end_calls_before_they_return(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 9, 0);
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    assert_int_equal(say(&world.calling, "x", false), PP_OK);
    WAIT_FOR(&world, world.calling.messages == 1);
    world.node->ops->server_stop(world.node);
    assert_true(world.served.ended);
    WAIT_FOR(&world, world.calling.ended);
    assert_int_equal(world.calling.status, PP_UNAVAILABLE);
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    world.worker->ops->channel_close(world.channel);
    assert_true(world.calling.ended);
    assert_int_equal(world.calling.status, PP_CANCELLED);
    world_deinit(&world);
}

static void wake_ends_a_poll(void **state)
{
    (void)state;
    struct world world;
    world_init(&world, 10, 0);
    world.worker->ops->wake(world.worker);
    uint64_t before_us = now(world.worker);
    assert_int_equal(world.worker->ops->poll(world.worker, UINT64_MAX), 0);
    assert_true(now(world.worker) == before_us);
    world_deinit(&world);
}

/* A client that sends numbered messages, one at a time, and starts anew where the stream breaks:
 * what was acknowledged has been received, in order, without a hole. */
static uint64_t run_lossy(uint64_t seed, int *breaks_out)
{
    struct world world;
    world_init(&world, seed, 0.02);
    int acknowledged = 0;
    int breaks = 0;
    start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
    while (acknowledged < 300) {
        char text[32];
        snprintf(text, sizeof(text), "%d", acknowledged);
        int before = world.calling.messages;
        enum pp_status status =
            world.calling.ended ? PP_CANCELLED : say(&world.calling, text, false);
        if (status == PP_OK) {
            WAIT_FOR(&world, world.calling.ended || world.calling.messages > before);
        }
        if (world.calling.messages > before) {
            assert_string_equal(world.calling.text, text);
            ++acknowledged;
        } else if (world.calling.ended) {
            assert_int_equal(world.calling.status, PP_UNAVAILABLE);
            ++breaks;
            start(&world, "/s/Bidi", PP_CALL_BIDI, 0);
        } else {
            world.worker->ops->poll(world.worker, now(world.worker) + 1000);
        }
    }
    uint64_t digest = pp_sim_net_digest(world.net);
    world_deinit(&world);
    *breaks_out = breaks;
    return digest;
}

static void equal_seeds_give_equal_runs_and_breaks_happen(void **state)
{
    (void)state;
    uint64_t first = 0;
    int breaks_all = 0;
    for (uint64_t seed = 100; seed < 110; ++seed) {
        int breaks = 0;
        int again = 0;
        uint64_t digest = run_lossy(seed, &breaks);
        assert_true(digest == run_lossy(seed, &again));
        assert_int_equal(breaks, again);
        assert_true(digest != first);
        first = digest;
        breaks_all += breaks;
    }
    printf("seeds 100 to 109: %d breaks\n", breaks_all);
    assert_true(breaks_all >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stream_echoes_in_order_and_ends_with_its_status),
        cmocka_unit_test(unknown_method_and_unknown_address_are_told),
        cmocka_unit_test(deadline_is_kept_to_the_microsecond),
        cmocka_unit_test(cancel_by_either_side_ends_both),
        cmocka_unit_test(crashed_node_is_seen_and_its_successor_serves),
        cmocka_unit_test(cut_link_holds_messages_and_breaks_when_it_lasts),
        cmocka_unit_test(paused_node_answers_after_it_goes_on),
        cmocka_unit_test(full_queue_says_queue_then_writable_and_releases_each_payload_once),
        cmocka_unit_test(stop_and_close_end_calls_before_they_return),
        cmocka_unit_test(wake_ends_a_poll),
        cmocka_unit_test(equal_seeds_give_equal_runs_and_breaks_happen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
