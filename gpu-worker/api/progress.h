/*
 * Progress on a terminal as bars, elsewhere as plain lines at every tenth. Its form is for people
 * and may change. One thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_PROGRESS_H
#define PIGPEN_GPU_WORKER_API_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/clock.h"

struct gw_progress {
    FILE *out;
    bool terminal;
    struct pp_clock clock;
    const char *label;
    uint64_t begin_us;
    uint64_t shown_us;
    uint64_t tenth; /* the last one shown */
    bool open;      /* a bar without its line end */
};

/* `terminal` is what isatty said of out. */
void gw_progress_init(struct gw_progress *progress, FILE *out, bool terminal,
                      struct pp_clock clock);
/* Shows done of total under a label (static text); a new label starts a new bar. */
void gw_progress_show(struct gw_progress *progress, const char *label, uint64_t done,
                      uint64_t total);
/* Ends the bar that is open. */
void gw_progress_end(struct gw_progress *progress);

#endif
