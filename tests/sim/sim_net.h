/*
 * A network inside one thread: transports with the operations of common/rpc/transport.h over
 * simulated connections and one simulated clock, so that workers and nodes run whole, many of them,
 * in one program, and a run is a function of its seed. It stands in for gRPC and TCP: a connection
 * (one a channel) delivers in order, after a delay drawn per message, longer on bulk channels; a
 * loss shows as a broken connection, before or after the message that met it was delivered. Answers
 * on streams are delivered twice, the second time late, where duplicate_rate says so: no transport
 * does that, but a peer that is wrong might. It refuses to know what the messages mean.
 *
 * How time passes. Only poll of a transport, and pp_sim_net_run, move the clock: when the polled
 * endpoint has nothing to take, the steps of the other processes run; when none of them did
 * anything, the clock moves to the next event, at most tick_us ahead, never beyond until_us. A poll
 * made inside a step delivers what is due and returns at once. So whoever waits for an answer by
 * polling makes the whole world go on until it comes.
 *
 * What a process is: whatever a real process would run in its threads, as one step function that
 * does a little and says whether it did anything: for a node the body of its rpc thread and of its
 * exec thread, for a worker that of its rpc thread. Every process has a clock of its own, which
 * runs with the network's but may jump; what poll is given and deadlines are in its terms.
 *
 * Threads: one, but for wake. Everything asserts on misuse; it is for tests.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_NET_H
#define PIGPEN_TESTS_SIM_SIM_NET_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

struct pp_sim_net;

struct pp_sim_config {
    uint64_t seed;
    uint64_t delay_us_min; /* of every message and connection attempt, one way */
    uint64_t delay_us_max;
    double break_rate;          /* chance that a message meets a break of its connection */
    double duplicate_rate;      /* chance that an answer on a stream comes once more */
    uint64_t tick_us;           /* longest move of the clock at once; 0: 1000 */
    uint64_t message_bytes_max; /* 0: PP_MESSAGE_BYTES_MAX */
};

/* A peer that answers nothing is noticed after this, as by HTTP/2 pings. */
#define PP_SIM_KEEPALIVE_US 13000000u

struct pp_sim_net *pp_sim_net_new(const struct pp_sim_config *config);
/* All transports must have been destroyed. */
void pp_sim_net_destroy(struct pp_sim_net *net);

uint64_t pp_sim_net_now_us(const struct pp_sim_net *net);
/* Of the process of this name; it lives as long as the network, whoever restarts. */
struct pp_clock pp_sim_clock(struct pp_sim_net *net, const char *name);
/* The clock of the process goes forward or back; never before its origin. */
void pp_sim_clock_jump(struct pp_sim_net *net, const char *name, int64_t by_us);
/* tick_us of the config from now on: waits for nothing in particular need not be fine. */
void pp_sim_net_tick(struct pp_sim_net *net, uint64_t tick_us);
/* Of everything delivered so far, with its time: equal runs have equal digests. */
uint64_t pp_sim_net_digest(const struct pp_sim_net *net);
uint64_t pp_sim_net_deliveries(const struct pp_sim_net *net);
/* Messages that met a break, answers that came twice. */
uint64_t pp_sim_net_breaks(const struct pp_sim_net *net);
uint64_t pp_sim_net_duplicates(const struct pp_sim_net *net);
/* From now on; both are 0 in a network that has healed. */
void pp_sim_net_rates(struct pp_sim_net *net, double break_rate, double duplicate_rate);

/* A process's transport. Servers listen on any text "host:port" that is free (port 0: a free one);
 * channels reach them by the same text. name identifies it in links and call_peer. The transport is
 * destroyed through its own operations. */
struct pp_transport *pp_sim_transport_new(struct pp_sim_net *net, const char *name);

/* What the process of this transport does when others wait; returns whether it did anything. */
void pp_sim_process(struct pp_transport *transport, bool (*step)(void *context), void *context);

/* Runs all processes until done(context) says so (NULL: never) or the time has come. Returns
 * whether done said so. */
bool pp_sim_net_run(struct pp_sim_net *net, uint64_t until_us, bool (*done)(void *context),
                    void *context);

/* Delay of the messages between two names, both ways, instead of the config's. */
void pp_sim_link_delay(struct pp_sim_net *net, const char *a, const char *b, uint64_t delay_us_min,
                       uint64_t delay_us_max);
/* While cut, messages between them wait; connections break when that lasts too long. Both ways, or
 * only what goes from one to the other. */
void pp_sim_link_cut(struct pp_sim_net *net, const char *a, const char *b, bool cut);
void pp_sim_link_cut_one_way(struct pp_sim_net *net, const char *from, const char *to, bool cut);
/* Breaks every connection between them once. */
void pp_sim_link_break(struct pp_sim_net *net, const char *a, const char *b);

/* The process dies: its step never runs again, nothing reaches it any more. What it sent before
 * arrives; then its peers see broken connections, or when silent (power lost) nothing until the
 * keepalive or their deadlines. Its objects stay, to be destroyed by the test as usual; that
 * reaches nobody. A restart is a new transport of the same name. */
void pp_sim_crash(struct pp_transport *transport, bool silent);
/* The same as its peers see it, of a process whose stack is the test's own: every call that it has
 * or starts ends at once with PP_UNAVAILABLE, so that it returns to who called it. */
void pp_sim_cut_off(struct pp_transport *transport, bool silent);
/* A stopped process (SIGSTOP): its step does not run, what arrives waits. */
void pp_sim_pause(struct pp_transport *transport, bool paused);

/* Is told of every message of every process at four points: before and after it is sent, before and
 * after the process is told of it. May do to the network what the test may, but poll it. */
enum pp_sim_point {
    PP_SIM_BEFORE_SEND,
    PP_SIM_AFTER_SEND,
    PP_SIM_BEFORE_RECEIVE,
    PP_SIM_AFTER_RECEIVE
};
#define PP_SIM_POINTS 4u
typedef void pp_sim_watch_fn(void *context, const char *process, enum pp_sim_point point);
void pp_sim_watch(struct pp_sim_net *net, pp_sim_watch_fn *watch, void *context);

/* Calls run(context) after a time, while no process is in the middle of a step. At most 64 wait. */
void pp_sim_after(struct pp_sim_net *net, uint64_t delay_us, void (*run)(void *context),
                  void *context);

#endif
