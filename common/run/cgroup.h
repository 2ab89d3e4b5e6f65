/*
 * The limits that the control groups of this process set, version 1, 2 and mixed. Every level from
 * the process's own group up to the mount's root counts; the least wins. Where a container shows
 * only its own part of the hierarchy, missing levels are passed over. Threads: any.
 * root is put before "/proc/self/cgroup" and "/sys/fs/cgroup": "" on a machine, a folder in tests.
 */
#ifndef PIGPEN_COMMON_RUN_CGROUP_H
#define PIGPEN_COMMON_RUN_CGROUP_H

#include <stdint.h>

/* Whole processors, rounded up; 0 when there is no quota. */
uint32_t pp_cgroup_cpu_quota(const char *root);

/* Bytes; UINT64_MAX when there is no limit. */
uint64_t pp_cgroup_memory_limit(const char *root);

#endif
