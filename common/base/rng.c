/*
 * Draws that need more than a line: the normal distribution and the kernel's generator.
 */
#include "common/base/rng.h"

#include <errno.h>
#include <math.h>
#include <sys/random.h>

double pp_rng_normal(struct pp_rng *rng)
{
    double radius = sqrt(-2.0 * log(1.0 - pp_rng_uniform(rng)));
    return radius * cos(6.283185307179586 * pp_rng_uniform(rng));
}

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
