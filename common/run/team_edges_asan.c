/*
 * AddressSanitizer builds: the runtime's barriers order memory, and its threads' own bookkeeping,
 * which it never frees, is not our leak.
 */
#include "common/run/team_edges.h"

const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libomp.so\n";
}

void pp_team_edge_release(void *address)
{
    (void)address;
}

void pp_team_edge_acquire(void *address)
{
    (void)address;
}
