/*
 * What goes wrong in a simulated cluster, by the run's own dice. A fault is armed between two steps
 * and strikes then, or in the middle of what the worker does next: at the n-th message that a
 * process sends or is told of, before it or after it. Most faults end by themselves after a while.
 * It refuses to know sequences.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_FAULT_H
#define PIGPEN_TESTS_SIM_SIM_FAULT_H

#include "tests/sim/sim_world.h"

enum sim_fault {
    SIM_NODE_CRASH, /* one for each of the four points of a message, in their order */
    SIM_NODE_CRASH_LAST = SIM_NODE_CRASH + PP_SIM_POINTS - 1,
    SIM_WORKER_CRASH,
    SIM_WORKER_CRASH_LAST = SIM_WORKER_CRASH + PP_SIM_POINTS - 1,
    SIM_LINK_BREAK,
    SIM_LINK_SLOW,
    SIM_PARTITION,
    SIM_PARTITION_TO_NODE,
    SIM_PARTITION_TO_WORKER,
    SIM_NODE_PAUSE,
    SIM_NODE_SLOW,
    SIM_NODE_DRAIN,
    SIM_MEMORY_FULL,
    SIM_NODE_CLOCK_FORWARD,
    SIM_NODE_CLOCK_BACK,
    SIM_WORKER_CLOCK_FORWARD,
    SIM_WORKER_CLOCK_BACK,
    SIM_WORKER_STALL, /* these four between two steps only */
    SIM_NODE_LEAVES,
    SIM_NODE_JOINS,
    SIM_NODE_MOVES, /* it is restarted at another address */
    SIM_FAULT_COUNT
};
extern const char *const sim_fault_names[SIM_FAULT_COUNT];

#define SIM_FAULT(fault)      (1u << (fault))
#define SIM_NODE_CRASHES      (0xfu << SIM_NODE_CRASH)
#define SIM_WORKER_CRASHES    (0xfu << SIM_WORKER_CRASH)
#define SIM_ALL_FAULTS        ((1u << SIM_FAULT_COUNT) - 1)
#define SIM_CLOCK_JUMP_US_MAX 90000000u

struct sim_faults {
    struct sim_world *world;
    struct pp_rng *rng;
    uint32_t mask; /* those that may happen */
    /* the one that is armed */
    bool armed;
    enum sim_fault fault;
    struct sim_node *node;
    const char *process; /* whose messages are counted */
    bool any_point;
    enum pp_sim_point point;
    uint32_t countdown;
    /* what clocks went back, all together */
    uint64_t worker_back_us, nodes_back_us;
    uint64_t struck[SIM_FAULT_COUNT];
};

/* Watches the world's messages from now on. */
void sim_faults_init(struct sim_faults *faults, struct sim_world *world, struct pp_rng *rng,
                     uint32_t mask);
/* Between two steps: draws a fault; it strikes now or later. */
void sim_faults_draw(struct sim_faults *faults);
/* Nothing goes wrong any more, and everybody is back. */
void sim_faults_end(struct sim_faults *faults);

#endif
