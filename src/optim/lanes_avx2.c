#include "optim/lanes.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define LANES __attribute__((target("avx2")))
#define LANES_TABLE sw_lanes_avx2
#define OP LANES static inline __attribute__((always_inline))

typedef struct {
    __m256 part[2];
} vf;
typedef struct {
    __m256i part[2];
} vu;
typedef struct {
    __m256d part[4];
} vd;

OP vf vf_load(const float *p)
{
    return (vf){{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}
OP void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.part[0]);
    _mm256_storeu_ps(p + 8, x.part[1]);
}
OP vf vf_set(float x)
{
    return (vf){{_mm256_set1_ps(x), _mm256_set1_ps(x)}};
}
OP vf vf_add(vf a, vf b)
{
    return (vf){{_mm256_add_ps(a.part[0], b.part[0]), _mm256_add_ps(a.part[1], b.part[1])}};
}
OP vf vf_sub(vf a, vf b)
{
    return (vf){{_mm256_sub_ps(a.part[0], b.part[0]), _mm256_sub_ps(a.part[1], b.part[1])}};
}
OP vf vf_mul(vf a, vf b)
{
    return (vf){{_mm256_mul_ps(a.part[0], b.part[0]), _mm256_mul_ps(a.part[1], b.part[1])}};
}
OP vf vf_div(vf a, vf b)
{
    return (vf){{_mm256_div_ps(a.part[0], b.part[0]), _mm256_div_ps(a.part[1], b.part[1])}};
}
OP vf vf_sqrt(vf a)
{
    return (vf){{_mm256_sqrt_ps(a.part[0]), _mm256_sqrt_ps(a.part[1])}};
}
OP vu vf_bits(vf a)
{
    return (vu){{_mm256_castps_si256(a.part[0]), _mm256_castps_si256(a.part[1])}};
}
OP vf vu_float(vu a)
{
    return (vf){{_mm256_castsi256_ps(a.part[0]), _mm256_castsi256_ps(a.part[1])}};
}
OP vu vf_is_nan_select(vf x, vu nan, vu other)
{
    for (int k = 0; k < 2; k++) {
        __m256 mask = _mm256_cmp_ps(x.part[k], x.part[k], _CMP_UNORD_Q);
        other.part[k] = _mm256_blendv_epi8(other.part[k], nan.part[k], _mm256_castps_si256(mask));
    }
    return other;
}
OP vu vu_load(const uint32_t *p)
{
    return (vu){{_mm256_loadu_si256((const __m256i *)(const void *)p),
                 _mm256_loadu_si256((const __m256i *)(const void *)(p + 8))}};
}
OP void vu_store(uint32_t *p, vu x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, x.part[0]);
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), x.part[1]);
}
OP vu vu_set(uint32_t x)
{
    return (vu){{_mm256_set1_epi32((int)x), _mm256_set1_epi32((int)x)}};
}
OP vu vu_add(vu a, vu b)
{
    return (vu){{_mm256_add_epi32(a.part[0], b.part[0]), _mm256_add_epi32(a.part[1], b.part[1])}};
}
OP vu vu_xor(vu a, vu b)
{
    return (vu){{_mm256_xor_si256(a.part[0], b.part[0]), _mm256_xor_si256(a.part[1], b.part[1])}};
}
OP vu vu_and(vu a, vu b)
{
    return (vu){{_mm256_and_si256(a.part[0], b.part[0]), _mm256_and_si256(a.part[1], b.part[1])}};
}
OP vu vu_or(vu a, vu b)
{
    return (vu){{_mm256_or_si256(a.part[0], b.part[0]), _mm256_or_si256(a.part[1], b.part[1])}};
}
OP vu vu_shift_up(vu a)
{
    return (vu){{_mm256_slli_epi32(a.part[0], 16), _mm256_slli_epi32(a.part[1], 16)}};
}
OP vu vu_shift_down(vu a)
{
    return (vu){{_mm256_srli_epi32(a.part[0], 16), _mm256_srli_epi32(a.part[1], 16)}};
}
OP __m128i load_eight_halves(const uint16_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
OP vu vu_load_half(const uint16_t *p)
{
    return (vu){{_mm256_cvtepu16_epi32(load_eight_halves(p)),
                 _mm256_cvtepu16_epi32(load_eight_halves(p + 8))}};
}
OP vu vu_load_half_signed(const uint16_t *p)
{
    return (vu){{_mm256_cvtepi16_epi32(load_eight_halves(p)),
                 _mm256_cvtepi16_epi32(load_eight_halves(p + 8))}};
}
OP void vu_store_half(uint16_t *p, vu x)
{
    /* Packing works within 128-bit halves; the permutation puts them in order. */
    __m256i packed = _mm256_packus_epi32(x.part[0], x.part[1]);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(packed, 0xD8));
}
OP void vu_multiply(vu a, uint32_t b, vu *high, vu *low)
{
    __m256i factor = _mm256_set1_epi32((int)b);
    for (int k = 0; k < 2; k++) {
        __m256i even = _mm256_mul_epu32(a.part[k], factor);
        __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a.part[k], 32), factor);
        low->part[k] = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
        high->part[k] = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    }
}
OP vu vu_lanes(void)
{
    return (vu){{_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                 _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)}};
}
OP vd vd_zero(void)
{
    __m256d zero = _mm256_setzero_pd();
    return (vd){{zero, zero, zero, zero}};
}
OP vd vd_load(const double *p)
{
    return (vd){{_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8),
                 _mm256_loadu_pd(p + 12)}};
}
OP void vd_store(double *p, vd x)
{
    for (int k = 0; k < 4; k++)
        _mm256_storeu_pd(p + k * 4, x.part[k]);
}
OP vd vd_add_squares(vd sums, vf x)
{
    for (int k = 0; k < 2; k++) {
        __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x.part[k]));
        __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x.part[k], 1));
        sums.part[2 * k] = _mm256_add_pd(sums.part[2 * k], _mm256_mul_pd(low, low));
        sums.part[2 * k + 1] = _mm256_add_pd(sums.part[2 * k + 1], _mm256_mul_pd(high, high));
    }
    return sums;
}

#include "optim/lanes_body.h"

#endif
