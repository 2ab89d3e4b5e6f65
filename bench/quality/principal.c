/*
 * Principal axes. See principal.h.
 */
#include "bench/quality/principal.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/limits.h"

#define SWEEPS 12u

struct matrices {
    double covariance[PP_HEAD_DIM_MAX][PP_HEAD_DIM_MAX];
    double axes[PP_HEAD_DIM_MAX][PP_HEAD_DIM_MAX]; /* one a row */
};

static void fill_covariance(const float *columns, const float *centre, uint32_t dim, uint32_t count,
                            struct matrices *of)
{
    memset(of, 0, sizeof(*of));
    for (uint32_t a = 0; a < dim; ++a) {
        of->axes[a][a] = 1.0;
        for (uint32_t b = 0; b <= a; ++b) {
            double sum = 0.0;
            for (uint32_t i = 0; i < count; ++i) {
                sum += (double)(columns[(uint64_t)a * count + i] - centre[a]) *
                       (double)(columns[(uint64_t)b * count + i] - centre[b]);
            }
            of->covariance[a][b] = of->covariance[b][a] = sum / count;
        }
    }
}

/* Turns axes a and b so that their covariance is 0. */
static void turn(struct matrices *of, uint32_t dim, uint32_t a, uint32_t b)
{
    double off = of->covariance[a][b];
    if (off == 0.0) {
        return;
    }
    double ratio = (of->covariance[b][b] - of->covariance[a][a]) / (2.0 * off);
    double t = copysign(1.0, ratio) / (fabs(ratio) + sqrt(ratio * ratio + 1.0));
    double c = 1.0 / sqrt(t * t + 1.0), s = t * c;
    for (uint32_t i = 0; i < dim; ++i) {
        double x = of->covariance[i][a], y = of->covariance[i][b];
        of->covariance[i][a] = c * x - s * y;
        of->covariance[i][b] = s * x + c * y;
    }
    for (uint32_t i = 0; i < dim; ++i) {
        double x = of->covariance[a][i], y = of->covariance[b][i];
        of->covariance[a][i] = c * x - s * y;
        of->covariance[b][i] = s * x + c * y;
        double p = of->axes[a][i], q = of->axes[b][i];
        of->axes[a][i] = c * p - s * q;
        of->axes[b][i] = s * p + c * q;
    }
}

void quality_principal_axes(const float *columns, const float *centre, uint32_t dim, uint32_t count,
                            uint32_t rank, float *axes_out)
{
    static struct matrices of; /* too large for a stack; called by one thread */
    bool taken[PP_HEAD_DIM_MAX] = {false};
    fill_covariance(columns, centre, dim, count, &of);
    for (uint32_t sweep = 0; sweep < SWEEPS; ++sweep) {
        for (uint32_t a = 0; a < dim; ++a) {
            for (uint32_t b = a + 1; b < dim; ++b) {
                turn(&of, dim, a, b);
            }
        }
    }
    for (uint32_t r = 0; r < rank; ++r) {
        uint32_t best = dim;
        for (uint32_t a = 0; a < dim; ++a) {
            bool larger = best == dim || of.covariance[a][a] > of.covariance[best][best];
            best = !taken[a] && larger ? a : best;
        }
        taken[best] = true;
        for (uint32_t d = 0; d < dim; ++d) {
            axes_out[(uint64_t)r * dim + d] = (float)of.axes[best][d];
        }
    }
}
