/*
 * `gpu-worker generate`: one prompt from the shell, the answer streamed to stdout.
 */
#ifndef PIGPEN_GPU_WORKER_API_GENERATE_H
#define PIGPEN_GPU_WORKER_API_GENERATE_H

/* argv[0] is skipped. Returns the exit code (program.h). */
int gw_generate_main(int argc, char **argv);

#endif
