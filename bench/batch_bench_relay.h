/*
 * TCP connections that take longer: ports that pass what comes on to others, each byte a while
 * after it came, both ways. What a network between hosts adds to loopback. A thread of its own.
 */
#ifndef PIGPEN_BENCH_BATCH_BENCH_RELAY_H
#define PIGPEN_BENCH_BATCH_BENCH_RELAY_H

#include <stdint.h>

#include "common/base/status.h"

struct batch_relay;

/* Ports that lead to `ports` [count], on loopback; delay_us one way. PP_IO, PP_MEMORY. */
PP_MUST_USE enum pp_status batch_relay_start(const int *ports, uint32_t count, uint64_t delay_us,
                                             int *ports_out, struct batch_relay **relay_out);
void batch_relay_stop(struct batch_relay *relay);

#endif
