/*
 * What ThreadSanitizer must be told about a team's fork and join, since the OpenMP runtime is not
 * instrumented. Nothing in other builds: CMake picks the file. For team.c only.
 */
#ifndef PIGPEN_COMMON_RUN_TEAM_EDGES_H
#define PIGPEN_COMMON_RUN_TEAM_EDGES_H

void pp_team_edge_release(void *address); /* what this thread did so far ... */
void pp_team_edge_acquire(void *address); /* ... is seen by whoever acquires the same address */

#endif
