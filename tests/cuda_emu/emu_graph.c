/*
 * Graphs of the emulated driver. What is queued on a stream that is captured becomes a node; an
 * executable graph is a copy of the nodes, whose kernels can be given other arguments, and a launch
 * queues them all. Memory that a node was given is known by its number: a launch whose node points
 * to memory that was freed since, or given out again, fails.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_emu/emu_streams.h"

#define NODES_MAX    256u
#define POINTERS_MAX (EMU_ARGS_BYTES_MAX / sizeof(void *))

struct CUgraphNode_st {
    uint32_t at;
    struct emu_operation operation;
};

struct CUgraph_st {
    struct CUgraphNode_st *nodes[NODES_MAX];
    uint32_t count;
};

struct exec_node {
    struct emu_operation operation;
    struct {
        const void *at;
        uint64_t number;
    } memory[POINTERS_MAX];
    uint32_t memory_count;
};

struct CUgraphExec_st {
    struct CUgraph_st *graph;
    uint32_t count;
    struct exec_node nodes[];
};

unsigned emu_capture_begin(struct CUstream_st *stream, unsigned mode)
{
    if (stream->captured != NULL || mode != GW_CUDA_CAPTURE_THREAD) {
        return EMU_INVALID_VALUE;
    }
    stream->captured = calloc(1, sizeof(*stream->captured));
    stream->spoiled = emu_machine.capture_refused;
    return stream->captured == NULL ? GW_CUDA_OUT_OF_MEMORY : GW_CUDA_SUCCESS;
}

unsigned emu_capture_end(struct CUstream_st *stream, struct CUgraph_st **graph_out)
{
    if (stream->captured == NULL) {
        return EMU_CAPTURE_UNMATCHED;
    }
    struct CUgraph_st *graph = stream->captured;
    stream->captured = NULL;
    if (stream->spoiled) {
        (void)emu_graph_destroy(graph);
        return EMU_CAPTURE_SPOILED;
    }
    emu_counts.captures++;
    *graph_out = graph;
    return GW_CUDA_SUCCESS;
}

unsigned emu_capture_info(struct CUstream_st *stream, unsigned *status_out, uint64_t *id_out,
                          struct CUgraph_st **graph_out, struct CUgraphNode_st *const **nodes_out,
                          const struct CUgraphEdgeData_st **edges_out, size_t *count_out)
{
    struct CUgraph_st *graph = stream->captured;
    *status_out = graph == NULL ? 0 : 1;
    *id_out = 1;
    *graph_out = graph;
    *edges_out = NULL;
    *count_out = graph == NULL || graph->count == 0 ? 0 : 1;
    *nodes_out = *count_out == 0 ? NULL : &graph->nodes[graph->count - 1];
    return GW_CUDA_SUCCESS;
}

struct emu_operation *emu_graph_node(struct CUgraph_st *graph)
{
    struct CUgraphNode_st *node = calloc(1, sizeof(*node));
    if (node == NULL || graph->count == NODES_MAX) {
        emu_fail("too many nodes of a graph, or no memory");
    }
    node->at = graph->count;
    graph->nodes[graph->count++] = node;
    return &node->operation;
}

unsigned emu_graph_destroy(struct CUgraph_st *graph)
{
    for (uint32_t i = 0; i < graph->count; i++) {
        free(graph->nodes[i]->operation.owned);
        free(graph->nodes[i]);
    }
    free(graph);
    return GW_CUDA_SUCCESS;
}

static void node_remember(struct exec_node *node, const void *at)
{
    uint64_t number = emu_memory_number(at);
    if (number != 0) {
        node->memory[node->memory_count].at = at;
        node->memory[node->memory_count++].number = number;
    }
}

/* Whatever of what a node was given is an address of memory. */
static void node_remember_all(struct exec_node *node)
{
    struct emu_operation *operation = &node->operation;
    node->memory_count = 0;
    if (operation->kind != EMU_LAUNCH) {
        node_remember(node, operation->to);
        node_remember(node, operation->from);
        return;
    }
    operation->launch.args = operation->args;
    for (size_t i = 0; i < operation->launch.kernel->args_bytes / sizeof(void *); i++) {
        const void *at;
        memcpy(&at, operation->args + i * sizeof(at), sizeof(at));
        node_remember(node, at);
    }
}

unsigned emu_exec_new(struct CUgraphExec_st **exec_out, struct CUgraph_st *graph,
                      unsigned long long flags)
{
    (void)flags;
    struct CUgraphExec_st *exec = calloc(1, sizeof(*exec) + graph->count * sizeof(exec->nodes[0]));
    if (exec == NULL) {
        return GW_CUDA_OUT_OF_MEMORY;
    }
    exec->graph = graph;
    exec->count = graph->count;
    for (uint32_t i = 0; i < graph->count; i++) {
        exec->nodes[i].operation = graph->nodes[i]->operation;
        node_remember_all(&exec->nodes[i]);
    }
    *exec_out = exec;
    return GW_CUDA_SUCCESS;
}

unsigned emu_exec_destroy(struct CUgraphExec_st *exec)
{
    free(exec);
    return GW_CUDA_SUCCESS;
}

unsigned emu_exec_set(struct CUgraphExec_st *exec, struct CUgraphNode_st *node,
                      const struct CUDA_KERNEL_NODE_PARAMS_v2_st *params)
{
    const struct gw_cuda_node_params *given = (const void *)params;
    const struct emu_kernel *kernel = (const struct emu_kernel *)given->function;
    struct exec_node *own = &exec->nodes[node->at];
    emu_counts.node_sets++;
    if (exec->graph->nodes[node->at] != node || own->operation.kind != EMU_LAUNCH ||
        own->operation.launch.kernel != kernel || given->threads_y != 1 || given->threads_z != 1 ||
        given->extra != NULL || !emu_launch_allowed(kernel, given->shared_bytes)) {
        emu_fail("a node is given what it cannot have");
    }
    if (emu_machine.sets_lost) {
        return GW_CUDA_SUCCESS;
    }
    memcpy(own->operation.args, given->arguments[0], kernel->args_bytes);
    own->operation.launch =
        (struct emu_launch){.kernel = kernel,
                            .grid = {given->grid_x, given->grid_y, given->grid_z},
                            .threads = given->threads_x,
                            .shared_bytes = given->shared_bytes};
    node_remember_all(own);
    return GW_CUDA_SUCCESS;
}

unsigned emu_exec_launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
    emu_counts.graph_launches++;
    for (uint32_t i = 0; i < exec->count; i++) {
        const struct exec_node *node = &exec->nodes[i];
        for (uint32_t j = 0; j < node->memory_count; j++) {
            if (emu_memory_number(node->memory[j].at) != node->memory[j].number) {
                emu_fail("a node of a graph points to memory that was freed since");
            }
        }
        struct emu_operation *operation = emu_queue(stream, node->operation.kind);
        struct emu_operation *next = operation->next;
        *operation = node->operation;
        operation->next = next;
        operation->owned = NULL;
        operation->launch.args = operation->args;
    }
    return GW_CUDA_SUCCESS;
}
