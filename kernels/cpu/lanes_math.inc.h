/* Loads and stores of either type, exp and friends, dropout's numbers: over the primitives of the
 * simd_*.h that was included before. Included by lanes_body.inc.h only. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* n is 1 .. 16. Lanes beyond are 0. */
ALWAYS_INLINE lanes load(const void *base, enum sw_dtype dtype, int64_t at, int64_t n)
{
    if (dtype == SW_F32) {
        const float *p = (const float *)base + at;
        return n == LANES ? lanes_load(p) : lanes_load_part(p, n);
    }
    const uint16_t *p = (const uint16_t *)base + at;
    if (n == LANES)
        return lanes_load_bf16(p);
    uint16_t part[LANES] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return lanes_load_bf16(part);
}

ALWAYS_INLINE void store(void *base, enum sw_dtype dtype, int64_t at, lanes x, int64_t n)
{
    if (dtype == SW_F32) {
        float *p = (float *)base + at;
        if (n == LANES)
            lanes_store(p, x);
        else
            lanes_store_part(p, x, n);
        return;
    }
    uint16_t *p = (uint16_t *)base + at;
    if (n == LANES) {
        lanes_store_bf16(p, x);
        return;
    }
    uint16_t part[LANES];
    lanes_store_bf16(part, x);
    memcpy(p, part, (size_t)n * sizeof *p);
}

/* Runs BODY(at, n) over `count` elements, 16 at a time, then the rest. */
#define FOR_LANES(count, BODY)                                                                     \
    do {                                                                                           \
        int64_t at_ = 0;                                                                           \
        for (; at_ + LANES <= (count); at_ += LANES)                                               \
            BODY(at_, LANES);                                                                      \
        if (at_ < (count))                                                                         \
            BODY(at_, (count)-at_);                                                                \
    } while (0)

/* exp by x = k ln 2 + r, |r| <= ln 2 / 2; polynomial of degree 6, relative error below 1e-8 before
 * rounding. 0 below -86.5 (no denormals), infinite above 88.72284, NaN stays. */
ALWAYS_INLINE lanes exp_of(lanes x)
{
    const lanes magic = lanes_set(0x1.8p23f); /* adding it rounds to a whole number */
    lanes shifted = lanes_add(lanes_mul(x, lanes_set(0x1.715476p+0f)), magic);
    lanes k = lanes_sub(shifted, magic);
    lanes r = lanes_sub(x, lanes_mul(k, lanes_set(0x1.62ep-1f))); /* ln 2, its first 12 bits */
    r = lanes_sub(r, lanes_mul(k, lanes_set(0x1.0bfbe8p-15f)));   /* and the rest */
    lanes p = lanes_set(0.001392618359f);
    p = lanes_add(lanes_mul(p, r), lanes_set(0.008363179053f));
    p = lanes_add(lanes_mul(p, r), lanes_set(0.04166655462f));
    p = lanes_add(lanes_mul(p, r), lanes_set(0.1666657699f));
    p = lanes_add(lanes_mul(p, r), lanes_set(0.5f));
    p = lanes_add(lanes_mul(p, lanes_mul(r, r)), r);
    p = lanes_add(p, lanes_set(1.0f));
    /* 2^(k - 1), then twice that: k may be 128 */
    lanes y = lanes_mul(lanes_mul(p, lanes_power_of_bits(shifted, 126)), lanes_set(2.0f));
    y = lanes_select(lanes_less(x, lanes_set(-86.5f)), lanes_set(0.0f), y);
    return lanes_select(lanes_less(lanes_set(88.72284f), x), lanes_set(INFINITY), y);
}

/* 1 / (1 + exp(-x)) */
ALWAYS_INLINE lanes sigmoid(lanes x)
{
    lanes one = lanes_set(1.0f);
    return lanes_div(one, lanes_add(one, exp_of(lanes_sub(lanes_set(0.0f), x))));
}

/* The normal distribution function: erfc(a) = exp(-a^2) t Q(t), t = 1 / (1 + 0.4 a), for a = |x| /
 * sqrt 2; Q fits to a relative 4e-8. `density` gets exp(-x^2 / 2). */
ALWAYS_INLINE lanes normal_distribution(lanes x, lanes *density)
{
    lanes zero = lanes_set(0.0f), one = lanes_set(1.0f);
    lanes size = lanes_max(x, lanes_sub(zero, x));
    lanes a = lanes_mul(size, lanes_set(0.70710678f));
    lanes t = lanes_div(one, lanes_add(one, lanes_mul(a, lanes_set(0.4f))));
    lanes q = lanes_set(0.03689541455f);
    q = lanes_add(lanes_mul(q, t), lanes_set(-0.1193858387f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.0413049754f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.1360833793f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.04703671323f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.207099574f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.1984410552f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.2269179473f));
    q = lanes_add(lanes_mul(q, t), lanes_set(0.2256068134f));
    *density = exp_of(lanes_mul(lanes_mul(x, x), lanes_set(-0.5f)));
    lanes tail = lanes_mul(lanes_mul(lanes_mul(q, t), *density), lanes_set(0.5f));
    return lanes_select(lanes_less(x, zero), tail, lanes_sub(one, tail));
}

/* What 64 elements are multiplied by; `group` is the first one's channel / 4 (or key / 4). */
static inline void mask_factors(const struct sw_cpu_mask *m, uint32_t group, float out[64])
{
    uint32_t k0 = m->key[0], k1 = m->key[1];
    words c[4] = {words_count_from(group), words_set(m->c1), words_set(m->c2), words_set(m->c3)};
    for (int round = 0; round < 10; round++) {
        words high0, low0, high2, low2;
        words_multiply(c[0], 0xD2511F53u, &high0, &low0);
        words_multiply(c[2], 0xCD9E8D57u, &high2, &low2);
        c[0] = words_xor(words_xor(high2, c[1]), words_set(k0));
        c[2] = words_xor(words_xor(high0, c[3]), words_set(k1));
        c[1] = low2;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words_keep(c, m->threshold, m->scale, out);
}

/* Runs BODY(at, n, factors): factors [n] from dropout, or NULL. `group`: as in mask_factors. */
#define FOR_MASKED_LANES(mask_, group, count, BODY)                                                \
    do {                                                                                           \
        if (!(mask_)->on) {                                                                        \
            for (int64_t at_ = 0; at_ + LANES <= (count); at_ += LANES)                            \
                BODY(at_, LANES, NULL);                                                            \
            int64_t rest_ = (count) % LANES;                                                       \
            if (rest_ > 0)                                                                         \
                BODY((count)-rest_, rest_, NULL);                                                  \
        } else {                                                                                   \
            for (int64_t first_ = 0; first_ < (count); first_ += 64) {                             \
                float factors_[64];                                                                \
                mask_factors((mask_), (uint32_t)((group) + first_ / 4), factors_);                 \
                for (int64_t in_ = 0; in_ < 64 && first_ + in_ < (count); in_ += LANES) {          \
                    int64_t n_ = (count) - (first_ + in_);                                         \
                    BODY(first_ + in_, n_ < LANES ? n_ : LANES, factors_ + in_);                   \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    } while (0)

ALWAYS_INLINE lanes masked(lanes x, const float *factors)
{
    return factors != NULL ? lanes_mul(x, lanes_load(factors)) : x;
}
