/*
 * The transport over gRPC's C core: one completion queue, polled by the one thread that owns it.
 * The same transport serves and calls. gRPC's headers stay inside common/rpc/grpc_*.c.
 *
 * Polling is spin then block: for spin_us after the last event poll asks without waiting, then it
 * blocks. Where this process has fewer than two cores (affinity, cgroup quota), or where the system
 * keeps taking the core away from the spinning thread, spinning switches itself off (see spin.h).
 * gRPC's own threads are made with all signals blocked. fork() before the first transport only.
 * At most one thread of a process may poll transports at a time (gRPC has one designated poller);
 * one thread may poll several transports in turn.
 *
 * How calls end. Client: the server's status; PP_UNAVAILABLE when the peer cannot be reached or is
 * gone; PP_DEADLINE_EXCEEDED; PP_CANCELLED after call_cancel or channel_close; a status that this
 * side found (PP_MESSAGE_TOO_LARGE, PP_MEMORY). `ended` comes after every message was pulled: keep
 * receive armed to see it. Server: PP_OK when the finish was sent, PP_CANCELLED when the client
 * cancelled, vanished or ran into its deadline, PP_MESSAGE_TOO_LARGE when its message was refused.
 * A cancelled stream is never reported as half closed when the cancellation is known by then, but
 * it may come late: commit on an explicit message, not on half_closed.
 *
 * call_send: PP_QUEUE (full; writable follows when half of it is free), PP_MESSAGE_TOO_LARGE (above
 * message_bytes_max), PP_CANCELLED (the call is ending), PP_MEMORY. The payload stays the caller's
 * unless PP_OK. header NULL with payload NULL and last: half-closes without a message.
 * A received message above message_bytes_max is refused with PP_MESSAGE_TOO_LARGE.
 * channel_close and server_stop deliver the `ended` of open calls themselves, before they return.
 * A payload's release runs on any thread. Messages must be released before destroy.
 */
#ifndef PIGPEN_COMMON_RPC_GRPC_TRANSPORT_H
#define PIGPEN_COMMON_RPC_GRPC_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

struct pp_grpc_config {
    struct pp_clock clock;
    uint64_t spin_us;           /* 0: block at once. 200 is a good value */
    bool spin_always;           /* for measurements: never switch spinning off */
    uint64_t quota_bytes;       /* what gRPC may buffer; 0: PP_GRPC_QUOTA_BYTES */
    uint64_t message_bytes_max; /* 0: PP_MESSAGE_BYTES_MAX */
};

/* Sixteen of the largest messages: bounds what un-pulled messages of all streams take. */
#define PP_GRPC_QUOTA_BYTES (256u << 20)

/* One buffer that a socket is read into, used up before the next is taken. A message that lies
 * across two of them costs an end 10 us more: its window is opened in a write of its own (gRPC 1.51
 * does so for a reader that waits). Seven attends lie in one. Each connection heard of holds one.
 */
#define PP_GRPC_READ_BUFFER_BYTES (128u << 10)

/* Limits of a server: streams of one connection, and running calls of all of them. More calls are
 * refused with PP_QUEUE. */
#define PP_GRPC_STREAMS_MAX 256u
#define PP_GRPC_CALLS_MAX   4096u

/* PP_MEMORY, PP_INVALID_ARGUMENT (no clock, message_bytes_max above 1 GiB). */
PP_MUST_USE enum pp_status pp_grpc_transport_new(const struct pp_grpc_config *config,
                                                 struct pp_transport **transport_out);

#endif
