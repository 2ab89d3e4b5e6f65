/*
 * Renders measurements as JSON. It refuses to know how they were taken.
 */
#include "gpu-worker/api/statistics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void statistics_real(json_t *object, const char *name, double value)
{
    (void)json_object_set_new(object, name, json_real(value));
}

static void statistics_integer(json_t *object, const char *name, uint64_t value)
{
    (void)json_object_set_new(object, name, json_integer((json_int_t)value));
}

double gw_statistics_share(uint64_t read, uint64_t held)
{
    return held == 0 ? 0.0 : (double)read / (double)held;
}

void gw_statistics_steps(json_t *object, const struct gw_step_stats *steps)
{
    double count = steps->steps == 0 ? 1.0 : (double)steps->steps;
    double to_ms = 1e-3 / count;
    statistics_integer(object, "steps", steps->steps);
    statistics_real(object, "ms_per_token", (double)steps->total_us * to_ms);
    statistics_real(object, "device_ms", (double)steps->device_us * to_ms);
    statistics_real(object, "node_ms", (double)steps->node_us * to_ms);
    statistics_real(object, "network_ms", (double)steps->network_us * to_ms);
    statistics_real(object, "wait_ms", (double)steps->wait_us * to_ms);
    statistics_integer(object, "keys_read", steps->keys_read);
    statistics_integer(object, "keys_held", steps->keys_held);
    statistics_integer(object, "keys_local", steps->keys_local);
    statistics_real(object, "rows_share", gw_statistics_share(steps->keys_read, steps->keys_held));
    statistics_real(object, "rows_share_q_head",
                    gw_statistics_share(steps->keys_read_q, steps->keys_held_q));
    statistics_integer(object, "attends", steps->attends);
    (void)json_object_set_new(object, "estimator_used", json_boolean(steps->attends_estimated > 0));
}

void gw_statistics_held(json_t *object, const struct gw_worker *worker,
                        struct gw_sequence *sequence)
{
    json_t *held = json_object();
    uint64_t tokens[GW_NODES_MAX] = {0};
    if (worker->remote != NULL) {
        gw_sequence_tokens_held(sequence, tokens);
    }
    for (uint32_t i = 0; i < worker->remote_config.node_count; i++) {
        statistics_integer(held, worker->remote_config.nodes[i].name, tokens[i]);
    }
    (void)json_object_set_new(object, "tokens_held", held);
    statistics_integer(object, "tokens_left", gw_sequence_left(sequence));
}

enum pp_status gw_statistics_check(const char *option, const char *path, FILE *errors)
{
    if (path[0] == '\0') {
        return PP_OK;
    }
    FILE *file = fopen(path, "ab");
    if (file == NULL) {
        fprintf(errors, "%s: cannot write %s: %s\n", option, path, strerror(errno));
        return PP_IO;
    }
    fclose(file);
    return PP_OK;
}

/* Appends a line; 0 or the errno of what failed. */
static int statistics_append(const char *path, const char *line)
{
    FILE *file = fopen(path, "ab");
    if (file == NULL) {
        return errno;
    }
    int cause = fprintf(file, "%s\n", line) < 0 ? errno : 0;
    int closed = fclose(file) != 0 ? errno : 0;
    return cause != 0 ? cause : closed;
}

enum pp_status gw_statistics_write(json_t *object, const char *path, FILE *errors)
{
    if (path[0] == '\0') {
        json_decref(object);
        return PP_OK;
    }
    char *line = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    if (line == NULL) {
        fprintf(errors, "--json: the figures are no JSON or do not fit the memory\n");
        return PP_INTERNAL;
    }
    int cause = statistics_append(path, line);
    if (cause != 0) {
        fprintf(errors, "--json: cannot write %s: %s; this was measured:\n%s\n", path,
                strerror(cause), line);
    }
    free(line);
    return cause == 0 ? PP_OK : PP_IO;
}
