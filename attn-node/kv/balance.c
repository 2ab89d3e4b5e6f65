/*
 * Factors of a layer's sketches, shared by reference count. See balance.h. It refuses to know how
 * they were measured.
 */
#include "attn-node/kv/balance.h"

#include <stdlib.h>

#include "common/base/assert.h"

uint64_t an_balance_bytes(const struct an_params *params)
{
    bool taken = params->index.estimator.kind == PP_SKETCH;
    uint64_t values = (uint64_t)params->kv_heads * params->dim;
    return taken ? sizeof(struct an_balance) + values * sizeof(float) : 0;
}

bool an_balance_valid(const struct an_params *params, struct pp_span sent)
{
    uint64_t count = (uint64_t)params->kv_heads * params->dim;
    bool valid = sent.bytes == count * sizeof(float);
    for (uint64_t i = 0; i < count && valid; i++) {
        float value;
        pp_span_read(&sent, &value, sizeof(value));
        valid = value >= AN_BALANCE_MIN && value <= AN_BALANCE_MAX;
    }
    return valid;
}

enum pp_status an_balance_new(const struct an_params *params, struct pp_span sent,
                              struct an_balance **balance_out)
{
    struct pp_limit *limit = params->store->limit;
    PP_ASSERT(an_balance_valid(params, sent));
    uint64_t bytes = an_balance_bytes(params);
    PP_TRY(pp_limit_reserve(limit, PP_MEMORY_INDEX, bytes));
    struct an_balance *balance = calloc(1, bytes);
    if (balance == NULL) {
        pp_limit_release(limit, PP_MEMORY_INDEX, bytes);
        return PP_MEMORY;
    }
    balance->limit = limit;
    balance->charged_bytes = bytes;
    balance->references = 1;
    pp_span_read(&sent, balance->values, sent.bytes);
    *balance_out = balance;
    return PP_OK;
}

struct an_balance *an_balance_acquire(struct an_balance *balance)
{
    if (balance != NULL) {
        balance->references++;
    }
    return balance;
}

void an_balance_release(struct an_balance *balance)
{
    if (balance == NULL) {
        return;
    }
    PP_ASSERT(balance->references > 0);
    balance->references--;
    if (balance->references == 0) {
        pp_limit_release(balance->limit, PP_MEMORY_INDEX, balance->charged_bytes);
        free(balance);
    }
}
