/* 16 lanes in plain C: what every machine has, and the meaning of the other simd_*.h. */
#ifndef SPILLWAY_KERNELS_CPU_SIMD_GENERIC_H
#define SPILLWAY_KERNELS_CPU_SIMD_GENERIC_H

#include "base/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

typedef struct {
    float at[LANES];
} lanes;
typedef struct {
    uint32_t at[LANES];
} words;
typedef struct {
    bool at[LANES];
} mask;

#define EACH_LANE for (int lane_ = 0; lane_ < LANES; lane_++)

static inline lanes lanes_set(float value)
{
    lanes r;
    EACH_LANE
    r.at[lane_] = value;
    return r;
}

static inline lanes lanes_load(const float *p)
{
    lanes r;
    memcpy(r.at, p, sizeof r.at);
    return r;
}

/* The first n; the other lanes are 0. */
static inline lanes lanes_load_part(const float *p, int64_t n)
{
    lanes r = {{0}};
    memcpy(r.at, p, (size_t)n * sizeof *p);
    return r;
}

static inline void lanes_store(float *p, lanes x)
{
    memcpy(p, x.at, sizeof x.at);
}

static inline void lanes_store_part(float *p, lanes x, int64_t n)
{
    memcpy(p, x.at, (size_t)n * sizeof *p);
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    lanes r;
    EACH_LANE
    r.at[lane_] = sw_bf16_to_float(p[lane_]);
    return r;
}

static inline void lanes_store_bf16(uint16_t *p, lanes x)
{
    EACH_LANE
    p[lane_] = sw_float_to_bf16(x.at[lane_]);
}

#define BINARY(name, expression)                                                                   \
    static inline lanes lanes_##name(lanes x, lanes y)                                             \
    {                                                                                              \
        lanes r;                                                                                   \
        EACH_LANE                                                                                  \
        {                                                                                          \
            float a = x.at[lane_], b = y.at[lane_];                                                \
            r.at[lane_] = expression;                                                              \
        }                                                                                          \
        return r;                                                                                  \
    }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(div, a / b)
BINARY(max, a > b ? a : b) /* b when either is NaN */
#undef BINARY

static inline mask lanes_less(lanes x, lanes y)
{
    mask r;
    EACH_LANE
    r.at[lane_] = x.at[lane_] < y.at[lane_];
    return r;
}

/* yes where set, else no. */
static inline lanes lanes_select(mask m, lanes yes, lanes no)
{
    lanes r;
    EACH_LANE
    r.at[lane_] = m.at[lane_] ? yes.at[lane_] : no.at[lane_];
    return r;
}

/* The first n of x, then filler's. */
static inline lanes lanes_keep_first(lanes x, int64_t n, lanes filler)
{
    for (int64_t i = n; i < LANES; i++)
        x.at[i] = filler.at[i];
    return x;
}

/* 2^(k + bias - 127), where k is in the low bits of each lane's bit pattern. */
static inline lanes lanes_power_of_bits(lanes x, uint32_t bias)
{
    lanes r;
    EACH_LANE
    {
        uint32_t bits;
        memcpy(&bits, &x.at[lane_], sizeof bits);
        bits = (bits + bias) << 23;
        memcpy(&r.at[lane_], &bits, sizeof bits);
    }
    return r;
}

/* By halves: lane i + lane i + 8, then + 4, + 2, + 1. */
static inline float lanes_sum(lanes x)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x.at[i] = x.at[i] + x.at[i + half];
    return x.at[0];
}

static inline float lanes_greatest(lanes x)
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x.at[i] = x.at[i] > x.at[i + half] ? x.at[i] : x.at[i + half];
    return x.at[0];
}

static inline words words_set(uint32_t value)
{
    words r;
    EACH_LANE
    r.at[lane_] = value;
    return r;
}

/* first, first + 1, ... */
static inline words words_count_from(uint32_t first)
{
    words r;
    EACH_LANE
    r.at[lane_] = first + (uint32_t)lane_;
    return r;
}

static inline words words_xor(words x, words y)
{
    words r;
    EACH_LANE
    r.at[lane_] = x.at[lane_] ^ y.at[lane_];
    return r;
}

/* The halves of the 64-bit products. */
static inline void words_multiply(words x, uint32_t y, words *high, words *low)
{
    EACH_LANE
    {
        uint64_t product = (uint64_t)x.at[lane_] * y;
        high->at[lane_] = (uint32_t)(product >> 32);
        low->at[lane_] = (uint32_t)product;
    }
}

/* out[4 * i + j] = x[j] lane i >> 8 < threshold ? 0 : kept. */
static inline void words_keep(const words x[4], uint32_t threshold, float kept, float out[64])
{
    EACH_LANE
    for (int j = 0; j < 4; j++)
        out[4 * lane_ + j] = x[j].at[lane_] >> 8 < threshold ? 0.0f : kept;
}

#undef EACH_LANE
#endif
