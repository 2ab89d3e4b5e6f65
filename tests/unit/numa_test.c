/*
 * Placement of kv heads over NUMA nodes, with made-up topologies, and binding on the real one.
 */
#include <stdarg.h>
#include <stddef.h>

#include <setjmp.h>

#include <cmocka.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/mem/numa.h"
#include "common/mem/pages.h"
#include "tests/unit/exec_fixture.h"

static struct pp_topology two_nodes(int first, int second)
{
    struct pp_topology topology = {.numa_node_count = 3};
    topology.numa_nodes[0] = (struct pp_numa_node){.os_index = first, .cpu_count = 4};
    topology.numa_nodes[1] = (struct pp_numa_node){.os_index = 7, .cpu_count = 0}; /* memory only */
    topology.numa_nodes[2] = (struct pp_numa_node){.os_index = second, .cpu_count = 4};
    return topology;
}

static void heads_take_turns_over_nodes_with_processors(void **state)
{
    (void)state;
    struct pp_numa numa;
    struct pp_topology topology = two_nodes(0, 3);
    pp_numa_init(&numa, &topology);
    assert_int_equal(numa.node_count, 2);
    for (uint32_t head = 0; head < 9; ++head) {
        assert_int_equal(numa.nodes[pp_numa_place(&numa, head)], head % 2 == 0 ? 0 : 3);
    }
    pp_numa_init(&numa, NULL);
    assert_int_equal(numa.node_count, 0);
    assert_int_equal(pp_numa_place(&numa, 5), 0);
}

static void binding_prefers_the_node_or_says_that_it_was_refused(void **state)
{
    (void)state;
    void *base;
    assert_int_equal(pp_pages_reserve(PP_PAGE_BYTES, &base), PP_OK);
    assert_true(pp_numa_bind(base, PP_PAGE_BYTES, -1));
    assert_false(pp_numa_bind(base, PP_PAGE_BYTES, 1000)); /* no machine has it */
    if (pp_numa_bind(base, PP_PAGE_BYTES, 0)) {
        int mode = -1;
        unsigned long mask[16] = {0};
        if (syscall(SYS_get_mempolicy, &mode, mask, 1024ul, base, MPOL_F_ADDR) == 0) {
            assert_int_equal(mode, MPOL_PREFERRED);
            assert_int_equal(mask[0], 1);
        }
    } else {
        print_message("binding is refused here: checked that it says so\n");
    }
    pp_pages_free(base, PP_PAGE_BYTES);
}

/* The first two processors, one each, where there are two: threads are bound to them. */
static void give_cpus(struct pp_topology *topology)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    (void)sched_getaffinity(0, sizeof(mask), &mask);
    uint32_t node = 0;
    for (int cpu = 0; cpu < (int)PP_CPUS_MAX && cpu < CPU_SETSIZE && node < 3; cpu++) {
        if (CPU_ISSET(cpu, &mask)) {
            topology->numa_nodes[node].cpus[cpu / 64] = 1ull << (cpu % 64);
            node += 2;
        }
    }
}

/* The second node is the first again, or one that is not there: answers do not depend on it, nor
 * on how many threads there are and where they run. */
static void a_node_answers_alike_however_its_memory_is_placed(void **state)
{
    (void)state;
    static const struct shape shape = {1, 6, 3, 32, PP_F32, {.kind = PP_LSH, .k = 6, .l = 40}};
    float q[6 * 32], first[6 * 32];
    struct pp_rng rng = {.seed = 5};
    for (int i = 0; i < 6 * 32; i++) {
        q[i] = (float)pp_rng_normal(&rng);
    }
    const uint32_t threads[] = {1, 1, 1, 1, 2, 2, 5};
    for (int round = 0; round < 7; round++) {
        struct fixture fixture = {.now_us = 1};
        struct an_exec_config config = fixture_config(&fixture);
        struct pp_topology topology = two_nodes(0, round == 1 ? 0 : 900);
        give_cpus(&topology);
        config.topology = round == 0 ? NULL : &topology;
        config.threads = threads[round];
        fixture_start(&fixture, &config);
        uint64_t handle = fixture_open(&fixture, &shape, 1);
        assert_int_equal(fixture_append(&fixture, handle, 1, &shape, 0, 0, 5000, 3, false), PP_OK);
        struct an_attend_item item;
        assert_int_equal(fixture_attend(&fixture, handle, 1, 0, 5000, 1, q, 6, 32, PP_LSH, &item),
                         PP_OK);
        assert_int_equal(item.used, PP_LSH);
        round == 0 ? (void)memcpy(first, item.o, sizeof(first))
                   : assert_memory_equal(first, item.o, sizeof(first));
        (void)fixture_close(&fixture, handle);
        fixture_expect_empty(&fixture);
        fixture_stop(&fixture);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_take_turns_over_nodes_with_processors),
        cmocka_unit_test(binding_prefers_the_node_or_says_that_it_was_refused),
        cmocka_unit_test(a_node_answers_alike_however_its_memory_is_placed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
