/*
 * The frame of the worker's programs: options, what is refused before anything is opened,
 * interruption, and the exit code. On the walk: above everything else of the worker. It refuses to
 * know what a program does. Main thread.
 */
#ifndef PIGPEN_GPU_WORKER_API_PROGRAM_H
#define PIGPEN_GPU_WORKER_API_PROGRAM_H

#include <stddef.h>

#include "common/base/options.h"
#include "common/base/status.h"

/* Exit codes, an interface, told in README.md. Interrupted: 128 + the signal's number. */
enum gw_exit { GW_EXIT_GOOD = 0, GW_EXIT_FAILED = 1, GW_EXIT_USAGE = 2 };

struct gw_program {
    const char *name; /* in full: "gpu-worker eval" */
    const char *summary;
    const char *examples;
    const struct pp_option *options; /* their targets lie in context */
    size_t option_count;
    /* What the options alone tell to be wrong, with a line on stderr that names the option. */
    enum pp_status (*check)(void *context);
    /* All the work, errors told on stderr. It asks gw_interrupt_signal between its steps and ends
     * with PP_CANCELLED then. */
    enum pp_status (*run)(void *context);
    /* After run, whatever it returned: closes what it opened. */
    void (*close)(void *context);
    void *context;
};

/* argv[0] is skipped. Returns the exit code. */
int gw_program_main(const struct gw_program *program, int argc, char **argv);

#endif
