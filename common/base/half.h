/*
 * 16-bit floats: bfloat16 and IEEE binary16, to and from f32, rounded half to even. NaN stays NaN,
 * infinities stay, f16 overflows to infinity. Pure; the array forms use the machine's best path.
 */
#ifndef PIGPEN_COMMON_BASE_HALF_H
#define PIGPEN_COMMON_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float pp_bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint16_t pp_bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float pp_f16_to_f32(uint16_t half);
uint16_t pp_f16_from_f32(float value);

#endif
