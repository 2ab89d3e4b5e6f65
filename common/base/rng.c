/*
 * Draws that need more than a line: the normal distribution.
 */
#include "common/base/rng.h"

#include <math.h>

double pp_rng_normal(struct pp_rng *rng)
{
    double radius = sqrt(-2.0 * log(1.0 - pp_rng_uniform(rng)));
    return radius * cos(6.283185307179586 * pp_rng_uniform(rng));
}
