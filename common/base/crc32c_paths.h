/*
 * The three ways to compute CRC-32C, for crc32c.c, its test and its bench. All take and give the
 * finished (inverted) value, as pp_crc32c does. prepare fills tables and comes first, once, before
 * any other thread calls; the scalar one before the SSE4.2 one, which uses it, and that before the
 * one of carry-less multiplication. A path must only be called where the processor has it.
 */
#ifndef PIGPEN_COMMON_BASE_CRC32C_PATHS_H
#define PIGPEN_COMMON_BASE_CRC32C_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void pp_crc32c_scalar_prepare(void);
uint32_t pp_crc32c_scalar(uint32_t crc, const void *data, size_t bytes);

void pp_crc32c_sse42_prepare(void);
uint32_t pp_crc32c_sse42(uint32_t crc, const void *data, size_t bytes);

void pp_crc32c_vpclmul_prepare(void);
/* AVX-512 F and DQ, VPCLMULQDQ and SSE4.2. */
bool pp_crc32c_vpclmul_supported(void);
uint32_t pp_crc32c_vpclmul(uint32_t crc, const void *data, size_t bytes);

#endif
