/*
 * When a polling thread may spin: for spin_us after the last event, unless cores are
 * oversubscribed. That is so when the process has fewer than two cores, and, noticed while running,
 * when the core, offered to others between turns, comes back late too often: whoever took it
 * computes, and a thread that blocks gets it back sooner than one that offers it. Then spinning
 * rests for a while. Others that spin give it back within microseconds; they are no reason to rest.
 * Knows nothing of what is polled. One thread.
 */
#ifndef PIGPEN_COMMON_RPC_SPIN_H
#define PIGPEN_COMMON_RPC_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/* The core was away for 300 us or more, over 8 times in 20 ms: someone computes on it. */
#define PP_SPIN_AWAY_US   300u
#define PP_SPIN_AWAY_MAX  8u
#define PP_SPIN_WINDOW_US 20000u
#define PP_SPIN_REST_US   500000u
/* The core is offered every second turn that found nothing; every 4th, 8th and so on to every 64th
 * while nobody takes it, which shows by the offer being over within its own .3 to .5 us. */
#define PP_SPIN_OFFER_TURNS_MIN 2u
#define PP_SPIN_OFFER_TURNS_MAX 64u
#define PP_SPIN_TAKEN_US        2u

struct pp_spin {
    uint64_t spin_us;
    bool always;
    uint64_t last_event_us;
    uint64_t window_begin_us;
    unsigned away_count;  /* in the window */
    unsigned turns;       /* since the last offer */
    unsigned offer_turns; /* from one offer to the next */
    uint64_t rest_until_us;
};

/* cores: what pp_spin_cores says. Below 2 spinning is off unless `always`. */
void pp_spin_init(struct pp_spin *spin, uint64_t spin_us, bool always, double cores);
void pp_spin_event(struct pp_spin *spin, uint64_t now_us);
/* A turn found nothing: whether the core is offered (sched_yield) now; then how long that took. */
bool pp_spin_yields(struct pp_spin *spin);
void pp_spin_yielded(struct pp_spin *spin, uint64_t begin_us, uint64_t end_us);
bool pp_spin_wanted(const struct pp_spin *spin, uint64_t now_us);

/* Cores this process may use: the least of its affinity and its cgroup's quota. At least 0.01. */
double pp_spin_cores(void);
#endif
