/*
 * The balance of a layer under a `sketch` (attn-node/kernels/sketch.h): a factor a dimension and kv
 * head that evens out keys and queries before they are coded. The worker measures and sends it; it
 * stays what it was first. Shared, by reference count, by the layer, its forks and the segments
 * whose indexes are still to be made; an index keeps a copy of its own.
 * Threads: references on the exec thread; the values are read by the builder too.
 */
#ifndef PIGPEN_ATTN_NODE_KV_BALANCE_H
#define PIGPEN_ATTN_NODE_KV_BALANCE_H

#include <stdbool.h>

#include "attn-node/kv/params.h"
#include "common/base/span.h"

/* Beyond these a factor is no measure of anything. */
#define AN_BALANCE_MIN 0x1p-16f
#define AN_BALANCE_MAX 0x1p16f

struct an_balance {
    struct pp_limit *limit;
    uint64_t charged_bytes;
    uint32_t references;
    float values[]; /* [kv head][dim] */
};

/* What a layer's balance takes from the limit; 0 where there is none. */
uint64_t an_balance_bytes(const struct an_params *params);

/* Whether what a peer sent is a balance of these parameters' rows: its size, and its factors within
 * their bounds. */
bool an_balance_valid(const struct an_params *params, struct pp_span sent);

/* Of checked values; one reference. PP_MEMORY. */
PP_MUST_USE enum pp_status an_balance_new(const struct an_params *params, struct pp_span sent,
                                          struct an_balance **balance_out);

/* NULL is no balance: ones. */
struct an_balance *an_balance_acquire(struct an_balance *balance);
void an_balance_release(struct an_balance *balance);

#endif
