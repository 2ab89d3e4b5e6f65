/*
 * How many rows of an index an attend reads: the default by the length of the context, and how a
 * budget of a whole sequence is divided among its parts. On the walk: worker (a request to each
 * part) and node (what a request or an open left open). Pure, any thread.
 */
#ifndef PIGPEN_COMMON_ATTN_BUDGET_H
#define PIGPEN_COMMON_ATTN_BUDGET_H

#include <stdint.h>

#include "common/attn/shape.h"

/* The share of indexed rows that a `sketch` reads of a context of so many tokens when nothing else
 * is said. */
float pp_budget_share(uint64_t tokens);

/* The budget of a part that holds `part_tokens` of the `tokens` > 0 that an attend is about: a
 * number of rows is divided by tokens (rounded up), a default share is chosen by all tokens. A
 * share and a target error stay: each part meets the target by itself (ARCHITECTURE.md). */
struct pp_estimator pp_budget_of_part(const struct pp_estimator *estimator, uint64_t part_tokens,
                                      uint64_t tokens);

/* Divides `rows` rows over parts: a quarter by their tokens, the rest by their weights, of any
 * common scale, and none gets more than its tokens; what one cannot take, the others get. Weights
 * that are all 0, not known yet: all by tokens. Every part gets some. tokens > 0; rows_out [count].
 */
struct pp_budget_part {
    uint64_t tokens;
    double weight;
};
void pp_budget_divide(double rows, const struct pp_budget_part *parts, uint32_t count,
                      double *rows_out);

#endif
