/*
 * One run of the simulator: a seed, its world, its sequences and its faults, and how a broken law
 * is told. Everything a run draws comes from its rng.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_RUN_H
#define PIGPEN_TESTS_SIM_SIM_RUN_H

#include "tests/sim/reference.h"
#include "tests/sim/sim_fault.h"
#include "tests/sim/sim_world.h"

#define SIM_TOKENS_MAX 700u
#define SIM_LAYERS     2u
#define SIM_ROWS_MAX   3u
#define SIM_HEADS_MAX  6u
#define SIM_DIM_MAX    16u
#define SIM_TALES      2u

/* One sequence and what is known of it. */
struct sim_tale {
    struct gw_remote_sequence *sequence; /* NULL: to be opened */
    struct reference reference;
    uint64_t handed;
    uint64_t given[SIM_LAYERS]; /* rows of a layer handed over, as long as handed or more */
    /* the attend at hand */
    uint64_t asked;
    uint32_t layer, rows;
    bool exact;
    float q[SIM_ROWS_MAX * SIM_HEADS_MAX * SIM_DIM_MAX];
    float o[SIM_ROWS_MAX * SIM_HEADS_MAX * SIM_DIM_MAX];
    float lse[SIM_ROWS_MAX * SIM_HEADS_MAX];
};

struct sim_run {
    uint64_t seed;
    const char *profile;
    uint32_t step;
    struct pp_rng rng;
    struct sim_world world;
    struct sim_tale tales[SIM_TALES];
    struct sim_faults faults;
    bool faults_may; /* errors are allowed */
};

/* The run that goes on, or NULL. */
extern struct sim_run *sim_current;

/* "seed, step (replay: ...)" of the run that goes on; "" when there is none. */
const char *sim_where(void);
/* Fails the test, naming the law that was broken and how to see it again. */
void sim_broken(const char *law);
#define SIM_CHECK(condition) ((condition) ? (void)0 : sim_broken(#condition))

static inline uint64_t sim_draw(struct sim_run *run, uint64_t below)
{
    return pp_rng_u64(&run->rng) % below;
}

#endif
