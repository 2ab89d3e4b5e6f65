/*
 * Spare memory: whole huge pages of extents whose rows are gone, kept for the next rows of the same
 * layout, since half of what storing a bulk append takes is the kernel's zeroing of new pages. It
 * is resident and counts against the limit, but not as used (PP_MEMORY_SPARE): at most `bytes_max`
 * are kept, a reservation that would be refused takes them back, and what nobody asks for decays.
 *
 * An extent's pages of each kv head are, from its start: committed (rows, charged), spare, and not
 * resident. Extents with spare pages stand in one list, those of the freed ones with no references.
 * What old rows left in spare pages is finite and of the same layout; see extent.h for who may see
 * it. On the walk: beneath extent.c, which alone calls it for extents. It refuses to know rows.
 * Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_SPARE_H
#define PIGPEN_ATTN_NODE_KV_SPARE_H

#include <stdbool.h>
#include <stdint.h>

struct an_extent;
struct an_params;
struct an_store;

/* Zeroed, it keeps nothing. */
struct an_spares {
    uint64_t bytes_max;
    struct an_extent *oldest, *newest; /* by when they became spare */
    bool touched;                      /* since the last decay */
    uint64_t decay_us;
};

/* Keeps up to bytes_max from here on; sets the limit's reclaim. */
void an_spares_init(struct an_store *store, uint64_t bytes_max);
/* Frees all. A zeroed one is accepted. */
void an_spares_deinit(struct an_store *store);

/* Frees `bytes` of spare memory, the oldest first, or all there is. */
void an_spares_reclaim(struct an_store *store, uint64_t bytes);

/* Called with the time again and again: when none became spare or was taken for ten seconds, frees
 * 64 MiB every tenth of a second. */
void an_spares_decay(struct an_store *store, uint64_t now_us);

/* A freed extent of this layout, with one reference and no rows; NULL when there is none. */
struct an_extent *an_spares_find(struct an_store *store, const struct an_params *params);

/* Takes an extent without references: true when it is kept (and must not be touched any more). */
bool an_spares_keep(struct an_extent *extent);

/* Moves the border between the committed and the spare pages of each kv head, up to what is
 * resident. Up, it takes back what was spare; down, it makes spare. */
void an_spares_border(struct an_extent *extent, uint64_t committed_bytes);

/* Frees the spare pages past resident_bytes, which is committed_bytes or more. */
void an_spares_cut(struct an_extent *extent, uint64_t resident_bytes);

#endif
