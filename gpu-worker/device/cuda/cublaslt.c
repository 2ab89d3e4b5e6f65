/*
 * Matrix products by cuBLASLt. A plan (layouts and the algorithm that the library's heuristic
 * prefers) is made once a shape and kept. Row-major out = x W^T is column-major out^T = W x^T: the
 * library's A is W, transposed, and its B is x. It refuses to know what is multiplied.
 */
#include "gpu-worker/device/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "gpu-worker/device/cuda/gemm.h"

#define PLANS_MAX 64u

/* What tells plans apart. */
struct plan_key {
    enum gw_cuda_number type;
    uint32_t rows, outputs, stride, out_stride, out_alignment;
};

struct plan {
    struct plan_key key;
    void *weights, *x, *out; /* layouts */
    struct gw_cublaslt_algorithm algorithm;
};

struct gw_cuda_gemm {
    struct gw_cublaslt library;
    void *opened, *handle, *product, *preference;
    gw_cuda_pointer workspace;
    size_t workspace_bytes;
    struct plan plans[PLANS_MAX];
    uint32_t plan_count, plan_next;
};

static enum pp_status cublaslt_status(unsigned result, const char *what)
{
    if (result == 0) {
        return PP_OK;
    }
    PP_LOG_ERRORF("device", "cuBLASLt call failed", "what=%s cublas_status=%u", what, result);
    return result == 3 ? PP_MEMORY : PP_INTERNAL; /* CUBLAS_STATUS_ALLOC_FAILED */
}

static void plan_deinit(const struct gw_cublaslt *library, struct plan *plan)
{
    void *layouts[3] = {plan->weights, plan->x, plan->out};
    for (uint32_t i = 0; i < 3; i++) {
        if (layouts[i] != NULL) {
            (void)library->layout_destroy(layouts[i]);
        }
    }
    memset(plan, 0, sizeof(*plan));
}

static enum pp_status plan_init(struct gw_cuda_gemm *gemm, const struct plan_key *key,
                                struct plan *plan)
{
    static const unsigned types[] = {
        [GW_CUDA_F16] = GW_CUBLASLT_TYPE_F16,
        [GW_CUDA_BF16] = GW_CUBLASLT_TYPE_BF16,
        [GW_CUDA_F32] = GW_CUBLASLT_TYPE_F32,
    };
    const struct gw_cublaslt *library = &gemm->library;
    const uint32_t alignments[4] = {16, 16, key->out_alignment, key->out_alignment};
    struct gw_cublaslt_choice choice;
    int count = 0;
    plan->key = *key;
    for (uint32_t i = 0; i < 4; i++) {
        PP_TRY(cublaslt_status(library->preference_set(gemm->preference,
                                                       GW_CUBLASLT_ALIGNMENT_A_BYTES + i,
                                                       &alignments[i], sizeof(alignments[i])),
                               "preference"));
    }
    PP_TRY(cublaslt_status(library->layout_new(&plan->weights, types[key->type], key->stride,
                                               key->outputs, key->stride),
                           "layout"));
    PP_TRY(cublaslt_status(
        library->layout_new(&plan->x, types[key->type], key->stride, key->rows, key->stride),
        "layout"));
    PP_TRY(cublaslt_status(library->layout_new(&plan->out, GW_CUBLASLT_TYPE_F32, key->outputs,
                                               key->rows, key->out_stride),
                           "layout"));
    PP_TRY(
        cublaslt_status(library->choose(gemm->handle, gemm->product, plan->weights, plan->x,
                                        plan->out, plan->out, gemm->preference, 1, &choice, &count),
                        "choose"));
    if (count == 0) {
        PP_LOG_ERRORF("device", "cuBLASLt knows no algorithm", "rows=%u outputs=%u columns=%u",
                      key->rows, key->outputs, key->stride);
        return PP_INTERNAL;
    }
    plan->algorithm = choice.algorithm;
    return PP_OK;
}

static enum pp_status plan_of(struct gw_cuda_gemm *gemm, const struct plan_key *key,
                              const struct plan **plan_out)
{
    for (uint32_t i = 0; i < gemm->plan_count; i++) {
        if (memcmp(&gemm->plans[i].key, key, sizeof(*key)) == 0) {
            *plan_out = &gemm->plans[i];
            return PP_OK;
        }
    }
    struct plan *plan = &gemm->plans[gemm->plan_next];
    plan_deinit(&gemm->library, plan);
    enum pp_status status = plan_init(gemm, key, plan);
    if (status != PP_OK) {
        plan_deinit(&gemm->library, plan);
        return status;
    }
    gemm->plan_next = (gemm->plan_next + 1) % PLANS_MAX;
    gemm->plan_count += gemm->plan_count < PLANS_MAX ? 1 : 0;
    *plan_out = plan;
    return PP_OK;
}

static enum pp_status cublaslt_multiply(struct gw_cuda_gemm *gemm, struct CUstream_st *stream,
                                        const struct gw_cuda_product *product)
{
    const struct plan_key key = {.type = product->type,
                                 .rows = product->rows,
                                 .outputs = product->outputs,
                                 .stride = product->stride,
                                 .out_stride = product->out_stride,
                                 .out_alignment = product->out % 16 == 0 ? 16 : 4};
    const struct plan *plan;
    PP_TRY(plan_of(gemm, &key, &plan));
    void *out = (void *)(uintptr_t)product->out;
    return cublaslt_status(
        gemm->library.multiply(
            gemm->handle, gemm->product, (const void *)(uintptr_t)product->factor,
            (const void *)(uintptr_t)product->weights, plan->weights,
            (const void *)(uintptr_t)product->x, plan->x, (const void *)(uintptr_t)product->kept,
            out, plan->out, out, plan->out, &plan->algorithm, (void *)(uintptr_t)gemm->workspace,
            gemm->workspace_bytes, stream),
        "multiply");
}

static void cublaslt_close(struct gw_cuda_gemm *gemm)
{
    for (uint32_t i = 0; i < PLANS_MAX; i++) {
        plan_deinit(&gemm->library, &gemm->plans[i]);
    }
    if (gemm->preference != NULL) {
        (void)gemm->library.preference_destroy(gemm->preference);
    }
    if (gemm->product != NULL) {
        (void)gemm->library.product_destroy(gemm->product);
    }
    if (gemm->handle != NULL) {
        (void)gemm->library.destroy(gemm->handle);
    }
    if (gemm->opened != NULL) {
        dlclose(gemm->opened);
    }
    free(gemm);
}

/* The library of the toolkit that this was compared with, or the one before. */
static enum pp_status cublaslt_find(struct gw_cuda_gemm *gemm, char *error_out, size_t error_bytes)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    static const struct gw_cuda_symbol symbols[] = {
#define CUBLASLT_SYMBOL(member, symbol, arguments) {#symbol, offsetof(struct gw_cublaslt, member)},
        GW_CUBLASLT_FUNCTIONS(CUBLASLT_SYMBOL)
#undef CUBLASLT_SYMBOL
    };
    for (uint32_t i = 0; i < 2 && gemm->opened == NULL; i++) {
        gemm->opened = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (gemm->opened == NULL && i == 0) {
            snprintf(error_out, error_bytes, "cuBLASLt cannot be opened: %s", dlerror());
        }
    }
    if (gemm->opened == NULL) {
        return PP_UNAVAILABLE;
    }
    const char *missing;
    enum pp_status status = gw_cuda_symbols(
        gemm->opened, symbols, sizeof(symbols) / sizeof(symbols[0]), &gemm->library, &missing);
    if (status != PP_OK) {
        snprintf(error_out, error_bytes, "cuBLASLt lacks %s", missing);
        dlclose(gemm->opened);
        gemm->opened = NULL;
    }
    return status;
}

static enum pp_status cublaslt_prepare(struct gw_cuda_gemm *gemm)
{
    const struct gw_cublaslt *library = &gemm->library;
    const int32_t pointers = GW_CUBLASLT_POINTERS_DEVICE, transposed = GW_CUBLASLT_TRANSPOSED;
    const uint64_t bytes = gemm->workspace_bytes;
    PP_TRY(cublaslt_status(library->create(&gemm->handle), "create"));
    PP_TRY(cublaslt_status(
        library->product_new(&gemm->product, GW_CUBLASLT_COMPUTE_F32, GW_CUBLASLT_TYPE_F32),
        "product"));
    PP_TRY(cublaslt_status(
        library->product_set(gemm->product, GW_CUBLASLT_POINTER_MODE, &pointers, sizeof(pointers)),
        "pointer mode"));
    PP_TRY(cublaslt_status(library->product_set(gemm->product, GW_CUBLASLT_TRANSPOSE_A, &transposed,
                                                sizeof(transposed)),
                           "transpose"));
    PP_TRY(cublaslt_status(library->preference_new(&gemm->preference), "preference"));
    return cublaslt_status(library->preference_set(gemm->preference, GW_CUBLASLT_WORKSPACE_BYTES,
                                                   &bytes, sizeof(bytes)),
                           "workspace");
}

static enum pp_status cublaslt_open(const struct gw_cuda_driver *driver, gw_cuda_pointer workspace,
                                    size_t workspace_bytes, char *error_out, size_t error_bytes,
                                    struct gw_cuda_gemm **gemm_out)
{
    (void)driver;
    struct gw_cuda_gemm *gemm = calloc(1, sizeof(*gemm));
    if (gemm == NULL) {
        return PP_MEMORY;
    }
    gemm->workspace = workspace;
    gemm->workspace_bytes = workspace_bytes;
    enum pp_status status = cublaslt_find(gemm, error_out, error_bytes);
    if (status == PP_OK) {
        status = cublaslt_prepare(gemm);
    }
    if (status != PP_OK) {
        cublaslt_close(gemm);
        return status;
    }
    *gemm_out = gemm;
    return PP_OK;
}

const struct gw_cuda_gemm_ops gw_cuda_cublaslt = {
    .open = cublaslt_open,
    .close = cublaslt_close,
    .multiply = cublaslt_multiply,
};
