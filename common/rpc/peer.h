/*
 * Who a peer is, for sharing things out: its host, not its port. An IPv6 host owns its /64, an
 * IPv4-mapped address is the IPv4 one; all of one socket path are one. Threads: pure.
 */
#ifndef PIGPEN_COMMON_RPC_PEER_H
#define PIGPEN_COMMON_RPC_PEER_H

#include <stdint.h>
#include <sys/socket.h>

/* A key for pp_share of a socket's far address. */
uint64_t pp_peer_key_of_address(const struct sockaddr_storage *address);

/* The same of what call_peer says ("ipv4:10.0.0.7:50312", "ipv6:%5Bfd00::1%5D:50312", "unix:"); of
 * any other text one of the whole text. */
uint64_t pp_peer_key(const char *peer);

#endif
