/*
 * What the files of the simulated network share: sim_net.c has events and connections, sim_clock.c
 * clocks and timers, sim_break.c what goes wrong, sim_call.c one side of a call, sim_transport.c
 * the operations of an endpoint. A stream is one call seen by both sides; side 0 is the client's.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_INTERNAL_H
#define PIGPEN_TESTS_SIM_SIM_INTERNAL_H

#include <stdatomic.h>
#include <stddef.h>

#include "common/base/rng.h"
#include "tests/sim/sim_net.h"

#define SIM_CLIENT 0
#define SIM_SERVER 1

/* What a receiver has not pulled yet, per stream and direction, before its sender is held up. */
#define SIM_WINDOW_BYTES (4u << 20)
#define SIM_PIECES       4u

struct sim_item { /* a message on its way; the payload is read when it arrives */
    uint8_t *header;
    size_t header_bytes;
    struct pp_payload payload;
    bool copied; /* the payload is ours to free */
};

struct sim_message {
    struct pp_message base;
    struct pp_piece pieces[SIM_PIECES];
    struct sim_message *next;
    uint8_t data[];
};

struct sim_endpoint;

struct sim_clock {
    struct sim_clock *next;
    struct pp_sim_net *net;
    char name[64];
    int64_t ahead_us; /* of the network's */
};

struct sim_timer {
    uint64_t at_us;
    void (*run)(void *context);
    void *context;
};
#define SIM_TIMERS 64u

struct sim_connection {
    struct sim_connection *next;
    struct sim_endpoint *ends[2]; /* NULL: gone, or not reached yet */
    char names[2][64];
    bool alive;
    bool bulk;            /* slower: what else it carries goes first */
    bool gone[2];         /* that end has died: it sends and takes nothing */
    uint64_t clear_us[2]; /* when the last message towards a side arrives */
};

struct sim_stream {
    unsigned refs; /* sides and events */
    struct sim_connection *connection;
    struct pp_call *side[2];
    char path[128];
    char address[64];
    enum pp_call_kind kind;
    size_t unread[2]; /* bytes on the way to a side or not pulled by it */
};

struct sim_end {
    enum pp_status status;
    char message[128];
    uint64_t retry_after_ms;
};

enum sim_event_kind {
    SIM_OPEN,
    SIM_MESSAGE,
    SIM_HALF_CLOSE,
    SIM_FINISH,
    SIM_CANCEL, /* either side gives up */
    SIM_WINDOW,
    SIM_BREAK,
    SIM_LOST, /* a side notices that its connection is gone; needs no network */
    SIM_DEADLINE,
    SIM_KEEPALIVE
};

struct sim_event {
    uint64_t at_us;
    uint64_t sequence;
    enum sim_event_kind kind;
    int to; /* side */
    struct sim_stream *stream;
    struct sim_connection *connection;
    struct sim_item *item;
    struct sim_end end;
};

struct pp_call {
    struct sim_endpoint *endpoint;
    struct pp_channel *channel;
    struct sim_stream *stream;
    int side;
    struct pp_call *next;
    struct pp_call *previous;
    struct pp_call *ready_next;
    bool ready;
    struct pp_call_events events;
    void *context;
    const struct pp_method *method; /* server: opened is to be called */
    struct sim_item *queue[PP_SEND_QUEUE_MAX];
    size_t queue_first;
    size_t queue_count;
    bool last_queued;
    bool last_sent;
    bool want_writable;
    bool writable_due;
    struct sim_end finish;
    struct sim_message *inbox_first;
    struct sim_message *inbox_last;
    bool armed;
    bool half_close_arrived;
    bool half_close_told;
    bool ended;
    bool gone;
    bool held; /* a callback runs: freed after it */
    struct sim_end end;
    char peer[80];
};

struct pp_channel {
    struct sim_endpoint *endpoint;
    struct pp_channel *next;
    struct sim_connection *connection;
    enum pp_channel_kind kind;
    struct pp_call *calls;
    char address[64];
};

struct sim_endpoint {
    struct pp_transport base;
    struct pp_sim_net *net;
    struct sim_endpoint *next;
    char name[64];
    struct sim_clock *clock;
    bool dead;
    bool cut_off; /* dead to its peers */
    bool paused;
    bool (*step)(void *context);
    void *step_context;
    struct pp_channel *channels;
    bool listening;
    bool draining;
    char address[64];
    struct pp_method *methods;
    size_t method_count;
    void *context;
    struct pp_call *served;
    struct pp_call *ready_first;
    struct pp_call *ready_last;
    _Atomic bool woken;
};

struct sim_link {
    struct sim_link *next;
    char names[2][64];
    uint64_t delay_us_min;
    uint64_t delay_us_max;
    bool cut[2]; /* what goes to names[0], to names[1] */
};

struct pp_sim_net {
    struct pp_sim_config config;
    struct pp_rng rng;
    uint64_t now_us;
    uint64_t sequence;
    uint64_t digest;
    uint64_t deliveries, breaks, duplicates;
    int port_next;
    bool running; /* inside a poll that moves the clock */
    struct sim_event *heap;
    size_t heap_count;
    size_t heap_capacity;
    struct sim_event *held; /* events that wait for a cut link */
    size_t held_count;
    size_t held_capacity;
    struct sim_endpoint *endpoints;
    struct sim_connection *connections;
    struct sim_link *links;
    struct sim_clock *clocks;
    pp_sim_watch_fn *watch;
    void *watch_context;
    struct sim_timer timers[SIM_TIMERS];
    uint32_t timer_count;
};

/* sim_break.c */
struct sim_link *sim_link_of(struct pp_sim_net *net, const char *a, const char *b);
/* Whether nothing gets through to that side now. */
bool sim_is_cut(struct pp_sim_net *net, const struct sim_connection *connection, int to);
/* Whether a keepalive would go unanswered. */
bool sim_unresponsive(struct pp_sim_net *net, const struct sim_connection *connection);

/* sim_clock.c */
struct sim_clock *sim_clock_of(struct pp_sim_net *net, const char *name);
static inline uint64_t sim_clock_now(const struct sim_clock *clock)
{
    return (uint64_t)((int64_t)clock->net->now_us + clock->ahead_us);
}
/* The timer that is due first; NULL: none waits. */
struct sim_timer *sim_timer_first(struct pp_sim_net *net);
/* Only where nobody is in the middle of a step. */
void sim_timers_run(struct pp_sim_net *net);

/* sim_net.c */
void sim_heap_push(struct pp_sim_net *net, const struct sim_event *event);
/* Tells the watcher. */
void sim_pass(struct sim_endpoint *endpoint, enum pp_sim_point point);
struct sim_connection *sim_connection_new(struct pp_sim_net *net, struct sim_endpoint *client,
                                          const char *server_name, bool bulk);
void sim_connection_break(struct pp_sim_net *net, struct sim_connection *connection);
/* Through the connection, in order, after its delay. */
void sim_post(struct pp_sim_net *net, struct sim_stream *stream, enum sim_event_kind kind, int to,
              struct sim_item *item, const struct sim_end *end);
/* At a time, without the network. */
void sim_post_local(struct pp_sim_net *net, struct sim_stream *stream,
                    struct sim_connection *connection, enum sim_event_kind kind, int to,
                    uint64_t at_us);
void sim_digest(struct pp_sim_net *net, uint64_t value);
/* Applies all events that are due. */
void sim_apply_due(struct pp_sim_net *net);
/* What an endpoint has sent, on one connection or (NULL) on all, and is still on the way no longer
 * needs its memory. */
void sim_keep_sent(struct pp_sim_net *net, const struct sim_endpoint *sender,
                   const struct sim_connection *on);
struct sim_endpoint *sim_listener(struct pp_sim_net *net, const char *address);
void sim_stream_release(struct sim_stream *stream);
size_t sim_poll(struct pp_transport *transport, uint64_t until_us);

/* sim_call.c */
struct sim_item *sim_item_new(const void *header, size_t header_bytes,
                              const struct pp_payload *payload);
void sim_item_free(struct sim_item *item);
/* Copies a payload that is its sender's, and releases that. */
void sim_item_keep(struct sim_item *item);
struct sim_item *sim_item_copy(const struct sim_item *item);
size_t sim_item_bytes(const struct sim_item *item);
struct sim_end sim_end_of(enum pp_status status, const char *message);
struct pp_call *sim_call_new(struct sim_endpoint *endpoint, struct pp_channel *channel,
                             struct sim_stream *stream, int side);
/* There may be something to tell it. */
void sim_call_ready(struct pp_call *call);
/* clean: what arrived before it is still to be pulled. */
void sim_call_end(struct pp_call *call, const struct sim_end *end, bool clean);
void sim_call_tell_end(struct pp_call *call);
/* Sends what the window lets through. */
void sim_call_pump(struct pp_call *call);
/* An event that reached its side. */
void sim_call_event(struct pp_sim_net *net, struct sim_event *event);
/* Delivers one thing to the endpoint; whether there was one. */
bool sim_deliver_one(struct sim_endpoint *endpoint);

/* sim_transport.c */
extern const struct pp_transport_ops sim_operations;

#endif
