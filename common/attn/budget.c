/*
 * The table of default shares, and budgets of parts. See budget.h.
 */
#include "common/attn/budget.h"

#include <stdbool.h>

/* Of a divided budget, by tokens: weights are of the last attend, not of this one. */
#define BY_TOKENS 0.25

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

/* One round over the parts whose rows are not settled (negative): what each would get; those that
 * cannot take it are settled with all they have. Returns whether there were such. */
static bool divide_round(double rows, const struct pp_budget_part *parts, uint32_t count,
                         double *rows_out)
{
    double tokens = 0.0;
    double weights = 0.0;
    bool settled = false;
    for (uint32_t i = 0; i < count; ++i) {
        bool open = rows_out[i] < 0.0;
        tokens += open ? (double)parts[i].tokens : 0.0;
        weights += open ? parts[i].weight : 0.0;
        rows -= open ? 0.0 : rows_out[i];
    }
    for (uint32_t i = 0; i < count; ++i) {
        if (rows_out[i] >= 0.0) {
            continue;
        }
        double own = (double)parts[i].tokens;
        double weight = weights > 0.0 ? parts[i].weight / weights : own / tokens;
        double wanted = rows * (BY_TOKENS * own / tokens + (1.0 - BY_TOKENS) * weight);
        settled = settled || wanted >= own;
        rows_out[i] = wanted >= own ? own : -wanted;
    }
    return settled;
}

void pp_budget_divide(double rows, const struct pp_budget_part *parts, uint32_t count,
                      double *rows_out)
{
    for (uint32_t i = 0; i < count; ++i) {
        rows_out[i] = -1.0;
    }
    while (divide_round(rows, parts, count, rows_out)) {
    }
    for (uint32_t i = 0; i < count; ++i) {
        rows_out[i] = rows_out[i] < 0.0 ? -rows_out[i] : rows_out[i];
    }
}
