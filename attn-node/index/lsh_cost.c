/*
 * What an lsh attend is expected to cost beside an exact one. The rate of collisions comes from the
 * data: the lengths of PROBES buckets among those that the lanes ask for; from it follow the ids to
 * be looked at and, as if every row had this rate, the rows found. Rows near the query have a
 * higher rate, which SKEW makes up for: a mean over one is larger than the same over their mean. On
 * the walk: exec's plan > index. Costs: kernels.h.
 */
#include "attn-node/index/lsh.h"

#include <stddef.h>

#define PROBES 16u
#define SKEW   0.4

/* Collisions a row and table, by the buckets of some lanes and tables, spread over both. */
static double collision_rate(const struct an_lsh *index, uint32_t lanes, const uint16_t *codes)
{
    uint64_t ids = 0;
    for (uint32_t i = 0; i < PROBES; ++i) {
        uint32_t lane = i % lanes;
        uint32_t table = (uint32_t)((uint64_t)i * index->l / PROBES);
        uint32_t count;
        an_lsh_bucket(index, table, codes[(uint64_t)lane * index->l + table], &count);
        ids += count;
    }
    return (double)ids / ((double)PROBES * index->tokens);
}

static double power(double base, uint32_t exponent)
{
    double result = 1.0;
    for (; exponent > 0; exponent >>= 1) {
        result *= exponent % 2 == 1 ? base : 1.0;
        base *= base;
    }
    return result;
}

/* Expected share of rows that collide in at least t of l tables. */
static double share_found(uint32_t t, uint32_t l, double rate)
{
    double some = power(1.0 - rate, l); /* P(j = 0) for a row of this rate */
    double fewer = 0.0;
    for (uint32_t j = 0; j < t; ++j) {
        fewer += some;
        some *= rate < 1.0 ? (l - j) * rate / ((j + 1) * (1.0 - rate)) : 0.0;
    }
    double share = fewer < 1.0 ? 1.0 - fewer : 0.0;
    share *= 1.0 + SKEW * power(1.0 - share, 8);
    double most = rate * l / t;
    return share < most ? share : most;
}

bool an_lsh_pays(const struct an_lsh *index, const struct an_index_params *params,
                 const struct an_rows *rows, uint32_t begin, uint32_t end, uint32_t lanes,
                 const uint16_t *codes, struct an_index_costs *costs_out)
{
    const struct an_costs *costs = an_kernels_get()->costs;
    uint32_t count = end - begin;
    struct an_index_costs predicted = {.exact_ns = an_exact_cost(costs, rows, count, lanes)};
    if (index->central_count > AN_LSH_CENTRAL_MAX) {
        predicted.sampled_ns = lanes * an_exact_cost(costs, rows, count, 1);
    } else {
        double rate = collision_rate(index, lanes, codes);
        double hits = rate * index->l * index->tokens;
        double share = share_found(params->estimator.t, index->l, rate);
        double row_bytes = (double)rows->row_bytes;
        double chosen = (double)costs->chosen + (double)costs->chosen_byte * row_bytes;
        double lane = (double)costs->query + (double)costs->table * index->l +
                      (double)costs->hit * hits + (double)costs->word * index->tokens / 64.0 +
                      chosen * share * count;
        double distinct = (1.0 - power(1.0 - share, lanes)) * count;
        predicted.sampled_ns = lanes * lane + (double)costs->missed_byte * row_bytes * distinct;
    }
    if (costs_out != NULL) {
        *costs_out = predicted;
    }
    return predicted.sampled_ns < predicted.exact_ns;
}
