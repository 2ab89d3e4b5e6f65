/*
 * Runs a program of the worker from its arguments to its exit code. It refuses to know which.
 */
#include "gpu-worker/api/program.h"

#include <stdio.h>
#include <unistd.h>

#include "gpu-worker/api/interrupt.h"

static int program_run(const struct gw_program *program)
{
    gw_interrupt_arm();
    enum pp_status status = program->run(program->context);
    program->close(program->context);
    if (gw_interrupt_signal() != 0) {
        fprintf(stderr, "%s was interrupted\n", program->name);
        return 128 + gw_interrupt_signal();
    }
    if (status != PP_OK) {
        fprintf(stderr, "%s failed: %s\n", program->name, pp_status_name(status));
    }
    return status == PP_OK ? GW_EXIT_GOOD : GW_EXIT_FAILED;
}

int gw_program_main(const struct gw_program *program, int argc, char **argv)
{
    const struct pp_options_spec spec = {.program = program->name,
                                         .summary = program->summary,
                                         .examples = program->examples,
                                         .version = PP_VERSION,
                                         .options = program->options,
                                         .option_count = program->option_count,
                                         .tolerate_foreign_environment = true,
                                         .check = program->check,
                                         .check_context = program->context};
    struct pp_options *options;
    enum pp_options_outcome outcome;
    if (pp_options_parse(&spec, argc, argv, environ, stdout, stderr, &outcome, &options) != PP_OK) {
        return GW_EXIT_USAGE;
    }
    int code = outcome == PP_OPTIONS_RUN ? program_run(program) : GW_EXIT_GOOD;
    pp_options_destroy(options);
    return code;
}
