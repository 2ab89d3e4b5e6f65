/*
 * The end of a failed assertion: plain stdio, since the logger may be what failed.
 */
#include "common/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void pp_assert_fail(const char *condition, const char *file, int line)
{
    fprintf(stderr, "assertion failed: %s (%s:%d)\n", condition, file, line);
    abort();
}
