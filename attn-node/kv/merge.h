/*
 * Merging neighbouring segments, so that a sequence that grew by decoding has few of them: each
 * costs its own 2L 2^k bytes of offsets and its own look-up. Rows stay where they are; a new
 * segment over all of them gets an index from the builder, and takes the views' place when it is
 * there. Until then, and when it is dropped, the old ones serve.
 *
 * What is merged: views in one extent, one behind the other, uncut and not shared with a fork.
 * In the extent that is being written, four neighbours of one size class (powers of four, from
 * 16,384 rows on powers of two, then two neighbours): a row is indexed log4 of the held length
 * times, and an extent has at most three segments a class. In an extent that is full, all.
 * Leftmost first, so that segments of one size give a layout that follows from their number.
 *
 * Memory for the new index is reserved before the build; a merge that would leave less than a
 * sixteenth of the limit waits, since appends go first.
 * On the walk: kv/append, part > merge > builder > merge. Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_MERGE_H
#define PIGPEN_ATTN_NODE_KV_MERGE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kv/layer.h"

/* What a segment that is made by merging holds on to until its build has ended: its sources, so
 * that their rows are not written again under the build. */
struct an_merge {
    struct an_layer *layer; /* NULL: it wants the result no more */
    uint32_t source_count;
    struct an_segment *sources[]; /* a reference to each */
};

/* Starts the layer's next merge unless one is under way, none is due or memory is short. */
void an_merge_plan(struct an_layer *layer);

/* The layer's views change or go: the merge under way is for nothing. */
void an_merge_drop(struct an_layer *layer);

/* an_segment_publish for a segment with `merge`: when its index was built and the layer still has
 * the sources as they were, it takes their place and the next merge is planned. Returns whether. */
bool an_merge_publish(struct an_segment *segment);

#endif
