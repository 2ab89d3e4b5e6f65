/*
 * What goes wrong on the simulated network when a test says so: links that are slow, cut or broken,
 * processes that die, are cut off or stand still.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim_internal.h"

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

bool sim_is_cut(struct pp_sim_net *net, const struct sim_connection *connection, int to)
{
    const struct sim_link *link =
        sim_link_of(net, connection->names[SIM_CLIENT], connection->names[SIM_SERVER]);
    return link->cut[strcmp(link->names[1], connection->names[to]) == 0 ? 1 : 0];
}

bool sim_unresponsive(struct pp_sim_net *net, const struct sim_connection *connection)
{
    const struct sim_link *link =
        sim_link_of(net, connection->names[SIM_CLIENT], connection->names[SIM_SERVER]);
    bool paused = false;
    for (int side = 0; side < 2; ++side) {
        paused |= connection->ends[side] != NULL && connection->ends[side]->paused;
    }
    return link->cut[0] || link->cut[1] || connection->gone[0] || connection->gone[1] || paused;
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

/* Connections that stay silent are given up. */
static void expect_keepalive(struct pp_sim_net *net, struct sim_connection *connection)
{
    sim_post_local(net, NULL, connection, SIM_KEEPALIVE, 0, net->now_us + PP_SIM_KEEPALIVE_US);
}

/* What waited for the link and gets through now; the sequence keeps it in order. */
static void release_held(struct pp_sim_net *net)
{
    size_t kept = 0;
    for (size_t i = 0; i < net->held_count; ++i) {
        if (sim_is_cut(net, net->held[i].connection, net->held[i].to)) {
            net->held[kept++] = net->held[i];
        } else {
            net->held[i].at_us = net->now_us;
            sim_heap_push(net, &net->held[i]);
        }
    }
    net->held_count = kept;
}

void pp_sim_link_cut_one_way(struct pp_sim_net *net, const char *from, const char *to, bool cut)
{
    struct sim_link *link = sim_link_of(net, from, to);
    link->cut[strcmp(link->names[1], to) == 0 ? 1 : 0] = cut;
    for (struct sim_connection *at = net->connections; cut && at != NULL; at = at->next) {
        if (at->alive && between(at, from, to)) {
            expect_keepalive(net, at);
        }
    }
    if (!cut) {
        release_held(net);
    }
}

void pp_sim_link_cut(struct pp_sim_net *net, const char *a, const char *b, bool cut)
{
    pp_sim_link_cut_one_way(net, a, b, cut);
    pp_sim_link_cut_one_way(net, b, a, cut);
}

void pp_sim_link_break(struct pp_sim_net *net, const char *a, const char *b)
{
    for (struct sim_connection *at = net->connections; at != NULL; at = at->next) {
        if (between(at, a, b)) {
            sim_connection_break(net, at);
        }
    }
}

/* The process takes and sends nothing any more; what it has sent is on its way. */
static void leave_peers(struct sim_endpoint *endpoint, bool silent)
{
    struct pp_sim_net *net = endpoint->net;
    for (struct sim_connection *at = net->connections; at != NULL; at = at->next) {
        for (int side = 0; side < 2; ++side) {
            if (!at->alive || at->ends[side] != endpoint || at->gone[side]) {
                continue;
            }
            at->gone[side] = true;
            if (silent) {
                expect_keepalive(net, at);
            } else {
                uint64_t last_us = at->clear_us[1 - side];
                sim_post_local(net, NULL, at, SIM_BREAK, 1 - side,
                               last_us > net->now_us ? last_us : net->now_us);
            }
        }
    }
}

void pp_sim_crash(struct pp_transport *transport, bool silent)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    leave_peers(endpoint, silent);
    endpoint->dead = true;
}

void pp_sim_cut_off(struct pp_transport *transport, bool silent)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    leave_peers(endpoint, silent);
    endpoint->cut_off = true;
    for (struct pp_channel *channel = endpoint->channels; channel != NULL;
         channel = channel->next) {
        for (struct pp_call *call = channel->calls; call != NULL; call = call->next) {
            sim_post_local(net, call->stream, call->stream->connection, SIM_LOST, SIM_CLIENT,
                           net->now_us + 1);
        }
        channel->connection = NULL;
    }
}

void pp_sim_pause(struct pp_transport *transport, bool paused)
{
    struct sim_endpoint *endpoint = (struct sim_endpoint *)transport;
    struct pp_sim_net *net = endpoint->net;
    endpoint->paused = paused;
    for (struct sim_connection *at = net->connections; paused && at != NULL; at = at->next) {
        if (at->alive && (at->ends[0] == endpoint || at->ends[1] == endpoint)) {
            expect_keepalive(net, at);
        }
    }
}
