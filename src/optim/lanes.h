/* Inner loops of the optimizers, one table an instruction set. Not part of the interface.
 *
 * Every loop works on 16 lanes at a time, whatever the width of the registers: lane k of a run
 * takes elements k, k + 16, ...; what is summed is summed per lane in double and then over the
 * lanes by halves (k += k + 8, k + 4, ...). A last, partial group is filled up with zeros, which
 * change no sum. Only IEEE add, subtract, multiply, divide and square root, none fused: so all
 * tables give the same bits. */
#ifndef SPILLWAY_OPTIM_LANES_H
#define SPILLWAY_OPTIM_LANES_H

#include "optim/optim.h"

/* Elements to read: f32; or high and low halves; or high alone (bf16). */
struct sw_lanes_in {
    const float *f32;
    const uint16_t *high, *low;
};

/* Weights to update in place: f32, or high and low; and the copy that blocks compute with. */
struct sw_lanes_weights {
    float *f32;
    uint16_t *high, *low;
    float *out_f32; /* or NULL */
    uint16_t *out_bf16;
};

struct sw_lanes_adamw {
    const struct sw_adamw_scalars *scalars;
    float keep;
    struct sw_lanes_in gradient;
    struct sw_lanes_weights weights;
    float *exp_avg, *exp_avg_sq;              /* fp32 moments, or */
    uint16_t *exp_avg_bf16, *exp_avg_sq_bf16; /* bf16 ones with */
    const uint32_t *random;                   /* a word an element: low half exp_avg's */
};

/* The update of a run of elements of one row (factored) or of a vector. */
struct sw_lanes_adafactor {
    struct sw_lanes_in gradient;
    float clip_scale;
    float row_factor;           /* u = row_factor * g * column_factor, or */
    const float *column_factor; /* NULL: */
    const float *exp_avg_sq;    /* u = g / sqrt(exp_avg_sq) */
};

struct sw_lanes {
    /* Random words of `groups` groups of 64 elements from element 64 * first_group: word of element
     * 64 G + 16 w + l is word w of Philox at counter (16 G + l, unit, number). Room for an even
     * number of groups. */
    void (*random)(const uint32_t key[2], uint32_t number, uint32_t unit, int64_t first_group,
                   int64_t groups, uint32_t *words);
    void (*adamw)(const struct sw_lanes_adamw *run, int64_t count);
    /* Write the copy of weights that do not change. */
    void (*copy)(const struct sw_lanes_in *in, const struct sw_lanes_weights *out, int64_t count);
    /* Write weights (f32 or halves) from `in`. */
    void (*store)(const struct sw_lanes_in *in, const struct sw_lanes_weights *out, int64_t count);
    void (*to_bf16)(const float *in, uint16_t *out, int64_t count);
    /* Sum of (scale * x)^2, the product rounded to fp32 and its square exact. */
    double (*squares)(const struct sw_lanes_in *in, float scale, int64_t count);
    /* sums[i] += (scale * x[i])^2 */
    void (*add_squares)(const struct sw_lanes_in *in, float scale, double *sums, int64_t count);
    /* v = decay v + rest ((scale x)^2 + eps), in fp32 */
    void (*average_squares)(const struct sw_lanes_in *in, float scale, float decay, float rest,
                            float eps, float *v, int64_t count);
    double (*update_squares)(const struct sw_lanes_adafactor *run, int64_t count);
    /* w = keep w - step u */
    void (*update)(const struct sw_lanes_adafactor *run, float keep, float step,
                   const struct sw_lanes_weights *weights, int64_t count);
    /* a = b + s c: the yardstick of the benchmark */
    void (*triad)(float *a, const float *b, float s, const float *c, int64_t count);
};

/* The table in use. */
const struct sw_lanes *sw_lanes(void);

/* Cursors at element `index`. */
static inline struct sw_lanes_in sw_lanes_in_at(struct sw_lanes_in in, int64_t index)
{
    in.f32 = in.f32 == NULL ? NULL : in.f32 + index;
    in.high = in.high == NULL ? NULL : in.high + index;
    in.low = in.low == NULL ? NULL : in.low + index;
    return in;
}
static inline struct sw_lanes_weights sw_lanes_weights_at(struct sw_lanes_weights w, int64_t index)
{
    w.f32 = w.f32 == NULL ? NULL : w.f32 + index;
    w.high = w.high == NULL ? NULL : w.high + index;
    w.low = w.low == NULL ? NULL : w.low + index;
    w.out_f32 = w.out_f32 == NULL ? NULL : w.out_f32 + index;
    w.out_bf16 = w.out_bf16 == NULL ? NULL : w.out_bf16 + index;
    return w;
}
static inline struct sw_lanes_adamw sw_lanes_adamw_at(struct sw_lanes_adamw run, int64_t index)
{
    run.gradient = sw_lanes_in_at(run.gradient, index);
    run.weights = sw_lanes_weights_at(run.weights, index);
    if (run.exp_avg != NULL) {
        run.exp_avg += index;
        run.exp_avg_sq += index;
    } else {
        run.exp_avg_bf16 += index;
        run.exp_avg_sq_bf16 += index;
    }
    return run;
}
static inline struct sw_lanes_in sw_lanes_in_weights(const struct sw_lanes_weights *w)
{
    return (struct sw_lanes_in){.f32 = w->f32, .high = w->high, .low = w->low};
}

extern const struct sw_lanes sw_lanes_scalar, sw_lanes_avx2, sw_lanes_avx512;

#endif
