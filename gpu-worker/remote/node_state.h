/*
 * What a worker thinks of a node, with hysteresis: one fault makes it doubtful, three in a row or
 * two seconds without a right answer take it down, and it is used again only when it has answered
 * twice in a row. A node that is down is tried now and then, half open: one call, after a pause
 * that doubles. Beside node on the walk. It refuses to know calls and parts: pure, one thread.
 *
 *   unknown --right--> up --fault--> suspect --2 right--> up
 *   unknown, suspect, trial --3 faults or 2 s--> down --pause--> trial --2 right--> up
 *   any --says that it drains--> draining --2 right--> up
 */
#ifndef PIGPEN_GPU_WORKER_REMOTE_NODE_STATE_H
#define PIGPEN_GPU_WORKER_REMOTE_NODE_STATE_H

#include <stdbool.h>
#include <stdint.h>

#define GW_NODE_FAULTS_DOWN       3u
#define GW_NODE_SILENCE_US        2000000u
#define GW_NODE_RIGHTS_UP         2u
#define GW_NODE_TRIAL_WAIT_US     100000u
#define GW_NODE_TRIAL_WAIT_US_MAX 5000000u

enum gw_node_phase {
    GW_NODE_UNKNOWN,
    GW_NODE_UP,
    GW_NODE_SUSPECT,
    GW_NODE_DOWN,
    GW_NODE_TRIAL,
    GW_NODE_DRAINING
};

struct gw_node_state {
    enum gw_node_phase phase;
    uint32_t faults, rights; /* in a row */
    uint64_t fault_us;       /* when the row of faults began */
    uint64_t up_us;          /* since when it is up */
    uint64_t trial_us;       /* when it is tried next */
    uint64_t wait_us;        /* the pause after the next fault */
    bool trying;             /* a trial has not ended */
    bool doubted;            /* it is up, and tried all the same */
    uint64_t seed;           /* of the jitter */
};

/* A node that nobody has spoken to; it is to be tried at once. */
void gw_node_state_init(struct gw_node_state *state, uint64_t seed, uint64_t now_us);

/* What happened, of a trial or of other calls: it did not answer or answered wrongly; it answered
 * that it serves; it answered that it takes nothing new. */
void gw_node_state_fault(struct gw_node_state *state, uint64_t now_us);
void gw_node_state_right(struct gw_node_state *state, uint64_t now_us);
void gw_node_state_drains(struct gw_node_state *state, uint64_t now_us);

/* Something happened that a node that is gone would have done too: one that is up stays so, and is
 * tried at once. */
void gw_node_state_doubt(struct gw_node_state *state, uint64_t now_us);

/* When a trial is due; UINT64_MAX: none, it is up or one runs. */
uint64_t gw_node_state_trial_us(const struct gw_node_state *state);
/* A trial begins; its end is told by one of the three above. */
void gw_node_state_try(struct gw_node_state *state);

/* Takes new parts. */
static inline bool gw_node_state_open(const struct gw_node_state *state)
{
    return state->phase == GW_NODE_UP;
}
/* Its living parts are asked first: it is not known to be away. */
static inline bool gw_node_state_lives(const struct gw_node_state *state)
{
    return state->phase == GW_NODE_UP || state->phase == GW_NODE_SUSPECT ||
           state->phase == GW_NODE_DRAINING;
}
const char *gw_node_phase_name(enum gw_node_phase phase);

#endif
