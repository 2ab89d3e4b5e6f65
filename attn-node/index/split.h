/*
 * Samples of sketches that a team makes together, run by run of their rows, so that one long head
 * of one sequence uses every core. Worth it where there are too few samples to give every thread
 * its share: a sample that one thread makes alone keeps its scores in that core's cache, and no
 * thread waits for another. The bits are the same either way. On the walk: exec > split > sketch.
 * Threads: called by the team's master, while it runs nothing else.
 */
#ifndef PIGPEN_ATTN_NODE_INDEX_SPLIT_H
#define PIGPEN_ATTN_NODE_INDEX_SPLIT_H

#include <stdint.h>

#include "attn-node/index/index.h"

/* Of a wave: samples that a team of `threads` is to make. */
struct an_split_load {
    uint64_t rows, longest; /* of all together and of the longest, as an_index_view_rows counts */
    uint32_t count, threads;
};

/* The rows from which a sample is better made together; UINT64_MAX: none is. */
uint64_t an_split_rows(const struct an_split_load *load);

struct an_split_sample {
    const struct an_index_params *params; /* of a sketch */
    struct an_index_view *views;          /* each with accumulators and rows_read of its own */
    struct an_index_query query;
    struct an_sketch_sample *begun; /* of the call */
    uint32_t units;
};

/* What an_index_attend_views does with each of the samples, at most one a thread. scratch
 * [threads][scratch_bytes], a multiple of 64: of each thread as there. */
void an_split_attend(uint32_t threads, struct an_split_sample *samples, uint32_t count,
                     void *scratch, uint64_t scratch_bytes);

#endif
