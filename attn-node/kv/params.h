/*
 * How a part samples: the estimator with the hash and the table of log u, or the signs of the
 * rotation, that it needs, and the shape of its rows. Shared, by reference count, by the layers of
 * a part, its forks and every segment sealed under it, so that an index outlives the part that
 * began it. Immutable after new. Threads: references on the exec thread; the contents are read by
 * any.
 */
#ifndef PIGPEN_ATTN_NODE_KV_PARAMS_H
#define PIGPEN_ATTN_NODE_KV_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/index/index.h"
#include "attn-node/kv/store.h"
#include "common/attn/shape.h"

struct an_params {
    struct an_store *store;
    struct an_index_params index; /* what its estimator does not need is NULL */
    struct pp_hash *hash;
    struct pp_log_u_table *log_u_table;
    struct an_sketch_signs *signs;
    uint64_t hash_seed;
    uint32_t kv_heads; /* held here */
    uint32_t dim;
    enum pp_dtype dtype;
    uint64_t row_bytes;        /* of [K|V] of one token and kv head */
    uint32_t v_offset;         /* of V in a row */
    uint32_t index_tokens_min; /* the store's when these were made */
    uint64_t charged_bytes;
    uint32_t references;
};

/* estimator is resolved. One reference. PP_MEMORY, or what pp_hash_new says. */
PP_MUST_USE enum pp_status an_params_new(struct an_store *store,
                                         const struct pp_estimator *estimator, uint64_t hash_seed,
                                         uint32_t kv_heads, uint32_t dim, enum pp_dtype dtype,
                                         struct an_params **params_out);
void an_params_acquire(struct an_params *params);
void an_params_release(struct an_params *params);

/* Whether segments under these parameters want an index. */
static inline bool an_params_samples(const struct an_params *params)
{
    return params->index.estimator.kind != PP_EXACT;
}

/* Bytes of the indexes of a segment of `tokens` rows, all kv heads, each rounded up to 64; 0 when
 * it gets none (exact, or fewer rows than index_tokens_min). */
uint64_t an_params_index_bytes(const struct an_params *params, uint32_t tokens);

#endif
