/*
 * Node memory: jemalloc arenas (one a NUMA node) with extent hooks that map, bind and ask for huge
 * pages; sanitizer builds take from the sanitizer's own allocator, so that every access is checked.
 * For indexes and scratch; K/V rows come from pages.h, which never moves them. Freed memory
 * is kept for the next taker for a second; it goes back to the system when something is taken or
 * given after that, or at a purge. The addresses stay the arena's until its end. Threads: any.
 */
#ifndef PIGPEN_COMMON_MEM_ARENA_H
#define PIGPEN_COMMON_MEM_ARENA_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/mem/pages.h"

struct pp_arena;

/* numa_node: -1 for any. PP_MEMORY. */
PP_MUST_USE enum pp_status pp_arena_new(int numa_node, enum pp_hugepages hugepages,
                                        struct pp_arena **arena_out);
/* Everything taken from it must have been freed. */
void pp_arena_destroy(struct pp_arena *arena);

/* 64-byte aligned, contents undefined. PP_MEMORY. */
PP_MUST_USE enum pp_status pp_arena_take(struct pp_arena *arena, uint64_t bytes, void **memory_out);
void pp_arena_give(struct pp_arena *arena, void *memory, uint64_t bytes);

/* Gives all freed memory back to the system now: for a node that has become idle. */
void pp_arena_purge(struct pp_arena *arena);

/* What the allocator says: bytes in use and bytes backed by memory (in use, fragments, and freed
 * ones on their way back). Takes a lock: for metrics, not for the step path. */
void pp_arena_usage(const struct pp_arena *arena, uint64_t *allocated_out, uint64_t *mapped_out);

#endif
