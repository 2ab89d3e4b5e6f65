/*
 * A listening TCP socket from an address text, for the HTTP servers. Threads: any.
 */
#ifndef PIGPEN_COMMON_OBS_LISTEN_H
#define PIGPEN_COMMON_OBS_LISTEN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/base/status.h"

struct pp_listener {
    int socket;    /* the caller closes it, or gives it to the server that does */
    uint16_t port; /* the real one, also when 0 was asked for */
    bool loopback; /* reachable from this machine only */
};

/* address: "host:port", "[::1]:port" or ":port" (every interface). The port is not shared with
 * other processes. A line in the log says what is wrong: PP_INVALID_ARGUMENT for an address that is
 * none, PP_IO when the system refuses (port taken, no such address). */
PP_MUST_USE enum pp_status pp_listen_tcp(const char *address, struct pp_listener *listener_out);

/* Whether a text has the form of an address; its host may still be unknown. */
bool pp_listen_is_address(const char *address);

/* Whether an address text names only this machine; false for one that is no address. */
bool pp_listen_is_loopback(const char *address);

/* Whether a socket's address, IPv4 (also mapped into IPv6) or IPv6, is of this machine only. */
bool pp_listen_is_loopback_peer(const struct sockaddr *peer);

#endif
