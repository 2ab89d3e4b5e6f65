/*
 * Metrics: the text that a scrape gets, to the letter.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/obs/metrics.h"

static char *render(const struct pp_stats *stats)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    pp_metrics_render(stats, stream);
    fclose(stream);
    return text;
}

static void names_share_one_heading_and_stand_together(void **state)
{
    (void)state;
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 8), PP_OK);
    struct pp_stat *kv =
        pp_stats_gauge(&stats, "pigpen_node_memory_used_bytes", "kind=\"kv\"", "Bytes\nin \\ use.");
    struct pp_stat *calls = pp_stats_counter(&stats, "pigpen_node_calls_total", "", "Calls.");
    struct pp_stat *tail =
        pp_stats_gauge(&stats, "pigpen_node_memory_used_bytes", "kind=\"tail\"", "Bytes in use.");
    pp_stat_set(kv, 4294967296.0);
    pp_stat_set(tail, 0.5);
    pp_stat_add(calls, 3);
    char *text = render(&stats);
    assert_string_equal(text, "# HELP pigpen_node_memory_used_bytes Bytes\\nin \\\\ use.\n"
                              "# TYPE pigpen_node_memory_used_bytes gauge\n"
                              "pigpen_node_memory_used_bytes{kind=\"kv\"} 4294967296\n"
                              "pigpen_node_memory_used_bytes{kind=\"tail\"} 0.5\n"
                              "# HELP pigpen_node_calls_total Calls.\n"
                              "# TYPE pigpen_node_calls_total counter\n"
                              "pigpen_node_calls_total 3\n");
    free(text);
    pp_stats_deinit(&stats);
}

static void histograms_are_cumulative(void **state)
{
    (void)state;
    struct pp_stats stats;
    assert_int_equal(pp_stats_init(&stats, 2), PP_OK);
    struct pp_stat *stage =
        pp_stats_histogram(&stats, "stage_seconds", "stage=\"scan\"", "Time.", 50e-6, 2, 3);
    (void)pp_stats_histogram(&stats, "stage_seconds", "stage=\"merge\"", "Time.", 50e-6, 2, 3);
    pp_stat_observe(stage, 50e-6);
    pp_stat_observe(stage, 0.00015);
    pp_stat_observe(stage, 1.0);
    char *text = render(&stats);
    assert_string_equal(text, "# HELP stage_seconds Time.\n"
                              "# TYPE stage_seconds histogram\n"
                              "stage_seconds_bucket{stage=\"scan\",le=\"5e-05\"} 1\n"
                              "stage_seconds_bucket{stage=\"scan\",le=\"0.0001\"} 1\n"
                              "stage_seconds_bucket{stage=\"scan\",le=\"0.0002\"} 2\n"
                              "stage_seconds_bucket{stage=\"scan\",le=\"+Inf\"} 3\n"
                              "stage_seconds_sum{stage=\"scan\"} 1.0002\n"
                              "stage_seconds_count{stage=\"scan\"} 3\n"
                              "stage_seconds_bucket{stage=\"merge\",le=\"5e-05\"} 0\n"
                              "stage_seconds_bucket{stage=\"merge\",le=\"0.0001\"} 0\n"
                              "stage_seconds_bucket{stage=\"merge\",le=\"0.0002\"} 0\n"
                              "stage_seconds_bucket{stage=\"merge\",le=\"+Inf\"} 0\n"
                              "stage_seconds_sum{stage=\"merge\"} 0\n"
                              "stage_seconds_count{stage=\"merge\"} 0\n");
    free(text);
    pp_stats_deinit(&stats);
}

static double value_of(const char *text, const char *name)
{
    char wanted[128];
    snprintf(wanted, sizeof(wanted), "\n%s ", name);
    const char *at = strstr(text, wanted);
    if (at == NULL) {
        fail_msg("no %s", name);
        return -1;
    }
    return strtod(at + strlen(wanted), NULL);
}

static void the_process_is_described(void **state)
{
    (void)state;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    pp_metrics_render_process(stream);
    fclose(stream);
    assert_true(value_of(text, "process_cpu_seconds_total") > 0);
    assert_true(value_of(text, "process_resident_memory_bytes") > 100e3);
    assert_true(value_of(text, "process_virtual_memory_bytes") >=
                value_of(text, "process_resident_memory_bytes"));
    assert_true(value_of(text, "process_threads") >= 1);
    assert_true(value_of(text, "process_open_fds") >= 3);
    assert_true(value_of(text, "process_max_fds") >= value_of(text, "process_open_fds"));
    assert_true(value_of(text, "process_start_time_seconds") > 1.6e9);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_share_one_heading_and_stand_together),
        cmocka_unit_test(histograms_are_cumulative),
        cmocka_unit_test(the_process_is_described),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
