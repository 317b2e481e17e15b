/* Element types and their conversions. */
#ifndef SPILLWAY_BASE_DTYPE_H
#define SPILLWAY_BASE_DTYPE_H

#include "base/inline.h"

#include <stdint.h>
#include <string.h>

enum sw_dtype { SW_F32, SW_BF16, SW_F16 /* in files only */ };

SW_INLINE int64_t sw_dtype_bytes(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? 4 : 2;
}

SW_INLINE const char *sw_dtype_name(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? "fp32" : dtype == SW_BF16 ? "bf16" : "fp16";
}

SW_INLINE float sw_bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even; NaN stays NaN. */
SW_INLINE uint16_t sw_float_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

/* Exact; subnormals, infinities and NaN payloads included. */
SW_INLINE float sw_f16_to_float(uint16_t half)
{
    /* Exponent and fraction moved into place leave the exponent 112 too small, for subnormals too.
     */
    uint32_t bits = (uint32_t)(half & 0x7FFFu) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f;
    memcpy(&bits, &value, sizeof bits);
    if ((half & 0x7C00u) == 0x7C00u)
        bits |= 0x7F800000u;
    bits |= (uint32_t)(half & 0x8000u) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even; too large becomes infinite; NaN stays NaN. */
SW_INLINE uint16_t sw_float_to_f16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((size >> 13) & 0x3FFu));
    if (size >= 0x47800000u) /* 65536 and more */
        return (uint16_t)(sign | 0x7C00u);
    if (size < 0x38800000u) {
        /* Subnormal: adding 0.5 makes the sum's last place 2^-24, a half's smallest step. */
        float sum;
        memcpy(&sum, &size, sizeof sum);
        sum += 0.5f;
        memcpy(&bits, &sum, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3F000000u));
    }
    /* The carry of rounding may run into the exponent, up to infinity. */
    size += 0xFFFu + ((size >> 13) & 1u);
    return (uint16_t)(sign | ((size >> 13) - (112u << 10)));
}

#endif
