/*
 * The part of rpc_bench that needs a whole node: the same traffic, but attended and stored by
 * attn-node's exec thread: attends of 16 tokens (16 KiB up and down), appends of 1 MiB with their
 * checksum. One thread.
 */
#ifndef PIGPEN_BENCH_RPC_BENCH_NODE_H
#define PIGPEN_BENCH_RPC_BENCH_NODE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "common/rpc/transport.h"

/* Starts `program` on loopback and connects; false with the reason printed. */
bool rpc_bench_node_start(struct pp_transport *transport, const char *program);
/* Also where none was started. The streams end with the transport. */
void rpc_bench_node_stop(void);

/* Microseconds of count attends, one after the other. */
PP_MUST_USE enum pp_status rpc_bench_node_attends(size_t count, double *us_out);
/* Seconds for 128 MiB to be sent, checked, stored and acknowledged, in a new part; the part before
 * was closed, so a node may have its memory still. */
PP_MUST_USE enum pp_status rpc_bench_node_stored(double *seconds_out);
/* The same on memory that the node has to get first. */
PP_MUST_USE enum pp_status rpc_bench_node_stored_fresh(double *seconds_out);
/* Microseconds of attends, one after the other, while as much is sent as fast as it goes. */
PP_MUST_USE enum pp_status rpc_bench_node_attends_in_bulk(double *us_out, size_t capacity,
                                                          size_t *count_out);

#endif
