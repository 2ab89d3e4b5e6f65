/*
 * The part of rpc_bench that needs a whole node: the same traffic, but attended and stored by
 * attn-node's exec thread. One thread.
 */
#ifndef PIGPEN_BENCH_RPC_BENCH_NODE_H
#define PIGPEN_BENCH_RPC_BENCH_NODE_H

#include <stdint.h>

#include <jansson.h>

#include "common/rpc/transport.h"

/* Starts `program` on loopback, measures for about `seconds` each, stops it, and sets
 * exec_rtt_us_p50 and append_stored_gbps: null with a printed reason where that failed or program
 * is NULL. */
void rpc_bench_node(struct pp_transport *transport, const char *program, uint64_t seconds,
                    json_t *report);

#endif
