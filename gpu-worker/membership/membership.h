/*
 * Where the list of nodes comes from, and that it follows it: a static list, a file that is read
 * again when it changes, the addresses behind a DNS name, or the entries under a prefix of etcd.
 * Beside remote on the walk: it says who is there, never which part lives where. The last good list
 * stands while the source fails; a list without nodes, behind one with some, is such a failure. It
 * refuses to know parts and sequences.
 *
 * Threads: new and destroy while no thread polls the transport; tick on the thread that does; take
 * and problem on any thread.
 */
#ifndef PIGPEN_GPU_WORKER_MEMBERSHIP_MEMBERSHIP_H
#define PIGPEN_GPU_WORKER_MEMBERSHIP_MEMBERSHIP_H

#include "common/base/clock.h"
#include "common/base/stat.h"
#include "common/rpc/transport.h"
#include "gpu-worker/membership/members.h"

enum gw_membership_kind {
    GW_MEMBERSHIP_STATIC, /* "a=host:port,b=host:port" */
    GW_MEMBERSHIP_FILE,   /* "file:PATH": NAME=HOST:PORT a line, # comments */
    GW_MEMBERSHIP_DNS,    /* "dns:NAME:PORT": every A and AAAA record */
    GW_MEMBERSHIP_ETCD    /* "etcd:HOST:PORT/PREFIX" */
};

struct gw_membership_config {
    const char *source;             /* as above */
    struct pp_transport *transport; /* of etcd; borrowed */
    struct pp_clock clock;
    const struct pp_tls *tls; /* of etcd; NULL: plain text */
    uint64_t period_us;       /* file and dns are looked at so often; 0: 1 s and 5 s */
    uint64_t etcd_retry_us;   /* 0: etcd.h's */
    struct pp_stats *stats;   /* may be NULL */
};

struct gw_membership;

/* What the text alone tells: PP_INVALID_ARGUMENT with the fault in fault_out. */
PP_MUST_USE enum pp_status gw_membership_check(const char *source,
                                               enum gw_membership_kind *kind_out, char *fault_out,
                                               size_t fault_bytes);

/* PP_INVALID_ARGUMENT (of gw_membership_check), PP_MEMORY, PP_RESOURCE_EXHAUSTED (no thread for
 * dns). A static list is there at once, any other after some ticks. */
PP_MUST_USE enum pp_status gw_membership_new(const struct gw_membership_config *config,
                                             struct gw_membership **membership_out);
void gw_membership_destroy(struct gw_membership *membership);

/* Looks at the source when it is due; returns when it must be called next. */
uint64_t gw_membership_tick(struct gw_membership *membership, uint64_t now_us);

/* The list, when it is another than at the last take: true and *members_out is written. */
bool gw_membership_take(struct gw_membership *membership, struct gw_members *members_out);

/* Why the source fails now, for people; "" while it does not. problem_out [bytes]. */
void gw_membership_problem(struct gw_membership *membership, char *problem_out, size_t bytes);

#endif
