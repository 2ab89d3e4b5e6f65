/*
 * A bounded pool of buffers of one size, for payloads on their way. All address space is reserved
 * at start; a buffer takes memory when it is first used and keeps it for the next user until trim.
 * Buffers start on a page, so that kernels may load whole lines. Contents are undefined.
 * Threads: any; one short lock.
 */
#ifndef PIGPEN_COMMON_MEM_POOL_H
#define PIGPEN_COMMON_MEM_POOL_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/mem/pages.h"

struct pp_pool;

/* buffer_bytes is rounded up to a page. PP_MEMORY: no address space. */
PP_MUST_USE enum pp_status pp_pool_new(uint64_t buffer_bytes, uint32_t capacity,
                                       enum pp_hugepages hugepages, struct pp_pool **pool_out);
/* Every buffer must have been given back. NULL is fine. */
void pp_pool_destroy(struct pp_pool *pool);

/* PP_QUEUE: all are taken (try when one was given back); PP_MEMORY: the system has none. */
PP_MUST_USE enum pp_status pp_pool_take(struct pp_pool *pool, void **buffer_out);
/* Giving what is not taken from this pool, or twice, is a programmer's error. NULL is fine. */
void pp_pool_give(struct pp_pool *pool, void *buffer);

/* Gives the memory of idle buffers back to the system. */
void pp_pool_trim(struct pp_pool *pool);

uint64_t pp_pool_buffer_bytes(const struct pp_pool *pool);
uint32_t pp_pool_taken(struct pp_pool *pool);
/* Memory that the pool holds, taken and idle: what to count in a limit. */
uint64_t pp_pool_committed_bytes(struct pp_pool *pool);

#endif
