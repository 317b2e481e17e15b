/* The loops of lanes.h in terms of 16-lane operations. Included once by every lanes_*.c, which
 * defines
 *   LANES            the attributes of every function here
 *   LANES_TABLE      the name of the table
 *   vf, vu, vd       16 float, 16 uint32_t, 16 double
 *   vf_load/store/set/add/sub/mul/div/sqrt, vf_bits, vu_float, vf_is_nan_select
 *   vu_load/store/set/add/xor/and, vu_shift_up/down (by 16), vu_load_half, vu_load_half_signed,
 *   vu_store_half (low halves), vu_multiply (high and low words of a product), vu_lanes (0 .. 15)
 *   vd_zero, vd_load, vd_store, vd_add_squares
 */
#ifndef SPILLWAY_OPTIM_LANES_BODY_H
#define SPILLWAY_OPTIM_LANES_BODY_H

#include <string.h>

enum { LANE_COUNT = 16 };

#define LANES_INLINE LANES static inline __attribute__((always_inline))

/* ---- loads and stores of n <= 16 elements; absent ones read as zero ---- */

LANES_INLINE vf load_float(const float *p, int64_t n)
{
    if (n == LANE_COUNT)
        return vf_load(p);
    float full[LANE_COUNT] = {0};
    memcpy(full, p, (size_t)n * sizeof *p);
    return vf_load(full);
}

LANES_INLINE void store_float(float *p, vf x, int64_t n)
{
    float full[LANE_COUNT];
    if (n == LANE_COUNT) {
        vf_store(p, x);
        return;
    }
    vf_store(full, x);
    memcpy(p, full, (size_t)n * sizeof *p);
}

LANES_INLINE vu load_word(const uint32_t *p, int64_t n)
{
    if (n == LANE_COUNT)
        return vu_load(p);
    uint32_t full[LANE_COUNT] = {0};
    memcpy(full, p, (size_t)n * sizeof *p);
    return vu_load(full);
}

LANES_INLINE vu load_half(const uint16_t *p, int64_t n)
{
    if (n == LANE_COUNT)
        return vu_load_half(p);
    uint16_t full[LANE_COUNT] = {0};
    memcpy(full, p, (size_t)n * sizeof *p);
    return vu_load_half(full);
}

LANES_INLINE vu load_half_signed(const uint16_t *p, int64_t n)
{
    if (n == LANE_COUNT)
        return vu_load_half_signed(p);
    uint16_t full[LANE_COUNT] = {0};
    memcpy(full, p, (size_t)n * sizeof *p);
    return vu_load_half_signed(full);
}

LANES_INLINE void store_half(uint16_t *p, vu x, int64_t n)
{
    uint16_t full[LANE_COUNT];
    if (n == LANE_COUNT) {
        vu_store_half(p, x);
        return;
    }
    vu_store_half(full, x);
    memcpy(p, full, (size_t)n * sizeof *p);
}

LANES_INLINE vf load_bf16(const uint16_t *p, int64_t n)
{
    return vu_float(vu_shift_up(load_half(p, n)));
}

LANES_INLINE vf load_in(const struct sw_lanes_in *in, int64_t i, int64_t n)
{
    if (in->f32 != NULL)
        return load_float(in->f32 + i, n);
    vu high = vu_shift_up(load_half(in->high + i, n));
    if (in->low != NULL)
        high = vu_add(high, load_half_signed(in->low + i, n));
    return vu_float(high);
}

LANES_INLINE vf load_weights(const struct sw_lanes_weights *w, int64_t i, int64_t n)
{
    struct sw_lanes_in in = sw_lanes_in_weights(w);
    return load_in(&in, i, n);
}

/* bf16, halves away from zero (sw_weight_to_bf16) */
LANES_INLINE vu weight_half(vf x)
{
    return vu_shift_down(vu_add(vf_bits(x), vu_set(0x8000u)));
}

LANES_INLINE void store_copy(const struct sw_lanes_weights *w, int64_t i, vf x, int64_t n)
{
    if (w->out_f32 != NULL)
        store_float(w->out_f32 + i, x, n);
    if (w->out_bf16 != NULL)
        store_half(w->out_bf16 + i, weight_half(x), n);
}

LANES_INLINE void store_master(const struct sw_lanes_weights *w, int64_t i, vf x, int64_t n)
{
    if (w->f32 != NULL) {
        store_float(w->f32 + i, x, n);
    } else {
        store_half(w->high + i, weight_half(x), n);
        store_half(w->low + i, vu_and(vf_bits(x), vu_set(0xFFFFu)), n);
    }
}

/* ---- random words ---- */

/* One round of Philox4x32 on one group's 16 counters. */
LANES_INLINE void random_round(vu c[4], vu k0, vu k1)
{
    vu high0, low0, high1, low1;
    vu_multiply(c[0], 0xD2511F53u, &high0, &low0);
    vu_multiply(c[2], 0xCD9E8D57u, &high1, &low1);
    c[0] = vu_xor(vu_xor(high1, c[1]), k0);
    c[1] = low1;
    c[2] = vu_xor(vu_xor(high0, c[3]), k1);
    c[3] = low0;
}

LANES_INLINE void random_start(vu c[4], int64_t group, uint32_t unit, uint32_t number)
{
    uint64_t counter = (uint64_t)group * LANE_COUNT;
    c[0] = vu_add(vu_set((uint32_t)counter), vu_lanes());
    c[1] = vu_set((uint32_t)(counter >> 32));
    c[2] = vu_set(unit);
    c[3] = vu_set(number);
}

LANES static void random_words(const uint32_t key[2], uint32_t number, uint32_t unit,
                               int64_t first_group, int64_t groups, uint32_t *words)
{
    /* Two groups at a time: a round is a chain of dependent operations. */
    for (int64_t group = 0; group < groups; group += 2) {
        uint32_t k0 = key[0], k1 = key[1];
        vu even[4], odd[4];
        random_start(even, first_group + group, unit, number);
        random_start(odd, first_group + group + 1, unit, number);
        for (int round = 0; round < 10; round++) {
            random_round(even, vu_set(k0), vu_set(k1));
            random_round(odd, vu_set(k0), vu_set(k1));
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int k = 0; k < 4; k++) {
            vu_store(words + group * 64 + k * LANE_COUNT, even[k]);
            vu_store(words + group * 64 + 64 + k * LANE_COUNT, odd[k]);
        }
    }
}

/* ---- AdamW ---- */

LANES_INLINE void adamw_lanes(const struct sw_lanes_adamw *run, int64_t i, int64_t n)
{
    const struct sw_adamw_scalars *s = run->scalars;
    bool rounded = run->exp_avg == NULL;
    vf g = vf_mul(load_in(&run->gradient, i, n), vf_set(s->clip_scale));
    vf m = rounded ? load_bf16(run->exp_avg_bf16 + i, n) : load_float(run->exp_avg + i, n);
    vf v = rounded ? load_bf16(run->exp_avg_sq_bf16 + i, n) : load_float(run->exp_avg_sq + i, n);
    vf w = load_weights(&run->weights, i, n);
    m = vf_add(m, vf_mul(vf_set(s->beta1_rest), vf_sub(g, m)));
    v = vf_add(vf_mul(vf_set(s->beta2), v), vf_mul(vf_mul(vf_set(s->beta2_rest), g), g));
    vf root = vf_add(vf_mul(vf_sqrt(v), vf_set(s->root_scale)), vf_set(s->eps));
    w = vf_sub(vf_mul(vf_set(run->keep), w), vf_mul(vf_set(s->step_size), vf_div(m, root)));
    store_master(&run->weights, i, w, n);
    store_copy(&run->weights, i, w, n);
    if (rounded) {
        /* Adding 16 uniform bits and cutting rounds up with the probability of what is cut. */
        vu random = load_word(run->random + i, n);
        vu m_bits = vu_add(vf_bits(m), vu_and(random, vu_set(0xFFFFu)));
        vu v_bits = vu_add(vf_bits(v), vu_shift_down(random));
        store_half(run->exp_avg_bf16 + i, vu_shift_down(m_bits), n);
        store_half(run->exp_avg_sq_bf16 + i, vu_shift_down(v_bits), n);
    } else {
        store_float(run->exp_avg + i, m, n);
        store_float(run->exp_avg_sq + i, v, n);
    }
}

LANES static void adamw(const struct sw_lanes_adamw *run, int64_t count)
{
    const struct sw_lanes_adamw local = *run; /* stores cannot alias it: loads hoist */
    int64_t i = 0;
    for (; i + LANE_COUNT <= count; i += LANE_COUNT)
        adamw_lanes(&local, i, LANE_COUNT);
    if (i < count)
        adamw_lanes(&local, i, count - i);
}

/* ---- conversions ---- */

LANES static void copy(const struct sw_lanes_in *in, const struct sw_lanes_weights *out,
                       int64_t count)
{
    for (int64_t i = 0; i < count; i += LANE_COUNT) {
        int64_t n = count - i < LANE_COUNT ? count - i : LANE_COUNT;
        store_copy(out, i, load_in(in, i, n), n);
    }
}

LANES static void store(const struct sw_lanes_in *in, const struct sw_lanes_weights *out,
                        int64_t count)
{
    for (int64_t i = 0; i < count; i += LANE_COUNT) {
        int64_t n = count - i < LANE_COUNT ? count - i : LANE_COUNT;
        store_master(out, i, load_in(in, i, n), n);
    }
}

LANES static void to_bf16(const float *in, uint16_t *out, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANE_COUNT) {
        int64_t n = count - i < LANE_COUNT ? count - i : LANE_COUNT;
        vf x = load_float(in + i, n);
        vu bits = vf_bits(x), even = vu_and(vu_shift_down(bits), vu_set(1));
        vu nearest = vu_shift_down(vu_add(vu_add(bits, vu_set(0x7FFFu)), even));
        vu quiet = vu_or(vu_shift_down(bits), vu_set(0x40u));
        store_half(out + i, vf_is_nan_select(x, quiet, nearest), n);
    }
}

/* ---- sums ---- */

LANES_INLINE double sum_lanes(vd sums)
{
    double lane[LANE_COUNT];
    vd_store(lane, sums);
    for (int half = LANE_COUNT / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            lane[k] += lane[k + half];
    return lane[0];
}

LANES static double squares(const struct sw_lanes_in *in, float scale, int64_t count)
{
    vd sums = vd_zero();
    int64_t i = 0;
    for (; i + LANE_COUNT <= count; i += LANE_COUNT)
        sums = vd_add_squares(sums, vf_mul(load_in(in, i, LANE_COUNT), vf_set(scale)));
    if (i < count)
        sums = vd_add_squares(sums, vf_mul(load_in(in, i, count - i), vf_set(scale)));
    return sum_lanes(sums);
}

LANES static void add_squares(const struct sw_lanes_in *in, float scale, double *sums,
                              int64_t count)
{
    int64_t i = 0;
    for (; i + LANE_COUNT <= count; i += LANE_COUNT)
        vd_store(sums + i, vd_add_squares(vd_load(sums + i),
                                          vf_mul(load_in(in, i, LANE_COUNT), vf_set(scale))));
    if (i == count)
        return;
    double full[LANE_COUNT] = {0};
    size_t bytes = (size_t)(count - i) * sizeof full[0];
    memcpy(full, sums + i, bytes);
    vd_store(full, vd_add_squares(vd_load(full), vf_mul(load_in(in, i, count - i), vf_set(scale))));
    memcpy(sums + i, full, bytes);
}

/* ---- Adafactor ---- */

LANES static void average_squares(const struct sw_lanes_in *in, float scale, float decay,
                                  float rest, float eps, float *v, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANE_COUNT) {
        int64_t n = count - i < LANE_COUNT ? count - i : LANE_COUNT;
        vf g = vf_mul(load_in(in, i, n), vf_set(scale));
        vf square = vf_add(vf_mul(g, g), vf_set(eps));
        vf old = load_float(v + i, n);
        store_float(v + i, vf_add(vf_mul(vf_set(decay), old), vf_mul(vf_set(rest), square)), n);
    }
}

LANES_INLINE vf adafactor_update(const struct sw_lanes_adafactor *run, int64_t i, int64_t n)
{
    vf g = vf_mul(load_in(&run->gradient, i, n), vf_set(run->clip_scale));
    /* Row factor first: factors alone may be too large for a product, g's row bounds g times it. */
    if (run->column_factor != NULL)
        return vf_mul(vf_mul(vf_set(run->row_factor), g), load_float(run->column_factor + i, n));
    /* Absent lanes of a last group divide 0 by 1. */
    float full[LANE_COUNT];
    if (n == LANE_COUNT)
        return vf_div(g, vf_sqrt(vf_load(run->exp_avg_sq + i)));
    for (int64_t k = 0; k < LANE_COUNT; k++)
        full[k] = k < n ? run->exp_avg_sq[i + k] : 1.0F;
    return vf_div(g, vf_sqrt(vf_load(full)));
}

LANES static double update_squares(const struct sw_lanes_adafactor *run, int64_t count)
{
    vd sums = vd_zero();
    int64_t i = 0;
    for (; i + LANE_COUNT <= count; i += LANE_COUNT)
        sums = vd_add_squares(sums, adafactor_update(run, i, LANE_COUNT));
    if (i < count)
        sums = vd_add_squares(sums, adafactor_update(run, i, count - i));
    return sum_lanes(sums);
}

LANES_INLINE void update_lanes(const struct sw_lanes_adafactor *run, float keep, float step,
                               const struct sw_lanes_weights *weights, int64_t i, int64_t n)
{
    vf u = adafactor_update(run, i, n);
    vf w = load_weights(weights, i, n);
    w = vf_sub(vf_mul(vf_set(keep), w), vf_mul(vf_set(step), u));
    store_master(weights, i, w, n);
    store_copy(weights, i, w, n);
}

LANES static void update(const struct sw_lanes_adafactor *run, float keep, float step,
                         const struct sw_lanes_weights *weights, int64_t count)
{
    const struct sw_lanes_adafactor local = *run;
    const struct sw_lanes_weights out = *weights;
    int64_t i = 0;
    for (; i + LANE_COUNT <= count; i += LANE_COUNT)
        update_lanes(&local, keep, step, &out, i, LANE_COUNT);
    if (i < count)
        update_lanes(&local, keep, step, &out, i, count - i);
}

/* ---- benchmark ---- */

LANES static void triad(float *a, const float *b, float s, const float *c, int64_t count)
{
    for (int64_t i = 0; i < count; i += LANE_COUNT) {
        int64_t n = count - i < LANE_COUNT ? count - i : LANE_COUNT;
        store_float(a + i, vf_add(load_float(b + i, n), vf_mul(vf_set(s), load_float(c + i, n))),
                    n);
    }
}

const struct sw_lanes LANES_TABLE = {
    .random = random_words,
    .adamw = adamw,
    .copy = copy,
    .store = store,
    .to_bf16 = to_bf16,
    .squares = squares,
    .add_squares = add_squares,
    .average_squares = average_squares,
    .update_squares = update_squares,
    .update = update,
    .triad = triad,
};

#endif
