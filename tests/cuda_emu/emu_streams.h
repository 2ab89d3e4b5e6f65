/*
 * Inside the emulated driver: operations in queues, and what its files share. Nothing outside this
 * folder includes it.
 */
#ifndef PIGPEN_TESTS_CUDA_EMU_EMU_STREAMS_H
#define PIGPEN_TESTS_CUDA_EMU_EMU_STREAMS_H

#include "tests/cuda_emu/emu.h"
#include "tests/cuda_emu/emu_driver.h"

#define EMU_ARGS_BYTES_MAX 256u

/* Results that only the emulator gives. */
#define EMU_INVALID_VALUE     1u
#define EMU_CAPTURE_REFUSED   900u
#define EMU_CAPTURE_SPOILED   901u
#define EMU_CAPTURE_UNMATCHED 903u

enum emu_kind { EMU_COPY, EMU_FILL, EMU_LAUNCH, EMU_RECORD, EMU_WAIT };

struct emu_operation {
    struct emu_operation *next;
    enum emu_kind kind;
    void *to;
    const void *from;
    void *owned; /* pageable memory that was read when it was queued */
    size_t bytes;
    unsigned value;
    struct CUevent_st *event;
    uint64_t turn; /* of the event */
    struct emu_launch launch;
    _Alignas(16) uint8_t args[EMU_ARGS_BYTES_MAX];
};

struct CUstream_st {
    struct emu_operation *first, **last;
    uint32_t number;             /* of those that are there, in the order they were made */
    struct CUgraph_st *captured; /* NULL: what is queued runs */
    bool spoiled;                /* the capture met what it cannot hold */
};

/* At the end of a stream, or of the graph that it is captured into. */
struct emu_operation *emu_queue(struct CUstream_st *stream, enum emu_kind kind);
/* A call that a capture does not bear: the result it has then, and the capture is spoiled. */
unsigned emu_not_captured(struct CUstream_st *stream);
/* Whether any stream is captured; spoils all that are. */
bool emu_capturing(void);
void emu_run_until_empty(const struct CUstream_st *stream);
void emu_run_all(void);

/* Memory at an address is that of this number, which no other ever has; 0: there is none. */
uint64_t emu_memory_number(const void *at);

/* emu_streams.c and emu_graph.c: members of the driver. */
unsigned emu_stream_new(struct CUstream_st **stream_out, unsigned flags);
unsigned emu_stream_destroy(struct CUstream_st *stream);
unsigned emu_stream_synchronize(struct CUstream_st *stream);
unsigned emu_stream_wait(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags);
unsigned emu_event_new(struct CUevent_st **event_out, unsigned flags);
unsigned emu_event_destroy(struct CUevent_st *event);
unsigned emu_event_record(struct CUevent_st *event, struct CUstream_st *stream);
unsigned emu_event_query(struct CUevent_st *event);
unsigned emu_event_synchronize(struct CUevent_st *event);
unsigned emu_capture_begin(struct CUstream_st *stream, unsigned mode);
unsigned emu_capture_end(struct CUstream_st *stream, struct CUgraph_st **graph_out);
unsigned emu_capture_info(struct CUstream_st *stream, unsigned *status_out, uint64_t *id_out,
                          struct CUgraph_st **graph_out, struct CUgraphNode_st *const **nodes_out,
                          const struct CUgraphEdgeData_st **edges_out, size_t *count_out);
unsigned emu_graph_destroy(struct CUgraph_st *graph);
unsigned emu_exec_new(struct CUgraphExec_st **exec_out, struct CUgraph_st *graph,
                      unsigned long long flags);
unsigned emu_exec_destroy(struct CUgraphExec_st *exec);
unsigned emu_exec_set(struct CUgraphExec_st *exec, struct CUgraphNode_st *node,
                      const struct CUDA_KERNEL_NODE_PARAMS_v2_st *params);
unsigned emu_exec_launch(struct CUgraphExec_st *exec, struct CUstream_st *stream);
/* A node at the end of a graph. */
struct emu_operation *emu_graph_node(struct CUgraph_st *graph);
/* Whether the driver would launch it. */
bool emu_launch_allowed(const struct emu_kernel *kernel, uint32_t shared_bytes);

#endif
