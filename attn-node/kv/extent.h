/*
 * A contiguous region of 65,472 rows [K|V] for every kv head of one layer of a part. Address space
 * is reserved at once, memory is committed as rows arrive, charged to the limit before it is used;
 * so rows never move and pointers to them stay good. The layer that writes it and every segment cut
 * out of it hold a reference; only the writer moves `filled`.
 * Memory of freed extents is kept for the next ones (spare.h), so bytes of rows that are gone may
 * lie past `filled`. The law: nothing reads a value past the rows that the asking part holds -
 * requests beyond them are refused before a row is touched - and a row is written whole before it
 * is held. Its padding is zero for ever: nobody writes it, and memory is used again only for rows
 * of its layout. On the walk: kv/append writes, exec/attend and the builder read. It refuses to
 * know segments. Threads: the exec thread; rows below `filled` that a reader was given are read by
 * any.
 */
#ifndef PIGPEN_ATTN_NODE_KV_EXTENT_H
#define PIGPEN_ATTN_NODE_KV_EXTENT_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/kernels/kernels.h"
#include "attn-node/kv/params.h"
#include "common/base/limits.h"

#define AN_EXTENT_ROWS PP_SEGMENT_TOKENS_MAX

struct an_extent {
    struct an_store *store;
    uint8_t *base; /* kv head h at base + h * head_bytes */
    uint64_t head_bytes;
    uint64_t row_bytes;
    uint64_t committed_bytes; /* of each kv head, whole pages: rows, and room for some more */
    uint64_t resident_bytes;  /* of each kv head: committed, and the spare pages after it */
    uint32_t dim;
    enum pp_dtype dtype;
    uint32_t kv_heads;
    uint32_t filled; /* rows in use */
    uint32_t references;
    /* Links of the spares. */
    bool spare_listed;
    struct an_extent *spare_older, *spare_newer;
};

/* Address space only; with `bulk`, as many rows are coming, a freed extent with its memory where
 * there is one. PP_MEMORY. */
PP_MUST_USE enum pp_status an_extent_new(const struct an_params *params, bool bulk,
                                         struct an_extent **extent_out);
/* What an extent takes from the limit once `rows` came in bulk. */
uint64_t an_extent_bytes(const struct an_params *params, uint32_t rows);
void an_extent_acquire(struct an_extent *extent);
/* NULL is accepted. The last one frees the memory, or keeps it for another. */
void an_extent_release(struct an_extent *extent);

/* Makes rows [0, rows) of every kv head usable. Commits in granules of an eighth of what is in use,
 * 16 KiB to 2 MiB; in bulk of as much again as is in use, so that whole huge pages come from the
 * third MiB on (a page fault costs five times the zeroing of its page). PP_MEMORY: nothing
 * changed. */
PP_MUST_USE enum pp_status an_extent_commit(struct an_extent *extent, uint32_t rows, bool bulk);

/* Bulk rows have ended: gives back what was committed for more of them. */
void an_extent_settle(struct an_extent *extent);

/* Gives the memory past `filled` back: the writer has left, and others still hold rows. */
void an_extent_trim(struct an_extent *extent);

/* Gives what lies past the first `bytes` of each kv head back, spare pages too. */
void an_extent_shrink(struct an_extent *extent, uint64_t bytes);

static inline uint8_t *an_extent_row(const struct an_extent *extent, uint32_t kv_head, uint32_t row)
{
    return extent->base + kv_head * extent->head_bytes + row * extent->row_bytes;
}

/* Rows of a kv head from row `begin` on, as kernels see them. */
static inline struct an_rows an_extent_rows(const struct an_extent *extent,
                                            const struct an_params *params, uint32_t kv_head,
                                            uint32_t begin)
{
    struct an_rows rows = {
        .base = an_extent_row(extent, kv_head, begin),
        .row_bytes = params->row_bytes,
        .v_offset = params->v_offset,
        .dim = params->dim,
        .dtype = params->dtype,
    };
    return rows;
}

#endif
