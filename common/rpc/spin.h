/*
 * When a polling thread may spin: for spin_us after the last event, unless cores are
 * oversubscribed. That is so when the process has fewer than two cores, and, noticed while running,
 * when the system switched the thread out too often: then spinning rests for a while. Knows nothing
 * of what is polled. One thread.
 */
#ifndef PIGPEN_COMMON_RPC_SPIN_H
#define PIGPEN_COMMON_RPC_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/* More than 8 involuntary switches in 20 ms of spinning: someone else needs this core. */
#define PP_SPIN_WINDOW_US    20000u
#define PP_SPIN_SWITCHES_MAX 8u
#define PP_SPIN_REST_US      500000u

struct pp_spin {
    uint64_t spin_us;
    bool always;
    uint64_t last_event_us;
    uint64_t window_begin_us;
    uint64_t window_switches;
    uint64_t rest_until_us;
};

/* cores: what pp_spin_cores says. Below 2 spinning is off unless `always`. */
void pp_spin_init(struct pp_spin *spin, uint64_t spin_us, bool always, double cores);
void pp_spin_event(struct pp_spin *spin, uint64_t now_us);
/* switches: of this thread so far; read only when pp_spin_due says so (a system call). */
bool pp_spin_due(const struct pp_spin *spin, uint64_t now_us);
void pp_spin_check(struct pp_spin *spin, uint64_t now_us, uint64_t switches);
bool pp_spin_wanted(const struct pp_spin *spin, uint64_t now_us);

/* Cores this process may use: the least of its affinity and its cgroup's quota. At least 0.01. */
double pp_spin_cores(void);
/* Involuntary context switches of the calling thread. */
uint64_t pp_spin_switches(void);

#endif
