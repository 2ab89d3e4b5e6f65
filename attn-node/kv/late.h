/*
 * The last queries that the layers of a part were asked, for tuning: a ring a layer, in bf16. A
 * layer's ring is written by each of its attends and costs what a few rows of K/V do. On the walk:
 * exec (attend) > late > exec (tune). Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_LATE_H
#define PIGPEN_ATTN_NODE_KV_LATE_H

#include <stdint.h>

#include "common/attn/shape.h"

#define AN_LATE_ROWS 8u
/* A part whose rings would be larger keeps none. */
#define AN_LATE_BYTES_MAX (16u << 20)

struct an_late;

/* What a part of `layers` with q_heads heads of its own takes; 0: it keeps none. */
uint64_t an_late_bytes(uint32_t layers, uint32_t q_heads, uint32_t dim);
/* NULL when memory is out. The bytes are the caller's to charge. */
struct an_late *an_late_new(uint32_t layers, uint32_t q_heads, uint32_t dim);
void an_late_destroy(struct an_late *late); /* accepts NULL */

/* Keeps the last of q [rows][q_heads][dim] of a dtype but int8, of any alignment, finite. */
void an_late_put(struct an_late *late, uint32_t layer, enum pp_dtype dtype, const uint8_t *q,
                 uint32_t rows);

/* The queries kept of a layer, in no order, into out [AN_LATE_ROWS][q_heads][dim]; returns how
 * many. */
uint32_t an_late_get(const struct an_late *late, uint32_t layer, float *out);

#endif
