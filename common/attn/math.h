/*
 * Numerics of the estimators: exp, and log u of the lsh sample (SimHash collision probability:
 * Charikar 2002; T of L tables: MagicPIG, arXiv 2410.16179, section 4). For a cosine c between the
 * query and the centred key: p = 1 - arccos(c)/pi (floor 1e-6), x = p^K,
 * u = 1 - sum_{j<T} C(L,j) x^j (1-x)^(L-j). Pure, any thread.
 */
#ifndef PIGPEN_COMMON_ATTN_MATH_H
#define PIGPEN_COMMON_ATTN_MATH_H

#include <stdint.h>

#include "common/base/status.h"

/* log u by the formula in f64, for any T; cosine clamped to [-1, 1]. Never -inf, never > 0. */
double pp_log_u(double cosine, uint32_t k, uint32_t l, uint32_t t);

/* The fast form: 1,024 knots over the cosine on [-0.6, 1], linear; below -0.6 the series. The table
 * is 4 KiB + padding so that knot [1024] may be read. One per (k, l, t); immutable after init. */
#define PP_LOG_U_KNOTS 1024
struct pp_log_u_table {
    uint32_t k, l, t;
    float knots[PP_LOG_U_KNOTS + 16];
};
void pp_log_u_table_init(struct pp_log_u_table *table, uint32_t k, uint32_t l, uint32_t t);
float pp_log_u_lookup(const struct pp_log_u_table *table, float cosine);

/* e^x for x <= 0 to 2 ulp or so without libm; below -87 it is 0; NaN stays. */
float pp_exp_neg(float x);

#endif
