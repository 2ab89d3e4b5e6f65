/*
 * Series that anyone may count in: relaxed atomics, since a scrape needs no order between series.
 */
#include "common/base/stat.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"

enum pp_status pp_stats_init(struct pp_stats *stats, size_t capacity)
{
    struct pp_stat *series = calloc(capacity > 0 ? capacity : 1, sizeof(*series));
    if (series == NULL) {
        return PP_MEMORY;
    }
    *stats = (struct pp_stats){.series = series, .count = 0, .capacity = capacity};
    return PP_OK;
}

void pp_stats_deinit(struct pp_stats *stats)
{
    free(stats->series);
    *stats = (struct pp_stats){0};
}

static struct pp_stat *add_series(struct pp_stats *stats, enum pp_stat_kind kind, const char *name,
                                  const char *labels, const char *help)
{
    PP_ASSERT(stats->count < stats->capacity);
    for (size_t index = 0; index < stats->count; ++index) {
        const struct pp_stat *other = &stats->series[index];
        bool same_name = strcmp(other->name, name) == 0;
        PP_ASSERT(!same_name || other->kind == kind);
        PP_ASSERT(!same_name || strcmp(other->labels, labels) != 0);
    }
    struct pp_stat *stat = &stats->series[stats->count++];
    stat->name = name;
    stat->labels = labels;
    stat->help = help;
    stat->kind = kind;
    return stat;
}

struct pp_stat *pp_stats_counter(struct pp_stats *stats, const char *name, const char *labels,
                                 const char *help)
{
    return add_series(stats, PP_STAT_COUNTER, name, labels, help);
}

struct pp_stat *pp_stats_gauge(struct pp_stats *stats, const char *name, const char *labels,
                               const char *help)
{
    return add_series(stats, PP_STAT_GAUGE, name, labels, help);
}

struct pp_stat *pp_stats_histogram(struct pp_stats *stats, const char *name, const char *labels,
                                   const char *help, double first, double factor, uint32_t count)
{
    PP_ASSERT(count > 0 && count <= PP_STAT_BUCKETS_MAX && first > 0.0 && factor > 1.0);
    struct pp_stat *stat = add_series(stats, PP_STAT_HISTOGRAM, name, labels, help);
    stat->bucket_count = count;
    double bound = first;
    for (uint32_t index = 0; index < count; ++index) {
        stat->bucket_bounds[index] = bound;
        bound *= factor;
    }
    return stat;
}

static double bits_to_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint64_t double_to_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

void pp_stat_add(struct pp_stat *stat, double amount)
{
    uint64_t seen = atomic_load_explicit(&stat->value_bits, memory_order_relaxed);
    uint64_t next;
    do {
        next = double_to_bits(bits_to_double(seen) + amount);
    } while (!atomic_compare_exchange_weak_explicit(&stat->value_bits, &seen, next,
                                                    memory_order_relaxed, memory_order_relaxed));
}

void pp_stat_set(struct pp_stat *stat, double value)
{
    atomic_store_explicit(&stat->value_bits, double_to_bits(value), memory_order_relaxed);
}

void pp_stat_observe(struct pp_stat *stat, double value)
{
    uint32_t index = 0;
    while (index < stat->bucket_count && !(value <= stat->bucket_bounds[index])) {
        ++index;
    }
    atomic_fetch_add_explicit(&stat->bucket[index], 1, memory_order_relaxed);
    pp_stat_add(stat, value);
}

double pp_stat_value(const struct pp_stat *stat)
{
    return bits_to_double(atomic_load_explicit(&stat->value_bits, memory_order_relaxed));
}
