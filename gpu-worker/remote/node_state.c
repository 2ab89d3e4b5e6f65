/*
 * The states of a node. See node_state.h. It refuses to know calls and parts.
 */
#include "gpu-worker/remote/node_state.h"

#include "common/base/rng.h"

const char *gw_node_phase_name(enum gw_node_phase phase)
{
    static const char *const names[] = {"unknown", "up", "suspect", "down", "trial", "draining"};
    return names[phase];
}

void gw_node_state_init(struct gw_node_state *state, uint64_t seed, uint64_t now_us)
{
    *state = (struct gw_node_state){.phase = GW_NODE_UNKNOWN,
                                    .trial_us = now_us,
                                    .wait_us = GW_NODE_TRIAL_WAIT_US,
                                    .seed = seed};
}

/* Half of the pause and up to half more: workers that lost a node at once do not come back at once.
 */
static void pause_for(struct gw_node_state *state, uint64_t wait_us, uint64_t now_us)
{
    uint64_t half_us = wait_us / 2;
    state->trial_us = now_us + half_us + pp_rng_at(state->seed, now_us) % (half_us + 1);
}

void gw_node_state_fault(struct gw_node_state *state, uint64_t now_us)
{
    state->trying = state->doubted = false;
    state->rights = 0;
    state->fault_us = state->faults == 0 ? now_us : state->fault_us;
    state->faults++;
    bool down = state->phase == GW_NODE_TRIAL || state->phase == GW_NODE_DOWN ||
                state->faults >= GW_NODE_FAULTS_DOWN ||
                now_us - state->fault_us >= GW_NODE_SILENCE_US;
    if (!down) {
        state->phase = state->phase == GW_NODE_UNKNOWN ? GW_NODE_UNKNOWN : GW_NODE_SUSPECT;
        pause_for(state, GW_NODE_TRIAL_WAIT_US, now_us);
        return;
    }
    state->phase = GW_NODE_DOWN;
    pause_for(state, state->wait_us, now_us);
    uint64_t longer_us = 2 * state->wait_us;
    state->wait_us = longer_us < GW_NODE_TRIAL_WAIT_US_MAX ? longer_us : GW_NODE_TRIAL_WAIT_US_MAX;
}

void gw_node_state_right(struct gw_node_state *state, uint64_t now_us)
{
    state->trying = state->doubted = false;
    state->faults = 0;
    state->rights += state->phase == GW_NODE_UP ? 0 : 1;
    if (state->phase == GW_NODE_UP) {
        return;
    }
    if (state->phase == GW_NODE_UNKNOWN || state->rights >= GW_NODE_RIGHTS_UP) {
        state->phase = GW_NODE_UP;
        state->up_us = now_us;
        state->rights = 0;
        state->wait_us = GW_NODE_TRIAL_WAIT_US;
        return;
    }
    state->phase = state->phase == GW_NODE_DOWN ? GW_NODE_TRIAL : state->phase;
    pause_for(state, GW_NODE_TRIAL_WAIT_US, now_us);
}

void gw_node_state_drains(struct gw_node_state *state, uint64_t now_us)
{
    state->trying = state->doubted = false;
    state->faults = state->rights = 0;
    state->phase = GW_NODE_DRAINING;
    pause_for(state, GW_NODE_TRIAL_WAIT_US, now_us);
}

void gw_node_state_doubt(struct gw_node_state *state, uint64_t now_us)
{
    if (state->phase == GW_NODE_UP && !state->trying) {
        state->doubted = true;
        state->trial_us = now_us;
    }
}

uint64_t gw_node_state_trial_us(const struct gw_node_state *state)
{
    bool trusted = state->phase == GW_NODE_UP && !state->doubted;
    return trusted || state->trying ? UINT64_MAX : state->trial_us;
}

void gw_node_state_try(struct gw_node_state *state)
{
    state->trying = true;
    state->phase = state->phase == GW_NODE_DOWN ? GW_NODE_TRIAL : state->phase;
}
