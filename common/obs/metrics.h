/*
 * Series as Prometheus text (exposition format 0.0.4): HELP and TYPE once a name, its series below
 * it, in the order of registration; histograms as _bucket, _sum and _count. Reads relaxed atomics:
 * two series of one scrape may be a moment apart. Threads: any.
 */
#ifndef PIGPEN_COMMON_OBS_METRICS_H
#define PIGPEN_COMMON_OBS_METRICS_H

#include <stdio.h>

#include "common/base/stat.h"

#define PP_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

void pp_metrics_render(const struct pp_stats *stats, FILE *output);

/* process_* of this process: cpu seconds, resident and virtual bytes, open and most files, threads,
 * start time. What /proc does not tell is left out. */
void pp_metrics_render_process(FILE *output);

#endif
