/*
 * The simulated network: the heap of events to come, connections, and how time goes on. Moves only
 * when polled. What goes wrong on purpose is in sim_break.c.
 */
#include "tests/sim/sim_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/limits.h"
#include "tests/sim/sim_internal.h"

/* What a message on a bulk channel takes, in delays of others. */
#define BULK_TIMES 4u
/* How late an answer comes the second time, at most. */
#define DUPLICATE_US 3000000u

uint64_t pp_sim_net_now_us(const struct pp_sim_net *net)
{
    return net->now_us;
}

uint64_t pp_sim_net_digest(const struct pp_sim_net *net)
{
    return net->digest;
}

uint64_t pp_sim_net_deliveries(const struct pp_sim_net *net)
{
    return net->deliveries;
}

uint64_t pp_sim_net_breaks(const struct pp_sim_net *net)
{
    return net->breaks;
}

uint64_t pp_sim_net_duplicates(const struct pp_sim_net *net)
{
    return net->duplicates;
}

void pp_sim_net_rates(struct pp_sim_net *net, double break_rate, double duplicate_rate)
{
    net->config.break_rate = break_rate;
    net->config.duplicate_rate = duplicate_rate;
}

void pp_sim_net_tick(struct pp_sim_net *net, uint64_t tick_us)
{
    net->config.tick_us = tick_us;
}

void pp_sim_watch(struct pp_sim_net *net, pp_sim_watch_fn *watch, void *context)
{
    net->watch = watch;
    net->watch_context = context;
}

void sim_pass(struct sim_endpoint *endpoint, enum pp_sim_point point)
{
    if (endpoint->net->watch != NULL) {
        endpoint->net->watch(endpoint->net->watch_context, endpoint->name, point);
    }
}

void sim_digest(struct pp_sim_net *net, uint64_t value)
{
    net->digest = pp_rng_at(net->digest ^ value, net->now_us);
}

struct pp_sim_net *pp_sim_net_new(const struct pp_sim_config *config)
{
    struct pp_sim_net *net = calloc(1, sizeof(*net));
    PP_ASSERT(net != NULL && config->delay_us_min <= config->delay_us_max);
    net->config = *config;
    net->config.tick_us = config->tick_us != 0 ? config->tick_us : 1000;
    if (config->message_bytes_max == 0) {
        net->config.message_bytes_max = PP_MESSAGE_BYTES_MAX;
    }
    net->rng.seed = config->seed;
    net->now_us = 1000000; /* zero means "none" to some users of a clock */
    net->port_next = 20000;
    return net;
}

void sim_stream_release(struct sim_stream *stream)
{
    if (--stream->refs == 0) {
        free(stream);
    }
}

static void event_drop(struct sim_event *event)
{
    if (event->item != NULL) {
        sim_item_free(event->item);
    }
    if (event->stream != NULL) {
        sim_stream_release(event->stream);
    }
}

void pp_sim_net_destroy(struct pp_sim_net *net)
{
    PP_ASSERT(net->endpoints == NULL);
    for (size_t i = 0; i < net->heap_count; ++i) {
        event_drop(&net->heap[i]);
    }
    for (size_t i = 0; i < net->held_count; ++i) {
        event_drop(&net->held[i]);
    }
    while (net->connections != NULL) {
        struct sim_connection *connection = net->connections;
        net->connections = connection->next;
        free(connection);
    }
    while (net->clocks != NULL) {
        struct sim_clock *clock = net->clocks;
        net->clocks = clock->next;
        free(clock);
    }
    while (net->links != NULL) {
        struct sim_link *link = net->links;
        net->links = link->next;
        free(link);
    }
    free(net->heap);
    free(net->held);
    free(net);
}

static bool earlier(const struct sim_event *a, const struct sim_event *b)
{
    return a->at_us != b->at_us ? a->at_us < b->at_us : a->sequence < b->sequence;
}

static void grow(struct sim_event **list, size_t count, size_t *capacity)
{
    if (count < *capacity) {
        return;
    }
    *capacity = *capacity != 0 ? *capacity * 2 : 256;
    *list = realloc(*list, *capacity * sizeof(**list));
    PP_ASSERT(*list != NULL);
}

void sim_heap_push(struct pp_sim_net *net, const struct sim_event *event)
{
    grow(&net->heap, net->heap_count, &net->heap_capacity);
    size_t at = net->heap_count++;
    while (at != 0 && earlier(event, &net->heap[(at - 1) / 2])) {
        net->heap[at] = net->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    net->heap[at] = *event;
}

static struct sim_event heap_pop(struct pp_sim_net *net)
{
    struct sim_event first = net->heap[0];
    struct sim_event moved = net->heap[--net->heap_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= net->heap_count) {
            break;
        }
        if (child + 1 < net->heap_count && earlier(&net->heap[child + 1], &net->heap[child])) {
            ++child;
        }
        if (!earlier(&net->heap[child], &moved)) {
            break;
        }
        net->heap[at] = net->heap[child];
        at = child;
    }
    net->heap[at] = moved;
    return first;
}

static uint64_t draw_delay_us(struct pp_sim_net *net, const struct sim_connection *connection)
{
    const struct sim_link *link =
        sim_link_of(net, connection->names[SIM_CLIENT], connection->names[SIM_SERVER]);
    uint64_t width =
        (link->delay_us_max - link->delay_us_min) * (connection->bulk ? BULK_TIMES : 1);
    return link->delay_us_min + pp_rng_u64(&net->rng) % (width + 1);
}

struct sim_connection *sim_connection_new(struct pp_sim_net *net, struct sim_endpoint *client,
                                          const char *server_name, bool bulk)
{
    struct sim_connection *connection = calloc(1, sizeof(*connection));
    PP_ASSERT(connection != NULL);
    connection->ends[SIM_CLIENT] = client;
    snprintf(connection->names[SIM_CLIENT], sizeof(connection->names[0]), "%s", client->name);
    snprintf(connection->names[SIM_SERVER], sizeof(connection->names[0]), "%s", server_name);
    connection->alive = true;
    connection->bulk = bulk;
    connection->gone[SIM_CLIENT] = client->cut_off;
    /* The handshake: there and back before the first message leaves. */
    uint64_t ready_us = net->now_us + draw_delay_us(net, connection);
    connection->clear_us[SIM_SERVER] = ready_us + draw_delay_us(net, connection);
    connection->next = net->connections;
    net->connections = connection;
    return connection;
}

static void post_at(struct pp_sim_net *net, struct sim_event *event)
{
    event->sequence = net->sequence++;
    if (event->stream != NULL) {
        ++event->stream->refs;
    }
    sim_heap_push(net, event);
}

void sim_post_local(struct pp_sim_net *net, struct sim_stream *stream,
                    struct sim_connection *connection, enum sim_event_kind kind, int to,
                    uint64_t at_us)
{
    struct sim_event event = {
        .at_us = at_us, .kind = kind, .to = to, .stream = stream, .connection = connection};
    post_at(net, &event);
}

/* The same message once more, up to DUPLICATE_US later: out of order where others follow. */
static void post_again(struct pp_sim_net *net, const struct sim_event *event)
{
    struct sim_event again = *event;
    again.item = sim_item_copy(event->item);
    again.at_us += pp_rng_u64(&net->rng) % DUPLICATE_US;
    event->stream->unread[event->to] += sim_item_bytes(again.item);
    post_at(net, &again);
    net->duplicates++;
}

void sim_post(struct pp_sim_net *net, struct sim_stream *stream, enum sim_event_kind kind, int to,
              struct sim_item *item, const struct sim_end *end)
{
    struct sim_connection *connection = stream->connection;
    if (connection->gone[1 - to]) {
        if (item != NULL) {
            sim_item_free(item);
        }
        return;
    }
    uint64_t at_us = net->now_us + draw_delay_us(net, connection);
    if (at_us < connection->clear_us[to]) {
        at_us = connection->clear_us[to];
    }
    connection->clear_us[to] = at_us;
    struct sim_event event = {.at_us = at_us,
                              .kind = kind,
                              .to = to,
                              .stream = stream,
                              .connection = connection,
                              .item = item};
    if (end != NULL) {
        event.end = *end;
    }
    bool breaks = kind == SIM_MESSAGE && pp_rng_uniform(&net->rng) < net->config.break_rate;
    net->breaks += breaks ? 1 : 0;
    bool before = breaks && pp_rng_u64(&net->rng) % 2 == 0;
    if (before) {
        sim_post_local(net, NULL, connection, SIM_BREAK, to, at_us);
    }
    post_at(net, &event);
    if (kind == SIM_MESSAGE && to == SIM_CLIENT && stream->kind == PP_CALL_BIDI &&
        net->config.duplicate_rate > 0 && pp_rng_uniform(&net->rng) < net->config.duplicate_rate) {
        post_again(net, &event);
    }
    if (breaks && !before) {
        sim_post_local(net, NULL, connection, SIM_BREAK, to, at_us);
    }
}

/* Tells both sides of every call on it; what is on the way is lost. */
void sim_connection_break(struct pp_sim_net *net, struct sim_connection *connection)
{
    if (!connection->alive) {
        return;
    }
    connection->alive = false;
    for (struct sim_endpoint *end = net->endpoints; end != NULL; end = end->next) {
        for (struct pp_call *call = end->served; call != NULL; call = call->next) {
            if (call->stream->connection == connection) {
                sim_post_local(net, call->stream, connection, SIM_LOST, SIM_SERVER,
                               net->now_us + draw_delay_us(net, connection));
            }
        }
        for (struct pp_channel *channel = end->channels; channel != NULL; channel = channel->next) {
            for (struct pp_call *call = channel->calls; call != NULL; call = call->next) {
                if (call->stream->connection == connection) {
                    sim_post_local(net, call->stream, connection, SIM_LOST, SIM_CLIENT,
                                   net->now_us + draw_delay_us(net, connection));
                }
            }
        }
    }
}

struct sim_endpoint *sim_listener(struct pp_sim_net *net, const char *address)
{
    for (struct sim_endpoint *end = net->endpoints; end != NULL; end = end->next) {
        if (!end->dead && end->listening && strcmp(end->address, address) == 0) {
            return end;
        }
    }
    return NULL;
}

static bool needs_network(enum sim_event_kind kind)
{
    return kind != SIM_LOST && kind != SIM_DEADLINE && kind != SIM_KEEPALIVE && kind != SIM_BREAK;
}

static void apply(struct pp_sim_net *net, struct sim_event *event)
{
    struct sim_connection *connection = event->connection;
    if (event->kind == SIM_BREAK) {
        sim_connection_break(net, connection);
    } else if (event->kind == SIM_KEEPALIVE) {
        if (sim_unresponsive(net, connection)) {
            sim_connection_break(net, connection);
        }
    } else if (needs_network(event->kind) && (!connection->alive || connection->gone[event->to])) {
        event_drop(event);
        return;
    } else if (needs_network(event->kind) && sim_is_cut(net, connection, event->to)) {
        grow(&net->held, net->held_count, &net->held_capacity);
        net->held[net->held_count++] = *event;
        return;
    } else {
        sim_call_event(net, event);
    }
    event_drop(event);
}

/* on NULL: whatever the sender has sent. */
static void keep_items(struct sim_event *events, size_t count, const struct sim_endpoint *sender,
                       const struct sim_connection *on)
{
    for (size_t i = 0; i < count; ++i) {
        struct sim_connection *connection = events[i].connection;
        bool meant = on == NULL || connection == on;
        if (events[i].item != NULL && meant && connection->ends[1 - events[i].to] == sender) {
            sim_item_keep(events[i].item);
        }
    }
}

void sim_keep_sent(struct pp_sim_net *net, const struct sim_endpoint *sender,
                   const struct sim_connection *on)
{
    keep_items(net->heap, net->heap_count, sender, on);
    keep_items(net->held, net->held_count, sender, on);
}

void sim_apply_due(struct pp_sim_net *net)
{
    while (net->heap_count != 0 && net->heap[0].at_us <= net->now_us) {
        struct sim_event event = heap_pop(net);
        apply(net, &event);
    }
}

void pp_sim_process(struct pp_transport *transport, bool (*step)(void *context), void *context)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    endpoint->step = step;
    endpoint->step_context = context;
}

/* One round of all processes but one's own, in order of making. */
static bool step_all(struct pp_sim_net *net, const struct sim_endpoint *but)
{
    bool progress = false;
    struct sim_endpoint *next = NULL;
    for (struct sim_endpoint *end = net->endpoints; end != NULL; end = next) {
        next = end->next;
        if (end != but && end->step != NULL && !end->dead && !end->paused) {
            progress |= end->step(end->step_context);
        }
    }
    return progress;
}

/* Somebody waits for what never comes. */
#define HOURS_MAX UINT64_C(3)

static void advance(struct pp_sim_net *net, uint64_t until_us)
{
    PP_ASSERT(net->now_us < HOURS_MAX * 3600000000u);
    uint64_t next_us = net->now_us + net->config.tick_us;
    if (net->heap_count != 0 && net->heap[0].at_us < next_us) {
        next_us = net->heap[0].at_us;
    }
    const struct sim_timer *timer = sim_timer_first(net);
    next_us = timer != NULL && timer->at_us < next_us ? timer->at_us : next_us;
    next_us = next_us < until_us ? next_us : until_us;
    net->now_us = next_us > net->now_us ? next_us : net->now_us;
}

static uint64_t saturating_sum(uint64_t one, uint64_t other)
{
    return one < UINT64_MAX - other ? one + other : UINT64_MAX;
}

/* A world that is busy without time passing is stuck. */
#define ROUNDS_MAX 1000000u

size_t sim_poll(struct pp_transport *transport, uint64_t until_us)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    for (unsigned rounds = 0;; ++rounds) {
        PP_ASSERT(rounds < ROUNDS_MAX);
        sim_timers_run(net);
        sim_apply_due(net);
        if (sim_deliver_one(endpoint)) {
            return 1;
        }
        uint64_t now_us = sim_clock_now(endpoint->clock);
        if (atomic_exchange(&endpoint->woken, false) || net->running || now_us >= until_us) {
            return 0;
        }
        net->running = true;
        bool progress = step_all(net, endpoint);
        net->running = false;
        if (!progress) {
            advance(net, saturating_sum(net->now_us, until_us - now_us));
            rounds = 0;
        }
    }
}

bool pp_sim_net_run(struct pp_sim_net *net, uint64_t until_us, bool (*done)(void *context),
                    void *context)
{
    PP_ASSERT(!net->running);
    for (unsigned rounds = 0; rounds < ROUNDS_MAX; ++rounds) {
        sim_timers_run(net);
        sim_apply_due(net);
        if (done != NULL && done(context)) {
            return true;
        }
        if (net->now_us >= until_us) {
            return false;
        }
        net->running = true;
        bool progress = step_all(net, NULL);
        net->running = false;
        if (!progress) {
            advance(net, until_us);
            rounds = 0;
        }
    }
    pp_assert_fail("the processes come to rest", __FILE__, __LINE__);
}
