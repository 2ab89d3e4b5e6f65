/*
 * What the bench programs share: their main, medians, the report line, and nodes started for a run.
 * A report is one JSON object a line, appended to --json and printed; it carries machine, isa,
 * threads and commit besides the program's own fields. One thread.
 */
#ifndef PIGPEN_BENCH_BENCH_COMMON_H
#define PIGPEN_BENCH_BENCH_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

#include "common/base/options.h"
#include "common/base/status.h"

/* The main of a bench: options, then run, with its error told and as the exit status (2: options).
 * Foreign PIGPEN_* variables are let pass. */
int bench_main(const struct pp_options_spec *spec, int argc, char **argv,
               enum pp_status (*run)(void));

/* Median and least of values; sorts them in place. 0 when count is 0. */
double bench_median(double *values, uint64_t count);
double bench_min(const double *values, uint64_t count);

/* Adds the common fields to object, prints it and appends it to path ("" or NULL: no file), then
 * drops it. PP_IO when the file cannot be written. */
PP_MUST_USE enum pp_status bench_report(json_t *object, uint32_t threads, const char *commit,
                                        const char *path);

/* The path of another program of the same build: name is relative to the build folder, of which
 * this program's own folder is a child. PP_IO, PP_OUT_OF_RANGE: longer than path_bytes. */
PP_MUST_USE enum pp_status bench_built_program(const char *name, char *path_out, size_t path_bytes);

/* A node process: `program --listen=127.0.0.1:0 ...` with its port read back. */
struct bench_node {
    pid_t pid;
    int port;
    char port_file[64];
};

/* Starts program and waits until it listens. extra: NULL-ended further arguments, or NULL.
 * PP_IO, PP_DEADLINE_EXCEEDED. */
PP_MUST_USE enum pp_status bench_node_start(const char *program, const char *const *extra,
                                            struct bench_node *node_out);
void bench_node_stop(struct bench_node *node);

/* Several of them, with the names and addresses that --nodes of a worker takes:
 * "node0=127.0.0.1:40001,node1=...". */
#define BENCH_NODES_MAX 16u
struct bench_nodes {
    struct bench_node node[BENCH_NODES_MAX];
    uint32_t count;
    char text[BENCH_NODES_MAX * 32u];
};

/* As bench_node_start, `count` times; program NULL or "": attn-node of this program's build.
 * PP_OUT_OF_RANGE: none or too many. Nothing is left running on an error. */
PP_MUST_USE enum pp_status bench_nodes_start(const char *program, uint64_t count,
                                             const char *const *extra,
                                             struct bench_nodes *nodes_out);
void bench_nodes_stop(struct bench_nodes *nodes);

#endif
