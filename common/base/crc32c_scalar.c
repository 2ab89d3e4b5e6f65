/*
 * CRC-32C by one table, a byte at a time (the reflected polynomial 0x82F63B78): the reference, and
 * the path of processors without SSE4.2.
 */
#include "common/base/crc32c_paths.h"

static uint32_t table[256];

void pp_crc32c_scalar_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
        }
        table[byte] = crc;
    }
}

uint32_t pp_crc32c_scalar(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    crc = ~crc;
    for (size_t index = 0; index < bytes; ++index) {
        crc = (crc >> 8) ^ table[(crc ^ at[index]) & 0xffu];
    }
    return ~crc;
}
