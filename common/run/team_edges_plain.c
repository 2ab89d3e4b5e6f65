/*
 * Builds without ThreadSanitizer: the runtime's own barriers order memory, nobody needs telling.
 */
#include "common/run/team_edges.h"

void pp_team_edge_release(void *address)
{
    (void)address;
}

void pp_team_edge_acquire(void *address)
{
    (void)address;
}
