/*
 * log u of the lsh sample, in f64 where it is exact and as a table where it is fast, and an exp
 * without libm.
 */
#include "common/attn/math.h"

#include <math.h>
#include <string.h>

#define P_FLOOR      1e-6
#define TABLE_COSINE (-0.6)
#define PI           3.14159265358979323846

/* log of P(fewer than 2 of l tables collide): log((1-x)^(l-1) (1 + (l-1) x)). */
static double log_u_two(double log_p, double x, uint32_t k, uint32_t l)
{
    if (l * x < 0.1) {
        /* 1 - (1-x)^(l-1) (1 + (l-1) x) = l (l-1)/2 x^2 (1-x)^(l-2) (1 + ...), y = x/(1-x). */
        double y = x / (1.0 - x);
        double rest = (l - 2.0) * y / 3.0 + (l - 2.0) * (l - 3.0) * y * y / 12.0;
        return log(l * (l - 1.0) / 2.0) + 2.0 * k * log_p + (l - 2.0) * log1p(-x) + log1p(rest);
    }
    double log_fewer = (l - 1.0) * log1p(-x) + log1p((l - 1.0) * x);
    return log(-expm1(log_fewer));
}

/* sum_{j >= t} C(l,j) x^j (1-x)^(l-j) by log-sum-exp over all terms. */
static double log_u_any(double log_x, double x, uint32_t l, uint32_t t)
{
    double log_not = log1p(-x);
    double term_max = -INFINITY;
    for (uint32_t pass = 0; pass < 2; ++pass) {
        double sum = 0.0;
        for (uint32_t j = t; j <= l; ++j) {
            double log_choose = lgamma(l + 1.0) - lgamma(j + 1.0) - lgamma(l - j + 1.0);
            double term = log_choose + j * log_x + (j < l ? (l - j) * log_not : 0.0);
            if (pass == 0) {
                term_max = term > term_max ? term : term_max;
            } else {
                sum += exp(term - term_max);
            }
        }
        if (pass == 1) {
            return term_max + log(sum);
        }
    }
    return term_max;
}

double pp_log_u(double cosine, uint32_t k, uint32_t l, uint32_t t)
{
    double clamped = cosine < -1.0 ? -1.0 : cosine > 1.0 ? 1.0 : cosine;
    double p = 1.0 - acos(clamped) / PI;
    p = p < P_FLOOR ? P_FLOOR : p;
    double log_p = log(p);
    double log_x = k * log_p;
    double x = exp(log_x);
    if (x >= 1.0) {
        return 0.0;
    }
    double log_u = t == 2 && l >= 2 ? log_u_two(log_p, x, k, l) : log_u_any(log_x, x, l, t);
    return log_u > 0.0 ? 0.0 : log_u;
}

void pp_log_u_table_init(struct pp_log_u_table *table, uint32_t k, uint32_t l, uint32_t t)
{
    *table = (struct pp_log_u_table){.k = k, .l = l, .t = t};
    for (uint32_t i = 0; i <= PP_LOG_U_KNOTS; ++i) {
        double cosine = TABLE_COSINE + (1.0 - TABLE_COSINE) * i / PP_LOG_U_KNOTS;
        table->knots[i] = (float)pp_log_u(cosine, k, l, t);
    }
    for (uint32_t i = PP_LOG_U_KNOTS + 1; i < PP_LOG_U_KNOTS + 16; ++i) {
        table->knots[i] = table->knots[PP_LOG_U_KNOTS];
    }
}

float pp_log_u_lookup(const struct pp_log_u_table *table, float cosine)
{
    if (!(cosine > (float)TABLE_COSINE)) {
        return (float)pp_log_u((double)cosine, table->k, table->l, table->t);
    }
    float at = (cosine - (float)TABLE_COSINE) * (float)(PP_LOG_U_KNOTS / (1.0 - TABLE_COSINE));
    at = at > (float)PP_LOG_U_KNOTS ? (float)PP_LOG_U_KNOTS : at;
    uint32_t knot = (uint32_t)at;
    float left = table->knots[knot];
    return left + (at - (float)knot) * (table->knots[knot + 1] - left);
}

float pp_exp_neg(float x)
{
    if (x != x) {
        return x;
    }
    if (x < -87.0f) {
        return 0.0f;
    }
    /* e^x = 2^n e^r with |r| <= ln(2)/2, ln 2 in two parts so that r keeps its bits. */
    float n = __builtin_rintf(x * 1.44269504f);
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float series =
        1.0f +
        r * (1.0f +
             r * (0.5f + r * (1.6666667e-1f +
                              r * (4.1666668e-2f + r * (8.3333337e-3f + r * 1.3888889e-3f)))));
    int32_t bits;
    memcpy(&bits, &series, sizeof(bits));
    bits += (int32_t)n * (1 << 23);
    memcpy(&series, &bits, sizeof(series));
    return series;
}
