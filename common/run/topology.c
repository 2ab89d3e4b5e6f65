/*
 * hwloc, asked once. Who places what where, decides for itself.
 */
#include "common/run/topology.h"

#include <hwloc.h>
#include <string.h>

#include "common/base/log.h"

static uint32_t count(hwloc_topology_t machine, hwloc_obj_type_t type)
{
    int objects = hwloc_get_nbobjs_by_type(machine, type);
    return objects > 0 ? (uint32_t)objects : 1;
}

static void read_cpus(hwloc_const_bitmap_t cpuset, struct pp_numa_node *node)
{
    for (int cpu = hwloc_bitmap_first(cpuset); cpu >= 0 && cpu < (int)PP_CPUS_MAX;
         cpu = hwloc_bitmap_next(cpuset, cpu)) {
        node->cpus[cpu / 64] |= 1ull << (cpu % 64);
    }
}

static void read_nodes(hwloc_topology_t machine, struct pp_topology *topology)
{
    hwloc_obj_t node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, NULL);
    for (; node != NULL && topology->numa_node_count < PP_NUMA_NODES_MAX;
         node = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, node)) {
        int cpus = node->cpuset != NULL ? hwloc_bitmap_weight(node->cpuset) : 0;
        struct pp_numa_node *read = &topology->numa_nodes[topology->numa_node_count++];
        *read = (struct pp_numa_node){.os_index = (int)node->os_index,
                                      .memory_bytes = node->attr->numanode.local_memory,
                                      .cpu_count = cpus > 0 ? (uint32_t)cpus : 0};
        if (cpus > 0) {
            read_cpus(node->cpuset, read);
        }
    }
    if (topology->numa_node_count == 0) {
        topology->numa_node_count = 1;
        topology->numa_nodes[0] =
            (struct pp_numa_node){.os_index = 0, .cpu_count = topology->cpu_count};
    }
}

enum pp_status pp_topology_read(struct pp_topology *topology_out)
{
    hwloc_topology_t machine;
    struct pp_topology topology;
    memset(&topology, 0, sizeof(topology));
    if (hwloc_topology_init(&machine) != 0) {
        return PP_UNAVAILABLE;
    }
    /* Devices are not asked for: looking at them takes long. */
    if (hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_NONE) != 0 ||
        hwloc_topology_load(machine) != 0) {
        PP_LOG_WARNF("topology", "the machine cannot be read", "");
        hwloc_topology_destroy(machine);
        return PP_UNAVAILABLE;
    }
    topology.package_count = count(machine, HWLOC_OBJ_PACKAGE);
    topology.core_count = count(machine, HWLOC_OBJ_CORE);
    topology.cpu_count = count(machine, HWLOC_OBJ_PU);
    hwloc_obj_t cache = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_L3CACHE, NULL);
    topology.l3_cache_bytes = cache != NULL ? cache->attr->cache.size : 0;
    read_nodes(machine, &topology);
    hwloc_topology_destroy(machine);
    *topology_out = topology;
    return PP_OK;
}
