/*
 * A simulated sequence and what may be done with it. Every operation ends well, or in a recovery,
 * or with a sequence that has ended and says why (law 3); an answer is compared with the attention
 * in f64 over exactly the tokens asked for (laws 1 and 2). It refuses to know which faults are
 * about.
 */
#ifndef PIGPEN_TESTS_SIM_SIM_TALE_H
#define PIGPEN_TESTS_SIM_SIM_TALE_H

#include "tests/sim/sim_run.h"

void sim_tale_init(struct sim_run *run, struct sim_tale *tale);
/* Whether it is open now. */
bool sim_tale_open(struct sim_run *run, struct sim_tale *tale);
void sim_tale_close(struct sim_tale *tale);

/* The sequence is open; it may have ended afterwards. */
void sim_tale_append(struct sim_run *run, struct sim_tale *tale);
void sim_tale_flush(struct sim_run *run, struct sim_tale *tale);
void sim_tale_truncate(struct sim_run *run, struct sim_tale *tale);
void sim_tale_seal(struct sim_run *run, struct sim_tale *tale);
void sim_tale_read(struct sim_run *run, struct sim_tale *tale);
/* One attend, often with one of `other` in flight beside it. */
void sim_tale_attend(struct sim_run *run, struct sim_tale *tale, struct sim_tale *other);

/* Laws 1 to 3 as they stand now: what the worker counts as held lies on every node that it thinks
 * holds it, of the right generation, and an exact attend over it is right. */
void sim_tale_verify(struct sim_run *run, struct sim_tale *tale);

#endif
