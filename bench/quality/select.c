/*
 * Choosing rows by rank. See select.h.
 */
#include "bench/quality/select.h"

#include <math.h>
#include <string.h>

#include "common/attn/math.h"
#include "common/base/rng.h"

void quality_ranks(const float *scores, uint32_t heads, uint32_t count, float *ranks_out)
{
    memset(ranks_out, 0, count * sizeof(*ranks_out));
    for (uint32_t h = 0; h < heads; ++h) {
        const float *of = scores + (uint64_t)h * count;
        float most = -INFINITY;
        double sum = 0.0;
        for (uint32_t i = 0; i < count; ++i) {
            most = of[i] > most ? of[i] : most;
        }
        for (uint32_t i = 0; i < count; ++i) {
            sum += (double)pp_exp_neg(of[i] - most);
        }
        float inverse = (float)(1.0 / sum);
        for (uint32_t i = 0; i < count; ++i) {
            float share = pp_exp_neg(of[i] - most) * inverse;
            ranks_out[i] = share > ranks_out[i] ? share : ranks_out[i];
        }
    }
}

/* The value that `above` of the values are larger than or equal to (Hoare's selection); reorders
 * them. */
static float select_value(float *values, uint32_t count, uint32_t above)
{
    int64_t low = 0, high = (int64_t)count - 1, wanted = (int64_t)above - 1;
    while (low < high) {
        float pivot = values[(low + high) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] > pivot) {
                ++i;
            }
            while (values[j] < pivot) {
                --j;
            }
            if (i <= j) {
                float kept = values[i];
                values[i++] = values[j];
                values[j--] = kept;
            }
        }
        if (wanted <= j) {
            high = j;
        } else if (wanted >= i) {
            low = i;
        } else {
            return values[wanted];
        }
    }
    return values[wanted];
}

uint32_t quality_largest(const float *ranks, uint32_t count, uint32_t wanted, float *sorted,
                         uint32_t *ids_out)
{
    uint32_t chosen = 0;
    wanted = wanted < count ? wanted : count;
    if (wanted == 0) {
        return 0;
    }
    uint32_t ties = wanted;
    memcpy(sorted, ranks, count * sizeof(*ranks));
    float least = select_value(sorted, count, wanted);
    for (uint32_t i = 0; i < count; ++i) {
        ties -= ranks[i] > least ? 1 : 0;
    }
    for (uint32_t i = 0; i < count && chosen < wanted; ++i) {
        if (ranks[i] > least || (ranks[i] == least && ties > 0)) {
            ties -= ranks[i] == least ? 1 : 0;
            ids_out[chosen++] = i;
        }
    }
    return chosen;
}

static double sum_u(const float *ranks, uint32_t count, float factor)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < count; ++i) {
        float u = ranks[i] * factor;
        sum += (double)(u < 1.0f ? u : 1.0f);
    }
    return sum;
}

uint32_t quality_sample(const float *ranks, uint32_t count, double budget, uint64_t seed,
                        uint32_t *ids_out, float *u_out)
{
    uint32_t chosen = 0;
    float low = -20.0f, high = 60.0f; /* log2 of C */
    for (uint32_t i = 0; i < 24; ++i) {
        float middle = 0.5f * (low + high);
        if (sum_u(ranks, count, exp2f(middle)) < budget) {
            low = middle;
        } else {
            high = middle;
        }
    }
    float factor = exp2f(high);
    for (uint32_t i = 0; i < count; ++i) {
        float u = ranks[i] * factor;
        double draw = (double)(pp_rng_at(seed, i) >> 11) * 0x1p-53;
        if (draw < (double)u) {
            u_out[chosen] = u < 1.0f ? u : 1.0f;
            ids_out[chosen++] = i;
        }
    }
    return chosen;
}
