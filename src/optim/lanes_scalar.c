#include "optim/lanes.h"

#include <math.h>
#include <string.h>

#define LANES
#define LANES_TABLE sw_lanes_scalar
#define OP static inline
#define EACH for (int k = 0; k < 16; k++)

typedef struct {
    float lane[16];
} vf;
typedef struct {
    uint32_t lane[16];
} vu;
typedef struct {
    double lane[16];
} vd;

OP vf vf_load(const float *p)
{
    vf x;
    EACH x.lane[k] = p[k];
    return x;
}
OP void vf_store(float *p, vf x)
{
    EACH p[k] = x.lane[k];
}
OP vf vf_set(float value)
{
    vf x;
    EACH x.lane[k] = value;
    return x;
}
OP vf vf_add(vf a, vf b)
{
    EACH a.lane[k] += b.lane[k];
    return a;
}
OP vf vf_sub(vf a, vf b)
{
    EACH a.lane[k] -= b.lane[k];
    return a;
}
OP vf vf_mul(vf a, vf b)
{
    EACH a.lane[k] *= b.lane[k];
    return a;
}
OP vf vf_div(vf a, vf b)
{
    EACH a.lane[k] /= b.lane[k];
    return a;
}
OP vf vf_sqrt(vf a)
{
    EACH a.lane[k] = sqrtf(a.lane[k]);
    return a;
}
OP vu vf_bits(vf a)
{
    vu x;
    EACH memcpy(&x.lane[k], &a.lane[k], sizeof x.lane[k]);
    return x;
}
OP vf vu_float(vu a)
{
    vf x;
    EACH memcpy(&x.lane[k], &a.lane[k], sizeof x.lane[k]);
    return x;
}
OP vu vf_is_nan_select(vf x, vu nan, vu other)
{
    EACH other.lane[k] = isnan(x.lane[k]) ? nan.lane[k] : other.lane[k];
    return other;
}
OP vu vu_load(const uint32_t *p)
{
    vu x;
    EACH x.lane[k] = p[k];
    return x;
}
OP void vu_store(uint32_t *p, vu x)
{
    EACH p[k] = x.lane[k];
}
OP vu vu_set(uint32_t value)
{
    vu x;
    EACH x.lane[k] = value;
    return x;
}
OP vu vu_add(vu a, vu b)
{
    EACH a.lane[k] += b.lane[k];
    return a;
}
OP vu vu_xor(vu a, vu b)
{
    EACH a.lane[k] ^= b.lane[k];
    return a;
}
OP vu vu_and(vu a, vu b)
{
    EACH a.lane[k] &= b.lane[k];
    return a;
}
OP vu vu_or(vu a, vu b)
{
    EACH a.lane[k] |= b.lane[k];
    return a;
}
OP vu vu_shift_up(vu a)
{
    EACH a.lane[k] <<= 16;
    return a;
}
OP vu vu_shift_down(vu a)
{
    EACH a.lane[k] >>= 16;
    return a;
}
OP vu vu_load_half(const uint16_t *p)
{
    vu x;
    EACH x.lane[k] = p[k];
    return x;
}
OP vu vu_load_half_signed(const uint16_t *p)
{
    vu x;
    EACH x.lane[k] = (uint32_t)(int32_t)(int16_t)p[k];
    return x;
}
OP void vu_store_half(uint16_t *p, vu x)
{
    EACH p[k] = (uint16_t)x.lane[k];
}
OP void vu_multiply(vu a, uint32_t b, vu *high, vu *low)
{
    EACH
    {
        uint64_t product = (uint64_t)a.lane[k] * b;
        high->lane[k] = (uint32_t)(product >> 32);
        low->lane[k] = (uint32_t)product;
    }
}
OP vu vu_lanes(void)
{
    vu x;
    EACH x.lane[k] = (uint32_t)k;
    return x;
}
OP vd vd_zero(void)
{
    return (vd){{0}};
}
OP vd vd_load(const double *p)
{
    vd x;
    EACH x.lane[k] = p[k];
    return x;
}
OP void vd_store(double *p, vd x)
{
    EACH p[k] = x.lane[k];
}
OP vd vd_add_squares(vd sums, vf x)
{
    EACH sums.lane[k] += (double)x.lane[k] * (double)x.lane[k];
    return sums;
}

#include "optim/lanes_body.h"
