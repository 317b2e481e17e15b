/* Element types and their conversions. */
#ifndef SPILLWAY_BASE_DTYPE_H
#define SPILLWAY_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

enum sw_dtype { SW_F32, SW_BF16, SW_F16 /* in files only */ };

static inline int64_t sw_dtype_bytes(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? 4 : 2;
}

static inline const char *sw_dtype_name(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? "fp32" : dtype == SW_BF16 ? "bf16" : "fp16";
}

static inline float sw_bf16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t sw_float_to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#endif
