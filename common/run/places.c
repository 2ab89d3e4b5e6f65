/*
 * Places and the binding of threads to them. What lies at a place, the caller knows.
 */
#include "common/run/places.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

void pp_places_init(struct pp_places *places, const struct pp_topology *topology)
{
    static _Atomic uint64_t last_id;
    memset(places, 0, sizeof(*places));
    places->id = atomic_fetch_add(&last_id, 1) + 1;
    for (uint32_t i = 0; topology != NULL && i < topology->numa_node_count; ++i) {
        const struct pp_numa_node *node = &topology->numa_nodes[i];
        if (node->cpu_count > 0) {
            places->cpu_count[places->count] = node->cpu_count;
            memcpy(places->cpus[places->count++], node->cpus, sizeof(node->cpus));
        }
    }
}

uint32_t pp_places_of(const struct pp_places *places, uint32_t thread, uint32_t threads)
{
    uint64_t total = 0;
    for (uint32_t place = 0; place < places->count; ++place) {
        total += places->cpu_count[place];
    }
    /* The middle of the thread's share of all processors. */
    uint64_t at = (2 * (uint64_t)thread + 1) * total;
    uint64_t end = 0;
    for (uint32_t place = 0; place + 1 < places->count; ++place) {
        end += places->cpu_count[place];
        if (at < 2 * end * threads) {
            return place;
        }
    }
    return places->count > 0 ? places->count - 1 : 0;
}

static _Thread_local struct {
    uint64_t id; /* 0: not bound */
    uint32_t place;
    cpu_set_t before;
} bound;

static void unbind(void)
{
    if (bound.id != 0) {
        (void)sched_setaffinity(0, sizeof(bound.before), &bound.before);
        bound.id = 0;
    }
}

void pp_places_bind(const struct pp_places *places, uint32_t place)
{
    if (places == NULL || places->count < 2) {
        unbind();
        return;
    }
    if (bound.id == places->id && bound.place == place) {
        return;
    }
    unbind();
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    for (uint32_t cpu = 0; cpu < PP_CPUS_MAX; ++cpu) {
        if (places->cpus[place][cpu / 64] >> (cpu % 64) & 1) {
            CPU_SET(cpu, &wanted);
        }
    }
    if (sched_getaffinity(0, sizeof(bound.before), &bound.before) == 0) {
        (void)sched_setaffinity(0, sizeof(wanted), &wanted);
        bound.id = places->id;
        bound.place = place;
    }
}
