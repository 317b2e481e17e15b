/* 16 lanes as four vectors of the compiler's own (GCC, clang): what every machine has, and the
 * meaning of the other simd_*.h. */
#ifndef SPILLWAY_KERNELS_CPU_SIMD_GENERIC_H
#define SPILLWAY_KERNELS_CPU_SIMD_GENERIC_H

#include "base/dtype.h"

#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_mask __attribute__((vector_size(16)));
typedef uint32_t quad_words __attribute__((vector_size(16)));

/* Lanes 0-3 in a, 4-7 in b, ... */
typedef struct {
    quad a, b, c, d;
} lanes;
typedef struct {
    quad_words a, b, c, d;
} words;
typedef struct {
    quad_mask a, b, c, d;
} mask;

static inline lanes lanes_set(float value)
{
    quad all = {value, value, value, value};
    return (lanes){all, all, all, all};
}

static inline lanes lanes_load(const float *p)
{
    lanes r;
    memcpy(&r, p, sizeof r);
    return r;
}

/* The first n; the other lanes are 0. */
static inline lanes lanes_load_part(const float *p, int64_t n)
{
    lanes r = lanes_set(0.0f);
    memcpy(&r, p, (size_t)n * sizeof *p);
    return r;
}

static inline void lanes_store(float *p, lanes x)
{
    memcpy(p, &x, sizeof x);
}

static inline void lanes_store_part(float *p, lanes x, int64_t n)
{
    memcpy(p, &x, (size_t)n * sizeof *p);
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    float wide[LANES];
    for (int i = 0; i < LANES; i++)
        wide[i] = sw_bf16_to_float(p[i]);
    return lanes_load(wide);
}

static inline void lanes_store_bf16(uint16_t *p, lanes x)
{
    float wide[LANES];
    lanes_store(wide, x);
    for (int i = 0; i < LANES; i++)
        p[i] = sw_float_to_bf16(wide[i]);
}

static inline lanes lanes_add(lanes x, lanes y)
{
    return (lanes){x.a + y.a, x.b + y.b, x.c + y.c, x.d + y.d};
}

static inline lanes lanes_sub(lanes x, lanes y)
{
    return (lanes){x.a - y.a, x.b - y.b, x.c - y.c, x.d - y.d};
}

static inline lanes lanes_mul(lanes x, lanes y)
{
    return (lanes){x.a * y.a, x.b * y.b, x.c * y.c, x.d * y.d};
}

static inline lanes lanes_div(lanes x, lanes y)
{
    return (lanes){x.a / y.a, x.b / y.b, x.c / y.c, x.d / y.d};
}

static inline mask lanes_less(lanes x, lanes y)
{
    return (mask){x.a < y.a, x.b < y.b, x.c < y.c, x.d < y.d};
}

static inline quad select_quad(quad_mask m, quad yes, quad no)
{
    return (quad)((m & (quad_mask)yes) | (~m & (quad_mask)no));
}

/* yes where set, else no. */
static inline lanes lanes_select(mask m, lanes yes, lanes no)
{
    return (lanes){select_quad(m.a, yes.a, no.a), select_quad(m.b, yes.b, no.b),
                   select_quad(m.c, yes.c, no.c), select_quad(m.d, yes.d, no.d)};
}

/* x > y ? x : y, so y when either is NaN. */
static inline lanes lanes_max(lanes x, lanes y)
{
    return lanes_select(lanes_less(y, x), x, y);
}

/* The first n of x, then filler's. */
static inline lanes lanes_keep_first(lanes x, int64_t n, lanes filler)
{
    memcpy(&filler, &x, (size_t)n * sizeof(float));
    return filler;
}

static inline quad power_of_bits(quad x, uint32_t bias)
{
    return (quad)(((quad_words)x + bias) << 23);
}

/* 2^(k + bias - 127), where k is in the low bits of each lane's bit pattern. */
static inline lanes lanes_power_of_bits(lanes x, uint32_t bias)
{
    return (lanes){power_of_bits(x.a, bias), power_of_bits(x.b, bias), power_of_bits(x.c, bias),
                   power_of_bits(x.d, bias)};
}

/* By halves: lane i + lane i + 8, then + 4, + 2, + 1. */
static inline float lanes_sum(lanes x)
{
    quad sum = (x.a + x.c) + (x.b + x.d);
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static inline float greater(float a, float b)
{
    return a > b ? a : b;
}

static inline float lanes_greatest(lanes x)
{
    lanes other = {x.c, x.d, x.c, x.d};
    lanes eight = lanes_max(x, other);
    lanes four = lanes_max(eight, (lanes){eight.b, eight.b, eight.b, eight.b});
    return greater(greater(four.a[0], four.a[2]), greater(four.a[1], four.a[3]));
}

static inline words words_set(uint32_t value)
{
    quad_words all = {value, value, value, value};
    return (words){all, all, all, all};
}

/* first, first + 1, ... */
static inline words words_count_from(uint32_t first)
{
    const quad_words counts = {0, 1, 2, 3};
    return (words){counts + first, counts + (first + 4), counts + (first + 8),
                   counts + (first + 12)};
}

static inline words words_xor(words x, words y)
{
    return (words){x.a ^ y.a, x.b ^ y.b, x.c ^ y.c, x.d ^ y.d};
}

static inline void multiply_quad(quad_words x, uint32_t y, quad_words *high, quad_words *low)
{
    for (int i = 0; i < 4; i++) {
        uint64_t product = (uint64_t)x[i] * y;
        (*high)[i] = (uint32_t)(product >> 32);
        (*low)[i] = (uint32_t)product;
    }
}

/* The halves of the 64-bit products. */
static inline void words_multiply(words x, uint32_t y, words *high, words *low)
{
    multiply_quad(x.a, y, &high->a, &low->a);
    multiply_quad(x.b, y, &high->b, &low->b);
    multiply_quad(x.c, y, &high->c, &low->c);
    multiply_quad(x.d, y, &high->d, &low->d);
}

/* out[4 * i + j] = (x[j] lane i) >> 8 < threshold ? 0 : kept. */
static inline void words_keep(const words x[4], uint32_t threshold, float kept, float out[64])
{
    uint32_t all[4][LANES];
    memcpy(all, x, sizeof all);
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 4; j++)
            out[4 * i + j] = all[j][i] >> 8 < threshold ? 0.0f : kept;
}

#endif
