/*
 * Control groups: files of both versions as systems and containers show them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/run/cgroup.h"

static int make_root(void **state)
{
    char *root = strdup("/tmp/pigpen-cgroup-test-XXXXXX");
    *state = root;
    return mkdtemp(root) != NULL ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

static int remove_root(void **state)
{
    int failed = nftw(*state, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return failed;
}

/* Writes a file below the root with the folders on its way. */
static void put(const char *root, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s%s", root, file);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *stream = fopen(path, "w");
    assert_non_null(stream);
    fputs(text, stream);
    fclose(stream);
}

static void without_files_there_is_no_limit(void **state)
{
    assert_int_equal(pp_cgroup_cpu_quota(*state), 0);
    assert_true(pp_cgroup_memory_limit(*state) == UINT64_MAX);
}

static void version_2_takes_the_least_of_all_levels(void **state)
{
    put(*state, "/proc/self/cgroup", "0::/kubepods/pod7/box\n");
    put(*state, "/sys/fs/cgroup/kubepods/cpu.max", "400000 100000\n");
    put(*state, "/sys/fs/cgroup/kubepods/pod7/cpu.max", "250000 100000\n");
    put(*state, "/sys/fs/cgroup/kubepods/pod7/box/cpu.max", "max 100000\n");
    put(*state, "/sys/fs/cgroup/kubepods/memory.max", "1000000\n");
    put(*state, "/sys/fs/cgroup/kubepods/pod7/memory.max", "max\n");
    put(*state, "/sys/fs/cgroup/kubepods/pod7/box/memory.max", "2000000\n");
    assert_int_equal(pp_cgroup_cpu_quota(*state), 3);
    assert_int_equal(pp_cgroup_memory_limit(*state), 1000000);
}

static void version_2_in_a_container_reads_the_mount_root(void **state)
{
    put(*state, "/proc/self/cgroup", "0::/\n");
    put(*state, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
    put(*state, "/sys/fs/cgroup/memory.max", "536870912\n");
    assert_int_equal(pp_cgroup_cpu_quota(*state), 1);
    assert_int_equal(pp_cgroup_memory_limit(*state), 536870912);
}

static void version_1_reads_its_controllers(void **state)
{
    put(*state, "/proc/self/cgroup",
        "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "200000\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put(*state, "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "300000000\n");
    put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(pp_cgroup_cpu_quota(*state), 2);
    assert_int_equal(pp_cgroup_memory_limit(*state), 300000000);
}

static void version_1_in_a_container_passes_over_levels_it_cannot_see(void **state)
{
    put(*state, "/proc/self/cgroup", "4:memory:/docker/abc\n1:cpu:/docker/abc\n0::/\n");
    put(*state, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    put(*state, "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
    put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
    assert_int_equal(pp_cgroup_cpu_quota(*state), 3);
    assert_int_equal(pp_cgroup_memory_limit(*state), 4096);
}

static void nonsense_is_no_limit(void **state)
{
    put(*state, "/proc/self/cgroup", "no colons\n0:\n0::/a\n");
    put(*state, "/sys/fs/cgroup/a/cpu.max", "banana 100000\n");
    put(*state, "/sys/fs/cgroup/cpu.max", "100000 0\n");
    put(*state, "/sys/fs/cgroup/a/memory.max", "");
    put(*state, "/sys/fs/cgroup/memory.max", "99999999999999999999999\n");
    assert_int_equal(pp_cgroup_cpu_quota(*state), 0);
    assert_true(pp_cgroup_memory_limit(*state) == UINT64_MAX);
}

#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ROOT(without_files_there_is_no_limit),
        WITH_ROOT(version_2_takes_the_least_of_all_levels),
        WITH_ROOT(version_2_in_a_container_reads_the_mount_root),
        WITH_ROOT(version_1_reads_its_controllers),
        WITH_ROOT(version_1_in_a_container_passes_over_levels_it_cannot_see),
        WITH_ROOT(nonsense_is_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
