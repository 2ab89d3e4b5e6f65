/*
 * Clocks and timers of the simulated network: each process has a clock that may jump, the test has
 * calls at a time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim_internal.h"

struct sim_clock *sim_clock_of(struct pp_sim_net *net, const char *name)
{
    for (struct sim_clock *clock = net->clocks; clock != NULL; clock = clock->next) {
        if (strcmp(clock->name, name) == 0) {
            return clock;
        }
    }
    struct sim_clock *clock = calloc(1, sizeof(*clock));
    PP_ASSERT(clock != NULL);
    snprintf(clock->name, sizeof(clock->name), "%s", name);
    clock->net = net;
    clock->next = net->clocks;
    net->clocks = clock;
    return clock;
}

static uint64_t clock_now(void *context)
{
    return sim_clock_now(context);
}

struct pp_clock pp_sim_clock(struct pp_sim_net *net, const char *name)
{
    return (struct pp_clock){.now_us = clock_now, .context = sim_clock_of(net, name)};
}

void pp_sim_clock_jump(struct pp_sim_net *net, const char *name, int64_t by_us)
{
    struct sim_clock *clock = sim_clock_of(net, name);
    bool before_origin = (int64_t)net->now_us + clock->ahead_us + by_us < 1;
    clock->ahead_us = before_origin ? 1 - (int64_t)net->now_us : clock->ahead_us + by_us;
}

void pp_sim_after(struct pp_sim_net *net, uint64_t delay_us, void (*run)(void *context),
                  void *context)
{
    PP_ASSERT(net->timer_count < SIM_TIMERS);
    net->timers[net->timer_count++] =
        (struct sim_timer){.at_us = net->now_us + delay_us, .run = run, .context = context};
}

struct sim_timer *sim_timer_first(struct pp_sim_net *net)
{
    struct sim_timer *first = NULL;
    for (uint32_t i = 0; i < net->timer_count; ++i) {
        first = first == NULL || net->timers[i].at_us < first->at_us ? &net->timers[i] : first;
    }
    return first;
}

void sim_timers_run(struct pp_sim_net *net)
{
    struct sim_timer *first;
    while (!net->running && (first = sim_timer_first(net)) != NULL && first->at_us <= net->now_us) {
        struct sim_timer due = *first;
        *first = net->timers[--net->timer_count];
        due.run(due.context);
    }
}
