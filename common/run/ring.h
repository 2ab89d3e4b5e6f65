/*
 * A bounded queue of pointers from one producer thread to one consumer thread, lock-free, with a
 * blocking wait on the consumer's side. Full means refuse: the producer says so to whoever asked.
 * Order is kept. Threads: push on the producer, the rest on the consumer, wake on any.
 */
#ifndef PIGPEN_COMMON_RUN_RING_H
#define PIGPEN_COMMON_RUN_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"

struct pp_ring;

/* capacity is rounded up to a power of two. PP_MEMORY. */
PP_MUST_USE enum pp_status pp_ring_new(uint32_t capacity, struct pp_ring **ring_out);
void pp_ring_destroy(struct pp_ring *ring);

bool pp_ring_push(struct pp_ring *ring, void *item); /* false: full */
void *pp_ring_pop(struct pp_ring *ring);             /* NULL: empty */
uint32_t pp_ring_count(const struct pp_ring *ring);

/* Returns when an item is there, wake was called, or after wait_us: spins spin_us, then blocks on a
 * futex. A wake that came before the wait counts. */
void pp_ring_wait(struct pp_ring *ring, uint64_t spin_us, uint64_t wait_us);
void pp_ring_wake(struct pp_ring *ring);

#endif
