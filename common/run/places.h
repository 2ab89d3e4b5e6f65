/*
 * Where the threads of a team run: the NUMA nodes with processors that this process may use, in the
 * topology's order. Threads are dealt out by processors, in order, so that each node gets its share
 * of them. Binding is to all of a node's processors, never to one. Threads: any.
 */
#ifndef PIGPEN_COMMON_RUN_PLACES_H
#define PIGPEN_COMMON_RUN_PLACES_H

#include <stdint.h>

#include "common/run/topology.h"

struct pp_places {
    uint64_t id;    /* of this init: a thread knows by it where it is bound already */
    uint32_t count; /* 0 and 1: nobody is bound */
    uint32_t cpu_count[PP_NUMA_NODES_MAX];
    uint64_t cpus[PP_NUMA_NODES_MAX][PP_CPU_WORDS];
};

/* topology NULL: none. */
void pp_places_init(struct pp_places *places, const struct pp_topology *topology);

/* The place of a team's thread, in [0, max(count, 1)). */
uint32_t pp_places_of(const struct pp_places *places, uint32_t thread, uint32_t threads);

/* Binds the calling thread to a place, or, with places NULL, to what it was bound to before. Costs
 * nothing where that is so already. What the system refuses is left as it is. */
void pp_places_bind(const struct pp_places *places, uint32_t place);

#endif
