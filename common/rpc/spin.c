/*
 * Spinning policy: pure arithmetic on times and counts, and the question to the system that feeds
 * it. On the walk it is what keeps a round trip short without starving the computing threads.
 */
#include "common/rpc/spin.h"

#include <sched.h>
#include <stdio.h>

void pp_spin_init(struct pp_spin *spin, uint64_t spin_us, bool always, double cores)
{
    *spin = (struct pp_spin){
        .spin_us = spin_us, .always = always, .offer_turns = PP_SPIN_OFFER_TURNS_MIN};
    if (!always && cores < 2.0) {
        spin->spin_us = 0;
    }
}

void pp_spin_event(struct pp_spin *spin, uint64_t now_us)
{
    spin->last_event_us = now_us;
}

bool pp_spin_yields(struct pp_spin *spin)
{
    if (++spin->turns < spin->offer_turns) {
        return false;
    }
    spin->turns = 0;
    return true;
}

void pp_spin_yielded(struct pp_spin *spin, uint64_t begin_us, uint64_t end_us)
{
    uint64_t took_us = end_us - begin_us;
    bool taken = took_us >= PP_SPIN_TAKEN_US && took_us < PP_SPIN_AWAY_US;
    unsigned rarer = 2 * spin->offer_turns;
    rarer = rarer < PP_SPIN_OFFER_TURNS_MAX ? rarer : PP_SPIN_OFFER_TURNS_MAX;
    spin->offer_turns = taken ? PP_SPIN_OFFER_TURNS_MIN : rarer;
    if (spin->always || took_us < PP_SPIN_AWAY_US) {
        return;
    }
    if (begin_us - spin->window_begin_us >= PP_SPIN_WINDOW_US) {
        spin->window_begin_us = begin_us;
        spin->away_count = 0;
    }
    if (++spin->away_count > PP_SPIN_AWAY_MAX) {
        spin->rest_until_us = end_us + PP_SPIN_REST_US;
        spin->away_count = 0;
    }
}

bool pp_spin_wanted(const struct pp_spin *spin, uint64_t now_us)
{
    return now_us - spin->last_event_us < spin->spin_us && now_us >= spin->rest_until_us;
}

/* "max 100000" or "150000 100000". */
static double quota_cores(const char *path)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 1e9;
    }
    double quota = 0.0;
    double period = 0.0;
    int fields = fscanf(file, "%lf %lf", &quota, &period);
    fclose(file);
    return fields == 2 && quota > 0.0 && period > 0.0 ? quota / period : 1e9;
}

double pp_spin_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    double cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? (double)CPU_COUNT(&set) : 1e9;
    double quota = quota_cores("/sys/fs/cgroup/cpu.max");
    cores = quota < cores ? quota : cores;
    return cores < 0.01 ? 0.01 : cores;
}
