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
