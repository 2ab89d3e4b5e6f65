/*
 * Reads the control groups' files at start: for team.c (processors) and mem/limit.c (bytes). What
 * it cannot read or understand, it takes for no limit.
 */
#include "common/run/cgroup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES_MAX 1024

/* One hierarchy that may hold the wanted files: where it is mounted and this process's group. */
struct hierarchy {
    char mount[PATH_BYTES_MAX];
    char group[PATH_BYTES_MAX]; /* "" or "/a/b" */
};

/* First line of a small file without its newline. */
static bool read_line(const char *folder, const char *group, const char *file, char *text_out,
                      int bytes)
{
    char path[2 * PATH_BYTES_MAX + 64];
    snprintf(path, sizeof(path), "%s%s/%s", folder, group, file);
    FILE *stream = fopen(path, "re");
    if (stream == NULL) {
        return false;
    }
    bool read = fgets(text_out, bytes, stream) != NULL;
    fclose(stream);
    if (read) {
        text_out[strcspn(text_out, "\n")] = '\0';
    }
    return read;
}

/* The group of this process for a version-1 controller, or for version 2 with controller "". */
static bool find_group(const char *root, const char *controller, char *group_out)
{
    char path[PATH_BYTES_MAX];
    char line[PATH_BYTES_MAX];
    bool found = false;
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *stream = fopen(path, "re");
    if (stream == NULL) {
        return false;
    }
    while (!found && fgets(line, sizeof(line), stream) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':');
        char *group = names != NULL ? strchr(names + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        ++names;
        if (controller[0] == '\0') {
            found = names[0] == '\0';
        }
        char *rest = NULL;
        for (char *name = strtok_r(names, ",", &rest); name != NULL && !found;
             name = strtok_r(NULL, ",", &rest)) {
            found = strcmp(name, controller) == 0;
        }
        if (found) {
            snprintf(group_out, PATH_BYTES_MAX, "%s", strcmp(group, "/") == 0 ? "" : group);
        }
    }
    fclose(stream);
    return found;
}

/* Cuts the last name off a group; false at the root. */
static bool go_up(char *group)
{
    char *last = strrchr(group, '/');
    if (last == NULL) {
        return false;
    }
    *last = '\0';
    return true;
}

static bool parse_u64(const char *text, uint64_t *value_out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || errno != 0 || text[0] == '-') {
        return false;
    }
    *value_out = value;
    return true;
}

/* quota and period in microseconds to whole processors. */
static void lower_to_quota(uint64_t quota, uint64_t period, uint32_t *least)
{
    if (period == 0 || quota == 0) {
        return;
    }
    uint64_t whole = quota / period + (quota % period != 0 ? 1 : 0);
    uint32_t processors = whole > UINT32_MAX ? UINT32_MAX : (uint32_t)whole;
    if (*least == 0 || processors < *least) {
        *least = processors;
    }
}

static void cpu_quota_v2(struct hierarchy *at, uint32_t *least)
{
    do {
        char text[128];
        uint64_t quota;
        uint64_t period;
        char *space;
        if (read_line(at->mount, at->group, "cpu.max", text, sizeof(text)) &&
            (space = strchr(text, ' ')) != NULL && parse_u64(text, &quota) &&
            parse_u64(space + 1, &period)) {
            lower_to_quota(quota, period, least);
        }
    } while (go_up(at->group));
}

static void cpu_quota_v1(struct hierarchy *at, uint32_t *least)
{
    do {
        char quota_text[128];
        char period_text[128];
        uint64_t quota;
        uint64_t period;
        if (read_line(at->mount, at->group, "cpu.cfs_quota_us", quota_text, 128) &&
            read_line(at->mount, at->group, "cpu.cfs_period_us", period_text, 128) &&
            parse_u64(quota_text, &quota) && parse_u64(period_text, &period)) {
            lower_to_quota(quota, period, least);
        }
    } while (go_up(at->group));
}

static void lower_to_bytes(struct hierarchy *at, const char *file, uint64_t *least)
{
    do {
        char text[128];
        uint64_t bytes;
        if (read_line(at->mount, at->group, file, text, sizeof(text)) && parse_u64(text, &bytes) &&
            bytes < *least) {
            *least = bytes;
        }
    } while (go_up(at->group));
}

/* Version 2 stands at the root of the mounts, or beside version 1 under "unified". */
static bool find_v2(const char *root, const char *mount, struct hierarchy *at_out)
{
    snprintf(at_out->mount, sizeof(at_out->mount), "%s/sys/fs/cgroup%s", root, mount);
    return find_group(root, "", at_out->group);
}

static bool find_v1(const char *root, const char *controller, const char *mount,
                    struct hierarchy *at_out)
{
    snprintf(at_out->mount, sizeof(at_out->mount), "%s/sys/fs/cgroup/%s", root, mount);
    return find_group(root, controller, at_out->group);
}

uint32_t pp_cgroup_cpu_quota(const char *root)
{
    static const char *const v2_mounts[] = {"", "/unified"};
    static const char *const v1_mounts[] = {"cpu", "cpu,cpuacct"};
    struct hierarchy at;
    uint32_t least = 0;
    for (int index = 0; index < 2; ++index) {
        if (find_v2(root, v2_mounts[index], &at)) {
            cpu_quota_v2(&at, &least);
        }
        if (find_v1(root, "cpu", v1_mounts[index], &at)) {
            cpu_quota_v1(&at, &least);
        }
    }
    return least;
}

uint64_t pp_cgroup_memory_limit(const char *root)
{
    static const char *const v2_mounts[] = {"", "/unified"};
    struct hierarchy at;
    uint64_t least = UINT64_MAX;
    for (int index = 0; index < 2; ++index) {
        if (find_v2(root, v2_mounts[index], &at)) {
            lower_to_bytes(&at, "memory.max", &least);
        }
    }
    if (find_v1(root, "memory", "memory", &at)) {
        lower_to_bytes(&at, "memory.limit_in_bytes", &least);
    }
    return least;
}
