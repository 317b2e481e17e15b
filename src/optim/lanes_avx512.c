#include "optim/lanes.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define LANES __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define LANES_TABLE sw_lanes_avx512
#define OP LANES static inline __attribute__((always_inline))

typedef __m512 vf;
typedef __m512i vu;
typedef struct {
    __m512d part[2];
} vd;

OP vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
OP void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
OP vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}
OP vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
OP vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
OP vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
OP vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
OP vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
OP vu vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}
OP vf vu_float(vu a)
{
    return _mm512_castsi512_ps(a);
}
OP vu vf_is_nan_select(vf x, vu nan, vu other)
{
    return _mm512_mask_mov_epi32(other, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
}
OP vu vu_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
OP void vu_store(uint32_t *p, vu x)
{
    _mm512_storeu_si512(p, x);
}
OP vu vu_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
OP vu vu_add(vu a, vu b)
{
    return _mm512_add_epi32(a, b);
}
OP vu vu_xor(vu a, vu b)
{
    return _mm512_xor_si512(a, b);
}
OP vu vu_and(vu a, vu b)
{
    return _mm512_and_si512(a, b);
}
OP vu vu_or(vu a, vu b)
{
    return _mm512_or_si512(a, b);
}
OP vu vu_shift_up(vu a)
{
    return _mm512_slli_epi32(a, 16);
}
OP vu vu_shift_down(vu a)
{
    return _mm512_srli_epi32(a, 16);
}
OP vu vu_load_half(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
OP vu vu_load_half_signed(const uint16_t *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
OP void vu_store_half(uint16_t *p, vu x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(x));
}
OP void vu_multiply(vu a, uint32_t b, vu *high, vu *low)
{
    vu even = _mm512_mul_epu32(a, vu_set(b));
    vu odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), vu_set(b));
    *low = _mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32));
    *high = _mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd);
}
OP vu vu_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
OP vd vd_zero(void)
{
    return (vd){{_mm512_setzero_pd(), _mm512_setzero_pd()}};
}
OP vd vd_load(const double *p)
{
    return (vd){{_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}};
}
OP void vd_store(double *p, vd x)
{
    _mm512_storeu_pd(p, x.part[0]);
    _mm512_storeu_pd(p + 8, x.part[1]);
}
OP vd vd_add_squares(vd sums, vf x)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sums.part[0] = _mm512_add_pd(sums.part[0], _mm512_mul_pd(low, low));
    sums.part[1] = _mm512_add_pd(sums.part[1], _mm512_mul_pd(high, high));
    return sums;
}

#include "optim/lanes_body.h"

#endif
