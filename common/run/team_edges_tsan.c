/*
 * ThreadSanitizer builds: the edges that the runtime's barriers make, in the sanitizer's words.
 */
#include "common/run/team_edges.h"

#include <sanitizer/tsan_interface.h>

void pp_team_edge_release(void *address)
{
    __tsan_release(address);
}

void pp_team_edge_acquire(void *address)
{
    __tsan_acquire(address);
}
