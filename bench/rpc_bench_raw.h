/*
 * The part of rpc_bench that all is measured against: the same bytes by send and recv on a socket,
 * to and from a process of its own. One thread.
 */
#ifndef PIGPEN_BENCH_RPC_BENCH_RAW_H
#define PIGPEN_BENCH_RPC_BENCH_RAW_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define APPEND_BYTES    (1u << 20)
#define APPEND_MESSAGES 128u
#define BUFFER_BYTES    (8u << 20)

struct rpc_raw_config {
    const char *uds_folder; /* NULL: TCP on loopback */
    size_t up_bytes, down_bytes;
    uint64_t spin_us;
};

/* Forks two peers, one for each purpose; they end with this process. Before gRPC is started. */
void rpc_raw_start(const struct rpc_raw_config *config, pid_t children_out[2]);

/* count round trips, after one that is not counted. */
void rpc_raw_round_trips(size_t count, double *us_out);
/* Seconds for APPEND_MESSAGES of APPEND_BYTES and one byte back. */
double rpc_raw_append_block(void);

/* Pins this thread to the first or second core it may use; -1: to none, as at start. Round trips
 * are measured pinned, throughput is not: there a loaded core would be the measure. */
void rpc_bench_pin(int which);

#endif
