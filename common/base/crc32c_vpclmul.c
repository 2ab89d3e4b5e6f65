/*
 * CRC-32C of long spans by carry-less multiplication, four 64-byte registers side by side, as in
 * Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel,
 * 2009). With M = A x^D + B, the 16 bytes A (halves a_high, first in memory, and a_low) fold into
 * the 16 bytes B that lie D bits later: B + a_high (x^(D+64) mod P) + a_low (x^D mod P), which
 * leaves the CRC as it was. What is left at the end is 64 bytes, and the rest of the span: the
 * crc32 instruction's. Reads each byte once.
 */
#include "common/base/crc32c_paths.h"

#include <immintrin.h>

#define BLOCK_BYTES  64u
#define STRIDE_BYTES (4u * BLOCK_BYTES)

/* Multipliers of the two halves of 16 bytes, for folding over a stride and over a block. */
static uint64_t over_stride[2], over_block[2];

/* x^exponent mod P, bits reflected. The product of two reflected numbers comes out one bit low and
 * 32 bits of a multiplier are not used, so callers ask for an exponent that is 32 lower and the
 * multiplier is shifted by one. */
static uint64_t multiplier(uint32_t exponent)
{
    uint32_t power = UINT32_C(1) << 31;
    for (uint32_t i = 0; i < exponent; ++i) {
        power = (power >> 1) ^ (0x82f63b78u & (0u - (power & 1u)));
    }
    return (uint64_t)power << 1;
}

void pp_crc32c_vpclmul_prepare(void)
{
    over_stride[0] = multiplier(8 * STRIDE_BYTES + 64 - 32);
    over_stride[1] = multiplier(8 * STRIDE_BYTES - 32);
    over_block[0] = multiplier(8 * BLOCK_BYTES + 64 - 32);
    over_block[1] = multiplier(8 * BLOCK_BYTES - 32);
}

static inline __m512i both(const uint64_t multipliers[2])
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)multipliers));
}

static inline __m512i fold(__m512i from, __m512i by, __m512i into)
{
    __m512i high = _mm512_clmulepi64_epi128(from, by, 0x00);
    __m512i low = _mm512_clmulepi64_epi128(from, by, 0x11);
    return _mm512_ternarylogic_epi64(high, low, into, 0x96); /* the sum of three */
}

uint32_t pp_crc32c_vpclmul(uint32_t crc, const void *data, size_t bytes)
{
    if (bytes < STRIDE_BYTES) {
        return pp_crc32c_sse42(crc, data, bytes);
    }
    const unsigned char *at = data;
    __m512i sums[4];
    for (int i = 0; i < 4; ++i) {
        sums[i] = _mm512_loadu_si512(at + i * BLOCK_BYTES);
    }
    __m512i state = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc));
    sums[0] = _mm512_xor_si512(sums[0], state);
    at += STRIDE_BYTES;
    bytes -= STRIDE_BYTES;
    __m512i by = both(over_stride);
    for (; bytes >= STRIDE_BYTES; at += STRIDE_BYTES, bytes -= STRIDE_BYTES) {
        for (int i = 0; i < 4; ++i) {
            sums[i] = fold(sums[i], by, _mm512_loadu_si512(at + i * BLOCK_BYTES));
        }
    }
    by = both(over_block);
    __m512i sum = fold(fold(fold(sums[0], by, sums[1]), by, sums[2]), by, sums[3]);
    for (; bytes >= BLOCK_BYTES; at += BLOCK_BYTES, bytes -= BLOCK_BYTES) {
        sum = fold(sum, by, _mm512_loadu_si512(at));
    }
    uint64_t words[BLOCK_BYTES / 8];
    _mm512_storeu_si512(words, sum);
    uint64_t rest = 0;
    for (uint32_t i = 0; i < BLOCK_BYTES / 8; ++i) {
        rest = _mm_crc32_u64(rest, words[i]);
    }
    return pp_crc32c_sse42(~(uint32_t)rest, at, bytes);
}
