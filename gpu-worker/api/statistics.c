/*
 * Renders measurements as JSON. It refuses to know how they were taken.
 */
#include "gpu-worker/api/statistics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

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
    statistics_real(object, "device_wait_ms", (double)steps->device_wait_us * to_ms);
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

void gw_statistics_overlap(json_t *object, const struct gw_engine *engine)
{
    struct gw_overlap overlap;
    gw_engine_overlap(engine, &overlap);
    statistics_integer(object, "prefill_pieces", overlap.pieces);
    statistics_integer(object, "prefill_pieces_beside", overlap.pieces_beside);
    statistics_real(object, "prefill_copy_wait_ms", (double)overlap.copy_wait_us * 1e-3);
}

/* The mean, p95 and worst layer and head of errors; false when there are none but zeros. */
static bool statistics_summary(const struct gw_errors *errors, struct gw_error_summary *all,
                               struct gw_error_summary *worst, uint32_t *layer, uint32_t *head)
{
    if (errors == NULL || !gw_errors_worst(errors, layer, head)) {
        return false;
    }
    *all = gw_errors_summary(errors, GW_ERRORS_ALL, GW_ERRORS_ALL);
    *worst = gw_errors_summary(errors, *layer, *head);
    return all->mean > 0.0;
}

void gw_statistics_errors(json_t *object, const struct gw_errors *errors,
                          const struct gw_step_stats *steps)
{
    struct gw_error_summary all, worst;
    uint32_t layer, head;
    if (statistics_summary(errors, &all, &worst, &layer, &head)) {
        json_t *own = json_object(), *means = json_array(), *p95s = json_array();
        for (uint32_t i = 0; i < gw_errors_layers(errors); i++) {
            struct gw_error_summary one = gw_errors_summary(errors, i, GW_ERRORS_ALL);
            json_array_append_new(means, json_real(one.mean));
            json_array_append_new(p95s, json_real(one.p95));
        }
        statistics_real(own, "mean", all.mean);
        statistics_real(own, "p95", all.p95);
        statistics_integer(own, "worst_layer", layer);
        statistics_integer(own, "worst_head", head);
        statistics_real(own, "worst_mean", worst.mean);
        statistics_integer(own, "empty_samples", steps->attends_empty);
        statistics_integer(own, "uniform_samples", steps->attends_uniform);
        statistics_integer(own, "target_missed", steps->attends_missed);
        json_object_set_new(own, "layer_mean", means);
        json_object_set_new(own, "layer_p95", p95s);
        json_object_set_new(object, "errors", own);
    }
    if (steps->errors > 0) {
        statistics_real(object, "error_nodes_mean", steps->error_sum / (double)steps->errors);
        statistics_real(object, "error_mean", steps->merged_error_sum / (double)steps->errors);
    }
    if (steps->errors_targeted > 0) {
        statistics_real(object, "within_target",
                        gw_statistics_share(steps->errors_within, steps->errors_targeted));
    }
    if (steps->errors_estimated > 0) {
        statistics_real(object, "error_published_mean",
                        steps->published_sum / (double)steps->errors_estimated);
        statistics_real(object, "coverage",
                        gw_statistics_share(steps->errors_covered, steps->errors_estimated));
    }
}

void gw_statistics_print_errors(const struct gw_errors *errors, const struct gw_step_stats *steps,
                                FILE *out)
{
    struct gw_error_summary all, worst;
    uint32_t layer, head;
    if (statistics_summary(errors, &all, &worst, &layer, &head)) {
        fprintf(out,
                "  estimated relative error: mean %.4f, p95 %.4f; largest in layer %u, head %u: "
                "mean %.4f",
                all.mean, all.p95, layer, head, worst.mean);
        if (steps->attends_empty > 0) {
            fprintf(out, "; empty samples in %llu attends",
                    (unsigned long long)steps->attends_empty);
        }
        if (steps->attends_missed > 0) {
            fprintf(out, "; %llu of %llu attends read all for some heads to meet the target",
                    (unsigned long long)steps->attends_missed, (unsigned long long)steps->attends);
        }
        fputc('\n', out);
    }
    if (steps->errors > 0) {
        fprintf(out, "  against exact answers: error %.4f (nodes' own %.4f)",
                steps->merged_error_sum / (double)steps->errors,
                steps->error_sum / (double)steps->errors);
        if (steps->errors_targeted > 0) {
            fprintf(out, ", within the target %.4f",
                    gw_statistics_share(steps->errors_within, steps->errors_targeted));
        }
        if (steps->errors_estimated > 0) {
            fprintf(out, "; of %llu estimates twice covers %.4f",
                    (unsigned long long)steps->errors_estimated,
                    gw_statistics_share(steps->errors_covered, steps->errors_estimated));
        }
        fputc('\n', out);
    }
}

void gw_statistics_text(json_t *object, const char *key, const char *text, size_t bytes)
{
    static const char unknown[] = "\xEF\xBF\xBD";
    char *whole = malloc(3 * bytes + 1); /* each byte may become U+FFFD */
    size_t filled = 0;
    for (size_t at = 0; whole != NULL && at < bytes;) {
        utf8proc_int32_t code;
        utf8proc_ssize_t got = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                (utf8proc_ssize_t)(bytes - at), &code);
        const char *from = got > 0 ? text + at : unknown;
        size_t taken = got > 0 ? (size_t)got : 3;
        memcpy(whole + filled, from, taken);
        filled += taken;
        at += got > 0 ? (size_t)got : 1;
    }
    json_object_set_new(object, key, whole == NULL ? json_null() : json_stringn(whole, filled));
    free(whole);
}

void gw_statistics_held(json_t *object, const struct gw_worker *worker,
                        struct gw_sequence *sequence)
{
    json_t *held = json_object();
    uint64_t tokens[GW_NODES_MAX] = {0};
    uint32_t count = 0;
    if (worker->remote != NULL) {
        gw_sequence_tokens_held(sequence, tokens);
        count = gw_remote_node_count(worker->remote);
    }
    for (uint32_t i = 0; i < count; i++) {
        /* A node that came back at another address is told with what it was. */
        const char *name = gw_remote_node(worker->remote, i)->name;
        json_int_t before = json_integer_value(json_object_get(held, name));
        statistics_integer(held, name, (uint64_t)before + tokens[i]);
    }
    (void)json_object_set_new(object, "tokens_held", held);
    struct gw_recoveries recoveries;
    gw_sequence_recoveries(sequence, &recoveries);
    statistics_integer(object, "recoveries", recoveries.count);
    statistics_real(object, "recovery_ms", (double)recoveries.total_us * 1e-3);
    statistics_integer(object, "tokens_recomputed", recoveries.tokens_recomputed);
    statistics_integer(object, "tokens_left", gw_sequence_left(sequence));
    statistics_integer(object, "parts", gw_sequence_parts(sequence));
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
