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
#define SKEW   1.4

/* Collisions a row and table, by the buckets of some lanes and tables, spread over both. */
static double collision_rate(const struct an_index *index, uint32_t lanes, const uint16_t *codes)
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

/* P(at least t of l), each with probability x. */
static double at_least(uint32_t t, uint32_t l, double x)
{
    double some = 1.0; /* P(j = 0) */
    for (uint32_t i = 0; i < l; ++i) {
        some *= 1.0 - x;
    }
    double fewer = 0.0;
    for (uint32_t j = 0; j < t; ++j) {
        fewer += some;
        some *= x < 1.0 ? (l - j) * x / ((j + 1) * (1.0 - x)) : 0.0;
    }
    return fewer < 1.0 ? 1.0 - fewer : 0.0;
}

bool an_index_pays(const struct an_index *index, const struct an_index_params *params,
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
        double found = SKEW * at_least(params->estimator.t, index->l, rate) * count;
        double most = hits / params->estimator.t;
        found = found < most ? found : most;
        double row =
            (double)costs->gather_row + (double)costs->gather_byte * (double)rows->row_bytes;
        double lane = (double)costs->query + (double)costs->table * index->l +
                      (double)costs->hit * hits + (double)costs->word * index->tokens / 64.0 +
                      row * found;
        predicted.sampled_ns = lanes * lane;
    }
    if (costs_out != NULL) {
        *costs_out = predicted;
    }
    return predicted.sampled_ns < predicted.exact_ns;
}
