/*
 * The simulated network: the clock, the heap of events to come, links, connections and how they
 * break. Moves only when polled.
 */
#include "tests/sim/sim_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/limits.h"
#include "tests/sim/sim_internal.h"

static uint64_t clock_now(void *context)
{
    const struct pp_sim_net *net = context;
    return net->now_us;
}

struct pp_clock pp_sim_net_clock(struct pp_sim_net *net)
{
    return (struct pp_clock){.now_us = clock_now, .context = net};
}

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

void pp_sim_net_break_rate(struct pp_sim_net *net, double break_rate)
{
    net->config.break_rate = break_rate;
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

static void heap_push(struct pp_sim_net *net, const struct sim_event *event)
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

struct sim_link *sim_link_of(struct pp_sim_net *net, const char *a, const char *b)
{
    for (struct sim_link *link = net->links; link != NULL; link = link->next) {
        if ((strcmp(link->names[0], a) == 0 && strcmp(link->names[1], b) == 0) ||
            (strcmp(link->names[0], b) == 0 && strcmp(link->names[1], a) == 0)) {
            return link;
        }
    }
    struct sim_link *link = calloc(1, sizeof(*link));
    PP_ASSERT(link != NULL);
    snprintf(link->names[0], sizeof(link->names[0]), "%s", a);
    snprintf(link->names[1], sizeof(link->names[1]), "%s", b);
    link->delay_us_min = net->config.delay_us_min;
    link->delay_us_max = net->config.delay_us_max;
    link->next = net->links;
    net->links = link;
    return link;
}

static uint64_t draw_delay_us(struct pp_sim_net *net, const struct sim_connection *connection)
{
    const struct sim_link *link =
        sim_link_of(net, connection->names[SIM_CLIENT], connection->names[SIM_SERVER]);
    uint64_t width = link->delay_us_max - link->delay_us_min + 1;
    return link->delay_us_min + pp_rng_u64(&net->rng) % width;
}

struct sim_connection *sim_connection_new(struct pp_sim_net *net, struct sim_endpoint *client,
                                          const char *server_name)
{
    struct sim_connection *connection = calloc(1, sizeof(*connection));
    PP_ASSERT(connection != NULL);
    connection->ends[SIM_CLIENT] = client;
    snprintf(connection->names[SIM_CLIENT], sizeof(connection->names[0]), "%s", client->name);
    snprintf(connection->names[SIM_SERVER], sizeof(connection->names[0]), "%s", server_name);
    connection->alive = true;
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
    heap_push(net, event);
}

void sim_post_local(struct pp_sim_net *net, struct sim_stream *stream,
                    struct sim_connection *connection, enum sim_event_kind kind, int to,
                    uint64_t at_us)
{
    struct sim_event event = {
        .at_us = at_us, .kind = kind, .to = to, .stream = stream, .connection = connection};
    post_at(net, &event);
}

void sim_post(struct pp_sim_net *net, struct sim_stream *stream, enum sim_event_kind kind, int to,
              struct sim_item *item, const struct sim_end *end)
{
    struct sim_connection *connection = stream->connection;
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
    bool before = breaks && pp_rng_u64(&net->rng) % 2 == 0;
    if (before) {
        sim_post_local(net, NULL, connection, SIM_BREAK, to, at_us);
    }
    post_at(net, &event);
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

static bool unresponsive(struct pp_sim_net *net, const struct sim_connection *connection)
{
    const struct sim_link *link =
        sim_link_of(net, connection->names[SIM_CLIENT], connection->names[SIM_SERVER]);
    bool paused = false;
    for (int side = 0; side < 2; ++side) {
        paused |= connection->ends[side] != NULL && connection->ends[side]->paused;
    }
    return link->cut || connection->severed || paused;
}

static void apply(struct pp_sim_net *net, struct sim_event *event)
{
    struct sim_connection *connection = event->connection;
    if (event->kind == SIM_BREAK) {
        sim_connection_break(net, connection);
    } else if (event->kind == SIM_KEEPALIVE) {
        if (unresponsive(net, connection)) {
            sim_connection_break(net, connection);
        }
    } else if (needs_network(event->kind) && (!connection->alive || connection->severed)) {
        event_drop(event);
        return;
    } else if (needs_network(event->kind) &&
               sim_link_of(net, connection->names[0], connection->names[1])->cut) {
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

void pp_sim_link_delay(struct pp_sim_net *net, const char *a, const char *b, uint64_t delay_us_min,
                       uint64_t delay_us_max)
{
    PP_ASSERT(delay_us_min <= delay_us_max);
    struct sim_link *link = sim_link_of(net, a, b);
    link->delay_us_min = delay_us_min;
    link->delay_us_max = delay_us_max;
}

static bool between(const struct sim_connection *connection, const char *a, const char *b)
{
    return (strcmp(connection->names[0], a) == 0 && strcmp(connection->names[1], b) == 0) ||
           (strcmp(connection->names[0], b) == 0 && strcmp(connection->names[1], a) == 0);
}

void pp_sim_link_cut(struct pp_sim_net *net, const char *a, const char *b, bool cut)
{
    sim_link_of(net, a, b)->cut = cut;
    if (cut) {
        for (struct sim_connection *at = net->connections; at != NULL; at = at->next) {
            if (at->alive && between(at, a, b)) {
                sim_post_local(net, NULL, at, SIM_KEEPALIVE, 0, net->now_us + PP_SIM_KEEPALIVE_US);
            }
        }
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < net->held_count; ++i) {
        if (between(net->held[i].connection, a, b)) {
            net->held[i].at_us = net->now_us; /* the sequence keeps them in order */
            heap_push(net, &net->held[i]);
        } else {
            net->held[kept++] = net->held[i];
        }
    }
    net->held_count = kept;
}

void pp_sim_link_break(struct pp_sim_net *net, const char *a, const char *b)
{
    for (struct sim_connection *at = net->connections; at != NULL; at = at->next) {
        if (between(at, a, b)) {
            sim_connection_break(net, at);
        }
    }
}

void pp_sim_crash(struct pp_transport *transport, bool silent)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    for (struct sim_connection *at = net->connections; at != NULL; at = at->next) {
        if (!at->alive || (at->ends[0] != endpoint && at->ends[1] != endpoint)) {
            continue;
        }
        if (silent) {
            at->severed = true;
            sim_post_local(net, NULL, at, SIM_KEEPALIVE, 0, net->now_us + PP_SIM_KEEPALIVE_US);
        } else {
            sim_connection_break(net, at);
        }
    }
    endpoint->dead = true;
}

void pp_sim_pause(struct pp_transport *transport, bool paused)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    endpoint->paused = paused;
    for (struct sim_connection *at = net->connections; paused && at != NULL; at = at->next) {
        if (at->alive && (at->ends[0] == endpoint || at->ends[1] == endpoint)) {
            sim_post_local(net, NULL, at, SIM_KEEPALIVE, 0, net->now_us + PP_SIM_KEEPALIVE_US);
        }
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

static void advance(struct pp_sim_net *net, uint64_t until_us)
{
    uint64_t next_us = net->now_us + net->config.tick_us;
    if (net->heap_count != 0 && net->heap[0].at_us < next_us) {
        next_us = net->heap[0].at_us;
    }
    next_us = next_us < until_us ? next_us : until_us;
    net->now_us = next_us > net->now_us ? next_us : net->now_us;
}

/* A world that is busy without time passing is stuck. */
#define ROUNDS_MAX 1000000u

size_t sim_poll(struct pp_transport *transport, uint64_t until_us)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    for (unsigned rounds = 0;; ++rounds) {
        PP_ASSERT(rounds < ROUNDS_MAX);
        sim_apply_due(net);
        if (sim_deliver_one(endpoint)) {
            return 1;
        }
        if (atomic_exchange(&endpoint->woken, false) || net->running || net->now_us >= until_us) {
            return 0;
        }
        net->running = true;
        bool progress = step_all(net, endpoint);
        net->running = false;
        if (!progress) {
            advance(net, until_us);
            rounds = 0;
        }
    }
}

bool pp_sim_net_run(struct pp_sim_net *net, uint64_t until_us, bool (*done)(void *context),
                    void *context)
{
    PP_ASSERT(!net->running);
    for (unsigned rounds = 0; rounds < ROUNDS_MAX; ++rounds) {
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
