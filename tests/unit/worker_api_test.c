/*
 * What the worker's programs read from people: nodes, lists of estimators, files; and the scores
 * and progress they show.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu-worker/api/eval.h"
#include "gpu-worker/api/eval_score.h"
#include "gpu-worker/api/nodes.h"
#include "gpu-worker/api/progress.h"
#include "gpu-worker/api/statistics.h"
#include "gpu-worker/api/worker.h"
#include "gpu-worker/api/worker_device.h"

static void nodes_are_names_and_addresses(void **state)
{
    (void)state;
    struct gw_node_address nodes[GW_NODES_MAX];
    uint32_t count = 99;
    assert_int_equal(gw_nodes_parse("", stderr, nodes, &count), PP_OK);
    assert_int_equal(count, 0);
    assert_int_equal(gw_nodes_parse("a=127.0.0.1:7450,b=[::1]:7451,host:1", stderr, nodes, &count),
                     PP_OK);
    assert_int_equal(count, 3);
    assert_string_equal(nodes[0].name, "a");
    assert_string_equal(nodes[0].address, "127.0.0.1:7450");
    assert_string_equal(nodes[1].address, "[::1]:7451");
    assert_string_equal(nodes[2].name, "host:1");
    assert_string_equal(nodes[2].address, "host:1");
}

static void nodes_that_cannot_be_meant_are_refused_with_a_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *said;
    } bad[] = {{"a", "port is missing"},
               {"=x:1", "NAME=HOST:PORT"},
               {"a=", "NAME=HOST:PORT"},
               {"a=host", "port is missing"},
               {"a=host:", "port is missing"},
               {"a=:7450", "host is missing"},
               {"a=x:1,a=y:2", "two nodes are named 'a'"},
               {"a=x:1,,b=y:2", "NAME=HOST:PORT"},
               {"a=x:0", "1 to 65535"},
               {"a=x:65536", "1 to 65535"},
               {"a=x:18446744073709551617", "1 to 65535"},
               {"a=x:7450x", "1 to 65535"},
               {"a=x:-1", "1 to 65535"},
               {"a=::1:7450", "brackets"},
               {"a=[]:7450", "brackets"},
               {"a=two words:1", "name or an address"},
               {"a=http://x:1", "TCP"},
               {"a=unix:/tmp/x", "TCP"},
               {"a=x:1,", "NAME=HOST:PORT"},
               {",a=x:1", "NAME=HOST:PORT"},
               {",", "NAME=HOST:PORT"},
               {"a=x:1,b=x:1", "'a' and 'b' have one address, x:1"},
               {"a=x:1,b=y:1,c=X:01", "'a' and 'c' have one address"},
               {"a=localhost:1,b=127.0.0.1:1", "'a' and 'b' have one address"},
               {"a=127.0.0.1:1,b=LocalHost:1", "'a' and 'b' have one address"},
               {"x:1,x:1", "two nodes are named 'x:1'"}};
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct gw_node_address nodes[GW_NODES_MAX];
        uint32_t count;
        char *said = NULL;
        size_t bytes;
        FILE *errors = open_memstream(&said, &bytes);
        assert_non_null(errors);
        assert_int_equal(gw_nodes_parse(bad[i].text, errors, nodes, &count), PP_INVALID_ARGUMENT);
        fclose(errors);
        assert_memory_equal(said, "--nodes: ", 9);
        if (strstr(said, bad[i].said) == NULL) {
            fail_msg("%s: said %s", bad[i].text, said);
        }
        free(said);
    }
}

static void names_and_addresses_of_nodes_have_a_length(void **state)
{
    (void)state;
    struct gw_node_address nodes[GW_NODES_MAX];
    char long_name[400];
    uint32_t count;
    memset(long_name, 'x', sizeof(long_name));
    memcpy(long_name + 390, "=h:1", 5);
    FILE *errors = tmpfile();
    assert_int_equal(gw_nodes_parse(long_name, errors, nodes, &count), PP_INVALID_ARGUMENT);
    assert_int_equal(gw_nodes_parse(long_name + 390 - 64, errors, nodes, &count),
                     PP_INVALID_ARGUMENT);
    assert_int_equal(gw_nodes_parse(long_name + 390 - 63, errors, nodes, &count), PP_OK);
    assert_int_equal(strlen(nodes[0].name), 63);
    fclose(errors);
}

static void more_nodes_than_the_limit_are_refused(void **state)
{
    (void)state;
    static struct gw_node_address nodes[GW_NODES_MAX];
    char text[32 * (GW_NODES_MAX + 1)];
    size_t bytes = 0;
    uint32_t count;
    for (uint32_t i = 0; i <= GW_NODES_MAX; i++) {
        bytes += (size_t)snprintf(text + bytes, sizeof(text) - bytes, "%sn%u=h:%u",
                                  i == 0 ? "" : ",", i, i + 1);
    }
    FILE *errors = tmpfile();
    assert_int_equal(gw_nodes_parse(text, errors, nodes, &count), PP_INVALID_ARGUMENT);
    *strrchr(text, ',') = '\0';
    assert_int_equal(gw_nodes_parse(text, errors, nodes, &count), PP_OK);
    assert_int_equal(count, GW_NODES_MAX);
    fclose(errors);
}

static void dense_layers_are_an_ascending_list(void **state)
{
    (void)state;
    static const char *const bad[] = {"a", "1,", ",1", "30", "2,1", "1,1", "-1", " 1", "1 2"};
    uint32_t layers[PP_LAYERS_MAX], count = 9;
    assert_int_equal(gw_layers_parse("", 30, stderr, layers, &count), PP_OK);
    assert_int_equal(count, 0);
    assert_int_equal(gw_layers_parse("0,16,29", 30, stderr, layers, &count), PP_OK);
    assert_int_equal(count, 3);
    assert_int_equal(layers[1], 16);
    assert_int_equal(layers[2], 29);
    FILE *errors = tmpfile();
    for (uint32_t i = 0; i < 9; i++) {
        bool trailing = i == 1; /* a comma at the end names nothing more */
        assert_int_equal(gw_layers_parse(bad[i], 30, errors, layers, &count),
                         trailing ? PP_OK : PP_INVALID_ARGUMENT);
    }
    fclose(errors);
}

static void commas_before_parameters_belong_to_the_estimator(void **state)
{
    (void)state;
    struct gw_eval_estimator list[GW_EVAL_ESTIMATORS_MAX];
    uint32_t count;
    char error[512];
    assert_int_equal(gw_eval_estimators_parse("exact,lsh:k=8,l=75,lsh/0-1:exact/2:lsh:t=3,exact",
                                              list, &count, error, sizeof(error)),
                     PP_OK);
    assert_int_equal(count, 4);
    assert_int_equal(list[0].estimators.common.kind, PP_EXACT);
    assert_int_equal(list[1].estimators.common.kind, PP_LSH);
    assert_int_equal(list[1].estimators.common.k, 8);
    assert_int_equal(list[1].estimators.common.l, 75);
    assert_string_equal(list[1].text, "lsh:k=8,l=75");
    assert_int_equal(list[2].estimators.common.k, 10);
    assert_int_equal(list[2].estimators.range_count, 2);
    assert_int_equal(pp_estimators_of(&list[2].estimators, 2)->t, 3);
    assert_int_equal(list[3].estimators.common.kind, PP_EXACT);
}

static void lists_that_name_no_estimator_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         ",",         "exact,,lsh", "exakt",
                                      "lsh:k=99", "exact lsh", "exact,",     ",exact"};
    struct gw_eval_estimator list[GW_EVAL_ESTIMATORS_MAX];
    uint32_t count;
    char error[512], many[6 * (GW_EVAL_ESTIMATORS_MAX + 1)] = "";
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_not_equal(gw_eval_estimators_parse(bad[i], list, &count, error, sizeof(error)),
                             PP_OK);
    }
    for (uint32_t i = 0; i <= GW_EVAL_ESTIMATORS_MAX; i++) {
        memcpy(many + (size_t)6 * i, "exact,", 6);
    }
    many[sizeof(many) - 1] = '\0';
    assert_int_equal(gw_eval_estimators_parse(many, list, &count, error, sizeof(error)),
                     PP_INVALID_ARGUMENT);
}

static void layers_that_the_model_lacks_are_refused(void **state)
{
    (void)state;
    struct pp_estimators estimators;
    char error[512], line[256] = "";
    FILE *errors = fmemopen(line, sizeof(line), "w");
    assert_int_equal(pp_estimators_parse("lsh/28-29:exact", &estimators, error, sizeof(error)),
                     PP_OK);
    assert_int_equal(gw_estimators_check("--estimator", &estimators, 30, errors), PP_OK);
    assert_int_equal(gw_estimators_check("--estimator", &estimators, 29, errors),
                     PP_INVALID_ARGUMENT);
    fclose(errors);
    assert_string_equal(line, "--estimator: names layer 29, but the model's layers are 0 to 28\n");
}

static void scores_are_perplexity_divergence_and_agreement(void **state)
{
    (void)state;
    const float even[4] = {1.0f, 1.0f, 1.0f, 1.0f}, second[4] = {0.0f, 3.0f, 0.0f, 0.0f};
    struct gw_eval_score score = {0};
    assert_int_equal(gw_eval_score_add(&score, even, even, 4, 2), PP_OK);
    assert_int_equal(gw_eval_score_add(&score, second, even, 4, 1), PP_OK);
    assert_true(fabs(gw_eval_score_perplexity(&score) - 4.0) < 1e-9);
    assert_int_equal(score.rows, 2);
    assert_int_equal(score.top1_same, 1); /* even's likeliest is id 0 */
    assert_int_equal(score.next_same, 0);
    assert_true(score.kl_max > 0.1 && fabs(score.kl_sum - score.kl_max) < 1e-12);
    assert_int_equal(gw_eval_score_add(&score, second, second, 4, 1), PP_OK);
    assert_int_equal(score.next_same, 1);
    const float broken[4] = {NAN};
    assert_int_equal(gw_eval_score_add(&score, even, broken, 4, 1), PP_NON_FINITE);
}

static uint64_t still_now(void *context)
{
    (void)context;
    return 1000000;
}

static void progress_is_lines_off_a_terminal_and_a_bar_on_one(void **state)
{
    (void)state;
    struct pp_clock clock = {still_now, NULL};
    for (uint32_t terminal = 0; terminal < 2; terminal++) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = open_memstream(&text, &bytes);
        struct gw_progress progress;
        gw_progress_init(&progress, out, terminal == 1, clock);
        for (uint64_t i = 0; i <= 1000; i++) {
            gw_progress_show(&progress, "prefill", i, 1000);
        }
        gw_progress_end(&progress);
        fclose(out);
        uint32_t lines = 0;
        for (size_t i = 0; i < bytes; i++) {
            lines += text[i] == '\n' ? 1 : 0;
        }
        assert_int_equal(lines, terminal == 1 ? 1 : 11);
        assert_non_null(strstr(text, "100%"));
        assert_true((strchr(text, '\r') != NULL) == (terminal == 1));
        free(text);
    }
}

static void a_path_for_figures_that_cannot_be_written_is_refused_before_the_work(void **state)
{
    (void)state;
    char path[] = "/tmp/pigpen_api_test.XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, "kept\n", 5), 5);
    assert_int_equal(gw_statistics_check("--json", "", stderr), PP_OK);
    assert_int_equal(gw_statistics_check("--json", path, stderr), PP_OK);
    assert_int_equal(lseek(descriptor, 0, SEEK_END), 5);
    close(descriptor);
    unlink(path);
    FILE *errors = tmpfile();
    assert_non_null(errors);
    assert_int_equal(gw_statistics_check("--json", "/nonexistent/figures.json", errors), PP_IO);
    assert_true(ftell(errors) > 20);
    fclose(errors);
}

static void figures_that_cannot_be_written_are_told_instead(void **state)
{
    (void)state;
    char *said = NULL;
    size_t bytes;
    FILE *errors = open_memstream(&said, &bytes);
    json_t *object = json_pack("{s:i}", "ms_per_token", 7);
    assert_int_equal(gw_statistics_write(object, "/dev/full", errors), PP_IO);
    fclose(errors);
    assert_non_null(strstr(said, "--json: cannot write /dev/full: No space left on device"));
    assert_non_null(strstr(said, "{\"ms_per_token\":7}"));
    free(said);
}

static void memory_that_is_used_up_is_explained_with_what_to_do(void **state)
{
    (void)state;
    char *said = NULL;
    size_t bytes;
    FILE *errors = open_memstream(&said, &bytes);
    assert_non_null(errors);
    gw_worker_explain(errors, "prefill", PP_UNAVAILABLE, NULL);
    fflush(errors);
    assert_string_equal(said, "prefill failed: UNAVAILABLE\n");
    gw_worker_explain(errors, "prefill", PP_MEMORY, NULL);
    fclose(errors);
    assert_non_null(strstr(said, "--memory-limit"));
    free(said);
}

static void devices_that_there_are_none_of_are_refused(void **state)
{
    (void)state;
    static const char *const good[] = {"host", "cuda", "cuda:0", "cuda:15", NULL};
    static const char *const bad[] = {"", "gpu", "cuda:", "cuda0", "cuda:-1", "cuda:1x", "hosts"};
    char *said = NULL;
    size_t bytes;
    FILE *errors = open_memstream(&said, &bytes);
    assert_non_null(errors);
    for (uint32_t i = 0; i < 5; i++) {
        const struct gw_worker_options options = {.device = good[i]};
        assert_int_equal(gw_worker_device_check(&options, errors), PP_OK);
    }
    fflush(errors);
    assert_int_equal(bytes, 0);
    for (uint32_t i = 0; i < 7; i++) {
        const struct gw_worker_options options = {.device = bad[i]};
        assert_int_equal(gw_worker_device_check(&options, errors), PP_INVALID_ARGUMENT);
    }
    fclose(errors);
    assert_memory_equal(said, "--device: '' is none; there are host, cuda and cuda:N\n", 53);
    free(said);
}

/* No machine has so many GPUs: whatever is missing here, it is said and nothing else computes. */
static void a_gpu_that_is_not_there_is_an_error_that_says_why(void **state)
{
    (void)state;
    char *said = NULL;
    size_t bytes;
    FILE *errors = open_memstream(&said, &bytes);
    struct gw_device *device = NULL;
    const struct gw_worker_options options = {.device = "cuda:9999"};
    assert_non_null(errors);
    assert_int_equal(gw_worker_device_open(&options, errors, &device), PP_UNAVAILABLE);
    fclose(errors);
    assert_null(device);
    assert_memory_equal(said, "cannot use the device cuda:9999: ", 33);
    assert_true(bytes > 40);
    free(said);
}

static void files_are_read_whole_and_missing_ones_named(void **state)
{
    (void)state;
    char path[] = "/tmp/pigpen_api_test.XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    FILE *file = fdopen(descriptor, "wb");
    for (uint32_t i = 0; i < 70000; i++) {
        fputc((int)(i % 251), file);
    }
    fclose(file);
    char *text;
    size_t bytes;
    assert_int_equal(gw_file_read(path, stderr, &text, &bytes), PP_OK);
    assert_int_equal(bytes, 70000);
    for (uint32_t i = 0; i < 70000; i++) {
        assert_int_equal((uint8_t)text[i], i % 251);
    }
    assert_int_equal(text[bytes], 0);
    free(text);
    unlink(path);
    FILE *errors = tmpfile();
    char line[200] = "";
    assert_int_equal(gw_file_read(path, errors, &text, &bytes), PP_IO);
    assert_int_equal(gw_file_read("/", errors, &text, &bytes), PP_IO);
    rewind(errors);
    assert_non_null(fgets(line, sizeof(line), errors));
    assert_non_null(strstr(line, path));
    assert_non_null(strstr(line, "No such file"));
    assert_non_null(fgets(line, sizeof(line), errors));
    assert_string_equal(line, "cannot read /: Is a directory\n");
    fclose(errors);
}

static void a_target_error_that_no_sample_meets_is_refused_with_what_to_do(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "-0.1", "1.5", "nan", "inf", "0.1x", "x", " "};
    struct pp_estimators estimators = {.common = {.kind = PP_SKETCH, .bits = 2}};
    struct gw_worker_options options = {.target_error = "0.1"};
    assert_int_equal(gw_worker_target(&options, &estimators, stderr), PP_OK);
    assert_true(estimators.common.target_error == 0.1f);
    options.target_error = "";
    estimators.common.target_error = 0.0f;
    assert_int_equal(gw_worker_target(&options, &estimators, stderr), PP_OK);
    assert_true(estimators.common.target_error == 0.0f);
    for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        FILE *errors = tmpfile();
        char line[400] = "";
        options.target_error = bad[i];
        assert_int_equal(gw_worker_target(&options, &estimators, errors), PP_INVALID_ARGUMENT);
        rewind(errors);
        assert_non_null(fgets(line, sizeof(line), errors));
        assert_memory_equal(line, "--target-error: '", 17);
        assert_non_null(strstr(line, "give one above 0, at most 1"));
        fclose(errors);
        assert_true(estimators.common.target_error == 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_names_and_addresses),
        cmocka_unit_test(nodes_that_cannot_be_meant_are_refused_with_a_line),
        cmocka_unit_test(names_and_addresses_of_nodes_have_a_length),
        cmocka_unit_test(more_nodes_than_the_limit_are_refused),
        cmocka_unit_test(dense_layers_are_an_ascending_list),
        cmocka_unit_test(commas_before_parameters_belong_to_the_estimator),
        cmocka_unit_test(lists_that_name_no_estimator_are_refused),
        cmocka_unit_test(layers_that_the_model_lacks_are_refused),
        cmocka_unit_test(scores_are_perplexity_divergence_and_agreement),
        cmocka_unit_test(progress_is_lines_off_a_terminal_and_a_bar_on_one),
        cmocka_unit_test(a_path_for_figures_that_cannot_be_written_is_refused_before_the_work),
        cmocka_unit_test(figures_that_cannot_be_written_are_told_instead),
        cmocka_unit_test(memory_that_is_used_up_is_explained_with_what_to_do),
        cmocka_unit_test(a_target_error_that_no_sample_meets_is_refused_with_what_to_do),
        cmocka_unit_test(devices_that_there_are_none_of_are_refused),
        cmocka_unit_test(a_gpu_that_is_not_there_is_an_error_that_says_why),
        cmocka_unit_test(files_are_read_whole_and_missing_ones_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
