/*
 * A node's services on a transport: AttentionService, AdminService and grpc.health.v1.Health. It
 * takes requests off the wire, checks and decodes them, hands jobs to exec and sends the answers.
 * On the walk: rpc > service > exec > ... > service > rpc. It computes nothing itself: the rpc
 * thread must never block.
 *
 * Threads: everything on the rpc thread, but what says "any thread". new and destroy while no
 * thread polls. The simulator calls poll, an_exec_poll and the transport's poll on one thread.
 *
 * Memory: every message in work and every answer being sent lives in buffers taken at new, of three
 * sizes; when a size is used up, messages wait unread in their call (one each, the transport's flow
 * control holds the rest back). Calls beyond AN_CALLS_MAX are refused with PP_QUEUE, those beyond
 * the share of the host that they come from (common/base/share.h) with PP_QUOTA.
 *
 * States: STARTING (until the first self test passes) > SERVING > DRAINING (no new parts,
 * PP_DRAINING; health says NOT_SERVING; Resume goes back) > STOPPED.
 */
#ifndef PIGPEN_ATTN_NODE_SERVICE_SERVICE_H
#define PIGPEN_ATTN_NODE_SERVICE_SERVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "attn-node/exec/exec.h"
#include "common/base/clock.h"
#include "common/base/stat.h"
#include "common/base/status.h"
#include "common/rpc/transport.h"

#define AN_CALLS_MAX     1024u
#define AN_STREAM_WINDOW 16u /* messages of one stream in work */

/* What the watchdog allows a self test before the node calls itself not ready. */
#define AN_SELF_TEST_PERIOD_US  10000000ull
#define AN_SELF_TEST_TIMEOUT_US 5000000ull

enum an_service_state { AN_STARTING, AN_SERVING, AN_DRAINING, AN_STOPPED };

struct an_service_config {
    struct pp_transport *transport; /* outlives the service */
    struct an_exec *exec;           /* outlives the service; its wake wakes the transport */
    struct pp_clock clock;
    uint64_t incarnation;        /* not 0; drawn by who starts the node */
    uint64_t lease_us;           /* as exec's; told to clients */
    uint64_t memory_limit_bytes; /* the node's; sizes the buffers */
    uint32_t connections_max;    /* as pp_server_config's */
    uint32_t threads;            /* for GetServerInfo */
    uint64_t self_test_us;       /* the watchdog's period; 0: AN_SELF_TEST_PERIOD_US */
    const char *node_name;       /* these live as long as the service */
    const char *version;
    const char *commit;
    const char *isa;
    struct pp_stats *stats; /* takes about AN_SERVICE_STATS series */
};

#define AN_SERVICE_STATS 648u

struct an_service;

/* PP_MEMORY. Registers its series; starts nothing. */
PP_MUST_USE enum pp_status an_service_new(const struct an_service_config *config,
                                          struct an_service **service_out);
/* After the transport was destroyed (it may still send from the service's buffers); before that its
 * server has stopped and exec has given every job back (poll until an_service_idle). */
void an_service_destroy(struct an_service *service);

/* Starts the transport's server with all methods. tls NULL: plain text. */
PP_MUST_USE enum pp_status an_service_listen(struct an_service *service, const char *address,
                                             const struct pp_tls *tls, int *port_out);

/* Takes finished jobs and sends their answers, starts messages that waited for a buffer, runs
 * timers. Called after every poll of the transport. Returns the number of jobs taken. */
uint32_t an_service_poll(struct an_service *service);

/* When poll is due next if no event comes, on the clock. */
uint64_t an_service_next_us(const struct an_service *service);

/* Any thread; done by the next poll (wake the transport). */
void an_service_drain(struct an_service *service);
void an_service_resume(struct an_service *service);
void an_service_stop(struct an_service *service);

/* When the node ends at the latest, on the clock, for those who ask. Any thread. */
void an_service_ends_at(struct an_service *service, uint64_t until_us);

/* Any thread. idle: no request is in work. */
enum an_service_state an_service_state(const struct an_service *service);
bool an_service_idle(const struct an_service *service);
/* When poll last ran, on the clock: what liveness looks at. */
uint64_t an_service_ticked_us(const struct an_service *service);
/* Serving, and the last self test passed and is not late. why_out: static text, for people. */
bool an_service_ready(const struct an_service *service, const char **why_out);

/* Bytes that the buffers of a service take at most under this memory limit; they are inside it:
 * exec is given the rest. */
uint64_t an_service_buffer_bytes(uint64_t memory_limit_bytes);

#endif
