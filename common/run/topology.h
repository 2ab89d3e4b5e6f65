/*
 * The machine as this process sees it: NUMA nodes, cores, caches. Read once at start, for placing
 * memory and for the first line of the log. Threads: any.
 */
#ifndef PIGPEN_COMMON_RUN_TOPOLOGY_H
#define PIGPEN_COMMON_RUN_TOPOLOGY_H

#include <stdint.h>

#include "common/base/status.h"

#define PP_NUMA_NODES_MAX 64u
#define PP_CPUS_MAX       1024u
#define PP_CPU_WORDS      (PP_CPUS_MAX / 64u)

struct pp_numa_node {
    int os_index;                /* what mem/arena.h takes */
    uint64_t memory_bytes;       /* 0: not known */
    uint32_t cpu_count;          /* processors of it that this process may use */
    uint64_t cpus[PP_CPU_WORDS]; /* which, by the system's numbers; those above are left out */
};

struct pp_topology {
    uint32_t package_count;
    uint32_t core_count;
    uint32_t cpu_count;      /* hardware threads */
    uint64_t l3_cache_bytes; /* of one last-level cache; 0: not known */
    uint32_t numa_node_count;
    struct pp_numa_node numa_nodes[PP_NUMA_NODES_MAX]; /* more are left out */
};

/* Only what the affinity mask and cpuset allow counts. At least one of each. PP_UNAVAILABLE when
 * the system tells nothing. */
PP_MUST_USE enum pp_status pp_topology_read(struct pp_topology *topology_out);

#endif
