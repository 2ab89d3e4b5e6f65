/*
 * The functions of cuBLASLt that products need, with the types of cublasLt.h, compared with it
 * where the CUDA toolkit is at hand (prototypes.c). Only cublaslt.c calls them.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_CUBLASLT_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

struct CUstream_st;
struct cublasLtContext;

struct gw_cublaslt_algorithm {
    uint64_t data[8];
};

struct gw_cublaslt_choice {
    struct gw_cublaslt_algorithm algorithm;
    size_t workspace_bytes;
    unsigned state;
    float waves;
    int reserved[4];
};

#define GW_CUBLASLT_COMPUTE_F32       68u
#define GW_CUBLASLT_TYPE_F32          0u
#define GW_CUBLASLT_TYPE_F16          2u
#define GW_CUBLASLT_TYPE_BF16         14u
#define GW_CUBLASLT_POINTER_MODE      2u /* attribute of a product: int32 */
#define GW_CUBLASLT_TRANSPOSE_A       3u
#define GW_CUBLASLT_POINTERS_DEVICE   1
#define GW_CUBLASLT_TRANSPOSED        1
#define GW_CUBLASLT_WORKSPACE_BYTES   1u /* attribute of a preference: uint64 */
#define GW_CUBLASLT_ALIGNMENT_A_BYTES 5u /* uint32; B, C and D follow */

/* X(member, symbol of the library, types of its arguments); each returns a cublasStatus_t.
 * Descriptors are opaque. */
#define GW_CUBLASLT_FUNCTIONS(X)                                                                   \
    X(create, cublasLtCreate, (void **handle_out))                                                 \
    X(destroy, cublasLtDestroy, (void *handle))                                                    \
    X(product_new, cublasLtMatmulDescCreate,                                                       \
      (void **product_out, unsigned compute, unsigned scale_type))                                 \
    X(product_set, cublasLtMatmulDescSetAttribute,                                                 \
      (void *product, unsigned attribute, const void *value, size_t bytes))                        \
    X(product_destroy, cublasLtMatmulDescDestroy, (void *product))                                 \
    X(layout_new, cublasLtMatrixLayoutCreate,                                                      \
      (void **layout_out, unsigned type, uint64_t rows, uint64_t columns, int64_t stride))         \
    X(layout_destroy, cublasLtMatrixLayoutDestroy, (void *layout))                                 \
    X(preference_new, cublasLtMatmulPreferenceCreate, (void **preference_out))                     \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute,                                        \
      (void *preference, unsigned attribute, const void *value, size_t bytes))                     \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy, (void *preference))                     \
    X(choose, cublasLtMatmulAlgoGetHeuristic,                                                      \
      (void *handle, void *product, void *a, void *b, void *c, void *d, void *preference,          \
       int wanted, struct gw_cublaslt_choice *choices_out, int *count_out))                        \
    X(multiply, cublasLtMatmul,                                                                    \
      (void *handle, void *product, const void *alpha, const void *a, void *a_layout,              \
       const void *b, void *b_layout, const void *beta, const void *c, void *c_layout, void *d,    \
       void *d_layout, const struct gw_cublaslt_algorithm *algorithm, void *workspace,             \
       size_t workspace_bytes, struct CUstream_st *stream))

struct gw_cublaslt {
#define GW_CUBLASLT_MEMBER(member, symbol, arguments) unsigned(*member) arguments;
    GW_CUBLASLT_FUNCTIONS(GW_CUBLASLT_MEMBER)
#undef GW_CUBLASLT_MEMBER
};

#endif
