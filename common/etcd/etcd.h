/*
 * A client of etcd's v3 API over transport.h, for a list of names and addresses under a prefix: it
 * watches the list, or keeps an entry in it under a lease, or both. Beside rpc. It refuses to know
 * what the entries mean.
 *
 * Watching: all keys are read (Range), then followed from that revision on (Watch). When the stream
 * ends, or asks for a revision that was compacted away, or etcd does not answer, all is read again,
 * after a pause that doubles; until then the last list stands.
 *
 * Registering: the key is claimed only where nobody else has it (Txn), under a lease that is kept
 * alive at half its remaining time and granted again when it was lost. While the key is another's,
 * it is asked for again every third of the lease: the first wins until its lease ends.
 *
 * Threads: all on the thread that polls the transport, or while nobody polls it. Nothing blocks.
 */
#ifndef PIGPEN_COMMON_ETCD_ETCD_H
#define PIGPEN_COMMON_ETCD_ETCD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

#define PP_ETCD_ENTRIES_MAX  64u
#define PP_ETCD_NAME_BYTES   64u
#define PP_ETCD_VALUE_BYTES  256u
#define PP_ETCD_PREFIX_BYTES 128u

struct pp_etcd_entry {
    char name[PP_ETCD_NAME_BYTES]; /* its key, less the prefix */
    char value[PP_ETCD_VALUE_BYTES];
};

enum pp_etcd_claim {
    PP_ETCD_CLAIMING, /* not registered yet */
    PP_ETCD_HELD,     /* the entry stands, as far as is known */
    PP_ETCD_TAKEN     /* another has the name: detail is its value */
};

struct pp_etcd_config {
    struct pp_transport *transport; /* borrowed */
    struct pp_clock clock;
    const struct pp_tls *tls; /* NULL: plain text */
    const char *endpoint;     /* "127.0.0.1:2379" */
    const char *prefix;       /* "/pigpen/nodes/": of all keys */
    uint64_t call_timeout_us; /* 0: 2 s */
    uint64_t retry_us;        /* the first pause after a failure; 0: 200 ms; doubles to 25 times */
    /* Reads all again so often, though nothing changed: notices a connection that is dead without
     * having said so. 0: 30 s. */
    uint64_t relist_us;
    /* The list changed: at most PP_ETCD_ENTRIES_MAX entries, by name. NULL: nothing is watched. */
    void (*changed)(void *context, const struct pp_etcd_entry *entries, uint32_t count);
    /* Registering; name NULL: nothing is. */
    const char *name, *value;
    uint64_t lease_s; /* 0: 10 */
    void *context;    /* changed's */
};

struct pp_etcd;

/* Copies what config points to (but transport and tls). Opens a channel; nothing is called before
 * the first tick. PP_INVALID_ARGUMENT: a text too long; PP_MEMORY. */
PP_MUST_USE enum pp_status pp_etcd_new(const struct pp_etcd_config *config,
                                       struct pp_etcd **etcd_out);
/* Ends its calls; an entry that it holds ends with its lease. Before the transport's destroy. */
void pp_etcd_destroy(struct pp_etcd *etcd);

/* Does what is due; returns when it must be called next, if no event comes before. */
uint64_t pp_etcd_tick(struct pp_etcd *etcd, uint64_t now_us);

/* Gives the entry up: its lease is revoked, and it is not claimed again. */
void pp_etcd_leave(struct pp_etcd *etcd);
/* Whether a leave has nothing left to do. */
bool pp_etcd_left(const struct pp_etcd *etcd);

/* How it stands with the entry; detail_out: static or the struct's own text, for people. */
enum pp_etcd_claim pp_etcd_claim(const struct pp_etcd *etcd, const char **detail_out);
/* Whether all keys were read once; else why not, for people. */
bool pp_etcd_listed(const struct pp_etcd *etcd, const char **detail_out);
/* Lists read so far, leases granted, and how often a lease was renewed: for tests and metrics. */
uint64_t pp_etcd_lists(const struct pp_etcd *etcd);
uint64_t pp_etcd_grants(const struct pp_etcd *etcd);
uint64_t pp_etcd_renewals(const struct pp_etcd *etcd);

#endif
