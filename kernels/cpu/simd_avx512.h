/* simd_generic.h's primitives in AVX-512 (F, BW, DQ, VL): a vector is one register. */
#ifndef SPILLWAY_KERNELS_CPU_SIMD_AVX512_H
#define SPILLWAY_KERNELS_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>

enum { LANES = 16 };

typedef __m512 lanes;
typedef __m512i words;
typedef __mmask16 mask;

static inline __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)((1u << n) - 1u);
}

static inline lanes lanes_set(float value)
{
    return _mm512_set1_ps(value);
}

static inline lanes lanes_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline lanes lanes_load_part(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

static inline void lanes_store(float *p, lanes x)
{
    _mm512_storeu_ps(p, x);
}

static inline void lanes_store_part(float *p, lanes x, int64_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}

static inline lanes lanes_load_bf16(const uint16_t *p)
{
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

static inline void lanes_store_bf16(uint16_t *p, lanes x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(rounded));
}

static inline lanes lanes_add(lanes x, lanes y)
{
    return _mm512_add_ps(x, y);
}

static inline lanes lanes_sub(lanes x, lanes y)
{
    return _mm512_sub_ps(x, y);
}

static inline lanes lanes_mul(lanes x, lanes y)
{
    return _mm512_mul_ps(x, y);
}

static inline lanes lanes_div(lanes x, lanes y)
{
    return _mm512_div_ps(x, y);
}

static inline lanes lanes_max(lanes x, lanes y)
{
    return _mm512_max_ps(x, y);
}

static inline mask lanes_less(lanes x, lanes y)
{
    return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ);
}

static inline lanes lanes_select(mask m, lanes yes, lanes no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

static inline lanes lanes_keep_first(lanes x, int64_t n, lanes filler)
{
    return _mm512_mask_blend_ps(first_lanes(n), filler, x);
}

static inline lanes lanes_power_of_bits(lanes x, uint32_t bias)
{
    __m512i bits = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32((int)bias));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));
}

static inline float lanes_sum(lanes x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float lanes_greatest(lanes x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static inline words words_set(uint32_t value)
{
    return _mm512_set1_epi32((int)value);
}

static inline words words_count_from(uint32_t first)
{
    const __m512i counts = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(words_set(first), counts);
}

static inline words words_xor(words x, words y)
{
    return _mm512_xor_si512(x, y);
}

static inline void words_multiply(words x, uint32_t y, words *high, words *low)
{
    __m512i even = _mm512_mul_epu32(x, words_set(y));
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), words_set(y));
    *high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
}

static inline __m512 kept_lanes(words x, uint32_t threshold, float kept)
{
    __mmask16 keep = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 8), words_set(threshold));
    return _mm512_maskz_mov_ps(keep, _mm512_set1_ps(kept));
}

static inline void words_keep(const words x[4], uint32_t threshold, float kept, float out[64])
{
    __m512 v0 = kept_lanes(x[0], threshold, kept), v1 = kept_lanes(x[1], threshold, kept);
    __m512 v2 = kept_lanes(x[2], threshold, kept), v3 = kept_lanes(x[3], threshold, kept);
    /* a quarter of the register at a time: r_t's quarter q is out[16 q + 4 t ..] */
    __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v0, v1));
    __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(v2, v3));
    __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(v0, v1));
    __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(v2, v3));
    __m512 r0 = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
    __m512 r1 = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    __m512 r2 = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
    __m512 r3 = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
    /* and the quarters transposed */
    __m512 s0 = _mm512_shuffle_f32x4(r0, r1, 0x44), s1 = _mm512_shuffle_f32x4(r0, r1, 0xEE);
    __m512 s2 = _mm512_shuffle_f32x4(r2, r3, 0x44), s3 = _mm512_shuffle_f32x4(r2, r3, 0xEE);
    _mm512_storeu_ps(out, _mm512_shuffle_f32x4(s0, s2, 0x88));
    _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(s0, s2, 0xDD));
    _mm512_storeu_ps(out + 32, _mm512_shuffle_f32x4(s1, s3, 0x88));
    _mm512_storeu_ps(out + 48, _mm512_shuffle_f32x4(s1, s3, 0xDD));
}

#endif
