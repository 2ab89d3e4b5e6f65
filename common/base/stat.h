/*
 * Counters, gauges and histograms, for all layers; common/obs renders them. A registry is a plain
 * array of series in registration order: names are an interface (a golden file in tests). Threads:
 * registration on one thread at start; updates from any thread, relaxed atomics, wait-free.
 */
#ifndef PIGPEN_COMMON_BASE_STAT_H
#define PIGPEN_COMMON_BASE_STAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum pp_stat_kind { PP_STAT_COUNTER, PP_STAT_GAUGE, PP_STAT_HISTOGRAM };

#define PP_STAT_BUCKETS_MAX 24u

struct pp_stat {
    const char *name;   /* static text, with prefix and unit */
    const char *labels; /* static text such as kind="kv"; "" for none */
    const char *help;
    enum pp_stat_kind kind;
    uint32_t bucket_count;
    double bucket_bounds[PP_STAT_BUCKETS_MAX]; /* upper bounds, base units; +Inf is implied */
    _Atomic uint64_t bucket[PP_STAT_BUCKETS_MAX + 1];
    _Atomic uint64_t value_bits; /* counter, gauge: the double's bits; histogram: its sum */
};

struct pp_stats {
    struct pp_stat *series;
    size_t count;
    size_t capacity;
};

PP_MUST_USE enum pp_status pp_stats_init(struct pp_stats *stats, size_t capacity);
void pp_stats_deinit(struct pp_stats *stats);

/* Never fail: a registry that is full is a programmer's error (asserted). */
struct pp_stat *pp_stats_counter(struct pp_stats *stats, const char *name, const char *labels,
                                 const char *help);
struct pp_stat *pp_stats_gauge(struct pp_stats *stats, const char *name, const char *labels,
                               const char *help);
/* Bounds grow by `factor` from `first`, `count` of them (latencies: 50e-6, 2, 20). */
struct pp_stat *pp_stats_histogram(struct pp_stats *stats, const char *name, const char *labels,
                                   const char *help, double first, double factor, uint32_t count);

void pp_stat_add(struct pp_stat *stat, double amount);
void pp_stat_set(struct pp_stat *stat, double value);
void pp_stat_observe(struct pp_stat *stat, double value);
double pp_stat_value(const struct pp_stat *stat);

#endif
