/*
 * The functions of cuBLASLt that products need, with the types of cublasLt.h, compared with it
 * where the CUDA toolkit is at hand (prototypes.c). Only cublaslt.c calls them.
 */
#ifndef PIGPEN_GPU_WORKER_DEVICE_CUDA_CUBLASLT_H
#define PIGPEN_GPU_WORKER_DEVICE_CUDA_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

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

/* Descriptors are opaque; whoever compares has named the library's types instead. */
#ifndef GW_CUBLASLT_TYPES
typedef void *gw_cublaslt_handle;
typedef void *gw_cublaslt_product;
typedef void *gw_cublaslt_layout;
typedef void *gw_cublaslt_preference;
#define GW_CUBLASLT_ALGORITHM struct gw_cublaslt_algorithm
#define GW_CUBLASLT_CHOICE    struct gw_cublaslt_choice
#endif

/* X(member, symbol of the library, types of its arguments); each returns a cublasStatus_t. */
#define GW_CUBLASLT_FUNCTIONS(X)                                                                   \
    X(create, cublasLtCreate, (gw_cublaslt_handle * handle_out))                                   \
    X(destroy, cublasLtDestroy, (gw_cublaslt_handle handle))                                       \
    X(product_new, cublasLtMatmulDescCreate,                                                       \
      (gw_cublaslt_product * product_out, unsigned compute, unsigned scale_type))                  \
    X(product_set, cublasLtMatmulDescSetAttribute,                                                 \
      (gw_cublaslt_product product, unsigned attribute, const void *value, size_t bytes))          \
    X(product_destroy, cublasLtMatmulDescDestroy, (gw_cublaslt_product product))                   \
    X(layout_new, cublasLtMatrixLayoutCreate,                                                      \
      (gw_cublaslt_layout * layout_out, unsigned type, uint64_t rows, uint64_t columns,            \
       int64_t stride))                                                                            \
    X(layout_destroy, cublasLtMatrixLayoutDestroy, (gw_cublaslt_layout layout))                    \
    X(preference_new, cublasLtMatmulPreferenceCreate, (gw_cublaslt_preference * preference_out))   \
    X(preference_set, cublasLtMatmulPreferenceSetAttribute,                                        \
      (gw_cublaslt_preference preference, unsigned attribute, const void *value, size_t bytes))    \
    X(preference_destroy, cublasLtMatmulPreferenceDestroy, (gw_cublaslt_preference preference))    \
    X(choose, cublasLtMatmulAlgoGetHeuristic,                                                      \
      (gw_cublaslt_handle handle, gw_cublaslt_product product, gw_cublaslt_layout a,               \
       gw_cublaslt_layout b, gw_cublaslt_layout c, gw_cublaslt_layout d,                           \
       gw_cublaslt_preference preference, int wanted, GW_CUBLASLT_CHOICE *choices_out,             \
       int *count_out))                                                                            \
    X(multiply, cublasLtMatmul,                                                                    \
      (gw_cublaslt_handle handle, gw_cublaslt_product product, const void *alpha, const void *a,   \
       gw_cublaslt_layout a_layout, const void *b, gw_cublaslt_layout b_layout, const void *beta,  \
       const void *c, gw_cublaslt_layout c_layout, void *d, gw_cublaslt_layout d_layout,           \
       const GW_CUBLASLT_ALGORITHM *algorithm, void *workspace, size_t workspace_bytes,            \
       struct CUstream_st *stream))

struct gw_cublaslt {
#define GW_CUBLASLT_MEMBER(member, symbol, arguments) unsigned(*member) arguments;
    GW_CUBLASLT_FUNCTIONS(GW_CUBLASLT_MEMBER)
#undef GW_CUBLASLT_MEMBER
};

#endif
