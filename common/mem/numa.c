/*
 * Binding memory to NUMA nodes by the system call itself: libnuma would be a dependency for one
 * function. Whose memory it is, the caller knows.
 */
#include "common/mem/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"

#define NODES_MAX 1024u
#define WORD_BITS (8u * (unsigned)sizeof(unsigned long))

void pp_numa_init(struct pp_numa *numa, const struct pp_topology *topology)
{
    memset(numa, 0, sizeof(*numa));
    for (uint32_t i = 0; topology != NULL && i < topology->numa_node_count; ++i) {
        if (topology->numa_nodes[i].cpu_count > 0) {
            numa->nodes[numa->node_count++] = topology->numa_nodes[i].os_index;
        }
    }
}

uint32_t pp_numa_place(const struct pp_numa *numa, uint32_t kv_head)
{
    return numa->node_count > 1 ? kv_head % numa->node_count : 0;
}

static void tell_once(int node, int error)
{
    static atomic_bool told;
    if (!atomic_exchange(&told, true)) {
        PP_LOG_WARNF("numa", "memory is not bound to NUMA nodes: the system refuses",
                     "node=%d errno=%d", node, error);
    }
}

bool pp_numa_bind(void *memory, uint64_t bytes, int node)
{
    if (node < 0) {
        return true;
    }
    unsigned long mask[NODES_MAX / WORD_BITS] = {0};
    if ((unsigned)node >= NODES_MAX - 1) {
        return false;
    }
    mask[(unsigned)node / WORD_BITS] = 1ul << ((unsigned)node % WORD_BITS);
    if (syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, mask, NODES_MAX, 0) != 0) {
        tell_once(node, errno);
        return false;
    }
    return true;
}
