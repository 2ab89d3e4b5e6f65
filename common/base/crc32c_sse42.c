/*
 * CRC-32C with the crc32 instruction: 8 bytes a step, latency 3, one a cycle, hence three streams
 * side by side. A block is three runs of STREAM_BYTES; the first two results are moved forward over
 * the bytes that follow them by a table: moving a CRC over zero bytes is linear over GF(2).
 * Reads each byte once.
 */
#include "common/base/crc32c_paths.h"

#include <immintrin.h>
#include <string.h>

#define STREAM_BYTES 1024u

/* forward[i][b]: byte i of a CRC state with value b, moved over STREAM_BYTES zero bytes. */
static uint32_t forward[4][256];

void pp_crc32c_sse42_prepare(void)
{
    static const unsigned char zeros[STREAM_BYTES];
    uint32_t moved[32];
    for (int bit = 0; bit < 32; ++bit) {
        moved[bit] = ~pp_crc32c_scalar(~(UINT32_C(1) << bit), zeros, STREAM_BYTES);
    }
    for (int byte = 0; byte < 4; ++byte) {
        for (uint32_t value = 0; value < 256; ++value) {
            uint32_t sum = 0;
            for (int bit = 0; bit < 8; ++bit) {
                sum ^= (value >> bit & 1u) != 0 ? moved[8 * byte + bit] : 0;
            }
            forward[byte][value] = sum;
        }
    }
}

static inline uint32_t move_forward(uint32_t crc)
{
    return forward[0][crc & 0xffu] ^ forward[1][crc >> 8 & 0xffu] ^ forward[2][crc >> 16 & 0xffu] ^
           forward[3][crc >> 24];
}

static inline uint64_t load_u64(const unsigned char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

uint32_t pp_crc32c_sse42(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t state = ~crc;
    while (bytes >= 3 * STREAM_BYTES) {
        uint64_t second = 0;
        uint64_t third = 0;
        for (size_t index = 0; index < STREAM_BYTES; index += 8) {
            state = _mm_crc32_u64(state, load_u64(at + index));
            second = _mm_crc32_u64(second, load_u64(at + STREAM_BYTES + index));
            third = _mm_crc32_u64(third, load_u64(at + 2 * STREAM_BYTES + index));
        }
        state = move_forward((uint32_t)state) ^ second;
        state = move_forward((uint32_t)state) ^ third;
        at += 3 * STREAM_BYTES;
        bytes -= 3 * STREAM_BYTES;
    }
    for (; bytes >= 8; at += 8, bytes -= 8) {
        state = _mm_crc32_u64(state, load_u64(at));
    }
    for (; bytes > 0; ++at, --bytes) {
        state = _mm_crc32_u8((uint32_t)state, *at);
    }
    return ~(uint32_t)state;
}
