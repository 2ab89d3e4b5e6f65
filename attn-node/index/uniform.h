/*
 * What answers a head whose sample came out empty over more rows than it should read one by one: a
 * uniform sample. Each row is taken with the same probability u = AN_UNIFORM_ROWS / tokens,
 * independently, by its random number; its weight is divided by u and its error counted as for any
 * sample (kernels.h). Threads: pure.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_UNIFORM_H
#define PIGPEN_ATTN_NODE_INDEX_UNIFORM_H

#include <stdint.h>

#include "attn-node/index/index.h"

/* Rows expected; up to as many are read exactly instead. 16,384 rows of 512 bytes are 8 MB, well
 * under a millisecond of a thread, and bring the error of a flat softmax to 1 / 128 of a value. */
#define AN_UNIFORM_ROWS 16384u

/* Attends the chosen ones of rows [begin, end), a part of `tokens` rows in all, for lanes of one q
 * row: q_scaled [lanes][dim] times scale, accumulators [lanes]. Not the random numbers themselves
 * but others made of them: the index may have used those. */
void an_uniform_attend(const struct an_rows *rows, uint32_t begin, uint32_t end, uint64_t tokens,
                       const struct an_index_draw *draw, const float *q_scaled, uint32_t lanes,
                       struct an_accumulator *accumulators);

#endif
