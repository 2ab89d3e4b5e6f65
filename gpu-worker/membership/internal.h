/*
 * What the sources of a membership share. It refuses to be included from outside the folder.
 */
#ifndef PIGPEN_GPU_WORKER_MEMBERSHIP_INTERNAL_H
#define PIGPEN_GPU_WORKER_MEMBERSHIP_INTERNAL_H

#include <pthread.h>
#include <sys/stat.h>

#include "common/etcd/etcd.h"
#include "common/run/thread.h"
#include "gpu-worker/membership/membership.h"

#define GW_PROBLEM_BYTES 400u

struct gw_membership {
    struct gw_membership_config config;
    enum gw_membership_kind kind;
    char text[512];   /* what follows "file:", "dns:" or "etcd:" */
    uint64_t next_us; /* file: when it is looked at */
    struct stat seen; /* file: as it was when it was read */
    bool read_once;
    struct pp_thread *resolver; /* dns */
    struct pp_etcd *etcd;
    struct pp_stat *empty_lists; /* may be NULL */
    pthread_mutex_t lock;        /* of what follows */
    struct gw_members members;
    bool fresh; /* not taken yet */
    char problem[GW_PROBLEM_BYTES];
};

/* The source said this; any thread. */
void gw_membership_publish(struct gw_membership *membership, const struct gw_members *members);
/* The source fails: logged when it is news. */
void gw_membership_fail(struct gw_membership *membership, const char *problem);

/* membership_file.c: reads it when it has changed. */
void gw_membership_file_look(struct gw_membership *membership);
/* membership_dns.c: the body of the resolver's thread. */
void gw_membership_dns_poll(void *membership);
/* membership_etcd.c */
PP_MUST_USE enum pp_status gw_membership_etcd_start(struct gw_membership *membership);

#endif
