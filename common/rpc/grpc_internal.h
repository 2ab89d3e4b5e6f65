/*
 * What the files of the gRPC transport share; nobody else includes it. Every operation handed to
 * gRPC is a struct pp_grpc_event whose address is the tag; `done` runs on the polling thread.
 * A call lives until its last operation came back: `pending` counts them.
 */
#ifndef PIGPEN_COMMON_RPC_GRPC_INTERNAL_H
#define PIGPEN_COMMON_RPC_GRPC_INTERNAL_H

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/log.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/spin.h"
#include "common/rpc/transport.h"

struct pp_grpc;

struct pp_grpc_event {
    void (*done)(struct pp_grpc_event *event, bool ok);
    struct pp_grpc_event *next; /* while deferred */
    bool ok;
    bool of_server; /* belongs to the server: handled while it stops */
};

/* Pieces of a message lie in the struct up to this many (a 16 KiB message has 1 to 3). */
#define PP_GRPC_PIECES 32u

struct pp_grpc_message {
    struct pp_message base;
    struct pp_grpc *transport;
    struct pp_grpc_message *next; /* while free */
    grpc_byte_buffer *buffer;
    struct pp_piece *more; /* own array where PP_GRPC_PIECES are too few */
    struct pp_piece pieces[PP_GRPC_PIECES];
};

struct pp_call {
    struct pp_grpc *transport;
    struct pp_channel *channel; /* NULL: a server's call */
    struct pp_call *next;
    struct pp_call *previous;
    grpc_call *call;
    struct pp_call_events events;
    void *context;
    enum pp_call_kind kind;
    unsigned pending; /* operations with gRPC, and callbacks running */
    bool gone;        /* ended was delivered */

    struct pp_grpc_event send_event;
    grpc_byte_buffer *queue[PP_SEND_QUEUE_MAX];
    size_t queue_first;
    size_t queue_count;
    grpc_byte_buffer *sending;
    bool send_busy;
    bool send_broken; /* nothing more can be sent */
    bool initial_wanted;
    bool initial_sent;
    bool last_queued; /* client: half-close after the queue. Server: the status */
    bool last_sent;
    bool want_writable;

    struct pp_grpc_event receive_event;
    grpc_byte_buffer *received;
    bool receive_armed;
    bool receive_waits; /* asked for, not with gRPC yet */
    struct pp_call *receive_next;
    bool receive_over;
    bool half_close_waits;
    struct pp_call *half_close_next;

    struct pp_grpc_event over_event; /* client: status. Server: close */
    bool over;
    int cancelled; /* server */
    grpc_metadata_array initial_metadata;
    grpc_metadata_array trailing_metadata;
    grpc_status_code code;
    grpc_slice details;

    enum pp_status local_status; /* not PP_OK: what this side found or was asked for */
    char local_message[192];
    enum pp_status finish_status;
    grpc_metadata trailers[2];
    size_t trailer_count;
    uint64_t retry_after_ms;
    char *peer;
};

struct pp_channel {
    struct pp_grpc *transport;
    struct pp_channel *next;
    struct pp_channel *previous;
    grpc_channel *channel;
    struct pp_call *calls;
    char *address;
};

/* One armed request for a call. */
struct pp_grpc_accept {
    struct pp_grpc_event event;
    struct pp_grpc *transport;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    bool armed;
};

#define PP_GRPC_ACCEPTS 16u

/* The certificates that a server hands out, and which reload of them it has met. */
struct pp_grpc_server_tls {
    const struct pp_tls *tls; /* NULL: plain text */
    uint64_t version;         /* 0: none yet */
};

struct pp_grpc_server {
    grpc_server *server; /* NULL: none runs */
    struct pp_grpc_server_tls tls;
    struct pp_method *methods;
    size_t method_count;
    void *context;
    bool gated; /* accept.h */
    bool draining;
    bool stopping;
    bool down; /* the shutdown came back */
    size_t call_count;
    struct pp_call *calls;
    struct pp_grpc_event shutdown_event;
    struct pp_grpc_accept accepts[PP_GRPC_ACCEPTS];
};

struct pp_grpc {
    struct pp_transport base;
    grpc_completion_queue *queue;
    grpc_resource_quota *quota;
    uint64_t quota_bytes;
    uint64_t message_bytes_max;
    struct pp_spin spin;
    size_t delivered;     /* callbacks so far */
    size_t calls_pending; /* call structs alive */
    struct pp_channel *channels;
    struct pp_grpc_server server;
    struct pp_grpc_event *deferred_first;
    struct pp_grpc_event *deferred_last;
    struct pp_call *half_closes;
    struct pp_call *receives;

    struct pp_grpc_event wake_event;
    grpc_channel *wake_channel;
    grpc_call *wake_call;
    _Atomic bool wake_asked;
    _Atomic bool blocked;
    _Atomic unsigned wakes_pending;

    pthread_mutex_t messages_lock;
    struct pp_grpc_message *messages_free;
};

static inline struct pp_grpc *pp_grpc_of(struct pp_transport *transport)
{
    return (struct pp_grpc *)transport;
}

/* grpc_loop.c */
size_t pp_grpc_poll(struct pp_transport *transport, uint64_t until_us);
void pp_grpc_wake(struct pp_transport *transport);
PP_MUST_USE enum pp_status pp_grpc_loop_init(struct pp_grpc *grpc);
void pp_grpc_loop_deinit(struct pp_grpc *grpc);
/* Runs events until *done. With only_server those of others are kept for poll. */
void pp_grpc_run_until(struct pp_grpc *grpc, const bool *done, bool only_server);
/* A deadline of gRPC's for a time of the transport's clock; UINT64_MAX: never. */
gpr_timespec pp_grpc_deadline(struct pp_grpc *grpc, uint64_t at_us);

/* grpc_args.c: what channels and servers are made with. */
#define PP_GRPC_ARGS_MAX 32u
struct pp_grpc_args {
    grpc_arg list[PP_GRPC_ARGS_MAX];
    grpc_channel_args args;
};
void pp_grpc_args_channel(struct pp_grpc_args *args, const struct pp_grpc *grpc,
                          enum pp_channel_kind kind, const char *server_name);
void pp_grpc_args_server(struct pp_grpc_args *args, const struct pp_grpc *grpc);

/* grpc_credentials.c; NULL tls gives plain text. NULL on failure. */
grpc_channel_credentials *pp_grpc_channel_credentials(const struct pp_tls *tls);
/* served outlives the server. */
grpc_server_credentials *pp_grpc_server_credentials(struct pp_grpc_server_tls *served);

/* grpc_message.c */
void pp_grpc_messages_init(struct pp_grpc *grpc);
void pp_grpc_messages_deinit(struct pp_grpc *grpc);
/* Takes buffer. PP_MEMORY: buffer is destroyed. */
PP_MUST_USE enum pp_status pp_grpc_message_new(struct pp_grpc *grpc, grpc_byte_buffer *buffer,
                                               struct pp_message **message_out);
/* Takes the payload when it succeeds. */
PP_MUST_USE enum pp_status pp_grpc_buffer_new(const void *header, size_t header_bytes,
                                              const struct pp_payload *payload,
                                              grpc_byte_buffer **buffer_out);

/* grpc_status.c: statuses to and from trailers. */
void pp_grpc_status_write(struct pp_call *call, enum pp_status status, uint64_t retry_after_ms);
void pp_grpc_status_read(const struct pp_call *call, struct pp_call_end *end_out, char *message,
                         size_t message_bytes);

/* grpc_call.c: what both sides do. */
PP_MUST_USE enum pp_status pp_grpc_call_new(struct pp_grpc *grpc, struct pp_channel *channel,
                                            grpc_call *call, struct pp_call **call_out);
void pp_grpc_call_pump(struct pp_call *call);
void pp_grpc_call_hold(struct pp_call *call);
/* Lets go; delivers ended and frees when that was the last. */
void pp_grpc_call_settle(struct pp_call *call);
/* Cancels it and delivers ended now. The struct lives on until gRPC is through with it. */
void pp_grpc_call_abandon(struct pp_call *call, const char *why);
void pp_grpc_call_fail(struct pp_call *call, enum pp_status status, const char *message);
enum pp_status pp_grpc_call_send(struct pp_call *call, const void *header, size_t header_bytes,
                                 const struct pp_payload *payload, bool last);
void pp_grpc_call_cancel(struct pp_call *call);
void pp_grpc_call_finish(struct pp_call *call, enum pp_status status, const char *message,
                         uint64_t retry_after_ms);
const char *pp_grpc_call_peer(struct pp_call *call);
/* Starts a batch whose end is event; false: gRPC refused (logged, the call is cancelled). */
bool pp_grpc_call_batch(struct pp_call *call, const grpc_op *ops, size_t op_count,
                        struct pp_grpc_event *event);

/* grpc_receive.c */
void pp_grpc_call_receive(struct pp_call *call);
void pp_grpc_receive_done(struct pp_grpc_event *event, bool ok);
void pp_grpc_receives_arm(struct pp_grpc *grpc);
void pp_grpc_receive_forget(struct pp_call *call);
void pp_grpc_half_closes_deliver(struct pp_grpc *grpc);
void pp_grpc_half_close_forget(struct pp_call *call);

/* grpc_client.c */
enum pp_status pp_grpc_channel_open(struct pp_transport *transport, const char *address,
                                    enum pp_channel_kind kind, const struct pp_tls *tls,
                                    struct pp_channel **channel_out);
void pp_grpc_channel_close(struct pp_channel *channel);
enum pp_status pp_grpc_call_start(struct pp_channel *channel, const char *path,
                                  enum pp_call_kind kind, uint64_t deadline_us,
                                  const struct pp_call_events *events, void *context,
                                  struct pp_call **call_out);

/* grpc_server.c */
void pp_grpc_call_accept(struct pp_call *call, const struct pp_call_events *events, void *context);
enum pp_status pp_grpc_server_start(struct pp_transport *transport,
                                    const struct pp_server_config *config, int *port_out);
void pp_grpc_server_drain(struct pp_transport *transport);
void pp_grpc_server_stop(struct pp_transport *transport);

#endif
