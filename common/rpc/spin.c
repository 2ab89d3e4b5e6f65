/*
 * Spinning policy: pure arithmetic on times and counts, and the two questions to the system that
 * feed it. On the walk it is what keeps a round trip short without starving the computing threads.
 */
#include "common/rpc/spin.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

void pp_spin_init(struct pp_spin *spin, uint64_t spin_us, bool always, double cores)
{
    *spin = (struct pp_spin){.spin_us = spin_us, .always = always};
    if (!always && cores < 2.0) {
        spin->spin_us = 0;
    }
}

void pp_spin_event(struct pp_spin *spin, uint64_t now_us)
{
    spin->last_event_us = now_us;
}

bool pp_spin_due(const struct pp_spin *spin, uint64_t now_us)
{
    return !spin->always && spin->spin_us != 0 &&
           now_us - spin->window_begin_us >= PP_SPIN_WINDOW_US;
}

void pp_spin_check(struct pp_spin *spin, uint64_t now_us, uint64_t switches)
{
    uint64_t length_us = now_us - spin->window_begin_us;
    uint64_t count = switches - spin->window_switches;
    /* A window that blocked for long says nothing about spinning. */
    if (length_us < 4u * PP_SPIN_WINDOW_US && count > PP_SPIN_SWITCHES_MAX) {
        spin->rest_until_us = now_us + PP_SPIN_REST_US;
    }
    spin->window_begin_us = now_us;
    spin->window_switches = switches;
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

uint64_t pp_spin_switches(void)
{
    struct rusage usage;
    memset(&usage, 0, sizeof(usage));
    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)usage.ru_nivcsw;
}
