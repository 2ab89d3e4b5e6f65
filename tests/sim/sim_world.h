/*
 * A simulated cluster: nodes with their real service and exec, and a worker's remote, on one
 * network in one thread. Everything in it is a function of the network's seed, ids and handles too:
 * the kernel's generator (pp_rng_system) is replaced. It refuses to know what goes wrong and when.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_WORLD_H
#define PIGPEN_TESTS_SIM_SIM_WORLD_H

#include "attn-node/service/service.h"
#include "common/base/rng.h"
#include "gpu-worker/remote/remote.h"
#include "tests/sim/sim_net.h"

#define SIM_NODES_MAX    12u
#define SIM_MEMORY_BYTES (256ull << 20)
/* What workers ask for: after it a part that nobody speaks of is gone. */
#define SIM_LEASE_US 60000000u

/* What was seen to happen, of all seeds together: faults that do nothing test nothing. */
enum sim_seen {
    SIM_SEEN_BREAKS,
    SIM_SEEN_DUPLICATES,
    SIM_SEEN_LATE_ANSWERS,
    SIM_SEEN_RESENDS,
    SIM_SEEN_HEDGES,
    SIM_SEEN_PARTS_LOST,
    SIM_SEEN_PARTS_BEHIND,
    SIM_SEEN_PARTS_COPIED,
    SIM_SEEN_APPENDS_REPEATED,
    SIM_SEEN_MEMORY_REFUSED,
    SIM_SEEN_LEASES_ENDED,
    SIM_SEEN_RECOVERIES,
    SIM_SEEN_ENDED,
    SIM_SEEN_ANSWERS,
    SIM_SEEN_ROWS_READ,
    SIM_SEEN_COUNT
};
extern const char *const sim_seen_names[SIM_SEEN_COUNT];

struct sim_node {
    char name[16], address[32];
    struct sim_world *world;
    struct pp_transport *transport;
    struct an_exec *exec;
    struct an_service *service;
    struct pp_stats stats;
    uint64_t incarnation;
    uint64_t delay_us_max;  /* of a message to or from it; every third node is far away */
    uint32_t moves;         /* addresses it has had before */
    bool listed;            /* in the worker's list of nodes */
    bool crashed;           /* it waits for its restart */
    uint64_t slow_us;       /* it does a little once in so much time; 0: always */
    uint64_t next_us;       /* and then again */
    uint64_t ballast_bytes; /* of its memory, that others are made to fill */
};

struct sim_world_config {
    struct pp_sim_config net;
    uint32_t node_count;
    uint32_t listed_count; /* of them the worker knows so many at first */
    enum gw_shard shard;
    uint32_t replicas;
    uint32_t seal_tokens;
};

struct sim_world {
    struct sim_world_config config;
    struct pp_sim_net *net;
    struct sim_node nodes[SIM_NODES_MAX];
    struct pp_transport *worker;
    struct gw_remote *remote;
    struct pp_stats worker_stats;
    bool worker_crashed; /* it is to be replaced */
    uint64_t seen[SIM_SEEN_COUNT];
};

void sim_world_init(struct sim_world *world, const struct sim_world_config *config);
/* The sequences must have been closed. */
void sim_world_deinit(struct sim_world *world);

/* The worker's own time. */
uint64_t sim_world_now_us(const struct sim_world *world);
/* Lets the worker poll for so long, coarsely where that is long. */
void sim_world_wait(struct sim_world *world, uint64_t us);
/* The worker stands still meanwhile. */
void sim_world_stall(struct sim_world *world, uint64_t us);
/* Gives the worker the list of nodes as it is now. */
void sim_world_update(struct sim_world *world);
/* Another worker, with nothing of the old one; the sequences must have been closed. */
void sim_world_replace_worker(struct sim_world *world);

/* The node's memory is all taken, but for `left`; or its own again. */
void sim_node_fill(struct sim_node *node, uint64_t left_bytes);
void sim_node_empty(struct sim_node *node);
/* Its link to the worker is as it was in the beginning. */
void sim_node_heal_link(struct sim_node *node);
/* It dies, at any time; then it comes back, at its address or at another one. */
void sim_node_crash(struct sim_node *node, bool silent);
void sim_node_restart(struct sim_node *node, bool moved);
/* Tokens that the node holds of a layer of a part, and its generation; false when it does not hold
 * it, or is another incarnation. */
bool sim_node_holds(const struct sim_node *node, uint64_t incarnation, uint64_t handle,
                    uint32_t layer, uint64_t *tokens_out, uint64_t *generation_out);
/* NULL: no node is there now. */
const struct sim_node *sim_world_node_at(const struct sim_world *world, const char *address);

#endif
