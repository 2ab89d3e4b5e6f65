/*
 * The machine: what is read agrees with what the system says elsewhere.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <unistd.h>

#include "common/run/team.h"
#include "common/run/topology.h"

static void processors_agree_with_the_affinity_mask(void **state)
{
    (void)state;
    struct pp_topology topology;
    cpu_set_t mask;
    assert_int_equal(pp_topology_read(&topology), PP_OK);
    assert_int_equal(sched_getaffinity(0, sizeof(mask), &mask), 0);
    assert_true(topology.cpu_count >= (uint32_t)CPU_COUNT(&mask));
    assert_true(topology.cpu_count <= (uint32_t)sysconf(_SC_NPROCESSORS_CONF));
    assert_true(topology.core_count >= 1 && topology.core_count <= topology.cpu_count);
    assert_true(topology.package_count >= 1 && topology.package_count <= topology.core_count);
    assert_true(pp_team_threads_default() <= topology.cpu_count);
}

static void nodes_hold_all_processors(void **state)
{
    (void)state;
    struct pp_topology topology;
    uint32_t cpus = 0;
    assert_int_equal(pp_topology_read(&topology), PP_OK);
    assert_true(topology.numa_node_count >= 1 && topology.numa_node_count <= PP_NUMA_NODES_MAX);
    for (uint32_t index = 0; index < topology.numa_node_count; ++index) {
        assert_true(topology.numa_nodes[index].os_index >= 0);
        cpus += topology.numa_nodes[index].cpu_count;
    }
    assert_int_equal(cpus, topology.cpu_count);
    print_message("%u packages, %u cores, %u processors, %u NUMA nodes, L3 %llu bytes\n",
                  topology.package_count, topology.core_count, topology.cpu_count,
                  topology.numa_node_count, (unsigned long long)topology.l3_cache_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processors_agree_with_the_affinity_mask),
        cmocka_unit_test(nodes_hold_all_processors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
