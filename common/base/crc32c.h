/*
 * CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected), as in RFC 3720. Pure, any thread.
 */
#ifndef PIGPEN_COMMON_BASE_CRC32C_H
#define PIGPEN_COMMON_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* crc of what came before (0 at first) continued over bytes of data: pieces may be chained. */
uint32_t pp_crc32c(uint32_t crc, const void *data, size_t bytes);

#endif
