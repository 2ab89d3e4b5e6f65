/*
 * Sampling parameters shared by segments. See params.h. The hash, the table and the signs are made
 * here and nowhere else on a node; their memory is charged as index memory.
 */
#include "attn-node/kv/params.h"

#include <stdlib.h>

#include "common/base/assert.h"

static enum pp_status params_lsh_init(struct an_params *params)
{
    const struct pp_estimator *estimator = &params->index.estimator;
    params->log_u_table = calloc(1, sizeof(*params->log_u_table));
    if (params->log_u_table == NULL) {
        return PP_MEMORY;
    }
    enum pp_status status =
        pp_hash_new(params->hash_seed, params->dim, estimator->k, estimator->l, &params->hash);
    if (status != PP_OK) {
        free(params->log_u_table);
        params->log_u_table = NULL;
        return status;
    }
    pp_log_u_table_init(params->log_u_table, estimator->k, estimator->l, estimator->t);
    params->index.hash = params->hash;
    params->index.log_u_table = params->log_u_table;
    return PP_OK;
}

static enum pp_status params_sketch_init(struct an_params *params)
{
    params->signs = calloc(1, sizeof(*params->signs));
    if (params->signs == NULL) {
        return PP_MEMORY;
    }
    an_sketch_signs_init(params->signs, params->hash_seed);
    params->index.signs = params->signs;
    return PP_OK;
}

static enum pp_status params_sampling_init(struct an_params *params)
{
    PP_TRY(params->index.estimator.kind == PP_LSH ? params_lsh_init(params)
                                                  : params_sketch_init(params));
    an_store_sampling_acquire(params->store);
    return PP_OK;
}

enum pp_status an_params_new(struct an_store *store, const struct pp_estimator *estimator,
                             uint64_t hash_seed, uint32_t kv_heads, uint32_t dim,
                             enum pp_dtype dtype, struct an_params **params_out)
{
    uint64_t charged_bytes =
        sizeof(struct an_params) + sizeof(struct pp_log_u_table) + sizeof(struct an_sketch_signs);
    PP_TRY(pp_limit_reserve(store->limit, PP_MEMORY_INDEX, charged_bytes));
    enum pp_status status = PP_MEMORY;
    struct an_params *params = calloc(1, sizeof(*params));
    if (params == NULL) {
        goto err_reserve;
    }
    params->store = store;
    params->index.estimator = *estimator;
    params->hash_seed = hash_seed;
    params->kv_heads = kv_heads;
    params->dim = dim;
    params->dtype = dtype;
    params->row_bytes = pp_row_bytes(dim, dtype);
    params->v_offset = (uint32_t)pp_vector_bytes(dim, dtype);
    params->index_tokens_min = store->index_tokens_min;
    params->charged_bytes = charged_bytes;
    params->references = 1;
    if (an_params_samples(params)) {
        status = params_sampling_init(params);
        if (status != PP_OK) {
            goto err_params;
        }
    }
    *params_out = params;
    return PP_OK;
err_params:
    free(params);
err_reserve:
    pp_limit_release(store->limit, PP_MEMORY_INDEX, charged_bytes);
    return status;
}

void an_params_acquire(struct an_params *params)
{
    params->references++;
}

void an_params_release(struct an_params *params)
{
    if (params == NULL) {
        return;
    }
    PP_ASSERT(params->references > 0);
    params->references--;
    if (params->references > 0) {
        return;
    }
    if (an_params_samples(params)) {
        an_store_sampling_release(params->store);
        pp_hash_destroy(params->hash);
        free(params->log_u_table);
        free(params->signs);
    }
    pp_limit_release(params->store->limit, PP_MEMORY_INDEX, params->charged_bytes);
    free(params);
}

uint64_t an_params_index_bytes(const struct an_params *params, uint32_t tokens)
{
    if (!an_params_samples(params) || tokens < params->index_tokens_min || tokens == 0) {
        return 0;
    }
    uint64_t each = (an_index_bytes(&params->index, params->dim, tokens) + 63u) & ~63ull;
    return each * params->kv_heads;
}
