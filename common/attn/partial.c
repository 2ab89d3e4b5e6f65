/*
 * The merge law: partials of disjoint token sets into one, in index order, sums in f64 so that the
 * number of parts costs no precision.
 */
#include "common/attn/partial.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/limits.h"

void pp_partial_clear(struct pp_partial *partial, uint32_t dim)
{
    memset(partial->o, 0, dim * sizeof(*partial->o));
    partial->lse = -INFINITY;
    partial->var = 0.0f;
    partial->lse_var = 0.0f;
    partial->keys_read = 0;
}

static double distance(const float *left, const double *right, uint32_t dim)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < dim; ++i) {
        double difference = (double)left[i] - right[i];
        sum += difference * difference;
    }
    return sqrt(sum);
}

/* The only non-empty one comes back bit for bit. */
static void copy_one(const struct pp_partial *from, uint32_t dim, struct pp_partial *out)
{
    memmove(out->o, from->o, dim * sizeof(*out->o));
    out->lse = from->lse;
    out->var = from->var > 0.0f ? from->var : 0.0f;
    out->lse_var = from->lse_var;
}

void pp_partial_merge(const struct pp_partial *parts, uint32_t count, uint32_t dim,
                      struct pp_partial *out)
{
    PP_ASSERT(dim <= PP_HEAD_DIM_MAX);
    uint32_t full_count = 0;
    uint32_t full_index = 0;
    uint32_t keys_read = 0;
    float lse_max = -INFINITY;
    for (uint32_t i = 0; i < count; ++i) {
        keys_read += parts[i].keys_read;
        if (parts[i].lse > -INFINITY) {
            ++full_count;
            full_index = i;
            lse_max = parts[i].lse > lse_max ? parts[i].lse : lse_max;
        }
    }
    if (full_count == 0) {
        pp_partial_clear(out, dim);
        out->keys_read = keys_read;
        return;
    }
    if (full_count == 1) {
        copy_one(&parts[full_index], dim, out);
        out->keys_read = keys_read;
        return;
    }
    double o[PP_HEAD_DIM_MAX] = {0.0};
    double sum = 0.0;
    for (uint32_t i = 0; i < count; ++i) {
        double weight = parts[i].lse > -INFINITY ? exp((double)parts[i].lse - lse_max) : 0.0;
        sum += weight;
        for (uint32_t d = 0; d < dim && weight > 0.0; ++d) {
            o[d] += weight * (double)parts[i].o[d];
        }
    }
    for (uint32_t d = 0; d < dim; ++d) {
        o[d] /= sum;
    }
    double var = 0.0;
    double lse_var = 0.0;
    for (uint32_t i = 0; i < count; ++i) {
        double share = parts[i].lse > -INFINITY ? exp((double)parts[i].lse - lse_max) / sum : 0.0;
        if (share == 0.0 || (parts[i].var <= 0.0f && parts[i].lse_var <= 0.0f)) {
            continue;
        }
        double own = parts[i].var > 0.0f ? sqrt((double)parts[i].var) : 0.0;
        double mixed = own + distance(parts[i].o, o, dim) * sqrt((double)parts[i].lse_var);
        var += share * share * mixed * mixed;
        lse_var += share * share * (double)parts[i].lse_var;
    }
    for (uint32_t d = 0; d < dim; ++d) {
        out->o[d] = (float)o[d];
    }
    out->lse = (float)((double)lse_max + log(sum));
    out->var = (float)var;
    out->lse_var = (float)lse_var;
    out->keys_read = keys_read;
}
