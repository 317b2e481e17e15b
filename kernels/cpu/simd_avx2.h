/* simd_generic.h's primitives in AVX2: a vector is two registers. */
#ifndef SPILLWAY_KERNELS_CPU_SIMD_AVX2_H
#define SPILLWAY_KERNELS_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 16 };

typedef struct {
    __m256 a, b;
} lanes;
typedef struct {
    __m256i a, b;
} words;
typedef struct {
    __m256 a, b;
} mask;

static inline lanes lanes_set(float value)
{
    __m256 all = _mm256_set1_ps(value);
    return (lanes){all, all};
}

static inline lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void lanes_store(float *p, lanes x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

static inline lanes lanes_load_part(const float *p, int64_t n)
{
    float part[16] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return lanes_load(part);
}

static inline void lanes_store_part(float *p, lanes x, int64_t n)
{
    float part[16];
    lanes_store(part, x);
    memcpy(p, part, (size_t)n * sizeof *p);
}

static inline __m256 load_half_bf16(const uint16_t *p)
{
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    return (lanes){load_half_bf16(p), load_half_bf16(p + 8)};
}

/* Bits of the rounded halves, one in 32 bits. */
static inline __m256i rounded_to_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}

static inline void lanes_store_bf16(uint16_t *p, lanes x)
{
    __m256i packed = _mm256_packus_epi32(rounded_to_bf16(x.a), rounded_to_bf16(x.b));
    packed = _mm256_permute4x64_epi64(packed, 0xD8);
    _mm256_storeu_si256((__m256i *)(void *)p, packed);
}

static inline lanes lanes_add(lanes x, lanes y)
{
    return (lanes){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}

static inline lanes lanes_sub(lanes x, lanes y)
{
    return (lanes){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}

static inline lanes lanes_mul(lanes x, lanes y)
{
    return (lanes){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}

static inline lanes lanes_div(lanes x, lanes y)
{
    return (lanes){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}

static inline lanes lanes_max(lanes x, lanes y)
{
    return (lanes){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}

static inline mask lanes_less(lanes x, lanes y)
{
    return (mask){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}

static inline lanes lanes_select(mask m, lanes yes, lanes no)
{
    return (lanes){_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b)};
}

static inline lanes lanes_keep_first(lanes x, int64_t n, lanes filler)
{
    const __m256i counts = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i first = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), counts);
    __m256i second = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - 8), counts);
    return lanes_select((mask){_mm256_castsi256_ps(first), _mm256_castsi256_ps(second)}, x, filler);
}

static inline __m256 half_power_of_bits(__m256 x, uint32_t bias)
{
    __m256i bits = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32((int)bias));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}

static inline lanes lanes_power_of_bits(lanes x, uint32_t bias)
{
    return (lanes){half_power_of_bits(x.a, bias), half_power_of_bits(x.b, bias)};
}

static inline float lanes_sum(lanes x)
{
    __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float lanes_greatest(lanes x)
{
    __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static inline words words_set(uint32_t value)
{
    __m256i all = _mm256_set1_epi32((int)value);
    return (words){all, all};
}

static inline words words_count_from(uint32_t first)
{
    const __m256i counts = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (words){_mm256_add_epi32(counts, _mm256_set1_epi32((int)first)),
                   _mm256_add_epi32(counts, _mm256_set1_epi32((int)(first + 8)))};
}

static inline words words_xor(words x, words y)
{
    return (words){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)};
}

static inline void multiply_half(__m256i x, uint32_t y, __m256i *high, __m256i *low)
{
    const __m256i factor = _mm256_set1_epi32((int)y);
    __m256i even = _mm256_mul_epu32(x, factor);
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), factor);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
}

static inline void words_multiply(words x, uint32_t y, words *high, words *low)
{
    multiply_half(x.a, y, &high->a, &low->a);
    multiply_half(x.b, y, &high->b, &low->b);
}

static inline __m256 kept_half(__m256i x, uint32_t threshold, float kept)
{
    /* words >> 8 have 24 bits: a signed comparison will do */
    __m256i drop = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)threshold), _mm256_srli_epi32(x, 8));
    return _mm256_andnot_ps(_mm256_castsi256_ps(drop), _mm256_set1_ps(kept));
}

/* 4 x 8 transposed to 8 x 4. */
static inline void keep_half(__m256i x0, __m256i x1, __m256i x2, __m256i x3, uint32_t threshold,
                             float kept, float out[32])
{
    __m256 v0 = kept_half(x0, threshold, kept), v1 = kept_half(x1, threshold, kept);
    __m256 v2 = kept_half(x2, threshold, kept), v3 = kept_half(x3, threshold, kept);
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v0, v1));
    __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(v2, v3));
    __m256d c = _mm256_castps_pd(_mm256_unpackhi_ps(v0, v1));
    __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(v2, v3));
    __m256 r0 = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
    __m256 r1 = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    __m256 r2 = _mm256_castpd_ps(_mm256_unpacklo_pd(c, d));
    __m256 r3 = _mm256_castpd_ps(_mm256_unpackhi_pd(c, d));
    _mm256_storeu_ps(out, _mm256_permute2f128_ps(r0, r1, 0x20));
    _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(r2, r3, 0x20));
    _mm256_storeu_ps(out + 16, _mm256_permute2f128_ps(r0, r1, 0x31));
    _mm256_storeu_ps(out + 24, _mm256_permute2f128_ps(r2, r3, 0x31));
}

static inline void words_keep(const words x[4], uint32_t threshold, float kept, float out[64])
{
    keep_half(x[0].a, x[1].a, x[2].a, x[3].a, threshold, kept, out);
    keep_half(x[0].b, x[1].b, x[2].b, x[3].b, threshold, kept, out + 32);
}

#endif
