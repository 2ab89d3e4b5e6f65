/*
 * The shared parts of the bench programs. It refuses to know what they measure.
 */
#include "bench/bench_common.h"

#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/run/cpu.h"

#define NODE_START_US 20000000u
#define NODE_ARGS_MAX 32
#define NODE_POLL_NS  5000000
#define MACHINE_BYTES 128

extern char **environ;

int bench_main(const struct pp_options_spec *spec, int argc, char **argv,
               enum pp_status (*run)(void))
{
    struct pp_options *parsed = NULL;
    enum pp_options_outcome outcome;
    struct pp_options_spec own = *spec;
    own.tolerate_foreign_environment = true;
    if (pp_options_parse(&own, argc, argv, environ, stdout, stderr, &outcome, &parsed) != PP_OK) {
        return 2;
    }
    enum pp_status status = outcome == PP_OPTIONS_RUN ? run() : PP_OK;
    if (status != PP_OK) {
        fprintf(stderr, "%s: %s\n", spec->program, pp_status_name(status));
    }
    pp_options_destroy(parsed);
    return status == PP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}

static int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

double bench_median(double *values, uint64_t count)
{
    if (count == 0) {
        return 0;
    }
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

double bench_min(const double *values, uint64_t count)
{
    double least = count > 0 ? values[0] : 0;
    for (uint64_t i = 1; i < count; ++i) {
        least = values[i] < least ? values[i] : least;
    }
    return least;
}

static void machine_name(char *name)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, MACHINE_BYTES, "unknown");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(name, MACHINE_BYTES, "%.96s, %ld cpus", value + 2,
                     sysconf(_SC_NPROCESSORS_ONLN));
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

enum pp_status bench_report(json_t *object, uint32_t threads, const char *commit, const char *path)
{
    char machine[MACHINE_BYTES];
    machine_name(machine);
    json_object_set_new(object, "machine", json_string(machine));
    json_object_set_new(object, "isa", json_string(pp_isa_name(pp_isa_get())));
    json_object_set_new(object, "threads", json_integer(threads));
    json_object_set_new(object, "commit", json_string(commit));
    char *line = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(object);
    if (line == NULL) {
        return PP_MEMORY;
    }
    puts(line);
    enum pp_status status = PP_OK;
    if (path != NULL && path[0] != '\0') {
        FILE *file = fopen(path, "a");
        bool ok = file != NULL && fprintf(file, "%s\n", line) > 0;
        ok = file != NULL && fclose(file) == 0 && ok;
        status = ok ? PP_OK : PP_IO;
    }
    free(line);
    return status;
}

enum pp_status bench_built_program(const char *name, char *path_out, size_t path_bytes)
{
    char own[512];
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);
    if (length <= 0) {
        return PP_IO;
    }
    own[length] = '\0';
    for (int up = 0; up < 2; ++up) { /* the program's name, then its folder */
        char *slash = strrchr(own, '/');
        if (slash == NULL) {
            return PP_IO;
        }
        *slash = '\0';
    }
    int written = snprintf(path_out, path_bytes, "%s/%s", own, name);
    return written > 0 && (size_t)written < path_bytes ? PP_OK : PP_OUT_OF_RANGE;
}

static int read_port(const char *path)
{
    int port = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    if (fscanf(file, "%d", &port) != 1) {
        port = 0;
    }
    fclose(file);
    return port;
}

static enum pp_status wait_for_port(struct bench_node *node)
{
    struct pp_clock clock = pp_clock_system();
    uint64_t deadline_us = pp_clock_now_us(&clock) + NODE_START_US;
    while (pp_clock_now_us(&clock) < deadline_us) {
        node->port = read_port(node->port_file);
        if (node->port > 0) {
            return PP_OK;
        }
        if (waitpid(node->pid, NULL, WNOHANG) == node->pid) {
            node->pid = 0;
            return PP_IO;
        }
        nanosleep(&(struct timespec){.tv_nsec = NODE_POLL_NS}, NULL);
    }
    return PP_DEADLINE_EXCEEDED;
}

enum pp_status bench_node_start(const char *program, const char *const *extra,
                                struct bench_node *node_out)
{
    char listen[] = "--listen=127.0.0.1:0",
         admin[] = "--admin-listen=", level[] = "--log-level=warn";
    char drain[] = "--drain-timeout=1ms";
    char port_option[96], name[64];
    char *arguments[NODE_ARGS_MAX] = {NULL};
    struct bench_node node = {0};
    snprintf(node.port_file, sizeof(node.port_file), "/tmp/pigpen-bench-%ld-XXXXXX",
             (long)getpid());
    int file = mkstemp(node.port_file);
    if (file < 0) {
        return PP_IO;
    }
    close(file);
    snprintf(port_option, sizeof(port_option), "--port-file=%s", node.port_file);
    snprintf(name, sizeof(name), "%.60s", program);
    int count = 0;
    char *const own[] = {name, listen, admin, level, drain, port_option};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); ++i) {
        arguments[count++] = own[i];
    }
    char *copies[NODE_ARGS_MAX] = {NULL};
    for (int i = 0; extra != NULL && extra[i] != NULL && count < NODE_ARGS_MAX - 1; ++i) {
        copies[i] = strdup(extra[i]);
        arguments[count++] = copies[i];
    }
    int failed = posix_spawn(&node.pid, program, NULL, NULL, arguments, environ);
    for (int i = 0; i < NODE_ARGS_MAX; ++i) {
        free(copies[i]);
    }
    enum pp_status status = failed != 0 ? PP_IO : wait_for_port(&node);
    if (failed != 0) {
        node.pid = 0;
    }
    if (status != PP_OK) {
        bench_node_stop(&node);
        return status;
    }
    *node_out = node;
    return PP_OK;
}

void bench_node_stop(struct bench_node *node)
{
    if (node->pid > 0) {
        kill(node->pid, SIGTERM);
        waitpid(node->pid, NULL, 0);
    }
    if (node->port_file[0] != '\0') {
        unlink(node->port_file);
    }
    memset(node, 0, sizeof(*node));
}

enum pp_status bench_nodes_start(const char *program, uint64_t count, const char *const *extra,
                                 struct bench_nodes *nodes_out)
{
    char built[512];
    size_t used = 0;
    memset(nodes_out, 0, sizeof(*nodes_out));
    if (count == 0 || count > BENCH_NODES_MAX) {
        return PP_OUT_OF_RANGE;
    }
    if (program == NULL || program[0] == '\0') {
        PP_TRY(bench_built_program("attn-node/attn-node", built, sizeof(built)));
        program = built;
    }
    for (uint32_t i = 0; i < count; ++i) {
        enum pp_status status = bench_node_start(program, extra, &nodes_out->node[i]);
        if (status != PP_OK) {
            bench_nodes_stop(nodes_out);
            return status;
        }
        nodes_out->count = i + 1;
        used += (size_t)snprintf(nodes_out->text + used, sizeof(nodes_out->text) - used,
                                 "%snode%u=127.0.0.1:%d", i == 0 ? "" : ",", i,
                                 nodes_out->node[i].port);
    }
    return PP_OK;
}

void bench_nodes_stop(struct bench_nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; ++i) {
        bench_node_stop(&nodes->node[i]);
    }
    nodes->count = 0;
}
