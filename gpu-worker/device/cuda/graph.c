/*
 * Graphs of the CUDA device: operations noted between begin and end, then started together. The
 * first time a row of operations comes it is started one by one, which loads whatever is loaded
 * late; the second time it is captured; from then on it is one launch. What an operation is given
 * is compared with what its node has, every time: a kernel's node is set anew where a value, a
 * pointer or the grid differs, and a row that differs in anything else is another graph. So nothing
 * that a graph has kept can be out of date, whoever calls and whatever changed. (Kernels that read
 * such values from device memory would save those few calls a launch, but their grids would be
 * those of the largest case, and every kernel would have to be told of it.) It refuses to know what
 * is computed.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "gpu-worker/device/cuda/internal.h"

/* Rows of operations that a graph keeps: of several sizes of a batch, before and behind the first
 * answer of nodes. */
#define VARIANTS_MAX 8u

struct variant {
    struct gw_cuda_notes notes; /* what its nodes have; count 0: a free one */
    struct CUgraph_st *graph;   /* NULL: not captured yet */
    struct CUgraphExec_st *exec;
    struct CUgraphNode_st **nodes; /* [notes.count] those of launches */
};

struct gw_graph {
    struct variant variants[VARIANTS_MAX];
    uint32_t next; /* that is given up */
};

static enum pp_status notes_reserve(struct gw_cuda_notes *notes, uint32_t count)
{
    if (count <= notes->capacity) {
        return PP_OK;
    }
    uint32_t capacity = count + count / 2;
    struct gw_cuda_work *works =
        aligned_alloc(_Alignof(struct gw_cuda_work), capacity * sizeof(*works));
    if (works == NULL) {
        return PP_MEMORY;
    }
    if (notes->count > 0) {
        memcpy(works, notes->works, notes->count * sizeof(*works));
    }
    free(notes->works);
    notes->works = works;
    notes->capacity = capacity;
    return PP_OK;
}

enum pp_status gw_cuda_note(struct gw_cuda_device *cuda, const struct gw_cuda_work *work)
{
    struct gw_cuda_notes *notes = &cuda->notes;
    PP_TRY(notes_reserve(notes, notes->count + 1));
    notes->works[notes->count++] = *work;
    return PP_OK;
}

enum pp_status gw_cuda_needs_host(const struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                  const char *what)
{
    if (cuda->noted_on == NULL || cuda->noted_on != stream) {
        return PP_OK;
    }
    PP_LOG_ERRORF("device", "an operation cannot be part of a graph", "operation=%s", what);
    return PP_FAILED_PRECONDITION;
}

/* A node of a launch can be given anything but another kernel; other nodes stay as they are. */
static bool work_fits(const struct gw_cuda_work *had, const struct gw_cuda_work *now)
{
    if (had->kind != now->kind) {
        return false;
    }
    if (now->kind == GW_CUDA_LAUNCHES) {
        return had->kernel == now->kernel;
    }
    const struct gw_cuda_product *one = &had->product, *other = &now->product;
    return had->to == now->to && had->from == now->from && had->bytes == now->bytes &&
           had->value == now->value && one->type == other->type && one->rows == other->rows &&
           one->outputs == other->outputs && one->stride == other->stride &&
           one->out_stride == other->out_stride && one->x == other->x &&
           one->weights == other->weights && one->out == other->out &&
           one->factor == other->factor && one->kept == other->kept;
}

static struct variant *variant_of(struct gw_graph *graph, const struct gw_cuda_notes *notes)
{
    for (uint32_t i = 0; i < VARIANTS_MAX; i++) {
        struct variant *variant = &graph->variants[i];
        bool fits = variant->notes.count == notes->count;
        for (uint32_t at = 0; at < notes->count && fits; at++) {
            fits = work_fits(&variant->notes.works[at], &notes->works[at]);
        }
        if (fits) {
            return variant;
        }
    }
    return NULL;
}

static void variant_drop_captured(struct gw_cuda_device *cuda, struct variant *variant)
{
    if (variant->exec != NULL) {
        (void)cuda->driver->exec_destroy(variant->exec);
    }
    if (variant->graph != NULL) {
        (void)cuda->driver->graph_destroy(variant->graph);
    }
    free(variant->nodes);
    variant->exec = NULL;
    variant->graph = NULL;
    variant->nodes = NULL;
}

static enum pp_status variant_keep(struct variant *variant, const struct gw_cuda_notes *notes)
{
    PP_TRY(notes_reserve(&variant->notes, notes->count));
    memcpy(variant->notes.works, notes->works, notes->count * sizeof(*notes->works));
    variant->notes.count = notes->count;
    return PP_OK;
}

/* The first time: one by one, and from now on it is known. */
static enum pp_status graph_meet(struct gw_cuda_device *cuda, struct gw_graph *graph,
                                 struct CUstream_st *stream)
{
    const struct gw_cuda_notes *notes = &cuda->notes;
    struct variant *variant = &graph->variants[graph->next];
    graph->next = (graph->next + 1) % VARIANTS_MAX;
    variant_drop_captured(cuda, variant);
    variant->notes.count = 0;
    PP_TRY(variant_keep(variant, notes));
    cuda->graph_counts.started += notes->count;
    for (uint32_t i = 0; i < notes->count; i++) {
        PP_TRY(gw_cuda_start(cuda, stream, &notes->works[i]));
    }
    return PP_OK;
}

/* The node that was captured last. */
static enum pp_status node_captured(struct gw_cuda_device *cuda, struct CUstream_st *stream,
                                    struct CUgraphNode_st **node_out)
{
    unsigned state;
    uint64_t id;
    struct CUgraph_st *graph;
    struct CUgraphNode_st *const *nodes;
    const struct CUgraphEdgeData_st *edges;
    size_t count = 0;
    PP_TRY(gw_cuda_status(
        cuda->driver,
        cuda->driver->capture_info(stream, &state, &id, &graph, &nodes, &edges, &count),
        "capture info"));
    if (count != 1) {
        PP_LOG_ERRORF("device", "a launch was not captured as one node", "nodes=%zu", count);
        return PP_INTERNAL;
    }
    *node_out = nodes[0];
    return PP_OK;
}

static enum pp_status capture_works(struct gw_cuda_device *cuda, struct variant *variant,
                                    struct CUstream_st *stream)
{
    for (uint32_t i = 0; i < variant->notes.count; i++) {
        const struct gw_cuda_work *work = &variant->notes.works[i];
        PP_TRY(gw_cuda_start(cuda, stream, work));
        if (work->kind == GW_CUDA_LAUNCHES) {
            PP_TRY(node_captured(cuda, stream, &variant->nodes[i]));
        }
    }
    return PP_OK;
}

/* The second time. The capture is ended whatever comes in between. */
static enum pp_status graph_capture(struct gw_cuda_device *cuda, struct variant *variant,
                                    struct CUstream_st *stream)
{
    const struct gw_cuda_driver *driver = cuda->driver;
    PP_TRY(variant_keep(variant, &cuda->notes));
    variant->nodes = calloc(variant->notes.count, sizeof(struct CUgraphNode_st *));
    if (variant->nodes == NULL) {
        return PP_MEMORY;
    }
    PP_TRY(
        gw_cuda_status(driver, driver->capture_begin(stream, GW_CUDA_CAPTURE_THREAD), "capture"));
    enum pp_status works = capture_works(cuda, variant, stream);
    enum pp_status ended =
        gw_cuda_status(driver, driver->capture_end(stream, &variant->graph), "capture's end");
    PP_TRY(works);
    PP_TRY(ended);
    PP_TRY(gw_cuda_status(driver, driver->exec_new(&variant->exec, variant->graph, 0), "graph"));
    cuda->graph_counts.captured += 1;
    return PP_OK;
}

static enum pp_status node_set(struct gw_cuda_device *cuda, struct variant *variant, uint32_t at,
                               const struct gw_cuda_work *work)
{
    const struct gw_cuda_shape *shape = &work->shape;
    void *arguments[1] = {(void *)(uintptr_t)work->args};
    const struct gw_cuda_node_params params = {.function = cuda->functions[work->kernel],
                                               .grid_x = shape->grid_x,
                                               .grid_y = shape->grid_y,
                                               .grid_z = shape->grid_z,
                                               .threads_x = shape->threads,
                                               .threads_y = 1,
                                               .threads_z = 1,
                                               .shared_bytes = shape->shared_bytes,
                                               .arguments = arguments};
    const void *given = &params; /* of the same layout: prototypes.c */
    PP_TRY(gw_cuda_allow(cuda, work->kernel, shape->shared_bytes));
    PP_TRY(gw_cuda_status(cuda->driver,
                          cuda->driver->exec_set(variant->exec, variant->nodes[at], given),
                          "graph's node"));
    variant->notes.works[at] = *work;
    cuda->graph_counts.updated += 1;
    return PP_OK;
}

static bool launch_differs(const struct gw_cuda_work *had, const struct gw_cuda_work *now)
{
    return memcmp(&had->shape, &now->shape, sizeof(now->shape)) != 0 ||
           memcmp(had->args, now->args, now->args_bytes) != 0;
}

static enum pp_status graph_update(struct gw_cuda_device *cuda, struct variant *variant)
{
    for (uint32_t i = 0; i < cuda->notes.count; i++) {
        const struct gw_cuda_work *work = &cuda->notes.works[i];
        if (work->kind == GW_CUDA_LAUNCHES && launch_differs(&variant->notes.works[i], work)) {
            PP_TRY(node_set(cuda, variant, i, work));
        }
    }
    return PP_OK;
}

static enum pp_status graph_run(struct gw_cuda_device *cuda, struct gw_graph *graph,
                                struct CUstream_st *stream)
{
    struct variant *variant = variant_of(graph, &cuda->notes);
    if (variant == NULL) {
        return graph_meet(cuda, graph, stream);
    }
    enum pp_status status =
        variant->exec == NULL ? graph_capture(cuda, variant, stream) : graph_update(cuda, variant);
    if (status != PP_OK) {
        variant_drop_captured(cuda, variant);
        variant->notes.count = 0;
        PP_LOG_ERRORF("device", "a graph could not be made", "without=--no-device-graphs nodes=%u",
                      cuda->notes.count);
        return status;
    }
    cuda->graph_counts.launched += 1;
    return gw_cuda_status(cuda->driver, cuda->driver->exec_launch(variant->exec, stream),
                          "graph's launch");
}

enum pp_status gw_cuda_graph_new(struct gw_device *device, struct gw_graph **graph_out)
{
    (void)device;
    *graph_out = calloc(1, sizeof(**graph_out));
    return *graph_out == NULL ? PP_MEMORY : PP_OK;
}

void gw_cuda_graph_destroy(struct gw_device *device, struct gw_graph *graph)
{
    for (uint32_t i = 0; graph != NULL && i < VARIANTS_MAX; i++) {
        variant_drop_captured(gw_cuda_device(device), &graph->variants[i]);
        free(graph->variants[i].notes.works);
    }
    free(graph);
}

enum pp_status gw_cuda_graph_begin(struct gw_device *device, struct gw_graph *graph,
                                   struct gw_stream *stream)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    (void)graph;
    PP_ASSERT(cuda->noted_on == NULL);
    cuda->notes.count = 0;
    cuda->noted_on = gw_cuda_stream(cuda, stream);
    return PP_OK;
}

enum pp_status gw_cuda_graph_end(struct gw_device *device, struct gw_graph *graph,
                                 enum pp_status failed)
{
    struct gw_cuda_device *cuda = gw_cuda_device(device);
    struct CUstream_st *stream = cuda->noted_on;
    PP_ASSERT(stream != NULL);
    cuda->noted_on = NULL;
    PP_TRY(failed);
    return cuda->notes.count == 0 ? PP_OK : graph_run(cuda, graph, stream);
}
