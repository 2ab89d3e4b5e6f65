/*
 * The gate before a server's socket. gRPC 1.51 takes every connection that comes and, at the end of
 * file descriptors, stops taking any for good. So this file defines accept4, which a program's own
 * libraries then call in place of the system's: for the socket that the gate stands at it refuses
 * (accepts and closes) what is above connections_max or a host's share (pp_share, by peer.h), keeps
 * a descriptor to refuse with when there is none left, and never lets its caller see that error.
 * For all other sockets it is the system's.
 *
 * A refused client sees its connection closed, which gRPC reports as UNAVAILABLE and tries again
 * later, slower each time; before the handshake there is no way to say more. The log does, once a
 * second at most.
 *
 * One gate a process. Threads: any; a lock is held for microseconds.
 */
#ifndef PIGPEN_COMMON_RPC_ACCEPT_H
#define PIGPEN_COMMON_RPC_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"

enum pp_accept_refusal {
    PP_ACCEPT_FULL,  /* connections_max are open */
    PP_ACCEPT_SHARE, /* this host has its share */
    PP_ACCEPT_FILES, /* no file descriptor, or no memory for one */
    PP_ACCEPT_REFUSALS
};

struct pp_accept_counts {
    uint32_t open, max; /* max 0: no gate */
    uint32_t hosts;
    uint64_t refused[PP_ACCEPT_REFUSALS];
};

/* address as in pp_server_config, port as it was got. PP_FAILED_PRECONDITION: a gate stands
 * already. PP_MEMORY, PP_IO (no descriptor to keep). */
PP_MUST_USE enum pp_status pp_accept_begin(const char *address, int port, uint32_t connections_max,
                                           struct pp_clock clock);
/* Nothing happens when there is none. */
void pp_accept_end(void);

void pp_accept_count(struct pp_accept_counts *counts_out);

#endif
