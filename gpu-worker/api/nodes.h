/*
 * The nodes that --nodes names, and the wait until they serve, told to people. On the walk: above
 * remote. It refuses to know what they are wanted for. One thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_NODES_H
#define PIGPEN_GPU_WORKER_API_NODES_H

#include <stdint.h>
#include <stdio.h>

#include "common/base/status.h"
#include "gpu-worker/membership/membership.h"
#include "gpu-worker/remote/remote.h"

/* "name=host:port,..." or "host:port,..." to addresses; host is a name, an IPv4 address or an IPv6
 * one in brackets, port 1 to 65535; no name and no address comes twice. PP_INVALID_ARGUMENT with a
 * line on errors that says what is wrong. */
PP_MUST_USE enum pp_status gw_nodes_parse(const char *text, FILE *errors,
                                          struct gw_node_address *nodes_out, uint32_t *count_out);

/* Whether --nodes can be meant: a list, file:, dns: or etcd: (membership.h). PP_INVALID_ARGUMENT
 * with a line on errors. */
PP_MUST_USE enum pp_status gw_nodes_check(const char *source, FILE *errors);

/* Waits until the membership of `source` has named a node, or nodes_min of them, up to timeout_us,
 * while nobody else polls the transport. PP_UNAVAILABLE with the cause on errors; PP_CANCELLED when
 * interrupted. */
PP_MUST_USE enum pp_status gw_nodes_list(struct gw_membership *membership,
                                         struct pp_transport *transport, const char *source,
                                         uint32_t nodes_min, uint64_t timeout_us, FILE *errors,
                                         struct gw_members *members_out);

/* Waits until all nodes serve, or nodes_min of the config, up to timeout_us. After the first second
 * lines on `progress` (NULL: none) tell which are missing and why; at the end each has a line on
 * errors. PP_CANCELLED when interrupted. */
PP_MUST_USE enum pp_status gw_nodes_wait(struct gw_remote *remote,
                                         const struct gw_remote_config *config, uint64_t timeout_us,
                                         FILE *progress, FILE *errors);

#endif
