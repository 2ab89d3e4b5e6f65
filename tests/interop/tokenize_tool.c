/*
 * A helper of tokenizer_test.py: the ids of standard input by the worker's tokenizer. Usage:
 *   tokenize_tool MODEL            one text: one line of ids
 *   tokenize_tool MODEL special    the same, with control tokens parsed
 *   tokenize_tool MODEL records    texts separated by NUL bytes: a line of ids each
 *   tokenize_tool MODEL time       one text: tokens and seconds of the fastest of 5 runs
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu-worker/model/gguf.h"
#include "gpu-worker/model/tokenizer.h"

static char *read_input(size_t *bytes_out)
{
    size_t capacity = 1 << 16;
    size_t bytes = 0;
    char *text = malloc(capacity);
    while (text != NULL) {
        const size_t got = fread(text + bytes, 1, capacity - bytes, stdin);
        bytes += got;
        if (got == 0) {
            break;
        }
        if (bytes == capacity) {
            capacity *= 2;
            char *grown = realloc(text, capacity);
            if (grown == NULL) {
                free(text);
            }
            text = grown;
        }
    }
    *bytes_out = bytes;
    return text;
}

static int print_ids(const struct gw_tokenizer *tokenizer, const char *text, size_t bytes,
                     bool special)
{
    uint32_t *ids = NULL;
    size_t count = 0;
    const enum pp_status status =
        gw_tokenizer_encode(tokenizer, text, bytes, special, &ids, &count);
    if (status != PP_OK) {
        fprintf(stderr, "encode: %s\n", pp_status_name(status));
        return 1;
    }
    for (size_t index = 0; index < count; index++) {
        printf(index == 0 ? "%u" : " %u", ids[index]);
    }
    printf("\n");
    free(ids);
    return 0;
}

static int print_time(const struct gw_tokenizer *tokenizer, const char *text, size_t bytes)
{
    double best = 1e9;
    size_t count = 0;
    for (int run = 0; run < 5; run++) {
        struct timespec start;
        struct timespec end;
        uint32_t *ids = NULL;
        (void)clock_gettime(CLOCK_MONOTONIC, &start);
        if (gw_tokenizer_encode(tokenizer, text, bytes, false, &ids, &count) != PP_OK) {
            return 1;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &end);
        free(ids);
        const double seconds =
            (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
        best = seconds < best ? seconds : best;
    }
    printf("%zu tokens in %.6f s\n", count, best);
    return 0;
}

static int run(const struct gw_tokenizer *tokenizer, const char *mode)
{
    size_t bytes = 0;
    char *text = read_input(&bytes);
    int failed = text == NULL;
    if (!failed && strcmp(mode, "time") == 0) {
        failed = print_time(tokenizer, text, bytes);
    } else if (!failed && strcmp(mode, "records") == 0) {
        for (size_t start = 0; start < bytes && !failed;) {
            const char *stop = memchr(text + start, 0, bytes - start);
            const size_t end = stop == NULL ? bytes : (size_t)(stop - text);
            failed = print_ids(tokenizer, text + start, end - start, false);
            start = end + 1;
        }
    } else if (!failed) {
        failed = print_ids(tokenizer, text, bytes, strcmp(mode, "special") == 0);
    }
    free(text);
    return failed;
}

int main(int argc, char **argv)
{
    char error[256] = "";
    struct gw_gguf *gguf = NULL;
    struct gw_tokenizer *tokenizer = NULL;
    if (argc < 2 || gw_gguf_open(argv[1], error, sizeof(error), &gguf) != PP_OK ||
        gw_tokenizer_new(gguf, error, sizeof(error), &tokenizer) != PP_OK) {
        fprintf(stderr, "%s\n", argc < 2 ? "usage: tokenize_tool MODEL [MODE]" : error);
        gw_gguf_close(gguf);
        return 1;
    }
    const int failed = run(tokenizer, argc > 2 ? argv[2] : "");
    gw_tokenizer_destroy(tokenizer);
    gw_gguf_close(gguf);
    return failed;
}
