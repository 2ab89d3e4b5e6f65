/*
 * Rendering of the registry for a scrape. What is counted, the layers know.
 */
#include "common/obs/metrics.h"

#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void put_number(FILE *output, double value)
{
    if (isnan(value)) {
        fputs("NaN", output);
    } else if (isinf(value)) {
        fputs(value > 0 ? "+Inf" : "-Inf", output);
    } else if (value == floor(value) && fabs(value) < 0x1p53) {
        fprintf(output, "%.0f", value);
    } else {
        fprintf(output, "%.17g", value);
    }
}

/* A bound as short as it reads back the same: 0.0001 and not 0.00010000000000000001. */
static void put_bound(FILE *output, double value)
{
    fprintf(output, "%.12g", value);
}

static void put_help(FILE *output, const char *name, const char *help, const char *type)
{
    fprintf(output, "# HELP %s ", name);
    for (; *help != '\0'; ++help) {
        if (*help == '\\') {
            fputs("\\\\", output);
        } else if (*help == '\n') {
            fputs("\\n", output);
        } else {
            fputc(*help, output);
        }
    }
    fprintf(output, "\n# TYPE %s %s\n", name, type);
}

static void put_value(FILE *output, const char *name, const char *suffix, const char *labels,
                      double value)
{
    bool labelled = labels[0] != '\0';
    fprintf(output, "%s%s%s%s%s ", name, suffix, labelled ? "{" : "", labels, labelled ? "}" : "");
    put_number(output, value);
    fputc('\n', output);
}

static void put_histogram(FILE *output, const struct pp_stat *stat)
{
    const char *comma = stat->labels[0] != '\0' ? "," : "";
    uint64_t count = 0;
    for (uint32_t index = 0; index <= stat->bucket_count; ++index) {
        count += atomic_load_explicit(&stat->bucket[index], memory_order_relaxed);
        fprintf(output, "%s_bucket{%s%sle=\"", stat->name, stat->labels, comma);
        if (index < stat->bucket_count) {
            put_bound(output, stat->bucket_bounds[index]);
        } else {
            fputs("+Inf", output);
        }
        fprintf(output, "\"} %llu\n", (unsigned long long)count);
    }
    put_value(output, stat->name, "_sum", stat->labels, pp_stat_value(stat));
    /* The same number as in the last bucket, whatever was observed meanwhile. */
    put_value(output, stat->name, "_count", stat->labels, (double)count);
}

static bool is_named_before(const struct pp_stats *stats, size_t index)
{
    for (size_t before = 0; before < index; ++before) {
        if (strcmp(stats->series[before].name, stats->series[index].name) == 0) {
            return true;
        }
    }
    return false;
}

void pp_metrics_render(const struct pp_stats *stats, FILE *output)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    for (size_t first = 0; first < stats->count; ++first) {
        const struct pp_stat *head = &stats->series[first];
        if (is_named_before(stats, first)) {
            continue;
        }
        put_help(output, head->name, head->help, types[head->kind]);
        for (size_t index = first; index < stats->count; ++index) {
            const struct pp_stat *stat = &stats->series[index];
            if (strcmp(stat->name, head->name) != 0) {
                continue;
            }
            if (stat->kind == PP_STAT_HISTOGRAM) {
                put_histogram(output, stat);
            } else {
                put_value(output, stat->name, "", stat->labels, pp_stat_value(stat));
            }
        }
    }
}

static void put_process(FILE *output, const char *name, const char *type, const char *help,
                        double value)
{
    put_help(output, name, help, type);
    put_value(output, name, "", "", value);
}

/* /proc/self/stat after the command's name, which may hold anything but ends at the last ')'. */
static bool read_process(long *threads_out, double *start_out, double *virtual_out,
                         double *resident_out)
{
    char text[1024];
    FILE *stream = fopen("/proc/self/stat", "re");
    if (stream == NULL) {
        return false;
    }
    size_t bytes = fread(text, 1, sizeof(text) - 1, stream);
    fclose(stream);
    text[bytes] = '\0';
    const char *at = strrchr(text, ')');
    unsigned long long start_ticks;
    unsigned long long virtual_bytes;
    long long resident_pages;
    /* Fields 3 to 24 of proc(5): threads are 20, start time 22, virtual bytes 23, resident 24. */
    if (at == NULL || sscanf(at + 1,
                             " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                             "%ld %*s %llu %llu %lld",
                             threads_out, &start_ticks, &virtual_bytes, &resident_pages) != 4) {
        return false;
    }
    *start_out = (double)start_ticks / (double)sysconf(_SC_CLK_TCK);
    *virtual_out = (double)virtual_bytes;
    *resident_out = (double)resident_pages * (double)sysconf(_SC_PAGE_SIZE);
    return true;
}

static long count_files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL) {
        return -1;
    }
    long files = 0;
    while (readdir(folder) != NULL) {
        ++files;
    }
    closedir(folder);
    return files - 3; /* ".", ".." and the folder's own */
}

void pp_metrics_render_process(FILE *output)
{
    struct timespec now;
    struct timespec since_boot;
    struct timespec used;
    struct rlimit limit;
    long threads;
    double start;
    double virtual_bytes;
    double resident_bytes;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0) {
        put_process(output, "process_cpu_seconds_total", "counter",
                    "User and system time of this process.",
                    (double)used.tv_sec + (double)used.tv_nsec * 1e-9);
    }
    if (read_process(&threads, &start, &virtual_bytes, &resident_bytes)) {
        clock_gettime(CLOCK_REALTIME, &now);
        clock_gettime(CLOCK_BOOTTIME, &since_boot);
        put_process(output, "process_resident_memory_bytes", "gauge", "Memory in use.",
                    resident_bytes);
        put_process(output, "process_virtual_memory_bytes", "gauge", "Address space in use.",
                    virtual_bytes);
        put_process(output, "process_threads", "gauge", "Threads.", (double)threads);
        put_process(output, "process_start_time_seconds", "gauge", "Start in seconds since 1970.",
                    (double)(now.tv_sec - since_boot.tv_sec) + start);
    }
    long files = count_files();
    if (files >= 0) {
        put_process(output, "process_open_fds", "gauge", "Open files.", (double)files);
    }
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        put_process(output, "process_max_fds", "gauge", "Most files that may be open.",
                    limit.rlim_cur == RLIM_INFINITY ? INFINITY : (double)limit.rlim_cur);
    }
}
