/*
 * A view: the rows [begin, begin + count) of a segment as one part sees them. Fork copies views,
 * truncate shortens one; the segment stays as it is. Plain data; its layer holds the reference.
 * Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_VIEW_H
#define PIGPEN_ATTN_NODE_KV_VIEW_H

#include <stdint.h>

#include "attn-node/kv/segment.h"

struct an_view {
    struct an_segment *segment;
    uint32_t begin;      /* row of the segment */
    uint32_t count;      /* >= 1 */
    uint64_t held_begin; /* held index of the first row */
};

/* A view of the whole segment; takes over the caller's reference. */
static inline struct an_view an_view_of(struct an_segment *segment, uint64_t held_begin)
{
    struct an_view view = {segment, 0, segment->count, held_begin};
    return view;
}

#endif
