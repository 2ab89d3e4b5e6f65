/*
 * The kernel's generator: the one source of numbers that nobody can foresee. Alone in its file, so
 * that the simulator can link a source of its own, by seed, in its place.
 */
#include <errno.h>
#include <sys/random.h>

#include "common/base/rng.h"

enum pp_status pp_rng_system(void *out, uint64_t bytes)
{
    unsigned char *at = out;
    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return PP_IO;
        }
        at += got;
        bytes -= (uint64_t)got;
    }
    return PP_OK;
}
