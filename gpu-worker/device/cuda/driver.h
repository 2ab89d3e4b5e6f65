/*
 * The CUDA driver as a table of functions, and its errors as pp_status. The real one is opened at
 * run time (libcuda.so.1), so that programs link and start where there is none; tests give another
 * one. Names and types are those of cuda.h, compared with it where the CUDA toolkit is at hand
 * (prototypes.c). Pointers of the device are numbers of 64 bits. One thread.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_DRIVER_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUgraphNode_st;
struct CUgraphEdgeData_st;
struct CUDA_KERNEL_NODE_PARAMS_v2_st;

typedef unsigned long long gw_cuda_pointer;

/* Results and constants of cuda.h that the device uses. */
#define GW_CUDA_SUCCESS         0u
#define GW_CUDA_OUT_OF_MEMORY   2u
#define GW_CUDA_NO_DEVICE       100u
#define GW_CUDA_NOT_FOUND       500u
#define GW_CUDA_NOT_READY       600u
#define GW_CUDA_SM_COUNT        16u /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
#define GW_CUDA_MAJOR           75u
#define GW_CUDA_MINOR           76u
#define GW_CUDA_SHARED_MAX      97u /* ..._MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
#define GW_CUDA_FUNCTION_SHARED 8u  /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
#define GW_CUDA_HOST_PORTABLE   1u
#define GW_CUDA_STREAM_APART    1u /* CU_STREAM_NON_BLOCKING */
#define GW_CUDA_EVENT_UNTIMED   2u /* CU_EVENT_DISABLE_TIMING */
#define GW_CUDA_CAPTURE_THREAD  1u /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */

/* CUDA_KERNEL_NODE_PARAMS, member by member; passed as its own type. */
struct gw_cuda_node_params {
    struct CUfunc_st *function;
    unsigned grid_x, grid_y, grid_z, threads_x, threads_y, threads_z, shared_bytes;
    void **arguments, **extra;
    void *kernel, *context;
};

/* X(member, symbol of the library, types of its arguments); each returns a CUresult. */
#define GW_CUDA_DRIVER_FUNCTIONS(X)                                                                \
    X(init, cuInit, (unsigned flags))                                                              \
    X(driver_version, cuDriverGetVersion, (int *version_out))                                      \
    X(device_count, cuDeviceGetCount, (int *count_out))                                            \
    X(device_get, cuDeviceGet, (int *device_out, int ordinal))                                     \
    X(device_name, cuDeviceGetName, (char *name_out, int bytes, int device))                       \
    X(device_attribute, cuDeviceGetAttribute, (int *value_out, unsigned attribute, int device))    \
    X(context_retain, cuDevicePrimaryCtxRetain, (struct CUctx_st * *context_out, int device))      \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (int device))                                 \
    X(context_use, cuCtxSetCurrent, (struct CUctx_st * context))                                   \
    X(module_load, cuModuleLoadData, (struct CUmod_st * *module_out, const void *image))           \
    X(module_unload, cuModuleUnload, (struct CUmod_st * module))                                   \
    X(module_function, cuModuleGetFunction,                                                        \
      (struct CUfunc_st * *function_out, struct CUmod_st * module, const char *name))              \
    X(function_set, cuFuncSetAttribute,                                                            \
      (struct CUfunc_st * function, unsigned attribute, int value))                                \
    X(alloc, cuMemAlloc_v2, (gw_cuda_pointer * pointer_out, size_t bytes))                         \
    X(free, cuMemFree_v2, (gw_cuda_pointer pointer))                                               \
    X(alloc_host, cuMemHostAlloc, (void **memory_out, size_t bytes, unsigned flags))               \
    X(free_host, cuMemFreeHost, (void *memory))                                                    \
    X(copy_in, cuMemcpyHtoDAsync_v2,                                                               \
      (gw_cuda_pointer to, const void *from, size_t bytes, struct CUstream_st *stream))            \
    X(copy_out, cuMemcpyDtoHAsync_v2,                                                              \
      (void *to, gw_cuda_pointer from, size_t bytes, struct CUstream_st *stream))                  \
    X(copy_within, cuMemcpyDtoDAsync_v2,                                                           \
      (gw_cuda_pointer to, gw_cuda_pointer from, size_t bytes, struct CUstream_st * stream))       \
    X(fill, cuMemsetD32Async,                                                                      \
      (gw_cuda_pointer to, unsigned value, size_t count, struct CUstream_st *stream))              \
    X(stream_new, cuStreamCreate, (struct CUstream_st * *stream_out, unsigned flags))              \
    X(stream_destroy, cuStreamDestroy_v2, (struct CUstream_st * stream))                           \
    X(stream_synchronize, cuStreamSynchronize, (struct CUstream_st * stream))                      \
    X(stream_wait, cuStreamWaitEvent,                                                              \
      (struct CUstream_st * stream, struct CUevent_st * event, unsigned flags))                    \
    X(event_new, cuEventCreate, (struct CUevent_st * *event_out, unsigned flags))                  \
    X(event_destroy, cuEventDestroy_v2, (struct CUevent_st * event))                               \
    X(event_record, cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))       \
    X(event_query, cuEventQuery, (struct CUevent_st * event))                                      \
    X(event_synchronize, cuEventSynchronize, (struct CUevent_st * event))                          \
    X(launch, cuLaunchKernel,                                                                      \
      (struct CUfunc_st * function, unsigned grid_x, unsigned grid_y, unsigned grid_z,             \
       unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,          \
       struct CUstream_st *stream, void **arguments, void **extra))                                \
    X(capture_begin, cuStreamBeginCapture_v2, (struct CUstream_st * stream, unsigned mode))        \
    X(capture_end, cuStreamEndCapture,                                                             \
      (struct CUstream_st * stream, struct CUgraph_st * *graph_out))                               \
    X(capture_info, cuStreamGetCaptureInfo_v3,                                                     \
      (struct CUstream_st * stream, unsigned *status_out, uint64_t *id_out,                        \
       struct CUgraph_st **graph_out, struct CUgraphNode_st *const **nodes_out,                    \
       const struct CUgraphEdgeData_st **edges_out, size_t *count_out))                            \
    X(graph_destroy, cuGraphDestroy, (struct CUgraph_st * graph))                                  \
    X(exec_new, cuGraphInstantiateWithFlags,                                                       \
      (struct CUgraphExec_st * *exec_out, struct CUgraph_st * graph, unsigned long long flags))    \
    X(exec_destroy, cuGraphExecDestroy, (struct CUgraphExec_st * exec))                            \
    X(exec_set, cuGraphExecKernelNodeSetParams_v2,                                                 \
      (struct CUgraphExec_st * exec, struct CUgraphNode_st * node,                                 \
       const struct CUDA_KERNEL_NODE_PARAMS_v2_st *params))                                        \
    X(exec_launch, cuGraphLaunch, (struct CUgraphExec_st * exec, struct CUstream_st * stream))     \
    X(error_name, cuGetErrorName, (unsigned error, const char **name_out))                         \
    X(error_text, cuGetErrorString, (unsigned error, const char **text_out))

struct gw_cuda_driver {
#define GW_CUDA_DRIVER_MEMBER(member, symbol, arguments) unsigned(*member) arguments;
    GW_CUDA_DRIVER_FUNCTIONS(GW_CUDA_DRIVER_MEMBER)
#undef GW_CUDA_DRIVER_MEMBER
};

/* The driver of this machine, opened once and kept. PP_UNAVAILABLE: there is none, or it lacks a
 * function; error_out names the library and what is wrong. */
PP_MUST_USE enum pp_status gw_cuda_driver_open(char *error_out, size_t error_bytes,
                                               const struct gw_cuda_driver **driver_out);

/* A result as a status: PP_OK, PP_MEMORY, PP_UNAVAILABLE (no device) or PP_INTERNAL, logged with
 * its name and `what` was done. */
PP_MUST_USE enum pp_status gw_cuda_status(const struct gw_cuda_driver *driver, unsigned result,
                                          const char *what);
/* "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)", in text_out. */
void gw_cuda_describe(const struct gw_cuda_driver *driver, unsigned result, char *text_out,
                      size_t text_bytes);

/* A library's functions by name, into a table of pointers as it lies in memory; the first that is
 * missing goes to *missing_out. PP_UNAVAILABLE. */
struct gw_cuda_symbol {
    const char *name;
    size_t offset;
};
PP_MUST_USE enum pp_status gw_cuda_symbols(void *library, const struct gw_cuda_symbol *symbols,
                                           size_t count, void *table_out, const char **missing_out);

#endif
