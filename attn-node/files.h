/*
 * File descriptors: as many as the system gives, and what is left of them for connections. Threads:
 * main, before others start.
 */
#ifndef PIGPEN_ATTN_NODE_FILES_H
#define PIGPEN_ATTN_NODE_FILES_H

#include <stdint.h>

#include "common/base/status.h"

/* What a node that is told nothing takes at most. */
#define AN_CONNECTIONS_MAX 1024u
/* Two workers' worth. */
#define AN_CONNECTIONS_MIN 4u

/* Raises the soft limit of descriptors to the hard one, and says how many connections there may be:
 * wanted, where it is not 0 and descriptors allow it (else fewer, logged); by itself as many as
 * descriptors and half of quota_bytes allow (a connection holds a read buffer), up to
 * AN_CONNECTIONS_MAX. Of the descriptors left a quarter, 80 at most, is kept for the admin port,
 * files and libraries. PP_RESOURCE_EXHAUSTED below AN_CONNECTIONS_MIN, logged. */
PP_MUST_USE enum pp_status an_files_plan(uint64_t wanted, uint64_t quota_bytes,
                                         uint32_t *connections_max_out);

#endif
