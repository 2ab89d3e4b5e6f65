/*
 * Principal axes of keys, by Jacobi's rotations of their covariance. One thread.
 */
#ifndef PIGPEN_BENCH_QUALITY_PRINCIPAL_H
#define PIGPEN_BENCH_QUALITY_PRINCIPAL_H

#include <stdint.h>

/* The `rank` axes of largest variance of `count` keys around centre [dim], largest first: columns
 * [dim][count], axes_out [rank][dim], of length 1. dim is at most 256. */
void quality_principal_axes(const float *columns, const float *centre, uint32_t dim, uint32_t count,
                            uint32_t rank, float *axes_out);

#endif
