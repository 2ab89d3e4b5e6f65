/*
 * A node's entry in a list that workers follow: its name and address in etcd, under a lease.
 * Beside service: the data plane never waits for it. It refuses to know parts and calls.
 */
#ifndef PIGPEN_ATTN_NODE_REGISTRATION_H
#define PIGPEN_ATTN_NODE_REGISTRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

struct an_registration;

/* Whether "etcd:HOST:PORT/PREFIX" can be meant; else what is wrong, for people. */
const char *an_registration_fault(const char *target);

struct an_registration_config {
    struct pp_transport *transport; /* borrowed */
    struct pp_clock clock;
    const char *target;    /* as above, without a fault */
    const char *name;      /* of the node: its key below the prefix */
    const char *advertise; /* "HOST:PORT" by which workers reach it */
    uint64_t incarnation;  /* tells two that call themselves alike apart */
    uint64_t lease_s;      /* 0: etcd.h's */
};

/* PP_INVALID_ARGUMENT: a text too long, or none; PP_MEMORY. */
PP_MUST_USE enum pp_status an_registration_new(const struct an_registration_config *config,
                                               struct an_registration **registration_out);
/* While nobody polls the transport, before its destroy. Accepts NULL. */
void an_registration_destroy(struct an_registration *registration);

/* On the thread that polls the transport; returns when it must be called next. */
uint64_t an_registration_tick(struct an_registration *registration, uint64_t now_us);

/* Any thread. Asks for the entry to be given up, by the next tick. */
void an_registration_leave(struct an_registration *registration);
bool an_registration_left(const struct an_registration *registration);
/* Any thread: false when another node has the name. detail_out: how it stands, for people. */
bool an_registration_fits(struct an_registration *registration, char *detail_out, size_t bytes);

#endif
