/*
 * Partials and the merge law (ARCHITECTURE.md, law 2). A partial is the attention of one q row and
 * head over some set of tokens: o normalised by its own sum, lse the natural log of that sum.
 * m = max(lse_i); o = sum e^(lse_i - m) o_i / sum e^(lse_i - m); lse = m + log sum e^(lse_i - m).
 * Errors: pi_s = e^(lse_s - lse), V = sum pi_s^2 (sqrt V_s + |o_s - o| sqrt lse_var_s)^2,
 * lse_var = sum pi_s^2 lse_var_s; V is the squared error of o, clamped at 0.
 * The empty partial is (o = 0, lse = -inf): merging skips it, merging only empties gives it, and
 * one partial among empties comes back bit for bit. Pure, any thread.
 */
#ifndef PIGPEN_COMMON_ATTN_PARTIAL_H
#define PIGPEN_COMMON_ATTN_PARTIAL_H

#include <stdint.h>

/* What the squared error that a sample gives o, sum (1 - u) h^2 |v - o|^2 with h a row's share of
 * the sample's weight, is too small by where few rows have that weight: o is fitted to them, so
 * each lies nearer to it than to the o of the others, by 1 - h. Without it o would move by h |v -
 * o| / (1 - h) (the jackknife); for h stands its mean by weight over the rows left to chance,
 * lse_var = sum (1 - u) h^2. At most 100, for hardly more than one row. */
static inline float pp_small_sample(float lse_var)
{
    float others = 1.0f - (lse_var < 0.9f ? lse_var : 0.9f);
    return 1.0f / (others * others);
}

struct pp_partial {
    float *o; /* [dim] f32; not owned */
    float lse;
    float var;          /* squared error of o, in the unit of V squared; 0 when exact */
    float lse_var;      /* variance of lse; 0 when exact */
    uint32_t keys_read; /* of this q head */
};

/* Writes the empty partial. */
void pp_partial_clear(struct pp_partial *partial, uint32_t dim);

/* Merges parts[0..count) in index order into *out. out->o may be parts[0].o, no other. */
void pp_partial_merge(const struct pp_partial *parts, uint32_t count, uint32_t dim,
                      struct pp_partial *out);

#endif
