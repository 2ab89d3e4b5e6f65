/*
 * The tokenizer over texts of 1,000,000 characters each: a file's text repeated, and the long runs
 * that make one huge piece. One thread, best and median of five.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench_common.h"
#include "bench/bench_options.h"
#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"

#define ROUNDS     5u
#define CHARACTERS 1000000u

static struct settings {
    const char *model, *text, *json;
} settings;

static const struct pp_option options[] = {
    BENCH_TEXT("model", &settings.model, ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf", "PATH",
               "The GGUF file."),
    BENCH_TEXT("text", &settings.text, "/usr/share/common-licenses/GPL-3", "PATH",
               "The text that is repeated."),
    BENCH_JSON(&settings.json),
};

static double now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static enum pp_status measure(const struct gw_tokenizer *tokenizer, const char *name,
                              const char *text, size_t bytes)
{
    double times[ROUNDS];
    size_t count = 0;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t *ids = NULL;
        const double start = now_ms();
        PP_TRY(gw_tokenizer_encode(tokenizer, text, bytes, false, &ids, &count));
        times[round] = now_ms() - start;
        free(ids);
    }
    const double median = bench_median(times, ROUNDS);
    json_t *report = json_object();
    json_object_set_new(report, "bench", json_string("tokenizer"));
    json_object_set_new(report, "text", json_string(name));
    json_object_set_new(report, "bytes", json_integer((json_int_t)bytes));
    json_object_set_new(report, "tokens", json_integer((json_int_t)count));
    json_object_set_new(report, "ms_median", json_real(median));
    json_object_set_new(report, "ms_min", json_real(bench_min(times, ROUNDS)));
    json_object_set_new(report, "mb_per_s", json_real((double)bytes / 1e3 / median));
    return bench_report(report, 1, PP_COMMIT, settings.json);
}

/* `unit` repeated. */
static enum pp_status measure_run(const struct gw_tokenizer *tokenizer, const char *name,
                                  const char *unit, size_t times)
{
    const size_t unit_bytes = strlen(unit);
    char *text = malloc(unit_bytes * times);
    if (text == NULL) {
        return PP_MEMORY;
    }
    for (size_t index = 0; index < times; index++) {
        memcpy(text + index * unit_bytes, unit, unit_bytes);
    }
    const enum pp_status status = measure(tokenizer, name, text, unit_bytes * times);
    free(text);
    return status;
}

static enum pp_status measure_file(const struct gw_tokenizer *tokenizer)
{
    static char text[64 << 10];
    FILE *file = fopen(settings.text, "r");
    if (file == NULL) {
        return PP_IO;
    }
    size_t bytes = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    while (bytes > 0 && ((unsigned char)text[bytes - 1] & 0x80) != 0) {
        bytes--; /* not inside a character */
    }
    text[bytes] = '\0';
    return bytes == 0 ? PP_IO : measure_run(tokenizer, "file", text, CHARACTERS / bytes + 1);
}

static enum pp_status measure_all(const struct gw_tokenizer *tokenizer)
{
    static const struct {
        const char *name;
        const char *unit;
    } RUNS[] = {{"letter Z", "Z"},
                {"space", " "},
                {"newline", "\n"},
                {"digit 7", "7"},
                {"CJK letter", "\xe5\xad\x97"},
                {"space and newline", " \n"}};
    PP_TRY(measure_file(tokenizer));
    for (size_t index = 0; index < sizeof(RUNS) / sizeof(RUNS[0]); index++) {
        PP_TRY(measure_run(tokenizer, RUNS[index].name, RUNS[index].unit, CHARACTERS));
    }
    return PP_OK;
}

static enum pp_status run_bench(void)
{
    char error[256] = "";
    struct gw_gguf *gguf = NULL;
    struct gw_tokenizer *tokenizer = NULL;
    enum pp_status status = gw_gguf_open(settings.model, error, sizeof(error), &gguf);
    if (status == PP_OK) {
        status = gw_tokenizer_new(gguf, error, sizeof(error), &tokenizer);
    }
    if (status == PP_OK) {
        status = measure_all(tokenizer);
    } else {
        fprintf(stderr, "tokenizer_bench: %s\n", error);
    }
    gw_tokenizer_destroy(tokenizer);
    gw_gguf_close(gguf);
    return status;
}

int main(int argc, char **argv)
{
    const struct pp_options_spec spec = {
        .program = "tokenizer_bench",
        .summary = "Measures the tokenizer.",
        .version = PP_VERSION,
        .options = options,
        .option_count = sizeof(options) / sizeof(options[0]),
    };
    return bench_main(&spec, argc, argv, run_bench);
}
