/*
 * Calls between processes, behind one table of functions, so that the simulator can stand in for
 * the network. gRPC lies behind pp_grpc_transport (grpc_transport.h); its headers appear in
 * common/rpc only.
 *
 * One thread owns a transport and everything made from it (the rpc thread): all functions and all
 * callbacks run there, except wake and pp_message_release, which may be called from any thread.
 * poll is the thread's body: it delivers events through callbacks and returns.
 *
 * Receiving is pulled: receive arms one message; the peer's sending stops when nothing is armed
 * (flow control). Sending is queued up to send_queue_max messages a call, then PP_QUEUE.
 */
#ifndef PIGPEN_COMMON_RPC_TRANSPORT_H
#define PIGPEN_COMMON_RPC_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/span.h"
#include "common/base/status.h"

struct pp_transport;
struct pp_channel; /* client: a connection to one address */
struct pp_call;    /* one call, of either side */

/* A received message: pieces in order, in place. Owned by whoever got it, until release. */
struct pp_message {
    const struct pp_piece *pieces;
    size_t piece_count;
    size_t bytes; /* the sum */
    void (*release)(struct pp_message *message);
};
static inline void pp_message_release(struct pp_message *message)
{
    message->release(message);
}

/* A payload handed over for sending without a copy: release runs once, on any thread, when the
 * bytes are no longer needed, also when sending failed. release NULL: the bytes are copied at once.
 */
struct pp_payload {
    const void *data;
    size_t bytes;
    void (*release)(void *context);
    void *context;
    const struct pp_payload *next; /* bytes behind these, given back by themselves; NULL: none */
};
/* So many of them make one message at most. */
#define PP_PAYLOADS_MAX 16u
/* Of all of them; payload may be NULL. */
static inline size_t pp_payload_bytes(const struct pp_payload *payload)
{
    size_t bytes = 0;
    for (; payload != NULL; payload = payload->next) {
        bytes += payload->bytes;
    }
    return bytes;
}

struct pp_call_end {
    enum pp_status status;   /* PP_OK or what went wrong */
    const char *message;     /* for people; valid during the callback */
    uint64_t retry_after_ms; /* 0: not said */
};

/* Events of one call. Any may be NULL. */
struct pp_call_events {
    /* A message arrived; it now belongs to the receiver. */
    void (*message)(void *context, struct pp_call *call, struct pp_message *message);
    /* Room again in the send queue after PP_QUEUE. */
    void (*writable)(void *context, struct pp_call *call);
    /* Server: the client will send no more. */
    void (*half_closed)(void *context, struct pp_call *call);
    /* The last event. Client: the call's outcome. Server: the call is over, finished or cancelled.
     * The call is gone after it returns. */
    void (*ended)(void *context, struct pp_call *call, const struct pp_call_end *end);
};

enum pp_call_kind { PP_CALL_UNARY, PP_CALL_SERVER_STREAM, PP_CALL_BIDI };

/* A method that a server answers; name is the full path "/pigpen.v1.AttentionService/Attend". */
struct pp_method {
    const char *path;
    enum pp_call_kind kind;
    /* A call of this method came in. It sets the events and context by pp_call_accept, before it
     * returns, and then pulls with pp_call_receive. */
    void (*opened)(void *server_context, struct pp_call *call);
};

enum pp_channel_kind { PP_CHANNEL_LATENCY, PP_CHANNEL_BULK };

struct pp_tls; /* security.h; NULL: plain text */

struct pp_server_config {
    const char *address; /* "127.0.0.1:7450", "[::]:7450", "unix:/path"; port 0 takes a free one */
    const struct pp_method *methods;
    size_t method_count;
    void *context;
    const struct pp_tls *tls;
    uint32_t connections_max; /* more are refused, and one host has a share (accept.h). 0: no end */
};

struct pp_transport_ops {
    enum pp_status (*channel_open)(struct pp_transport *transport, const char *address,
                                   enum pp_channel_kind kind, const struct pp_tls *tls,
                                   struct pp_channel **channel_out);
    /* Calls still open on it end with PP_CANCELLED first. */
    void (*channel_close)(struct pp_channel *channel);

    /* deadline_us on the transport's clock, 0: none. Unary and server stream: send one message. */
    enum pp_status (*call_start)(struct pp_channel *channel, const char *path,
                                 enum pp_call_kind kind, uint64_t deadline_us,
                                 const struct pp_call_events *events, void *context,
                                 struct pp_call **call_out);
    void (*call_accept)(struct pp_call *call, const struct pp_call_events *events, void *context);
    /* header is copied; payload may be NULL. `last` half-closes the client's side after it (always
     * true for unary and server streams). header NULL with payload NULL and `last`: only
     * half-closes. PP_QUEUE: the queue is full, writable follows. PP_MESSAGE_TOO_LARGE.
     * PP_CANCELLED: the call is ending. Not sent then, and the payload stays the caller's. */
    enum pp_status (*call_send)(struct pp_call *call, const void *header, size_t header_bytes,
                                const struct pp_payload *payload, bool last);
    void (*call_receive)(struct pp_call *call); /* arms one message; idempotent while armed */
    void (*call_cancel)(struct pp_call *call);  /* client: ended follows. Server: finish */
    /* Server: ends the call after what is queued. message may be NULL. */
    void (*call_finish)(struct pp_call *call, enum pp_status status, const char *message,
                        uint64_t retry_after_ms);
    /* Who calls: an address or identity, for logs; valid while the call lives. */
    const char *(*call_peer)(struct pp_call *call);

    enum pp_status (*server_start)(struct pp_transport *transport,
                                   const struct pp_server_config *config, int *port_out);
    /* No new calls; running ones go on. Then stop: cancels what still runs. */
    void (*server_drain)(struct pp_transport *transport);
    void (*server_stop)(struct pp_transport *transport);

    /* Delivers events until `until_us` (on the clock) or wake, whichever is first; returns after it
     * delivered at least one. Returns the number delivered. */
    size_t (*poll)(struct pp_transport *transport, uint64_t until_us);
    void (*wake)(struct pp_transport *transport); /* any thread */
    void (*destroy)(struct pp_transport *transport);
};

struct pp_transport {
    const struct pp_transport_ops *ops;
    struct pp_clock clock;
};

#define PP_SEND_QUEUE_MAX 64u

#endif
