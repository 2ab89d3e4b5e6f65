/*
 * Compares the declarations of driver.h and cublaslt.h with the CUDA toolkit's: compiled where that
 * is at hand, as an object that nothing links. A difference does not compile: the library's own
 * functions are assigned to the tables' members, whose opaque types are the library's here.
 */
#include <cublasLt.h>
#include <cuda.h>

#include "common/base/assert.h"

#define GW_CUBLASLT_TYPES
typedef cublasLtHandle_t gw_cublaslt_handle;
typedef cublasLtMatmulDesc_t gw_cublaslt_product;
typedef cublasLtMatrixLayout_t gw_cublaslt_layout;
typedef cublasLtMatmulPreference_t gw_cublaslt_preference;
#define GW_CUBLASLT_ALGORITHM cublasLtMatmulAlgo_t
#define GW_CUBLASLT_CHOICE    cublasLtMatmulHeuristicResult_t

#include "gpu-worker/device/cuda/cublaslt.h"
#include "gpu-worker/device/cuda/driver.h"

extern const struct gw_cuda_driver gw_cuda_driver_compared;
const struct gw_cuda_driver gw_cuda_driver_compared = {
#define COMPARED(member, symbol, arguments) .member = symbol,
    GW_CUDA_DRIVER_FUNCTIONS(COMPARED)
#undef COMPARED
};

extern const struct gw_cublaslt gw_cublaslt_compared;
const struct gw_cublaslt gw_cublaslt_compared = {
#define COMPARED(member, symbol, arguments) .member = symbol,
    GW_CUBLASLT_FUNCTIONS(COMPARED)
#undef COMPARED
};

#define SAME(ours, theirs) PP_STATIC_ASSERT((ours) == (theirs), #ours " is not " #theirs)
SAME(GW_CUDA_SUCCESS, CUDA_SUCCESS);
SAME(GW_CUDA_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(GW_CUDA_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(GW_CUDA_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(GW_CUDA_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(GW_CUDA_SM_COUNT, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(GW_CUDA_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(GW_CUDA_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(GW_CUDA_SHARED_MAX, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(GW_CUDA_FUNCTION_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(GW_CUDA_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(GW_CUDA_STREAM_APART, CU_STREAM_NON_BLOCKING);
SAME(GW_CUDA_EVENT_UNTIMED, CU_EVENT_DISABLE_TIMING);
SAME(GW_CUDA_CAPTURE_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(sizeof(struct gw_cuda_node_params), sizeof(CUDA_KERNEL_NODE_PARAMS));
SAME(offsetof(struct gw_cuda_node_params, function), offsetof(CUDA_KERNEL_NODE_PARAMS, func));
SAME(offsetof(struct gw_cuda_node_params, grid_x), offsetof(CUDA_KERNEL_NODE_PARAMS, gridDimX));
SAME(offsetof(struct gw_cuda_node_params, threads_x), offsetof(CUDA_KERNEL_NODE_PARAMS, blockDimX));
SAME(offsetof(struct gw_cuda_node_params, shared_bytes),
     offsetof(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes));
SAME(offsetof(struct gw_cuda_node_params, arguments),
     offsetof(CUDA_KERNEL_NODE_PARAMS, kernelParams));

SAME(sizeof(struct gw_cublaslt_algorithm), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(struct gw_cublaslt_choice), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(struct gw_cublaslt_choice, workspace_bytes),
     offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
SAME(offsetof(struct gw_cublaslt_choice, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
SAME(GW_CUBLASLT_COMPUTE_F32, CUBLAS_COMPUTE_32F);
SAME(GW_CUBLASLT_TYPE_F32, CUDA_R_32F);
SAME(GW_CUBLASLT_TYPE_F16, CUDA_R_16F);
SAME(GW_CUBLASLT_TYPE_BF16, CUDA_R_16BF);
SAME(GW_CUBLASLT_POINTER_MODE, CUBLASLT_MATMUL_DESC_POINTER_MODE);
SAME(GW_CUBLASLT_TRANSPOSE_A, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(GW_CUBLASLT_POINTERS_DEVICE, CUBLASLT_POINTER_MODE_DEVICE);
SAME(GW_CUBLASLT_TRANSPOSED, CUBLAS_OP_T);
SAME(GW_CUBLASLT_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(GW_CUBLASLT_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(GW_CUBLASLT_ALIGNMENT_A_BYTES + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
