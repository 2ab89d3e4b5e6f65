/*
 * Bars and lines of progress. It refuses to know what is being done.
 */
#include "gpu-worker/api/progress.h"

#include <string.h>

#define PROGRESS_WIDTH     30u
#define PROGRESS_PERIOD_US 50000u

void gw_progress_init(struct gw_progress *progress, FILE *out, bool terminal, struct pp_clock clock)
{
    *progress = (struct gw_progress){.out = out, .terminal = terminal, .clock = clock};
}

static void progress_bar(struct gw_progress *progress, uint64_t done, uint64_t total)
{
    char bar[PROGRESS_WIDTH + 1];
    uint64_t filled = done * PROGRESS_WIDTH / total;
    memset(bar, '.', PROGRESS_WIDTH);
    memset(bar, '#', filled);
    bar[PROGRESS_WIDTH] = '\0';
    double seconds = (double)(progress->shown_us - progress->begin_us) * 1e-6;
    fprintf(progress->out, "\r%-8s [%s] %3llu%% %5.1fs", progress->label, bar,
            (unsigned long long)(done * 100 / total), seconds);
    fflush(progress->out);
    progress->open = true;
}

void gw_progress_show(struct gw_progress *progress, const char *label, uint64_t done,
                      uint64_t total)
{
    if (total == 0) {
        return;
    }
    uint64_t now_us = pp_clock_now_us(&progress->clock);
    if (progress->label == NULL || strcmp(progress->label, label) != 0) {
        gw_progress_end(progress);
        progress->label = label;
        progress->begin_us = now_us;
        progress->shown_us = 0;
        progress->tenth = UINT64_MAX;
    }
    done = done < total ? done : total;
    if (progress->terminal) {
        if (done < total && now_us < progress->shown_us + PROGRESS_PERIOD_US) {
            return;
        }
        progress->shown_us = now_us;
        progress_bar(progress, done, total);
    } else if (progress->tenth != done * 10 / total) {
        progress->tenth = done * 10 / total;
        fprintf(progress->out, "%s %llu%%\n", label, (unsigned long long)(done * 100 / total));
    }
    if (done == total) {
        gw_progress_end(progress);
    }
}

void gw_progress_end(struct gw_progress *progress)
{
    if (progress->open) {
        fputc('\n', progress->out);
        progress->open = false;
    }
    progress->label = NULL;
}
