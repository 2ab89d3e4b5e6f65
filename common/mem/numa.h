/*
 * Which NUMA node the memory of a kv head lies on. With more than one node the heads take turns, so
 * that rows and indexes are spread over all memory controllers, instead of lying where the one
 * thread that stored them ran; with one node nothing is bound. Binding prefers a node and never
 * insists: a full node spills over, and where the system refuses (containers), memory lies where
 * it falls, which is logged once. Threads: any.
 */
#ifndef PIGPEN_COMMON_MEM_NUMA_H
#define PIGPEN_COMMON_MEM_NUMA_H

#include <stdbool.h>
#include <stdint.h>

#include "common/run/topology.h"

struct pp_numa {
    uint32_t node_count;          /* 0 and 1: nothing is bound */
    int nodes[PP_NUMA_NODES_MAX]; /* as the system numbers them */
};

/* The nodes with processors that this process may use; topology NULL: none. */
void pp_numa_init(struct pp_numa *numa, const struct pp_topology *topology);

/* Which of the nodes, in [0, max(node_count, 1)). */
uint32_t pp_numa_place(const struct pp_numa *numa, uint32_t kv_head);

/* Asks that pages of [memory, memory + bytes) come from the node, before they are touched. node -1:
 * any. False when the system refuses. */
bool pp_numa_bind(void *memory, uint64_t bytes, int node);

#endif
