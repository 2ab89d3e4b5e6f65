/*
 * ThreadSanitizer builds: the edges that the runtime's barriers make, in the sanitizer's words.
 * What libraries without instrumentation touch is not judged: their order is made of atomics that
 * the sanitizer cannot see.
 */
#include "common/run/team_edges.h"

#include <sanitizer/tsan_interface.h>

const char *__tsan_default_options(void);

const char *__tsan_default_options(void)
{
    return "ignore_noninstrumented_modules=1";
}

void pp_team_edge_release(void *address)
{
    __tsan_release(address);
}

void pp_team_edge_acquire(void *address)
{
    __tsan_acquire(address);
}
