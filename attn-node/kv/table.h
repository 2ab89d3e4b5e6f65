/*
 * All parts of a node: by handle for requests, by part id for opens that are asked again, and by
 * lease. Handles are random and never given twice. Every touch moves a part in the lease list,
 * which is in order of lease end: to its young end, but for parts with longer leases.
 * Threads: the exec thread.
 */
#ifndef PIGPEN_ATTN_NODE_KV_TABLE_H
#define PIGPEN_ATTN_NODE_KV_TABLE_H

#include <stdint.h>

#include "attn-node/kv/part.h"

#define AN_EXPIRED_REMEMBERED 1024u

struct an_table {
    struct an_part **by_handle, **by_id; /* [buckets], chained */
    uint32_t buckets;                    /* a power of two */
    uint64_t count;
    uint64_t lease_us;
    struct an_part *oldest, *newest;
    uint64_t expired[AN_EXPIRED_REMEMBERED]; /* handles whose lease ended, the last ones */
    uint64_t expired_count;
};

/* PP_MEMORY. */
PP_MUST_USE enum pp_status an_table_init(struct an_table *table, uint64_t lease_us);
/* Destroys all parts. Accepts a zeroed table. */
void an_table_deinit(struct an_table *table);

/* Gives the part its handle and owns it from now on. PP_IO when the system has no random numbers.
 */
PP_MUST_USE enum pp_status an_table_add(struct an_table *table, struct an_part *part,
                                        uint64_t now_us);

/* Renews the lease. PP_PART_NOT_FOUND, or PP_PART_EXPIRED for one that this table let go. */
PP_MUST_USE enum pp_status an_table_find(struct an_table *table, uint64_t handle, uint64_t now_us,
                                         struct an_part **part_out);
/* NULL when there is none; the lease is left alone. */
struct an_part *an_table_peek(const struct an_table *table, uint64_t handle);
struct an_part *an_table_find_id(const struct an_table *table, const uint8_t *part_id);
/* Any part of the sequence; NULL when there is none. */
struct an_part *an_table_find_sequence(const struct an_table *table, const uint8_t *sequence_id);

/* Takes the part out; the caller destroys it. */
void an_table_remove(struct an_table *table, struct an_part *part);

/* The oldest part when its lease has ended at now_us, taken out and remembered; NULL otherwise. */
struct an_part *an_table_expire(struct an_table *table, uint64_t now_us);

/* Takes a part out before its lease ended, remembered like an expired one. */
void an_table_evict(struct an_table *table, struct an_part *part);

#endif
