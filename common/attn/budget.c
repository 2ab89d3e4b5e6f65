/*
 * The table of default shares, and budgets of parts. See budget.h.
 */
#include "common/attn/budget.h"

/* Fewer rows do for a flat softmax, but what stands out of it grows with the context: the number of
 * rows rises as its square root. */
static const struct {
    uint64_t tokens_max;
    float share;
} shares[] = {
    {4096, 0.08f}, {16384, 0.04f}, {65536, 0.02f}, {262144, 0.01f}, {UINT64_MAX, 0.005f},
};

float pp_budget_share(uint64_t tokens)
{
    uint32_t at = 0;
    while (tokens > shares[at].tokens_max) {
        ++at;
    }
    return shares[at].share;
}

struct pp_estimator pp_budget_of_part(const struct pp_estimator *estimator, uint64_t part_tokens,
                                      uint64_t tokens)
{
    struct pp_estimator part = *estimator;
    if (part.kind != PP_SKETCH) {
        return part;
    }
    if (part.rows > 0) {
        double rows = (double)part.rows * ((double)part_tokens / (double)tokens);
        part.rows = rows < 1.0 ? 1 : (uint32_t)rows + (rows > (double)(uint32_t)rows ? 1 : 0);
    } else if (part.rows_share == 0.0f && part.target_error == 0.0f) {
        part.rows_share = pp_budget_share(tokens);
    }
    return part;
}
