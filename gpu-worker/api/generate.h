/*
 * `gpu-worker generate`: one prompt from the shell, the answer streamed to stdout.
 */
#ifndef PIGPEN_GPU_WORKER_API_GENERATE_H
#define PIGPEN_GPU_WORKER_API_GENERATE_H

/* argv[0] is the program's name as it shall show. Returns the exit code: 0, 1 (failed), 2 (usage).
 */
int gw_generate_main(int argc, char **argv);

#endif
